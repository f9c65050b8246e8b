"""The whole command: each shipped configuration, its exit code, its last line, its JSON."""

from __future__ import annotations

import builtins
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rl.cli.doctor import main
from rl.config import load_config, shipped_configs
from rl.doctor import machine as machine_module
from rl.doctor.check import failed
from rl.doctor.examine import examine
from rl.doctor.machine import Machine
from rl.errors import AuralignError, ConfigError

MISSING = {
    "grpo_tiny": set(),
    "grpo_tiny_long": set(),
    "grpo_s2": {"policy", "prompts.train", "prompts.heldout", "endpoint asr", "memory"},
    "grpo_step_audio_3": {
        "policy", "prompts.train", "prompts.heldout", "endpoint caption", "endpoint instruction",
    },
}  # fmt: skip
"""What keeps each from running in a fresh checkout on a laptop."""


@pytest.fixture(autouse=True)
def on_a_laptop(laptop: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "this_machine", lambda: laptop)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(2**41, 0, 2**41))
    monkeypatch.chdir(tmp_path)


def test_every_shipped_configuration_is_expected_here() -> None:
    assert {path.stem for path in shipped_configs().glob("*.yaml")} == MISSING.keys()


@pytest.mark.parametrize("name", MISSING)
def test_shipped_configurations(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = MISSING[name]
    assert main(["--config", name, "--json", str(tmp_path / "report.json")]) == (1 if missing else 0)
    report = json.loads((tmp_path / "report.json").read_text())
    faults = [check["name"] for check in report["checks"] if check["verdict"] == "cannot run"]
    assert (set(faults), report["can_run"]) == (missing, not missing)
    assert all(check["remedy"] for check in report["checks"] if check["verdict"] != "ok")
    last = capsys.readouterr().out.splitlines()[-1]
    verdict = f"{name} cannot run here: {', '.join(faults)}" if missing else f"{name} can run here"
    assert last.startswith(verdict)


def test_the_components_are_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["--config", "grpo_tiny", "--json", str(tmp_path / "report.json")])
    names = [part["name"] for part in json.loads((tmp_path / "report.json").read_text())["components"]]
    listed = capsys.readouterr().out
    for name in (
        "policy",
        "adapter, gradients, AdamW",
        "learner's activations",
        "codec",
        "reward quality: DNSMOS p808",
    ):
        assert name in names
        assert name in listed


def test_a_wrong_configuration_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", "grpo_tiny", "trainer.stepps=1"]) == 2
    assert main([]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("did you mean trainer.steps?")
    assert lines[1] == "error: no configuration; add --config, e.g. rl-doctor --config grpo_tiny.yaml"


def test_a_report_that_cannot_be_written(
    configure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(tmp_path / "run.yaml"), "--json", str(tmp_path / "no" / "file.json")]) == 2
    assert "can't be written (No such file or directory)" in capsys.readouterr().err


def test_overrides_change_the_verdict(configure, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(tmp_path / "run.yaml")]) == 0
    assert main(["--config", str(tmp_path / "run.yaml"), "trainer.prompts_per_step=9"]) == 1
    assert "run cannot run here: amounts" in capsys.readouterr().out


def test_packages_that_are_missing_end_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    info = tmp_path / "auralign-9.9.dist-info"
    info.mkdir()
    text = "Metadata-Version: 2.1\nName: auralign\nVersion: 9.9\nRequires-Dist: no-such-package>=1\n"
    (info / "METADATA").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    report = examine(load_config("grpo_tiny"))
    assert [check.name for check in report.faults] == ["no-such-package"]
    assert "policy" not in {check.name for check in report.checks}


def test_a_package_that_cannot_be_imported(configure, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def broken(name: str, *rest: object, **options: object) -> object:
        if name == "rl.doctor.plan":
            raise ImportError("libcudart.so.13: cannot open shared object file")
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", broken)
    (fault,) = examine(configure()).faults
    assert (fault.name, fault.found) == (
        "packages",
        "one can't be imported (libcudart.so.13: cannot open shared object file)",
    )


def test_cuda_that_fails(configure, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Machine:
        raise torch.AcceleratorError("CUDA error: unknown error\nmore lines")

    monkeypatch.setattr(machine_module, "this_machine", fails)
    (fault,) = examine(configure()).faults
    assert (fault.name, fault.found) == ("GPUs", "CUDA fails (CUDA error: unknown error more lines)")


def test_a_step_audio_policy_that_is_missing_has_no_estimate(configure, tmp_path: Path) -> None:
    report = examine(configure(f"model.path={tmp_path}", "model.prompt_format=step_audio_3"))
    assert report.components == []
    assert [check.verdict for check in report.checks if check.name == "memory"] == ["warning"]


def test_an_error_is_split_into_what_is_found_and_what_to_do() -> None:
    check = failed("x", ConfigError("a.b: wrong; one and all; mend it"))
    assert (check.found, check.remedy) == ("a.b: wrong; one and all", "mend it")
    assert failed("x", AuralignError("a.b: wrong"), "look").remedy == "look"


def test_nothing_is_imported_before_the_configuration_is_right() -> None:
    code = (
        "import sys\nfrom rl.cli.doctor import main\nmain(sys.argv[1:])\n"
        "print(sorted({'torch', 'transformers', 'ray', 'numpy'} & set(sys.modules)))"
    )
    run = [sys.executable, "-c", code, "--config", "grpo_tiny", "trainer.steps=x"]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "[]\n"
