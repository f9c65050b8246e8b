"""Does the clip follow its instruction? A language model's grade of a description, from an endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewards.endpoints.captions import split_captions
from rewards.endpoints.chat import ChatNode, answer_text, served_model
from rewards.endpoints.request import Body, Request
from rewards.endpoints.verdict import RESPONSE_FORMATS, RUBRIC, instruction_of, parse_score, question
from rewards.node import Answer, NodeError, Row, Value, option, reads
from rewards.types import Clip


@dataclass(kw_only=True)
class JudgeEndpoint(ChatNode):
    """A language model's score, 0 to 100, of how far a caption is what the instruction asks for.

    The instruction is the prompt's ``instruction`` or else the ``[tags]`` of its text; a prompt without any
    asks for nothing and has 100. Where the captioner gives several descriptions, each is graded and the mean
    is taken. One grade that can't be had makes the clip missing: a score is never guessed.
    """

    caption: str = reads("text", "what a captioner says, such as caption.text")
    prompt: str = option(RUBRIC, "the system message; it must ask for a whole number from 0 to 100")
    response_format: str = option(
        "json_schema", "what the server can be held to", choices=tuple(RESPONSE_FORMATS)
    )

    def score(self, clips: Sequence[Clip], inputs: Mapping[str, Sequence[Any]]) -> Sequence[Row]:
        instructions = [instruction_of(clip) for clip in clips]
        groups = [
            [] if instruction is None else self._requests(instruction, clip.text, captions)
            for instruction, clip, captions in zip(instructions, clips, inputs["caption"], strict=True)
        ]
        graded = zip(instructions, self.ask(groups), strict=True)
        return [100.0 if instruction is None else _row(instruction, bodies) for instruction, bodies in graded]

    def _requests(self, instruction: str, text: str, captions: str) -> list[Request]:
        return [
            self.request(
                [
                    {"role": "system", "content": self.prompt},
                    {"role": "user", "content": question(instruction, text, caption)},
                ],
                response_format=RESPONSE_FORMATS[self.response_format],
            )
            for caption in split_captions(captions)
        ]


def _row(instruction: str, bodies: Sequence[Body | NodeError]) -> Answer:
    grades = [_grade(body) for body in bodies]
    scores = [score for _, score in grades if isinstance(score, int)]
    failed = [(n, why) for n, (_, why) in enumerate(grades, 1) if isinstance(why, NodeError)]
    value: Value | NodeError
    if failed:
        number, why = failed[0]
        value = NodeError(f"caption {number} of {len(grades)}: {why}" if len(grades) > 1 else str(why))
    else:
        value = sum(scores) / len(scores)
    details = {
        "instruction": instruction,
        "answers": [answer for answer, _ in grades],
        "scores": [score if isinstance(score, int) else None for _, score in grades],
        "model": served_model(bodies),
    }
    return Answer({"": value}, details)


def _grade(body: Body | NodeError) -> tuple[str | None, int | NodeError]:
    """The raw answer, if there is one, and its score, or why there is none."""
    answer = None
    try:
        answer = answer_text(body)
        return answer, parse_score(answer)
    except NodeError as error:
        return answer, error
