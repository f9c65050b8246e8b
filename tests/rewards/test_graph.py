"""What the graph checks when it is built, and how it treats gates, missing values and monitors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewards.graph import RewardGraph, build_graph
from rewards.types import Clip
from rl.errors import ConfigError

RATE = 16000

OWN_NODES = {
    "level": '''
from dataclasses import dataclass
import numpy as np
from rewards.node import Node, NodeError, option

@dataclass
class Level(Node):
    """Peak times a factor."""
    factor: float = option(1.0, "multiplies the peak", above=0)

    def score_clip(self, clip):
        if clip.spoken == "refuse":
            raise NodeError("asked to refuse")
        if clip.spoken == "nan":
            return float("nan")
        if clip.spoken == "crash":
            raise ZeroDivisionError("a bug")
        return self.factor * float(np.abs(clip.audio).max())
''',
    "echo": '''
from dataclasses import dataclass
from rewards.node import Answer, Node, NodeError

@dataclass
class Echo(Node):
    """Says what it was told to say."""
    def outputs(self):
        return ("length", "half")

    def texts(self):
        return ("text",)

    def score(self, clips, inputs):
        half = [NodeError("too short to halve") if len(c.spoken) < 2 else len(c.spoken) / 2 for c in clips]
        return [Answer({"length": len(c.spoken), "half": h, "text": c.spoken}, {"seen": len(clips)})
                for c, h in zip(clips, half)]
''',
    "add": '''
from dataclasses import dataclass
from rewards.node import Node, reads

@dataclass
class Add(Node):
    """Sum of two outputs."""
    left: str = reads("number", "first")
    right: str = reads("number", "second")

    def score_clip(self, clip, left, right):
        return left + right
''',
    "twins": "from rewards.nodes.gate import Gate\nclass A(Gate): pass\nclass B(Gate): pass\n",
}


@pytest.fixture(autouse=True)
def own_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package `own` of nodes written by a user, on the Python path."""
    (tmp_path / "own").mkdir()
    for name, source in OWN_NODES.items():
        (tmp_path / "own" / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)


def clip(spoken: str = "hello there", peak: float = 0.5, seconds: float = 1.0) -> Clip:
    audio = peak * np.sin(np.arange(int(seconds * RATE)) * 0.05)
    return Clip(audio.astype(np.float32), RATE, spoken, spoken)


def graph(total: str, monitors: dict[str, Any] | None = None, **nodes: dict[str, Any]) -> RewardGraph:
    return build_graph({"nodes": nodes, "total": total, "max_missing": 0.1}, monitors)


LEVEL = {"type": "own.level"}
ECHO = {"type": "own.echo"}
SANITY = {"type": "sanity", "min_voiced": 0.0}


def test_values_flow_from_node_to_node() -> None:
    g = graph(
        "2*both",
        both={"type": "own.add", "left": "loud", "right": "echo.length"},
        loud={"type": "own.level", "factor": 2},
        echo=ECHO,
    )
    scores = g.score([clip("four", 0.25), clip("seven77", 0.5)])
    np.testing.assert_allclose(scores.values["loud"], [0.5, 1.0], rtol=1e-4)
    np.testing.assert_allclose(scores.values["echo.length"], [4, 7])
    np.testing.assert_allclose(scores.total, [9, 16], rtol=1e-4)
    assert scores.reasons == [{}, {}]
    assert scores.details[1] == {"echo": {"seen": 2, "text": "seven77"}}
    assert not scores.gated.any()
    json.dumps(scores.details)


def test_what_is_in_the_total_and_what_is_not() -> None:
    g = graph(
        "close * loud",
        {"outside": LEVEL},
        loud=LEVEL,
        echo=ECHO,
        idle=LEVEL,
        sane=SANITY,
        close={"type": "gate", "input": "echo.length", "at_most": 5},
    )
    assert g.output_names == ("loud", "echo.length", "echo.half", "idle", "sane", "close", "outside")
    assert g.components() == ("close", "loud")
    assert g.monitors == ("echo.half", "idle", "outside")
    assert g.gates == ("sane",)
    assert next(iter(g.nodes)) == "sane"
    assert g.max_missing == 0.1
    assert set(g.score([clip()]).values) == set(g.output_names)


def test_an_empty_batch() -> None:
    scores = graph("loud", loud=LEVEL, sane=SANITY).score([])
    assert scores.total.shape == scores.values["loud"].shape == scores.gated.shape == (0,)


def test_a_node_error_is_a_missing_value_with_its_reason() -> None:
    scores = graph("loud", loud=LEVEL).score([clip("refuse"), clip("nan"), clip()])
    np.testing.assert_array_equal(np.isnan(scores.total), [True, True, False])
    assert scores.reasons[0] == {"loud": "asked to refuse", "total": "needs loud: asked to refuse"}
    assert scores.reasons[1]["loud"] == "the node gave nan"
    assert scores.reasons[2] == {}


