"""The certificates of a cluster with ``ssh_mesh_trust: ca``: what is due, what is revoked, and who may sign."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from clusterctl.model import nodeset
from clusterctl.model.findings import Finding
from clusterctl.state import paths
from clusterctl.support import content
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hosts import Inventory

_TRUST, _FOLDER = "ssh_mesh_trust", "ssh_mesh_ca_folder"
_PASSPHRASES = ("ssh_mesh_ca_passphrase", "ssh_mesh_ca_passphrase_file")


@functools.cache
def _rules() -> Any:
    return content.module_util("mesh_ca")


@contextlib.contextmanager
def _in_our_words() -> Iterator[None]:
    """Turn the errors that the collection shares with clusterctl into those of the command line."""
    rules = _rules()
    try:
        yield
    except (rules.authority.AuthorityError, rules.passphrase.PassphraseError) as error:
        raise ConfigError(str(error)) from None


def passphrase_of(path: str) -> str:
    """Return the first line of a passphrase file.

    Raises:
        ConfigError: it cannot be read, is empty, or is open to others.
    """
    with _in_our_words():
        return str(_rules().passphrase.read(path))


class Certificates:
    """What a run has to know of the cluster's certificates; without an authority nothing."""

    def __init__(self, cluster: Inventory, passphrase: str | None = None) -> None:
        """Take the cluster, and the passphrase that the user gave."""
        self._hosts = tuple(host.name for host in cluster.hosts if host.variables.get(_TRUST) == "ca")
        given = next((str(host.variables[_FOLDER]) for host in cluster.hosts if host.variables.get(_FOLDER)), "")
        self._folder = given or str(paths.authority_dir(paths.cluster_id(cluster.sources)))
        self._provision = f"'clusterctl provision {cluster.sources.shown}'"
        self._passphrase = passphrase
        self._has_variable = any(host.variables.get(name) for host in cluster.hosts for name in _PASSPHRASES)

    @property
    def _authority(self) -> Any:
        return _rules().authority.Authority(self._folder)

    @property
    def _exists(self) -> bool:
        return bool(self._hosts) and bool(self._authority.exists)

    def refuse(self) -> None:
        """Refuse an authority that cannot sign, before anything is changed.

        Raises:
            ConfigError: a passphrase was given without need, does not open the authority, or is too short for a new
                one; or the authority is damaged or expired.
        """
        if not self._hosts:
            if self._passphrase is not None:
                raise ConfigError(
                    f"A passphrase of a certificate authority was given, and no host has {_TRUST}: ca; set it in the "
                    "inventory, or leave the passphrase out."
                )
            return
        with _in_our_words():
            if not self._exists:
                if self._passphrase is not None:
                    _rules().passphrase.check_new(self._passphrase)
                return
            self._authority.check(datetime.now(timezone.utc).timestamp())
            if self._passphrase is not None:
                self._authority.check_passphrase(self._passphrase)

    def refuse_missing(self) -> None:
        """Refuse a run that changes the certificates of a cluster, and would make a new authority.

        Raises:
            ConfigError: the authority is missing.
        """
        if self._hosts and not self._exists:
            raise ConfigError(_missing(self._folder, self._provision))

    def refuse_lost(self, facts: Mapping[str, NodeFacts]) -> None:
        """Refuse to make a new authority where nodes still trust a lost one.

        Raises:
            ConfigError: a node trusts an authority of the cluster, and the authority is missing.
        """
        if not self._hosts or self._exists:
            return
        names = [name for name, node in facts.items() if node.known_hosts and node.known_hosts.has_authority]
        if names:
            trust = "trusts" if len(names) == 1 else "trust"
            raise ConfigError(
                f"The certificate authority {self._folder} is missing, and {nodeset.folded(names)} {trust} it; "
                f"restore it from a backup. Without one, set {_TRUST} to keys and provision. Then {_TRUST}: ca "
                "makes a new one."
            )

    def refuse_unready(self, names: Sequence[str], *, anew: bool = False, barred: bool = False) -> None:
        """Refuse a run on these hosts that could not sign what it has to.

        Args:
            names: the hosts.
            anew: whether they get new certificates in any case.
            barred: whether revoked ones are let in again.

        Raises:
            ConfigError: a host is revoked, or the passphrase is missing and stands in no variable either.
        """
        mine = [name for name in names if name in self._hosts]
        if not mine:
            return
        now = datetime.now(timezone.utc).timestamp()
        with _in_our_words():
            if self._has_variable and self._passphrase is None:  # the role reads it
                if self._exists and not barred:
                    _rules().authority.refuse_barred(mine, self._authority.record())
                return
            _rules().authority.refuse_unready(
                self._authority, mine, self._passphrase or "", now, anew=anew, barred=barred
            )

    def due(self, names: Sequence[str], now: datetime) -> dict[str, str]:
        """Return the hosts whose certificates a run now has to sign anew, with the reason."""
        waiting = self._waiting(names, now)
        with _in_our_words():
            return {name: _why(when) for name, when in self._expiring(names, now).items() if name not in waiting}

    def told(self, names: Sequence[str], now: datetime) -> tuple[str, ...]:
        """Return a sentence about certificates that can wait for the passphrase; () where there are none."""
        waiting = self._waiting(names, now)
        if not waiting:
            return ()
        ends = [when for when in waiting.values() if when is not None]
        when = f" by {_date(min(ends))}" if ends else ""
        return (f"Renew the certificates of {nodeset.folded(waiting)}{when}: {_rules().authority.GIVE}.",)

    def _waiting(self, names: Sequence[str], now: datetime) -> Mapping[str, int | None]:
        """Return the hosts whose certificates are due and still valid, where this run has no passphrase."""
        if self._passphrase is not None or self._has_variable or not self._exists:
            return {}
        with _in_our_words():
            found = self._expiring(names, now)
            needing = _rules().authority.needing(self._authority.record(), list(found), now.timestamp())
        return {name: when for name, when in found.items() if name not in needing}

    def _expiring(self, names: Sequence[str], now: datetime) -> Mapping[str, int | None]:
        if not self._exists:
            return {}
        mine = [name for name in names if name in self._hosts]
        found: Mapping[str, int | None] = _rules().authority.expiring(self._authority.record(), mine, now.timestamp())
        return found

    @property
    def revoked(self) -> str:
        """The digest of the revoked keys; '' where there are none."""
        if not self._exists:
            return ""
        with _in_our_words():
            keys = _rules().authority.revoked_keys(self._authority.record())
        return hashlib.sha256(json.dumps(keys).encode()).hexdigest() if keys else ""

    @contextlib.contextmanager
    def variables(self) -> Iterator[dict[str, Any]]:
        """Return the variables by which the role finds the authority, and the passphrase as a path in memory."""
        if not self._hosts:
            yield {}
            return
        variables = {"clusterctl_ca_folder": self._folder}
        if self._passphrase is None:
            yield variables
            return
        with _rules().passphrase.in_memory(self._passphrase) as path:
            yield {**variables, "clusterctl_ca_passphrase_file": path}

    def findings(self, now: datetime) -> tuple[Finding, ...]:
        """Return the certificates that have expired or will soon, for doctor."""
        with _in_our_words():
            expiring = self._expiring(self._hosts, now)
        groups: dict[bool, list[str]] = {}
        for name, when in expiring.items():
            if when is not None:
                groups.setdefault(when <= now.timestamp(), []).append(name)
        cure = "run 'clusterctl provision', which signs them anew"
        words = {
            True: ("error", "the certificates have expired, so other nodes refuse the logins"),
            False: ("warning", "less than a third of the life of the certificates is left"),
        }
        found = []
        for is_over, names in sorted(groups.items(), reverse=True):
            first = min(when for name in names if (when := expiring[name]) is not None)
            severity, cause = words[is_over]
            found.append(
                Finding(
                    "certificates",
                    "error" if severity == "error" else "warning",
                    tuple(names),
                    f"{cause} ({_date(first)})",
                    cure,
                )
            )
        return tuple(found)


