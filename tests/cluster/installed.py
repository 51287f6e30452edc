"""Controllers as users have them: the wheel of clusterctl in an environment of its own, outside of every checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import dev_locks
import locked

ROOT = Path(__file__).resolve().parents[2]
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")


@dataclass(frozen=True)
class Controller:
    """An environment with clusterctl.

    Attributes:
        folder: the environment.
        around: the words that run a program where the environment is; none on this machine.
    """

    folder: Path
    around: tuple[str, ...] = ()

    def argv(self, program: str, *words: str) -> list[str]:
        """Return the words that run a program of the environment."""
        return [*self.around, str(self.folder / "bin" / program), *words]

    def run(self, program: str, *words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment outside of the checkout, and return how it ended."""
        environment = {**os.environ, **(env or {})}
        argv = self.argv(program, *words)
        return subprocess.run(argv, env=environment, cwd="/", capture_output=True, text=True, check=False)

    def says(self, program: str, *words: str) -> str:
        """Return what a program prints that ends well."""
        done = self.run(program, *words)
        assert done.returncode == 0, f"{program} {' '.join(words)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout


def build_wheel(folder: Path) -> Path:
    """Return the wheel of this checkout."""
    checked(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT))
    (wheel,) = folder.glob("clusterctl-*.whl")
    return wheel


def from_the_lock(folder: Path, wheel: Path) -> Controller:
    """Return an environment of this Python that holds the wheel, and what it requires in the locked versions."""
    checked(sys.executable, "-m", "venv", "--without-pip", str(folder))
    pins = folder / "locked.txt"
    needs = dev_locks.project()["project"]["dependencies"]
    pins.write_text(locked.requirements(needs), encoding="utf-8")
    pip = (sys.executable, *PIP, "--python", str(folder / "bin" / "python"), "install", "--no-deps", "--no-compile")
    checked(*pip, "--require-hashes", "--only-binary", ":all:", "--requirement", str(pins))
    checked(*pip, "--no-index", str(wheel))
    return Controller(folder)


def newly_made(folder: Path, python: Sequence[str], *requirements: str, around: Sequence[str] = ()) -> Controller:
    """Return an environment of any Python with the newest versions that fit.

    Args:
        folder: where it is made.
        python: the words that run the Python.
        requirements: for pip.
        around: the words that run a program where the Python is.
    """
    checked(*python, "-m", "venv", "--without-pip", str(folder))
    made = Controller(folder, tuple(around))
    checked(sys.executable, *PIP, "download", "--no-deps", "--dest", str(folder), "pip")
    (pip,) = folder.glob("pip-*.whl")
    if not around:
        made.says("python", f"{pip}/pip", *PIP[2:], "install", *requirements)
        return made
    # The container asks no index: this machine fetches the wheels for the container's Python.
    version = made.says("python", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    wheels = folder / "wheels"
    chosen = ("--python-version", version, "--only-binary", ":all:", "--dest", str(wheels))
    checked(sys.executable, *PIP, "download", *chosen, *requirements)
    made.says("python", f"{pip}/pip", *PIP[2:], "install", "--no-index", "--find-links", str(wheels), *requirements)
    return made


def python_of_this_machine(version: str) -> str:
    """Return a Python of a version, '' where this machine has none with the modules that a controller needs."""
    places = [shutil.which(f"python{version}"), *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))]
    for place in filter(None, places):
        asks = "import ctypes, ensurepip, sqlite3, ssl, sys, venv; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([place, "-c", asks], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return place
    return ""


def checked(*argv: str) -> None:
    """Run a program that must end well."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
