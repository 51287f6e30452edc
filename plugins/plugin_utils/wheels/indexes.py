# SPDX-License-Identifier: Apache-2.0
"""The package indexes that the user's own uv and pip know on this controller, with their logins.

pip is asked for files, and uv for a choice of versions. Each learns here what the other one was told. A login goes
into the surroundings of these programs, never into their arguments, a message or a file.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import tomllib

_MOST_BYTES = 1 << 22
_SECTIONS = ("global", "download", ":env:")  # the order in which pip lets one replace another
_SCHEMES = ("https://", "http://", "file://")


@dataclass(frozen=True)
class Indexes:
    """What one program was told.

    Attributes:
        default: address of the index that replaces PyPI, with its login; '' for PyPI.
        more: addresses that come before the default one.
        links: folders and pages of files.
    """

    default: str = field(default="", repr=False)
    more: tuple[str, ...] = field(default=(), repr=False)
    links: tuple[str, ...] = field(default=(), repr=False)

    def __bool__(self) -> bool:
        """Return whether it was told anything."""
        return bool(self.default or self.more or self.links)


def of_uv(project: Path | None, surroundings: Mapping[str, str] | None = None) -> Indexes:
    """Return what uv was told: by variables, by the files of a project, of the user and of the system, in this order.

    Args:
        project: the folder of the user's lock; None outside of one.
        surroundings: of this process; None takes those.
    """
    known = os.environ if surroundings is None else surroundings
    found = [_of_variables(known)]
    found += [_of_table(table, folder, known) for folder, table in _tables(project, known)]
    default = next((one.default for one in found if one.default), "")
    more = dict.fromkeys(url for one in found for url in one.more)
    return Indexes(default, tuple(more), tuple(dict.fromkeys(url for one in found for url in one.links)))


def told_pip() -> dict[str, str]:
    """Return the options of ``pip download`` that the user's files and variables set; {} where pip does not tell."""
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "config", "list"]
    done = subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    return pip_values(done.stdout) if done.returncode == 0 else {}


def _of_pip(values: Mapping[str, str]) -> Indexes:
    default, more, links = (values.get(name, "").split() for name in ("index-url", "extra-index-url", "find-links"))
    return Indexes("".join(default[:1]), tuple(more), tuple(links))


def pip_values(configuration: str) -> dict[str, str]:
    """Return the options of ``pip download`` in the output of ``pip config list``."""
    values: dict[str, str] = {}
    for section in _SECTIONS:
        for line in configuration.splitlines():
            key, _unused, value = line.partition("=")
            place, _unused, option = key.rpartition(".")
            if place == section and ast.literal_eval(value):
                values[option] = str(ast.literal_eval(value))
    return values


def for_pip(project: Path | None, *, pinned: bool) -> dict[str, str]:
    """Return variables by which pip asks the indexes of uv too.

    Args:
        project: the folder of the user's lock; None outside of one.
        pinned: whether pip gets the sha256 of each file. Without, a second index could replace a package.
    """
    uv = of_uv(project)
    if not uv:
        return {}
    pip = _of_pip(told_pip())
    found = {} if pip.default or not uv.default else {"PIP_INDEX_URL": uv.default}
    beside = [*pip.more, *uv.more, *([uv.default] if pip.default and uv.default else [])]
    if pinned and beside:
        found["PIP_EXTRA_INDEX_URL"] = " ".join(dict.fromkeys(beside))
    if pinned and uv.links:
        found["PIP_FIND_LINKS"] = " ".join(dict.fromkeys([*pip.links, *uv.links]))
    return found


def for_uv(project: Path) -> dict[str, str]:
    """Return variables by which uv asks the indexes of pip, where it was told none itself.

    uv takes a package from the first index that has it, so one of pip's further indexes replaces nothing.
    """
    told, values = of_uv(project), told_pip()
    pip = Indexes() if told.default or told.more else _of_pip(values)
    found = {
        "UV_DEFAULT_INDEX": pip.default,
        "UV_INDEX": " ".join(pip.more),
        "UV_FIND_LINKS": "" if told.links else ",".join(pip.links),
        "UV_CONSTRAINT": "" if "UV_CONSTRAINT" in os.environ else values.get("constraint", ""),
        "SSL_CERT_FILE": "" if "SSL_CERT_FILE" in os.environ else values.get("cert", ""),
    }
    return {name: value for name, value in found.items() if value}


