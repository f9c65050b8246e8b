"""Which models are kin by name, and who is warned."""

from __future__ import annotations

import pytest

from rewards.catalogue import build_node
from rewards.endpoints.families import families, shared_bias, warn_of_shared_bias
from rewards.node import Node


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Qwen/Qwen3-Omni-30B-A3B-Captioner", {"qwen"}),
        ("fish_qwen3_omni", {"qwen"}),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", {"deepseek", "qwen"}),
        ("mistralai/Voxtral-Small-24B-2507", {"mistral"}),
        ("mistralai/Mixtral-8x22B", {"mistral"}),
        ("openai/gpt-oss-120b", {"gpt"}),
        ("gpt-4o-audio-preview", {"gpt"}),
        ("stepfun-ai/Step-Audio-2-mini", {"step"}),
        ("meta-llama/Llama-3.3-70B", {"llama"}),
        ("tiny", set()),
        ("judge", set()),
    ],
)
def test_families(name: str, known: set[str]) -> None:
    assert families(name) == known


def nodes(captioner: str, judge: str) -> dict[str, Node]:
    server = {"base_url": "http://127.0.0.1:9/v1"}
    return {
        "described": build_node({"type": "caption_endpoint", "model": captioner, **server}, "x"),
        "graded": build_node(
            {"type": "judge_endpoint", "model": judge, "caption": "described", **server}, "x"
        ),
        "sanity": build_node({"type": "sanity"}, "x"),
    }


def test_kin_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    policy = ["checkpoints/s2", "fish_qwen3_omni"]
    assert shared_bias(nodes("voxtral-mini", "gpt-oss-20b"), policy) == []
    (alone,) = shared_bias(nodes("Qwen3-Omni", "gpt-oss-20b"), policy)
    assert alone.startswith("described (Qwen3-Omni) and the policy are both of the family qwen")
    (pair,) = shared_bias(nodes("Qwen3-Omni", "qwen-max"), ["checkpoints/step-audio-3"])
    assert pair.startswith("the captioner described and the judge graded are both of the family qwen")
    assert len(shared_bias(nodes("Qwen3-Omni", "qwen-max"), policy)) == 3
    warn_of_shared_bias(nodes("Qwen3-Omni", "gpt-oss-20b"), policy)
    assert [record.getMessage() for record in caplog.records] == [f"rewards: {alone}"]
