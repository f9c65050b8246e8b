"""One audit from its source to its findings; `rewards.audit.output` writes them down."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from rewards.audit.attacks import ATTACKS, Attack
from rewards.audit.checks import Check, check_all, judges_of
from rewards.audit.clips import ClipSet, joined, part_of, spread_evenly
from rewards.audit.compare import RecipeComparison, compare_recipes, compare_runs
from rewards.audit.data_in import read_clips
from rewards.audit.diagnose import Diagnosis, diagnose, gates_of
from rewards.audit.judges import JudgeNoise, JudgePair, judge_noise, judge_pairs
from rewards.audit.labels import People, calibrate, read_labels
from rewards.audit.nuisance import measures_of
from rewards.audit.probes import Probe, run_probe
from rewards.audit.rescore import Difference, differences, rescore
from rewards.audit.rescore import Progress as Advance
from rewards.audit.settings import AuditSettings
from rewards.catalogue import suggest
from rewards.direction import lower_is_better
from rewards.endpoints.cache import ResponseCache
from rewards.graph import RewardGraph, build_graph
from rewards.types import Scores
from rl.config import load_rewards
from rl.errors import AuditError
from rl.stats import Comparison
from rollouts.store import Split


@dataclass(frozen=True)
class Request:
    """What is asked for. ``rewards``: a recipe in place of the run's; ``total``: an expression in place of
    the recipe's; ``against``: a recipe or a run to compare with; ``ask_judges``: ask judges again.
    """

    source: str
    rewards: str | None = None
    total: str | None = None
    against: str | None = None
    split: Split = "train"
    labels: Path | None = None
    ask_judges: bool = False


@dataclass
class Audit:
    """All that was found. ``attacked``: by probe, the attacked clips and their scores."""

    request: Request
    settings: AuditSettings
    data: ClipSet
    rewards: dict[str, Any]
    graph: RewardGraph
    scores: Scores
    measures: dict[str, np.ndarray]
    diagnosis: Diagnosis
    differences: list[Difference]
    probes: list[Probe]
    attacked: dict[str, tuple[ClipSet, Scores]]
    comparison: RecipeComparison | None = None
    runs: dict[str, Comparison] = field(default_factory=dict)
    noise: list[JudgeNoise] = field(default_factory=list)
    pairs: list[JudgePair] = field(default_factory=list)
    people: People | None = None
    checks: list[Check] = field(default_factory=list)
    seconds: float = 0.0


def run_audit(
    request: Request, settings: AuditSettings, cache: Path | None, console: Console | None = None
) -> Audit:
    """Read, score, compare, diagnose and attack. ``cache``: folder of past answers; None keeps none.

    Raises an `AuralignError` of one line for what is wrong with a file or a setting.
    """
    start = time.monotonic()
    attacks = chosen_attacks(settings.probes)
    data = read_clips(request.source, request.split, settings.clips)
    rewards, monitors = _recipe(request, data)
    labels = [] if request.labels is None else read_labels(request.labels, data.ids)
    graph = build_graph(rewards, monitors)
    judges = judges_of(graph, settings)
    run_graph = None
    if data.stored is not None and data.rewards is not None:
        run_graph = build_graph(
            data.rewards, data.monitors, graph.pools if rewards["nodes"] == data.rewards["nodes"] else None
        )
    store = None if cache is None else ResponseCache(cache)
    with _progress(console or Console(stderr=True)) as tell:
        found = _check_stored(data, run_graph, settings, tell)
        with tell("scoring", len(data)) as advance:
            scores = rescore(data, graph, store, run_graph, advance)
        comparison, runs = _compared(request, settings, data, graph, scores, run_graph, store, tell)
        with tell("measuring", 0):
            measures = measures_of(data.clips, scores)
        probes, attacked = _probed(data, graph, scores, attacks, settings, store, tell)
        noise: list[JudgeNoise] = []
        if request.ask_judges and judges:
            some = data.part(_sample(data, settings.probe_clips))
            with tell("asking judges again", 3 * len(some)) as advance:
                noise = judge_noise(some, rewards, judges, advance)
    diagnosis = diagnose(data, scores, graph.total, gates_of(graph), measures)
    columns = {"total": scores.total, **scores.values}
    people = calibrate(data, columns, labels) if labels else None
    better = frozenset(lower_is_better(graph))
    graph.close()
    if run_graph is not None:
        run_graph.close()
    return Audit(
        request=request,
        settings=settings,
        data=data,
        rewards=rewards,
        graph=graph,
        scores=scores,
        measures=measures,
        diagnosis=diagnosis,
        differences=found,
        probes=probes,
        attacked=attacked,
        comparison=comparison,
        runs=runs,
        noise=noise,
        pairs=judge_pairs(data, scores.values, judges),
        people=people,
        checks=check_all(
            data, graph, scores, measures, diagnosis, found, probes, noise, people, better, settings
        ),
        seconds=time.monotonic() - start,
    )


def chosen_attacks(names: str) -> list[Attack]:
    """The attacks that the setting ``probes`` names. Raises `AuditError`."""
    if names.strip() in ("all", "none"):
        return list(ATTACKS) if names.strip() == "all" else []
    known = {attack.name: attack for attack in ATTACKS}
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in known:
            raise AuditError(f"probes: there is no {name!r}; {suggest(name, known)}")
    return [known[name] for name in wanted]


def _recipe(request: Request, data: ClipSet) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rewards block to audit, and the monitors that the run's evaluation had beside it."""
    monitors: dict[str, Any] = {}
    if request.rewards is not None:
        rewards = asdict(load_rewards(request.rewards))
    elif data.rewards is not None:
        rewards, monitors = data.rewards, data.monitors
    else:
        raise AuditError(f"{data.source}: no reward configuration is beside it; add --rewards RECIPE")
    if request.total is not None:
        rewards = {**rewards, "total": request.total}
    return rewards, monitors


