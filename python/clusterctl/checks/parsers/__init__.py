"""Read what programs of others print: text in, figures out, and one sentence where there is nothing to read."""

from __future__ import annotations


class UnreadableError(ValueError):
    """The output does not hold what was to be read from it; the message says what is missing."""
