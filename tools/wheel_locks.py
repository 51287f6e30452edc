# SPDX-License-Identifier: Apache-2.0
"""Renew the wheel locks that ship with the collection, for each Python, machine and C library.

The program reads what the roles ask for by default, and resolves it from the metadata of the package index. It does
not download wheels. It needs the program ``uv``, which ``make wheel-locks`` has.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import tomllib
from clusterctl.support import content
from packaging import tags
from packaging.markers import Marker
from packaging.utils import canonicalize_name, parse_wheel_filename

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = content.root()
sys.path.insert(0, str(content.collections_path()))

from ansible_collections.clusterctl.hpc.plugins.plugin_utils import nccl
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import horovod, mpi4py, python_env, variables
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.frameworks import framework_in_wheels
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import (
    Artifact,
    Cluster,
    Controller,
    Host,
    Pinned,
    Plan,
    Settings,
    WheelWish,
)
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import (
    LOCK_SCHEMA,
    Target,
    Wheel,
    parse_requirements,
    shipped,
)

ROLES = ("python_env", "mpi4py", "nccl", "horovod")  # those that take wheels
INDEX = "https://pypi.org/simple"

# Debian 11, Ubuntu 22.04, Debian 12, Ubuntu 24.04, Debian 13, and the newest Python. Python 3.13 has an older C library
# as well, since python_env_python: managed brings it to all of them.
PLATFORMS = (
    ("3.9", "x86_64", "2.31"),
    ("3.10", "x86_64", "2.35"),
    ("3.11", "x86_64", "2.36"),
    ("3.12", "x86_64", "2.39"),
    ("3.13", "x86_64", "2.31"),
    ("3.13", "x86_64", "2.41"),
    ("3.14", "x86_64", "2.43"),
    ("3.11", "aarch64", "2.36"),
    ("3.12", "aarch64", "2.39"),
    ("3.13", "aarch64", "2.31"),
    ("3.13", "aarch64", "2.41"),
)

# The newest C library that uv has a name for.
_NEWEST_GLIBC = 40


class UnresolvableError(Exception):
    """The index has no set of wheels for these requirements."""


@dataclass(frozen=True)
class Asked:
    """What a role asks for: the name of its lock and the requirements in their sorted form."""

    name: str
    requirements: tuple[str, ...]

    @classmethod
    def of(cls, name: str, requirements: Sequence[str]) -> Asked:
        """Return the form in which a lock holds requirements."""
        return cls(name, tuple(sorted(map(str, parse_requirements(requirements, name)))))


def target_of(python: str, machine: str, glibc: str) -> Target:
    """Return the target of a platform."""
    return Target.of(f"any-{machine}-glibc{glibc}-py{python}")


class _Recorder(Controller):
    """A controller that keeps what recipes ask for; each platform has PyTorch."""

    def __init__(self) -> None:
        self.wishes: list[WheelWish] = []

    def pin(self, wish: WheelWish) -> Pinned:
        self.wishes.append(wish)
        return Pinned([{"name": "torch", "version": "1", "filename": "torch.whl", "sha256": "0" * 64}])


def _decided(target: Target, **given: str) -> tuple[list[WheelWish], list[Artifact]]:
    """Return what the recipes ask for by default on a host of a platform that has Open MPI, and what they build.

    Args:
        target: the platform.
        given: variables with another value than their default.
    """
    node = {
        "platform": target.platform,
        "distribution": {"family": "Debian", "major": "12", "id": "debian"},
        "python": {"version": target.python},
        "artifacts": [{"link": "/usr/local/openmpi", "key": "0" * 16, "version": "5"}],
    }
    member = {"name": "node1", "platform": target.platform}
    host = Host("node1", member, node, Settings(variables.defaults((*ROLES, "openmpi")) | given))
    recorder = _Recorder()
    recipes = {"python_env": python_env, "mpi4py": mpi4py, "horovod": horovod}
    cluster = Cluster([host], [member], "/usr/local", frozenset(recipes), recorder)
    plans: dict[str, Plan] = {}
    for role, recipe in recipes.items():
        plans[role] = recipe.decide(cluster, plans)
    return recorder.wishes, [artifact for plan in plans.values() for artifact in plan.artifacts]


def tools_asked() -> set[Asked]:
    """Return what the builds of the roles ask for: the installer and build tools."""
    _unused, artifacts = _decided(target_of(*PLATFORMS[0]))
    brought = [item["wheels"] for artifact in artifacts for item in artifact.build["files"] if "wheels" in item]
    return {Asked.of(one["name"], one["requirements"]) for one in brought if "requirements" in one}


def environments_asked(target: Target) -> set[Asked]:
    """Return what python_env asks for: without a framework, and with each alternative of PyTorch's builds.

    Args:
        target: the platform, whose Python and glibc decide the release.
    """
    return {
        Asked.of("python_env", [*wish.requirements, *alternative])
        for framework, build in (("none", "cpu"), ("pytorch", "cpu"), ("pytorch", "cuda"))
        for wish in _decided(target, python_env_framework=framework, python_env_framework_build=build)[0]
        for alternative in wish.first_of or [[]]
    }


def nccl_asked(environments: Sequence[Sequence[Wheel]]) -> set[Asked]:
    """Return what nccl asks for: its default release, and the release of each framework.

    Args:
        environments: the wheels of each environment.
    """
    plans = {nccl.PlatformPlan(nccl.DEFAULT_VERSION, cuda) for cuda in ("12", "13")}
    for wheels in environments:
        framework = framework_in_wheels([asdict(wheel) for wheel in wheels])
        if framework["nccl"]:
            plans.add(nccl.PlatformPlan(framework["nccl"], framework["cuda"]))
    return {Asked.of("nccl", [plan.requirement]) for plan in plans}


def resolve(target: Target, asked: Asked, index: str) -> list[Wheel]:
    """Return the newest wheels that fit, from the index's metadata.

    Raises:
        UnresolvableError: the index has no set of wheels for the target.
    """
    glibc = min(int(target.glibc.partition(".")[2]), _NEWEST_GLIBC)
    with tempfile.TemporaryDirectory() as name:
        wanted, lock = Path(name, "requirements.in"), Path(name, "pylock.toml")
        wanted.write_text("\n".join(asked.requirements) + "\n", encoding="utf-8")
        argv = [_uv(), "pip", "compile", str(wanted), "--output-file", str(lock), "--format", "pylock.toml", "--quiet"]
        argv += ["--no-config", "--default-index", index, "--only-binary", ":all:", "--python-version", target.python]
        argv += ["--python-platform", f"{target.machine}-manylinux_2_{glibc}"]
        if any("+cpu" in requirement and "!=" not in requirement for requirement in asked.requirements):
            argv += ["--torch-backend", "cpu"]  # uv then asks PyTorch's own index for its packages alone
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_"))}
        kept |= {"SSL_CERT_FILE": os.environ["PIP_CERT"]} if os.environ.get("PIP_CERT") else {}
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=kept)
        if done.returncode:
            raise UnresolvableError(" ".join(done.stderr.split()))
        return wheels_of(tomllib.loads(lock.read_text(encoding="utf-8")), target)


def wheels_of(lock: Mapping[str, Any], target: Target) -> list[Wheel]:
    """Return the wheels that a lock in the format of PEP 751 has for one target."""
    environment = target.environment()
    found = []
    for package in lock["packages"]:
        if "marker" in package and not Marker(package["marker"]).evaluate(environment):
            continue
        offered = {
            wheel.get("name") or unquote(urlsplit(wheel["url"]).path).rpartition("/")[2]: wheel["hashes"]["sha256"]
            for wheel in package["wheels"]
        }
        filename = best(list(offered), target)
        name = str(canonicalize_name(package["name"]))
        found.append(Wheel(name, package["version"], filename, offered[filename]))
    return sorted(found, key=lambda wheel: wheel.name)


def best(filenames: Sequence[str], target: Target) -> str:
    """Return the file that pip prefers on the target.

    Raises:
        UnresolvableError: none of the files fits.
    """
    version = (int(target.python.partition(".")[0]), int(target.python.partition(".")[2]))
    interpreter = f"cp{version[0]}{version[1]}"
    fitting = [
        *tags.cpython_tags(version, [interpreter], target.tags()),
        *tags.compatible_tags(version, interpreter, target.tags()),
    ]
    places = {tag: place for place, tag in enumerate(fitting)}
    ranked = []
    for filename in filenames:
        _, _, build, offered = parse_wheel_filename(filename)
        place = min((places[tag] for tag in offered if tag in places), default=None)
        if place is not None:
            ranked.append((-place, build, filename))
    if not ranked:
        raise UnresolvableError(f"No wheel for {target} among {', '.join(filenames)}.")
    return max(ranked)[2]


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise SystemExit("wheel_locks needs the program uv; install it, for example with 'pip install uv'.")
    return found


def document(target: Target, asked: Asked, wheels: Sequence[Wheel]) -> dict[str, Any]:
    """Return a lock, in the form of those in the controller's cache."""
    question = {"python": target.python, "machine": target.machine, "glibc": target.glibc}
    return {
        "schema": LOCK_SCHEMA,
        "asked": {**question, "requirements": list(asked.requirements)},
        "wheels": [asdict(wheel) for wheel in wheels],
    }


