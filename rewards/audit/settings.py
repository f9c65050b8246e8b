"""What an audit looks at, and from where on a figure is a finding. None of the limits is published: all are
ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from rl.schema import option

KINDS = {
    "reproduction": "stored values that come out otherwise",
    "missing": "outputs that many clips lack",
    "constant": "outputs of the total that never differ",
    "flat": "groups whose totals have no spread",
    "end": "values at the highest or the lowest there is",
    "dominance": "one output has nearly all of the total's variance",
    "bias": "length, level, silence or pitch decides",
    "divergence": "the total rises while a monitor falls",
    "loops": "confidence isn't lower where the transcript loops",
    "judge": "a judge's score has nothing to do with what is measured",
    "fooled": "attacked clips score as high as clean ones",
    "labels": "people disagree with the reward",
    "repeat": "a judge's score changes when it is asked again",
}
"""The kinds of checks, as `--fail-on` takes them: what each fails on."""


@dataclass(frozen=True)
class AuditSettings:
    """Every setting of `rl-audit`; correlations are Spearman's inside groups."""

    clips: int | None = option(1024, "clips to look at: whole steps, evenly spaced; null: all", at_least=1)
    check_clips: int = option(
        128, "clips whose stored values are computed again, in whole steps; 0: none", at_least=0
    )
    probes: str = option("all", "attacks to make, comma-separated; all, or none")
    probe_clips: int = option(128, "clips that each attack is made on", at_least=1)
    seed: int = option(0, "of the attacks and the choice of clips", at_least=0)
    judges: str = option("", "outputs that are judges' scores, comma-separated, beside those that are known")
    max_fooled: float = option(
        0.05, "share of the clips that an attack may leave as good as before", at_least=0, at_most=1
    )
    max_missing: float = option(0.05, "share of the clips an output may lack", at_least=0, at_most=1)
    max_explained: float = option(
        0.9, "share of the total's variance inside groups that one output may have", at_least=0
    )
    max_end: float = option(
        0.5, "share of an output's values at its highest or lowest", at_least=0, at_most=1
    )
    max_flat: float = option(0.5, "share of the groups whose totals have no spread", at_least=0, at_most=1)
    max_bias: float = option(
        0.5,
        "correlation of the total and its outputs with length, level, silence and pitch",
        at_least=0,
        at_most=1,
    )
    min_related: float = option(
        0.1, "least correlation of a judge's score with something measured", at_least=0, at_most=1
    )
    max_noise: float = option(0.5, "noise of a judge asked again, over its spread inside groups", at_least=0)
    looping: float = option(
        0.2, "share of repeated words from which a transcript loops", at_least=0, at_most=1
    )
    trend_p: float = option(0.05, "p-value from which a trend over steps counts", above=0, at_most=1)
