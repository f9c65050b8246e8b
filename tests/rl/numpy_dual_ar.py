"""The forward pass once more, in numpy float64, from the checkpoint alone: it shares no code with `rl`."""

from __future__ import annotations

from typing import Any

import numpy as np

Weights = dict[str, np.ndarray]


def _bf16(x: np.ndarray) -> np.ndarray:
    """Round to the nearest bfloat16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


def _rms(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def _rotate(x: np.ndarray, base: float) -> np.ndarray:
    """Rotate the adjacent pairs of ``x`` ``[T, heads, head_dim]`` as complex numbers."""
    length, _, size = x.shape
    angles = (np.arange(length)[:, None] / base ** (np.arange(0, size, 2) / size)).astype(np.float32)
    turn = _bf16(np.cos(angles)) + 1j * _bf16(np.sin(angles))
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn[:, None]
    return np.stack([turned.real, turned.imag], -1).reshape(x.shape)


def _layer(x: np.ndarray, w: Weights, prefix: str, config: dict[str, Any]) -> np.ndarray:
    heads, groups, size = config["n_head"], config["n_local_heads"], config["head_dim"]
    eps, length = config["norm_eps"], len(x)
    fused = _rms(x, w[f"{prefix}attention_norm.weight"], eps) @ w[f"{prefix}attention.wqkv.weight"].T
    parts = fused.reshape(length, heads + 2 * groups, size)
    q, k, v = parts[:, :heads], parts[:, heads : heads + groups], parts[:, heads + groups :]
    if config["attention_qk_norm"]:
        q = _rms(q, w[f"{prefix}attention.q_norm.weight"], eps)
        k = _rms(k, w[f"{prefix}attention.k_norm.weight"], eps)
    q, k = _rotate(q, config["rope_base"]), _rotate(k, config["rope_base"])
    out = np.empty((length, heads, size))
    for head in range(heads):
        group = head // (heads // groups)
        for t in range(length):
            scores = k[: t + 1, group] @ q[t, head] / np.sqrt(size)
            weights = np.exp(scores - scores.max())
            out[t, head] = weights @ v[: t + 1, group] / weights.sum()
    x = x + out.reshape(length, -1) @ w[f"{prefix}attention.wo.weight"].T
    y = _rms(x, w[f"{prefix}ffn_norm.weight"], eps)
    gate, up = (y @ w[f"{prefix}feed_forward.{name}.weight"].T for name in ("w1", "w3"))
    return x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{prefix}feed_forward.w2.weight"].T


def _stack(x: np.ndarray, w: Weights, prefix: str, config: dict[str, Any]) -> np.ndarray:
    for i in range(config["n_layer"]):
        x = _layer(x, w, f"{prefix}layers.{i}.", config)
    return _rms(x, w[f"{prefix}norm.weight"], config["norm_eps"])


def _adapted(x: np.ndarray, w: Weights, layers: int, eps: float) -> np.ndarray:
    for i in range(layers):
        prefix = f"audio_decoder.adaptor.{i}."
        y = _rms(x, w[f"{prefix}norm.weight"], eps)
        gate, up = w[f"{prefix}w1.weight"] @ y, w[f"{prefix}w3.weight"] @ y
        x = x + w[f"{prefix}w2.weight"] @ (gate / (1 + np.exp(-gate)) * up)
    return x


def golden(config: dict[str, Any], weights: Weights, rows: np.ndarray, frames: np.ndarray) -> Weights:
    """What ``golden.safetensors`` holds for ``rows`` ``[1 + K, T]`` whose columns ``frames`` are audio."""
    w = {name: tensor.astype(np.float64) for name, tensor in weights.items()}
    slow, fast = config["text_config"], config["audio_decoder_config"]
    books, size = fast["num_codebooks"], fast["vocab_size"]
    embeddings = w["text_model.model.embeddings.weight"]
    tables = w["audio_decoder.codebook_embeddings.weight"]
    x = embeddings[rows[0]]
    for t in range(rows.shape[1]):
        codes = [tables[k * size + rows[1 + k, t]] for k in range(books)]
        if config.get("feedback") == "first":
            if rows[0, t] == config["audio_pad_token_id"]:
                scale = config["audio_scale"] or 1 / np.sqrt(books)
                x[t] = _adapted(sum(codes) * scale, w, config["adaptor_layers"], slow["norm_eps"])
        elif config["semantic_start_token_id"] <= rows[0, t] <= config["semantic_end_token_id"]:
            x[t] = (x[t] + sum(codes)) / np.sqrt(books + 1)
    hidden = _stack(x, w, "text_model.model.", slow)
    logits = []
    for t in frames:
        first = hidden[t - 1]
        if "audio_decoder.project_in.weight" in w:
            first = w["audio_decoder.project_in.weight"] @ first + w["audio_decoder.project_in.bias"]
        inputs = np.stack([first, *w["audio_decoder.embeddings.weight"][rows[1:books, t]]])
        out = _stack(inputs, w, "audio_decoder.", fast)
        logits.append(out[1:] @ w["audio_decoder.output.weight"].T)
    made = {"slow_logits": hidden @ embeddings.T, "slow_hidden": hidden, "fast_logits": np.stack(logits)}
    return {name: value.astype(np.float32) for name, value in made.items()} | {
        "input_rows": rows,
        "fast_frames": frames,
    }
