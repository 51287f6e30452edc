"""A recorded machine: its files, links and tools, as a tree that ``node_look.hardware`` reads instead of this one.

A tool answers from its recorded outputs, by its arguments. What was not recorded ends with 1, as an old tool does.
"""

from __future__ import annotations

import copy
import json
import os
import shlex
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MEMORY = Path("/dev/shm")  # noqa: S108 - a tree has a thousand files, which a disk takes ten times as long for
BOOT = "3c1f7f3e-7a55-4c3f-9f0a-1d2f8b1f6c11"


def folder() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder for a tree: in main memory, where tools may run from there."""
    able = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC
    return tempfile.TemporaryDirectory(dir=_MEMORY if able else None)


@dataclass
class Answer:
    """What a tool prints, how it ends, and after how many seconds."""

    text: str
    code: int = 0
    seconds: float = 0.0


@dataclass
class Machine:
    """The files of a machine by their path, as text or as bytes, links by their path, and tools by their words.

    ``events`` are lines of the kernel's log, each with its age in seconds. ``calls`` is what system calls answer to a
    section, by path.
    """

    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    tools: dict[str, Answer] = field(default_factory=dict)
    binary: dict[str, bytes] = field(default_factory=dict)
    events: list[tuple[float, str]] = field(default_factory=list)
    calls: dict[str, dict[str, dict[str, Any]]] = field(
        default_factory=lambda: {"file_systems": {}, "shared_memory": {}}
    )
    boot_id: str = BOOT
    uptime_s: float = 864_000.0

    def copy(self) -> Machine:
        """Return a machine that can be changed alone."""
        return copy.deepcopy(self)

    def add(self, path: str, text: str | int) -> None:
        """Write a file, or replace it."""
        self.files[path] = f"{text}\n"

    def grow(self, path: str, count: int) -> None:
        """Let a counter's file grow."""
        self.add(path, int(self.files[path]) + count)

    def replace(self, tool: str, old: str, new: str, count: int = -1) -> None:
        """Change what a tool answers; the old text must be there."""
        answer = self.tools[tool]
        assert old in answer.text, f"{tool}: {old}"
        answer.text = answer.text.replace(old, new, count)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write the tree and its tools, and return the root folder and the folder of the tools."""
        root, tools = folder / "root", folder / "tools"
        tools.mkdir(parents=True)
        files = {
            "/proc/sys/kernel/random/boot_id": f"{self.boot_id}\n",
            "/proc/uptime": f"{self.uptime_s:.2f} {self.uptime_s:.2f}\n",
            "/dev/kmsg": "".join(
                f"3,{number},{int((self.uptime_s - age) * 1e6)},-;{text}\n"
                for number, (age, text) in enumerate(self.events)
            ),
            **{f"/calls/{section}.json": json.dumps(answers) for section, answers in self.calls.items()},
            **self.files,
        }
        for path, text in files.items():
            _write(root, path, text.encode())
        for path, data in self.binary.items():
            _write(root, path, data)
        for path, target in self.links.items():
            place = root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(target)
        cases: dict[str, list[str]] = {}
        for number, (words, answer) in enumerate(self.tools.items()):
            name, _, arguments = words.partition(" ")
            output = folder / f"output{number}"
            output.write_text(answer.text, encoding="utf-8")
            wait = f"sleep {answer.seconds}; " if answer.seconds else ""
            case = f"{shlex.quote(arguments)}) {wait}cat {shlex.quote(str(output))}; exit {answer.code} ;;"
            cases.setdefault(name, []).append(case)
        for name, lines in cases.items():
            script = ["#!/bin/sh", 'case "$*" in', *lines, "esac", f'echo "{name} $*: not recorded"', "exit 1", ""]
            (tools / name).write_text("\n".join(script), encoding="utf-8")
            (tools / name).chmod(0o755)
        return root, tools

    def write_growth(self, root: Path, earlier: Machine) -> None:
        """Write what differs from an earlier state of the machine: files and what tools print, as counters do."""
        for path, text in self.files.items():
            if earlier.files.get(path) != text:
                _write(root, path, text.encode())
        for number, (words, answer) in enumerate(earlier.tools.items()):
            if self.tools[words].text != answer.text:
                (root.parent / f"output{number}").write_text(self.tools[words].text, encoding="utf-8")


def _write(root: Path, path: str, data: bytes) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
