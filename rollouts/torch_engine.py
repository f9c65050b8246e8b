"""The reference engine: plain PyTorch, batched continuously, each prompt computed once for its samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rl.errors import CheckpointError
from rl.policy.layers import Room
from rl.policy.likelihood import fast_log_softmax, slow_log_softmax
from rl.policy.modeling import DualARForCausalLM
from rl.policy.prompts import prompt_rows
from rollouts.batch import Batch, Finished, Start
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


class TorchEngine:
    """Implements :class:`rollouts.engine.StreamingEngine` over a model in this process.

    ``batch_size``: samples at once; it has no effect on what is sampled, up to the last digits of batched
    matrix products.
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
        was_training, version = self.model.training, self.version
        self.model.eval()
        self.stats = CallStats()
        try:
            finished = self._run_slow(prompts, n, sampling, seed)
            if self.model.config.feedback == "first":
                finished = self._filled(finished, sampling.temperature)
            for done in finished:
                yield Rollout(
                    prompt=prompts[done.sample // n],
                    sample_index=done.sample % n,
                    seed=seed,
                    codes=done.codes.cpu().numpy(),
                    logprobs=done.logprobs.cpu().numpy(),
                    end_logprob=done.end_logprob,
                    finish_reason="length" if done.end_logprob is None else "eos",
                    policy_version=version,
                )
        finally:
            self.model.train(was_training)

    def _starts(self, inputs: Sequence[Tensor], n: int) -> Iterator[tuple[int, Start]]:
        """Each prompt ``n`` times, read once, when the first of its samples is asked for."""
        for number, rows in enumerate(inputs):
            out = self.model(rows[None].to(self.model.device))
            start = Start(out.past, out.hidden[0, -1])
            self.stats += CallStats(rows.shape[1] * n, rows.shape[1] * (n - 1))
            for sample in range(number * n, (number + 1) * n):
                yield sample, start

    def _run_slow(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
    ) -> Iterator[Finished]:
        """Sample frame by frame; without feedback the first codes only, and keep what predicted them.

        A sample that waits joins as soon as another has left, so that all rows are in use until none waits.
        """
        model, config, frames = self.model, self.model.config, sampling.max_frames
        inputs = [prompt_rows(prompt, self.tokenizer, config) for prompt in prompts]
        columns = max((rows.shape[1] for rows in inputs), default=0) + frames
        size = min(self.batch_size, len(prompts) * n)
        batch = Batch(config, size, columns, frames, model.audio_decoder.output.weight)
        waiting = self._starts(inputs, n)
        begun = 0  # rows whose frame has its first code
        while True:
            for sample, start in islice(waiting, size - batch.count):
                noise = uniforms(seed, prompts[sample // n].id, sample % n, frames, config.num_codebooks)
                batch.add(sample, start, torch.from_numpy(noise))
            if begun < batch.count:
                yield from self._begin_frames(batch, begun, sampling.temperature)
                begun = batch.count
                continue
            if not batch.count:
                return
            self._fill_frames(batch, sampling.temperature)
            yield from batch.end_frames()
            if batch.count:
                self._read_frames(batch)
            begun = 0

    def _begin_frames(self, batch: Batch, first: int, temperature: float) -> list[Finished]:
        """Draw the first codes of the rows from ``first`` on; the samples that drew their end."""
        config, (rows, times) = self.model.config, batch.places(first)
        logprobs = slow_log_softmax(self.model, batch.hidden[rows], temperature)
        semantic, slow = draw(logprobs, batch.noise[rows, times, 0])
        batch.codes[rows, times, 0], batch.logprobs[rows, times, 0] = semantic, slow
        ended = (semantic == config.semantic_size).nonzero()[:, 0]
        return batch.leave(dict(zip((ended + first).tolist(), slow[ended].tolist(), strict=True)))

    def _fill_frames(self, batch: Batch, temperature: float) -> None:
        """Draw the other codes of all rows' frames, or without feedback keep what they depend on."""
        rows, times = batch.places()
        hidden = batch.hidden[: batch.count]
        if self.model.config.feedback == "first":
            batch.kept[rows, times] = hidden
            return
        codes, logprobs = self._fast(
            hidden, batch.codes[rows, times, 0], batch.noise[rows, times], temperature
        )
        batch.codes[rows, times, 1:], batch.logprobs[rows, times, 1:] = codes, logprobs

    def _read_frames(self, batch: Batch) -> None:
        """The slow AR reads the frames that ended last."""
        rows, times = batch.places()
        frame = batch.codes[rows, times - 1]
        step = torch.cat([frame[:, :1] + self.model.config.semantic_start_token_id, frame], 1)[..., None]
        batch.advance(self.model(step, *batch.context()).hidden[:, -1])

    def _fast(
        self, hidden: Tensor, semantic: Tensor, noise: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Codes 1..K-1 of a frame and their log-probs, ``[N, K - 1]`` each; positions 0, 1 in one pass."""
        fast, config, size = self.model.audio_decoder, self.model.config, len(hidden)
        books, own = config.num_codebooks, config.audio_decoder_config
        inputs = torch.stack([fast.first(hidden), fast.embeddings(semantic)], 1)
        positions = torch.arange(books, device=hidden.device)
        cache = inputs.new_empty(own.n_layer, 2, size, own.n_local_heads, books, own.head_dim)
        codes, logprobs = [], []
        for k in range(1, books):
            start = k + 1 - inputs.shape[1]
            rooms = [Room(keys, values, start, k + 1) for keys, values in cache]
            out, _ = fast.run(inputs, positions[start : k + 1], past=rooms)
            code, logprob = draw(fast_log_softmax(fast.output(out[:, -1]), config, temperature), noise[:, k])
            codes.append(code)
            logprobs.append(logprob)
            inputs = fast.embeddings(code)[:, None]
        return torch.stack(codes, 1), torch.stack(logprobs, 1)

    def _filled(self, finished: Iterator[Finished], temperature: float) -> Iterator[Finished]:
        """``finished`` with all codes: the fast AR over the frames of many samples at once."""
        for batch in in_batches(finished, lambda done: len(done.codes)):
            hidden = torch.cat([done.hidden for done in batch]).split(FRAMES_AT_ONCE)
            semantic = torch.cat([done.codes[:, 0] for done in batch]).split(FRAMES_AT_ONCE)
            noise = torch.cat([done.noise for done in batch]).split(FRAMES_AT_ONCE)
            drawn = [self._fast(*part, temperature) for part in zip(hidden, semantic, noise, strict=True)]
            lengths = [len(done.codes) for done in batch]
            codes, logprobs = (torch.cat(part).split(lengths) for part in zip(*drawn, strict=True))
            for done, more, likely in zip(batch, codes, logprobs, strict=True):
                done.codes[:, 1:], done.logprobs[:, 1:] = more, likely
            yield from batch
