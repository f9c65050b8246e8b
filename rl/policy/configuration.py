"""The configuration of a Dual-AR policy, in the published S2 layout."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from torch import Tensor
from transformers import PretrainedConfig

from rl.errors import CheckpointError

FEEDBACK = ("all", "first")
PROMPT_FORMATS = ("fish_s2", "step_audio_3")

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

    ``residual_codebook_size``: the codes 1.. that may be sampled are ``[0, residual_codebook_size)``; S2's
    codec knows 1024 of the fast head's 4096 rows. None: that, or with feedback ``first`` all rows.

    ``feedback``: which codes of a frame the slow AR reads at the next one. ``all`` (S2): the whole frame.
    ``first`` (StepAudio 3 Gen): the semantic code only, so that the slow AR can run without the fast one.
    Then audio to listen to stands on tokens of its own (``audio_pad_token_id``): its K codes' embeddings,
    summed and multiplied by ``audio_scale`` (None: ``K ** -0.5``), go through ``adaptor_layers`` residual
    blocks of ``adaptor_size``. ``prompt_format``: which one the policy was trained with.

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
        audio_pad_token_id: int | None = None,
        feedback: str = "all",
        audio_scale: float | None = None,
        adaptor_layers: int = 0,
        adaptor_size: int = 0,
        prompt_format: str = "fish_s2",
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
        known = fast_size if feedback == "first" else min(fast_size, 1024)
        self.residual_codebook_size = residual_codebook_size or known
        self.audio_pad_token_id = audio_pad_token_id
        self.feedback = feedback
        self.audio_scale = audio_scale
        self.adaptor_layers, self.adaptor_size = adaptor_layers, adaptor_size
        self.prompt_format = prompt_format
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
        for name, known in (("feedback", FEEDBACK), ("prompt_format", PROMPT_FORMATS)):
            if getattr(self, name) not in known:
                raise CheckpointError(f"config.json: `{name}` must be one of {', '.join(known)}")
        if self.feedback == "first" and self.audio_pad_token_id is None:
            raise CheckpointError("config.json: feedback `first` needs `audio_pad_token_id`")
        if self.adaptor_layers and (self.feedback == "all" or self.adaptor_size <= 0):
            raise CheckpointError("config.json: adaptor_layers need feedback `first` and an `adaptor_size`")

    @property
    def num_codebooks(self) -> int:
        """K, the semantic code included."""
        return int(self.audio_decoder_config.num_codebooks)

    @property
    def codes_per_step(self) -> int:
        """How many codes must be sampled before the slow AR can go on: K, or 1 with feedback ``first``."""
        return 1 if self.feedback == "first" else self.num_codebooks

    @property
    def semantic_size(self) -> int:
        """How many semantic ids the slow AR has."""
        return int(self.semantic_end_token_id - self.semantic_start_token_id + 1)

    def is_heard(self, ids: Tensor) -> Tensor:
        """Which tokens of ``ids`` the slow AR reads together with a frame's K codes: bool like ``ids``."""
        if self.feedback == "first":
            return ids.eq(cast(int, self.audio_pad_token_id))
        return (ids >= self.semantic_start_token_id) & (ids <= self.semantic_end_token_id)
