"""The report is made from the run folder's files alone, is one safe page, and says what the numbers allow."""

from __future__ import annotations

import base64
import io
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import soundfile
from rich.console import Console

from rl.before_after import listening_pairs, metric_rows
from rl.config import config_hash, load_config, save_resolved
from rl.errors import RunFolderError
from rl.live import LiveView, before_after_table, plain_line
from rl.metrics import MetricsWriter
from rl.report.html import write_report
from rl.report.plots import DARK, LIGHT, figures, svg
from rl.run_folder import (
    Evaluation,
    MetricRow,
    read_evaluation,
    read_samples,
    write_evaluation,
    write_samples,
)
from rl.stats import Comparison
from rollouts.store import Split, StepRecord, quantise
from rollouts.types import Prompt, Rollout

HOSTILE = "</p><script>alert('x')</script> & [whisper] مرحبا"
ROLES = {"components": ["error"], "outside": ["outside"], "lower_is_better": ["error", "asr.loops"]}
PROMPTS, SAMPLES, RATE = 4, 2, 8000


def record(split: Split, gain: float) -> StepRecord:
    rng = np.random.Generator(np.random.Philox(key=1))
    rollouts = []
    for p in range(PROMPTS):
        prompt = Prompt(f"p{p}", HOSTILE if p == 0 else f"Text {p}.", f"text {p}")
        for s in range(SAMPLES):
            codes = np.zeros((10 + s, 3), dtype=np.int64)
            logprobs = np.zeros((10 + s, 3), dtype=np.float32)
            rollouts.append(Rollout(prompt, s, 100 + s, codes, logprobs, -0.5, "eos", 0))
    count = len(rollouts)
    error = 0.5 - gain + 0.01 * rng.random(count)
    error[3] = np.nan
    audio: list[np.ndarray | None] = [quantise(0.1 * rng.normal(size=800)) for _ in rollouts]
    audio[2] = None
    return StepRecord(
        step=0,
        split=split,
        config_hash="x",
        sample_rate=RATE,
        rollouts=rollouts,
        audio=audio,
        group_ids=np.repeat(np.arange(PROMPTS), SAMPLES),
        values={"asr.loops": rng.random(count), "outside": 0.5 + 0 * error, "error": error},
        total=1 - error,
        advantages=np.full(count, np.nan),
        gated=np.zeros(count, dtype=bool),
        reasons=[{} for _ in rollouts],
        details=[{"asr": {"text": f"<b>{split}</b>"}} for _ in rollouts],
        submitted=np.arange(count),
    )


@pytest.fixture
def pair() -> tuple[StepRecord, StepRecord]:
    return record("eval_before", 0.0), record("eval_after", 0.2)


@pytest.fixture
def rows(pair: tuple[StepRecord, StepRecord]) -> list[MetricRow]:
    return metric_rows(*pair, **ROLES)


@pytest.fixture
def run_dir(tmp_path: Path, pair: tuple[StepRecord, StepRecord], rows: list[MetricRow]) -> Path:
    save_resolved(load_config("grpo_tiny.yaml", ["name=a<b"]), tmp_path / "config.yaml")
    with MetricsWriter(tmp_path / "metrics.jsonl") as writer:
        for step in (1, 2, 3):
            writer.write(step, step_metrics(step))
    write_evaluation(tmp_path, Evaluation(3, PROMPTS, SAMPLES, 1.0, rows))
    write_samples(tmp_path, listening_pairs(*pair, prompts=2), RATE)
    return tmp_path


def step_metrics(step: int) -> dict[str, float]:
    return {
        "reward/gated": 0.25,
        "reward/total/mean": 0.5 + 0.1 * step,
        "reward/total/std": 0.1,
        "reward/total/missing": 0.0,
        "reward/error/mean": math.nan if step == 2 else 0.4,
        "learner/kl_slow": 0.01 * step,
        "learner/kl_fast": 0.02,
        "time/step_s": 30.0,
    }


