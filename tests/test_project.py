"""The project as people get it: wheel, lock and scripts."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> dict[str, str]:
    lines = (ROOT / "requirements-cpu.lock").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return next(folder.glob("auralign-*.whl"))


def test_the_wheel_holds_every_tracked_file_of_its_packages(wheel: Path) -> None:
    folders = ["rl", "rollouts", "rewards", "configs"]
    listed = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    wanted = {re.sub("^configs/", "rl/_configs/", name) for name in listed if (ROOT / name).exists()}
    assert "rl/_configs/grpo_tiny.yaml" in wanted
    assert wanted <= set(zipfile.ZipFile(wheel).namelist())


def test_a_wheel_finds_its_own_configurations(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "import rl.config; print(rl.config.find_config('grpo_tiny'))"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert Path(found.stdout.strip()) == tmp_path.resolve() / "rl/_configs/grpo_tiny.yaml"


def test_the_lock_pins_everything_the_project_asks_for() -> None:
    asked = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]
    names = {canonical(re.match(r"[A-Za-z0-9._-]+", requirement)[0]) for requirement in asked}
    assert names <= locked().keys()


def test_torchaudio_is_without_the_binaries_that_do_not_load_here() -> None:
    spec = importlib.util.find_spec("torchaudio")
    assert spec is not None
    assert spec.origin is not None
    assert not list(Path(spec.origin).parent.rglob("*.so"))


def test_the_lock_keeps_out_what_breaks_or_bloats_a_cpu_environment() -> None:
    harmful = re.compile(r"nvidia-|cuda-|triton$|torch(vision|audio|codec)$|webrtcvad$|typing$")
    assert [name for name in locked() if harmful.match(name)] == []
    assert locked()["torch"] == "2.13.0"


def test_scripts_are_executable_and_parse() -> None:
    for script in ("scripts/lock", "scripts/setup_env", "scripts/quickstart", "scripts/test", ".ci/run"):
        assert os.access(ROOT / script, os.X_OK), script
        subprocess.run(["bash", "-n", script], cwd=ROOT, check=True)


@pytest.mark.slow
def test_a_bare_checkout_sets_itself_up(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
    subprocess.run([str(checkout / "scripts/setup_env")], check=True)
    tool = checkout / ".venv/bin/rl-train"
    helped = subprocess.run([str(tool), "--help"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "--config" in helped.stdout
    imports = "import torch, transformers, trl, peft, ray, whisper, resemblyzer, librosa; import rl.config"
    subprocess.run([str(checkout / ".venv/bin/python"), "-c", imports], cwd=tmp_path, check=True)
    again = subprocess.run([str(checkout / "scripts/setup_env")], check=True, capture_output=True)
    assert again.stdout == b""
    shutil.rmtree(checkout)


@pytest.mark.slow
def test_an_installed_wheel_trains_elsewhere(wheel: Path, tmp_path: Path) -> None:
    """The wheel and the lock in a fresh environment, far from the checkout."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    python = tmp_path / "env/bin/python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "--no-compile", "-r", str(ROOT / "requirements-cpu.lock")], check=True)
    subprocess.run([*install, str(wheel)], check=True)
    small = ["trainer.steps=1", "trainer.prompts_per_step=1", "rollouts.group_size=2", "evaluation.prompts=2"]
    small += ["evaluation.samples=2", "evaluation.listen=1"]
    subprocess.run(
        [str(python.with_name("rl-train")), "--config", "grpo_tiny.yaml", *small], cwd=tmp_path, check=True
    )
    assert (tmp_path / "runs/grpo_tiny/report.html").is_file()
