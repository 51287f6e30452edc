"""Each promise of the page on security names the tests that hold it, and those tests exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "explanation" / "security.md"
TEST = re.compile(r"`(tests/[a-z_/]+\.py)::(test_[a-z0-9_]+)`")


def promises() -> list[str]:
    tables = PAGE.read_text(encoding="utf-8").split("| promise | test |\n|---|---|\n")[1:]
    return [line for table in tables for line in table.split("\n\n")[0].splitlines()]


@pytest.mark.parametrize("promise", promises())
def test_a_promise_names_tests_that_exist(promise: str) -> None:
    named = TEST.findall(promise)
    assert named
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"


def test_every_table_is_looked_at() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(promises()) == sum(bool(TEST.search(line)) for line in text.splitlines())
