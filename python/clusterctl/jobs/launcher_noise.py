"""Filter for warnings of mpirun that mean nothing to the user: ``setpgid … failed in parent``.

mpirun starts ssh and puts it into a process group of its own, from both sides of the fork. The slower side fails, which
is harmless, and mpirun reports it in one job of ten.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterctl.jobs.prefixer import Take

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
        """Pass on what waits."""
        held, self._held = self._held, b""
        self._pass(b"" if _NOISE.fullmatch(held) else held)

    def _pass(self, data: bytes) -> None:
        if data:
            self._take(_STREAM, data)
