"""Repetition, silence, functions by their path, and TRL's reward functions: known values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewards.catalogue import build_node
from rewards.graph import build_graph
from rewards.node import Answer, NodeError
from rewards.nodes.repetition import repeated
from rewards.types import Clip
from rl.errors import ConfigError

RATE = 16000


def clip(audio: np.ndarray | None = None, spoken: str = "go on", **meta: Any) -> Clip:
    return Clip(np.zeros(160, np.float32) if audio is None else audio, RATE, spoken, spoken, meta=meta)


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("", 0),
        ("a b c", 0),
        ("no no no", 2),
        ("go on go on go on", 4),
        ("a a b a a b", 4),
        ("the cat the dog", 0),
    ],
)
def test_repeated_words(words: str, extra: int) -> None:
    assert repeated(words.split()) == extra


@pytest.mark.parametrize(
    ("heard", "spoken", "normalise", "expected"),
    [
        ("Go on, go on, go on.", "go on", "english", 4 / 6),
        ("no no", "no no", "english", 0.0),
        ("no no no no", "no no", "english", 0.5),
        ("", "go on", "english", 0.0),
        ("你好你好", "你好", "cjk", 0.5),
    ],
)
def test_repetition(heard: str, spoken: str, normalise: str, expected: float) -> None:
    node = build_node({"type": "repetition", "of": "x", "normalise": normalise}, "x")
    row = node.score_clip(clip(spoken=spoken), of=heard)
    assert isinstance(row, Answer)
    assert row.values[""] == pytest.approx(expected)


def test_silence_is_measured_to_10_ms() -> None:
    tone = np.sin(np.arange(RATE // 2) * 0.3)
    quiet = 1e-3 * tone[:4800]  # 60 dB below
    audio = np.concatenate([np.zeros(1600), tone, quiet, tone, np.zeros(32000)]).astype(np.float32)
    node = build_node({"type": "silence"}, "x")
    row = node.score_clip(clip(audio))
    assert isinstance(row, Answer)
    assert dict(row.values) == pytest.approx({"leading": 0.1, "pause": 0.3, "trailing": 2.0})
    with pytest.raises(NodeError, match="digital silence"):
        node.score_clip(clip(np.zeros(RATE, np.float32)))
    with pytest.raises(NodeError, match="digital silence"):
        node.score_clip(clip(np.zeros(10, np.float32)))


MODULE = """\
from rewards.node import Answer, NodeError

def peak(clip):
    return float(abs(clip.audio).max())

def picky(clip):
    raise NodeError("not today")

def length(prompts, completions, words, **columns):
    assert columns["audio"][0].ndim == 1
    return [None if n is None else abs(len(c.split()) - n) for c, n in zip(completions, words)]

def short(completions, **columns):
    return [1.0]

value = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_own_rewards.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return "my_own_rewards"


def test_a_function_by_its_path(module: str) -> None:
    nodes = {
        "peak": {"type": "function", "path": f"{module}:peak"},
        "picky": {"type": "function", "path": f"{module}:picky"},
    }
    graph = build_graph({"nodes": nodes, "total": "2*peak"})
    scores = graph.score([clip(np.array([0.1, -0.25], np.float32))])
    assert scores.total[0] == 0.5
    assert scores.reasons[0]["picky"] == "not today"


def test_a_trl_reward_on_transcripts(module: str) -> None:
    node = build_node({"type": "trl_reward", "path": f"{module}:length", "of": "x"}, "x")
    clips = [clip(words=1), clip(words=5), clip()]
    rows = list(node.score(clips, {"of": ["one two", "one", "x"]}))
    assert rows[:2] == [1.0, 4.0]
    assert str(rows[2]) == "the reward function gave None"
    short = build_node({"type": "trl_reward", "path": f"{module}:short", "of": "x"}, "x")
    with pytest.raises(ValueError, match="gave 1 rewards for 3 completions"):
        short.score(clips, {"of": ["a", "b", "c"]})


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere_at_all:f", "no module nowhere_at_all on the Python path"),
        ("my_own_rewards", "isn't package.module:function"),
        ("my_own_rewards:value", "has no function value"),
        ("my_own_rewards:absent", "has no function absent"),
    ],
)
def test_a_wrong_path_is_a_configuration_error(module: str, path: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        build_node({"type": "function", "path": path}, "rewards.nodes.mine")
    assert str(caught.value).startswith("rewards.nodes.mine: ")


def test_the_documented_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "writing_rewards.md").read_text(encoding="utf-8")
    function, node = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len([line for line in node.splitlines() if line]) <= 10
    (tmp_path / "documented_function.py").write_text(function)
    package = tmp_path / "documented_rewards"
    package.mkdir()
    (package / "clipping.py").write_text(node)
    monkeypatch.syspath_prepend(tmp_path)
    nodes = {
        "first": {"type": "function", "path": "documented_function:unclipped"},
        "second": {"type": "documented_rewards.clipping", "limit": 0.5},
    }
    graph = build_graph({"nodes": nodes, "total": "first + second"})
    assert graph.score([clip(np.array([0.1, 0.7, 1.0, 0.2], np.float32))]).total[0] == 0.75 + 0.5