def test_a_missing_value_passes_down_but_not_into_a_total_without_it() -> None:
    nodes = {"both": {"type": "own.add", "left": "loud", "right": "echo.half"}, "loud": LEVEL, "echo": ECHO}
    scores = graph("echo.length", **nodes).score([clip("refuse"), clip("x")])
    np.testing.assert_array_equal(scores.total, [6, 1])
    assert scores.reasons[0]["both"] == "needs loud: asked to refuse"
    assert scores.reasons[1] == {
        "echo.half": "too short to halve",
        "both": "needs echo.half: too short to halve",
    }
    np.testing.assert_array_equal(scores.values["echo.length"], [6, 1])


def test_a_total_that_is_not_finite_is_missing() -> None:
    scores = graph("log(loud)", loud=LEVEL).score([clip(peak=0.0), clip()])
    assert np.isnan(scores.total[0])
    assert scores.reasons[0] == {"total": "the expression gives -inf"}


def test_other_exceptions_propagate_and_name_the_node() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        graph("loud", loud=LEVEL).score([clip("crash")])
    assert caught.value.__notes__ == ["in the reward node loud (Level)"]


def test_a_closed_gate_gives_its_floor_and_spares_the_other_nodes() -> None:
    g = graph("loud + 1", loud=LEVEL, echo=ECHO, sane={**SANITY, "floor": -0.5})
    scores = g.score([clip(peak=0.0), clip("refuse", peak=0.0), clip(), clip(seconds=0.0)])
    np.testing.assert_allclose(scores.total, [-0.5, -0.5, 1.5, -0.5], rtol=1e-4)
    assert scores.gated.tolist() == [True, True, False, True]
    np.testing.assert_array_equal(scores.values["sane"], [0, 0, 1, 0])
    assert scores.reasons[0]["loud"] == "gated by sane: -inf dBFS is quieter than -50 dBFS"
    assert "total" not in scores.reasons[0]
    assert scores.details[2]["echo"]["seen"] == 1


def test_a_gate_closes_whatever_the_total_says() -> None:
    scores = graph("loud + 1", loud=LEVEL, sane=SANITY).score([clip(peak=0.0)])
    assert scores.total.tolist() == [0.0]


def test_a_gate_that_is_a_monitor_closes_nothing() -> None:
    g = graph("loud + 1", loud=LEVEL, sane={**SANITY, "monitor": True})
    scores = g.score([clip(peak=0.0)])
    assert scores.total.tolist() == [1.0]
    assert scores.values["sane"].tolist() == [0.0]
    assert g.monitors == ("sane",)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_audio_is_missing_not_gated(bad: float) -> None:
    broken = clip()
    broken.audio[3] = bad
    scores = graph("loud", loud=LEVEL, sane=SANITY).score([broken])
    assert np.isnan(scores.total[0])
    assert not scores.gated[0]
    assert scores.reasons[0]["total"] == "needs sane: the audio isn't finite"


def test_clips_are_scored_as_if_alone() -> None:
    g = graph("loud + echo.length", loud=LEVEL, echo=ECHO, sane=SANITY)
    clips = [clip("a", 0.1), clip("refuse"), clip("abc", 0.0), clip("ab", 0.3)]
    together = g.score(clips)
    alone = [g.score([c]) for c in clips]
    np.testing.assert_array_equal(together.total, [s.total[0] for s in alone])
    assert together.reasons == [s.reasons[0] for s in alone]


def test_null_takes_a_node_out() -> None:
    g = build_graph({"nodes": {"loud": LEVEL, "voice": None}, "total": "loud"})
    assert g.output_names == ("loud",)


def test_an_overridden_total_leaves_the_other_nodes_as_monitors(caplog: pytest.LogCaptureFixture) -> None:
    g = graph("loud", loud=LEVEL, echo=ECHO)
    assert g.monitors == ("echo.length", "echo.half")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "rewards.nodes.echo: nothing uses it; set monitor: true" in caplog.text


def test_what_serves_a_monitor_is_used(caplog: pytest.LogCaptureFixture) -> None:
    error = {"type": "error_rate", "of": "echo.text"}
    graph("loud", loud=LEVEL, echo=ECHO, error={**error, "monitor": True}, sane=SANITY)
    assert caplog.text == ""
    graph("loud", loud=LEVEL, echo=ECHO, error=error)
    assert [record.args[0] for record in caplog.records] == ["rewards.nodes.echo", "rewards.nodes.error"]


GATE = {"type": "gate", "input": "loud", "at_most": 1.0}


