"""The metrics file survives kills and resumes, and keeps missing values missing."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rl.errors import RunFolderError
from rl.metrics import MetricsWriter, read_metrics, reward_metrics, within_group_std


def test_missing_values_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        writer.write(1, {"learner/loss": 0.1, "reward/total/mean": math.nan})
        writer.write(2, {"learner/loss": 0.25})
    first, second = read_metrics(path)
    assert (first["step"], first["learner/loss"]) == (1, 0.1)
    assert math.isnan(first["reward/total/mean"])
    assert second["learner/loss"] == 0.25
    assert second["time"] >= first["time"] > 1e9
    assert "NaN" not in path.read_text()
    with MetricsWriter(path, 2) as writer, pytest.raises(ValueError, match="JSON"):
        writer.write(3, {"learner/loss": math.inf})


def test_resume_drops_later_steps_and_a_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        for step in range(1, 6):
            writer.write(step, {"x": step, "y": math.nan})
    with path.open("a") as file:
        file.write('{"step": 6, "x"')
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3, 4, 5]
    with MetricsWriter(path, resume_from=3) as writer:
        assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]
        writer.write(4, {"x": 40})
    assert [row["x"] for row in read_metrics(path)] == [1, 2, 3, 40]
    with MetricsWriter(path):
        assert read_metrics(path) == []


def test_a_written_step_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    program = (
        "import os, signal, sys\n"
        "from rl.metrics import MetricsWriter\n"
        "MetricsWriter(sys.argv[1]).write(7, {'x': 1.5})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [row["x"] for row in read_metrics(path)] == [1.5]


@pytest.mark.parametrize("line", ["{oops", "[1]", '{"x": 1}'])
def test_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + line + '\n{"step": 3}\n')
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl:2: not ") as caught:
        read_metrics(path)
    assert "\n" not in str(caught.value)


def test_absent_and_binary_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl: no such metrics file"):
        read_metrics(tmp_path / "metrics.jsonl")
    (tmp_path / "metrics.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunFolderError, match="not UTF-8"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_within_group_std_known_values() -> None:
    groups = np.array([0, 0, 1, 1, 1, 2])
    column = np.array([1.0, 3.0, 5.0, np.nan, 5.0, 9.0])
    assert within_group_std(column, groups) == pytest.approx((math.sqrt(2) + 0) / 2)
    assert math.isnan(within_group_std(np.array([1.0, 2.0]), np.array([0, 1])))


def test_reward_metrics_tell_gated_from_missing() -> None:
    metrics = reward_metrics(
        {"asr": np.array([0.5, np.nan, np.nan, 0.7])},
        np.array([1.0, 0.0, np.nan, 2.0]),
        np.array([False, True, False, False]),
        np.array([0, 0, 1, 1]),
    )
    assert metrics["reward/gated"] == 0.25
    assert metrics["reward/asr/missing"] == 0.25
    assert metrics["reward/total/missing"] == 0.25
    assert metrics["reward/total/mean"] == 1.0
    assert metrics["reward/asr/mean"] == pytest.approx(0.6)
    assert math.isnan(metrics["reward/asr/std"])
