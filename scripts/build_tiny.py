#!/usr/bin/env python
"""Make the embedded voice from nothing: corpus, codec, policy, prompts (two to three hours on two cores)."""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))  # `scripts` is not an installed package

from scripts.tiny import corpus, make_prompts, train_codec, train_policy


def main() -> None:
    """Run the four stages into ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("work_tiny"), help="folder for the corpus (1 GB)")
    parser.add_argument("--out", type=Path, default=Path("rl/assets/tiny"), help="where the weights go")
    parser.add_argument("--utterances", type=int, default=24_000)
    parser.add_argument("--codec-steps", type=int, nargs="+", default=[2_600, 4_000], help="of each cycle")
    parser.add_argument("--policy-steps", type=int, nargs="+", default=[1_200, 5_000], help="of each cycle")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    corpus.build(arguments.work, arguments.utterances, with_audio=3_000, seed=1, workers=2)
    train_codec.train(arguments.work, arguments.out / "codec", arguments.codec_steps)
    policy = arguments.out / "policy"
    for seed, steps in enumerate(arguments.policy_steps):
        train_policy.train(arguments.work, policy, steps, seed=seed, start=policy if seed else None)
    train_policy.make_usual(policy, temperature=0.7)
    make_prompts.write(arguments.out / "prompts")


if __name__ == "__main__":
    main()
