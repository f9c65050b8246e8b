"""The command line: its help, its one-line errors, and what it hands to the commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rl.cli import rollout, train
from rl.cli.common import parse, run_main
from rl.config import load_config, save_resolved, schema_keys
from rl.errors import CheckpointError, ConfigError

OVERRIDES = ["rewards.recipe=null", "rewards.nodes={}", "rewards.total=x"]


def parse_train(*argv: str):
    return parse("rl-train", "Train.", argv, resumable=True)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "a_run"
    folder.mkdir()
    config = load_config("grpo_tiny", [*OVERRIDES, "trainer.steps=9", f"output_dir={tmp_path}", "name=a_run"])
    save_resolved(config, folder / "config.yaml")
    return folder


def test_overrides_may_stand_anywhere() -> None:
    command = parse_train(*OVERRIDES, "trainer.steps=3", "--config", "grpo_tiny", "seed=4")
    assert (command.config.trainer.steps, command.config.seed, command.resume) == (3, 4, None)


def test_resume_takes_the_configuration_of_the_run(run_dir: Path) -> None:
    command = parse_train("--resume", str(run_dir), "trainer.steps=12")
    assert command.resume == run_dir
    assert (command.config.name, command.config.trainer.steps) == ("a_run", 12)


def test_resume_without_a_folder_means_the_configured_run() -> None:
    for argv in (["--resume", *OVERRIDES], [*OVERRIDES, "--resume"]):
        command = parse_train("--config", "grpo_tiny", *argv)
        assert command.resume == Path("runs/grpo_tiny")
        assert command.config.rewards.total == "x"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "no configuration; add --config, e.g. rl-train --config grpo_tiny.yaml"),
        (["--resume"], "no configuration"),
        (["--resume", "nowhere"], "--resume nowhere: no such run folder"),
        (["--config", "absent"], "absent: no such configuration file"),
    ],
)
def test_what_is_missing_is_said(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_train(*argv)


@pytest.mark.parametrize("main", [train.main, rollout.main])
def test_an_error_is_one_line_and_exit_code_2(main, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", "grpo_tiny.yaml", "rewards.recipe=null", "trainer.lerning_rate=1"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "error: command line: there is no key trainer.lerning_rate; did you mean trainer.learning_rate?\n"
    )


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(error: BaseException) -> None:
        raise error

    assert run_main(lambda: None) == 0
    assert run_main(lambda: fail(CheckpointError("x.safetensors: truncated"))) == 2
    assert run_main(lambda: fail(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "error: x.safetensors: truncated\ninterrupted\n"
    with pytest.raises(ZeroDivisionError):  # a bug keeps its traceback
        run_main(lambda: fail(ZeroDivisionError()))


def test_help_config_lists_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_train("--help-config")
    assert stopped.value.code == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in schema_keys())


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("train", ["--help"]),
        ("train", ["--config", "grpo_tiny", "trainer.steps=x"]),
        ("audit", ["--help"]),
    ],
)
def test_help_and_wrong_configurations_do_not_wait_for_torch(command: str, argv: list[str]) -> None:
    script = (
        "import sys\n"
        f"from rl.cli.{command} import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit:\n    pass\n"
        "print('heavy:', sorted({'torch', 'transformers', 'ray', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *argv], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("heavy: []\n")
