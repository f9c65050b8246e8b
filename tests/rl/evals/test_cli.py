"""What is wrong with a command line, and with audio: one line each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from rl.cli.eval import main

SEED = ["--suite", "seed_tts", "--data", "tiny"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "--suite: name one; there are: seed_tts, long_tts, instruct, tags, custom"),
        (["--suite", "seed"], "--suite seed: there is no such suite; did you mean seed_tts?"),
        (["--suite", "x"], "--suite x: there is no such suite; there are: seed_tts, "),
        (["--suite", "tags"], "--data: name the benchmark's file or folder, or tiny"),
        ([*SEED], "nothing to evaluate; add --config, e.g. --config grpo_tiny.yaml, or --audio DIR"),
        ([*SEED, "seed=3"], "seed=3: a key of the configuration, but there is no --config"),
        ([*SEED, "--config", "absent"], "absent: no such configuration file"),
        ([*SEED, "--config", "grpo_tiny", "seeed=1"], "there is no key seeed; did you mean seed?"),
        ([*SEED, "--audio", "absent"], "absent: no such folder; name one with a .wav or .flac for each id"),
        ([*SEED, "--audio", ".", "--adapter", "x"], "--audio and --adapter"),
        (
            [*SEED, "--audio", ".", "--against", "absent"],
            "--against absent: no such folder; name one of audio",
        ),
        ([*SEED, "--audio", ".", "--recipe", "absent"], "absent: no such evals file"),
        (
            [*SEED, "--config", "grpo_tiny", "--adapter", "."],
            "neither a run folder (config.yaml) nor an adapter's",
        ),
        (["--suite", "tags", "--data", "absent", "--audio", "."], "--data absent: no such file or folder"),
        ([*SEED, "--audio", ".", "eval.nodes.asr.model=x9"], "model x9 is neither a file or folder here"),
    ],
)
def test_one_line_each(
    argv: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert words in said
    assert said.count("\n") == 1


def test_audio_that_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*SEED, "--audio", str(tmp_path)]
    (tmp_path / "notes.txt").write_text("")
    assert main(argv) == 2
    assert "holds no .wav or .flac; name a folder with one for each id\n" in capsys.readouterr().err
    soundfile.write(tmp_path / "tiny_0.WAV", np.zeros(1600), 16000, format="WAV")
    assert main(argv) == 2
    assert (
        "holds no tiny_1.wav or .flac (nor of 2 other ids of 4); make them, or use --items"
        in capsys.readouterr().err
    )
    (tmp_path / "tiny_1.flac").write_bytes(b"fLaC?")
    assert main([*argv, "--items", "2"]) == 2
    said = capsys.readouterr().err
    assert "tiny_1.flac: isn't WAV or FLAC" in said
    assert said.count("\n") == 1
    assert main([*SEED, "--audio", str(tmp_path), "--against", "base", "--items", "1"]) == 2
    assert "no configuration to sample with; add --config" in capsys.readouterr().err


def test_items_is_a_number_from_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*SEED, "--items", "0"])
    assert "must be a whole number from 1, not '0'" in capsys.readouterr().err


def test_help_and_wrong_suites_do_not_wait_for_torch() -> None:
    script = (
        "import sys\nfrom rl.cli.eval import main\n"
        "main(['--suite', 'x'])\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print('heavy:', sorted({'torch', 'transformers', 'ray', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("heavy: []\n")
