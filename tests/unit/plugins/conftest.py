"""Makes the collection importable by its own names, and runs its modules for real.

A module gets a process of its own, arguments in and one JSON line out, as Ansible runs it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
from clusterctl.support import content

sys.path.insert(0, str(content.collections_path()))


class RunModule(Protocol):
    """Runs a module of the collection and returns its result."""

    def __call__(
        self, name: str, /, *, check: bool = False, diff: bool = False, under: Sequence[str] = (), **arguments: Any
    ) -> dict[str, Any]: ...


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that other users can reach, as pytest's own are not."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def run_module(tmp_path_factory: pytest.TempPathFactory) -> RunModule:
    def run(
        name: str, /, *, check: bool = False, diff: bool = False, under: Sequence[str] = (), **arguments: Any
    ) -> dict[str, Any]:
        given = {**arguments, "_ansible_check_mode": check, "_ansible_diff": diff}
        file: Path = tmp_path_factory.mktemp("arguments") / "arguments.json"
        file.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": given}))
        done = subprocess.run(
            [*under, sys.executable, "-m", f"ansible_collections.clusterctl.hpc.plugins.modules.{name}", str(file)],
            env={**os.environ, "PYTHONPATH": str(content.collections_path())},
            capture_output=True,
            text=True,
            check=False,
        )
        line = next((line for line in done.stdout.splitlines() if line.startswith("{")), None)
        assert line is not None, done.stdout + done.stderr
        result: dict[str, Any] = json.loads(line)
        assert done.returncode == (1 if result.get("failed") else 0), done.stderr
        return result

    return run


@pytest.fixture(autouse=True)
def _own_origins(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that run as root keep a record on their machine; the tests keep one of their own."""
    monkeypatch.setenv("CLUSTERCTL_ORIGINS", str(tmp_path_factory.mktemp("origins") / "origins.json"))


@pytest.fixture(scope="session")
def uv_program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Real uv: its wheel, which this machine's own pip configuration brings, and the program."""
    from ansible_collections.clusterctl.hpc.plugins.plugin_utils import wheels  # noqa: PLC0415 - its path is known now

    folder = tmp_path_factory.mktemp("uv")
    store = wheels.WheelStore(folder / "cache")
    program = wheels.uv_program(store, folder)
    return next((folder / "cache" / "wheels").glob("uv-*.whl")), program


@pytest.fixture
def without_an_index(monkeypatch: pytest.MonkeyPatch, uv_program: tuple[Path, Path]) -> None:
    """Keep this machine's own configuration of pip and uv out of a test."""
    assert uv_program
    for name in [*os.environ]:
        if name.startswith("UV_") or name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
