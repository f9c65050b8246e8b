"""Codecs: audio to codes ``[T, K]`` and back."""