def _missing(folder: str, provision: str) -> str:
    return (
        f"The certificate authority {folder} is missing; restore it from a backup, or run {provision} where the "
        "cluster never had one."
    )


def _why(when: int | None) -> str:
    return "its certificates are to be renewed" if when is None else f"its certificates expire on {_date(when)}"


def _date(when: int) -> str:
    return f"{datetime.fromtimestamp(when, timezone.utc):%Y-%m-%d %H:%M} UTC"


# --- the commands -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """The certificates of one node; times are seconds since 1970."""

    node: str
    serials: tuple[int, ...]
    expires: int | None
    state: str  # valid, due, expired, revoked


def authority_of(cluster: Inventory) -> Any:
    """Return the authority of a cluster.

    Raises:
        ConfigError: the cluster has no sound authority.
    """
    found = Certificates(cluster)
    authority = found._authority  # noqa: SLF001 - of this module
    if not authority.exists:
        found.refuse_missing()
        raise ConfigError(
            f"{cluster.sources.shown} has no certificate authority; set {_TRUST}: ca in the inventory and run "
            f"{found._provision}."  # noqa: SLF001 - of this module
        )
    with _in_our_words():
        authority.record()
    return authority


def entries(authority: Any, now: datetime) -> list[Entry]:
    """Return what the authority signed, by node."""
    record = authority.record()
    issued = record.get("issued", {})
    due = _rules().authority.expiring(record, list(issued), now.timestamp())
    found = []
    for node in sorted({*issued, *record.get("revoked", {})}):
        its = issued.get(node, {})
        ends = [one["valid_before"] for one in its.values()]
        expires = min(ends) if ends else None
        if node in record.get("revoked", {}) and not _lets_in(record, node):
            state = "revoked"
        elif expires is not None and expires <= now.timestamp():
            state = "expired"
        else:
            state = "due" if node in due else "valid"
        found.append(Entry(node, tuple(sorted(one["serial"] for one in its.values())), expires, state))
    return found


def _lets_in(record: Mapping[str, Any], node: str) -> bool:
    """Whether a node that was revoked has been let in again with new keys."""
    entry = record["revoked"][node]
    has_new = record.get("issued", {}).get(node, {}).get("user", {}).get("key") not in entry["keys"]
    return not entry["barred"] and not entry["returns"] and has_new


def mark_for_renewal(authority: Any, nodes: Sequence[str]) -> None:
    """Have the next provision sign these nodes' certificates anew; none named means all.

    Raises:
        ConfigError: a node has no certificate, or the record cannot be written.
    """
    with _in_our_words():
        issued = authority.record().get("issued", {})
        unknown = [node for node in nodes if node not in issued]
        if unknown:
            raise ConfigError(f"{', '.join(unknown)} has no certificate of this cluster; 'ca show' names the nodes.")
        authority.forget(list(nodes) or sorted(issued))


def revoke(authority: Any, nodes: Sequence[str], now: datetime) -> list[str]:
    """Put the keys of these nodes into the list of revoked keys; returns other nodes that have one of these keys.

    Raises:
        ConfigError: a node has no certificate, or the record cannot be written.
    """
    with _in_our_words():
        authority.revoke(list(nodes), now.timestamp())
        return list(authority.sharing(nodes))
