# SPDX-License-Identifier: GPL-3.0-or-later
"""The user's own lock as the source of the Python environment: what replaces the framework and the requirements."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import uv
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import LockWish, Pinned, Refusal, places
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import PackedSdist

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Controller, Host, Settings
    from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import Built

# Built against the cluster's Open MPI, these are artifacts of their own; the environment finds them by their links.
LEFT_OUT = ("mpi4py", "horovod")
_COMPILERS = {"Debian": ["gcc", "g++", "libc6-dev"], "RedHat": ["gcc", "gcc-c++"], "Suse": ["gcc", "gcc-c++"]}
# What Horovod imports beside the framework.
_HOROVOD_NEEDS = ("cloudpickle", "packaging", "psutil", "pyyaml")
_VERSION = re.compile(r"\d+[.]\d+[.]\d+")
# By these, setuptools-scm, hatch-vcs and pdm take a version in place of one that they count in git's history.
_PRETENDED = ("SETUPTOOLS_SCM_PRETEND_VERSION", "PDM_BUILD_SCM_VERSION")
# uv's notes about a build; they have its time.
NOTES = [f"lib/python*/{note}" for note in [*uv.NOTES, "site-packages/*.dist-info/uv_build.json"]]


@dataclass(frozen=True)
class Lock:
    """The lock that the settings name.

    Attributes:
        path: of the file on the controller.
        extras: names of its extras.
        groups: names of its groups.
    """

    path: str
    extras: Sequence[str]
    groups: Sequence[str]

    @classmethod
    def of(cls, settings: Settings) -> Lock | None:
        """Return the lock that the settings name; None without one."""
        path = settings.text("python_env_lock")
        if not path:
            return None
        return cls(path, settings.texts("python_env_lock_extras"), settings.texts("python_env_lock_groups"))

    def wish(self, settings: Settings, target: str, hosts: Sequence[Host], managed: str) -> LockWish:
        """Return what the controller is asked for.

        Args:
            settings: of the hosts.
            target: the platform with the environment's Python.
            hosts: of one platform.
            managed: release of the managed Python; '' for the nodes' own.
        """
        release = uv.Python("", target).release
        its = [_VERSION.match(str(host.node["python"]["version"])) for host in hosts]
        versions = [found.group() for found in its if found and found.group().startswith(f"{release}.")]
        return LockWish(
            path=self.path,
            target=target,
            python=managed or min(versions, key=_numbers, default=f"{release}.0"),
            cache_dir=places(settings)["cache_dir"],
            wheel_dir=settings.text("python_env_wheel_dir"),
            extras=self.extras,
            groups=self.groups,
            left_out=LEFT_OUT,
        )

    @property
    def variable(self) -> str:
        """What messages about files of the lock name."""
        return f"python_env_lock ({PurePath(self.path).name})"

    def pin(self, controller: Controller, wish: LockWish) -> Pinned:
        """Return the wheels of the lock, and what is built.

        Raises:
            ArtifactError: the lock cannot be used.
        """
        found = controller.pin_lock(wish)
        notes = [
            f"{one} of {self.path} is left out: the cluster's own {one.split()[0]} is built against its Open MPI and"
            f" comes first ({one.split()[0]}_version names its version)"
            for one in found.left_out
        ]
        wheels = [asdict(wheel) for wheel in found.wheels]
        return Pinned(wheels, 0, [*found.notes, *notes], found.built, found.left_out)

    def lacks(self, roles: Collection[str], pinned: Pinned) -> Iterator[Refusal]:
        """Yield a refusal where other roles of the run need a package that the lock does not have."""
        if "mpi4py" in roles and "numpy" not in _names(pinned):
            yield Refusal(
                "",
                f"{self.path} has no numpy, which the proof of mpi4py and the checks of validate need; add numpy to the"
                " lock.",
            )

    def without_horovod(self, lacking: Sequence[str], settings: Settings) -> str:
        """Return the warning where Horovod cannot be imported with the packages of the lock."""
        outcome = "cannot be built" if settings.text("horovod_install") == "always" else "is left out"
        return f"Horovod {outcome}: {self.path} lacks {', '.join(lacking)}, which it imports; add them to the lock"


def unused_settings(settings: Settings, lock: Lock | None) -> Iterator[Refusal]:
    """Yield refusals of variables that the lock replaces, and of those that need a lock."""
    if lock is None:
        for name in ("python_env_lock_extras", "python_env_lock_groups"):
            if settings.texts(name):
                yield Refusal("", f"{name} is set, and python_env_lock is empty; name the lock, or empty {name}.")
        return
    for name in ("python_env_requirements", "python_env_framework_version"):
        if settings.get(name):
            yield Refusal(
                "",
                f"python_env_lock names {lock.path}, which decides all packages; put {name} into the lock, and empty"
                " the variable.",
            )


def horovod_lacks(pinned: Pinned) -> list[str]:
    """Return the packages that Horovod imports and an environment does not have."""
    return [name for name in _HOROVOD_NEEDS if name not in _names(pinned)]


def inputs(built: Sequence[Built]) -> dict[str, Any]:
    """Return what a key has of packages that are built; nothing without one, so that other keys stay."""
    if not built:
        return {}
    return {
        "built": {
            f"{one.source.name}-{one.source.version}": {
                "sha256": one.source.sha256,
                **({"subdirectory": inner} if (inner := _inner(one)) else {}),
                "tools": {tool.filename: tool.sha256 for tool in one.tools},
            }
            for one in built
        }
    }


def files(built: Sequence[Built], common: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return source archives, pins and tools of packages that are built, as entries of a build's files.

    Args:
        built: the packages.
        common: platform, wheel_dir and variable, as each entry of wheels has them.
    """
    found: list[dict[str, Any]] = []
    for one in built:
        source, name = one.source, one.source.name
        found += [
            {"sdist": {**asdict(source), **common}, "dest": _archive(one)},
            {
                "wheels": {"name": name, "pinned": [asdict(tool) for tool in one.tools], **common},
                "dest": f"tools/{name}",
            },
            {"content": f"{name}=={source.version} --hash=sha256:{source.sha256}\n", "dest": f"pins/{name}.txt"},
        ]
    return found


