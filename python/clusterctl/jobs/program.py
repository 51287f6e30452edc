"""Find out which nodes lack the user's program, its script or its folder, before anything of a job is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.launch import compose, torchrun
from clusterctl.launch.compose import Launcher
from clusterctl.model.nodeset import folded
from clusterctl.remote import supervised_job
from clusterctl.support.errors import ConfigError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.launch.compose import JobOptions
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.memory_kills import MemoryKills
    from clusterctl.remote.supervised_job import JobLogin, Look

_MOST_NAMED = 6


def refuse_missing(
    logins: Sequence[JobLogin], nodes: Mapping[str, NodeFacts], launch_node: str, wish: JobOptions
) -> dict[str, MemoryKills]:
    """Refuse nodes that lack the program, its script or the folder; return what the kernel has killed on each so far.

    Args:
        logins: the nodes of the job.
        nodes: their facts.
        launch_node: one of them.
        wish: what the user asked for.

    Returns:
        What was killed for lack of memory before, by host.

    Raises:
        ConfigError: something is missing; the sentence says where and what to do.
        UnreachableError: a node does not answer.
    """
    program = compose.with_python(wish.program, nodes[launch_node].layout)
    names = [
        *([] if wish.launcher is Launcher.TORCHRUN and program[0] in {"-m", torchrun.script(program)} else [program[0]])
    ]
    script = torchrun.script(program)
    names += [_here(script)] if script and _here(script) not in names else []
    paths = {name: node.environment.get("PATH", "") for name, node in nodes.items()}
    looks = supervised_job.look(logins, names, paths, wish.directory)
    refuse_silent(looks)
    adrift = [one.host for one in looks if not one.has_folder]
    if adrift:
        raise ConfigError(
            f"The folder {wish.directory} is not on {folded(adrift)}; --sync copies one to all nodes, --chdir names "
            "another."
        )
    for name in names:
        missing = [one.host for one in looks if not one.found.get(name)]
        blocked = [one.host for one in looks if one.found.get(name) and name == program[0] and name not in one.runs]
        if missing or blocked:
            raise ConfigError(_missing_words(name, missing, blocked, looks))
    return {one.host: one.memory for one in looks}


def refuse_silent(looks: Sequence[Look]) -> None:
    """Refuse nodes that could not be asked.

    Raises:
        UnreachableError: there is one.
    """
    silent = [one for one in looks if one.problem]
    if silent:
        raise UnreachableError("; ".join(f"{one.host}: {one.problem}" for one in silent[:_MOST_NAMED]) + ".")


def _here(name: str) -> str:
    """Return a script's name as a path, since Python does not look into PATH."""
    return name if "/" in name else f"./{name}"


def _missing_words(name: str, missing: Sequence[str], blocked: Sequence[str], looks: Sequence[Look]) -> str:
    if not missing:
        return f"{name} is not executable on {folded(blocked)}; run 'chmod +x' there, or name its interpreter first."
    where = "the PATH of the nodes' sessions" if "/" not in name else f"{looks[0].folder}"
    looked = "" if name.startswith("/") else f" (looked in {where})"
    if len(missing) < len(looks):
        return f"{name} is missing on {folded(missing)}{looked}; --sync DIR copies your code to all nodes."
    return f"{name} is missing on all nodes{looked}; give its full path, or copy it there with --sync DIR."
