"""The arithmetic of the total: right values, missing values, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.expression import FUNCTIONS, Expression, parse_expression
from rl.errors import ConfigError

KNOWN = ("asr.confidence", "quality", "error")


def resolve(name: str) -> str:
    if name not in KNOWN:
        raise ConfigError(f"rewards.total: there is no node {name}")
    return name


def parse(text: str) -> Expression:
    return parse_expression(text, resolve, "rewards.total")


def evaluate(text: str, **columns: list[float]) -> list[float]:
    values = {name.replace("__", "."): np.array(column) for name, column in columns.items()}
    return parse(text).evaluate(values).tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("quality", [0.5, 2.0]),
        ("1 - error", [0.75, 0.0]),
        ("0.5*asr.confidence + 0.5*quality", [0.35, 1.4]),
        ("exp(-3*error)", [np.exp(-0.75), np.exp(-3)]),
        ("where(error > 0.5, 0, exp(-3*error))", [np.exp(-0.75), 0.0]),
        ("(error <= 0.5) * quality", [0.5, 0.0]),
        ("(error < 0.25) - (error >= 0.25)", [-1.0, -1.0]),
        ("(error == 1) + 2*(error != 1)", [2.0, 1.0]),
        ("min(quality, error, 0.4)", [0.25, 0.4]),
        ("max(quality, error)", [0.5, 2.0]),
        ("clip(quality, 0.6, 1)", [0.6, 1.0]),
        ("sqrt(abs(-error)) ** 2", [0.25, 1.0]),
        ("log(quality) / 2", [np.log(0.5) / 2, np.log(2) / 2]),
        ("+quality", [0.5, 2.0]),
    ],
)
def test_values(text: str, expected: list[float]) -> None:
    got = evaluate(text, asr__confidence=[0.2, 0.8], quality=[0.5, 2.0], error=[0.25, 1.0])
    assert got == pytest.approx(expected)


@pytest.mark.parametrize(
    "text", ["where(error > 0.5, 1, 2)", "min(error, 1)", "error < 2", "0*error", "error**0"]
)
def test_a_missing_value_is_never_hidden(text: str) -> None:
    got = evaluate(text, error=[np.nan, 0.25])
    assert np.isnan(got[0])
    assert np.isfinite(got[1])


def test_an_unused_missing_value_does_no_harm() -> None:
    assert evaluate("quality", quality=[1.0], error=[np.nan]) == [1.0]


def test_names_in_order_without_repeats() -> None:
    assert parse("quality + asr.confidence*quality").names == ("quality", "asr.confidence")


def test_infinity_is_left_to_the_caller() -> None:
    assert evaluate("log(error)", error=[0.0]) == [-np.inf]
    assert evaluate("1/error", error=[0.0]) == [np.inf]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must be an expression"),
        ("   ", "must be an expression"),
        ("0.5 *", "no arithmetic expression"),
        ("1.0", "uses no node output"),
        ("qualty", "there is no node qualty"),
        ("ecp(error)", "there is no function ecp; did you mean exp?"),
        ("clip(error)", "can't be evaluated"),
        ("exp(error, error, error)", "can't be evaluated"),
        ("exp(x=error)", "without names"),
        ("max(*error)", "isn't allowed"),
        ("error > 0 and quality > 0", "isn't allowed"),
        ("0 < error < 1", "product of two comparisons"),
        ("error if quality else 0", "isn't allowed"),
        ("quality['x']", "isn't allowed"),
        ("[error]", "isn't allowed"),
        ("lambda: error", "isn't allowed"),
        ("error % 2", "isn't allowed"),
        ("(error := 1)", "isn't allowed"),
        ("'quality'", "without quotes"),
        ("error + True", "no number"),
        ("asr.confidence.mean", "isn't allowed"),
        ("quality.__class__", "there is no node quality.__class__"),
        ("().__class__", "isn't allowed"),
        ("__import__('os')", "there is no function __import__"),
        ("error.tofile('x')", "there is no function error.tofile"),
        ("exp(error)(1)", "there is no function exp(error)"),
        ("1e999*error", "too large for a number"),
        (f"1{'0' * 400}*error", "too large for a number"),
        ("error + log(0)", "'log(0)' isn't a finite number"),
        ("error + 2**9999", "'2 ** 9999' isn't a finite number"),
        ("where(error > 0, 1/0, 1)", "'1 / 0' isn't a finite number"),
        ("quality / (2 - 2)", "'quality / (2 - 2)' divides by zero"),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    message = str(caught.value)
    assert words in message
    assert message.startswith("rewards.total: ")
    assert "\n" not in message


@given(st.text(max_size=40))
def test_any_text_is_an_expression_or_a_config_error(text: str) -> None:
    try:
        result = parse(text).evaluate({name: np.ones(3) for name in KNOWN})
    except ConfigError:
        return
    assert result.shape == (3,)


numbers = st.floats(0.1, 10).map(lambda x: f"{x:.3f}")
terms = st.recursive(
    numbers | st.sampled_from(KNOWN),
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*"]), inner)
        | st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), inner, inner)
        | st.builds("abs({})".format, inner)
    ),
    max_leaves=8,
)


@given(terms, st.lists(st.floats(-5, 5), min_size=3, max_size=3))
def test_agrees_with_python_on_single_clips(text: str, row: list[float]) -> None:
    used = f"{text} + error"
    values = dict(zip(KNOWN, row, strict=True))
    got = parse(used).evaluate({name: np.array([value]) for name, value in values.items()})
    plain = used.replace("asr.confidence", "confidence")
    names = {"confidence": row[0], "quality": row[1], "error": row[2], "min": min, "max": max, "abs": abs}
    assert got[0] == pytest.approx(eval(plain, {"__builtins__": {}}, names))


def test_every_function_is_documented(docs: str) -> None:
    for name in FUNCTIONS:
        assert f"`{name}`" in docs
