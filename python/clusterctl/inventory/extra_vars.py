"""Pass the values of ``--extra-vars`` to Ansible's programs by files, because a process list shows every argument.

Ansible reads YAML from a file. The form ``key=value`` therefore becomes JSON here, by Ansible's own parser.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clusterctl.support import held_files
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

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
        raise ConfigError("A value of --extra-vars begins like a path; write @FILE to read variables from a file.")
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
