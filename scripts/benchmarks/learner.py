"""Time the learner's step against the same step as a plain TRL-style implementation does it.

One group: 16 samples of 100 to 200 frames after a prompt of 200 tokens, from a random policy in S2's layout
with 8 layers of 512 slow, 4 of 512 fast, 10 codebooks and a vocabulary of 155,776 (fp32, LoRA on both MLPs).
A step is the gradient and AdamW's update. Every variant runs in a process of its own; its peak memory is the
largest resident set, Python, libraries and weights included.

- plain: batches of 8 (TRL's default) padded to the group's longest, the prompt in each sample, logits of the
  whole vocabulary, the fast AR over padded frames too, and a forward pass for the old log-probs before.
- plain, tiled head: the same with TRL 1.16's own head, whose logits come in tiles; it normalises over the
  whole vocabulary.
- N tokens: ours, with trainer.micro_batch_tokens = N; checkpointed: with model.gradient_checkpointing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from trl.kernels import ChunkedLogProbFunction
from trl.trainer.utils import selective_log_softmax_and_entropy

from rl.policy import DualARConfig, DualARForCausalLM
from rl.policy.likelihood import Likelihood, likelihood_of_turns, slow_support
from rl.policy.prompts import code_rows
from rl.policy.turns import TurnRows
from rl.schema import LoraConfig
from rl.trainer.adapter import add_adapter
from rl.trainer.micro_batches import micro_batches
from rl.trainer.objective import ObjectiveSettings, OldLogprobs, dual_ar_loss
from scripts.benchmarks.machine import describe

SIZES = {"dim": 512, "n_head": 8, "n_local_heads": 8, "head_dim": 64, "intermediate_size": 1536}
SAMPLES, PROMPT, FRAMES, BOOKS = 16, 200, (100, 200), 10
PLAIN_BATCH = 8
TRL_COLUMNS = 32768
"""Of the tiles of TRL's own head."""
TEMPERATURE = 1.0
SETTINGS = ObjectiveSettings(
    gamma=1.0,
    beta=0.0,
    epsilon=0.2,
    epsilon_high=0.2,
    normaliser=float(SAMPLES * FRAMES[1]),
    importance_cap=2.0,
)


@dataclass(frozen=True)
class Variant:
    """``tokens``: of our micro-batches; None is the plain implementation."""

    tokens: int | None = None
    tiled_head: bool = False
    checkpointing: bool = False


VARIANTS = {
    "plain": Variant(),
    "plain, tiled head": Variant(tiled_head=True),
    "2048 tokens": Variant(2048),
    "1024 tokens": Variant(1024),
    "512 tokens": Variant(512),
    "2048 tokens, checkpointed": Variant(2048, checkpointing=True),
}
OURS = "512 tokens"
"""The variant that is held against the plain one."""


def make_policy() -> PeftModel:
    """The random policy with an adapter whose update isn't zero."""
    torch.manual_seed(0)
    peft = add_adapter(DualARForCausalLM(make_config()), LoraConfig(), seed=0)
    for name, parameter in peft.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.01)
    return peft


def make_config() -> DualARConfig:
    """S2's vocabulary, codebooks and special ids, and fewer, narrower layers."""
    return DualARConfig(
        text_config={
            **SIZES, "n_layer": 8, "vocab_size": 155_776, "max_seq_len": 1024, "attention_qk_norm": True,
        },
        audio_decoder_config={
            **SIZES, "n_layer": 4, "vocab_size": 4096, "max_seq_len": BOOKS + 1, "text_dim": SIZES["dim"],
            "num_codebooks": BOOKS,
        },
        semantic_start_token_id=151_678, semantic_end_token_id=155_773, eos_token_id=151_645,
    )  # fmt: skip


def make_samples() -> tuple[list[list[TurnRows]], OldLogprobs, Tensor]:
    """A group's samples, log-probs of a sampler that is nearly this policy, and advantages ``[16]``."""
    generator = torch.Generator().manual_seed(1)
    prompt = torch.zeros(1 + BOOKS, PROMPT, dtype=torch.long)
    prompt[0] = torch.randint(0, 151_000, (PROMPT,), generator=generator)
    samples = []
    for frames in torch.linspace(*FRAMES, SAMPLES).round().long().tolist():
        codes = torch.randint(0, 1024, (frames, BOOKS), generator=generator)
        codes[:, 0] = torch.randint(0, 4096, (frames,), generator=generator)
        samples.append([TurnRows(prompt, codes, ended=True)])
    slow = -torch.tensor(4097.0).log() + 0.3 * torch.randn(SAMPLES, FRAMES[1] + 1, generator=generator)
    fast = -torch.tensor(1024.0).log() + 0.3 * torch.randn(SAMPLES, FRAMES[1], BOOKS - 1, generator=generator)
    return samples, OldLogprobs(slow, fast), torch.randn(SAMPLES, generator=generator)


