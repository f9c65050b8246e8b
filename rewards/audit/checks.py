"""From figures to findings: each check has a name, a limit, and one line that says what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rewards.audit.clips import ClipSet
from rewards.audit.diagnose import TOTAL, Diagnosis, Drift, Output
from rewards.audit.groups import NO_SPREAD, centred
from rewards.audit.judges import JudgeNoise
from rewards.audit.labels import People
from rewards.audit.probes import Probe
from rewards.audit.rescore import Difference
from rewards.audit.settings import AuditSettings
from rewards.catalogue import suggest
from rewards.graph import RewardGraph
from rewards.nodes.asr_endpoint import AsrEndpoint
from rewards.nodes.attribute_judge import AttributeJudge
from rewards.nodes.judge_endpoint import JudgeEndpoint
from rewards.nodes.tag_confidence import TagConfidence
from rewards.nodes.whisper import Whisper
from rewards.types import Scores
from rl.errors import AuditError

BIASES = ("duration", "level", "silence", "pitch")
"""What a reward shouldn't depend on."""

_LAST_DIGITS = ": last digits, as another number of threads or another processor gives"


@dataclass(frozen=True)
class Check:
    """``value`` against ``limit``; ``says`` in one line what that means."""

    kind: str
    subject: str
    passed: bool
    value: float
    limit: float
    says: str

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.subject}"


def check_all(
    data: ClipSet,
    graph: RewardGraph,
    scores: Scores,
    measures: Mapping[str, np.ndarray],
    diagnosis: Diagnosis,
    found: Sequence[Difference],
    probes: Sequence[Probe],
    noise: Sequence[JudgeNoise],
    people: People | None,
    lower_is_better: frozenset[str],
    settings: AuditSettings,
) -> list[Check]:
    """Every check that the data allows, by kind in the order of `KINDS`."""
    return [
        *_reproduction(found),
        *_missing(scores, settings),
        *_of_outputs(diagnosis, settings),
        *_bias(diagnosis, settings),
        *_divergence(diagnosis, lower_is_better, settings),
        *_loops(data, graph, scores, measures, settings),
        *_judges(graph, diagnosis, settings),
        *_fooled(probes, settings),
        *_repeats(noise, settings),
        *_people(people, settings),
    ]


def _reproduction(found: Sequence[Difference]) -> Iterator[Check]:
    for one in found:
        says = f"{one.output}: {one.differ} of {one.clips} clips differ from the stored value"
        if one.differ:
            says += f", by at most {one.largest:.3g}"
            says += _LAST_DIGITS if one.largest < 1e-6 and not one.presence else ""
        yield Check("reproduction", one.output, not one.differ, one.differ / one.clips, 0.0, says)


def _missing(scores: Scores, settings: AuditSettings) -> Iterator[Check]:
    """Where a value goes missing, not where its absence is passed on."""
    for name in (*scores.values, TOTAL):
        own = [
            row[name]
            for row in scores.reasons
            if name in row and not row[name].startswith(("needs ", "gated by "))
        ]
        share = len(own) / len(scores.reasons)
        why = max(set(own), key=own.count) if own else ""
        says = f"{name} has no value for {share:.1%} of the clips" + (f", mostly: {why}" if own else "")
        yield Check("missing", name, share <= settings.max_missing, share, settings.max_missing, says)


def _of_outputs(diagnosis: Diagnosis, settings: AuditSettings) -> Iterator[Check]:
    total = diagnosis.output(TOTAL)
    parts = [output for output in diagnosis.outputs if output.role == "reward"]
    for output in parts:
        constant = bool(output.std < NO_SPREAD)
        says = f"{output.name} is {output.mean:.4g} for every clip: it can teach nothing"
        yield Check("constant", output.name, not constant, output.std, NO_SPREAD, says)
    says = f"{total.flat:.0%} of the groups have totals without spread"
    yield Check("flat", TOTAL, not total.flat > settings.max_flat, total.flat, settings.max_flat, says)
    for output in (total, *parts):
        if not output.std < NO_SPREAD:
            yield from _ends(output, settings)
    for output in parts if len(parts) > 1 else []:
        limit = settings.max_explained
        says = f"{output.name} has {output.explained:.0%} of the total's variance inside groups"
        yield Check("dominance", output.name, not output.explained > limit, output.explained, limit, says)


def _ends(output: Output, settings: AuditSettings) -> Iterator[Check]:
    share, end = max((output.ceiling, "highest"), (output.floor, "lowest"))
    says = f"{share:.0%} of the values of {output.name} are its {end}"
    yield Check("end", output.name, not share > settings.max_end, share, settings.max_end, says)


def _bias(diagnosis: Diagnosis, settings: AuditSettings) -> Iterator[Check]:
    for output in diagnosis.outputs:
        if output.role not in (TOTAL, "reward"):
            continue
        for measure in BIASES:
            rho = diagnosis.nuisance[output.name].get(measure, np.nan)
            if not np.isnan(rho):
                says = f"{output.name} follows {measure}: correlation {rho:+.2f} inside groups"
                limit = settings.max_bias
                yield Check("bias", f"{output.name}~{measure}", abs(rho) <= limit, rho, limit, says)


