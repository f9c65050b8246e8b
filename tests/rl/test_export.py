"""What rl-export writes is the trained policy: its log-probs, its files, its card and notices."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rl.cli.export import main
from rl.errors import CheckpointError, RunFolderError
from rl.export.card import FISH_ATTRIBUTION
from rl.export.merge import export
from rl.policy.loading import load_policy
from rl.policy.modeling import DualARForCausalLM
from rl.schema import LoraConfig, RunConfig
from rl.trainer.adapter import add_adapter, base_of, open_adapter, write_base
from rl.trainer.run import train
from tests.one_turn import likelihood

GOLDEN = Path(__file__).parent / "fixtures" / "s2_tiny"
Configure = Callable[..., RunConfig]
SETTINGS = LoraConfig(r=4, alpha=8.0)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The golden checkpoint in several files, with a codec's beside it."""
    folder = tmp_path / "base"
    model, tokenizer = load_policy(str(GOLDEN))
    model.save_pretrained(folder, max_shard_size="100KB")
    tokenizer.save_pretrained(folder)
    (folder / "codec.pth").write_bytes(b"a codec")
    (folder / "README.md").write_text("the original's")
    return folder


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    """A stirred adapter of ``base``, saved as a run saves it."""
    folder = tmp_path / "adapter"
    model = add_adapter(load_policy(str(base))[0], SETTINGS, seed=0)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.05
    model.save_pretrained(folder)
    write_base(folder, base_of(model.get_base_model()))
    return folder


def _logprobs(model: DualARForCausalLM) -> tuple[torch.Tensor, torch.Tensor]:
    model = model.float()
    generator = torch.Generator().manual_seed(0)
    prompt = torch.zeros(11, 7, dtype=torch.long)
    prompt[0] = torch.randint(0, 250, (7,), generator=generator)
    codes = torch.randint(0, 32, (9, 10), generator=generator)
    with torch.no_grad():
        like = likelihood(model, [prompt], [codes], [True], 0.7)
    return like.slow, like.fast


def test_the_exported_policy_is_the_adapted_one(base: Path, adapter: Path, tmp_path: Path) -> None:
    out = export(adapter, tmp_path / "out")
    adapted = open_adapter(load_policy(str(base))[0], adapter)
    slow, fast = _logprobs(adapted.get_base_model())
    of_export = _logprobs(load_policy(str(out))[0])
    assert (of_export[0] - slow).abs().max() < 1e-4
    assert (of_export[1] - fast).abs().max() < 1e-4
    of_base = _logprobs(load_policy(str(base))[0])
    assert (of_base[0] - slow).abs().max() > 1e-2
    assert (of_base[1] - fast).abs().max() > 1e-2


def test_all_else_is_the_original_byte_for_byte(base: Path, adapter: Path, tmp_path: Path) -> None:
    out = export(adapter, tmp_path / "out")
    names = {file.name for file in base.iterdir()}
    assert {file.name for file in out.iterdir()} == names | {"NOTICE"}
    for name in names - {"README.md"}:
        if not name.endswith(".safetensors"):
            assert (out / name).read_bytes() == (base / name).read_bytes()
            continue
        before, after = load_file(base / name), load_file(out / name)
        assert list(before) == list(after)
        for tensor, value in before.items():
            assert (after[tensor].dtype, after[tensor].shape) == (value.dtype, value.shape)
            assert torch.equal(after[tensor], value) == (".feed_forward.w" not in tensor)


