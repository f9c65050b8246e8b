"""Which outputs count mistakes."""

from __future__ import annotations

from rewards.graph import RewardGraph
from rewards.nodes.error_rate import ErrorRate
from rewards.nodes.pocketsphinx import Pocketsphinx
from rewards.nodes.repetition import Repetition
from rewards.nodes.whisper import Whisper


def lower_is_better(graph: RewardGraph) -> set[str]:
    """Outputs that count mistakes: error rates, repetitions, and the repeats that a recogniser heard."""
    kinds = (ErrorRate, Pocketsphinx, Repetition)
    names = {name for name, node in graph.nodes.items() if isinstance(node, kinds)}
    return names | {f"{name}.loops" for name, node in graph.nodes.items() if isinstance(node, Whisper)}
