"""The configuration of a Dual-AR policy, in the published S2 layout."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import PretrainedConfig

from rl.errors import CheckpointError

_AR_KEYS = ("n_layer", "n_head", "n_local_heads", "head_dim", "dim", "intermediate_size", "vocab_size")


class ARConfig(PretrainedConfig):
    """One of the two transformers. Field names are those of the published ``config.json``.

    transformers makes dataclasses of configs that declare fields only. The usual names read the same fields.
    """

    attribute_map: ClassVar = {
        "hidden_size": "dim",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "num_key_value_heads": "n_local_heads",
        "max_position_embeddings": "max_seq_len",
    }

    vocab_size: int = 0
    n_layer: int = 0
    n_head: int = 0
    n_local_heads: int = 0
    head_dim: int = 0
    dim: int = 0
    intermediate_size: int = 0
    rope_base: float = 1e6
    norm_eps: float = 1e-6
    max_seq_len: int = 32768
    attention_qk_norm: bool = False
    initializer_range: float = 0.02


class TextConfig(ARConfig):
    """The slow AR, over time."""

    model_type = "fish_qwen3"


class AudioDecoderConfig(ARConfig):
    """The fast AR, over the codebooks of a frame. ``vocab_size`` is the codebook size."""

    model_type = "fish_qwen3_audio_decoder"
    text_dim: int = 0
    num_codebooks: int = 0


class DualARConfig(PretrainedConfig):
    """A Dual-AR policy.

    ``residual_codebook_size``: the codes 1.. that may be sampled are ``[0, residual_codebook_size)``;
    S2's codec knows 1024 of the fast head's 4096 rows.

    Raises:
        CheckpointError: a field the architecture needs is missing, or the two ARs don't fit.
    """

    model_type = "fish_qwen3_omni"
    sub_configs: ClassVar = {"text_config": TextConfig, "audio_decoder_config": AudioDecoderConfig}

    def __init__(
        self,
        text_config: dict[str, Any] | TextConfig | None = None,
        audio_decoder_config: dict[str, Any] | AudioDecoderConfig | None = None,
        semantic_start_token_id: int = 0,
        semantic_end_token_id: int = 0,
        residual_codebook_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        text = text_config or {}
        audio = audio_decoder_config or {}
        self.text_config = text if isinstance(text, TextConfig) else TextConfig(**text)
        self.audio_decoder_config = (
            audio if isinstance(audio, AudioDecoderConfig) else AudioDecoderConfig(**audio)
        )
        self.semantic_start_token_id = semantic_start_token_id
        self.semantic_end_token_id = semantic_end_token_id
        fast_size = self.audio_decoder_config.vocab_size
        self.residual_codebook_size = residual_codebook_size or min(fast_size, 1024)
        kwargs.setdefault("tie_word_embeddings", True)
        super().__init__(**kwargs)

    def check(self) -> None:
        """Refuse a config that can't make a model, naming the field."""
        for part in (self.text_config, self.audio_decoder_config):
            for key in _AR_KEYS:
                if getattr(part, key) <= 0:
                    raise CheckpointError(f"config.json: {part.model_type} needs `{key}` above 0")
        if self.audio_decoder_config.text_dim != self.text_config.dim:
            raise CheckpointError("config.json: audio_decoder_config.text_dim must equal text_config.dim")
        if self.semantic_size > self.audio_decoder_config.vocab_size:
            raise CheckpointError("config.json: more semantic ids than audio_decoder_config.vocab_size")
        if self.eos_token_id is None:
            raise CheckpointError("config.json: `eos_token_id` is missing")

    @property
    def num_codebooks(self) -> int:
        """K, the semantic code included."""
        return int(self.audio_decoder_config.num_codebooks)

    @property
    def semantic_size(self) -> int:
        """How many semantic ids the slow AR has."""
        return int(self.semantic_end_token_id - self.semantic_start_token_id + 1)
