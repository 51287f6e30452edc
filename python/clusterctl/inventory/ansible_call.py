"""Start Ansible's inventory programs: command line, settings, vault passwords by a pipe, extra variables by files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.model.hosts import InventorySources, is_host_list
from clusterctl.model.nodeset import host_list
from clusterctl.support import content, held_files
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.model.hosts import InventoryOptions


def ansible_program(name: str) -> str:
    """Return the ansible program of that name that belongs to the running interpreter, else the one on PATH."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.is_file() else name


def stamp(program: str) -> list[int]:
    """Return what changes when a program is installed anew; [] where its file is not known."""
    found = Path(program)
    return [found.stat().st_mtime_ns, found.stat().st_size] if found.is_file() else []


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
    """Run one of the programs with the extra variables and vault ids of the options; ``request`` is its standard input.

    Raises:
        ConfigError: the program is not installed, or an extra variable is not valid.
    """
    with _vault_arguments(options) as (vaults, pipes), in_private_folder(options.extra_vars) as variables:
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


# Pass the values of ``--extra-vars`` to Ansible's programs by files, because a process list shows every argument.
#
# Ansible reads YAML from a file. The form ``key=value`` therefore becomes JSON here, by Ansible's own parser.

_PRIVATE = 0o600
# Nothing of these letters is a template. Ansible takes '!unsafe "5.10"' for a number, in spite of the quotes.
_NO_TEMPLATE = re.compile(r"[A-Za-z0-9_+.:~<=, \t-]*")
_NOT_OF_YAML = re.compile("[\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff\\ufeff\\ufffe\\uffff]")


def is_file(value: str) -> bool:
    """Whether a value names a file of the user's own, which holds the variables."""
    return value.startswith("@")


def text_of(value: str) -> str:
    """Return a value as the text of a YAML file.

    Raises:
        ConfigError: the value is not key=value, a mapping or @file.
    """
    if value[:1] in {"[", "{"}:
        return value
    if value[:1] in {"/", "."}:
        raise ConfigError("A value of --extra-vars begins like a path; write @PATH to read variables from a file.")

    from clusterctl.inventory import key_value  # noqa: PLC0415 - it takes 0.2 s, and most commands have no such value

    return json.dumps(key_value.parsed(value))


def data_text(variables: Mapping[str, Any]) -> str:
    """Return variables of clusterctl itself as YAML in which each text stays as it is: Ansible templates none of them.

    They hold what nodes said: a fact with ``{{ … }}`` would run on this machine, as the user of clusterctl.
    """
    return _yaml(variables)


def _yaml(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value) if _NO_TEMPLATE.fullmatch(value) else f"!unsafe {_quoted(value)}"
    if isinstance(value, Mapping):  # '?' and not 'key:', which YAML limits to 1,024 characters
        return "{" + ", ".join(f"? {_quoted(str(key))} : {_yaml(its)}" for key, its in value.items()) + "}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return "[" + ", ".join(_yaml(its) for its in value) + "]"
    return json.dumps(value)


def _quoted(text: str) -> str:
    """Return a text in double quotes; JSON's escapes are YAML's, and YAML takes fewer characters as they are."""
    return _NOT_OF_YAML.sub(lambda found: _escape(ord(found[0])), json.dumps(text, ensure_ascii=False))


def _escape(code: int) -> str:
    return "\N{REPLACEMENT CHARACTER}" if 0xD800 <= code <= 0xDFFF else f"\\u{code:04x}"  # noqa: PLR2004 - surrogates


def in_folder(values: Sequence[str], folder: Path) -> list[str]:
    """Write each value into a file of the folder that only this user can read, and return the options.

    Raises:
        ConfigError: see :func:`text_of`.
    """
    options = []
    for number, value in enumerate(values, 1):
        if is_file(value):
            options.append(f"--extra-vars={value}")
            continue
        path = folder / f"extra-vars-{number}.yml"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _PRIVATE)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write(text_of(value))
        options.append(f"--extra-vars=@{path}")
    return options


@contextlib.contextmanager
def in_private_folder(values: Sequence[str]) -> Iterator[list[str]]:
    """Yield the options; the folder of the files is this user's alone, and is gone afterwards.

    Raises:
        ConfigError: see :func:`text_of`.
    """
    if all(map(is_file, values)):
        yield [f"--extra-vars={value}" for value in values]
        return
    with held_files.folder(_volatile_folder()) as folder:
        yield in_folder(values, folder)


def _volatile_folder() -> str | None:
    """Return the user's folder in memory, which ends with the session; None where the session has none."""
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    return folder if folder.startswith("/") and os.access(folder, os.W_OK | os.X_OK) else None
