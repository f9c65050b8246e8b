"""The reference engine: plain PyTorch, KV-cached, batched, each prompt computed once for all its samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rl.errors import CheckpointError
from rl.policy.likelihood import fast_log_softmax, slow_log_softmax
from rl.policy.modeling import DualARForCausalLM
from rl.policy.prompts import prompt_rows
from rollouts.depth import FRAMES_AT_ONCE, in_batches
from rollouts.engine import CallStats, in_order
from rollouts.noise import uniforms
from rollouts.types import Prompt, Rollout, SamplingParams


def draw(logprobs: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse-CDF sampling of ``[N, S]`` log-probs by ``[N]`` uniforms: indices and their log-probs."""
    edges = logprobs.double().exp().cumsum(-1)
    picked = torch.searchsorted(edges, uniform[:, None] * edges[:, -1:], right=True).clamp_max(
        edges.shape[1] - 1
    )
    return picked[:, 0], logprobs.gather(1, picked)[:, 0]


@dataclass
class _Rows:
    """The rows still being sampled: their place in the chunk, cache, next inputs and attention mask."""

    index: Tensor
    past: list[tuple[Tensor, Tensor]]
    hidden: Tensor
    visible: Tensor
    positions: Tensor

    def keep(self, alive: Tensor) -> _Rows:
        past = [(k[alive], v[alive]) for k, v in self.past]
        return _Rows(self.index[alive], past, self.hidden[alive], self.visible[alive], self.positions[alive])


@dataclass
class _Samples:
    """What a chunk of N samples needs and gets: noise, codes and log-probs ``[N, frames, K]``, and without
    feedback the hidden state that predicted each frame ``[N, frames, dim]`` (else ``[N, frames, 0]``)."""

    noise: Tensor
    codes: Tensor
    logprobs: Tensor
    hidden: Tensor


@dataclass(frozen=True)
class _End:
    """A row that is finished: how many frames it has, and its end token's log-prob, None at the limit."""

    row: int
    frames: int
    logprob: float | None


