"""Lines of a job's output get the rank or the node in front, in place of mpirun's tags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from clusterctl.launch import mpirun

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Prefix: TypeAlias = Literal["none", "rank", "host"]
Take: TypeAlias = "Callable[[str, bytes], None]"
Hear: TypeAlias = "Callable[[int, bytes], None]"  # rank and line

_MOST_LINE = 64 * 1024  # bytes; a longer line is passed on in pieces


class Prefixer:
    """Take mpirun's tags off the lines of output, and put the rank or the node in their place."""

    def __init__(self, hosts: Sequence[str], prefix: Prefix, take: Take, hear: Hear | None = None) -> None:
        """Begin with nothing.

        Args:
            hosts: the node of each rank.
            prefix: what to begin lines with.
            take: gets what is made of them.
            hear: gets each line of a rank as well.
        """
        self._hosts, self._prefix, self._take, self._hear = hosts, prefix, take, hear
        self._rest: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def __call__(self, stream: str, data: bytes) -> None:
        """Take some output; the last, incomplete line waits for its end."""
        *complete, rest = (self._rest[stream] + data).split(b"\n")
        if len(rest) > _MOST_LINE:
            complete.append(rest)
            rest = b""
        self._rest[stream] = rest
        if complete:
            self._take(stream, b"".join(self._line(line) + b"\n" for line in complete))

    def end(self) -> None:
        """Pass on what has no end of line."""
        for stream, rest in self._rest.items():
            if rest:
                self._take(stream, self._line(rest))
                self._rest[stream] = b""

    def _line(self, line: bytes) -> bytes:
        rank, text = mpirun.untagged(line)
        if rank is not None and self._hear is not None:
            self._hear(rank, text)
        if rank is None or self._prefix == "none":
            return text
        name = self._hosts[rank] if self._prefix == "host" and rank < len(self._hosts) else str(rank)
        return b"[%s] %s" % (name.encode(), text)
