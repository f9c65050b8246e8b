"""What the engine asks of its workers, wherever they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from safetensors.torch import load_file
from torch import Tensor


class WorkerCalls:
    """Mixed into vLLM's worker classes; the engine reaches these through ``collective_rpc``."""

    model_runner: Any

    def begin_call(self, requests: int, length: int, frames: int, temperature: float) -> None:
        """See `DualARForVllm.begin`."""
        self.model_runner.get_model().begin(requests, length, frames, temperature)

    def fill_frames(
        self, samples: Sequence[tuple[str, int, int]]
    ) -> tuple[list[list[int]], list[list[float]]]:
        """See `DualARForVllm.fill`."""
        return self.model_runner.get_model().fill(samples)

    def load_parameters(self, source: dict[str, Tensor] | str) -> None:
        """Copy parameters of the published names from memory or a safetensors file, read whole first."""
        weights = load_file(source) if isinstance(source, str) else source
        self.model_runner.get_model().load_weights(weights.items())
