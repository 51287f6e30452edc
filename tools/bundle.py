# SPDX-License-Identifier: Apache-2.0
"""Make the bundle with which ``make provision-here`` turns a machine without a network into a cluster of one.

The bundle holds what ``provision`` would fetch for such a machine: the sources and build tools that the recipes list,
the packages of clusterctl's Python dependencies, and packages of the distribution. It has neither a compiler nor
PyTorch, because the machine has both.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dev_locks
import locked
from clusterctl.sandbox import apt
from clusterctl.sandbox.model import IMAGES, Image, Vendor
from clusterctl.state import paths
from clusterctl.support import content
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

sys.path.insert(0, str(content.collections_path()))

from ansible_collections.clusterctl.hpc.plugins.action.software_plan import RECIPES
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, sha256_of
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import source, wheels
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import variables
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.controller import Controller
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import (
    Artifact,
    Cluster,
    Host,
    Plan,
    Settings,
)

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = 1
MOST_BYTES = 50 << 20
OPENMPI = "4.1.4"  # the source of 5.0.7 alone has half of MOST_BYTES
ENVIRONMENT = "/opt/pytorch"  # any environment; what is fetched does not depend on its path
# An environment with PyTorch has numpy. No vault is read, so ansible-core needs no cryptography. uv of the recipes
# installs in place of pip. rich needs the last ones for Markdown and source text alone.
LEFT_OUT = frozenset({"cffi", "cryptography", "numpy", "pip", "pycparser", "markdown-it-py", "mdurl", "pygments"})
CONTROLLER = "controller.tar.xz"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")  # those of the locks
# What every machine with nvcc and PyTorch has, since Triton compiles against Python.h.
PRESENT = (
    *("?essential", "apt", "libpam-runtime", "mount", "passwd"),
    *("build-essential", "ca-certificates", "perl", "python3", "libpython{python}-dev"),
)
LARGE = frozenset({"cmake"})  # the machine or its environment brings it
# What a node needs beside what the recipes list.
OF_A_NODE = ("iproute2", "openssh-client", "openssh-server", "procps")
_INSTALLS = re.compile(r"^Inst (\S+) \((\S+)", re.MULTILINE)


class BundleError(Exception):
    """The bundle cannot be made; the message is one sentence."""


class TooLargeError(BundleError):
    """The bundle is larger than :data:`MOST_BYTES`."""


@dataclass(frozen=True)
class System:
    """A distribution with its own Python, as the image of the sandbox with the same name has it.

    Attributes:
        image: name of that image.
        distribution: id and release, as a platform's id has them.
        glibc: release of the C library.
        python: major and minor release.
        helpers: packages that sshd needs there instead of systemd.
        its_python: major and minor release of the environment's Python; '' is the distribution's own.
    """

    image: str
    distribution: str
    glibc: str
    python: str
    helpers: tuple[str, ...] = ()
    its_python: str = ""

    @property
    def environment(self) -> str:
        """Release of the environment's Python."""
        return self.its_python or self.python

    @property
    def platform(self) -> str:
        """The id of the platform."""
        return f"{self.distribution}-x86_64-glibc{self.glibc}-py{self.environment}"


SYSTEMS = {
    one.image: one
    for one in (
        System("debian12", "debian-12", "2.36", "3.11"),
        System("debian13", "debian-13", "2.41", "3.13", helpers=("systemd-standalone-sysusers",)),
        System("ubuntu24.04", "ubuntu-24.04", "2.39", "3.12"),
    )
}


# --- what the recipes list -------------------------------------------------------------------------------------------


def artifacts(system: System, given: Mapping[str, Any]) -> list[Artifact]:
    """Return what the recipes build on a host whose user has an environment with PyTorch, and no NCCL comes by a wheel.

    Args:
        system: of the host.
        given: variables with another value than their default.

    Raises:
        BundleError: a recipe refuses it.
    """
    roles = list(RECIPES)
    defaults = {name: "" if "{{" in str(value) else value for name, value in variables.defaults(roles).items()}
    ours = {"python_env_existing": ENVIRONMENT, "nccl_install": "never", "horovod_install": "always"}
    member = {"name": "here", "platform": system.platform, "cuda": {}, "gpus": 0}
    python = f"{system.environment}.0"
    node = {
        "platform": system.platform,
        "distribution": {
            "family": "Debian",
            "id": system.distribution.partition("-")[0],
            "major": system.distribution.partition("-")[2].partition(".")[0],
        },
        "python": {"version": python},
        "artifacts": [],
        "existing_python": {
            "path": ENVIRONMENT,
            "problem": "",
            "cure": "",
            "interpreter": f"{ENVIRONMENT}/bin/python",
            "real": f"/usr/bin/python{system.environment}",
            "version": python,
            "machine": "x86_64",
            "base": "/usr",
            "headers": True,
            "shares": False,
            "folders": [f"{ENVIRONMENT}/lib/python{system.environment}/site-packages"],
            "packages": dict.fromkeys(("torch", "numpy", "cloudpickle", "packaging", "psutil", "pyyaml"), "1"),
            "cuda": {"torch": ""},
            "nccl": {"version": ""},
            "mpi": {},
        },
    }
    host = Host("here", member, node, Settings({**defaults, **ours, **given}))
    cluster = Cluster([host], [member], "/usr/local", frozenset(roles), Controller(say))
    plans: dict[str, Plan] = {}
    for role, (decide, _needs) in RECIPES.items():
        plans[role] = decide(cluster, plans)
        for refusal in plans[role].refusals:
            raise BundleError(refusal.problem)
    return [one for plan in plans.values() for one in plan.artifacts]


