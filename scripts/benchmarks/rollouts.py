"""How fast the engines sample: vllm, torch in batches, and a loop over single samples, on the same weights.

A random policy (8 layers of 512 slow, 4 of 512 fast, 10 codebooks of 1024, fp32), 16 samples of each prompt.
Times include the prompts; the three take turns. What they can reach is the time of the model's products with
its weights alone: at a batch of 128 that is arithmetic, at a batch of 1 reading the weights.

How full the batch stays when samples differ in length is counted with the embedded voice.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from rl.policy import DualARConfig, DualARForCausalLM
from rl.policy.loading import EMBEDDED, load_policy
from rl.policy.prompts import prompt_rows
from rollouts.engine import Engine, StreamingEngine
from rollouts.noise import uniforms
from rollouts.torch_engine import TorchEngine
from rollouts.types import Prompt, SamplingParams
from rollouts.vllm.engine import VllmEngine, VllmOptions
from scripts.benchmarks.loop import Products, sample
from scripts.benchmarks.machine import describe

SIZES = {"dim": 512, "n_head": 8, "n_local_heads": 8, "head_dim": 64, "intermediate_size": 1536}
SAMPLES, BATCH = 16, 128
LOOP_PROMPTS = 2
"""How many the loop says, once each: a batch of 1 is as fast with any number."""


@dataclass(frozen=True)
class Speed:
    """Frames per second, of the clock and of the processor's time."""

    wall: float
    cpu: float


def make_prompts(count: int) -> list[Prompt]:
    """Different sentences of about the same length."""
    return [Prompt(str(i), f"Sentence number {i}, of about the usual length.", "") for i in range(count)]


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


def measure(run: Callable[[], int]) -> Speed:
    """Of a call that returns how many frames it made."""
    wall, cpu = time.perf_counter(), time.process_time()
    frames = run()
    return Speed(frames / (time.perf_counter() - wall), frames / (time.process_time() - cpu))


def middle(speeds: Sequence[Speed]) -> Speed:
    """Medians."""
    return Speed(median(speed.wall for speed in speeds), median(speed.cpu for speed in speeds))


class Samplers:
    """The engines and the loop on one policy."""

    def __init__(self, checkpoint: Path, compiled: bool) -> None:
        self.model, self.tokenizer = load_policy(str(checkpoint))
        self.torch = TorchEngine(self.model, self.tokenizer, BATCH)
        self.vllm = VllmEngine(checkpoint, self.tokenizer, options=VllmOptions(BATCH, eager=not compiled))

    def run_torch(self, prompts: Sequence[Prompt], frames: int) -> int:
        """Frames that the torch engine made."""
        return _frames_of(self.torch, prompts, frames)

    def run_vllm(self, prompts: Sequence[Prompt], frames: int) -> int:
        """Frames that vLLM made, with nothing in its prefix cache at first."""
        self.vllm.load_weights({})
        return _frames_of(self.vllm, prompts, frames)

    def run_loop(self, prompts: Sequence[Prompt], frames: int) -> int:
        """Frames that the loop made."""
        made = 0
        for prompt in prompts[:LOOP_PROMPTS]:
            rows = prompt_rows(prompt, self.tokenizer, self.model.config)
            noise = torch.from_numpy(uniforms(1, prompt.id, 0, frames, self.model.config.num_codebooks))
            made += len(sample(self.model, rows, noise))
        return made


def _frames_of(engine: Engine, prompts: Sequence[Prompt], frames: int) -> int:
    rollouts = engine.generate(prompts, SAMPLES, SamplingParams(max_frames=frames), seed=1)
    return sum(len(rollout.codes) for rollout in rollouts)


