"""Samples packed into one row without padding, the prompt that a group shares only once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from rl.policy.configuration import DualARConfig
from rl.policy.layers import Packing
from rl.policy.prompts import code_rows
from rl.policy.turns import TurnRows


@dataclass(frozen=True)
class PackedSamples:
    """What a forward pass over B samples reads and scores.

    ``rows`` ``[1, 1 + K, N]`` and ``positions`` ``[N]``: the slow AR's input, laid out as ``packing`` says.
    Sample b is the piece ``prompts[b]`` and the piece ``rests[b]`` that goes on from it. ``source`` ``[M]``:
    which of the samples' states (see `states`) predicts each of the M sampled slow tokens; ``targets``
    ``[M]``: their places in `slow_support`; ``of_frame``, bool ``[M]``: which of them are first codes.
    ``codes``: the F frames ``[F, K]``. ``slow_mask`` ``[B, S]`` and ``frame_mask`` ``[B, T]``: where slow
    tokens and frames stand sample by sample.
    """

    rows: Tensor
    positions: Tensor
    packing: Packing
    prompts: tuple[int, ...]
    rests: tuple[int, ...]
    source: Tensor
    targets: Tensor
    of_frame: Tensor
    codes: Tensor
    slow_mask: Tensor
    frame_mask: Tensor

    def states(self, hidden: Tensor) -> Tensor:
        """The states ``[M, dim]`` that predict the sampled slow tokens, from hidden states ``[1, N, dim]``.

        A sample's states are its prompt's last one and those of its rest. Each is selected at most once, so
        that the backward pass adds up in the same order every time.
        """
        pieces = hidden[0].split(self.packing.lengths)
        pairs = zip(self.prompts, self.rests, strict=True)
        states = torch.cat([part for p, r in pairs for part in (pieces[p][-1:], pieces[r])])
        return states.index_select(0, self.source)

    def to(self, device: torch.device) -> PackedSamples:
        """All tensors on ``device``."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **cast(dict[str, Any], moved))


class _Piece(NamedTuple):
    rows: Tensor
    first_position: int
    follows: int | None


def pack(samples: Sequence[Sequence[TurnRows]], config: DualARConfig) -> PackedSamples:
    """Lay out ``samples``, each of one turn or several, for one forward pass; equal prompts are laid once."""
    pieces: list[_Piece] = []
    laid: dict[bytes, int] = {}
    prompts, rests, source = [], [], []
    states = 0
    for sample in samples:
        prompt, key = sample[0].read, prompt_key(sample)
        if key not in laid:
            laid[key] = len(pieces)
            pieces.append(_Piece(prompt, 0, None))
        prompts.append(laid[key])
        rests.append(len(pieces))
        pieces.append(_Piece(_rest(sample, config), prompt.shape[1], laid[key]))
        source.append(_source(sample) + states)
        states += 1 + rest_length(sample)
    turns = [turn for sample in samples for turn in sample]
    return PackedSamples(
        rows=torch.cat([piece.rows for piece in pieces], 1)[None],
        positions=torch.cat([torch.arange(p.rows.shape[1]) + p.first_position for p in pieces]),
        packing=Packing(tuple(p.rows.shape[1] for p in pieces), tuple(p.follows for p in pieces)),
        prompts=tuple(prompts),
        rests=tuple(rests),
        source=torch.cat(source),
        targets=torch.cat([F.pad(t.codes[:, 0], (0, t.ended), value=config.semantic_size) for t in turns]),
        of_frame=torch.cat([torch.arange(len(t.codes) + t.ended) < len(t.codes) for t in turns]),
        codes=torch.cat([turn.codes for turn in turns]),
        slow_mask=_first([sum(len(turn.codes) + turn.ended for turn in sample) for sample in samples]),
        frame_mask=_first([sum(len(turn.codes) for turn in sample) for sample in samples]),
    )


def prompt_key(sample: Sequence[TurnRows]) -> bytes:
    """Equal for samples whose prompts are, row by row."""
    return sample[0].read.numpy().tobytes()


def rest_length(sample: Sequence[TurnRows]) -> int:
    """Positions of a sample after its prompt: its frames, and what it reads before later turns."""
    return sum(len(turn.codes) for turn in sample) + sum(turn.read.shape[1] for turn in sample[1:])


def _rest(sample: Sequence[TurnRows], config: DualARConfig) -> Tensor:
    """Rows ``[1 + K, rest_length]`` after the prompt."""
    parts = [part for turn in sample for part in (turn.read, code_rows(turn.codes.numpy(), config))]
    return torch.cat(parts[1:], 1)


def _source(sample: Sequence[TurnRows]) -> Tensor:
    """Which of the sample's states, its prompt's last one being 0, predict what was sampled."""
    source, at = [], 0
    for number, turn in enumerate(sample):
        at += turn.read.shape[1] if number else 0
        source.append(torch.arange(at, at + len(turn.codes) + turn.ended))
        at += len(turn.codes)
    return torch.cat(source)


def _first(counts: list[int]) -> Tensor:
    """Bool ``[len(counts), max(counts)]``, in each row the first ones True."""
    return torch.arange(max(counts)) < torch.tensor(counts)[:, None]
