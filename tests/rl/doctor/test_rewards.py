"""Reward nodes, their models, their servers and their licences."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rewards.catalogue import build_node
from rl.doctor import endpoints, licences, rewards
from rl.doctor.check import Check
from rl.doctor.rewards import Nodes
from rl.policy.configuration import DualARConfig
from rl.policy.files import read_config

JUDGE = "type: asr_endpoint, model: judge-1, base_url: {}, cache: null"


def looked_at(configure, *overrides: str) -> tuple[list[Check], Nodes]:
    return rewards.nodes(configure(*overrides))


def asked(configure, base_url: str, *overrides: str, options: str = "") -> Check:
    node = "rewards.nodes.heard={" + JUDGE.format(base_url) + options + "}"
    total = "rewards.total=heard.loops"
    _, found = looked_at(configure, node, total, "rewards.nodes.length=null", *overrides)
    (check,) = endpoints.endpoints(found)
    return check


def test_nodes_that_are_as_they_should_be(configure) -> None:
    checks, found = looked_at(configure, "evaluation.monitors={outside: {type: pocketsphinx}}")
    assert checks == [Check("rewards", "2 nodes; total: length")]
    assert found.built.keys() == {"length", "outside"}
    assert found.needed == {"length"}
    assert found.graph is not None
    found.graph.close()


def test_what_the_total_needs_through_others(configure) -> None:
    nodes = (
        "rewards.nodes={gate: {type: sanity}, asr: {type: whisper}, cer: {type: error_rate, of: asr.text}}"
    )
    _, found = looked_at(configure, nodes, "rewards.nodes.more={type: silence}", "rewards.total=1 - cer")
    assert found.needed == {"gate", "asr", "cer"}


@pytest.mark.parametrize(
    ("overrides", "name", "words", "remedy"),
    [
        (
            ["rewards.nodes.x={type: wisper}"],
            "reward x",
            "there is no node type wisper",
            "did you mean whisper?",
        ),
        (
            ["rewards.nodes.x={type: whisper, model: huge}"],
            "reward x",
            "huge is neither",
            "mend rewards.nodes.x",
        ),
        (["rewards.total=lenght"], "rewards", "there is no node lenght", "did you mean length?"),
        (
            ["evaluation.monitors={y: {type: error_rate, of: nobody.text}}"],
            "rewards",
            "there is no node nobody",
            "there are: length, y",
        ),
    ],
)
def test_nodes_that_cannot_be(configure, overrides: list[str], name: str, words: str, remedy: str) -> None:
    checks, found = looked_at(configure, *overrides)
    (check,) = checks
    assert (check.name, check.verdict, check.remedy) == (name, "cannot run", remedy)
    assert words in check.found
    assert found.graph is None


def test_a_missing_extra_with_its_command(configure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.setitem(sys.modules, "speechbrain", None)
    nodes = [
        "rewards.nodes.a={" + JUDGE.format("http://localhost:1/v1") + "}",
        "rewards.nodes.b={type: ecapa}",
    ]
    checks, _ = looked_at(configure, *nodes)
    assert [check.found for check in checks] == [
        "rewards.nodes.a.type: needs the package openai: pip install 'auralign[judges]'",
        "rewards.nodes.b.type: needs the package speechbrain: pip install 'auralign[speechbrain]'",
    ]
    assert {check.verdict for check in checks} == {"cannot run"}


def test_a_module_that_cannot_be_imported(configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_nodes").mkdir()
    (tmp_path / "my_nodes" / "__init__.py").write_text("")
    (tmp_path / "my_nodes" / "broken.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (check,), _ = looked_at(configure, "rewards.nodes.x={type: my_nodes.broken}")
    assert check.verdict == "cannot run"
    assert "no_such_module" in check.found


def test_models_and_their_sizes(configure) -> None:
    nodes = "rewards.nodes={asr: {type: whisper, run: {where: thread, workers: 3}}, q: {type: dnsmos}}"
    _, found = looked_at(configure, nodes, "rewards.total=q", "rewards.nodes.length=null")
    parts, unknown = rewards.components(found, gpu=True)
    sizes = {part.name: (part.size, part.where) for part in parts}
    # 37.8 million parameters in float32, which threads share
    assert sizes["reward asr: Whisper tiny.en"][0] == pytest.approx(4 * 37_760_640, rel=0.01)
    assert sizes["reward asr: Whisper tiny.en"][1] == "host", "there is no GPU here"
    assert 0 < sizes["reward q: DNSMOS p808"][0] < 2**20
    assert unknown == []


def test_actors_have_models_and_processes_each(configure) -> None:
    nodes = "rewards.nodes={asr: {type: whisper, run: {where: ray, workers: 3}}}"
    _, found = looked_at(configure, nodes, "rewards.total=asr.logp", "rewards.nodes.length=null")
    model, processes = rewards.components(found, gpu=False)[0]
    assert model.size == pytest.approx(3 * 4 * 37_760_640, rel=0.01)
    assert processes.size == 3 * 2**29


def test_a_model_that_is_still_to_be_fetched(
    configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _, found = looked_at(configure, "rewards.nodes.asr={type: whisper, model: small, monitor: true}")
    (check,) = rewards.downloads(found)
    assert (check.name, check.verdict) == ("reward asr", "warning")
    assert "Whisper small isn't here yet" in check.found
    (tmp_path / "whisper").mkdir()
    (tmp_path / "whisper" / "small.pt").write_bytes(b"")
    _, found = looked_at(configure, "rewards.nodes.asr={type: whisper, model: small, monitor: true}")
    assert rewards.downloads(found) == []


def test_a_hubs_model_and_a_folders(tmp_path: Path) -> None:
    (hub,) = build_node({"type": "ecapa"}, "x").models()
    assert (hub.licence, hub.fetched, hub.weights) == ("Apache-2.0", True, 83_000_000)
    (tmp_path / "embedding_model.ckpt").write_bytes(b"12345")
    (own,) = build_node({"type": "ecapa", "source": str(tmp_path)}, "x").models()
    assert (own.licence, own.fetched, own.weights) == (None, False, 5)


def test_a_folder_without_the_model(configure, tmp_path: Path) -> None:
    (check,), _ = looked_at(configure, f"rewards.nodes.asr={{type: whisper, model: {tmp_path}}}")
    assert check.verdict == "cannot run"
    assert "model.bin" in check.found


def test_a_node_that_does_not_say_what_it_loads(
    configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from rewards.node import Node\nclass Mine(Node):\n    def load(self):\n        pass\n"
    (tmp_path / "their_nodes").mkdir()
    (tmp_path / "their_nodes" / "__init__.py").write_text("")
    (tmp_path / "their_nodes" / "mine.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    _, found = looked_at(configure, "rewards.nodes.mine={type: their_nodes.mine, monitor: true}")
    assert rewards.components(found, gpu=False)[1] == ["mine"]


def test_judges_of_the_policys_family(configure) -> None:
    judge = JUDGE.format("http://localhost:1/v1").replace("asr", "caption").replace("judge-1", "Qwen3-Omni")
    _, found = looked_at(configure, "rewards.nodes.c={" + judge + "}")
    (check,) = rewards.bias(configure(), found, "fish_qwen3_omni")
    assert check.verdict == "warning"
    assert "family qwen" in check.found
    assert check.remedy == "use a model of another family"


def test_a_server_that_serves_the_model(configure, server) -> None:
    assert asked(configure, server.base_url) == Check("endpoint heard", f"judge-1 at {server.base_url}")
    assert server.paths == ["/v1/models"]


def test_the_key_is_sent_and_must_be_there(configure, server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCTORS_KEY", "secret-0123456789")
    assert asked(configure, server.base_url, options=", key_env: DOCTORS_KEY").verdict == "ok"
    assert server.keys == ["Bearer secret-0123456789"]
    monkeypatch.delenv("DOCTORS_KEY")
    node = "rewards.nodes.heard={" + JUDGE.format(server.base_url) + ", key_env: DOCTORS_KEY}"
    (check,), _ = looked_at(configure, node)
    assert (check.verdict, check.remedy) == ("cannot run", "export it with the key")
    assert "the variable DOCTORS_KEY isn't set" in check.found


def test_a_server_that_serves_others(configure, server) -> None:
    server.body = json.dumps({"object": "list", "data": [{"id": "judge-2", "object": "model"}]}).encode()
    check = asked(configure, server.base_url)
    assert check.verdict == "cannot run"
    assert "doesn't serve judge-1" in check.found
    assert check.remedy == "set its model; did you mean judge-2?"


@pytest.mark.parametrize(
    ("status", "verdict", "words"),
    [
        (401, "cannot run", "refuses the key (401)"),
        (403, "cannot run", "refuses the key (403)"),
        (404, "warning", "doesn't list its models (404)"),
        (429, "warning", "doesn't list its models (429)"),
        (503, "cannot run", "answers 503"),
    ],
)
def test_a_server_that_refuses(configure, server, status: int, verdict: str, words: str) -> None:
    server.status = status
    check = asked(configure, server.base_url)
    assert check.verdict == verdict
    assert words in check.found
    assert check.remedy


@pytest.mark.parametrize(
    "body", [b"<html>hello</html>", b'"models"', b"[]", b'{"data": 3}', b'{"data": [3]}']
)
def test_a_server_of_another_kind(configure, server, body: bytes) -> None:
    server.body = body
    check = asked(configure, server.base_url)
    assert (check.verdict, check.found) == (
        "cannot run",
        f"{server.base_url} answers, but not with a list of models",
    )


def test_nobody_there(configure, server, closed_port: int) -> None:
    check = asked(configure, f"http://127.0.0.1:{closed_port}/v1")
    assert check.verdict == "cannot run"
    assert "can't be reached" in check.found
    assert check.remedy == f"vllm serve judge-1 --port {closed_port}, or name another base_url"


def test_a_server_that_hangs(configure, server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "SECONDS", 0.2)
    server.hang = True
    check = asked(configure, server.base_url)
    assert (check.verdict, check.remedy) == ("cannot run", "look at that server")
    assert "doesn't answer within 0.2 s" in check.found


def test_a_monitors_server_is_not_needed(configure, server) -> None:
    server.status = 503
    node = "evaluation.monitors={heard: {" + JUDGE.format(server.base_url) + "}}"
    _, found = looked_at(configure, node)
    (check,) = endpoints.endpoints(found)
    assert check.verdict == "warning"


def test_licences_of_models(configure, server) -> None:
    nodes = (
        "rewards.nodes={asr: {type: whisper}, v: {type: voiceprint}, j: {"
        + JUDGE.format(server.base_url)
        + "}}"
    )
    _, found = looked_at(configure, nodes, "rewards.total=v", "rewards.nodes.length=null")
    known, judge = licences.rewards(found)
    assert (known.verdict, known.found) == ("ok", "Apache-2.0: GE2E; MIT: Whisper tiny.en")
    assert (judge.name, judge.verdict, judge.found) == ("licence of j", "warning", "judge-1: not known here")


def test_a_model_of_unknown_licence(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"1234")
    node = build_node({"type": "whisper", "model": str(tmp_path)}, "x")
    check = licences.rewards(Nodes({"mine": node}, {"mine": node.models()}, None, frozenset()))[0]
    assert (check.name, check.verdict) == ("licence of mine", "warning")


@pytest.mark.parametrize(
    ("file", "text", "found", "verdict"),
    [
        ("LICENSE.md", "FISH AUDIO RESEARCH LICENSE AGREEMENT", "Fish Audio Research License", "warning"),
        ("LICENSE", "Do what you want.", "that of LICENSE", "warning"),
        ("notes.txt", "", "its folder states none", "warning"),
    ],
)
def test_licence_of_the_policy(
    policy: Path, tmp_path: Path, file: str, text: str, found: str, verdict: str
) -> None:
    (tmp_path / file).write_text(text)
    check = licences.policy(tmp_path, read_config(policy))
    assert (check.found, check.verdict) == (found, verdict)
    assert check.remedy


def test_a_licence_that_is_no_text(policy: Path, tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_bytes(b"\xff\xfe\x00")
    check = licences.policy(tmp_path, read_config(policy))
    assert (check.verdict, check.remedy) == ("warning", "read that file")


def test_s2_is_known_by_its_size_and_the_embedded_voice_by_its_place(configure, tmp_path: Path) -> None:
    from rl.arithmetic.shapes import published_s2
    from rl.policy.loading import EMBEDDED

    config: DualARConfig = published_s2()
    assert licences.policy(tmp_path, config).found == "Fish Audio Research License"
    embedded = licences.policy(EMBEDDED / "policy", read_config(EMBEDDED / "policy"))
    assert (embedded.verdict, embedded.found) == ("ok", "apache-2.0")
    (absent,) = licences.absent_policy(configure("model.prompt_format=fish_s2"))
    assert absent.verdict == "warning"
    assert licences.absent_policy(configure("model.prompt_format=step_audio_3")) == []
