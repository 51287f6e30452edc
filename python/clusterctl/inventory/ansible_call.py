"""Start Ansible's inventory programs: their command line, their settings, and vault passwords behind a pipe."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.inventory import extra_vars
from clusterctl.model.hosts import InventorySources, is_host_list
from clusterctl.model.nodeset import host_list
from clusterctl.support import content
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.model.hosts import InventoryOptions


def ansible_program(name: str) -> str:
    """Return the ansible program of that name that belongs to the running interpreter, else the one on PATH."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.is_file() else name


def for_ansible(sources: InventorySources) -> tuple[str, ...]:
    """Return the values of Ansible's ``--inventory``: absolute paths, and lists of hosts without brackets."""
    return tuple(host_list(word) if is_host_list(word) else str(Path(word).absolute()) for word in sources.words)


def arguments(sources: InventorySources, options: InventoryOptions, limit: str | None = None) -> list[str]:
    """Return the arguments that ansible-inventory and our program beside it share, without passwords.

    :func:`call` adds the extra variables and the vault ids.
    """
    found = [*(f"--inventory={word}" for word in for_ansible(sources)), "--list"]
    found += [f"--vault-password-file={value}" for value in options.vault_password_files]
    return found + ([f"--limit={limit}"] if limit is not None else [])


def environment() -> dict[str, str]:
    """Return the environment of both programs."""
    return {
        **os.environ,
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FATAL": "true",
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_COLLECTIONS_PATH": str(content.collections_path()),
        "ANSIBLE_NOCOLOR": "true",
        "ANSIBLE_DEPRECATION_WARNINGS": "false",
    }


def call(command: Sequence[str], options: InventoryOptions, request: str = "") -> subprocess.CompletedProcess[str]:
    """Run one of the programs with the extra variables and vault ids of the options.

    Args:
        command: the program and its other arguments.
        options: the options of the command line.
        request: goes to the program's standard input.

    Raises:
        ConfigError: the program is not installed, or an extra variable is not valid.
    """
    with _vault_arguments(options) as (vaults, pipes), extra_vars.in_private_folder(options.extra_vars) as variables:
        try:
            return subprocess.run(
                [*command, *variables, *vaults],
                input=request,
                capture_output=True,
                text=True,
                env=environment(),
                check=False,
                pass_fds=pipes,
            )
        except FileNotFoundError:
            raise ConfigError("ansible-inventory is not installed; 'pip install clusterctl' brings it.") from None


@contextlib.contextmanager
def _vault_arguments(options: InventoryOptions) -> Iterator[tuple[list[str], list[int]]]:
    """Yield the vault ids, each password that the user typed behind a pipe: it is on no disk and in no argument."""
    found: list[str] = []
    descriptors: list[int] = []
    try:
        for value in options.vault_ids:
            label = value.rpartition("@")[0] or "default"
            if value.rpartition("@")[2].startswith("prompt") and label in options.vault_passwords:
                reading, writing = os.pipe()
                descriptors.append(reading)
                os.write(writing, options.vault_passwords[label].encode())
                os.close(writing)
                found.append(f"--vault-id={label}@/dev/fd/{reading}")
            else:
                found.append(f"--vault-id={value}")
        yield found, descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