class TorchEngine:
    """Implements :class:`rollouts.engine.StreamingEngine` over a model in this process.

    ``batch_size``: rows sampled at once (at least one whole group); it has no effect on what is sampled,
    up to the last digits of batched matrix products.
    """

    def __init__(
        self, model: DualARForCausalLM, tokenizer: PreTrainedTokenizerBase, batch_size: int = 128
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.version = 0
        self.stats = CallStats()

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the named parameters in.

        Raises:
            CheckpointError: a name or shape the model doesn't have; nothing is changed then.
        """
        own = dict(self.model.named_parameters())
        for name, tensor in weights.items():
            if name not in own or own[name].shape != tensor.shape:
                raise CheckpointError(
                    f"weight sync: the policy has no parameter `{name}` of shape {tuple(tensor.shape)}"
                )
        with torch.no_grad():
            for name, tensor in weights.items():
                own[name].copy_(tensor)
        self.version += 1

    def sleep(self) -> None:
        """Nothing to lend: no memory is held between two calls but the weights."""

    def wake(self) -> None:
        """Always awake."""

    def close(self) -> None:
        """Nothing to free: the model is the caller's."""

    def generate(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
    ) -> list[Rollout]:
        """See :class:`rollouts.engine.Engine`."""
        return in_order(self.stream(prompts, n, sampling, seed), prompts)

    @torch.inference_mode()
    def stream(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
    ) -> Iterator[Rollout]:
        """See :class:`rollouts.engine.StreamingEngine`."""
        was_training = self.model.training
        self.model.eval()
        per_chunk = max(1, self.batch_size // n)
        self.stats = CallStats()
        try:
            for start in range(0, len(prompts), per_chunk):
                yield from self._chunk(prompts[start : start + per_chunk], n, sampling, seed)
        finally:
            self.model.train(was_training)

    def _prefill(self, prompts: Sequence[Prompt], n: int) -> _Rows:
        """Each prompt once, its cache left-padded to the longest and repeated ``n`` times."""
        device, config = self.model.device, self.model.config
        inputs = [prompt_rows(prompt, self.tokenizer, config) for prompt in prompts]
        longest = max(rows.shape[1] for rows in inputs)
        computed = sum(rows.shape[1] for rows in inputs)
        self.stats += CallStats(computed * n, computed * (n - 1))
        hidden, caches, visible, positions = [], [], [], []
        for rows in inputs:
            out = self.model(rows[None].to(device))
            pad = longest - rows.shape[1]
            hidden.append(out.hidden[:, -1])
            caches.append([(F.pad(k, (0, 0, pad, 0)), F.pad(v, (0, 0, pad, 0))) for k, v in out.past])
            visible.append(torch.arange(longest, device=device)[None] >= pad)
            positions.append(torch.tensor([rows.shape[1]], device=device))
        past = [
            (
                torch.cat([cache[layer][0] for cache in caches]).repeat_interleave(n, 0),
                torch.cat([cache[layer][1] for cache in caches]).repeat_interleave(n, 0),
            )
            for layer in range(config.text_config.n_layer)
        ]
        return _Rows(
            index=torch.arange(len(prompts) * n, device=device),
            past=past,
            hidden=torch.cat(hidden).repeat_interleave(n, 0),
            visible=torch.cat(visible).repeat_interleave(n, 0),
            positions=torch.cat(positions).repeat_interleave(n, 0),
        )

    def _fast(
        self, hidden: Tensor, semantic: Tensor, noise: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Codes 1..K-1 of a frame and their log-probs, ``[N, K - 1]`` each; positions 0, 1 in one pass."""
        fast, config = self.model.audio_decoder, self.model.config
        inputs = torch.stack([fast.first(hidden), fast.embeddings(semantic)], 1)
        positions = torch.arange(2, device=hidden.device)
        past = None
        codes, logprobs = [], []
        for k in range(1, config.num_codebooks):
            out, past = fast.run(inputs, positions, past=past)
            code, logprob = draw(fast_log_softmax(fast.output(out[:, -1]), config, temperature), noise[:, k])
            codes.append(code)
            logprobs.append(logprob)
            inputs, positions = fast.embeddings(code)[:, None], torch.tensor([k + 1], device=hidden.device)
        return torch.stack(codes, 1), torch.stack(logprobs, 1)

    def _chunk(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
    ) -> Iterator[Rollout]:
        config, device, version = self.model.config, self.model.device, self.version
        books, frames, total = config.num_codebooks, sampling.max_frames, len(prompts) * n
        kept = config.text_config.dim if config.feedback == "first" else 0
        noise = np.stack([uniforms(seed, p.id, i, frames + 1, books) for p in prompts for i in range(n)])
        samples = _Samples(
            noise=torch.from_numpy(noise).to(device),
            codes=torch.zeros(total, frames, books, dtype=torch.long, device=device),
            logprobs=torch.zeros(total, frames, books, device=device),
            hidden=torch.zeros(total, frames, kept, dtype=self.model.dtype, device=device),
        )
        ended = self._run_slow(self._prefill(prompts, n), samples, sampling.temperature)
        if config.feedback == "first":
            ended = self._filled(ended, samples, sampling.temperature)
        for end in ended:
            yield Rollout(
                prompt=prompts[end.row // n],
                sample_index=end.row % n,
                seed=seed,
                codes=samples.codes[end.row, : end.frames].cpu().numpy(),
                logprobs=samples.logprobs[end.row, : end.frames].cpu().numpy(),
                end_logprob=end.logprob,
                finish_reason="length" if end.logprob is None else "eos",
                policy_version=version,
            )

    def _run_slow(self, rows: _Rows, samples: _Samples, temperature: float) -> Iterator[_End]:
        """Sample frame by frame; without feedback the first codes only, and keep what predicted them."""
        model, config, limit = self.model, self.model.config, samples.codes.shape[1]
        for t in range(limit):
            semantic, slow = draw(
                slow_log_softmax(model, rows.hidden, temperature), samples.noise[rows.index, t, 0]
            )
            alive = semantic != config.semantic_size
            for row, logprob in zip(rows.index[~alive].tolist(), slow[~alive].tolist(), strict=True):
                yield _End(row, t, logprob)
            rows = rows.keep(alive)
            if len(rows.index) == 0:
                return
            semantic = semantic[alive]
            samples.codes[rows.index, t, 0], samples.logprobs[rows.index, t, 0] = semantic, slow[alive]
            if config.feedback == "first":
                samples.hidden[rows.index, t] = rows.hidden
            else:
                self._fast_step(samples, rows.index, t, rows.hidden, temperature)
            frame = samples.codes[rows.index, t]
            step = torch.cat([semantic[:, None] + config.semantic_start_token_id, frame], 1)[..., None]
            visible = F.pad(rows.visible, (0, 1), value=True)
            out = model(step, rows.positions[:, None], visible[:, None, None], rows.past)
            rows = _Rows(rows.index, out.past, out.hidden[:, -1], visible, rows.positions + 1)
        for row in rows.index.tolist():
            yield _End(row, limit, None)

    def _filled(self, ended: Iterator[_End], samples: _Samples, temperature: float) -> Iterator[_End]:
        """``ended`` with all codes: the fast AR over the frames of many samples at once."""
        for batch in in_batches(ended, lambda end: end.frames):
            lengths = torch.tensor([end.frames for end in batch])
            rows = torch.tensor([end.row for end in batch]).repeat_interleave(lengths)
            times = torch.cat([torch.arange(end.frames) for end in batch])
            for row, time in zip(rows.split(FRAMES_AT_ONCE), times.split(FRAMES_AT_ONCE), strict=True):
                self._fast_step(samples, row, time, samples.hidden[row, time], temperature)
            yield from batch

    def _fast_step(
        self, samples: _Samples, rows: Tensor, times: Tensor | int, hidden: Tensor, temperature: float
    ) -> None:
        """Sample codes 1..K-1 of the frames at ``[rows, times]``, which ``hidden`` ``[N, dim]`` predicted."""
        semantic, noise = samples.codes[rows, times, 0], samples.noise[rows, times]
        codes, logprobs = self._fast(hidden, semantic, noise, temperature)
        samples.codes[rows, times, 1:], samples.logprobs[rows, times, 1:] = codes, logprobs
