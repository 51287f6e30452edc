# SPDX-License-Identifier: Apache-2.0
"""Renew the locks of the Python packages for development and CI: one file with versions and sha256 for each group.

``make venv`` installs from these files, and pip refuses a file with another sha256. The program resolves the groups of
``pyproject.toml`` for all supported Pythons. It needs the program ``uv``, which ``make dev-locks`` has.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "tools" / "locks"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
_C_LIBRARY = "manylinux_2_31"  # of Debian 11 and Ubuntu 20.04
WHOLE = "dev"  # the group that is installed with the dependencies of clusterctl; the others come on top of it
GROUPS = (WHOLE, "fuzz", "locks")
RUN = "run"  # the part of the whole that clusterctl itself takes
_INSTALLERS = ("editables", "hatchling")  # they install the checkout


@dataclass(frozen=True)
class Pin:
    """One version of a package in a lock, and where it applies."""

    requirement: Requirement
    hashes: int
    direct: bool  # whether pyproject.toml names it

    @property
    def name(self) -> str:
        """The name in the form in which names are compared."""
        return str(canonicalize_name(self.requirement.name))

    @property
    def version(self) -> str:
        """The version."""
        return next(iter(self.requirement.specifier)).version


def file_of(group: str) -> Path:
    """Return the lock of a group."""
    return LOCKS / f"{group}.txt"


def project() -> dict[str, Any]:
    """Return what pyproject.toml says."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def asked(project: Mapping[str, Any], group: str) -> list[Requirement]:
    """Return the requirements that a lock answers.

    Args:
        project: what pyproject.toml says.
        group: a dependency group.
    """
    own = project["project"]["dependencies"] if group == WHOLE else []
    return [Requirement(line) for line in (*own, *_of_group(project["dependency-groups"], group))]


def _of_group(groups: Mapping[str, Sequence[Any]], group: str) -> Iterator[str]:
    for entry in groups[group]:
        if isinstance(entry, str):
            yield entry
        else:
            yield from _of_group(groups, entry["include-group"])


