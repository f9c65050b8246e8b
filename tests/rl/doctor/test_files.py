"""Policies, codecs, adapters and prompts, each broken for real in one way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from rl.codec.loading import load_codec
from rl.doctor import files
from rl.doctor.check import Check
from rl.errors import PromptError
from rl.policy.files import read_config
from rl.policy.loading import load_policy
from rl.prompts_file import load_prompts
from rl.trainer.adapter import add_adapter, base_of, write_base

S2_CODEC = Path(__file__).parents[1] / "fixtures" / "s2_codec_tiny"


@pytest.fixture
def copied(policy: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(policy, tmp_path / "copied"))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:1000])


def widen(file: Path) -> None:
    tree = json.loads(file.read_text())
    tree["text_config"]["intermediate_size"] += 1
    file.write_text(json.dumps(tree))


def unsettle(file: Path) -> None:
    tree = json.loads(file.read_text())
    tree["text_config"]["dim"] = "wide"
    file.write_text(json.dumps(tree))


def test_a_whole_policy_is_described(configure, policy: Path) -> None:
    check, found = files.policy(configure())
    assert check.verdict == "ok"
    assert found is not None
    assert (found.folder, found.config.num_codebooks) == (policy, 4)
    parameters = sum(p.numel() for p in load_policy(str(policy))[0].parameters())
    assert f"{parameters:,} parameters" in check.found


@pytest.mark.parametrize(
    ("file", "damage", "words"),
    [
        ("config.json", Path.unlink, "holds no config.json"),
        ("config.json", widen, "by config.json"),
        ("config.json", lambda file: file.write_text("{"), "can't be read as JSON"),
        ("config.json", unsettle, "makes no policy"),
        ("model.safetensors", Path.unlink, "model.safetensors"),
        ("model.safetensors", cut, "can't be read"),
        ("tokenizer.json", Path.unlink, "holds no tokenizer.json"),
    ],
)
def test_a_broken_policy(
    configure, copied: Path, file: str, damage: Callable[[Path], None], words: str
) -> None:
    damage(copied / file)
    check, found = files.policy(configure(f"model.path={copied}"))
    assert found is None
    assert check.verdict == "cannot run"
    assert words in check.found
    assert check.remedy


def test_the_codec_beside_it(configure, policy: Path) -> None:
    check, shape = files.codec(configure(), read_config(policy))
    assert check == Check("codec", "4 codebooks, 16000 Hz, 20 frames a second")
    assert shape is not None
    assert (shape.hop, shape.sample_rate) == (800, 16_000)


def test_a_codec_that_is_missing_or_not_the_policys(configure, policy: Path, copied: Path) -> None:
    check, shape = files.codec(configure("model.codec=null"), read_config(policy))
    assert (check.verdict, shape) == ("cannot run", None)
    assert "no codec in" in check.found
    config = read_config(policy)
    config.audio_decoder_config.num_codebooks = 5
    check, _ = files.codec(configure(), config)
    assert check.verdict == "cannot run"
    assert "codebooks of 1024 + 3 x 1024" in check.found
    assert check.remedy == "name the codec that it was trained with"


def test_s2s_codec_is_read_by_its_header(tmp_path: Path) -> None:
    looked_at, loaded = load_codec(str(S2_CODEC), "meta"), load_codec(str(S2_CODEC))
    assert looked_at.codebook_sizes == loaded.codebook_sizes
    assert {tensor.device.type for tensor in looked_at.state_dict().values()} == {"meta"}
    assert files.codec_shape(looked_at) == files.codec_shape(loaded)
    assert files.codec_shape(loaded).hop == loaded.hop


def test_s2s_codec_that_runs_code_is_refused_by_its_header(configure, copied: Path) -> None:
    torch.save({"generator": print}, copied / "codec.pth")
    check, _ = files.codec(configure(f"model.codec={copied}"), read_config(copied))
    assert check.verdict == "cannot run"
    assert "more than tensors" in check.found


def test_adapters(configure, policy: Path, tmp_path: Path) -> None:
    assert files.adapter(configure(), policy) == []
    model, _ = load_policy(str(policy))
    run = configure()
    adapted = add_adapter(model, run.lora, 0)
    adapted.save_pretrained(tmp_path / "adapter")
    write_base(tmp_path / "adapter", base_of(model))
    named = f"lora.adapter={tmp_path / 'adapter'}"
    (check,) = files.adapter(configure(named), policy)
    assert check.verdict == "ok"
    (check,) = files.adapter(configure(named, "lora.r=8"), policy)
    assert (check.verdict, check.remedy) == ("cannot run", "set lora.r=4")
    (check,) = files.adapter(configure(named), Path("rl/assets/tiny/policy").absolute())
    assert "trained on another policy" in check.found
    cut(tmp_path / "adapter" / "adapter_model.safetensors")
    (check,) = files.adapter(configure(named), policy)
    assert "can't be read" in check.found


def test_prompts_and_how_many(configure, tmp_path: Path) -> None:
    checks, train = files.prompts(configure())
    assert [check.verdict for check in checks] == ["ok", "ok"]
    assert len(train) == 5
    checks, _ = files.prompts(configure("trainer.prompts_per_step=6"))
    assert checks[-1].verdict == "cannot run"
    assert "has only 5 prompts" in checks[-1].found
    assert checks[-1].remedy == "lower it"
    checks, _ = files.prompts(configure("evaluation.prompts=6"))
    assert "evaluation.prompts: 6" in checks[-1].found
    checks, _ = files.prompts(configure("evaluation.prompts=6", "evaluation.enabled=false"))
    assert [check.name for check in checks] == ["prompts.train"], "without an evaluation nobody reads them"


def test_a_prompt_file_with_a_wrong_line(configure, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "One."}\n{"text": "<|im_end|>"}\n')
    checks, train = files.prompts(configure(f"prompts.train={tmp_path}/bad.jsonl"))
    assert train == []
    assert checks[0].verdict == "cannot run"
    assert "bad.jsonl, line 2" in checks[0].found
    checks, _ = files.prompts(configure(f"prompts.heldout={tmp_path}/absent.jsonl"))
    assert (checks[1].name, checks[1].verdict) == ("prompts.heldout", "cannot run")


def test_the_longest_prompt_counts_its_references(configure, policy: Path, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "voice.wav", np.zeros(16_000, np.float32), 16_000)
    reference = {"audio": "voice.wav", "text": "Hi."}
    lines = [{"text": "A longer line of text."}, {"text": "Short.", "references": [reference]}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = load_prompts(str(tmp_path / "p.jsonl"))
    _, known = files.policy(configure())
    assert known is not None
    alone = files.longest_prompt(found[:1], known, 20.0)
    heard = files.longest_prompt(found, known, 20.0)
    assert files.longest_prompt(found, known, 40.0) - heard == 20, "a second of voice"
    assert heard > alone
    (tmp_path / "voice.wav").write_bytes(b"no audio")
    with pytest.raises(PromptError, match=r"voice.wav: can't be read"):
        files.longest_prompt(found, known, 20.0)


def test_a_run_that_is_there_already(configure, tmp_path: Path) -> None:
    run = configure()
    assert files.run_folder(run) == []
    folder = Path(run.output_dir, run.name)
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("")
    (check,) = files.run_folder(run)
    assert (check.verdict, check.remedy) == ("warning", "add --resume, or choose another name=")
