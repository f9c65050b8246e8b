"""From what was found to what an estimate is made from."""

from __future__ import annotations

from rl.arithmetic.memory import CodecShape, Plan, s2_codec_shape
from rl.arithmetic.shapes import published_s2
from rl.codec.s2_config import S2CodecConfig
from rl.doctor.files import Policy, longest_prompt
from rl.parts import uses_vllm
from rl.schema import RunConfig
from rollouts.turns import TurnRule, cut_into_parts
from rollouts.types import Prompt

S2_CODEC_PARAMETERS = 391_430_530
"""Of the published codec.pth."""
PROMPT_TOKENS = 128
"""Of a prompt that can't be read, round."""


def plan_of(
    run: RunConfig, policy: Policy | None, codec: CodecShape | None, prompts: list[Prompt], gpu: bool
) -> tuple[Plan | None, str]:
    """What to estimate, and in words what of it is assumed.

    A policy that isn't there is taken to be the published S2 where the configuration reads prompts as S2
    does; else there is nothing to estimate. Raises `PromptError` for a prompt that can't be said as it is to
    be.
    """
    engine = "vllm" if uses_vllm(run.rollouts) else "torch"
    parts = _parts(run, prompts)
    if policy is None and run.model.prompt_format == "fish_s2":
        shape = s2_codec_shape(S2CodecConfig(), S2_CODEC_PARAMETERS)
        return Plan(run, published_s2(), shape, PROMPT_TOKENS, engine, gpu, parts), "were it the published S2"
    if policy is None or codec is None:
        return None, ""
    if not prompts:
        words = f"prompts of {PROMPT_TOKENS} tokens"
        return Plan(run, policy.config, codec, PROMPT_TOKENS, engine, gpu, parts), words
    tokens = longest_prompt(prompts, policy, codec.sample_rate / codec.hop)
    return Plan(run, policy.config, codec, tokens, engine, gpu, parts), ""


def _parts(run: RunConfig, prompts: list[Prompt]) -> int:
    """In how many parts the prompt with the most is said."""
    if run.rollouts.turns_at_once is None:
        return 1
    rule = TurnRule(run.rollouts.turns_at_once, run.rollouts.bytes_at_once)
    return max((len(cut_into_parts(prompt, rule)) for prompt in prompts), default=1)
