#!/usr/bin/env python
"""Compare a checkpoint directory with the golden outputs beside it; one JSON line, exit 1 above 1e-4."""

import argparse
import json
import sys

from rl.cli.common import run_main
from rl.policy.parity import TOLERANCE, parity


def main() -> None:
    """Parse, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", help="checkpoint in the published layout with golden.safetensors")
    differences = parity(parser.parse_args().directory)
    print(json.dumps(differences))
    if not max(differences.values()) <= TOLERANCE:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(run_main(main))