# --- what uv was told ---


def _of_variables(known: Mapping[str, str]) -> Indexes:
    default = known.get("UV_DEFAULT_INDEX") or known.get("UV_INDEX_URL") or ""
    more = [*known.get("UV_INDEX", "").split(), *known.get("UV_EXTRA_INDEX_URL", "").split()]
    links = [one for one in re.split(r"[,\s]+", known.get("UV_FIND_LINKS", "")) if one]
    return Indexes(
        _addressed(default, known), tuple(filter(None, (_addressed(one, known) for one in more))), tuple(links)
    )


def _addressed(word: str, known: Mapping[str, str]) -> str:
    """Return the address in ``NAME=ADDRESS`` or ``ADDRESS``, with the login of its name."""
    named = re.fullmatch(r"([A-Za-z0-9_.-]+)=(\S+)", word)
    return _with_login(named[2], named[1], known) if named else _with_login(word, "", known)


def _tables(project: Path | None, known: Mapping[str, str]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield uv's settings in files with the folder of each, those that count first."""
    if known.get("UV_NO_CONFIG"):
        return
    if named := known.get("UV_CONFIG_FILE"):
        yield Path(named).parent, _toml(Path(named))
        return
    if project is not None:
        # uv takes the nearest file, and of one folder uv.toml
        for folder in (project, *project.parents):
            own = _toml(folder / "uv.toml")
            inner = _toml(folder / "pyproject.toml").get("tool", {})
            table = own or (inner.get("uv", {}) if isinstance(inner, dict) else {})
            if table:
                yield folder, table if isinstance(table, dict) else {}
                break
    home = Path(known.get("XDG_CONFIG_HOME") or Path(known.get("HOME") or "/nonexistent") / ".config")
    for folder in (home / "uv", Path("/etc/uv")):
        yield folder, _toml(folder / "uv.toml")


def _toml(path: Path) -> dict[str, Any]:
    """Return the tables of a file; empty where uv itself would say what is wrong with it."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return {}
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}


def _of_table(table: Mapping[str, Any], folder: Path, known: Mapping[str, str]) -> Indexes:
    default, more, links = "", [], []
    entries = table.get("index", [])
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict) or not isinstance(entry.get("url"), str):
            continue
        url = _with_login(entry["url"], str(entry.get("name", "")), known)
        if entry.get("format") == "flat":
            links.append(url)
        elif entry.get("default") is True:
            default = default or url
        else:
            more.append(url)
    inner = table.get("pip", {})
    for one in (table, inner if isinstance(inner, dict) else {}):
        default = default or _with_login(str(one.get("index-url", "")), "", known)
        more += [_with_login(str(url), "", known) for url in _list(one.get("extra-index-url"))]
        links += [_placed(str(url), folder) for url in _list(one.get("find-links"))]
    return Indexes(default, tuple(filter(None, more)), tuple(filter(None, links)))


def _placed(place: str, folder: Path) -> str:
    """Return a page by its address, and a folder by its absolute path."""
    return place if "://" in place else str((folder / place).absolute())


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _with_login(url: str, name: str, known: Mapping[str, str]) -> str:
    """Return an address with the login that variables have for its name; '' for what is not an address."""
    if not url.startswith(_SCHEMES) or re.search(r"\s", url):
        return ""
    stem = f"UV_INDEX_{re.sub(r'[^A-Z0-9]', '_', name.upper())}"
    user, password = known.get(f"{stem}_USERNAME", ""), known.get(f"{stem}_PASSWORD", "")
    if not name or not (user or password):
        return url
    parts = urlsplit(url)
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    return urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}"))
