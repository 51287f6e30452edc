"""What a launcher needs before the start: its packages on the nodes, and accelerate the user's configuration file."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.diagnosis import training_stack
from clusterctl.launch import accelerate
from clusterctl.launch.launchers import RAY_SECRET, TRAITS, Launcher
from clusterctl.model.nodeset import folded
from clusterctl.remote import python
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from clusterctl.jobs.team import JobTeam
    from clusterctl.launch.accelerate import AccelerateConfig
    from clusterctl.launch.compose import JobOptions
    from clusterctl.model.facts import NodeFacts
    from clusterctl.remote.supervised_job import Look

_READ_S = 30.0
_CURES = {
    "PyTorch": "provision them with python_env_framework: pytorch",
    "Horovod": "provision them with horovod_install: auto",
    "deepspeed": "take it from a lock, by --project or python_env_lock",
}
_PYTHON_PATH = "PYTHONPATH"
_VERSION = re.compile(r"3\.[0-9]{1,2}")


@dataclass(frozen=True)
class Synced:
    """A folder here, and its place on the nodes."""

    folder: Path
    place: str


def refuse_without(nodes: Mapping[str, NodeFacts], wish: JobOptions) -> None:
    if any(node.layout.environment for node in nodes.values()):
        _refuse_horovod(wish.launcher)
        return  # its packages are looked for in it
    have = {name: training_stack.of(node) for name, node in nodes.items()}
    for need in TRAITS[wish.launcher].needs:
        if need == "PyTorch":
            _refuse(wish.launcher, need, [name for name, one in have.items() if one.framework != "pytorch"])
        elif need == "Horovod":
            _refuse(wish.launcher, need, [name for name, one in have.items() if not one.horovod])


def _refuse_horovod(launcher: Launcher) -> None:
    if "Horovod" in TRAITS[launcher].needs:
        raise ConfigError(
            f"--launcher {launcher.value} starts the cluster's Horovod, which is built against the cluster's own "
            "environment; leave out --project, or take another launcher."
        )


def secrets_of(wish: JobOptions) -> dict[str, str]:
    """Return what the launcher's own environment has to hold so that strangers cannot give a job's Ray any work."""
    if wish.launcher is not Launcher.RAY:
        return {}
    return dict(zip(RAY_SECRET, ("token", secrets.token_hex(32)), strict=True))


def package_files(nodes: Mapping[str, NodeFacts], wish: JobOptions) -> dict[str, dict[str, str]]:
    """Return a file of each package that the cluster's Python has to have, by host and package.

    It is empty where nobody can know: the user sets ``PYTHONPATH``, or starts JAX with another Python.
    """
    layout = next(iter(nodes.values())).layout
    own = wish.launcher is Launcher.JAX and wish.program[0] not in {"python", "python3", layout.python}
    paths = [path for name, _sign, path in (word.partition("=") for word in wish.exported) if name == _PYTHON_PATH]
    if layout.environment:
        paths = [path for path in paths if path.startswith("/")]  # a project's own modules lie beside the start
    if own or paths:
        return {}
    packages = [need for need in TRAITS[wish.launcher].needs if need.islower()]
    found: dict[str, dict[str, str]] = {}
    for name, node in nodes.items():
        place, version = node.layout.link("python_env"), node.artifact("python_env").version
        if node.layout.environment:
            place, version = node.layout.environment, node.layout.environment.rpartition("/")[2].split("-")[1]
            packages = ["torch" if need == "PyTorch" else need for need in TRAITS[wish.launcher].needs]
        if packages and _VERSION.fullmatch(version):
            folder = f"{place}/lib/python{version}/site-packages"
            found[name] = {need: f"{folder}/{need}/__init__.py" for need in packages}
    return found


def refuse_without_packages(
    launcher: Launcher, files: Mapping[str, Mapping[str, str]], looks: Sequence[Look], *, in_project: bool = False
) -> None:
    """Refuse nodes whose Python lacks a package.

    ``files`` are those of :func:`package_files`, and ``looks`` says where each node has them.
    """
    for need in dict.fromkeys(need for own in files.values() for need in own):
        lacks = [one.host for one in looks if need in (own := files.get(one.host, {})) and not one.found.get(own[need])]
        _refuse(launcher, need, lacks, f"add {need} to the lock of the project" if in_project else "")


def _refuse(launcher: Launcher, need: str, hosts: Sequence[str], cure: str = "") -> None:
    if hosts:
        own = _CURES.get(need, f"provision them with python_env_requirements: [{need}]")
        cure = cure or f"{own}, or leave them out with --limit"
        raise ConfigError(f"--launcher {launcher.value} needs {need}, which is missing on {folded(hosts)}; {cure}.")


def config(team: JobTeam, wish: JobOptions, synced: Synced | None) -> AccelerateConfig | None:
    """Return the user's configuration file of accelerate; None where no option names one.

    It is read here where it is copied to the nodes, else on the launch node.

    Raises:
        ConfigError: it is missing, too long, or malformed.
    """
    name = accelerate.config_file(wish.program) if wish.launcher is Launcher.ACCELERATE else ""
    if not name:
        return None
    place = os.path.normpath(f"{wish.directory}/{name}") if wish.directory and not name.startswith("/") else name
    if synced and place.startswith(f"{synced.place}/"):
        data = _here(synced.folder / place.removeprefix(f"{synced.place}/"))
        where = f"in {synced.folder}"
    else:
        data = _there(team, place)
        where = f"on {team.launch_node}"
    if data is None:
        raise ConfigError(f"{name} cannot be read {where}; give --config_file a file that all nodes have, or --sync.")
    if len(data) > accelerate.MOST_BYTES:
        raise ConfigError(
            f"{name} is longer than {accelerate.MOST_BYTES >> 10} KiB; name a configuration of accelerate."
        )
    return accelerate.parse(name, data.decode("utf-8", "replace"))


def _here(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(accelerate.MOST_BYTES + 1)
    except OSError:
        return None


# The text is constant. A start-up file of the session may print something before the mark.
_READ = 'printf "\\n%s\\n" "$0"; exec head -c "$1" -- "$2"'
_MARK = "clusterctl-file"


def _there(team: JobTeam, place: str) -> bytes | None:
    words = ["sh", "-c", _READ, _MARK, str(accelerate.MOST_BYTES + 1), place]
    try:
        done = python.run(team.login(team.launch_node).command(words), b"", _READ_S)
    except (OSError, subprocess.TimeoutExpired, python.TooMuchOutputError):
        return None
    return done.output.partition(f"\n{_MARK}\n".encode())[2] if done.returncode == 0 else None
