"""Refuse a provisioning run before it changes anything: unreadable files, unknown tags, hosts that do not answer."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.model.run_record import Problem
from clusterctl.provisioning import playbook
from clusterctl.support import content
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.model.hosts import Inventory, InventoryOptions
    from clusterctl.model.probe import ProbeFailure

_UNREACHABLE_KINDS = frozenset({"unreachable", "refused", "host_key", "timeout"})


def check_files(cluster: Inventory, options: InventoryOptions) -> None:
    """Refuse a key or password file that cannot be read, before ssh or Ansible says it once per host."""
    keys = {host.private_key: host.name for host in cluster.selected_hosts if host.private_key and host.by_ssh}
    for key, name in keys.items():
        whose = "--private-key" if options.private_key else f"ansible_ssh_private_key_file of {name}"
        _readable(Path(key), whose)


def _readable(path: Path, whose: str) -> None:
    try:
        with path.expanduser().open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{whose} names {path}, which cannot be read: {error.strerror}.") from None


def check_tags(wanted: Sequence[str]) -> None:
    """Refuse a tag that no task has: Ansible would do nothing and call it a success."""
    special = {"all", "always", "never", "tagged", "untagged"}
    if not set(wanted) - special:
        return
    known = playbook.known_tags(content.playbook("provision"))
    for tag in wanted:
        if tag not in special and tag not in known:
            raise ConfigError(f"No task has the tag '{tag}'; known tags are {', '.join(known)}.")


def extra_vars_content(value: str) -> str:
    """Return a value, or the digest of the file that it names."""
    if not value.startswith("@"):
        return value
    try:
        return hashlib.sha256(Path(value[1:]).expanduser().read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"--extra-vars names {value[1:]}, which cannot be read: {error.strerror}.") from None


def connection_problem(failure: ProbeFailure) -> Problem:
    """Return a host that could not be looked at as a line of the problem table."""
    return Problem(
        host=failure.host,
        subject=failure.kind,
        problem=failure.message,
        kind="unreachable" if failure.kind in _UNREACHABLE_KINDS else "host",
    )
