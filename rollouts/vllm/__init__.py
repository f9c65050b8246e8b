"""Sampling both ARs inside vLLM: an out-of-tree model, its runner adapters, and the engine."""

import os

# vLLM reads these when it is first imported: a run's own output stays readable, and nothing is reported.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
