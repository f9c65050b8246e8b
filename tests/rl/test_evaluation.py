"""What the evaluation knows of the judges' outputs."""

from rewards.direction import lower_is_better
from rewards.graph import build_graph


def test_error_rates_and_repeats_are_better_when_lower() -> None:
    graph = build_graph(
        {
            "nodes": {
                "asr": {"type": "whisper"},
                "error": {"type": "error_rate", "of": "asr.text"},
                "quality": {"type": "dnsmos"},
            },
            "total": "quality - error",
        },
        {"outside": {"type": "pocketsphinx"}},
    )
    assert lower_is_better(graph) == {"error", "asr.loops", "outside"}
