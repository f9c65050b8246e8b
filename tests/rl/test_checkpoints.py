"""Policy folders: the published size, exact round trips, and what is refused in one line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rl.errors import CheckpointError
from rl.policy import DualARConfig, DualARForCausalLM
from rl.policy.files import fingerprint, weight_files
from rl.policy.layers import rope_table, rotate
from rl.policy.loading import checkpoint_folder, load_policy

GOLDEN = Path(__file__).parent / "fixtures" / "s2_tiny"

PUBLISHED: dict[str, Any] = {
    "text_config": {
        "vocab_size": 155_776, "n_layer": 36, "dim": 2560, "intermediate_size": 9728, "n_head": 32,
        "n_local_heads": 8, "head_dim": 128, "attention_qk_norm": True, "max_seq_len": 32_768,
    },
    "audio_decoder_config": {
        "vocab_size": 4096, "n_layer": 4, "dim": 2560, "intermediate_size": 9728, "n_head": 32,
        "n_local_heads": 8, "head_dim": 128, "attention_qk_norm": False, "max_seq_len": 11,
        "text_dim": 2560, "num_codebooks": 10,
    },
    "semantic_start_token_id": 151_678, "semantic_end_token_id": 155_773,
    "eos_token_id": 151_645, "pad_token_id": 151_669, "audio_pad_token_id": 151_677,
}  # fmt: skip


def _published_shapes() -> dict[str, tuple[int, ...]]:
    """Every tensor of the published checkpoint, as its index lists them."""
    layer = {
        "attention.wqkv": (6144, 2560), "attention.wo": (2560, 4096), "attention_norm": (2560,),
        "feed_forward.w1": (9728, 2560), "feed_forward.w3": (9728, 2560), "feed_forward.w2": (2560, 9728),
        "ffn_norm": (2560,),
    }  # fmt: skip
    normed = {**layer, "attention.q_norm": (128,), "attention.k_norm": (128,)}
    names: dict[str, tuple[int, ...]] = {
        "text_model.model.embeddings": (155_776, 2560),
        "text_model.model.norm": (2560,),
        "audio_decoder.codebook_embeddings": (40_960, 2560),
        "audio_decoder.embeddings": (4096, 2560),
        "audio_decoder.norm": (2560,),
        "audio_decoder.output": (4096, 2560),
    }
    for i in range(36):
        names |= {f"text_model.model.layers.{i}.{name}": shape for name, shape in normed.items()}
    for i in range(4):
        names |= {f"audio_decoder.layers.{i}.{name}": shape for name, shape in layer.items()}
    return {f"{name}.weight": shape for name, shape in names.items()}


def test_the_published_size() -> None:
    with torch.device("meta"):
        model = DualARForCausalLM(DualARConfig(**PUBLISHED))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert shapes == _published_shapes()
    assert len(shapes) == 358
    assert sum(p.numel() for p in model.parameters()) == 4_561_852_416
    assert model.config.residual_codebook_size == 1024


def test_rope_tables_are_rounded_to_bfloat16() -> None:
    table = rope_table(torch.arange(100), 128, 1e6)
    assert table.dtype == torch.float32
    assert torch.equal(table, table.bfloat16().float())
    exact = torch.cos(torch.arange(100)[:, None] / 1e6 ** (torch.arange(0, 128, 2) / 128))
    assert 1e-4 < (table[..., 0] - exact).abs().max() < 2**-8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_and_not_the_rotation_is_the_same(dtype: torch.dtype) -> None:
    x = torch.randn(2, 5, 3, 16, generator=torch.Generator().manual_seed(0)).to(dtype).transpose(1, 2)
    table = rope_table(torch.arange(5), 16, 1e6)
    compiled = torch.compile(rotate, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x, table), rotate(x, table))
    assert torch.equal(rotate(x, table)[:, :, 0], x[:, :, 0])


def test_rows_after_a_past_need_positions() -> None:
    model, _ = load_policy(str(GOLDEN))
    rows = torch.zeros(1, 1 + model.config.num_codebooks, 1, dtype=torch.long)
    past = model(rows).past
    with pytest.raises(ValueError, match="positions: None"):
        model(rows, past=past)
    assert model(rows, torch.tensor([1]), past=past).hidden.shape[1] == 1


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """The golden checkpoint in bfloat16 and several files, as the published one is."""
    folder = tmp_path / "sharded"
    model, tokenizer = load_policy(str(GOLDEN), torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="60KB")
    tokenizer.save_pretrained(folder)
    assert len(weight_files(folder)) > 2
    return folder


def _bytes(folder: Path) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    tensors: dict[str, tuple[torch.dtype, tuple[int, ...], bytes]] = {}
    for file in weight_files(folder):
        for name, tensor in load_file(file).items():
            raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
            tensors[name] = (tensor.dtype, tuple(tensor.shape), raw)
    return tensors


def test_loading_and_saving_keeps_every_byte(sharded: Path, tmp_path: Path) -> None:
    model, _ = load_policy(str(sharded), "auto")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    model.save_pretrained(tmp_path / "again", max_shard_size="60KB")
    assert _bytes(tmp_path / "again") == _bytes(sharded)
    assert _bytes(sharded).keys() == load_file(GOLDEN / "model.safetensors").keys()


def test_a_device_gets_the_tensors_without_the_cpu(sharded: Path) -> None:
    model, _ = load_policy(str(sharded), torch.bfloat16, "meta")
    assert {p.device.type for p in model.parameters()} == {"meta"}


def test_a_fingerprint_tells_relatives_apart(sharded: Path, tmp_path: Path) -> None:
    assert fingerprint(GOLDEN) == fingerprint(GOLDEN)
    assert fingerprint(GOLDEN) != fingerprint(sharded)
    shutil.copytree(GOLDEN, tmp_path / "tuned")
    weights = load_file(GOLDEN / "model.safetensors")
    weights["text_model.model.layers.1.feed_forward.w2.weight"][0, 3] += 1e-3
    save_file(weights, tmp_path / "tuned" / "model.safetensors", {"format": "pt"})
    assert fingerprint(GOLDEN) != fingerprint(tmp_path / "tuned")
    whole = tmp_path / "whole"
    model, tokenizer = load_policy(str(sharded), "auto")
    model.save_pretrained(whole)
    tokenizer.save_pretrained(whole)
    assert fingerprint(whole) == fingerprint(sharded)


def _drop_shard(folder: Path) -> None:
    weight_files(folder)[1].unlink()


def _cut_shard(folder: Path) -> None:
    file = weight_files(folder)[1]
    file.write_bytes(file.read_bytes()[:-100])


def _no_weights(folder: Path) -> None:
    for file in (*weight_files(folder), folder / "model.safetensors.index.json"):
        file.unlink()


def _only_a_pickle(folder: Path) -> None:
    _no_weights(folder)
    torch.save({}, folder / "pytorch_model.bin")


def _weights(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        file = weight_files(folder)[0]
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file, {"format": "pt"})

    return apply


def _first(tensors: dict[str, torch.Tensor]) -> str:
    return min(tensors)


def _config(**changes: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return apply


def _tokenizer(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        file = folder / "tokenizer.json"
        tree = json.loads(file.read_text())
        change(tree)
        file.write_text(json.dumps(tree))

    return apply


def _forget(token: str) -> Callable[[dict[str, Any]], None]:
    def change(tree: dict[str, Any]) -> None:
        tree["added_tokens"] = [one for one in tree["added_tokens"] if one["content"] != token]

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_drop_shard, "is missing, though model.safetensors.index.json lists it"),
        (_cut_shard, "can't be read"),
        (_no_weights, "holds neither model.safetensors nor"),
        (_only_a_pickle, "pytorch_model.bin: a pickle may run code"),
        (_weights(lambda t: t.pop(_first(t)) is None), "1 tensors of the policy in config.json are missing"),
        (_weights(lambda t: t.update(extra=torch.zeros(2))), "tensor `extra` is none of the policy"),
        (_weights(lambda t: t.update({_first(t): torch.zeros(3, 4)})), "is 3 x 4, but "),
        (_config(model_type="fish_omni"), "model_type is 'fish_omni'; only `fish_qwen3_omni`"),
        (_config(eos_token_id=None), "`eos_token_id` is missing"),
        (lambda folder: (folder / "config.json").write_text("{"), "can't be read as JSON"),
        (lambda folder: (folder / "config.json").unlink(), "holds no config.json"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "holds no tokenizer.json"),
        (_tokenizer(_forget("<|voice|>")), "its tokenizer lacks the special token <|voice|>"),
        (_tokenizer(_forget("<|semantic:31|>")), "its tokenizer lacks the special token <|semantic:31|>"),
        (_config(eos_token_id=257), "<|im_end|> is 258 in its tokenizer, but 257 in config.json"),
    ],
)  # fmt: skip
def test_wrong_folders_are_refused_in_one_line(
    sharded: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(sharded)
    with pytest.raises(CheckpointError) as caught:
        load_policy(str(sharded))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(sharded) in str(caught.value)


def test_the_embedded_policy_is_in_order() -> None:
    assert (checkpoint_folder("tiny") / "tokenizer.json").is_file()
