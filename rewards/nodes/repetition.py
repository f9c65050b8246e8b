"""Does a transcript say things again and again?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rewards.node import Answer, Node, NodeError, option, reads
from rewards.text import NORMALISERS, units
from rewards.types import Clip


@dataclass
class Repetition(Node):
    """Share of a transcript's words that only repeat the words before them, beyond the text's own repeats.

    0 is none; "go on go on go on" for the text "go on" is 2/3. In languages written without spaces the
    characters count.
    """

    of: str = reads("text", "the transcript")
    normalise: str = option("english", "how both texts are made comparable", choices=NORMALISERS)

    def score_clip(self, clip: Clip, **inputs: Any) -> Answer:
        heard, wanted = (units(text, self.normalise) for text in (inputs["of"], clip.spoken))
        if not wanted:
            raise NodeError("no text to compare with is left after normalising")
        extra = max(0, repeated(heard) - repeated(wanted))
        return Answer({"": extra / len(heard) if heard else 0.0}, {"repeated": extra})


def repeated(words: list[str]) -> int:
    """How many of ``words`` are left out when every run that stands several times in a row is said once.

    Shorter runs go first: "a a b a a b" is "a b a b", then "a b".
    """
    left = list(words)
    size = 1
    while size <= len(left) // 2:
        i = size
        while i + size <= len(left):
            if left[i - size : i] == left[i : i + size]:
                del left[i : i + size]
            else:
                i += 1
        size += 1
    return len(words) - len(left)