def steps(built: Sequence[Built]) -> list[dict[str, Any]]:
    """Return the steps that build and install packages, each in an environment of its own with its own tools."""
    return [_step(one) for one in built]


def _step(one: Built) -> dict[str, Any]:
    source, name = one.source, one.source.name
    install = ["pip", "install", "--python=@TREE@/bin/python", "--no-index", f"--find-links=tools/{name}", "--no-deps"]
    if not isinstance(source, PackedSdist):
        pins = ["--find-links=sdists", "--require-hashes", f"--requirements=pins/{name}.txt"]
        return uv.step(f"build {name}", *install, "--compile-bytecode", *pins)
    inner = f"#subdirectory={source.subdirectory}" if source.subdirectory else ""
    # addresses in its pyproject.toml are for uv on its author's machine, and an archive has no history with versions
    place = f"{name} @ file://@WORK@/{_archive(one)}{inner}"
    return uv.step(
        f"build {name}",
        *install,
        "--compile-bytecode",
        "--no-sources",
        place,
        **dict.fromkeys(_PRETENDED, source.version),
    )


def _archive(one: Built) -> str:
    """Return where a build has a source archive, named as PEP 625 does, by which uv finds it."""
    return f"sdists/{one.source.name.replace('-', '_')}-{one.source.version}.tar.gz"


def _inner(one: Built) -> str:
    return one.source.subdirectory if isinstance(one.source, PackedSdist) else ""


def packages(built: Sequence[Built], builder: Host, *, managed: bool) -> dict[str, Any]:
    """Return what the builder needs from its distribution; nothing where nothing is compiled."""
    return uv.packages(builder, _COMPILERS, own_headers=managed) if built else {}


def distributions(pinned: Pinned) -> list[str]:
    """Return ``name==version`` of each package for the proof; the name where only the build tells the version."""
    found = [f"{wheel['name']}=={wheel['version']}" for wheel in pinned.wheels]
    for one in pinned.built:
        unknown = isinstance(one.source, PackedSdist) and one.source.version == "0"
        found.append(one.source.name if unknown else f"{one.source.name}=={one.source.version}")
    return sorted(found)


def _names(pinned: Pinned) -> set[str]:
    return {str(wheel["name"]) for wheel in pinned.wheels} | {one.source.name for one in pinned.built}


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]
