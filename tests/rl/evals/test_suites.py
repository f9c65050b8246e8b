"""Every suite from its data to its files, on the embedded voice; and adapters side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch

from rl.cli.eval import main
from rl.evals import SUITES
from rl.evals.figures import ALL
from rl.policy.loading import load_policy
from rl.schema import LoraConfig
from rl.trainer.adapter import add_adapter, base_of, write_base
from tests.rl.evals.words import edit_distance

TINY = ["--config", "grpo_tiny", "rollouts.engine=torch", "rollouts.max_frames=30"]


def read(out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    items = [json.loads(line) for line in (out / "items.jsonl").read_text().splitlines()]
    return json.loads((out / "eval.json").read_text()), items


@pytest.mark.parametrize("suite", SUITES)
def test_every_suite_runs_on_the_embedded_voice(
    suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main([*TINY, "--suite", suite, "--data", "tiny", "--items", "2", "--out", str(out)]) == 0
    result, items = read(out)
    assert (result["suite"], result["items"], len(items)) == (suite, 2, 2)
    overall = [line for line in result["figures"] if line["kind"] == ALL]
    assert {line["name"] for line in overall} == set(result["recipe"]["figures"])
    for line in overall:
        estimate = line["estimate"]
        assert estimate["values"] + estimate["missing"] == 2
        assert sum(line["missing"].values()) == estimate["missing"]
        values = [item["figures"][line["name"]] for item in items]
        present = [value for value in values if value is not None]
        assert len(present) == estimate["values"]
        if line["weigh"] == "items" and present:
            assert estimate["mean"] == pytest.approx(sum(present) / len(present))
    (wer,) = [line for line in overall if line["name"] == "WER"]
    assert wer["estimate"]["values"] == 2  # garbled speech is heard, not missing
    for item in items:
        (saved,) = (out / "audio").glob(f"{item['id']}.*")
        audio, rate = soundfile.read(saved)
        assert len(audio) / rate == item["seconds"]
    shown = capsys.readouterr().out
    assert "WER ↓" in shown
    assert str(out / "eval.json") in shown


def test_saved_audio_gives_the_same_figures_by_hand(tmp_path: Path) -> None:
    suite = ["--suite", "seed_tts", "--data", "tiny", "--items", "2"]
    assert main([*TINY, *suite, "--out", str(tmp_path / "a")]) == 0
    assert main([*suite, "--audio", str(tmp_path / "a" / "audio"), "--out", str(tmp_path / "b")]) == 0
    (sampled, items), (read_back, _) = read(tmp_path / "a"), read(tmp_path / "b")
    for before, after in zip(sampled["figures"], read_back["figures"], strict=True):
        assert after["estimate"] == pytest.approx(before["estimate"])
    rates = []
    for item in items:
        heard, wanted = (
            "".join(c for c in text.lower() if c.isalnum() or c in " '").split()
            for text in (item["details"]["asr"]["text"], item["spoken"])
        )
        rates.append(edit_distance(heard, wanted) / len(wanted))
    assert [item["figures"]["WER"] for item in items] == pytest.approx(rates)


@pytest.fixture
def adapter(policy: Path, tmp_path: Path) -> Path:
    """An adapter of the small policy that changes what it says."""
    model, _ = load_policy(str(policy))
    base = base_of(model)
    adapted = add_adapter(model, LoraConfig(r=4, alpha=8.0), seed=0)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    folder = tmp_path / "adapter"
    adapted.save_pretrained(folder)
    write_base(folder, base)
    return folder


def test_an_adapter_against_its_base(policy: Path, adapter: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "length.yaml"
    recipe.write_text("nodes: {length: {type: duration, slack: 1.0}}\nfigures: {length: length}\n")
    data = tmp_path / "prompts.jsonl"
    data.write_text("".join(json.dumps({"text": f"Line {i}, a longer one."}) + "\n" for i in range(6)))
    common = [
        "--config", "grpo_tiny", f"model.path={policy}", "rollouts.engine=torch", "rollouts.max_frames=20",
        "--suite", "custom", "--data", str(data), "--recipe", str(recipe),
    ]  # fmt: skip
    assert main([*common, "--out", str(tmp_path / "base")]) == 0
    both = ["--adapter", str(adapter), "--against", "base", "--out", str(tmp_path / "both")]
    assert main([*common, *both]) == 0
    _, alone = read(tmp_path / "base")
    result, items = read(tmp_path / "both")
    assert [row["against"]["values"] for row in items] == [row["values"] for row in alone]
    assert [row["values"] for row in items] != [row["values"] for row in alone]
    assert (result["evaluated"], result["against"]) == (str(adapter), "base")
    (change,) = result["differences"]
    assert change["comparison"]["pairs"] == 6
    assert result["preferences"] == []