def text_of(locks: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the file for :func:`shipped.shipped_locks`: a line for each wheel, and one for each lock."""
    files = {wheel["filename"]: wheel["sha256"] for lock in locks for wheel in lock["wheels"]}
    lines = [
        json.dumps({**lock["asked"], "wheels": [wheel["filename"] for wheel in lock["wheels"]]}, sort_keys=True)
        for lock in locks
    ]
    listed = json.dumps(files, indent=1, sort_keys=True)
    return f'{{"files": {listed},\n"locks": [\n' + ",\n".join(lines) + "\n]}\n"


def read(target: Target) -> dict[tuple[str, ...], list[Wheel]]:
    """Return the wheels by their requirements that the collection ships for a target now."""
    return {tuple(lock["asked"]["requirements"]): list(shipped.wheels_in(lock)) for lock in shipped_for(target)}


def shipped_for(target: Target) -> list[dict[str, Any]]:
    """Return the locks that the collection ships for a target now."""
    place = (target.python, target.machine, target.glibc)
    return [
        lock
        for lock in shipped.shipped_locks()
        if (lock["asked"]["python"], lock["asked"]["machine"], lock["asked"]["glibc"]) == place
    ]


def renew(target: Target, index: str, *, keep: bool) -> list[dict[str, Any]]:
    """Return the locks of a target.

    Args:
        target: the platform.
        index: address of the package index.
        keep: whether a lock that answers what a role asks stays as it is.
    """
    before = read(target)
    locks: dict[Asked, list[Wheel]] = {}

    def settle(asked: Asked) -> None:
        old = before.get(asked.requirements)
        try:
            locks[asked] = old if keep and old else resolve(target, asked, index)
        except UnresolvableError as error:
            what = f"{target}: {', '.join(asked.requirements)}"
            if old:
                locks[asked] = old
            print(f"{'kept' if old else 'not locked'} {what}\n    {error}", file=sys.stderr)

    for asked in sorted(tools_asked() | environments_asked(target), key=_place):
        settle(asked)
    for asked in sorted(
        nccl_asked([wheels for known, wheels in locks.items() if known.name == "python_env"]), key=_place
    ):
        settle(asked)
    return [document(target, asked, locks[asked]) for asked in sorted(locks, key=_place)]


def _place(asked: Asked) -> tuple[str, tuple[str, ...]]:
    return asked.name, asked.requirements


def main() -> None:
    """Write the locks of all platforms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave locks as they are that answer what a role asks")
    parser.add_argument("--index", default=INDEX, help="package index (default: %(default)s)")
    options = parser.parse_args()
    locks: list[dict[str, Any]] = []
    for platform in PLATFORMS:
        found = renew(target_of(*platform), options.index, keep=options.keep)
        print(f"{'-'.join(platform)}: {len(found)} locks")
        locks += found
    shipped.FILE.write_text(text_of(locks), encoding="utf-8")


if __name__ == "__main__":
    main()
