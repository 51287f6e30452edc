"""Lines that a login prints without an end hold the reading of an answer neither long nor wrong."""

from __future__ import annotations

import time

import pytest
from clusterctl.remote import python

_ANSWER = b'{"killed": [], "left": []}'


@pytest.mark.parametrize("noise", [b"\n", b"{\n", b'{"killed": 1}\n', b"\r\n", b"{", b"x{\n", b"\n{\n"], ids=repr)
def test_lines_without_end_take_no_time(noise: bytes) -> None:
    output = noise * ((1 << 22) // len(noise))
    began = time.monotonic()
    assert python.last_answer(output, ("killed", "left")) is None
    assert python.last_answer(output + b"\n" + _ANSWER, ("killed", "left")) == {"killed": [], "left": []}
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(
    "output", [_ANSWER, b"hello\n" + _ANSWER + b"\nbye\n", _ANSWER + b"\r\n{x\n", b"{}\n" + _ANSWER]
)
def test_the_answer_is_found_among_other_lines(output: bytes) -> None:
    assert python.last_answer(output, ("killed", "left")) == {"killed": [], "left": []}


def test_the_last_of_two_answers_counts() -> None:
    assert python.last_answer(b'{"a": 1}\n{"a": 2}\n', ("a",)) == {"a": 2}