def of_places(old: OldLogprobs, places: Sequence[int] | Tensor, like: Likelihood) -> OldLogprobs:
    """The rows ``places`` of ``old``, cut to the shapes of ``like``."""
    return OldLogprobs(old.slow[places, : like.slow.shape[1]], old.fast[places, : like.fast.shape[1]])


def our_gradient(
    peft: PeftModel, samples: list[list[TurnRows]], sampler: OldLogprobs, advantages: Tensor, tokens: int
) -> float:
    """As `rl.trainer.grpo.DualARTrainer.training_step`; returns the loss."""
    total = 0.0
    for places in micro_batches(samples, tokens):
        new = likelihood_of_turns(peft.get_base_model(), [samples[place] for place in places], TEMPERATURE)
        loss, _ = dual_ar_loss(new, of_places(sampler, places, new), advantages[places], SETTINGS)
        loss.backward()
        total += loss.item()
    return total


def plain_gradient(
    peft: PeftModel, samples: list[list[TurnRows]], sampler: OldLogprobs, advantages: Tensor, tiled_head: bool
) -> float:
    """All old log-probs first, then the gradient, in padded batches; returns the loss."""
    model = peft.get_base_model()
    batches = list(torch.arange(SAMPLES).split(PLAIN_BATCH))
    padded = [_padded([samples[place][0] for place in places], model.config) for places in batches]
    with torch.no_grad():
        old = [plain_likelihood(model, *batch, tiled_head) for batch in padded]
    total = 0.0
    for places, batch, before in zip(batches, padded, old, strict=True):
        new = plain_likelihood(model, *batch, tiled_head)
        start = OldLogprobs(before.slow, before.fast)
        theirs = of_places(sampler, places, new)
        loss, _ = dual_ar_loss(new, theirs, advantages[places], SETTINGS, start=start)
        loss.backward()
        total += loss.item()
    return total


