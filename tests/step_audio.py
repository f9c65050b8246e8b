"""A small random policy in StepAudio 3 Gen's style, and a codec of its shape."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rl.codec.tiny import TinyCodec
from rl.policy import DualARConfig, DualARForCausalLM


def byte_tokenizer(semantic: int) -> PreTrainedTokenizerFast:
    """One token for each byte, the control tokens, and ``semantic`` semantic tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    names = ["im_start", "im_end", "pad", "voice", "audio_pad", *(f"semantic:{i}" for i in range(semantic))]
    bpe.add_special_tokens([f"<|{name}|>" for name in names])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|pad|>")


def make_policy(folder: Path, books: int = 16, size: int = 2048, spread: float = 0.25) -> Path:
    """A checkpoint: no feedback, two adaptor blocks, ARs of two widths, heads that vLLM's kernels take."""
    tokenizer = byte_tokenizer(size)
    ids = tokenizer.convert_tokens_to_ids
    shape = {"n_layer": 2, "n_head": 2, "n_local_heads": 1, "head_dim": 32, "initializer_range": spread}
    config = DualARConfig(
        text_config={
            **shape, "vocab_size": len(tokenizer), "dim": 64, "intermediate_size": 128,
            "max_seq_len": 1024, "attention_qk_norm": True,
        },
        audio_decoder_config={
            **shape, "vocab_size": size, "dim": 48, "intermediate_size": 96, "max_seq_len": books + 1,
            "text_dim": 64, "num_codebooks": books,
        },
        semantic_start_token_id=ids("<|semantic:0|>"),
        semantic_end_token_id=ids(f"<|semantic:{size - 1}|>"),
        eos_token_id=ids("<|im_end|>"), pad_token_id=ids("<|pad|>"), audio_pad_token_id=ids("<|audio_pad|>"),
        feedback="first", adaptor_layers=2, adaptor_size=96, prompt_format="step_audio_3",
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = DualARForCausalLM(config)
        for block in model.audio_decoder.adaptor:
            torch.nn.init.normal_(block.w2.weight, std=spread)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_codec(folder: Path, books: int = 16, size: int = 2048) -> Path:
    """A codec of the embedded one's class, with random weights."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = {"num_codebooks": books, "codebook_size": size, "pca_dim": 4}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        codec = TinyCodec(**shape)
        for name in ("pca_mean", "pca_basis", "codebooks"):
            getattr(codec, name).normal_()
    (folder / "codec_config.json").write_text(json.dumps({"codec": shape}))
    save_file(codec.state_dict(), folder / "codec.safetensors")
    return folder
