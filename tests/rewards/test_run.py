"""Where nodes run: in the caller's thread, in threads, in Ray actors; batches, deadlines and deaths."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import ray
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.graph import RewardGraph, build_graph
from rewards.run.options import RunOptions
from rewards.types import Clip, Scores
from rl.errors import CheckpointError, ConfigError

NODES = {
    "length": '''
from dataclasses import dataclass
from rewards.node import Answer, Node, NodeError

@dataclass
class Length(Node):
    """Letters of the text, and who was in the batch."""
    def score(self, clips, inputs):
        batch = [c.spoken for c in clips]
        return [NodeError("asked to refuse") if "refuse" in t else Answer({"": len(t)}, {"batch": batch})
                for t in batch]
''',
    "mix": '''
from dataclasses import dataclass
from rewards.node import Node, reads

@dataclass
class Mix(Node):
    """Twice the one less the other."""
    left: str = reads("number", "first")
    right: str = reads("number", "second")

    def score_clip(self, clip, left, right):
        return 2 * left - right
''',
    "after": '''
from dataclasses import dataclass
from placed import meet
from rewards.node import Node, reads

@dataclass
class After(Node):
    """Says that it was asked."""
    first: str = reads("number", "what must be there before")

    def score_clip(self, clip, first):
        meet.SEEN.put(f"after {clip.spoken}")
        return first
''',
    "odd": '''
import os, signal, time
from dataclasses import dataclass
from pathlib import Path
from rewards.node import Node, option
from rl.errors import CheckpointError

@dataclass
class Odd(Node):
    """Does to its worker what the text says."""
    folder: str = option("", "where it notes its deaths")
    broken: bool = option(False, "can't be loaded")

    def load(self):
        if self.broken:
            raise CheckpointError("odd.bin: no such file; fetch it")

    def score_clip(self, clip):
        if clip.spoken == "hang":
            time.sleep(600)
        if clip.spoken == "crash":
            raise ZeroDivisionError("a bug")
        deaths = len(list(Path(self.folder).glob("death-*"))) if self.folder else 0
        if clip.spoken == "die" or (clip.spoken == "die once" and not deaths):
            Path(self.folder, f"death-{deaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return float(os.getpid())
''',
    "meet": '''
import threading
from dataclasses import dataclass
from queue import SimpleQueue
from rewards.node import Node

BARRIER = threading.Barrier(2)
OPEN = threading.Event()
SEEN = SimpleQueue()

@dataclass
class Meet(Node):
    """Waits for others, in this process."""
    def score_clip(self, clip):
        SEEN.put(clip.spoken)
        if clip.spoken == "meet":
            BARRIER.wait(60)
        if clip.spoken == "wait" and not OPEN.wait(60):
            raise TimeoutError
        return 1.0
''',
}
RATE = 16000
INLINE: dict[str, Any] = {}
THREAD, THREADS = {"where": "thread"}, {"where": "thread", "workers": 3}
ACTORS = {"where": "ray", "workers": 2, "num_cpus": 0.5}


@pytest.fixture(scope="module", autouse=True)
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package `placed`, on the path of this process and of the Ray workers that it starts."""
    folder = tmp_path_factory.mktemp("nodes")
    (folder / "placed").mkdir()
    for name, source in NODES.items():
        (folder / "placed" / f"{name}.py").write_text(source)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def cluster(nodes: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(nodes), prepend=os.pathsep)  # its workers inherit it
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def meet() -> ModuleType:
    return importlib.reload(importlib.import_module("placed.meet"))


