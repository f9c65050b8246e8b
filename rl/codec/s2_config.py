"""The shape of S2's codec: the published one, or that of a ``codec_config.json`` beside the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import prod
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from rl.errors import CheckpointError
from rl.policy.configuration import ARConfig

CONFIG_FILE = "codec_config.json"
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class EncoderTransformer:
    """What the encoder's transformers have in common. Each is as wide as its block, its MLP three times.

    It has a head for every 64 channels, whatever ``head_dim`` is. ``window_size``: positions that one attends
    to, its own included.
    """

    head_dim: int = 64
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5
    window_size: int = 512

    def shape(self, layers: int, dim: int) -> ARConfig:
        """Of one ``dim`` wide."""
        return _ar_config(layers, dim // 64, dim, 3 * dim, self.head_dim, self.rope_base, self.norm_eps)


@dataclass(frozen=True)
class QuantizerTransformer:
    """The transformers before and after quantisation; see `EncoderTransformer`."""

    n_layer: int = 8
    n_head: int = 16
    dim: int = 1024
    intermediate_size: int = 3072
    head_dim: int = 64
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5
    window_size: int = 128

    @property
    def shape(self) -> ARConfig:
        return _ar_config(
            self.n_layer,
            self.n_head,
            self.dim,
            self.intermediate_size,
            self.head_dim,
            self.rope_base,
            self.norm_eps,
        )


@dataclass(frozen=True)
class QuantizerConfig:
    """``n_codebooks`` residual ones of ``codebook_size``, after the semantic one."""

    input_dim: int = 1024
    n_codebooks: int = 9
    codebook_size: int = 1024
    codebook_dim: int = 8
    semantic_codebook_size: int = 4096
    downsample_factor: tuple[int, ...] = (2, 2)
    transformer: QuantizerTransformer = field(default_factory=QuantizerTransformer)


@dataclass(frozen=True)
class S2CodecConfig:
    """The defaults are those of the published ``codec.pth``.

    The rates are strides of the encoder's and decoder's blocks; the encoder's width doubles at each, from
    ``encoder_dim``, the decoder's halves, from ``decoder_dim``. ``encoder_transformer_layers`` holds the
    number of layers after each of the encoder's blocks.
    """

    sample_rate: int = 44_100
    encoder_dim: int = 64
    encoder_rates: tuple[int, ...] = (2, 4, 8, 8)
    encoder_transformer_layers: tuple[int, ...] = (0, 0, 0, 4)
    encoder_transformer: EncoderTransformer = field(default_factory=EncoderTransformer)
    decoder_dim: int = 1536
    decoder_rates: tuple[int, ...] = (8, 8, 4, 2)
    quantizer: QuantizerConfig = field(default_factory=QuantizerConfig)

    @property
    def hop(self) -> int:
        """Samples per frame."""
        return prod(self.encoder_rates) * prod(self.quantizer.downsample_factor)

    @property
    def codebook_sizes(self) -> tuple[int, ...]:
        """The semantic one's, then the residual ones'."""
        books = self.quantizer
        return (books.semantic_codebook_size, *[books.codebook_size] * books.n_codebooks)


def read_config(file: Path) -> S2CodecConfig:
    """The config in ``file``; where there is none, the published one, which is not in the published folder.

    Raises:
        CheckpointError: not JSON, a key that isn't known, or a value that can't be.
    """
    if not file.is_file():
        return S2CodecConfig()
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: can't be read as JSON ({error})") from error
    # of the reference's decoder transformers, which hold no weights and do nothing
    if isinstance(tree, dict):
        tree.pop("decoder_transformer_layers", None)
    config = _build(S2CodecConfig, tree, str(file))
    if len(config.encoder_transformer_layers) != len(config.encoder_rates):
        raise CheckpointError(f"{file}: encoder_transformer_layers needs one number per encoder_rates")
    if prod(config.decoder_rates) != prod(config.encoder_rates):
        raise CheckpointError(f"{file}: encoder_rates and decoder_rates must have the same product")
    if config.encoder_dim * 2 ** len(config.encoder_rates) != config.quantizer.input_dim:
        raise CheckpointError(f"{file}: quantizer.input_dim isn't encoder_dim doubled at each encoder_rates")
    return config


def _build(kind: type[Kind], tree: Any, where: str) -> Kind:
    """A dataclass from JSON: numbers above zero (layers may be none), lists of them, nested dataclasses."""
    if not isinstance(tree, Mapping):
        raise CheckpointError(f"{where}: must be a JSON object")
    hints = get_type_hints(kind)
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in tree.items():
        if name not in known:
            raise CheckpointError(f"{where}: unknown key `{name}`; known: {', '.join(sorted(known))}")
        key = f"{where}: `{name}`"
        least = 0 if name == "encoder_transformer_layers" else 1
        if hints[name] is int:
            values[name] = _whole(value, least, key)
        elif hints[name] is float:
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise CheckpointError(f"{key} must be a number above 0, not {value!r}")
            values[name] = float(value)
        elif hints[name] == tuple[int, ...]:
            if not isinstance(value, list) or not value:
                raise CheckpointError(f"{key} must be a list of whole numbers, not {value!r}")
            values[name] = tuple(_whole(one, least, key) for one in value)
        else:
            values[name] = _build(hints[name], value, key)
    return kind(**values)


def _whole(value: Any, least: int, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise CheckpointError(f"{key} must be a whole number from {least}, not {value!r}")
    return value


def _ar_config(
    layers: int, heads: int, dim: int, intermediate: int, head_dim: int, rope_base: float, norm_eps: float
) -> ARConfig:
    return ARConfig(
        n_layer=layers,
        n_head=heads,
        n_local_heads=heads,
        head_dim=head_dim,
        dim=dim,
        intermediate_size=intermediate,
        rope_base=rope_base,
        norm_eps=norm_eps,
    )
