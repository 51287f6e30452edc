"""A cluster as recipes see it, with what the recipes before have decided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import (
    horovod,
    mpi4py,
    nccl,
    openmpi,
    python_env,
    ucx,
    variables,
)
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

RECIPES = {
    "ucx": ucx,
    "openmpi": openmpi,
    "python_env": python_env,
    "mpi4py": mpi4py,
    "nccl": nccl,
    "horovod": horovod,
}
ROLES = tuple(RECIPES)
BULLSEYE = "debian-11-x86_64-glibc2.31-py3.9"
DEBIAN = {"family": "Debian", "major": "11", "id": "debian"}


class Keyed(Artifact):
    """An artifact with a given key."""

    @property
    def key(self) -> str:
        return str(self.inputs["key"])


def settings(**given: Any) -> Settings:
    """Return the defaults of all roles with some values replaced."""
    plain = {name: "" if "{{" in str(value) else value for name, value in variables.defaults(ROLES).items()}
    return Settings(plain | given)


def host(
    name: str,
    given: Mapping[str, Any],
    *,
    node: Mapping[str, Any] | None = None,
    interpreter: str = "",
    **member: Any,
) -> Host:
    """Return a host with Debian 11.

    Args:
        name: its name.
        given: values of variables other than their defaults.
        node: facts other than those of an empty host.
        interpreter: what the inventory names.
        member: what preflight says of it.
    """
    platform = member.get("platform", BULLSEYE)
    facts = {"platform": platform, "distribution": DEBIAN, "python": {"version": "3.9.2"}, "artifacts": []}
    its = {"name": name, "cuda": {}, "gpus": 0, **member, "platform": platform}
    return Host(name, its, {**facts, **(node or {})}, settings(**given), interpreter)


class Shelf(Controller):
    """A controller that has these wheels, and keeps what it was asked."""

    def __init__(self, *wheels: Mapping[str, str], taken: int = 0, refuses: Exception | None = None) -> None:
        self.wheels, self.taken, self.refuses = wheels, taken, refuses
        self.wishes: list[WheelWish] = []

    def pin(self, wish: WheelWish) -> Pinned:
        self.wishes.append(wish)
        if self.refuses:
            raise self.refuses
        return Pinned(self.wheels, self.taken, [])


def cluster(
    hosts: Iterable[Host], *roles: str, prefix: str = "/usr/local", controller: Controller | None = None
) -> Cluster:
    """Return a cluster of hosts, in which these roles are installed."""
    its = list(hosts)
    return Cluster(its, [one.member for one in its], prefix, frozenset(roles), controller or Controller())


def plan(name: str, key: str, hosts: Iterable[Host], version: str = "1.0", **told: Any) -> Plan:
    """Return the plan of a role that brings one artifact to these hosts."""
    its = [one.name for one in hosts]
    return Plan([Keyed(name, name, version, {"key": key}, "/usr/local", its, its[:1], 1, {})], told=told)


def all_of(host: Host, prefix: str = "/usr/local") -> list[Artifact]:
    """Return what all recipes build on a host, whose wheels hold PyTorch."""
    torch = {"name": "torch", "version": "2.8.0", "filename": "torch.whl", "sha256": "0" * 64}
    whole = cluster([host], *ROLES, prefix=prefix, controller=Shelf(torch))
    plans: dict[str, Plan] = {}
    for role, recipe in RECIPES.items():
        plans[role] = recipe.decide(whole, plans)
        assert list(plans[role].refusals) == []
    return [artifact for plan in plans.values() for artifact in plan.artifacts]
