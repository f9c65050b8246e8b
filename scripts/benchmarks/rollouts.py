"""How fast the engines sample: vllm, torch in batches, and a loop over single samples, on the same weights.

A random policy (8 layers of 512 slow, 4 of 512 fast, 10 codebooks of 1024, fp32), 8 prompts x 16 samples.
The loop has a KV cache and a batch of 1, as the published implementation samples; it takes one sample of
each prompt. Times include the prompts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from rl.policy import DualARConfig, DualARForCausalLM
from rl.policy.loading import EMBEDDED, load_policy
from rollouts.engine import Engine
from rollouts.torch_engine import TorchEngine
from rollouts.types import Prompt, SamplingParams
from rollouts.vllm.engine import VllmEngine, VllmOptions
from scripts.benchmarks.machine import matmul_peak

SIZES = {"dim": 512, "n_head": 8, "n_local_heads": 8, "head_dim": 64, "intermediate_size": 1536}
PROMPTS = [Prompt(str(i), f"Sentence number {i}, of about the usual length.", "") for i in range(8)]


def make_checkpoint(folder: Path) -> Path:
    """The random policy, with the embedded voice's tokenizer."""
    raw = json.loads((EMBEDDED / "policy" / "config.json").read_text())
    raw["text_config"] |= {**SIZES, "n_layer": 8}
    raw["audio_decoder_config"] |= {
        **SIZES, "n_layer": 4, "num_codebooks": 10, "max_seq_len": 11, "text_dim": 512,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(raw))
    torch.manual_seed(0)
    DualARForCausalLM(DualARConfig.from_pretrained(folder)).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EMBEDDED / "policy" / name, folder / name)
    return folder


def measure(engine: Engine, samples: int, frames: int) -> tuple[float, float]:
    """Frames per second of one call, and its seconds."""
    start = time.perf_counter()
    rollouts = engine.generate(PROMPTS, samples, SamplingParams(max_frames=frames), seed=1)
    seconds = time.perf_counter() - start
    return sum(len(rollout.codes) for rollout in rollouts) / seconds, seconds


class Stopwatch:
    """Sums the time spent in a module's forward."""

    def __init__(self, module: nn.Module) -> None:
        self.seconds = self.started = 0.0
        module.register_forward_pre_hook(self._start)
        module.register_forward_hook(self._stop)

    def _start(self, *_: object) -> None:
        self.started = time.perf_counter()

    def _stop(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self.started


def flops_per_frame(model: DualARForCausalLM) -> float:
    """Of the matrix products with weights: one slow position and its head, K fast positions, K - 1 heads."""
    config, count = model.config, lambda layers: sum(p.numel() for p in layers.parameters() if p.dim() == 2)
    fast, books = model.audio_decoder, config.num_codebooks
    slow_head = (config.semantic_size + 1) * config.text_config.dim
    weights = count(model.text_model.model.layers) + slow_head
    weights += books * count(fast.layers) + (books - 1) * fast.output.weight.numel()
    return 2.0 * weights


def main(argv: Sequence[str]) -> None:
    """Run the three samplers and print what they reach."""
    parser = argparse.ArgumentParser(
        prog="bench.py rollouts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=64, help="of each sample")
    parser.add_argument("--compiled", action="store_true", help="compile vllm's slow AR")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(Path(folder))
        model, tokenizer = load_policy(folder)
        vllm = VllmEngine(checkpoint, tokenizer, options=VllmOptions(eager=not args.compiled))
        measure(vllm, 16, 2)  # warms up
        vllm.load_weights({})  # empties the prefix cache
        [fast] = vllm.llm.apply_model(lambda loaded: loaded.audio_decoder)
        watch = Stopwatch(fast)
        speeds = {}
        speeds["vllm"], seconds = measure(vllm, 16, args.frames)
        fast_share = watch.seconds / seconds
        cached = vllm.stats.cached_tokens / vllm.stats.prompt_tokens
        vllm.close()
    for name, batch, samples in (("torch", 128, 16), ("batch-1 loop", 1, 1)):
        engine = TorchEngine(model, tokenizer, batch)
        measure(engine, samples, 2)
        speeds[name], _ = measure(engine, samples, args.frames)
    share = flops_per_frame(model) * speeds["vllm"] / matmul_peak()
    for name, speed in speeds.items():
        print(f"{name:14}{speed:9.1f} frames/s{speed / speeds['batch-1 loop']:9.1f} x the loop")
    print(f"vllm: {fast_share:.0%} of the time in the fast AR, {share:.0%} of the machine's matmul peak,")
    print(f"{cached:.0%} of the prompt tokens from the prefix cache; {torch.get_num_threads()} threads")
    result = {
        "frames_per_s": {name: round(speed, 2) for name, speed in speeds.items()},
        "vllm_over_loop": round(speeds["vllm"] / speeds["batch-1 loop"], 2),
        "vllm_over_torch": round(speeds["vllm"] / speeds["torch"], 2),
        "fast_ar_share": round(fast_share, 3),
        "matmul_peak_share": round(share, 3),
        "prefix_cache_share": round(cached, 3),
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(result))