@pytest.fixture
def place(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A run block; Ray is there if it asks for Ray."""
    if request.param.get("where") == "ray":
        request.getfixturevalue("cluster")
    return request.param


def clips(*texts: str) -> list[Clip]:
    return [Clip(np.full(RATE, 0.1, np.float32), RATE, text, text) for text in texts]


def graph(total: str, **nodes: dict[str, Any]) -> RewardGraph:
    return build_graph({"nodes": nodes, "total": total})


def odd(folder: Path | str = "", **run: Any) -> RewardGraph:
    return graph("odd", odd={"type": "placed.odd", "folder": str(folder), "run": run})


def assert_equal(left: Scores, right: Scores) -> None:
    assert left.values.keys() == right.values.keys()
    for name in left.values:
        np.testing.assert_array_equal(left.values[name], right.values[name])
    np.testing.assert_array_equal(left.total, right.total)
    np.testing.assert_array_equal(left.gated, right.gated)
    assert left.reasons == right.reasons
    assert left.details == right.details


# --- the same answers everywhere


@pytest.mark.parametrize("place", [THREAD, THREADS, ACTORS], ids=str, indirect=True)
def test_a_batch_is_a_window_of_the_order_wherever_it_runs(place: dict[str, Any]) -> None:
    texts = [f"{'refuse' * (i == 4)}{'a' * i}" for i in range(8)]

    def scores(**run: Any) -> Scores:
        nodes: dict[str, dict[str, Any]] = {
            "a": {"type": "placed.length", "run": {"batch_size": 3, **run}},
            "b": {"type": "placed.mix", "left": "a", "right": "a", "run": {"batch_size": 2, **run}},
        }
        g = graph("a + b", **nodes)
        result = g.score(clips(*texts))
        g.close()
        return result

    expected = scores()
    np.testing.assert_array_equal(expected.total, [0, 2, 4, 6, np.nan, 10, 12, 14])
    assert [d["a"]["batch"] for d in expected.details if d] == [
        batch for batch in (texts[:3], texts[3:6], texts[6:]) for text in batch if "refuse" not in text
    ]
    assert_equal(scores(**place), expected)


def test_whisper_hears_the_same_everywhere(speech: list[Clip], cluster: None) -> None:
    def scores(**run: Any) -> Scores:
        g = graph(
            "asr.confidence - error",
            asr={"type": "whisper", "run": {"batch_size": 3, **run}},
            second={"type": "whisper", "monitor": True, "run": {"batch_size": 2, **run}},
            error={"type": "error_rate", "of": "asr.text"},
        )
        result = g.score(speech)
        g.close()
        return result

    inline = scores()
    assert (inline.total > 0.5).all()
    assert_equal(scores(where="thread", num_cpus=1), inline)
    assert_equal(scores(where="ray", num_cpus=1), inline)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, Any], list[str]]:
    """Nodes in random places that read earlier ones, under shuffled names; a gate; texts to score."""
    size = draw(st.integers(1, 5))
    names = draw(st.permutations([f"n{i}" for i in range(size)]))
    nodes: dict[str, Any] = {"sane": {"type": "sanity", "min_voiced": 0.0}}
    for i, name in enumerate(names):
        run = {**draw(st.sampled_from([INLINE, THREAD, THREADS])), "batch_size": draw(st.integers(1, 4))}
        if i == 0 or draw(st.booleans()):
            nodes[name] = {"type": "placed.length", "run": run}
        else:
            left, right = (draw(st.sampled_from(names[:i])) for _ in range(2))
            nodes[name] = {"type": "placed.mix", "left": left, "right": right, "run": run}
    texts = draw(st.lists(st.sampled_from(["", "a", "abc", "refuse", "silent"]), max_size=9))
    return nodes, texts


@settings(max_examples=25, deadline=None)
@given(graphs())
def test_any_graph_gives_what_its_nodes_say(case: tuple[dict[str, Any], list[str]]) -> None:
    nodes, texts = case
    last = f"n{len(nodes) - 2}"

    def value(name: str, text: str) -> float:
        node = nodes[name]
        if node["type"] == "placed.length":
            return float("nan") if text == "refuse" else len(text)
        return 2 * value(node["left"], text) - value(node["right"], text)

    given_clips = [
        Clip(np.zeros(RATE, np.float32), RATE, t, t) if t == "silent" else clips(t)[0] for t in texts
    ]
    g = graph(last, **nodes)
    scores = g.score(given_clips)
    g.close()
    for name in g.nodes.keys() - {"sane"}:
        expected = [float("nan") if t == "silent" else value(name, t) for t in texts]
        np.testing.assert_array_equal(scores.values[name], expected)
    np.testing.assert_array_equal(scores.total, [0 if t == "silent" else value(last, t) for t in texts])
    np.testing.assert_array_equal(scores.gated, [t == "silent" for t in texts])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=4, max_size=4))
def test_a_circle_is_refused_and_nothing_else(reads: list[tuple[int, int]]) -> None:
    """Node i reads the two nodes ``reads[i]``, or none where they are equal."""
    nodes: dict[str, Any] = {}
    reach = np.zeros((4, 4), int)
    for i, (left, right) in enumerate(reads):
        if left == right:
            nodes[f"n{i}"] = {"type": "placed.length"}
        else:
            nodes[f"n{i}"] = {"type": "placed.mix", "left": f"n{left}", "right": f"n{right}"}
            reach[i, [left, right]] = 1
    circular = any(np.trace(np.linalg.matrix_power(reach, length)) for length in range(1, 5))
    if circular:
        with pytest.raises(ConfigError, match="read each other in a circle"):
            graph("n0", **nodes)
    else:
        assert graph("n0", **nodes).components() == ("n0",)


# --- at the same time


def test_independent_nodes_run_at_the_same_time(meet: ModuleType) -> None:
    node = {"type": "placed.meet", "run": {"where": "thread"}}
    scores = graph("a + b", a=node, b=node).score(clips("meet"))
    assert scores.total.tolist() == [2.0]


def test_batches_of_one_node_run_at_the_same_time(meet: ModuleType) -> None:
    node = {"type": "placed.meet", "run": {"where": "thread", "workers": 2, "batch_size": 1}}
    assert graph("a", a=node).score(clips("meet", "meet")).total.tolist() == [1.0, 1.0]


def test_scoring_begins_before_the_last_clip_is_there(meet: ModuleType) -> None:
    node = {"type": "placed.meet", "run": {"where": "thread", "batch_size": 2}}
    with graph("a", a=node).stream() as stream:
        for clip in clips("one", "two", "three"):
            stream.submit(clip)
        assert [meet.SEEN.get(timeout=60) for _ in range(2)] == ["one", "two"]
        assert meet.SEEN.empty()
        assert stream.scores().total.tolist() == [1.0, 1.0, 1.0]


def test_a_slow_clip_holds_up_only_its_own_batch(meet: ModuleType) -> None:
    node = {"type": "placed.meet", "run": {"where": "thread", "workers": 2, "batch_size": 1}}
    g = graph("b", a=node, b={"type": "placed.mix", "left": "a", "right": "a", "run": {"batch_size": 1}})
    with g.stream() as stream:
        for clip in clips("wait", "x", "y"):
            stream.submit(clip)
        rows = stream.rows()
        assert [next(rows)[0], next(rows)[0]] == [1, 2]
        meet.OPEN.set()
        assert [index for index, row in rows if row.total == 1.0] == [0]
        assert stream.scores().total.tolist() == [1.0, 1.0, 1.0]


def test_while_something_is_awaited_clips_go_from_node_to_node(meet: ModuleType) -> None:
    run = {"where": "thread", "batch_size": 1}
    nodes = {
        "a": {"type": "placed.meet", "run": run},
        "b": {"type": "placed.after", "first": "a", "run": run},
    }
    with graph("b", **nodes).stream() as stream, ThreadPoolExecutor(1) as pool:
        stream.submit(clips("x")[0])
        coming = pool.submit(lambda: [meet.SEEN.get(timeout=60) for _ in range(2)])
        assert stream.attend(coming) == ["x", "after x"]
        assert stream.attend(pool.submit(str)) == "", "also with nothing to do"
        assert stream.scores().total.tolist() == [1.0]


# --- what goes wrong


@pytest.mark.parametrize("place", [THREAD, ACTORS], ids=str, indirect=True)
def test_past_the_deadline_a_batch_is_missing_and_nothing_else(place: dict[str, Any]) -> None:
    g = odd(**place, max_seconds=1.0, batch_size=2)
    for _ in range(2):  # the worker was replaced
        scores = g.score(clips("a", "b", "hang", "c", "d"))
        assert np.isnan(scores.total).tolist() == [False, False, True, True, False]
        assert scores.reasons[2]["odd"] == "no answer within 1 s"
        assert scores.reasons[3]["total"] == "needs odd: no answer within 1 s"
    g.close()


def test_what_a_killed_actor_worked_on_is_scored_again(tmp_path: Path, cluster: None) -> None:
    g = odd(tmp_path, where="ray", batch_size=2)
    scores = g.score(clips("a", "b", "c", "die once", "d"))
    assert np.isfinite(scores.total).all()
    assert len(list(tmp_path.iterdir())) == 1
    assert scores.total[0] == scores.total[1] != scores.total[2] == scores.total[3] == scores.total[4]
    g.close()


def test_a_batch_that_always_kills_its_actor_is_missing(tmp_path: Path, cluster: None) -> None:
    g = odd(tmp_path, where="ray", batch_size=1)
    scores = g.score(clips("a", "die", "b"))
    assert np.isnan(scores.total).tolist() == [False, True, False]
    assert scores.reasons[1]["odd"].startswith("3 workers died on its batch, the last: a Ray actor died: ")
    assert "\n" not in scores.reasons[1]["odd"]
    assert len(list(tmp_path.iterdir())) == 3
    g.close()


@pytest.mark.parametrize("place", [INLINE, THREAD, ACTORS], ids=str, indirect=True)
def test_a_bug_propagates_and_leaves_the_graph_usable(place: dict[str, Any]) -> None:
    g = odd(**place)
    with pytest.raises(ZeroDivisionError, match="a bug") as caught:
        g.score(clips("a", "crash"))
    assert caught.value.__notes__ == ["in the reward node odd (Odd)"]
    assert np.isfinite(g.score(clips("a")).total).all()
    g.close()


@pytest.mark.parametrize("place", [INLINE, THREAD, ACTORS], ids=str, indirect=True)
def test_what_cannot_be_loaded_says_so_at_once(place: dict[str, Any]) -> None:
    g = graph("odd", odd={"type": "placed.odd", "broken": True, "run": place})
    with pytest.raises(CheckpointError, match=r"^odd.bin: no such file; fetch it$"):
        g.warm_up()
    g.close()


def test_a_second_graph_uses_the_workers_of_the_first(cluster: None) -> None:
    node = {"type": "placed.odd", "run": {"where": "ray"}}
    config = {"nodes": {"odd": node}, "total": "odd"}
    first = build_graph(config)
    second = build_graph(config, {"other": {"type": "placed.length"}}, first.pools)
    assert first.score(clips("a")).total[0] == second.score(clips("a")).total[0]
    assert second.output_names == ("odd", "other")
    second.close()


def test_workers_lent_to_one_stream_are_not_there_for_another() -> None:
    g = odd(**THREAD, batch_size=1)
    with g.stream() as first, g.stream() as second:
        first.submit(clips("hang")[0])
        second.submit(clips("a")[0])
        with pytest.raises(RuntimeError, match="lent to another stream"):
            second.scores()
    g.close()


# --- what is refused


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("thread", 'rewards.nodes.odd.run: must be a mapping, such as {where: thread}, not "thread"'),
        ({"wher": "thread"}, "odd.run.wher: a run block has no such option; did you mean where?"),
        ({"where": "gpu"}, 'odd.run.where: must be inline or thread or ray, not "gpu"'),
        ({"where": "ray", "workers": 0}, "odd.run.workers: must be a whole number at least 1, not 0"),
        ({"batch_size": 0}, "odd.run.batch_size: must be a whole number at least 1, not 0"),
        ({"max_seconds": 5}, "odd.run.max_seconds: has no meaning with where: inline; it needs where: th"),
        ({"where": "thread", "num_gpus": 1}, "odd.run.num_gpus: has no meaning with where: thread; it needs"),
        ({"where": "ray", "max_seconds": 0}, "odd.run.max_seconds: must be a number above 0, or null, not 0"),
    ],
)
def test_what_is_refused(run: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        graph("odd", odd={"type": "placed.odd", "run": run})
    assert words in str(caught.value)


def test_every_run_option_is_documented(docs: str) -> None:
    section = docs.partition("## Where a node runs")[2].partition("\n## ")[0]
    for field in fields(RunOptions):
        assert f"`{field.name}`" in section
        assert field.metadata["help"]