def test_rows_pair_by_prompt_sample_and_seed(
    pair: tuple[StepRecord, StepRecord], rows: list[MetricRow]
) -> None:
    assert [(row.name, row.role) for row in rows] == [
        ("total", "total"),
        ("error", "reward"),
        ("outside", "outside"),
        ("asr.loops", "related"),
        ("frames", "related"),
    ]
    by_name = {row.name: row for row in rows}
    assert by_name["error"].comparison.delta == pytest.approx(-0.2)
    assert by_name["error"].verdict == "better"
    assert (by_name["error"].comparison.pairs, by_name["error"].comparison.missing) == (7, 1)
    assert by_name["outside"].verdict == "no clear change"
    before, after = pair
    order = np.arange(len(after.rollouts))[::-1]
    shuffled = StepRecord(
        **{
            **vars(after),
            "rollouts": [after.rollouts[i] for i in order],
            "total": after.total[order],
            "values": {name: column[order] for name, column in after.values.items()},
        }
    )
    again = metric_rows(before, shuffled, **ROLES)
    assert [row.comparison for row in again] == [row.comparison for row in rows]
    shuffled.rollouts[0].seed += 1
    with pytest.raises(ValueError, match="same prompts, samples and seeds"):
        metric_rows(before, shuffled, **ROLES)


@pytest.mark.parametrize(
    ("better", "low", "high", "verdict"),
    [
        ("higher", 0.1, 0.2, "better"),
        ("higher", -0.2, -0.1, "worse"),
        ("lower", -0.2, -0.1, "better"),
        ("lower", 0.1, 0.2, "worse"),
        ("neither", 0.1, 0.2, "changed"),
        ("higher", -0.1, 0.2, "no clear change"),
    ],
)
def test_verdict(better: str, low: float, high: float, verdict: str) -> None:
    delta = (low + high) / 2
    change = Comparison(1, 1 + delta, delta, low, high, delta, low > 0 or high < 0, 9, 0, 9)
    assert MetricRow("x", "reward", better, change).verdict == verdict  # type: ignore[arg-type]


def test_files_round_trip(
    run_dir: Path, pair: tuple[StepRecord, StepRecord], rows: list[MetricRow]
) -> None:
    evaluation = read_evaluation(run_dir)
    assert evaluation is not None
    assert str(evaluation.rows) == str(rows)  # as text: NaN isn't equal to itself
    first, second = read_samples(run_dir)
    assert (first.text, first.seed, first.sample_index) == (HOSTILE, 100, 0)
    assert first.after.transcripts == {"asr": "<b>eval_after</b>"}
    assert first.before.values["total"] == pair[0].total[0]
    assert first.before.seconds == 0.1
    assert first.before.flac is not None
    audio, rate = soundfile.read(io.BytesIO(first.before.flac), dtype="float32")
    assert rate == RATE
    assert np.array_equal(audio, pair[0].audio[0])
    assert second.before.flac is None


def test_damaged_files_are_named(run_dir: Path) -> None:
    (run_dir / "samples" / "000_after.flac").unlink()
    with pytest.raises(RunFolderError, match=r"000_after\.flac: the index lists this clip"):
        read_samples(run_dir)
    path = run_dir / "evaluation.json"
    for text, message in (
        ("{", "damaged"),
        ('{"format": 2}', "not format 1"),
        ('{"format": 1}', "damaged .KeyError: 'rows'"),
    ):
        path.write_text(text)
        with pytest.raises(RunFolderError, match=rf"evaluation\.json: {message}"):
            read_evaluation(run_dir)


