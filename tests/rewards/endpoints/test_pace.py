"""What servers say about when to come back."""

from __future__ import annotations

import datetime
import email.utils
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.endpoints.pace import duration, retry_after


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("1h2m3.5s", 3723.5),
        ("20ms", 0.02),
        ("1m20ms", 60.02),
        ("60", 60.0),
        ("0.5", 0.5),
        ("", 0.0),
        ("soon", 0.0),
        ("-3s", 0.0),
        ("3 s", 0.0),
    ],
)
def test_duration(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


def test_retry_after() -> None:
    assert retry_after({}) == 0
    assert retry_after({"retry-after": "7"}) == 7
    assert retry_after({"retry-after": "7", "retry-after-ms": "1500"}) == 1.5
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=90)
    assert 60 < retry_after({"retry-after": email.utils.format_datetime(later)}) <= 90
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    assert retry_after({"retry-after": "tomorrow"}) == 0


@given(st.text() | st.from_regex(r"[0-9.]+(ms|s|m|h|d)?", fullmatch=True))
def test_no_header_is_an_error(text: str) -> None:
    assert duration(text) >= 0
    assert retry_after({"retry-after": text, "retry-after-ms": text}) >= 0


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_duration_adds_up(hours: int, minutes: int, seconds: int, ms: int) -> None:
    expected = hours * 3600 + minutes * 60 + seconds + ms / 1000
    assert math.isclose(duration(f"{hours}h{minutes}m{seconds}s{ms}ms"), expected, abs_tol=1e-9)