def compare(samplers: Samplers, prompts: Sequence[Prompt], frames: int, repeats: int) -> dict[str, Speed]:
    """Medians of the engines, the loop, and the products alone at the engines' and at the loop's batch."""
    many, single = Products(samplers.model, BATCH), Products(samplers.model, 1)
    runs = {
        "vllm": lambda: samplers.run_vllm(prompts, frames),
        "torch": lambda: samplers.run_torch(prompts, frames),
        "loop": lambda: samplers.run_loop(prompts, frames),
        "products, batch": lambda: many.repeat(4),
        "products, loop": lambda: single.repeat(32),
    }
    speeds: dict[str, list[Speed]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            speeds[name].append(measure(run))
    return {name: middle(found) for name, found in speeds.items()}


def report(prompts: int, speeds: dict[str, Speed]) -> None:
    """Print a table of one comparison: by the clock, then by the processor's time."""
    print(f"\n{prompts} prompts x {SAMPLES}{'':8}frames/s  x loop  of bound{'':6}per cpu s  x loop  of bound")
    for name, speed in speeds.items():
        bound = speeds["products, loop" if name == "loop" else "products, batch"]
        cells = [
            f"{own:13.1f}{own / loop:8.1f}{own / most:10.0%}"
            for own, loop, most in (
                (speed.wall, speeds["loop"].wall, bound.wall),
                (speed.cpu, speeds["loop"].cpu, bound.cpu),
            )
        ]
        print(f"{name:16}{'  '.join(cells)}")
    many, single = speeds["products, batch"], speeds["products, loop"]
    print(
        f"with products alone a batch of {BATCH} would be {many.wall / single.wall:.1f} x a batch of 1 "
        f"({many.cpu / single.cpu:.1f} by processor time)"
    )


def occupancy(engine: StreamingEngine, fast: Any, books: int, size: int) -> float:
    """The mean share of the batch's rows that are in use, over the steps in which a sample waits.

    ``fast``: the engine's fast AR, whose head is called ``books - 1`` times a step.
    """
    prompts = [Prompt(str(i), " ".join(["One more word."] * (1 + i % 4)), "") for i in range(12)]
    rows, ends = list[int](), list[int]()
    hook = fast.output.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    for _ in engine.stream(prompts, SAMPLES, SamplingParams(max_frames=96), seed=1):
        ends.append(len(rows) // (books - 1))
    hook.remove()
    steps = rows[:: books - 1]
    unfinished = [sum(end > step for end in ends) for step in range(len(steps))]
    full = [used for used, left in zip(steps, unfinished, strict=True) if left > used]
    return sum(full) / len(full) / size


def occupancies(size: int = 32) -> dict[str, float]:
    """Of both engines, sampling the embedded voice at a batch of ``size``."""
    folder = EMBEDDED / "policy"
    model, tokenizer = load_policy(str(folder))
    books = model.config.num_codebooks
    found = {"torch": occupancy(TorchEngine(model, tokenizer, size), model.audio_decoder, books, size)}
    vllm = VllmEngine(folder, tokenizer, options=VllmOptions(size))
    [fast] = vllm.llm.apply_model(lambda loaded: loaded.audio_decoder)
    found["vllm"] = occupancy(vllm, fast, books, size)
    vllm.close()
    return found


def main(argv: Sequence[str]) -> None:
    """Run all samplers and print what they reach."""
    parser = argparse.ArgumentParser(
        prog="bench.py rollouts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=64, help="of each sample")
    parser.add_argument("--prompts", type=int, nargs="+", default=[8], help="how many, one table each")
    parser.add_argument("--repeats", type=int, default=3, help="of each sampler; the median counts")
    parser.add_argument("--compiled", action="store_true", help="compile vllm's slow AR")
    args = parser.parse_args(argv)
    machine = describe()
    print("{processor}, {cores} cores, {threads} threads, torch {torch}".format_map(machine))
    print("matmul {matmul_gflops} GFLOP/s, copy {copy_gb_per_s} GB/s".format_map(machine))
    with tempfile.TemporaryDirectory() as folder:
        samplers = Samplers(make_checkpoint(Path(folder)), args.compiled)
        for warm_up in (samplers.run_vllm, samplers.run_torch, samplers.run_loop):
            warm_up(make_prompts(8), 2)
        tables = {}
        for count in args.prompts:
            tables[count] = compare(samplers, make_prompts(count), args.frames, args.repeats)
            report(count, tables[count])
        samplers.vllm.close()
    flops = tables[args.prompts[0]]["products, batch"].wall * Products(samplers.model, 1).flops()
    full = occupancies()
    print(f"\nproducts at {BATCH} rows: {flops / machine['matmul_gflops'] / 1e9:.0%} of the matmul peak")
    print("rows in use while samples wait:", ", ".join(f"{name} {share:.1%}" for name, share in full.items()))
    speeds = {
        count: {name: asdict(speed) for name, speed in table.items()} for count, table in tables.items()
    }
    print(json.dumps({"machine": machine, "frames_per_s": speeds, "rows_in_use": full}))