def _padded(turns: list[TurnRows], config: DualARConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Rows ``[B, 1 + K, P + T]``, codes ``[B, T, K]`` and their mask ``[B, T]``, T the whole group's longest:
    TRL pads before it splits."""
    longest = FRAMES[1]
    rows = torch.zeros(len(turns), 1 + BOOKS, PROMPT + longest, dtype=torch.long)
    codes = torch.zeros(len(turns), longest, BOOKS, dtype=torch.long)
    mask = torch.zeros(len(turns), longest, dtype=torch.bool)
    for b, turn in enumerate(turns):
        frames = len(turn.codes)
        rows[b, :, :PROMPT] = turn.read
        rows[b, :, PROMPT : PROMPT + frames] = code_rows(turn.codes.numpy(), config)
        codes[b, :frames], mask[b, :frames] = turn.codes, True
    return rows, codes, mask


def plain_likelihood(
    model: DualARForCausalLM, rows: Tensor, codes: Tensor, mask: Tensor, tiled_head: bool
) -> Likelihood:
    """Log-probs of every position, padded ones too."""
    config = model.config
    hidden = model(rows).hidden[:, PROMPT - 1 :]
    ends = torch.full_like(codes[:, :1, 0], int(config.eos_token_id))
    tokens = torch.cat([codes[..., 0] + config.semantic_start_token_id, ends], 1)
    last = torch.arange(tokens.shape[1]) == mask.sum(1, keepdim=True)
    tokens = tokens.masked_fill(last, int(config.eos_token_id))
    fast_hidden = model.fast_hidden(hidden[:, :-1].flatten(0, 1), codes.flatten(0, 1))
    fast_hidden, chosen = fast_hidden.unflatten(0, mask.shape).flatten(1, 2), codes[..., 1:].flatten(1)
    heads = model.slow_head(), model.audio_decoder.output.weight
    if tiled_head:
        slow, slow_entropy = _tiled(hidden, heads[0], tokens)
        fast, fast_entropy = _tiled(fast_hidden, heads[1], chosen)
    else:
        allowed = slow_support(config), torch.arange(config.residual_codebook_size)
        slow, slow_entropy = _from_all_logits(hidden, heads[0], tokens, allowed[0])
        fast, fast_entropy = _from_all_logits(fast_hidden, heads[1], chosen, allowed[1])
    slow_mask = torch.cat([mask, torch.zeros_like(mask[:, :1])], 1) | last
    shape = *mask.shape, BOOKS - 1
    return Likelihood(slow, slow_entropy, slow_mask, fast.view(shape), fast_entropy.view(shape), mask)


def _from_all_logits(hidden: Tensor, head: Tensor, chosen: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    logits = hidden @ head.T
    others = torch.ones(len(head), dtype=torch.bool)
    others[allowed] = False
    logits.masked_fill_(others, -1e4)  # so that the loss is ours; in place, to cost the baseline little
    return selective_log_softmax_and_entropy(logits, chosen, entropy_requires_grad=False)


def _tiled(hidden: Tensor, head: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    states, places = hidden.flatten(0, 1), chosen.flatten()
    logprobs, entropy, *_ = ChunkedLogProbFunction.apply(
        states, head, None, places, TEMPERATURE, TRL_COLUMNS, None, 1.0, ("entropy",)
    )
    return logprobs.view(chosen.shape), entropy.view(chosen.shape)


def measure(variant: Variant, repeats: int) -> dict[str, Any]:
    """Median seconds of a step and its processor time, peak memory, the first step's loss and gradient norm.

    Memory is in MiB. On a machine that others use, too, the processor time says more than the seconds.
    """
    peft = make_policy().train()
    samples, sampler, advantages = make_samples()
    trained = [parameter for parameter in peft.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5)
    if variant.checkpointing:
        peft.get_base_model().activation_checkpointing_enable()
    before = _peak_mib()
    seconds, cpu_seconds, losses, norms = [], [], [], []
    for _ in range(repeats):
        start, cpu_start = time.perf_counter(), time.process_time()
        if variant.tokens is None:
            losses.append(plain_gradient(peft, samples, sampler, advantages, variant.tiled_head))
        else:
            losses.append(our_gradient(peft, samples, sampler, advantages, variant.tokens))
        norms.append(float(torch.nn.utils.clip_grad_norm_(trained, 1.0)))
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    peak = _peak_mib()
    return {
        "seconds": statistics.median(seconds), "cpu_s": statistics.median(cpu_seconds), "peak_mib": peak,
        "step_mib": peak - before, "loss": losses[0], "grad_norm": norms[0],
    }  # fmt: skip


def _peak_mib() -> float:
    """Not `getrusage`'s figure: that begins with the peak of the process that started this one."""
    [line] = (line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return int(line.split()[1]) / 1024


def least_flops() -> float:
    """Of a step's matrix products: each position once, forward, and back to the frozen weights' inputs."""
    with torch.device("meta"):
        model = DualARForCausalLM(make_config())
    fast = model.audio_decoder

    def count(layers: torch.nn.Module) -> int:
        return sum(p.numel() for p in layers.parameters() if p.dim() == 2)

    frames = sum(len(turns[0].codes) for turns in make_samples()[0])
    slow = (PROMPT + frames) * count(model.text_model.model.layers)
    heads = SIZES["dim"] * ((frames + SAMPLES) * 4097 + frames * (BOOKS - 1) * 1024)
    return 2 * 2.0 * (slow + frames * BOOKS * count(fast.layers) + heads)


def main(argv: Sequence[str]) -> None:
    """Run every variant in its own process, and compare."""
    parser = argparse.ArgumentParser(
        prog="bench.py learner", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, help="steps of each variant; the median counts")
    parser.add_argument("--only", choices=VARIANTS, help="run this variant here, and print what it took")
    arguments = parser.parse_args(argv)
    if arguments.only:
        print(json.dumps(measure(VARIANTS[arguments.only], arguments.repeats)))
        return
    machine = describe()
    print("{processor}, {cores} cores, {threads} threads, torch {torch}".format_map(machine))
    print("matmul {matmul_gflops} GFLOP/s, copy {copy_gb_per_s} GB/s".format_map(machine))
    frames = sum(len(turns[0].codes) for turns in make_samples()[0])
    flops = least_flops()
    bench = Path(__file__).parent.parent / "bench.py"
    results: dict[str, dict[str, Any]] = {}
    for name in VARIANTS:
        command = [sys.executable, str(bench), "learner", "--repeats", str(arguments.repeats), "--only", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        result = json.loads(done.stdout.splitlines()[-1])
        result["frames_per_s"] = frames / result["seconds"]
        result["matmul_share"] = flops / result["seconds"] / machine["matmul_gflops"] / 1e9
        results[name] = result
        print(
            f"{name:26}{result['seconds']:7.1f} s ({result['cpu_s']:.1f} of the processor's)"
            f"{result['frames_per_s']:8.1f} frames/s{result['peak_mib']:8.0f} MiB "
            f"({result['step_mib']:.0f} above the weights), {result['matmul_share']:.0%} of the matmul bound",
            flush=True,
        )
    plain, ours = results["plain"], results[OURS]
    summary = {
        "speed_ratio": plain["seconds"] / ours["seconds"],
        "cpu_ratio": plain["cpu_s"] / ours["cpu_s"],
        "memory_share": ours["peak_mib"] / plain["peak_mib"],
        "loss_difference": abs(ours["loss"] - plain["loss"]),
        "grad_norm_difference": abs(ours["grad_norm"] - plain["grad_norm"]) / plain["grad_norm"],
    }
    text = (
        "{speed_ratio:.2f} x as fast ({cpu_ratio:.2f} by processor time), {memory_share:.2f} of the memory, "
        "loss off by {loss_difference:.1e}, gradient by {grad_norm_difference:.1e}"
    )
    print(f"{OURS} against plain:", text.format_map(summary))
    print(json.dumps({"machine": machine, "variants": results, **summary}))