def _check_stored(
    data: ClipSet, run_graph: RewardGraph | None, settings: AuditSettings, tell: Tell
) -> list[Difference]:
    """Score whole batches of the run from scratch: do the stored values come out again?"""
    if run_graph is None or data.stored is None or settings.check_clips == 0:
        return []
    size = len(data.batches[0])
    chosen = spread_evenly(len(data.batches), max(1, settings.check_clips // size))
    fresh: list[Scores] = []
    stored: list[Scores] = []
    with tell("checking stored values", sum(len(data.batches[b]) for b in chosen)) as advance:
        for batch in chosen:
            part = data.part(data.batches[batch])
            fresh.append(rescore(part, run_graph, progress=advance))
            stored.append(part_of(data.stored, data.batches[batch].tolist()))
    names = list(data.stored.values)
    return differences(joined(stored, names), joined(fresh, run_graph.output_names))


def _compared(
    request: Request,
    settings: AuditSettings,
    data: ClipSet,
    graph: RewardGraph,
    scores: Scores,
    run_graph: RewardGraph | None,
    store: ResponseCache | None,
    tell: Tell,
) -> tuple[RecipeComparison | None, dict[str, Comparison]]:
    here = f"total {request.total}" if request.total else (request.rewards or "this recipe")
    if request.against is None:
        changed = request.rewards is not None or request.total is not None
        if changed and data.stored is not None:
            return compare_recipes(data, data.stored, scores, ("the run's own", here)), {}
        return None, {}
    if Path(request.against).exists() and Path(request.against).suffix not in (".yaml", ".yml"):
        other = read_clips(request.against, request.split, settings.clips)
        if other.stored is None:
            raise AuditError(f"{request.against}: no scores are stored in it; name a run or a recipe")
        return None, compare_runs(other, other.stored, data, scores)
    rival = build_graph(asdict(load_rewards(request.against)))
    with tell(f"scoring by {request.against}", len(data)) as advance:
        theirs = rescore(data, rival, store, run_graph, advance)
    rival.close()
    return compare_recipes(data, theirs, scores, (request.against, here)), {}


def _probed(
    data: ClipSet,
    graph: RewardGraph,
    scores: Scores,
    attacks: list[Attack],
    settings: AuditSettings,
    store: ResponseCache | None,
    tell: Tell,
) -> tuple[list[Probe], dict[str, tuple[ClipSet, Scores]]]:
    places = _sample(data, settings.probe_clips)
    some, clean = data.part(places), part_of(scores, places)
    probes, examples = [], {}
    better = frozenset(lower_is_better(graph))
    with tell("attacking", len(some) * len(attacks)) as advance:
        for attack in attacks:
            probe, under, under_scores = run_probe(
                some,
                clean,
                attack,
                graph,
                bystanders=data.clips,
                seed=settings.seed,
                cache=store,
                lower_is_better=better,
                gates=gates_of(graph),
                progress=advance,
            )
            advance(len(some) - len(under))
            probes.append(probe)
            examples[attack.name] = (under, under_scores)
    return probes, examples


def _sample(data: ClipSet, wanted: int) -> list[int]:
    """Places of clips, evenly spaced: over the steps and over the groups."""
    return spread_evenly(len(data), wanted)


class Tell:
    """Progress bars with the time left: ``with tell("scoring", 100) as advance: advance(1)``."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars

    @contextmanager
    def __call__(self, what: str, total: int) -> Iterator[Advance]:
        task = self._bars.add_task(what, total=total or None)
        yield lambda clips: self._bars.advance(task, clips)
        self._bars.update(task, total=total or 1, completed=total or 1)


@contextmanager
def _progress(console: Console) -> Iterator[Tell]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        yield Tell(bars)
