"""What every kind of shared cache can do: one face for a folder, HTTP and S3 storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from clusterctl.support.errors import ConfigError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from clusterctl.model.shared_cache import EntryName, Statement

_T = TypeVar("_T")
MOST_NAMES = 100_000


class SharedStore(Protocol):
    """A shared cache. Contents are named by their sha256, so they never change; an envelope is written in one step."""

    where: str  # as a message names it

    def names(self) -> list[EntryName]:
        """Return the names of all entries, sorted.

        Raises:
            UnreachableError: the store does not answer, or refuses the login.
            ConfigError: there is no shared cache at this place.
        """

    def envelope(self, name: EntryName) -> bytes | None:
        """Return the envelope of an entry; None where there is no such entry."""

    def content(self, statement: Statement) -> Iterator[bytes]:
        """Return the content of an entry in parts; it may break off, which the reader notices by its size.

        Raises:
            UnreachableError: the store does not answer, or lacks the content.
        """

    def has_content(self, statement: Statement) -> bool:
        """Whether the content is there in its full size."""

    def put(self, statement: Statement, content: Path, envelope: bytes, *, replace: bool) -> bool:
        """Write an entry: its content first, then its envelope, which makes it visible.

        Returns:
            False where another push has written the entry in between, and it may not be replaced.
        """

    def finish(self) -> None:
        """Bring the index up to date, where the store has one; called once after a push or a removal."""

    def remove(self, name: EntryName) -> None:
        """Remove the envelope of an entry; its content goes with :meth:`sweep`."""

    def sweep(self, wanted: AbstractSet[str], before: float) -> int:
        """Remove contents that no entry names.

        Args:
            wanted: the sha256 of each content that an entry names.
            before: what was written later stays, in seconds since 1970: a push may be about to name it.

        Returns:
            How many bytes were freed.
        """

    def written(self, name: EntryName) -> float | None:
        """Return when an entry was written, in seconds since 1970; None where the store does not tell."""


def counted(where: str, names: Iterable[_T]) -> Iterator[_T]:
    """Return what a store lists, up to a number that no shared cache has.

    Raises:
        UnreachableError: the list is longer.
    """
    for number, name in enumerate(names):
        if number == MOST_NAMES:
            raise UnreachableError(f"The list of {where} has no end after {MOST_NAMES} names; look at that place.")
        yield name


def read_only(where: str) -> ConfigError:
    """Return the error for a push to a store that takes none."""
    return ConfigError(f"{where} can be read only; push to the folder that this server serves, or to s3://BUCKET.")


def refused_login(where: str, said: str, cure: str) -> UnreachableError:
    """Return the error for a login that the store refused."""
    return UnreachableError(f"{where} refused the login ({said}); {cure}.")


def not_there(where: str, statement: Statement) -> UnreachableError:
    """Return the error for an entry whose content is missing."""
    return UnreachableError(
        f"{where} names {statement.entry.name} and does not have its content; push it again with --replace."
    )
