"""Policy, codec, adapter and prompts: there, whole, and made for each other? Headers only; no weight is
loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import soundfile

from rl.arithmetic.memory import CodecShape, s2_codec_shape
from rl.arithmetic.shapes import policy_parameters
from rl.codec.base import Codec
from rl.codec.s2 import S2Codec
from rl.codec.tiny import TinyCodec
from rl.doctor.check import Check, failed, gib
from rl.errors import AuralignError, PromptError
from rl.parts import fitting_codec
from rl.policy.configuration import DualARConfig
from rl.policy.files import read_config, weight_files
from rl.policy.loading import checkpoint_folder, load_tokenizer
from rl.policy.prompts import prompt_rows
from rl.prompts_file import load_prompts
from rl.schema import RunConfig
from rl.trainer.adapter import check_adapter
from rl.trainer.run import check_amounts, check_fresh
from rl.trainer.run import run_folder as folder_of
from rollouts.types import Prompt, Reference

FETCH = "fetch the whole checkpoint, or name another in model.path"


@dataclass(frozen=True)
class Policy:
    """A checkpoint's folder and config, and the bytes of its ``tokenizer``."""

    folder: Path
    config: DualARConfig
    tokenizer: int


def policy(run: RunConfig) -> tuple[Check, Policy | None]:
    """Config, tokenizer, and every tensor's name and shape."""
    try:
        folder = checkpoint_folder(run.model.path)
        config = read_config(folder)
        load_tokenizer(folder)
        config.prompt_format = run.model.prompt_format or config.prompt_format
        stored = sum(file.stat().st_size for file in weight_files(folder))
    except AuralignError as error:
        return failed("policy", error, FETCH), None
    words = f"{folder}: {policy_parameters(config):,} parameters, {gib(stored)} on disk"
    return Check("policy", words), Policy(folder, config, (folder / "tokenizer.json").stat().st_size)


def codec(run: RunConfig, config: DualARConfig) -> tuple[Check, CodecShape | None]:
    """Its tensors' names and shapes, and that its codebooks are the policy's."""
    try:
        found = fitting_codec(config, run, "meta")
    except AuralignError as error:
        return failed("codec", error, "name a codec in model.codec"), None
    rates = f"{found.sample_rate} Hz, {found.frame_rate:.3g} frames a second"
    return Check("codec", f"{len(found.codebook_sizes)} codebooks, {rates}"), codec_shape(found)


def codec_shape(found: Codec) -> CodecShape:
    """What an estimate needs of a codec, loaded or on the device ``meta``."""
    assert isinstance(found, S2Codec | TinyCodec), "a codec of another class needs a shape of its own"
    parameters = sum(tensor.numel() for tensor in found.state_dict().values())
    if isinstance(found, S2Codec):
        return s2_codec_shape(found.config, parameters)
    return CodecShape(4 * parameters, round(found.sample_rate / found.frame_rate), found.sample_rate, 0)


def adapter(run: RunConfig, folder: Path) -> list[Check]:
    """The adapter to go on from, where there is one: plain LoRA, of this policy, made as the keys under lora
    say."""
    named = run.lora.adapter
    if named is None:
        return []
    try:
        check_adapter(Path(named), folder, run.lora)
    except AuralignError as error:
        return [failed("adapter", error, "name another in lora.adapter")]
    return [Check("adapter", named)]


def prompts(run: RunConfig) -> tuple[list[Check], list[Prompt]]:
    """Both prompt files, line by line, and whether there are as many as a step and the evaluation ask for."""
    checks, train = [], list[Prompt]()
    for key, spec in (("prompts.train", run.prompts.train), ("prompts.heldout", run.prompts.heldout)):
        if key == "prompts.heldout" and not run.evaluation.enabled:
            continue
        try:
            found = load_prompts(spec)
        except AuralignError as error:
            checks.append(failed(key, error, f"mend that line, or name another file in {key}"))
            continue
        checks.append(Check(key, f"{spec}: {len(found)}"))
        train = train or (found if key == "prompts.train" else [])
    if all(check.verdict == "ok" for check in checks):
        try:
            check_amounts(run, train, run.cluster.learners)
        except AuralignError as error:
            checks.append(failed("amounts", error))
    return checks, train


def longest_prompt(found: list[Prompt], known: Policy, frame_rate: float) -> int:
    """Tokens of the longest prompt, the frames of its references among them.

    Raises `PromptError` where a reference can't be read, and what opening the tokenizer does.
    """
    books = known.config.num_codebooks
    longest = max(found, key=lambda prompt: len(prompt.text) + sum(_frames(prompt, frame_rate)))
    voices = [
        Reference(said["text"], np.zeros((frames, books), np.int64))
        for said, frames in zip(_references(longest), _frames(longest, frame_rate), strict=True)
    ]
    whole = replace(longest, references=tuple(voices))
    return int(prompt_rows(whole, load_tokenizer(known.folder), known.config).shape[1])


def run_folder(run: RunConfig) -> list[Check]:
    """A run of this name that is there already."""
    try:
        check_fresh(folder_of(run))
    except AuralignError as error:
        return [failed("run folder", error, verdict="warning")]
    return []


def _references(prompt: Prompt) -> list[dict[str, str]]:
    return prompt.meta.get("references", [])


def _frames(prompt: Prompt, frame_rate: float) -> list[int]:
    """Of each reference's audio, by its header."""
    frames = []
    for one in _references(prompt):
        try:
            frames.append(math.ceil(soundfile.info(one["audio"]).duration * frame_rate))
        except soundfile.SoundFileError as error:
            raise PromptError(
                f"reference {one['audio']}: can't be read ({error}); name an audio file"
            ) from error
    return frames
