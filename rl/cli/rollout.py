"""``rl-rollout``: sample, decode, score and save, without training."""

from __future__ import annotations

from collections.abc import Sequence

from rl.cli.common import parse, run_main


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; ``argv`` defaults to the process's arguments. Returns the exit code."""
    return run_main(lambda: _rollout(argv))


def _rollout(argv: Sequence[str] | None) -> None:
    command = parse("rl-rollout", "Sample a policy on prompts, score and save; no training.", argv)
    from rl.sample import sample_only  # imports torch, which --help and wrong configurations needn't wait for

    sample_only(command.config)