@pytest.mark.parametrize(
    ("nodes", "total", "words"),
    [
        (
            {"q": {"type": "dnmos"}},
            "q",
            "rewards.nodes.q.type: there is no node type dnmos; did you mean dnsmos?",
        ),
        ({"q": {"type": "own.absent"}}, "q", "rewards.nodes.q.type: no module own.absent on the Python path"),
        ({"q": {"type": "own.twins"}}, "q", "own.twins defines 2 nodes"),
        ({"q": {}}, "q", "rewards.nodes.q.type: must be set"),
        ({"q": {"type": 3}}, "q", "rewards.nodes.q.type: must be text, not 3"),
        ({"q": "dnsmos"}, "q", "rewards.nodes.q: must be a mapping"),
        ({"q-r": LEVEL}, "q", "rewards.nodes.q-r: a node's name must be"),
        ({"if": LEVEL}, "q", "rewards.nodes.if: a node's name must be"),
        (
            {"q": {**LEVEL, "facter": 2}},
            "q",
            "rewards.nodes.q.facter: a own.level node has no such option; did you",
        ),
        ({"q": {**LEVEL, "factor": "2"}}, "q", 'q.factor: must be a number above 0, not "2"'),
        ({"q": {**LEVEL, "factor": 0}}, "q", "q.factor: must be a number above 0, not 0"),
        ({"q": {**LEVEL, "factor": True}}, "q", "q.factor: must be a number above 0, not true"),
        ({"q": {**LEVEL, "factor": float("inf")}}, "q", "q.factor: must be a number above 0"),
        ({"q": {**LEVEL, "factor": None}}, "q", "q.factor: must be a number above 0, not null"),
        ({"q": {**LEVEL, "monitor": 1}}, "q", "rewards.nodes.q.monitor: must be true or false, not 1"),
        ({"q": {"type": "dnsmos", "scale": "mos"}}, "q", "q.scale: must be p808 or sig or bak or ovrl"),
        ({"q": {"type": "gate", "input": "q"}}, "q", "rewards.nodes.q: a gate needs at_most or at_least"),
        (
            {"q": {"type": "gate", "at_most": 1}},
            "q",
            "rewards.nodes.q.input: must be set (the output to test)",
        ),
        (
            {"q": {"type": "whisper", "model": "tinny"}},
            "q.logp",
            "rewards.nodes.q: model tinny is neither a file",
        ),
        (
            {"loud": LEVEL, "g": {**GATE, "input": "lod"}},
            "g",
            "rewards.nodes.g.input: there is no node lod; did you",
        ),
        (
            {"e": ECHO, "g": {**GATE, "input": "e"}},
            "g",
            "e alone doesn't name one number output; number outputs of e",
        ),
        (
            {"e": ECHO, "g": {**GATE, "input": "e.text"}},
            "g",
            "g.input: e.text isn't a number; number outputs of e",
        ),
        (
            {"e": ECHO, "g": {**GATE, "input": "e.size"}},
            "g",
            "g.input: e has no output size; number outputs of e: e.l",
        ),
        (
            {"e": {"type": "error_rate", "of": "q"}, "q": LEVEL},
            "e",
            "e.of: q alone doesn't name one text output",
        ),
        (
            {"a": {**GATE, "input": "b"}, "b": {**GATE, "input": "a"}, "loud": LEVEL},
            "loud",
            "read each other in a circle",
        ),
        ({"loud": LEVEL}, "loudd", "rewards.total: there is no node loudd; did you mean loud?"),
        ({"e": ECHO}, "e.text", "rewards.total: e.text isn't a number"),
        ({"e": ECHO}, "e", "rewards.total: e alone doesn't name one number output"),
        ({"loud": LEVEL}, None, "rewards.total: must be an expression"),
        (
            {"loud": {**LEVEL, "monitor": True}},
            "loud",
            "rewards.total: depends on rewards.nodes.loud, a monitor",
        ),
        (
            {"loud": {**LEVEL, "monitor": True}, "g": GATE},
            "g",
            "rewards.total: depends on rewards.nodes.loud, a mon",
        ),
        ([LEVEL], "loud", "rewards.nodes: must be a mapping of node names to options"),
    ],
)
def test_what_is_refused(nodes: Any, total: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_graph({"nodes": nodes, "total": total})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_keys_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"rewards.totl: there is no such key; did you mean total\?"):
        build_graph({"nodes": {}, "totl": "x"})
    with pytest.raises(ConfigError, match=r"rewards.max_missing: must be a number from 0 to 1, not 2"):
        build_graph({"nodes": {"loud": LEVEL}, "total": "loud", "max_missing": 2})


def test_evaluation_monitors_stay_outside() -> None:
    with pytest.raises(ConfigError, match=r"total: depends on evaluation.monitors.outside, a monitor"):
        graph("outside", {"outside": LEVEL}, loud=LEVEL)
    with pytest.raises(ConfigError, match=r"evaluation.monitors.loud: rewards.nodes has a node of this name"):
        graph("loud", {"loud": LEVEL}, loud=LEVEL)
    with pytest.raises(ConfigError, match=r"evaluation.monitors.outside.facto: a own.level node has no such"):
        graph("loud", {"outside": {**LEVEL, "facto": 1}}, loud=LEVEL)


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from rewards.nodes.ecapa import Ecapa

    monkeypatch.setattr(Ecapa, "requires", ("no_such_package_here", "speechbrain"))
    with pytest.raises(
        ConfigError, match=r"v.type: needs the package no_such_package_here: pip install 'auralign\["
    ):
        graph("v", v={"type": "ecapa"})
