"""Recipes with a fault planted in: each fault is found, by the name of the node that has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rl.cli.audit import main
from tests.rewards.audit.cases import recipe

SOUND = recipe("0.6*confidence + 0.004*judge", confidence="honest", judge="fair")
"""What the function nodes of a sound recipe give."""
PROBES = "probes=silence,word_loop,trailing_silence,cut_50"

Manifest = Callable[[Any], tuple[Path, Path]]


def audited(manifest: Manifest, rewards: dict[str, Any], *more: str) -> tuple[int, dict[str, Any], Path]:
    source, path = manifest(rewards)
    out = source.parent / "out"
    code = main([str(source), "--rewards", str(path), "--out", str(out), PROBES, "probe_clips=20", *more])
    return code, json.loads((out / "audit.json").read_text()), out


def failure(audit: dict[str, Any], name: str) -> str:
    (check,) = [check for check in audit["checks"] if check["name"] == name]
    assert not check["passed"]
    return check["says"]


def test_a_sound_recipe_has_nothing_to_find(manifest: Manifest) -> None:
    honest = recipe("confidence", confidence="honest")
    code, audit, out = audited(manifest, honest, "--fail-on", "fooled,missing,constant,bias")
    assert code == 0
    assert [name for name in audit["failed"] if not name.startswith("dominance")] == []
    assert audit["clips"] == 40
    assert pq.read_table(out / "clips.parquet").num_rows == 40
    assert pq.read_table(out / "attacks.parquet").num_rows == 80
    assert not list(out.rglob("*.tmp"))
    assert "clip-" in (out / "report.html").read_text()


def test_a_quality_node_that_rewards_silence(manifest: Manifest) -> None:
    rewards = recipe("0.2*confidence + 0.8*quality", confidence="careless", quality="silence_lover")
    code, audit, _ = audited(manifest, rewards, "--fail-on", "fooled")
    assert code == 1
    for attack in ("silence", "trailing_silence"):
        assert "quality lets them" in failure(audit, f"fooled:{attack}")
    failure(audit, "bias:quality~silence")


def test_a_confidence_that_ignores_repetitions(manifest: Manifest) -> None:
    rewards = recipe("0.5*confidence + 0.005*judge", confidence="careless", judge="fair")
    _, audit, _ = audited(manifest, rewards)
    assert "confidence lets them" in failure(audit, "fooled:word_loop")
    (probe,) = [probe for probe in audit["probes"] if probe["name"] == "word_loop"]
    assert probe["fooled"] == probe["by_output"]["confidence"] == 1.0


def test_a_judge_with_points_for_length(manifest: Manifest) -> None:
    rewards = recipe("confidence + 0.05*judge", confidence="honest", judge="wordy")
    code, audit, _ = audited(manifest, rewards, "judges=judge", "--fail-on", "bias", "--no-probes")
    assert code == 1
    assert "judge follows duration" in failure(audit, "bias:judge~duration")


def test_a_constant_node_and_one_without_a_value_for_a_tenth(
    manifest: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    rewards = recipe("0.5*confidence + 0.5*flat", confidence="honest", flat="constant", patchy="patchy")
    code, audit, _ = audited(manifest, rewards, "--fail-on", "constant,missing", "--no-probes")
    assert code == 1
    assert "flat is 0.7 for every clip" in failure(audit, "constant:flat")
    assert "patchy has no value for 10.0% of the clips, mostly: the node gave nan" in failure(
        audit, "missing:patchy"
    )
    assert "failed: missing:patchy, constant:flat" in capsys.readouterr().out


def test_a_judge_that_is_mostly_noise(manifest: Manifest) -> None:
    rewards = recipe("confidence", confidence="honest", judge="noisy")
    _, audit, _ = audited(manifest, rewards, "judges=judge", "--ask-judges", "--no-probes")
    assert "judge asked again: 100% of the scores change" in failure(audit, "repeat:judge~again")


def test_an_endpoint_judge_is_asked_afresh(manifest: Manifest, loopback: Any, tmp_path: Path) -> None:
    """Eight of the forty prompts ask for something. The judge gives one point more each time."""
    common = {
        "base_url": loopback.base_url,
        "model": "m",
        "cache": str(tmp_path / "answers"),
        "concurrency": 1,
    }
    rewards = recipe("confidence + 0.001*judge", confidence="honest")
    rewards["nodes"]["caption"] = {"type": "caption_endpoint", **common}
    rewards["nodes"]["judge"] = {"type": "judge_endpoint", "caption": "caption.text", **common}
    grades = []

    def reply(asked: Any) -> Any:
        if isinstance(asked.body["messages"][0]["content"], list):
            return loopback.chat("A slow voice.")
        grades.append(40 + len(grades))
        return loopback.chat(json.dumps({"reason": "", "score": grades[-1]}))

    loopback.reply = reply
    _, audit, _ = audited(manifest, rewards, "--ask-judges", "--no-probes", "probe_clips=40", "max_noise=0.1")
    assert (
        len(grades) >= 1 + 3 * 8
    )  # all captions are alike: while answers are kept, they are asked about once
    assert "judge asked again: 20% of the scores change" in failure(audit, "repeat:judge~again")


def test_what_another_total_would_say_scores_nothing(manifest: Manifest) -> None:
    import planted

    rewards = recipe("confidence", confidence="honest", judge="fair")
    audited(manifest, rewards, "--no-probes")
    asked = len(planted.CALLS)
    _, audit, _ = audited(manifest, rewards, "--total", "0.01*judge", "--no-probes")
    assert len(planted.CALLS) == asked  # answered from the cache, though the total is another
    assert [one["role"] for one in audit["outputs"]] == ["total", "other", "reward"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["nowhere"], "error: nowhere: no such file or folder"),
        (["{source}"], "no reward configuration is beside it; add --rewards RECIPE"),
        (["{source}", "--rewards", "{recipe}", "probes=reverse"], "did you mean reversed?"),
        (["{source}", "--rewards", "{recipe}", "clipz=3"], "did you mean clips?"),
        (["{source}", "--rewards", "{recipe}", "clips=some"], "audit.clips: must be a whole number"),
        (["{source}", "--rewards", "{recipe}", "--fail-on", "foled"], "did you mean fooled?"),
        (["{source}", "--rewards", "{recipe}", "--total", "volume"], "there is no node volume"),
        (["{source}", "--rewards", "{recipe}", "judges=juge"], "did you mean judge?"),
        (["{source}", "--rewards", "{recipe}", "--labels", "gone.csv"], "gone.csv: can't be read"),
    ],
)
def test_errors_are_one_line(
    manifest: Manifest, capsys: pytest.CaptureFixture[str], argv: list[str], says: str
) -> None:
    source, path = manifest(SOUND)
    filled = [part.format(source=source, recipe=path) for part in argv]
    assert main([*filled, "--out", str(source.parent / "out")]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not list((source.parent / "out").rglob("*.json"))
