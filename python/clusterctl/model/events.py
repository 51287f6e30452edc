"""Typed events of a run: made of ansible-runner's stream, shown as progress by an observer and kept in a record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

Outcome: TypeAlias = Literal["ok", "changed", "skipped", "failed", "unreachable"]


@dataclass(frozen=True)
class StageStarted:
    """A task began on some hosts; the stage is the role's short name, or the play's name outside roles."""

    at: float  # seconds since the epoch
    stage: str
    task: str


@dataclass(frozen=True)
class TaskStartedOnHost:
    """A host began a task; until its HostResult comes, this is what the run waits for."""

    at: float
    host: str
    stage: str
    task: str


@dataclass(frozen=True)
class HostResult:
    """One task's result on one host.

    ``changes`` are short human phrases of what changed (paths, versions). ``watch`` is what a later run compares to
    find out whether the host still is as this task left it. ``problems`` are findings of preflight.
    """

    at: float
    host: str
    stage: str
    task: str
    outcome: Outcome
    seconds: float = 0.0
    message: str = ""
    changes: tuple[str, ...] = ()
    watch: tuple[dict[str, Any], ...] = ()
    diff: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Note:
    """A line of life from a long task: what a compile is at, how far a copy is."""

    at: float
    host: str
    text: str


@dataclass(frozen=True)
class Finished:
    """The playbook process ended."""

    at: float
    status: Literal["successful", "failed", "canceled", "timeout"]
    rc: int


Event: TypeAlias = StageStarted | TaskStartedOnHost | HostResult | Note | Finished


class RunObserver(Protocol):
    """Shows the run while it goes on."""

    def phase(self, text: str) -> None:
        """Hear that something begins which has no events of its own."""

    def event(self, event: Event) -> None:
        """Hear an event."""

    def stopping(self, requests: int) -> None:
        """Hear that the user asked to stop, for the first or a further time."""


PreviewT_contra = TypeVar("PreviewT_contra", contravariant=True)


class AskingObserver(RunObserver, Protocol[PreviewT_contra]):
    """Shows the run while it goes on, and asks the user."""

    def confirm(self, preview: PreviewT_contra) -> bool:
        """Let the user decide, where there is one; False ends the run with nothing changed."""
