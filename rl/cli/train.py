"""``rl-train``: train a policy, with an evaluation before and after."""

from __future__ import annotations

from collections.abc import Sequence

from rl.cli.common import parse, run_main


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; ``argv`` defaults to the process's arguments. Returns the exit code."""
    return run_main(lambda: _train(argv))


def _train(argv: Sequence[str] | None) -> None:
    command = parse(
        "rl-train", "Train a Dual-AR speech policy with reinforcement learning.", argv, resumable=True
    )
    if command.replay is not None:
        from rl.trainer.replay import replay

        replay(command.config, command.replay)
        return
    from rl.trainer.run import train  # imports torch, which --help and wrong configurations needn't wait for

    train(command.config, resume=command.resume)
