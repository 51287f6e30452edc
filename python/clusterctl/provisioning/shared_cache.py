"""A shared cache for a provisioning run: its locks come first, and what it has is not counted as a build."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.remote.shared_cache import exchange, place, signing
from clusterctl.state import paths, software
from clusterctl.support.errors import ClusterctlError, ConfigError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.model.events import RunObserver
    from clusterctl.model.hosts import Host

_LOOK_S = 300.0  # for all that a run asks of the shared cache before it begins
WHERE, SIGNERS = "cluster_cache", "cluster_cache_signers"  # variables of the inventory


@dataclass(frozen=True)
class SharedCache:
    """Where a run may look before something is compiled; ``where`` is empty without a shared cache."""

    where: str = ""
    signers: str = ""

    def of(self, hosts: Sequence[Host]) -> SharedCache:
        """Return this shared cache, with what the options leave open from the inventory.

        Raises:
            ConfigError: hosts name different ones, or what was named cannot be used.
        """
        found = SharedCache(self.where or _only(hosts, WHERE), self.signers or _only(hosts, SIGNERS))
        if found.where:
            place.refuse(found.where)
            signing.program()
            signing.signers_file(found.signers)
        return found

    @property
    def variables(self) -> dict[str, Any]:
        """The variables by which the collection finds the shared cache."""
        if not self.where:
            return {}
        program = [sys.executable, "-m", "clusterctl"]
        return {WHERE: self.where, SIGNERS: self.signers, "cluster_cache_program": program}

    def at_hand(self, observer: RunObserver) -> frozenset[tuple[str, str]]:
        """Return name and platform of what need not be built: this controller's cache has it, or the shared one.

        The locks of wheels come into this controller's cache. A shared cache that does not answer, or answers something
        else, is left out.

        Raises:
            ConfigError: a library for the place is missing, or a password would go out in clear text.
        """
        if not self.where:
            return software.cached()
        observer.phase(f"looking into the shared cache {self.where}")
        verifier = signing.SignatureVerifier(signing.signers_file(self.signers))
        try:
            store = place.opened(self.where, _LOOK_S)
        except UnreachableError as error:
            return _left_out(error, observer)
        try:
            found = exchange.pull(
                store, exchange.EntryOptions(kinds=("lock",)), verifier, paths.cache_dir().value, _silent
            )
            entries, problems = exchange.listed(store, verifier, exchange.EntryOptions(kinds=("pack",)))
        except ClusterctlError as error:
            return _left_out(error, observer)
        for problem in (*found.problems, *problems):
            observer.phase(str(problem))
        shared = (entry.statement for entry in entries)
        return software.cached() | {(str(pack.record["name"]), pack.platform) for pack in shared}


NO_SHARED_CACHE = SharedCache()


def _left_out(error: ClusterctlError, observer: RunObserver) -> frozenset[tuple[str, str]]:
    observer.phase(f"the shared cache is left out: {error}")
    return software.cached()


def _only(hosts: Sequence[Host], variable: str) -> str:
    values: dict[str, str] = {}
    for host in hosts:
        values.setdefault(str(host.variables.get(variable) or ""), host.name)
    if len(values) > 1:
        (one, first), (other, second) = list(values.items())[:2]
        raise ConfigError(
            f"{variable} is '{one}' on {first} and '{other}' on {second}; set it once, for all hosts of the inventory."
        )
    return next(iter(values), "")


def _silent(_what: str, _statement: object) -> None:
    """Tell nothing: locks are a few hundred bytes each."""