def sources_of(built: Sequence[Artifact], cache: Path) -> list[Path]:
    """Return the files that builds bring, all of them below the cache; their locks ship with the collection.

    Raises:
        ArtifactError: a file cannot be had.
    """
    found: list[Path] = []
    for item in (item for one in built for item in one.build["files"]):
        if "source" in item:
            wanted = item["source"]
            name, version, variable = (str(wanted[one]) for one in ("name", "version", "variable"))
            found.append(source.fetch(name, version, wanted["sources"], cache, variable=variable, note=say).path)
        elif "wheels" in item or "sdist" in item:
            found += [path for path, _dest in wheels.bring(item, cache, say, say)]
    return sorted(set(found))


def say(text: str) -> None:
    """Print a line of progress."""
    sys.stderr.write(f"{text}\n")


# --- Python packages of clusterctl -----------------------------------------------------------------------------------


def controller_pins(python: str) -> str:
    """Return the locked requirements of clusterctl for a Python, without :data:`LEFT_OUT`."""
    pins = locked.requirements(dev_locks.project()["project"]["dependencies"], python).splitlines(keepends=True)
    return "".join(line for line in pins if canonicalize_name(line.partition("==")[0]) not in LEFT_OUT)


def fetch_controller(system: System, folder: Path) -> None:
    """Fetch the wheels of clusterctl's dependencies, each with the sha256 of the lock.

    Raises:
        BundleError: pip failed.
    """
    target = wheels.Target.of(system.platform)
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as pins:
        pins.write(controller_pins(system.environment))
        pins.flush()
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        argv += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", system.environment]
        argv += [f"--platform={tag}" for tag in target.tags()]
        _run([*argv, "--dest", str(folder), "--requirement", pins.name], "pip download")


def pack_controller(folder: Path, archive: Path) -> None:
    """Pack wheels in half the space: they lie uncompressed in an archive that is compressed as a whole.

    Equal wheels give equal bytes.
    """
    with tarfile.open(archive, "w:xz", preset=9) as pack:
        for wheel in sorted(folder.glob("*.whl")):
            stored = io.BytesIO()
            with zipfile.ZipFile(wheel) as zipped, zipfile.ZipFile(stored, "w", zipfile.ZIP_STORED) as copy:
                for name in zipped.namelist():
                    copy.writestr(zipfile.ZipInfo(name), zipped.read(name))
            member = tarfile.TarInfo(wheel.name)
            member.size, member.mode = stored.tell(), 0o644
            stored.seek(0)
            pack.addfile(member, stored)


def _run(argv: Sequence[str], what: str, folder: Path | None = None) -> str:
    done = subprocess.run(argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.startswith(("E:", "ERROR"))]
        raise BundleError(f"{what} failed: {lines[0] if lines else f'exit code {done.returncode}'}")
    return done.stdout


# --- packages of the distribution ------------------------------------------------------------------------------------


class Packages:
    """The packages of a distribution, as its mirror has them; the machine's own apt stays as it is."""

    def __init__(self, image: Image, folder: Path) -> None:
        """Read the mirror's lists into a folder.

        Raises:
            BundleError: this machine's apt names no mirror of the distribution, or it does not answer.
        """
        if not isinstance(image.vendor, Vendor):
            raise BundleError(f"Bundles are made for Debian and Ubuntu, not for {image.vendor.name}.")
        mirror = apt.machine_mirror(image.vendor)
        if mirror is None:
            raise BundleError(
                f"/etc/apt names no {image.vendor.name} mirror to take packages from; add one to"
                " /etc/apt/sources.list.d, or make the bundle on such a machine."
            )
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True)
        (folder / "status").touch()
        (folder / "sources.list").write_text("\n".join(mirror.lines(image)) + "\n", encoding="utf-8")
        options = {
            "Dir::State": folder,
            "Dir::State::lists": folder / "lists",
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder / "cache",
            "Dir::Etc::sourcelist": folder / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Acquire::Languages": "none",
            "APT::Sandbox::User": "",
            "APT::Install-Recommends": "false",
        }
        self._apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items())]
        _run([*self._apt, "update"], "apt-get update")

    def needed(self, names: Sequence[str], present: Sequence[str]) -> list[str]:
        """Return ``name=version`` of packages and all that they need, without those that a machine has anyway.

        Raises:
            BundleError: the mirror lacks a package.
        """
        has = self._closure(present)
        return sorted(f"{name}={version}" for name, version in self._closure(names).items() if name not in has)

    def _closure(self, names: Sequence[str]) -> dict[str, str]:
        said = _run([*self._apt, "--simulate", "install", *names], "apt-get install")
        return dict(_INSTALLS.findall(said))

    def fetch(self, pins: Sequence[str], folder: Path) -> None:
        """Fetch packages into a folder, with the index that apt reads.

        Raises:
            BundleError: the mirror does not give one.
        """
        _run([*self._apt, "download", *pins], "apt-get download", folder)
        (folder / "Packages").write_text("".join(_stanzas(folder)), encoding="utf-8")


