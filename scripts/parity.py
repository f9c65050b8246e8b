#!/usr/bin/env python
"""Compare a checkpoint with the golden outputs beside it; one JSON line, exit 1 above 1e-4."""

import argparse
import json
import sys

from rl.cli.common import run_main
from rl.codec.parity import codec_parity
from rl.policy.parity import TOLERANCE, parity


def main() -> None:
    """Parse, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", help="checkpoint in the published layout with golden.safetensors")
    parser.add_argument("--codec", action="store_true", help="compare the folder's codec, not its policy")
    arguments = parser.parse_args()
    differences = codec_parity(arguments.directory) if arguments.codec else parity(arguments.directory)
    print(json.dumps(differences))
    if not max(differences.values()) <= TOLERANCE:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(run_main(main))
