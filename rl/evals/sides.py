"""What is evaluated: the clips of one side, read from a folder or sampled from a policy, and their scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import soundfile
from rich.progress import track

from rewards.graph import RewardGraph
from rewards.types import Clip, Scores
from rl.errors import EvalError
from rl.evals.recipe import Recipe, rewards_of
from rl.export.merge import find_source
from rl.parts import Parts, build_parts, sample_and_score
from rl.run_folder import CONFIG_FILE
from rl.schema import RunConfig
from rl.scoring import clip_of, clip_of_prompt
from rl.seeds import derive_seed
from rl.trainer.adapter import CONFIG_FILE as ADAPTER_FILE
from rl.trainer.adapter import merged_weights, open_adapter
from rollouts.types import Prompt

BASE = "base"
"""What ``--against`` calls the configuration's checkpoint without an adapter."""

ENDINGS = (".wav", ".flac")
"""Of audio files."""


@dataclass(frozen=True)
class Side:
    """``clips`` in the order of the prompts, and what the recipe's nodes say of them."""

    name: str
    clips: list[Clip]
    scores: Scores


@dataclass(frozen=True)
class Policy:
    """The configuration's checkpoint, with the adapter of a folder, if it names one."""

    adapter: Path | None = None

    @property
    def name(self) -> str:
        return BASE if self.adapter is None else str(self.adapter)


@dataclass(frozen=True)
class Folder:
    """Audio that is there, as ``<id>.wav`` or ``<id>.flac``."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)


Source = Policy | Folder


def source_of(given: str) -> Source:
    """What ``--against`` means: ``base``, the folder of an adapter or of a run, or one of audio.

    Raises `EvalError` where there is none, `RunFolderError` for a run without a checkpoint.
    """
    path = Path(given)
    if given == BASE and not path.exists():
        return Policy()
    if not path.is_dir():
        raise EvalError(f"--against {given}: no such folder; name one of audio, an adapter's, or {BASE}")
    if (path / ADAPTER_FILE).is_file() or (path / CONFIG_FILE).is_file():
        return Policy(find_source(path).adapter)
    return Folder(path)


def read_folder(folder: Path, prompts: Sequence[Prompt]) -> list[Clip]:
    """The clip of each prompt. Raises `EvalError` for a folder or file that is missing or can't be read."""
    if not folder.is_dir():
        raise EvalError(f"{folder}: no such folder; name one with a .wav or .flac for each id")
    files = {file.stem: file for file in sorted(folder.iterdir()) if file.suffix.lower() in ENDINGS}
    if not files:
        raise EvalError(f"{folder}: holds no .wav or .flac; name a folder with one for each id")
    missing = [prompt.id for prompt in prompts if prompt.id not in files]
    if missing:
        more = f" (nor of {len(missing) - 1} other ids of {len(prompts)})" if len(missing) > 1 else ""
        raise EvalError(f"{folder}: holds no {missing[0]}.wav or .flac{more}; make them, or use --items")
    return [clip_of_prompt(prompt, *_read_audio(files[prompt.id])) for prompt in prompts]


def score_clips(graph: RewardGraph, clips: Sequence[Clip], progress: str) -> Scores:
    """`RewardGraph.score` with a bar on the terminal, which says what it waits for."""
    with graph.stream() as stream:
        for clip in clips:
            stream.submit(clip)
        scored = dict(track(stream.rows(), progress, len(clips), update_period=1.0))
    return Scores.of([scored[i] for i in range(len(clips))], graph.output_names)


def evaluate_sides(
    sources: Sequence[Source], prompts: Sequence[Prompt], recipe: Recipe, config: RunConfig | None
) -> list[Side]:
    """The clips of each source and their scores, with the same seeds for all policies.

    Folders are scored by the recipe's graph; policies, which need a ``config``, by one made with the engine.
    Audio is read before anything is scored or sampled. Raises an `AuralignError`.
    """
    policies = [source for source in sources if isinstance(source, Policy)]
    if policies and config is None:
        raise EvalError("no configuration to sample with; add --config, e.g. --config grpo_tiny.yaml")
    read = {source: read_folder(source.path, prompts) for source in sources if isinstance(source, Folder)}
    sides: dict[Source, Side] = {}
    for source, clips in read.items():
        sides[source] = Side(source.name, clips, score_clips(recipe.graph, clips, f"scoring {source.name}"))
    if policies and config is not None:
        config = replace(
            config, rewards=rewards_of(recipe), evaluation=replace(config.evaluation, monitors={})
        )
        parts = build_parts(config)
        try:
            for policy in policies:
                sides[policy] = _sampled(policy, prompts, parts, config)
        finally:
            parts.engine.close()
            parts.judges.close()
    return [sides[source] for source in sources]


def _sampled(source: Policy, prompts: Sequence[Prompt], parts: Parts, config: RunConfig) -> Side:
    with _adapted(parts, source.adapter):
        record = sample_and_score(
            parts,
            parts.judges,
            prompts,
            config,
            samples=1,
            temperature=config.evaluation.temperature or config.rollouts.temperature,
            seed=derive_seed(config.seed, "evaluation"),
            step=0,
            split="sample",
            progress=f"scoring {source.name}",
        )
    broken = np.full(1, np.nan, np.float32)
    clips = [
        clip_of(rollout, broken if audio is None else audio, record.sample_rate)
        for rollout, audio in zip(record.rollouts, record.audio, strict=True)
    ]
    scores = Scores(record.values, record.total, record.reasons, record.details, record.gated)
    return Side(source.name, clips, scores)


@contextmanager
def _adapted(parts: Parts, adapter: Path | None) -> Iterator[None]:
    """The engine with an adapter's weights, and afterwards with the policy's own again."""
    if adapter is None:
        yield
        return
    adapted = open_adapter(parts.policy, adapter)
    merged = merged_weights(adapted)
    adapted.unload()
    parts.engine.load_weights(merged)
    yield
    parts.engine.load_weights({name: parts.policy.get_parameter(name).detach() for name in merged})


def _read_audio(file: Path) -> tuple[np.ndarray, int]:
    """Mono float32 ``[n]`` and its rate."""
    try:
        audio, rate = soundfile.read(file, dtype="float32", always_2d=True)
    except (OSError, soundfile.SoundFileError) as error:
        problem = " ".join(str(error).split())
        raise EvalError(f"{file}: isn't WAV or FLAC ({problem}); make it again") from error
    return audio.mean(axis=1), rate
