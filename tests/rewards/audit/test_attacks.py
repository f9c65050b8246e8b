"""What the attacks do to a clip, and how a probe counts."""

from __future__ import annotations

import numpy as np
import pytest

from rewards.audio import level_dbfs
from rewards.audit.attacks import ATTACKS, Attack, Bystander
from rewards.audit.clips import ClipSet
from rewards.audit.probes import attacked, tally
from rewards.expression import parse_expression
from rewards.types import Clip, Scores
from rollouts.store import quantise

BY_NAME = {attack.name: attack for attack in ATTACKS}
LENGTHS = {
    "cut_25": 0.25, "cut_50": 0.5, "cut_75": 0.75, "fast": 1 / 1.5, "word_loop": None, "frame_loop": None,
    "read_aloud": None, "trailing_silence": None, "other_prompt": None, "reference": None,
}  # fmt: skip


def make(name: str, clip: Clip, others: list[Clip]) -> Clip:
    made = BY_NAME[name].make(clip, np.random.default_rng(0), Bystander(others))
    assert made is not None
    return made


@pytest.mark.parametrize("attack", [a for a in ATTACKS if a.name != "swapped_turns"], ids=lambda a: a.name)
def test_attacks_change_the_clip_and_can_be_stored(attack: Attack, takes: ClipSet) -> None:
    clip = takes.clips[0]
    other = Clip(**{**vars(takes.clips[20]), "reference": 0.5 * clip.audio})
    made = make(attack.name, clip, [other])
    assert made.audio.dtype == np.float32
    np.testing.assert_array_equal(quantise(made.audio), made.audio)
    share = LENGTHS.get(attack.name, 1.0)
    if share is not None:
        assert len(made.audio) == pytest.approx(share * len(clip.audio), abs=2)
    if attack.name == "other_voice":
        np.testing.assert_array_equal(made.audio, clip.audio)
        assert made.reference is other.reference
    else:
        assert made.text == clip.text
        assert not np.array_equal(made.audio, clip.audio)


def test_levels_and_loops(takes: ClipSet) -> None:
    clip = takes.clips[0]
    others = takes.clips
    assert not make("silence", clip, others).audio.any()
    assert level_dbfs(make("faint_noise", clip, others).audio) == pytest.approx(-60, abs=0.5)
    assert level_dbfs(make("quiet", clip, others).audio) == pytest.approx(
        level_dbfs(clip.audio) - 26, abs=0.1
    )
    assert np.mean(np.abs(make("clipped", clip, others).audio) > 0.999) > 0.3
    looped = make("word_loop", clip, others).audio
    assert len(looped) == len(clip.audio) + 4 * 8000
    noise = make("noise_5db", clip, others).audio - clip.audio
    assert level_dbfs(clip.audio) - level_dbfs(noise) == pytest.approx(5, abs=0.1)
    assert make("other_prompt", clip, others).spoken == clip.spoken


def test_swapped_turns_change_who_should_speak(takes: ClipSet) -> None:
    one, two = (np.full(10, level, np.float32) for level in (0.1, 0.2))
    clip = Clip(
        one, 16000, "<|speaker:0|>Hi. <|speaker:1|>[slow] Bye.", "Hi. Bye.", one, 16000,
        voices={"0": (one, 16000), "1": (two, 16000)},
    )  # fmt: skip
    made = make("swapped_turns", clip, [])
    assert made.text == "<|speaker:1|>Hi. <|speaker:0|>[slow] Bye."
    assert made.reference is two
    assert BY_NAME["swapped_turns"].make(takes.clips[0], np.random.default_rng(0), Bystander([])) is None


def test_the_same_seed_makes_the_same_attack(takes: ClipSet) -> None:
    some = takes.part(range(4))
    for name in ("shuffled", "white_noise", "other_prompt"):
        first, second = (attacked(some, BY_NAME[name], 3, takes.clips) for _ in range(2))
        other = attacked(some, BY_NAME[name], 4, takes.clips)
        for a, b in zip(first.clips, second.clips, strict=True):
            np.testing.assert_array_equal(a.audio, b.audio)
        assert any(
            not np.array_equal(a.audio, b.audio) for a, b in zip(first.clips, other.clips, strict=True)
        )


def test_what_counts_as_fooled(takes: ClipSet) -> None:
    """Of six clips: better, equal, worse, missing under attack, gated under attack, gated before."""
    some = takes.part(range(6))
    gated = np.array([False] * 5 + [True])
    before, after = (
        np.array([0.5, 0.5, 0.5, 0.5, 0.5, np.nan]),
        np.array([0.9, 0.5, 0.1, np.nan, np.nan, np.nan]),
    )

    def scores(values: np.ndarray, total: np.ndarray, closed: np.ndarray) -> Scores:
        return Scores({"a": values, "b": values * 0}, total, [{}] * 6, [{}] * 6, closed)

    clean = scores(before, np.where(gated, 0.0, before), gated)
    under_total = np.array([0.9, 0.5, 0.1, np.nan, 0.0, 0.5])
    under = scores(after, under_total, np.array([False] * 4 + [True, True]))
    total = parse_expression("a + b", lambda name: name, "total")
    probe = tally(BY_NAME["fast"], some, clean, under, total)
    assert probe.clips == 5
    assert probe.fooled == pytest.approx(2 / 5)
    assert probe.by_output == {"a": pytest.approx(2 / 3), "b": 1.0}
    assert probe.gated == pytest.approx(1 / 5)
    assert probe.missing == pytest.approx(1 / 5)
    assert probe.culprit == "a"
    assert [example.clip for example in probe.examples] == ["clip-0", "clip-1", "clip-2"]
    shut = tally(BY_NAME["fast"], some, clean, under, total, gates=["b"])
    assert (shut.clips, shut.skipped) == (0, "no clean clip has a total")
    lower = tally(BY_NAME["fast"], some, clean, under, total, frozenset({"a"}))
    assert lower.by_output["a"] == pytest.approx(2 / 3)
