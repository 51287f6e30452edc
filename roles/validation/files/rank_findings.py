"""Compare a rank's answers with what they must be, and keep the first wrong ones.

It needs the standard library only; arrays are numpy's.
"""

from __future__ import annotations

from typing import Any

MOST_PROBLEMS = 4  # a line stays below what a pipe writes in one piece
TEXT_LIMIT = 160


class Findings:
    """Compare answers with what they must be."""

    def __init__(self) -> None:
        """Begin with nothing compared."""
        self.compared = 0
        self.wrong = 0
        self.problems: list[dict[str, str]] = []

    def array(self, what: str, got: Any, expected: Any, part: int = 0, tolerance: float = 0.0) -> None:
        """Compare two numpy arrays value by value.

        Args:
            what: the operation, in words.
            got: what came.
            expected: what had to come.
            part: so many values each came from one rank.
            tolerance: by so much times the expected value it may be missed; not-a-number always is.
        """
        self.compared += int(expected.size)
        if got.shape != expected.shape or got.dtype != expected.dtype:
            self.note(what, [list(expected.shape), str(expected.dtype)], [list(got.shape), str(got.dtype)])
            return
        right = abs(got - expected) <= tolerance * abs(expected) if tolerance else got == expected
        different = (~right).reshape(-1).nonzero()[0]
        if different.size:
            first = int(different[0])
            place = f"value {first % part} from rank {first // part}" if part else f"value {first}"
            where = f"{what}, {place} ({different.size} of {expected.size} wrong)"
            self.note(where, expected.reshape(-1)[first].item(), got.reshape(-1)[first].item())

    def value(self, what: str, got: object, expected: object) -> None:
        """Compare two Python objects."""
        self.compared += 1
        if got != expected:
            self.note(what, expected, got)

    def near(self, what: str, got: float, expected: float, tolerance: float) -> None:
        """Compare two numbers that may differ by ``tolerance`` times the expected one; not-a-number is near nothing."""
        self.compared += 1
        if not abs(got - expected) <= tolerance * abs(expected):
            self.note(what, f"{expected!r} within {tolerance:g} of it", got)

    def note(self, what: str, expected: object, got: object) -> None:
        """Keep the first few wrong answers and count the rest."""
        self.wrong += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append({"what": what, "expected": shortened(expected), "got": shortened(got)})


def shortened(value: object) -> str:
    """Return a value as text of bounded length."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= TEXT_LIMIT else text[: TEXT_LIMIT - 3] + "..."
