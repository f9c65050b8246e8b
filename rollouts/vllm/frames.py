"""What was sampled so far, kept by request and absolute position, so that no scheduling can misplace it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rollouts.noise import uniforms

SCRATCH = 0  # a slot that belongs to no request: rows whose output is discarded write here


@dataclass(frozen=True)
class Sample:
    """Which sample a request is: what its noise depends on, and its prompt's codes on audio positions.

    ``codes``: ``[A, K]``, one row for each semantic token of the prompt, in order.
    """

    seed: int
    prompt_id: str
    index: int
    codes: list[list[int]]

    def to_args(self) -> dict[str, Any]:
        """As vLLM's ``SamplingParams.extra_args``."""
        return {"seed": self.seed, "prompt_id": self.prompt_id, "index": self.index, "codes": self.codes}


class FrameStore:
    """Codes and noise of one engine call's requests, and for a fast AR that runs afterwards the hidden state
    ``[width]`` that predicted each new frame.

    A request keeps its slot until the next call begins: preemption, whatever order rows are in and
    re-computation of a prefix can't lose or move a frame.
    """

    def __init__(
        self,
        codebooks: int,
        device: torch.device | str,
        width: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.codebooks, self.device, self.width, self.dtype = codebooks, device, width, dtype
        self.begin(0, 1, 1)

    def begin(self, requests: int, length: int, frames: int) -> None:
        """Forget everything; make room for ``requests`` of ``length`` positions, ``frames`` of them new.

        There is one more of each, as a runner that schedules ahead may sample past the end.
        """
        shape = (requests + 1, length + 1, self.codebooks)
        self.codes = torch.zeros(shape, dtype=torch.int32, device=self.device)
        shape = (requests + 1, frames + 1, self.codebooks)
        self.noise = torch.zeros(shape, dtype=torch.float64, device=self.device)
        shape = (requests + 1, frames + 1, self.width)
        self.hidden = torch.zeros(shape, dtype=self.dtype, device=self.device)
        self.prompt_lengths = torch.zeros(requests + 1, dtype=torch.long, device=self.device)
        self.slots: dict[str, int] = {}
        self.of_sample: dict[tuple[str, int], int] = {}

    def add(self, request_id: str, prompt_length: int, audio: Tensor, sample: Sample) -> int:
        """The slot of a request; one seen before keeps its own.

        ``audio``: the prompt's audio positions, int64 ``[A]``.
        """
        if request_id in self.slots:
            return self.slots[request_id]
        slot = len(self.slots) + 1
        self.slots[request_id] = self.of_sample[sample.prompt_id, sample.index] = slot
        self.prompt_lengths[slot] = prompt_length
        if len(audio):
            self.codes[slot, audio.to(self.device)] = torch.tensor(
                sample.codes, dtype=torch.int32, device=self.device
            )
        frames = self.noise.shape[1]
        noise = uniforms(sample.seed, sample.prompt_id, sample.index, frames, self.codebooks)
        self.noise[slot] = torch.from_numpy(noise).to(self.device)
        return slot

    def read(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Codes int64 ``[N, K]`` at ``positions`` ``[N]``; zeros where the token isn't audio."""
        return self.codes[slots, positions].long()

    def noise_at(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Uniforms float64 ``[N, K]`` of the frames at absolute ``positions`` ``[N]``."""
        return self.noise[slots, self._frames(slots, positions)]

    def write(self, slots: Tensor, positions: Tensor, codes: Tensor) -> None:
        """Keep the codes ``[N, K]``, or the first only ``[N, 1]``, sampled for ``positions`` ``[N]``."""
        inside = positions.clamp_max(self.codes.shape[1] - 1)
        self.codes[slots, inside, : codes.shape[1]] = codes.to(torch.int32)

    def write_hidden(self, slots: Tensor, positions: Tensor, hidden: Tensor) -> None:
        """Keep the hidden states ``[N, width]`` that predicted the frames at ``positions`` ``[N]``."""
        self.hidden[slots, self._frames(slots, positions)] = hidden

    def _frames(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Absolute positions as numbers of new frames, at most the one past the end."""
        return (positions - self.prompt_lengths[slots]).clamp(0, self.noise.shape[1] - 1)