def pins(lock: str) -> list[Pin]:
    """Return the pins of a lock in the format of pip's requirements with hashes."""
    found = []
    lines = [line for line in lock.splitlines() if line and not line.startswith("#")]
    starts = [at for at, line in enumerate(lines) if not line.startswith(" ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        more = lines[start + 1 : end]
        found.append(
            Pin(
                Requirement(lines[start].rstrip(" \\")),
                hashes=sum("--hash=sha256:" in line for line in more),
                direct=any("pyproject.toml" in line for line in more),
            )
        )
    return found


def stale(requirements: Sequence[Requirement], lock: str) -> list[str]:
    """Return where a lock does not answer requirements; each as one sentence.

    Args:
        requirements: what pyproject.toml asks for.
        lock: the text of the lock.
    """
    held = pins(lock)
    found = [f"{pin.requirement} has no sha256." for pin in held if not pin.hashes]
    names = {str(canonicalize_name(requirement.name)) for requirement in requirements}
    found += [
        f"pyproject.toml does not name {pin.name} any more." for pin in held if pin.direct and pin.name not in names
    ]
    for environment in _environments():
        where = f"Python {environment['python_version']} on {environment['platform_machine']}"
        chosen = [pin for pin in held if _applies(pin.requirement, environment)]
        for requirement in requirements:
            if not _applies(requirement, environment):
                continue
            versions = [pin.version for pin in chosen if pin.name == canonicalize_name(requirement.name)]
            if len(versions) != 1 or not requirement.specifier.contains(versions[0], prereleases=True):
                found.append(f"{requirement} is {' and '.join(versions) or 'missing'} for {where}.")
    return found


def part(lock: str, names: Iterable[str]) -> str:
    """Return the part of a lock that some packages and all that they need take, with its head.

    Args:
        lock: the text of a lock, in which uv says for each pin which packages need it.
        names: of the packages.
    """
    blocks: list[list[str]] = [[]]
    for line in lock.splitlines(keepends=True):
        if not line.startswith((" ", "#")):
            blocks.append([])
        blocks[-1].append(line)
    head, *rest = ("".join(block) for block in blocks)
    needed = {block: _needed_by(block) for block in rest}
    taken = {str(canonicalize_name(name)) for name in names}
    while more := {_name(block) for block, by in needed.items() if by & taken} - taken:
        taken |= more
    return head + "".join(block for block in rest if _name(block) in taken)


def _name(block: str) -> str:
    return str(canonicalize_name(Requirement(block.partition("\n")[0].rstrip(" \\")).name))


def _needed_by(block: str) -> set[str]:
    lines = [line.strip() for line in block.splitlines() if line.strip().startswith("#")]
    words = [line.removeprefix("#").strip().removeprefix("via").strip() for line in lines]
    return {word for word in words if word and "pyproject.toml" not in word}


def run_lock(whole: str) -> str:
    """Return the lock of what clusterctl itself takes, and of what installs the checkout."""
    own = [Requirement(line).name for line in project()["project"]["dependencies"]]
    return part(whole, [*own, *_INSTALLERS])


def _environments() -> Iterator[dict[str, str]]:
    for python in PYTHONS:
        for machine in MACHINES:
            yield {
                "python_version": python,
                "python_full_version": f"{python}.0",
                "platform_machine": machine,
                "sys_platform": "linux",
                "platform_system": "Linux",
                "os_name": "posix",
                "implementation_name": "cpython",
                "platform_python_implementation": "CPython",
            }


def _applies(requirement: Requirement, environment: Mapping[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(dict(environment))


def renew(group: str, *, keep: bool) -> None:
    """Write the lock of a group.

    Args:
        group: a dependency group of pyproject.toml.
        keep: whether versions stay that still answer pyproject.toml.
    """
    argv = [_uv(), "pip", "compile", "--quiet", "--no-config", "--universal", "--generate-hashes"]
    argv += ["--python-version", PYTHONS[0], "--custom-compile-command", "make dev-locks"]
    argv += ["--output-file", str(file_of(group).relative_to(ROOT)), "--group", group]
    argv += ["pyproject.toml"] if group == WHOLE else ["--constraint", str(file_of(WHOLE).relative_to(ROOT))]
    argv += [] if keep else ["--upgrade"]
    subprocess.run(argv, cwd=ROOT, check=True, env=_environment())


def prove(group: str) -> None:
    """Ask the index for a wheel of every pin, for every Python and machine.

    Args:
        group: a dependency group whose lock is written.

    Raises:
        SystemExit: a wheel is missing.
    """
    argv = [_uv(), "pip", "install", "--quiet", "--no-config", "--dry-run", "--require-hashes"]
    argv += ["--only-binary", ":all:", "--requirement", str(file_of(group))]
    for python, machine in itertools.product(PYTHONS, MACHINES):
        with tempfile.TemporaryDirectory() as folder:
            where = ["--target", folder, "--python-version", python, "--python-platform", f"{machine}-{_C_LIBRARY}"]
            done = subprocess.run([*argv, *where], env=_environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            said = " ".join(done.stderr.split())
            raise SystemExit(f"{file_of(group).name} has no wheels for Python {python} on {machine}: {said}")


def _environment() -> dict[str, str]:
    """Return an environment in which uv asks the index of pip's configuration, and no other."""
    found = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_"))}
    found |= {"SSL_CERT_FILE": os.environ["PIP_CERT"]} if os.environ.get("PIP_CERT") else {}
    index = _pip_setting("index-url")
    return found | ({"UV_DEFAULT_INDEX": index} if index else {})


def _pip_setting(name: str) -> str:
    if value := os.environ.get(f"PIP_{name.replace('-', '_').upper()}"):
        return value
    argv = [sys.executable, "-m", "pip", "config", "get", f"global.{name}"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise SystemExit("dev_locks needs the program uv; 'make dev-locks' installs it.")
    return found


def main() -> None:
    """Write the locks of all groups, and say where one does not answer pyproject.toml."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep versions that still answer pyproject.toml")
    keep = parser.parse_args().keep
    LOCKS.mkdir(exist_ok=True)
    for group in GROUPS:
        renew(group, keep=keep)
        lock = file_of(group).read_text(encoding="utf-8")
        if problems := stale(asked(project(), group), lock):
            raise SystemExit(f"{file_of(group).relative_to(ROOT)}: {' '.join(problems)}")
        prove(group)
        print(f"{file_of(group).relative_to(ROOT)}: {len(pins(lock))} pins")
        if group == WHOLE:
            file_of(RUN).write_text(run_lock(lock), encoding="utf-8")


if __name__ == "__main__":
    main()
