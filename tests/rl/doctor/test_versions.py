"""Ranges of versions against what is installed, and the command that mends what isn't."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rl.doctor.check import Check
from rl.doctor.extras import engine, trackers
from rl.doctor.versions import SHOWN, VLLM, package, versions


def installed(folder: Path, metadata: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution called auralign with that metadata, before any other."""
    info = folder / "auralign-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: auralign\nVersion: 9.9\n{metadata}\n")
    monkeypatch.syspath_prepend(str(folder))


def test_this_environment_is_as_asked_for() -> None:
    checks = versions()
    assert [check for check in checks if check.verdict != "ok"] == []
    assert {"python", *SHOWN} == {check.name for check in checks}


def test_each_wrong_version_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["Requires-Python: >=3.99", "Requires-Dist: torch>=99", "Requires-Dist: numpy<1,>=0.5"]
    lines += ["Requires-Dist: no-such-package<3,>=2", "Requires-Dist: openai>=99; extra == 'judges'"]
    installed(tmp_path, "\n".join(lines), monkeypatch)
    found = {check.name: check for check in versions()}
    assert found.keys() == {"python", "torch", "numpy", "no-such-package"}, "an extra isn't always needed"
    assert {check.verdict for check in found.values()} == {"cannot run"}
    assert found["python"].found.endswith(", not >=3.99")
    assert found["torch"].remedy == "pip install 'torch>=99'"
    assert found["no-such-package"].found == "not installed"
    assert found["no-such-package"].remedy == "pip install 'no-such-package<3,>=2'"


def test_without_metadata_the_ranges_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    (check,) = versions()
    assert (check.name, check.verdict) == ("auralign", "warning")


def test_a_local_label_or_pre_release_is_the_version_it_says() -> None:
    assert package(Requirement("torch>=2.8")).verdict == "ok", "2.13.0+cpu on a CPU"


def test_vllm_may_be_of_either_distribution(configure) -> None:
    assert package(Requirement("vllm>=0.32"), VLLM).verdict == "ok"
    assert engine(configure("rollouts.engine=vllm")).found.startswith("vllm")


def test_the_engine_that_isnt_there(configure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    asked = engine(configure("rollouts.engine=vllm"))
    assert asked.verdict == "cannot run"
    assert "pip install 'auralign[vllm]'" in asked.remedy
    assert "rollouts.engine=torch" in asked.remedy
    left_open = engine(configure("rollouts.engine=auto"))
    assert (left_open.verdict, left_open.found) == ("warning", "torch, as vLLM isn't installed: slower")
    assert engine(configure("rollouts.engine=torch")) == Check("engine", "torch")


def test_vllm_of_another_version(configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, "Provides-Extra: vllm\nRequires-Dist: vllm<99.1,>=99; extra == 'vllm'", monkeypatch)
    found = engine(configure("rollouts.engine=auto"))
    assert found.verdict == "cannot run"
    assert "not <99.1,>=99" in found.found
    assert found.remedy.endswith("or rollouts.engine=torch")


def test_trackers(configure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    known, absent, unknown = trackers(configure("trainer.report_to=[tensorboard, wandb, wandbb]"))
    assert known == Check("tracker", "tensorboard")
    assert (absent.verdict, absent.remedy) == ("cannot run", "pip install wandb")
    assert (unknown.verdict, unknown.found) == ("cannot run", "wandbb is none")