def _divergence(
    diagnosis: Diagnosis, lower_is_better: frozenset[str], settings: AuditSettings
) -> Iterator[Check]:
    trends = {drift.name: drift for drift in diagnosis.drift}

    def moves(drift: Drift, direction: float) -> bool:
        return bool(direction * drift.tau > 0 and drift.p <= settings.trend_p)

    rises = moves(trends[TOTAL], 1.0)
    for output in diagnosis.outputs:
        drift = trends[output.name]
        if output.role != "other" or np.isnan(drift.tau):
            continue
        better = -1.0 if output.name in lower_is_better else 1.0
        falls = rises and moves(drift, -better)
        says = (
            f"{output.name} gets worse while the total rises (Kendall's tau with the step {drift.tau:+.2f})"
        )
        yield Check("divergence", output.name, not falls, drift.p, settings.trend_p, says)


def _loops(
    data: ClipSet,
    graph: RewardGraph,
    scores: Scores,
    measures: Mapping[str, np.ndarray],
    settings: AuditSettings,
) -> Iterator[Check]:
    looping = measures["repetition"] >= settings.looping
    for name, column in scores.values.items():
        if not _is_confidence(graph, name):
            continue
        difference = centred(column, data.groups)
        there = ~np.isnan(difference)
        loops, others = difference[looping & there], difference[~looping & there]
        if len(loops) >= 5 and len(others) >= 5:
            gap = float(loops.mean() - others.mean())
            says = f"{name} is {gap:+.3f} in the {len(loops)} clips whose transcript loops"
            yield Check("loops", name, gap < 0, gap, 0.0, says)


def _is_confidence(graph: RewardGraph, output: str) -> bool:
    name, _, part = output.partition(".")
    kinds = (Whisper, AsrEndpoint, TagConfidence)
    return "confidence" in output or (isinstance(graph.nodes[name], kinds) and part in ("", "confidence"))


def judges_of(graph: RewardGraph, settings: AuditSettings) -> list[str]:
    """Outputs that are a judge's score: of the known judges' nodes, and those that the settings name.

    Raises `AuditError` where these name an output that there isn't.
    """
    known = [name for name, node in graph.nodes.items() if isinstance(node, JudgeEndpoint | AttributeJudge)]
    named = [name.strip() for name in settings.judges.split(",") if name.strip()]
    for name in named:
        if name not in graph.output_names:
            raise AuditError(f"judges: there is no output {name}; {suggest(name, graph.output_names)}")
    return [name for name in graph.output_names if name in (*known, *named)]


def _judges(graph: RewardGraph, diagnosis: Diagnosis, settings: AuditSettings) -> Iterator[Check]:
    for name in judges_of(graph, settings):
        related = {m: rho for m, rho in diagnosis.nuisance[name].items() if not np.isnan(rho)}
        if related:
            measure = max(related, key=lambda m: abs(related[m]))
            value, limit = abs(related[measure]), settings.min_related
            says = f"{name} has most to do with {measure}, and that is {related[measure]:+.2f}"
            yield Check("judge", name, value >= limit, value, limit, says)


def _fooled(probes: Sequence[Probe], settings: AuditSettings) -> Iterator[Check]:
    for probe in probes:
        if probe.skipped:
            continue
        says = f"{probe.name} ({probe.does}): {probe.fooled:.1%} of {probe.clips} clips score no lower"
        if probe.culprit:
            says += f"; {probe.culprit} lets them"
        yield Check(
            "fooled", probe.name, probe.fooled <= settings.max_fooled, probe.fooled, settings.max_fooled, says
        )


def _repeats(noise: Sequence[JudgeNoise], settings: AuditSettings) -> Iterator[Check]:
    words = {"again": "again", "order": "in another order", "wording": "in other words"}
    for one in noise:
        limit = settings.max_noise
        says = (
            f"{one.judge} asked {words[one.how]}: {one.changed:.0%} of the scores change, by {one.noise:.2f}"
        )
        says += " of their spread inside groups"
        yield Check("repeat", f"{one.judge}~{one.how}", one.noise <= limit, one.noise, limit, says)


def _people(people: People | None, settings: AuditSettings) -> Iterator[Check]:
    """The total alone: that other outputs measure something else is no fault."""
    if people is None:
        return
    total = next(one for one in people.calibrations if one.output == TOTAL)
    if total.clips:
        says = f"total against people: Spearman {total.spearman:+.2f} ({total.low:+.2f} to {total.high:+.2f})"
        yield Check("labels", "scores", total.low > 0, total.low, 0.0, says)
    if total.pairs:
        says = f"total makes {total.choices:.0%} of people's choices"
        says += f" ({total.choices_low:.0%} to {total.choices_high:.0%})"
        yield Check("labels", "choices", total.choices_low > 0.5, total.choices_low, 0.5, says)
