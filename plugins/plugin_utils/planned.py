# SPDX-License-Identifier: GPL-3.0-or-later
"""The artifacts of a plan, as recipes declare them: options of the modules, and the result of a task about several."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, plain

_OWN = frozenset({"libraries", "packages", "package_options"})  # options of an action, not of a module
_LISTS = ("changes", "watch", "lost", "needs_packages", "lacking")
# What Ansible and clusterctl read of a failure beside its message.
_OF_FAILURE = ("module_stderr", "module_stdout", "unreachable")
_OF_ANSIBLE = {
    "exception",
    "invocation",
    "problems",
    "warnings",
    *_OF_FAILURE,
}  # needless in the part about one artifact


def artifacts_of(variables: Mapping[str, Any], name: str, host: str) -> list[dict[str, Any]]:
    """Return the artifacts that a host gets, in the order in which they are built.

    Args:
        variables: of the task. The plan in them is data and no template.
        name: the variable in which the result of M(clusterctl.hpc.software_plan) was registered.
        host: the host.

    Raises:
        ArtifactError: there is no plan.
    """
    try:
        plan = variables[name]
        plan = plan.get("software_plan", plan)["artifacts"]
        return [plain(one) for one in plan if host in one["hosts"]]
    except (AttributeError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"The variable '{name}' holds no plan of the software; run clusterctl.hpc.software_plan before, for all"
            f" hosts, with 'register: {name}'."
        ) from error


def leaving(variables: Mapping[str, Any], host: str) -> list[str]:
    """Return the links that a host is to have no longer, by the plan of M(clusterctl.hpc.software_plan)."""
    return [str(link) for link in ((variables.get("software_plan") or {}).get("leaving") or {}).get(host) or ()]


def facts_of(variables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts of a host that the role preflight gathered, out of its variables."""
    return (variables.get("__preflight_look") or {}).get("node") or {}


def builder_of(one: Mapping[str, Any], living: Collection[str]) -> str:
    """Return the host that builds an artifact, the first of its builders that still takes part; '' without one."""
    return next((str(name) for name in one["builders"] if name in living), "")


def builds(host: str, one: Mapping[str, Any], variables: Mapping[str, Any]) -> bool:
    """Whether a host is the one that builds an artifact."""
    return host == builder_of(one, {str(name) for name in variables.get("ansible_play_hosts") or [host]})


def installation(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return an artifact as options of M(clusterctl.hpc.artifact_install), with the controller's cache."""
    install, build = one["install"], one["build"]
    return {
        **{name: value for name, value in install.items() if name not in _OWN},
        "name": one["name"],
        "version": one["version"],
        "key": one["key"],
        "cache_dir": build["cache_dir"],
        "root": one["prefix"],
        "link": one["link"],
        "uses": one["uses"],
        "libraries": list(install.get("libraries") or ()),
        "push_dir": build["work_dir"],
    }


def building(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return an artifact as options of M(clusterctl.hpc.artifact_build), with those that the controller reads."""
    own = {"name": one["name"], "version": one["version"], "inputs": one["inputs"]}
    return {**one["build"], **own, "root": one["prefix"], "prefix": one["link"]}


def answers_of(said: Mapping[str, Any], asked: Iterable[Mapping[str, Any]], host: str) -> dict[str, dict[str, Any]]:
    """Return what a host says of each artifact that it was asked about.

    Args:
        said: the answer of a module, which may hold anything.
        asked: the options of the artifacts.
        host: the host.

    Raises:
        ArtifactError: an answer is missing, or has another form.
    """
    names, every = [str(one["name"]) for one in asked], said.get("artifacts")
    found = {name: every.get(name) if isinstance(every, dict) else None for name in names}
    for name, answer in found.items():
        if not isinstance(answer, dict) or not all(isinstance(answer.get(field, []), list) for field in _LISTS):
            raise ArtifactError(
                f"{host}: its answer about {name} has another form; look at this node, and run again without it."
            )
    return {name: {str(field): value for field, value in (answer or {}).items()} for name, answer in found.items()}


def sum_of(*results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of several steps; fields of a later step replace those of an earlier one."""
    total: dict[str, Any] = {}
    for result in results:
        total |= result
    diffs = [part for result in results for part in _listed(result.get("diff"))]
    lists = {
        field: [part for result in results if isinstance(parts := result.get(field), list) for part in parts]
        for field in ("changes", "watch", "warnings")
    }
    return {
        **total,
        "changed": any(result.get("changed") for result in results),
        "changes": lists["changes"],
        "watch": lists["watch"],
        **({"diff": diffs} if diffs else {}),
        **({"warnings": lists["warnings"]} if lists["warnings"] else {}),
    }


def _listed(diff: Any) -> list[Any]:
    return [part for part in (diff if isinstance(diff, list) else [diff]) if part]


def together(artifacts: Iterable[Mapping[str, Any]], results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the result of a task from those of artifacts; each one says to which role it belongs.

    Args:
        artifacts: of the plan.
        results: by name of the artifact.
    """
    of = {str(one["name"]): one for one in artifacts}
    failed = {name: result for name, result in results.items() if result.get("failed") or result.get("unreachable")}
    every = sum_of(*results.values())
    answer: dict[str, Any] = {
        "changed": every["changed"],
        "changes": every["changes"],
        "watch": every["watch"],
        "artifacts": {
            name: {
                **{field: value for field, value in result.items() if field not in _OF_ANSIBLE},
                "role": of[name].get("role", ""),
            }
            for name, result in results.items()
        },
    }
    if "diff" in every:
        answer["diff"] = every["diff"]
    if "warnings" in every:
        answer["warnings"] = _unlike(every["warnings"])
    if failed:
        answer["failed"] = True
        answer["msg"] = "\n".join(_named(of[name], str(result.get("msg", ""))) for name, result in failed.items())
        for field in _OF_FAILURE:
            if values := [result[field] for result in failed.values() if result.get(field)]:
                answer[field] = values[0]
        if problems := [item for result in failed.values() for item in _list(result.get("problems"))]:
            answer["problems"] = problems
    elif told := [str(result["msg"]) for result in results.values() if result.get("msg")]:
        answer["msg"] = " ".join(told)
    return answer


def _unlike(warnings: Iterable[Any]) -> list[Any]:
    """Return each warning once; a node may give a list or a mapping, which becomes its message."""
    texts = [str(one.get("msg", "")) if isinstance(one, dict) else one for one in warnings]
    return list(dict.fromkeys(one for one in texts if one and not isinstance(one, (list, tuple))))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _named(one: Mapping[str, Any], message: str) -> str:
    """Return a message that names its artifact."""
    return message if one["name"] in message else f"{message} (This is about {one['name']} {one['version']}.)"