class _Page(HTMLParser):
    """Collects tags, and every attribute that could fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "srcset", "href", "data")]


def test_report_is_one_safe_page(run_dir: Path, pair: tuple[StepRecord, StepRecord]) -> None:
    html = write_report(run_dir).read_text(encoding="utf-8")
    page = _Page()
    page.feed(html)
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert page.tags.count("audio") == 2  # the second prompt's audio isn't finite, on both sides
    assert page.tags.count("figure") == 4
    assert page.sources
    assert all(source.startswith("data:") for source in page.sources)
    assert "url(" not in html
    assert "&lt;script&gt;" in html
    assert "<h1>a&lt;b</h1>" in html
    assert config_hash(load_config(run_dir / "config.yaml")) in html
    assert "1 min 30 s" in html
    audio = [source for source in page.sources if source.startswith("data:audio/flac")]
    levels, _ = soundfile.read(io.BytesIO(base64.b64decode(audio[0].split(",")[1])), dtype="float32")
    assert np.array_equal(levels, pair[0].audio[0])
    plots = sorted(path.name for path in (run_dir / "plots").iterdir())
    assert plots == ["before_after.png", "components.png", "learner.png", "total.png"]
    assert not list(run_dir.glob("*.tmp"))


def test_report_table_shows_the_figures(run_dir: Path, rows: list[MetricRow]) -> None:
    html = write_report(run_dir).read_text(encoding="utf-8")
    (error,) = (row for row in rows if row.name == "error")
    before, after = error.comparison.before, error.comparison.after
    assert f"<td>{before:.3f}</td><td>{after:.3f}</td><td>−0.200</td>" in html
    assert re.search(r"7 <span class=\"soft\">\(1 missing\)", html)
    assert '<span class="badge better">better</span>' in html
    assert '<span class="badge outside">evaluation only</span>' in html


def test_report_without_evaluation(run_dir: Path) -> None:
    (run_dir / "evaluation.json").unlink()
    (run_dir / "samples" / "index.json").unlink()
    html = write_report(run_dir).read_text(encoding="utf-8")
    assert "Before and after" not in html
    assert "Listen" not in html
    assert "Training" in html
    (run_dir / "metrics.jsonl").unlink()
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl"):
        write_report(run_dir)


def test_plots_draw_what_was_logged() -> None:
    metrics = [{"step": float(step), **step_metrics(step)} for step in (1, 2, 3)]
    made = figures(metrics, None, LIGHT)
    assert list(made) == ["total", "components", "learner"]
    (line,) = made["total"].axes[0].lines
    assert np.asarray(line.get_ydata()) == pytest.approx([0.6, 0.7, 0.8])
    (component,) = made["components"].axes[0].lines
    assert np.isnan(np.asarray(component.get_ydata())).tolist() == [False, True, False]
    slow, fast = made["learner"].axes[0].lines
    assert (slow.get_label(), fast.get_label()) == ("slow AR", "fast AR")
    assert svg(figures(metrics, None, DARK)["total"]) == svg(figures(metrics, None, DARK)["total"])
    assert figures([], None, LIGHT) == {}


def test_plain_lines_where_there_is_no_terminal() -> None:
    console = Console(file=io.StringIO(), width=40)
    with LiveView(9, console=console) as view:
        view.step(1, step_metrics(1))
        view.step(2, step_metrics(2))
        view.note("saved [checkpoint]")
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert output.splitlines() == [
        "step 1/9  total 0.6  error 0.4  KL slow 0.01  KL fast 0.02  30.0 s",
        plain_line(2, 9, step_metrics(2)),
        "saved [checkpoint]",
    ]
    assert "error -  " in output


def test_live_view_compares_with_the_first_steps() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    history = [{"step": float(step), **step_metrics(step)} for step in range(1, 7)]
    with LiveView(9, history, console) as view:
        view.step(7, step_metrics(7))
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert "7/9" in output
    assert "+0.4" in output  # 1.2, against 0.8 over steps 1 to 5
    assert "gated: 25.0%" in output


def test_terminal_table(rows: list[MetricRow]) -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(before_after_table(rows))
    lines = [line.strip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    (error,) = (i for i, line in enumerate(lines) if line.startswith("error "))
    assert lines.index("in the reward") < error < lines.index("evaluation only")
    assert "better" in lines[error]
    assert not any("…" in line for line in lines)
