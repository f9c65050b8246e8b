"""The benchmarks of the field on a checkpoint, an adapter or a folder of audio. See docs/evaluation.md."""

SUITES = ("seed_tts", "long_tts", "instruct", "tags", "custom")
"""Each has a file here that reads its data, and a recipe of this name in configs/evals."""
