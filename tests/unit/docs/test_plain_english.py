"""Pages are quick to read: the README is short, and sentences are short."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MOST_WORDS_ON_AVERAGE = 18
MOST_WORDS = 25  # in the README, tables count too
# Code, tables and pictures are not prose.
LEFT_OUT = re.compile(r"(?s:```.*?```|<!--.*?-->)|^(?: {4}|\t|\|).*$|^#.*$|^!\[.*$", re.MULTILINE)
END_OF_SENTENCE = re.compile(r"(?<=[.!?:])\s+|\n\s*\n|\n\s*(?:[-*]|\d+\.) ")


def pages() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if not name.startswith(("tests/data/", ".github/"))]


def sentences(page: str) -> list[str]:
    text = LEFT_OUT.sub("", (ROOT / page).read_text(encoding="utf-8"))
    found = (" ".join(sentence.split()) for sentence in END_OF_SENTENCE.split(text))
    return [sentence for sentence in found if len(sentence.split()) > 1]


def test_no_sentence_of_the_readme_is_long() -> None:
    left_out = re.compile(r"(?s:```.*?```)|^!.*$|\]\([^)]*\)", re.MULTILINE)
    text = left_out.sub("", (ROOT / "README.md").read_text(encoding="utf-8"))
    found = re.split(r"(?<=[.!?])\s+|\n\s*\n|\n\s*[-#]|\|", text)
    assert [one for one in found if len(one.split()) > MOST_WORDS] == []


@pytest.mark.parametrize("page", pages())
def test_sentences_are_short(page: str) -> None:
    counts = {sentence: len(sentence.split()) for sentence in sentences(page)}
    if counts:
        assert sum(counts.values()) / len(counts) <= MOST_WORDS_ON_AVERAGE
        assert [sentence for sentence, words in counts.items() if words > MOST_WORDS] == []


def test_a_long_sentence_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A title\n\n" + "word " * 40 + "end. Short one.\n\n    code is no prose " + "x " * 50, encoding="utf-8"
    )
    assert [len(sentence.split()) for sentence in sentences(str(page))] == [41, 2]
