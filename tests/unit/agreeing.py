"""Observers of runs in tests: one that agrees to everything and says nothing, and one that remembers phases."""

from __future__ import annotations


class Agreeing:
    """It is told of everything, says nothing, and confirms each preview."""

    def phase(self, text: str) -> None: ...

    def event(self, event: object) -> None: ...

    def confirm(self, _preview: object) -> bool:
        return True

    def stopping(self, requests: int) -> None: ...
