"""What a group of processes costs: CPU seconds and memory, told by a control group of the kernel (version 1 or 2)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_EACH_S = 0.25


class Group:
    """A control group below the root of each hierarchy that counts; processes that start in it stay in it."""

    def __init__(self, name: str) -> None:
        self.is_second = (_ROOT / "cgroup.controllers").exists()
        self._cpu = _ROOT / name if self.is_second else _ROOT / "cpuacct" / name
        self._memory = _ROOT / name if self.is_second else _ROOT / "memory" / name
        self._peak, self._stop, self._watching = 0, threading.Event(), None

    def make(self) -> None:
        for folder in {self._cpu, self._memory}:
            folder.mkdir(exist_ok=True)

    def remove(self) -> None:
        """Remove an empty group; one that was never made is no mistake."""
        for folder in {self._cpu, self._memory}:
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()

    def enter(self, command: Sequence[str]) -> list[str]:
        """Return a command that does the same inside of the group."""
        script = 'for file in "$1" "$2"; do echo $$ >"$file"; done; shift 2; exec "$@"'
        files = [str(folder / "cgroup.procs") for folder in (self._cpu, self._memory)]
        return ["sh", "-c", script, "sh", *files, *command]

    def cpu_s(self) -> float:
        """Return the CPU seconds of all processes that have been in the group."""
        if self.is_second:
            return self._counts(self._cpu / "cpu.stat")["usage_usec"] / 1e6
        return int((self._cpu / "cpuacct.usage").read_text(encoding="ascii")) / 1e9

    def memory(self) -> int:
        """Return the bytes of memory that no file holds; 0 where the kernel does not count them."""
        with contextlib.suppress(FileNotFoundError):
            counts = self._counts(self._memory / "memory.stat")
            return counts.get("anon", counts.get("total_rss", 0)) + counts.get("shmem", counts.get("total_shmem", 0))
        return 0

    @contextlib.contextmanager
    def watched(self):  # noqa: ANN201 - an iterator of nothing
        """Look at the memory four times a second; ``peak`` is the most that was seen."""
        self._peak, self._stop = 0, threading.Event()

        def look() -> None:
            while not self._stop.wait(_EACH_S):
                self._peak = max(self._peak, self.memory())

        watching = threading.Thread(target=look, daemon=True)
        watching.start()
        try:
            yield
        finally:
            self._stop.set()
            watching.join()

    @property
    def peak(self) -> int:
        return self._peak

    @staticmethod
    def _counts(path: Path) -> dict[str, int]:
        lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
        return {name: int(value) for name, value in lines}
