"""What `scripts/bench.py` runs: each against a baseline in the same run, the last line one JSON object."""