def _stanzas(folder: Path) -> Iterator[str]:
    for deb in sorted(folder.glob("*.deb")):
        control = _run(["dpkg-deb", "--field", str(deb)], "dpkg-deb")
        yield f"{control.strip()}\nFilename: {deb.name}\nSize: {deb.stat().st_size}\nSHA256: {sha256_of(deb)}\n\n"


# --- the bundle ------------------------------------------------------------------------------------------------------


def fill(folder: Path, system: System, chosen: Mapping[str, str]) -> None:
    """Bring everything below a folder; ``chosen`` are variables of the roles.

    Raises:
        BundleError, ArtifactError: something cannot be had.
    """
    built = artifacts(system, chosen)
    cache = paths.cache_dir().value
    for path in sources_of(built, cache):
        _copy(path, folder / "cache" / path.relative_to(cache))
    controller, debs = folder / "controller", folder / "debs"
    controller.mkdir()
    debs.mkdir()
    say("fetching the packages of clusterctl's dependencies")
    fetch_controller(system, controller)
    its = sorted(path.name for path in controller.iterdir())
    for twin in (folder / "cache" / "wheels" / name for name in its):
        if twin.is_file() and sha256_of(twin) == sha256_of(controller / twin.name):
            (controller / twin.name).unlink()
    pack_controller(controller, folder / CONTROLLER)
    shutil.rmtree(controller)
    named = sorted({*OF_A_NODE, *(name for one in built for name in one.build.get("packages", ()))})
    say(f"fetching {', '.join(named)} of {system.image}")
    with tempfile.TemporaryDirectory() as name:
        packages = Packages(IMAGES[system.image], Path(name))
        present = [one.format(python=system.python) for one in PRESENT]
        wanted = [*system.helpers, *(one for one in named if one not in LARGE)]
        packages.fetch(packages.needed(wanted, present), debs)
    document = {
        "schema": SCHEMA,
        "system": system.image,
        "platform": system.platform,
        "packages": named,
        "controller": its,
        "variables": dict(chosen),
        "files": {str(path.relative_to(folder)): sha256_of(path) for path in _files(folder)},
    }
    (folder / "manifest.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _copy(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def write(folder: Path, archive: Path) -> None:
    """Pack a folder, so that equal content gives equal bytes.

    Raises:
        TooLargeError: it is larger than :data:`MOST_BYTES`; nothing is kept then.
    """
    partial = archive.with_suffix(".partial")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as pack:
        for path in _files(folder):
            member = tarfile.TarInfo(str(path.relative_to(folder)))
            member.size, member.mode = path.stat().st_size, 0o644
            with path.open("rb") as stream:
                pack.addfile(member, stream)
    size = partial.stat().st_size
    if size > MOST_BYTES:
        partial.unlink()
        raise TooLargeError(
            f"The bundle would have {size / (1 << 20):.1f} MiB, and at most {MOST_BYTES >> 20} MiB travel; choose an"
            f" Open MPI with a smaller source, such as OPENMPI={OPENMPI}."
        )
    partial.replace(archive)


def make(archive: Path, system: System, openmpi: str) -> None:
    """Make a bundle with UCX, or without it where that would be too large.

    Raises:
        BundleError, ArtifactError: it cannot be made.
    """
    for ucx in ("always", "never"):
        with tempfile.TemporaryDirectory(prefix="clusterctl-bundle-") as name:
            fill(Path(name), system, {"openmpi_version": openmpi, "openmpi_ucx": ucx})
            try:
                write(Path(name), archive)
            except TooLargeError as error:
                if ucx == "never":
                    raise
                say(f"{str(error).partition(';')[0]}; it is made without UCX.")
            else:
                return


def main() -> int:
    """Make a bundle; returns 1 after one sentence where that is not possible."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--system", choices=list(SYSTEMS), default="debian12", help="distribution of the machine")
    parser.add_argument("--openmpi", default=OPENMPI, help="release of Open MPI (default: %(default)s)")
    parser.add_argument("--python", choices=PYTHONS, default="", help="Python of the environment (default: its own)")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "bundle", help="folder (default: %(default)s)")
    given = parser.parse_args()
    archive = given.out / f"clusterctl-bundle-{given.system}.tar"
    try:
        given.out.mkdir(parents=True, exist_ok=True)
        make(archive, replace(SYSTEMS[given.system], its_python=given.python), given.openmpi)
    except (BundleError, ArtifactError) as error:
        say(str(error))
        return 1
    except OSError as error:
        say(f"{error.filename or given.out} cannot be written: {error.strerror}.")
        return 1
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    say(f"{archive}: {archive.stat().st_size / (1 << 20):.1f} MiB, sha256 {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
