"""The samples that the torch engine has in hand: one that ends leaves, and makes room for one that waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rl.policy.configuration import DualARConfig
from rl.policy.layers import KVCache, Room


@dataclass(frozen=True)
class Start:
    """A prompt that was read: its cache, and the normed hidden state ``[dim]`` that predicts what follows."""

    cache: KVCache
    hidden: Tensor


@dataclass(frozen=True)
class Finished:
    """A sample of T frames.

    ``noise``, ``codes``, ``logprobs``: ``[T, K]``; ``hidden``: without feedback what predicted each frame
    ``[T, dim]``, for the codes that are still zero, else ``[T, 0]``. ``end_logprob``: of the end token, None
    at the limit.
    """

    sample: int
    noise: Tensor
    codes: Tensor
    logprobs: Tensor
    hidden: Tensor
    end_logprob: float | None


class Batch:
    """Up to ``size`` samples of ``frames`` at most, in the first ``count`` rows of each tensor.

    ``columns``: the most that a prompt and its frames take in the cache. ``like``: of the policy's device and
    dtype. A sample leaves with its place taken by the last one, so that nothing but one row moves.
    """

    def __init__(self, config: DualARConfig, size: int, columns: int, frames: int, like: Tensor) -> None:
        text, books = config.text_config, config.num_codebooks
        kept = text.dim if config.feedback == "first" else 0
        self.count, self.frames = 0, frames
        self.samples, self.lengths, self.times = ([0] * size for _ in range(3))
        # what lies beyond a row's length is masked, but must be finite
        self.cache = like.new_zeros(text.n_layer, 2, size, text.n_local_heads, columns, text.head_dim)
        self.hidden = like.new_empty(size, text.dim)
        self.kept = like.new_zeros(size, frames, kept)
        self.noise = like.new_zeros(size, frames, books, dtype=torch.float64)
        self.codes = like.new_zeros(size, frames, books, dtype=torch.long)
        self.logprobs = like.new_zeros(size, frames, books, dtype=torch.float32)

    def add(self, sample: int, start: Start, noise: Tensor) -> None:
        """Take in a sample, with noise ``[frames, K]``."""
        row, length = self.count, start.cache[0][0].shape[2]
        for layer, (keys, values) in zip(self.cache, start.cache, strict=True):
            layer[0, row, :, :length], layer[1, row, :, :length] = keys[0], values[0]
        self.samples[row], self.lengths[row], self.times[row] = sample, length, 0
        self.hidden[row], self.noise[row] = start.hidden, noise
        self.codes[row], self.logprobs[row] = 0, 0
        self.count += 1

    def leave(self, ends: Mapping[int, float | None]) -> list[Finished]:
        """The samples in the rows of ``ends``, finished with that end token's log-prob or at the limit."""
        return [self._pop(row, ends[row]) for row in sorted(ends, reverse=True)]

    def _pop(self, row: int, end_logprob: float | None) -> Finished:
        frames = self.times[row]
        noise, codes, logprobs, hidden = (
            part[row, :frames].clone() for part in (self.noise, self.codes, self.logprobs, self.kept)
        )
        finished = Finished(self.samples[row], noise, codes, logprobs, hidden, end_logprob)
        self.count -= 1
        last = self.count
        if row != last:
            length = self.lengths[last]
            self.cache[:, :, row, :, :length] = self.cache[:, :, last, :, :length]
            for part in (self.hidden, self.noise, self.codes, self.logprobs, self.kept):
                part[row] = part[last]
            for values in (self.samples, self.lengths, self.times):
                values[row] = values[last]
        return finished

    def places(self, first: int = 0) -> tuple[Tensor, Tensor]:
        """Rows and frame numbers ``[N]`` of the frames in the making, from row ``first`` on."""
        rows = torch.arange(first, self.count, device=self.codes.device)
        return rows, torch.tensor(self.times[first : self.count], device=self.codes.device)

    def context(self) -> tuple[Tensor, Tensor, list[Room]]:
        """For the slow AR's next step: positions ``[N, 1]``, mask ``[N, 1, 1, T]``, and room for the keys."""
        positions = torch.tensor(self.lengths[: self.count], device=self.codes.device)
        end = max(self.lengths[: self.count]) + 1
        mask = torch.arange(end, device=positions.device) <= positions[:, None]
        rooms = [Room(keys, values, positions, end) for keys, values in self.cache[:, :, : self.count]]
        return positions[:, None], mask[:, None, None], rooms

    def end_frames(self) -> list[Finished]:
        """All frames in the making are complete; the samples that are at the limit now."""
        for row in range(self.count):
            self.times[row] += 1
        return self.leave({row: None for row in range(self.count) if self.times[row] == self.frames})

    def advance(self, hidden: Tensor) -> None:
        """The slow AR has read the last frames, and ``hidden`` ``[N, dim]`` predicts what follows."""
        self.hidden[: self.count] = hidden
        for row in range(self.count):
            self.lengths[row] += 1
