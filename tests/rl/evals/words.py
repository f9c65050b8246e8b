"""Edit distance, written out."""

from collections.abc import Sequence


def edit_distance(one: Sequence[str], other: Sequence[str]) -> int:
    """The least number of words to put in, take out or replace."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        above, row = row, [i]
        for j, b in enumerate(other, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (a != b)))
    return row[-1]
