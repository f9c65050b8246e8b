"""How often does an attacked clip score at least as high as the clean one?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rewards.audit.attacks import ATTACKS, Attack, Bystander, can_speak
from rewards.audit.clips import ClipSet, part_of
from rewards.audit.rescore import Progress, rescore
from rewards.endpoints.cache import ResponseCache
from rewards.expression import Expression
from rewards.graph import RewardGraph
from rewards.types import Clip, Scores

SAME = 1e-6
"""Scores nearer than this are equal, and equal is enough to fool: the attack went unnoticed."""


@dataclass(frozen=True)
class Example:
    """An attacked clip to listen to beside the clean one; the totals of both."""

    clip: str
    clean: float
    attacked: float


@dataclass(frozen=True)
class Probe:
    """One attack on ``clips`` clips that have a total.

    Clean clips that a gate closed on are none of them: they have nothing to lose. ``fooled``: share of them
    whose attacked total is at least the clean one's. ``by_output``: the same for
    each output, over the clips where both sides have a value; ``gated``: share that a gate caught;
    ``missing``: share without an attacked total, which can't fool. ``gain``: mean change of the total.
    ``culprit``: the output that does most for the attacked clips that fool (see `culprit_of`), empty where
    none does. ``skipped``: why there is no figure, or "".
    """

    name: str
    does: str
    clips: int
    fooled: float
    by_output: dict[str, float]
    gated: float
    missing: float
    gain: float
    culprit: str
    examples: tuple[Example, ...]
    skipped: str = ""


def attacked(data: ClipSet, attack: Attack, seed: int, bystanders: Sequence[Clip]) -> ClipSet:
    """The clips of ``data`` under ``attack``, those that it can be made of. The same seed gives the same."""
    others = Bystander(bystanders)
    number = ATTACKS.index(attack) if attack in ATTACKS else len(ATTACKS)
    made: list[Clip] = []
    places = []
    for place, clip in enumerate(data.clips):
        result = attack.make(clip, np.random.default_rng([seed, number, place]), others)
        if result is not None:
            made.append(result)
            places.append(place)
    return replace(data.part(places), clips=made, stored=None)


def run_probe(
    data: ClipSet,
    clean: Scores,
    attack: Attack,
    graph: RewardGraph,
    *,
    bystanders: Sequence[Clip],
    seed: int = 0,
    cache: ResponseCache | None = None,
    lower_is_better: frozenset[str] = frozenset(),
    gates: Sequence[str] = (),
    progress: Progress = lambda clips: None,
) -> tuple[Probe, ClipSet, Scores]:
    """Attack ``data``, whose scores by ``graph`` are ``clean``; also the attacked clips and their scores.

    ``gates``: outputs that are 0 where a gate closed (`rewards.audit.diagnose.gates_of`).
    """
    if attack.name == "read_aloud" and not can_speak():
        return _skipped(attack, "needs hibari-tts, which isn't installed"), data.part([]), part_of(clean, [])
    under = attacked(data, attack, seed, bystanders)
    if not len(under):
        return _skipped(attack, "can't be made of these clips"), under, part_of(clean, [])
    scores = rescore(under, graph, cache, progress=progress)
    places = [data.ids.index(name) for name in under.ids]
    probe = tally(attack, under, part_of(clean, places), scores, graph.total, lower_is_better, gates)
    return probe, under, scores


def tally(
    attack: Attack,
    under: ClipSet,
    clean: Scores,
    scores: Scores,
    total: Expression,
    lower_is_better: frozenset[str] = frozenset(),
    gates: Sequence[str] = (),
    examples: int = 3,
) -> Probe:
    """The figures of a probe: ``clean`` and ``scores`` are of the same clips, before and under ``attack``."""
    usable = ~np.isnan(clean.total) & ~_closed(clean, gates)
    closed = _closed(scores, gates)
    if not usable.any():
        return _skipped(attack, "no clean clip has a total")
    fools = usable & (scores.total >= clean.total - SAME)
    by_output = {}
    for name, before in clean.values.items():
        sign = -1.0 if name in lower_is_better else 1.0
        both = usable & ~np.isnan(before) & ~np.isnan(scores.values[name])
        if both.any():
            gains = sign * (scores.values[name] - before)[both]
            by_output[name] = float(np.mean(gains >= -SAME))
    gains = np.where(usable, scores.total - clean.total, np.nan)
    order = np.argsort(-np.nan_to_num(gains, nan=-np.inf), kind="stable")[:examples]
    return Probe(
        name=attack.name,
        does=attack.does,
        clips=int(usable.sum()),
        fooled=float(fools[usable].mean()),
        by_output=by_output,
        gated=float(closed[usable].mean()),
        missing=float(np.isnan(scores.total)[usable].mean()),
        gain=float(np.nanmean(gains)) if np.isfinite(gains).any() else np.nan,
        culprit=culprit_of(total, clean, scores, fools & ~closed),
        examples=tuple(
            Example(under.ids[i], float(clean.total[i]), float(scores.total[i]))
            for i in order.tolist()
            if usable[i] and np.isfinite(gains[i])
        ),
    )


def _closed(scores: Scores, gates: Sequence[str]) -> np.ndarray:
    """bool ``[N]``: a gate closed on the clip."""
    return np.any([scores.gated, *(scores.values[name] == 0 for name in gates)], axis=0)


def culprit_of(total: Expression, clean: Scores, scores: Scores, fools: np.ndarray) -> str:
    """The output through which the clips ``fools`` (bool ``[N]``) gain most, or lose least.

    For each output: the total of the attacked clip less the same total with this output's clean value put
    back. Empty without such clips.
    """
    if not fools.any():
        return ""
    under = {name: scores.values[name][fools] for name in total.names}
    whole = total.evaluate(under)
    gains = {}
    for name in total.names:
        back = total.evaluate({**under, name: clean.values[name][fools]})
        gained = (whole - back)[np.isfinite(whole - back)]
        gains[name] = float(gained.mean()) if len(gained) else -np.inf
    return max(gains, key=lambda name: gains[name])


def _skipped(attack: Attack, why: str) -> Probe:
    nan = float("nan")
    return Probe(attack.name, attack.does, 0, nan, {}, nan, nan, nan, "", (), why)
