"""Whose turn is it? Each turn's voiceprint against every voice that it might be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rewards.node import NodeError


def turn_confidences(
    speakers: Sequence[str],
    turns: Sequence[np.ndarray | None],
    voices: Mapping[str, np.ndarray],
    *,
    temperature: float,
    same_voice: float,
    other_voice: float,
) -> list[float | None]:
    """How likely each turn is its speaker's: 0 to 1, None for a turn that isn't spoken.

    ``speakers[i]`` is whom turn i should be of, ``turns[i]`` its unit-length embedding ``[d]`` or None,
    ``voices`` the reference embeddings by speaker. The confidence is the softmax, over all speakers, of the
    cosines over ``temperature``. A speaker without a reference is stood for by the mean of the other turns
    that should be of them; one heard in this turn alone by the constant ``same_voice``, and a voice without
    rivals has ``other_voice`` as one. Raises `NodeError` for a single turn without a reference: the prompt's
    fault.
    """
    if len(turns) == 1 and not voices:
        raise NodeError("one turn and no reference voice: nothing to compare the turn with")
    found: list[float | None] = []
    for i, turn in enumerate(turns):
        if turn is None:
            found.append(None)
            continue
        cosines: dict[str, float] = {}
        for name in dict.fromkeys([*speakers, *voices]):
            others = [
                other for j, other in enumerate(turns) if j != i and speakers[j] == name and other is not None
            ]
            if name in voices:
                cosines[name] = float(turn @ voices[name])
            elif others:
                mean = np.mean(others, axis=0)
                cosines[name] = float(turn @ mean / np.linalg.norm(mean))
        own = cosines.pop(speakers[i], None)
        scores = np.array([same_voice if own is None else own, *(cosines.values() or [other_voice])])
        weights = np.exp((scores - scores.max()) / temperature)
        found.append(float(weights[0] / weights.sum()))
    return found
