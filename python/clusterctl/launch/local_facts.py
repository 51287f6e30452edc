"""Facts of this very machine that ``clusterctl launch`` needs, read from the probe's record without pydantic.

The names are those of :mod:`clusterctl.model.facts`, whose types hold the whole record. A pod's image gets along with
the standard library so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

PATH_VARIABLES = ("NCCL_", "GLOO_")  # beginnings of the names of variables that choose the way of a job


@dataclass(frozen=True)
class LocalAddress:
    """One address of an interface."""

    family: int
    address: str


@dataclass(frozen=True)
class LocalInterface:
    """A network interface; ``kind`` is physical, bridge, veth, loopback and so on."""

    name: str
    kind: str
    up: bool = False
    addresses: tuple[LocalAddress, ...] = ()


@dataclass(frozen=True)
class LocalRoute:
    """A route of the main table."""

    family: int
    destination: str
    interface: str
    metric: int


@dataclass(frozen=True)
class LocalFabric:
    """What the role ``fabric`` wrote for this node."""

    cidrs: tuple[str, ...] = ()
    interface: str = ""


@dataclass(frozen=True)
class LocalLimit:
    """The soft side of a resource limit; None means unlimited."""

    soft: int | None


@dataclass(frozen=True)
class LocalName:
    """What a name means to this machine; ``problem`` says why it means nothing."""

    name: str
    addresses: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class LocalFacts:
    """The part of a node's record that decides what a pod becomes; ``rdma`` is as the probe wrote it.

    ``instances`` are the names of the MIG instances that jobs can use here, and ``cut_gpus`` the GPUs that have them.
    ``empty_gpus`` are in MIG mode and have none. ``path_settings`` says by name where a variable of NCCL or Gloo is
    set.
    """

    cores: int
    shm_bytes: int = 0
    interfaces: tuple[LocalInterface, ...] = ()
    routes: tuple[LocalRoute, ...] = ()
    fabric: LocalFabric | None = None
    limits: Mapping[str, LocalLimit] = field(default_factory=dict)
    names: tuple[LocalName, ...] = ()
    rdma: tuple[Mapping[str, Any], ...] = ()
    instances: tuple[str, ...] = ()
    cut_gpus: int = 0
    empty_gpus: int = 0
    path_settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> LocalFacts:
        """Return the typed form of the probe's record.

        Raises:
            ValueError: a part is missing or has another form; the text names it.
        """
        fabric = _get(record, "fabric", dict, None)
        gpus = _dicts(record, "gpus")
        cut = [names for gpu in gpus if not gpu.get("unusable") and (names := _texts(gpu, "instances"))]
        return cls(
            cores=_get(record, "cores", int),
            shm_bytes=_get(record, "shm_bytes", int, 0),
            interfaces=tuple(map(_interface, _dicts(record, "interfaces"))),
            routes=tuple(
                LocalRoute(
                    _get(route, "family", int),
                    _get(route, "destination", str),
                    _get(route, "interface", str),
                    _get(route, "metric", int),
                )
                for route in _dicts(record, "routes")
            ),
            fabric=None if fabric is None else LocalFabric(_texts(fabric, "cidrs"), _get(fabric, "interface", str, "")),
            limits={
                name: LocalLimit(_get(limit, "soft", int, None))
                for name, limit in _get(record, "limits", dict, {}).items()
                if isinstance(limit, dict)
            },
            names=tuple(
                LocalName(_get(entry, "name", str), _texts(entry, "addresses"), _get(entry, "problem", str, ""))
                for entry in _dicts(record, "names")
            ),
            rdma=_dicts(record, "rdma"),
            instances=tuple(name for names in cut for name in names),
            cut_gpus=len(cut),
            empty_gpus=sum(1 for gpu in gpus if gpu.get("unusable") == "mig"),
            path_settings={
                name: _get(entry, "source", str, "")
                for entry in _dicts(record, "parameters")
                if (name := _get(entry, "name", str)).startswith(PATH_VARIABLES)
            },
        )


def _interface(entry: Mapping[str, Any]) -> LocalInterface:
    return LocalInterface(
        _get(entry, "name", str),
        _get(entry, "kind", str),
        _get(entry, "up", bool, default=False),
        tuple(
            LocalAddress(_get(address, "family", int), _get(address, "address", str))
            for address in _dicts(entry, "addresses")
        ),
    )


_REQUIRED: Any = object()


def _get(entry: Mapping[str, Any], key: str, kind: type, default: Any = _REQUIRED) -> Any:
    """Return a value of one kind; a default of None allows null."""
    value = entry.get(key, default)
    if value is _REQUIRED:
        raise ValueError(f"{key} is missing")
    if value is None and default is None:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{key} is not of the kind {kind.__name__}")
    return value


def _dicts(entry: Mapping[str, Any], key: str) -> tuple[Mapping[str, Any], ...]:
    found = _get(entry, key, list, [])
    if not all(isinstance(one, dict) for one in found):
        raise ValueError(f"{key} holds something else than objects")
    return tuple(found)


def _texts(entry: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = _get(entry, key, list, [])
    if not all(isinstance(one, str) for one in found):
        raise ValueError(f"{key} holds something else than texts")
    return tuple(found)