def test_a_bfloat16_policy_stays_bfloat16(base: Path, adapter: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    model, tokenizer = load_policy(str(base), torch.bfloat16)
    model.save_pretrained(half)
    tokenizer.save_pretrained(half)
    (adapter / "auralign_base.json").unlink()
    out = load_file(export(adapter, tmp_path / "out", str(half)) / "model.safetensors")
    name = "audio_decoder.layers.1.feed_forward.w1"
    parts = load_file(adapter / "adapter_model.safetensors")
    a, b = (parts[f"base_model.model.{name}.lora_{x}.weight"] for x in "AB")
    before = load_file(half / "model.safetensors")[f"{name}.weight"]
    expected = (before.float() + 8.0 / 4**0.5 * (b @ a)).bfloat16()
    assert torch.equal(out[f"{name}.weight"], expected)
    assert {tensor.dtype for tensor in out.values()} == {torch.bfloat16}


def test_the_notices_of_fish_audio_come_along(base: Path, adapter: Path, tmp_path: Path) -> None:
    (base / "LICENSE.md").write_text("# FISH AUDIO RESEARCH LICENSE AGREEMENT\n")
    (base / "NOTICE").write_text("Of others.\n")
    out = export(adapter, tmp_path / "out")
    notice = (out / "NOTICE").read_text()
    assert notice.startswith("Of others.\n")
    assert notice.count(FISH_ATTRIBUTION) == 1
    assert "Changed: these weights are base with a LoRA adapter merged in" in notice
    card = (out / "README.md").read_text()
    assert "Built with Fish Audio" in card
    assert "license: other" in card
    assert (out / "LICENSE.md").read_text() == (base / "LICENSE.md").read_text()


def test_an_unknown_licence_is_called_that(adapter: Path, tmp_path: Path) -> None:
    out = export(adapter, tmp_path / "out")
    assert "license: unknown" in (out / "README.md").read_text()
    assert FISH_ATTRIBUTION not in (out / "NOTICE").read_text()


def test_a_run_is_exported_with_its_story(
    configure: Configure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(configure("trainer.steps=1", "trainer.learning_rate=1e-2", "evaluation.prompts=2"))
    assert main([str(run), "--out", str(tmp_path / "out")]) == 0
    out = Path(capsys.readouterr().out.splitlines()[-1])
    assert out == tmp_path / "out"
    base, _ = load_policy(configure().model.path)
    trained = open_adapter(base, run / "checkpoints" / "checkpoint-1").get_base_model()
    rows = torch.arange(6)[None, None].expand(1, 5, 6) % 3
    with torch.no_grad():
        torch.testing.assert_close(
            load_policy(str(out))[0](rows).hidden, trained(rows).hidden, atol=1e-5, rtol=1e-4
        )
    card = (out / "README.md").read_text()
    for part in ("| reward | `length` |", "type: duration", "1 steps", "Held-out prompts", "| total |"):
        assert part in card
    assert (out / "auralign_config.yaml").read_text() == (run / "config.yaml").read_text()


def test_refusals(base: Path, adapter: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def refusal(path: Path, of: str | None = None) -> str:
        with pytest.raises((CheckpointError, RunFolderError)) as caught:
            export(path, out, of)
        assert "\n" not in str(caught.value)
        assert not out.exists()
        return str(caught.value)

    assert "neither a run folder" in refusal(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    assert "saved no checkpoint" in refusal(tmp_path / "run")
    other = tmp_path / "other"
    shutil.copytree(base, other)
    file = next(other.glob("*.safetensors"))
    save_file({name: t + 1 for name, t in load_file(file).items()}, file, {"format": "pt"})
    assert "was trained on another policy" in refusal(adapter, str(other))
    weights = load_file(adapter / "adapter_model.safetensors")
    save_file(
        {**weights, "base_model.model.x.lora_embedding_A": torch.zeros(1)},
        adapter / "adapter_model.safetensors",
    )
    assert "`base_model.model.x.lora_embedding_A` isn't of a plain LoRA" in refusal(adapter)
    del weights[max(weights)]
    save_file(weights, adapter / "adapter_model.safetensors")
    assert "one half is missing" in refusal(adapter)
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LOHA"}))
    assert "only LoRA can be used" in refusal(adapter)
    out.mkdir()
    with pytest.raises(CheckpointError, match="exists"):
        export(adapter, out)
