"""One packed forward over many samples, a prompt read once: exact, and without a row of logits per token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import PeftModel
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rl.policy import DualARForCausalLM
from rl.policy.likelihood import LOGITS_AT_ONCE, likelihood_of_turns, slow_support
from rl.policy.loading import load_policy
from rl.policy.packing import pack
from rl.policy.prompts import code_rows
from rl.policy.turns import TurnRows, turns_of
from rl.schema import LoraConfig
from rl.trainer.adapter import add_adapter
from rl.trainer.micro_batches import micro_batches
from rollouts.types import Prompt, Rollout, Turn
from tests.step_audio import make_policy

GOLDEN = Path(__file__).parent / "fixtures" / "s2_tiny"
ROWS_AT_ONCE = 4096
CODES = np.random.Generator(np.random.Philox(key=1)).integers(0, 32, (9, 10))
ONE, OTHER = Prompt("one", "Hello.", ""), Prompt("other", "<|speaker:0|>A.<|speaker:1|>B.", "")
TURNS = (Turn("A.", 3, -1.0), Turn("B.", 2, None))


def rollout(prompt: Prompt, frames: int, end: float | None, turns: tuple[Turn, ...] = ()) -> Rollout:
    return Rollout(
        prompt=prompt, sample_index=0, seed=0, codes=CODES[-frames:] if frames else CODES[:0],
        logprobs=np.zeros((frames, 10), np.float32), end_logprob=end, finish_reason="eos", policy_version=0,
        turns=turns,
    )  # fmt: skip


@pytest.fixture(params=["all", "first"])
def adapted(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[PeftModel, list[list[TurnRows]]]:
    """A policy with an adapter that does something, and samples: two groups, some ended, some cut, one empty,
    two of a conversation."""
    folder = GOLDEN if request.param == "all" else make_policy(tmp_path, books=10, size=32)
    model, tokenizer = load_policy(str(folder))
    samples = [
        rollout(ONE, 4, -1.0), rollout(ONE, 0, -1.0), rollout(OTHER, 5, None, TURNS), rollout(ONE, 9, None),
        rollout(OTHER, 5, None, TURNS), rollout(OTHER, 2, -1.0),
    ]  # fmt: skip
    turns = [turns_of(sample, tokenizer, model.config) for sample in samples]
    peft = add_adapter(model, LoraConfig(r=4, alpha=8), seed=0)
    torch.manual_seed(0)
    for name, parameter in peft.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.1)
    return peft, turns


def plainly(model: DualARForCausalLM, turns: Sequence[TurnRows], temperature: float) -> tuple[Tensor, Tensor]:
    """Log-softmaxes ``[tokens, V]`` and ``[T, K - 1, V]`` of one sample by itself, from all logits."""
    config = model.config
    parts = [part for turn in turns for part in (turn.read, code_rows(turn.codes.numpy(), config))]
    hidden = model(torch.cat(parts, 1)[None]).hidden[0]
    slow, fast, at = [], [], 0
    for turn in turns:
        at += turn.read.shape[1]
        states = hidden[at - 1 : at - 1 + len(turn.codes) + turn.ended]
        slow.append(model.slow_logits(states)[:, slow_support(config)])
        fast.append(model.fast_logits(states[: len(turn.codes)], turn.codes))
        at += len(turn.codes)
    allowed = torch.cat(fast)[..., : config.residual_codebook_size]
    return (torch.cat(slow) / temperature).log_softmax(-1), (allowed / temperature).log_softmax(-1)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_together_is_as_one_by_one(
    adapted: tuple[PeftModel, list[list[TurnRows]]], checkpointing: bool
) -> None:
    """Log-probs, entropies and gradients of a weighted sum of both, within 1e-5 in fp32 (gradients: of each
    weight's largest)."""
    peft, samples = adapted
    peft.train()
    model = peft.get_base_model()
    generator = torch.Generator().manual_seed(0)
    expected, sums = [], []
    for turns in samples:
        results = []
        codes = torch.cat([turn.codes for turn in turns])
        ends = [torch.tensor([model.config.semantic_size] * turn.ended, dtype=torch.long) for turn in turns]
        tokens = torch.cat(
            [part for turn, end in zip(turns, ends, strict=True) for part in (turn.codes[:, 0], end)]
        )
        for logprobs, chosen in zip(plainly(model, turns, 0.7), (tokens, codes[:, 1:]), strict=True):
            picked = logprobs.gather(-1, chosen[..., None])[..., 0]
            entropy = -(logprobs.exp() * logprobs).sum(-1)
            results.append((picked, entropy, torch.randn(picked.shape, generator=generator)))
        expected.append(results)
        sums.append(sum(((picked + 0.1 * entropy) * weight).sum() for picked, entropy, weight in results))
    torch.stack(sums).sum().backward()
    theirs = gradients(peft)
    peft.zero_grad()

    if checkpointing:
        model.activation_checkpointing_enable()
    mine = likelihood_of_turns(model, samples, 0.7)
    total = torch.zeros(())
    for b, results in enumerate(expected):
        for ar, mask, (picked, entropy, weight) in zip(
            ("slow", "fast"), (mine.slow_mask[b], mine.frame_mask[b]), results, strict=True
        ):
            ours = getattr(mine, ar)[b][mask], getattr(mine, f"{ar}_entropy")[b][mask]
            torch.testing.assert_close(ours, (picked, entropy), atol=1e-5, rtol=0)
            total = total + ((ours[0] + 0.1 * ours[1]) * weight).sum()
    total.backward()
    ours = gradients(peft)
    assert ours.keys() == theirs.keys()
    assert all("lora_" in name for name in ours), "no frozen weight has a gradient"
    for name, gradient in theirs.items():
        largest = float(gradient.abs().max())
        assert largest > 0, name
        torch.testing.assert_close(ours[name], gradient, atol=1e-5 * largest, rtol=1e-5)


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_an_empty_sample_can_be_alone(adapted: tuple[PeftModel, list[list[TurnRows]]]) -> None:
    """As it is where a micro-batch has room for one sample."""
    peft, samples = adapted
    model = peft.get_base_model()
    new = likelihood_of_turns(model, [samples[1]], 0.7)
    (new.slow.sum() + new.fast.sum()).backward()
    assert (new.slow.shape, new.fast.shape) == ((1, 1), (1, 0, 9))
    slow, _ = plainly(model, samples[1], 0.7)
    torch.testing.assert_close(new.slow[0], slow[:, -1], atol=1e-5, rtol=0)


def test_a_prompt_is_laid_once(adapted: tuple[PeftModel, list[list[TurnRows]]]) -> None:
    peft, samples = adapted
    packed = pack(samples, peft.get_base_model().config)
    prompts = {turns[0].read.shape[1] for turns in samples}
    rests = [sum(len(turn.codes) for turn in turns) for turns in samples]
    between = sum(turn.read.shape[1] for turns in samples for turn in turns[1:])
    assert len(prompts) == 3, "of a conversation the first turn alone is the prompt"
    assert packed.rows.shape[2] == sum(prompts) + sum(rests) + between


class Largest(TorchDispatchMode):
    """Remembers how many elements the largest tensor has that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.elements = max([self.elements, *sizes])
        return out


@pytest.mark.parametrize("frames", [150, 300])
def test_logits_do_not_grow_with_the_frames(policy: Path, frames: int) -> None:
    """16 samples of so many frames have 3 x 16 x ``frames`` fast codes out of 1024."""
    model, tokenizer = load_policy(str(policy))
    peft = add_adapter(model, LoraConfig(r=4, alpha=8), seed=0)
    codes = np.random.Generator(np.random.Philox(key=2)).integers(0, 1024, (frames, 4))
    one = Rollout(
        prompt=ONE, sample_index=0, seed=0, codes=codes, logprobs=np.zeros((frames, 4), np.float32),
        end_logprob=-1.0, finish_reason="eos", policy_version=0,
    )  # fmt: skip
    samples = [turns_of(one, tokenizer, model.config)] * 16
    assert 3 * 16 * frames > ROWS_AT_ONCE
    with Largest() as largest:
        new = likelihood_of_turns(peft.get_base_model(), samples, 1.0)
        (new.slow.sum() + new.fast.sum()).backward()
    assert largest.elements == ROWS_AT_ONCE * LOGITS_AT_ONCE


@given(
    samples=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), min_size=1, max_size=20),
    tokens=st.integers(1, 60),
)
def test_micro_batches_hold_what_the_budget_allows(samples: list[tuple[int, int]], tokens: int) -> None:
    """``samples``: which prompt, of 5, 6 or 7 positions, and how many frames."""
    turns = [[TurnRows(torch.full((3, 5 + p), p), torch.zeros(t, 2).long(), True)] for p, t in samples]
    batches = micro_batches(turns, tokens)
    assert [place for batch in batches for place in batch] == list(range(len(samples)))

    def positions(batch: list[int]) -> int:
        return sum(5 + p for p in {samples[i][0] for i in batch}) + sum(samples[i][1] for i in batch)

    for batch, after in zip(batches, [*batches[1:], None], strict=True):
        assert len(batch) == 1 or positions(batch) <= tokens
        assert after is None or positions([*batch, after[0]]) > tokens
