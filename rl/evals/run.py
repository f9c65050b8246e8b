"""One evaluation from its data to its figures; `rl.evals.output` writes them down."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rl.config import config_hash
from rl.errors import EvalError
from rl.evals.data import read_items
from rl.evals.figures import Difference, Line, differences, lines, values_of
from rl.evals.pairs import Preference, judge_pairs
from rl.evals.recipe import Recipe, build_pairs
from rl.evals.sides import Folder, Policy, Side, evaluate_sides, source_of
from rl.export.merge import find_source
from rl.schema import RunConfig
from rollouts.types import Prompt


@dataclass(frozen=True)
class Request:
    """What is asked for: ``suite`` and ``data``, and of what: ``audio``, or ``config`` with its ``adapter``.

    ``against``: what to compare with (see `rl.evals.sides.source_of`). ``items``: only the first so many.
    """

    suite: str
    data: str
    config: RunConfig | None = None
    adapter: str | None = None
    audio: str | None = None
    against: str | None = None
    items: int | None = None


@dataclass
class Result:
    """All that was found. ``values``: of each figure by item; ``other`` and what follows need ``against``."""

    request: Request
    recipe: Recipe
    prompts: list[Prompt]
    side: Side
    values: dict[str, np.ndarray]
    lines: list[Line]
    other: Side | None = None
    differences: list[Difference] = field(default_factory=list)
    preferences: list[Preference] = field(default_factory=list)

    @property
    def config_hash(self) -> str:
        """Of the configuration; empty without one."""
        return "" if self.request.config is None else config_hash(self.request.config)


def run_eval(request: Request, recipe: Recipe) -> Result:
    """Read, sample or find the audio, score it, and compare. Raises an `AuralignError` of one line."""
    own = _source(request)
    against = None if request.against is None else source_of(request.against)
    prompts = read_items(request.suite, request.data)[: request.items]
    judges = None if against is None else build_pairs(recipe)
    sources = [own] if against is None else [own, against]
    side, *others = evaluate_sides(sources, prompts, recipe, request.config)
    values = values_of(recipe, side.scores)
    result = Result(request, recipe, prompts, side, values, lines(recipe, prompts, side.scores, values))
    for other in others:
        result.other = other
        result.differences = differences(recipe, prompts, values, values_of(recipe, other.scores))
        if judges is not None:
            result.preferences = judge_pairs(judges, prompts, side.clips, other.clips)
            judges.close()
    recipe.graph.close()
    return result


def _source(request: Request) -> Policy | Folder:
    if request.audio is not None:
        if request.adapter is not None:
            raise EvalError("--audio and --adapter: audio that is there has no policy; use one of them")
        return Folder(Path(request.audio))
    if request.config is None:
        raise EvalError("nothing to evaluate; add --config, e.g. --config grpo_tiny.yaml, or --audio DIR")
    return Policy() if request.adapter is None else Policy(find_source(Path(request.adapter)).adapter)
