"""Values of the inventory's Jinja templates, as Ansible works them out, for the variables that clusterctl reads."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

from clusterctl.inventory import ansible_call, cache
from clusterctl.model import job_login, nodeset
from clusterctl.support.errors import ConfigError
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from clusterctl.model.hosts import InventoryOptions, InventorySources

SUDO_PASSWORDS = ("ansible_become_password", "ansible_become_pass", "ansible_sudo_password", "ansible_sudo_pass")
_READ = (
    "ansible_host",
    "ansible_port",
    "ansible_ssh_port",
    "ansible_user",
    "ansible_ssh_user",
    "ansible_connection",
    "ansible_ssh_private_key_file",
    "ansible_private_key_file",
    "ansible_ssh_common_args",
    "ansible_ssh_extra_args",
    "ansible_python_interpreter",
    "ansible_become",
    "ansible_become_user",
    "cluster_address",
    "cluster_cache",
    "cluster_cache_signers",
    "cluster_port",
    "cluster_prefix",
    "fabric_cidr",
    "fabric_interfaces",
    "nccl_align",
    "slots",
    job_login.CLUSTER_USER,
    job_login.KEYS,
    job_login.MESH_USER,
)
_PROGRAM = "clusterctl.inventory.template_program"
MARK = "clusterctl-values "  # what the line with the answer begins with
_TEMPLATE = re.compile(r"\{\{|\{%")
# A template with one of these may have another value next time, though the inventory is the same.
_CHANGING = re.compile(r"\b(lookup|query|q|now|random|shuffle|strftime|hash|password_hash)\b")
_MOST_NAMED = 3


def templated(hostvars: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return by host the variables that clusterctl reads and that hold a template."""
    names = (*_READ, *SUDO_PASSWORDS)
    found = {
        host: [name for name in names if _TEMPLATE.search(str(variables.get(name, "")))]
        for host, variables in hostvars.items()
    }
    return {host: wanted for host, wanted in found.items() if wanted}


def resolved(
    sources: InventorySources,
    options: InventoryOptions,
    hostvars: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Return the variables of all hosts with the values of those templates that clusterctl reads.

    Args:
        sources: the inventory.
        options: what changes its meaning.
        hostvars: what ansible-inventory says of it; it leaves templates as they are.

    Raises:
        ConfigError: a template has no value; the message names the host and the variable.
    """
    wanted = templated(hostvars)
    if not wanted:
        return {host: dict(variables) for host, variables in hostvars.items()}
    command = [sys.executable, "-m", _PROGRAM, *ansible_call.arguments(sources, options)]
    keeps = options.is_plain and not any(map(_CHANGING.search, _templates(hostvars)))
    key = cache.key(sources, command, ansible_call.environment()) if keeps else ""
    answer = cache.recall(key) or _asked(sources, command, options, wanted)
    refused = [one for one in answer["failed"] if one[1] not in SUDO_PASSWORDS]
    if refused:
        raise ConfigError(
            f"In {sources}, {_refused_words(refused)}; define what the template names, or write the value itself."
        )
    cache.keep(key, answer)
    return {
        host: {name: value for name, value in variables.items() if name not in wanted.get(host, ())}
        | answer["values"].get(host, {})
        for host, variables in hostvars.items()
    }


def _refused_words(refused: Iterable[Sequence[str]]) -> str:
    """Return one clause for each variable and cause, with its hosts."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for host, name, why in refused:
        hosts.setdefault((name, why.rstrip(".")), []).append(host)
    words = (f"{name} of {nodeset.folded(its)} has no value: {why}" for (name, why), its in hosts.items())
    return and_more(words, _MOST_NAMED, "; ")


def _asked(
    sources: InventorySources, command: list[str], options: InventoryOptions, wanted: Mapping[str, list[str]]
) -> dict[str, Any]:
    done = ansible_call.call(command, options, json.dumps(wanted))
    line = next((line for line in reversed(done.stdout.splitlines()) if line.startswith(MARK)), "")
    if not line:
        said = " ".join(done.stderr.split())[-400:] or f"the program ended with {done.returncode}"
        raise ConfigError(f"The templates of the inventory {sources} cannot be worked out: {said}.")
    found: dict[str, Any] = json.loads(line.removeprefix(MARK))
    return found


def _templates(value: Any) -> Iterator[str]:
    """Yield all texts with a template, at any depth."""
    if isinstance(value, str):
        if _TEMPLATE.search(value):
            yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _templates(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _templates(inner)
