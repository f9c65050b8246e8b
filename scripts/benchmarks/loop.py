"""Sampling as a plain implementation does it, one sample at a time, and the cost of its products alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from rl.policy.likelihood import fast_log_softmax, slow_log_softmax, slow_support
from rl.policy.modeling import DualARForCausalLM, FastAR, SlowAR
from rollouts.torch_engine import draw


@torch.inference_mode()
def sample(model: DualARForCausalLM, prompt: Tensor, noise: Tensor) -> Tensor:
    """Codes ``[T, K]`` after a prompt ``[1 + K, P]``, one frame for each row of ``noise`` ``[frames, K]``.

    A batch of 1 and caches that grow, as the published implementation samples, without its steps between the
    device and Python.
    """
    config, fast = model.config, model.audio_decoder
    out = model(prompt[None])
    sampled = list[Tensor]()
    for uniform in noise:
        hidden, past = out.hidden[:, -1], out.past
        semantic, _ = draw(slow_log_softmax(model, hidden, 1.0), uniform[None, 0])
        if semantic == config.semantic_size:
            break
        codes = [semantic]
        inputs, cache = torch.stack([fast.first(hidden), fast.embeddings(semantic)], 1), None
        for k in range(1, config.num_codebooks):
            positions = torch.arange(k + 1 - inputs.shape[1], k + 1)
            states, cache = fast.run(inputs, positions, past=cache)
            logprobs = fast_log_softmax(fast.output(states[:, -1]), config, 1.0)
            codes.append(draw(logprobs, uniform[None, k])[0])
            inputs = fast.embeddings(codes[-1])[:, None]
        sampled.append(torch.stack(codes, 1))
        step = torch.cat([semantic[:, None] + config.semantic_start_token_id, sampled[-1]], 1)
        position = torch.tensor([prompt.shape[1] + len(sampled) - 1])
        out = model(step[..., None], position, past=past)
    return torch.cat(sampled) if sampled else prompt.new_zeros(0, config.num_codebooks)


class Products:
    """The products with weights of one step over ``rows`` samples, in the model's order, and nothing else.

    A step: one position of the slow AR, and the rows of its head that may be sampled; two positions of the
    fast AR, then one at a time, each time with the head.
    """

    def __init__(self, model: DualARForCausalLM, rows: int) -> None:
        self.model, self.rows = model, rows
        self.head = model.slow_head(slow_support(model.config))
        weights = [self.head, *(p for p in model.parameters() if p.dim() == 2)]
        self.inputs = {width: torch.randn(2 * rows, width) for width in {w.shape[1] for w in weights}}

    @torch.inference_mode()
    def repeat(self, times: int) -> int:
        """Do so many steps; the frames they would have made."""
        for _ in range(times):
            self._step()
        return times * self.rows

    def flops(self) -> float:
        """Of a step."""
        with FlopCounterMode(display=False) as counter:
            self.repeat(1)
        return float(counter.get_total_flops())

    def _step(self) -> None:
        fast = self.model.audio_decoder
        self._layers(self.model.text_model.model, self.rows)
        self._product(self.head, self.rows)
        for k in range(1, self.model.config.num_codebooks):
            self._layers(fast, self.rows * (2 if k == 1 else 1))
            self._product(fast.output.weight, self.rows)

    def _layers(self, stack: SlowAR | FastAR, rows: int) -> None:
        for layer in stack.layers:
            attention, feed_forward = layer.attention, layer.feed_forward
            for part in (attention.wqkv, attention.wo, feed_forward.w1, feed_forward.w3, feed_forward.w2):
                self._product(part.weight, rows)

    def _product(self, weight: Tensor, rows: int) -> None:
        F.linear(self.inputs[weight.shape[1]][:rows], weight)
