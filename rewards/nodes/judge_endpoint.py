"""Does the clip follow its instruction? A language model's grade of a description, from an endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewards.endpoints.captions import split_captions
from rewards.endpoints.chat import ChatNode, answer_text, served_model
from rewards.endpoints.request import Body, Request
from rewards.endpoints.verdict import RESPONSE_FORMATS, RUBRIC, instruction_of, parse_score, question
from rewards.node import Answer, NodeError, Row, option, reads
from rewards.types import Clip


@dataclass(kw_only=True)
class JudgeEndpoint(ChatNode):
    """0 to 1: a language model's score, 0 to 100, of a caption against the instruction, over 100.

    Where the caption node gives several descriptions, each is graded and the mean is taken. One grade that
    can't be had makes the clip missing: a score is never guessed. A prompt without an instruction is missing.
    """

    of: str = reads("text", "the caption")
    prompt: str = option(RUBRIC, "the system message; it must ask for a whole number from 0 to 100")
    response_format: str = option(
        "json_schema", "what the server can be held to", choices=tuple(RESPONSE_FORMATS)
    )

    def score(self, clips: Sequence[Clip], inputs: Mapping[str, Sequence[Any]]) -> Sequence[Row]:
        rows: list[Row] = []
        groups: list[list[Request]] = []
        for clip, caption in zip(clips, inputs["of"], strict=True):
            try:
                groups.append(self._requests(clip, caption))
                rows.append(0.0)
            except NodeError as error:
                groups.append([])
                rows.append(error)
        return [_row(bodies) if bodies else row for row, bodies in zip(rows, self.ask(groups), strict=True)]

    def _requests(self, clip: Clip, captions: str) -> list[Request]:
        instruction = instruction_of(clip)
        return [
            self.request(
                [
                    {"role": "system", "content": self.prompt},
                    {"role": "user", "content": question(instruction, clip.text, caption)},
                ],
                response_format=RESPONSE_FORMATS[self.response_format],
            )
            for caption in split_captions(captions)
        ]


def _row(bodies: Sequence[Body | NodeError]) -> Answer:
    grades = [_grade(body) for body in bodies]
    scores = [score if isinstance(score, int) else None for _, score in grades]
    missing = [
        f"caption {n} of {len(grades)}: {s}" for n, (_, s) in enumerate(grades, 1) if scores[n - 1] is None
    ]
    given = [score for score in scores if score is not None]
    value = NodeError(missing[0]) if missing else sum(given) / len(given) / 100
    details = {"answers": [answer for answer, _ in grades], "scores": scores, "model": served_model(bodies)}
    return Answer({"": value}, details)


def _grade(body: Body | NodeError) -> tuple[str | None, int | NodeError]:
    """The raw answer, if there is one, and its score, or why there is none."""
    answer = None
    try:
        answer = answer_text(body)
        return answer, parse_score(answer)
    except NodeError as error:
        return answer, error
