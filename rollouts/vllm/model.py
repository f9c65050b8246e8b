"""A Dual-AR policy as vLLM loads it, and the one place where its frames are embedded and sampled.

The runner adapters (`rollouts.vllm.v1`, `rollouts.vllm.v2`) tell it which request each row belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig

from rl.policy.configuration import DualARConfig
from rl.policy.likelihood import slow_log_softmax, slow_support
from rl.policy.modeling import embed_rows
from rollouts.depth import FRAMES_AT_ONCE
from rollouts.torch_engine import draw
from rollouts.vllm.fast import FastDecoder
from rollouts.vllm.frames import FrameStore, Sample
from rollouts.vllm.slow import SlowAR


class TextModel(nn.Module):
    """Only a level of names in the published layout (``text_model.model.*``)."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        super().__init__()
        self.model = SlowAR(vllm_config=vllm_config, prefix="text_model.model")


class DualARForVllm(nn.Module):
    """Loads the published layout; w1 and w3 of the two ARs are one matrix here."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.config: DualARConfig = vllm_config.model_config.hf_config
        self.text_model = TextModel(vllm_config)
        self.audio_decoder = FastDecoder(self.config)
        device = self.audio_decoder.output.weight.device
        self.support = slow_support(self.config, device)
        width = self.config.text_config.dim if self.config.feedback == "first" else 0
        dtype = self.audio_decoder.output.weight.dtype
        self.frames = FrameStore(self.config.num_codebooks, device, width, dtype)
        self.temperature = 1.0

    @staticmethod
    def get_model_state_cls() -> type:
        """vLLM's V2 runner asks for this; its modules import only where Triton works."""
        from rollouts.vllm.v2 import DualModelState

        return DualModelState

    def begin(self, requests: int, length: int, frames: int, temperature: float) -> None:
        """Start an engine call (see `FrameStore.begin`) at a temperature."""
        self.frames.begin(requests, length, frames)
        self.temperature = temperature

    def add(self, request_id: str, prompt_ids: list[int], args: dict[str, Any]) -> int:
        """Take in a request whose ``extra_args`` are those of a `Sample`; its slot."""
        heard = self.config.is_heard(torch.tensor(prompt_ids)).nonzero()[:, 0]
        return self.frames.add(request_id, len(prompt_ids), heard, Sample(**args))

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """What vLLM fills its input buffer with; `embed` replaces it for every scheduled token."""
        return self.text_model.model.embeddings(input_ids)

    def embed(self, ids: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        """The slow AR's inputs ``[N, dim]`` of tokens ``ids``, with the frames their requests hold."""
        rows = torch.cat([ids[None].long(), self.frames.read(slots, positions).T])
        tokens, audio = self.text_model.model.embeddings, self.audio_decoder
        return embed_rows(rows[None], tokens, audio.codebook_embeddings, audio.adaptor, self.config)[0]

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """The slow AR's normed hidden states ``[T, dim]``."""
        return self.text_model.model(positions, inputs_embeds)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """The hidden states themselves: the sampler makes logits of the support only, and needs both."""
        return hidden_states

    def slow_logits(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Logits of the tied head's rows ``ids``: ``[..., len(ids)]``."""
        return hidden @ self.text_model.model.embeddings.weight[ids].T

    def sample(self, hidden: Tensor, slots: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sample and keep one frame per row, or its first code only: C is ``DualARConfig.codes_per_step``.

        ``hidden`` ``[N, dim]`` predicts the token at absolute position ``positions`` ``[N]`` of the request
        in ``slots`` ``[N]``. Returns the token ids ``[N]``, the codes and their log-probs ``[N, C]``; where
        the token is the end, the codes mean nothing and column 0 of the log-probs is the end's.
        """
        model: Any = self
        noise = self.frames.noise_at(slots, positions)
        semantic, slow = draw(slow_log_softmax(model, hidden, self.temperature), noise[:, 0])
        tokens = self.support[semantic]
        semantic = semantic.clamp_max(self.config.semantic_size - 1)
        if self.config.feedback == "first":
            self.frames.write(slots, positions, semantic[:, None])
            self.frames.write_hidden(slots, positions, hidden)
            return tokens, semantic[:, None], slow[:, None]
        residual, fast = self.audio_decoder(hidden, semantic, noise, self.temperature)
        codes = torch.cat([semantic[:, None], residual], 1)
        self.frames.write(slots, positions, codes)
        return tokens, codes, torch.cat([slow[:, None], fast], 1)

    @torch.inference_mode()
    def fill(self, samples: Sequence[tuple[str, int, int]]) -> tuple[list[list[int]], list[list[float]]]:
        """Without feedback: codes 1..K-1 of whole samples, given as prompt id, sample index and frames.

        Returns them and their log-probs, ``[N, K - 1]`` each, N the frames of all samples in their order.
        """
        store = self.frames
        lengths = torch.tensor([frames for _, _, frames in samples])
        slots = torch.tensor([store.of_sample[prompt, index] for prompt, index, _ in samples])
        rows = slots.repeat_interleave(lengths).to(store.device)
        times = torch.cat([torch.arange(frames) for _, _, frames in samples]).to(store.device)
        codes, logprobs = [], []
        for row, time in zip(rows.split(FRAMES_AT_ONCE), times.split(FRAMES_AT_ONCE), strict=True):
            semantic = store.codes[row, store.prompt_lengths[row] + time, 0].long()
            noise = store.noise[row, time]
            more = self.audio_decoder(store.hidden[row, time], semantic, noise, self.temperature)
            codes += more[0].tolist()
            logprobs += more[1].tolist()
        return codes, logprobs

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Copy tensors of the published names in, whole or some; the names loaded."""
        own = dict(self.named_parameters())
        loaded = set()
        for name, tensor in weights:
            parts = name.split(".")
            half = {"w1": 0, "w3": 1}.get(parts[-2]) if name not in own else None
            if half is not None:
                parts[-2] = "w13"
            name = ".".join(parts)
            parameter = own[name]
            loader = getattr(parameter, "weight_loader", None)
            if loader is not None:
                loader(parameter, tensor, half) if half is not None else loader(parameter, tensor)
            elif half is not None:
                parameter.chunk(2)[half].copy_(tensor)
            else:
                parameter.copy_(tensor)
            loaded.add(name)
        return loaded
