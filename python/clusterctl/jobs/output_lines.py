"""Lines of a job's output get the rank or the node in front, in place of mpirun's tags."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from clusterctl.launch import mpirun

Prefix: TypeAlias = Literal["none", "rank", "host"]
Take: TypeAlias = "Callable[[str, bytes], None]"
Hear: TypeAlias = "Callable[[int, bytes], None]"  # rank and line

_MOST_LINE = 64 * 1024  # bytes; a longer line is passed on in pieces


class Prefixer:
    """Take mpirun's tags off the lines of output, and put the rank or the node in their place."""

    def __init__(self, hosts: Sequence[str], prefix: Prefix, take: Take, hear: Hear | None = None) -> None:
        """Begin with nothing.

        ``take`` gets the lines with their prefix, and ``hear`` each line of a rank as well.
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


# --- Filter for warnings of mpirun that mean nothing to the user: ``setpgid … failed in parent`` ----------------------
#
# mpirun starts ssh and puts it into a process group of its own, from both sides of the fork. The slower side fails,
# which is harmless, and mpirun reports it in one job of ten.

_STREAM = "stderr"
_NOISE = re.compile(rb"\[[^\]\n]*\] plm:(?:ssh|rsh): Warning: setpgid\(\d+,\d+\) failed in parent with errno=[^\n]*\n?")
# A line that may still become such a warning: its beginning as far as it is there.
_MAY_BECOME = re.compile(
    rb"\[[^\]\n]{0,255}(?:\](?: (?:p(?:l(?:m(?::[^\n]{0,512})?)?)?)?)?)?\Z",
)


class NoiseFilter:
    """Pass on the output of a job without mpirun's harmless warnings."""

    def __init__(self, take: Take) -> None:
        """Begin with nothing; ``take`` gets what is left."""
        self._take = take
        self._held = b""

    def __call__(self, stream: str, data: bytes) -> None:
        """Take some output; the start of a line that may become a warning waits for its end."""
        if stream != _STREAM:
            self._take(stream, data)
            return
        *lines, rest = (self._held + data).splitlines(keepends=True) or [b""]
        if rest.endswith(b"\n") or not _MAY_BECOME.match(rest):
            lines.append(rest)
            rest = b""
        self._held = rest
        self._pass(b"".join(line for line in lines if not _NOISE.fullmatch(line)))

    def end(self) -> None:
        held, self._held = self._held, b""
        self._pass(b"" if _NOISE.fullmatch(held) else held)

    def _pass(self, data: bytes) -> None:
        if data:
            self._take(_STREAM, data)
