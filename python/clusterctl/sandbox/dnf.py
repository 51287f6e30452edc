"""Find the RPM repositories that this machine's own dnf names; the project itself names no mirror."""

from __future__ import annotations

import configparser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clusterctl.sandbox.catalog import RpmVendor

FOLDER = Path("/etc/yum.repos.d")
PROGRAMS = ("dnf", "rpmdb")
PACKAGES = "dnf rpm"
_SOURCES = ("baseurl", "metalink", "mirrorlist")
_NO = ("0", "no", "false", "off")
_SECRET = ("password", "proxy_password", "proxy_username", "sslclientcert", "sslclientkey", "username")


@dataclass(frozen=True)
class Repository:
    """One section of a file of repositories: its name and its options."""

    section: str
    options: Mapping[str, str]

    def is_of(self, vendor: RpmVendor) -> bool:
        """Tell whether it is enabled, names a place, and has the vendor's word in its section, name or key."""
        said = " ".join((self.section, self.options.get("name", ""), self.options.get("gpgkey", ""))).lower()
        is_enabled = self.options.get("enabled", "1").lower() not in _NO
        return is_enabled and vendor.word in said and any(self.options.get(source) for source in _SOURCES)

    def key_files(self) -> tuple[Path, ...]:
        """Return the files of this machine that hold its keys."""
        urls = [urlsplit(word) for word in self.options.get("gpgkey", "").replace(",", " ").split()]
        return tuple(Path(url2pathname(url.path)) for url in urls if url.scheme == "file")


def parse(text: str, name: str) -> list[Repository]:
    """Return the sections of a file of repositories.

    Args:
        text: of the file.
        name: of the file, for an error.

    Raises:
        ConfigError: it is not such a file.
    """
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text, name)
    except configparser.Error as error:
        why = str(error).splitlines()[0]
        raise ConfigError(f"{name} cannot be read as a file of repositories: {why} Correct or remove it.") from error
    return [Repository(section, dict(parser.items(section))) for section in parser.sections() if section != "main"]


def machine_repositories(vendor: RpmVendor, folder: Path = FOLDER) -> tuple[Repository, ...]:
    """Return the vendor's repositories that this machine's dnf names; empty where it names none.

    Args:
        vendor: the distribution that is wanted.
        folder: dnf's folder of repositories.

    Raises:
        ConfigError: a file in it cannot be read as one of repositories.
        OSError: a file is there and cannot be read.
    """
    files = sorted(folder.glob("*.repo"))
    found = [one for path in files for one in parse(path.read_text(encoding="utf-8"), str(path))]
    return tuple(one for one in found if one.is_of(vendor))


def text_of(repositories: Iterable[Repository], *, for_nodes: bool = False) -> str:
    """Return the repositories as one file, which dnf and zypper read.

    Args:
        repositories: what it holds.
        for_nodes: leave out the options that log in, because every user of a node could read them there.
    """
    blocks = []
    for one in repositories:
        options = {key: value for key, value in one.options.items() if not for_nodes or key not in _SECRET}
        lines = (f"{key}={value}".replace("\n", "\n  ") for key, value in options.items())
        blocks.append("\n".join((f"[{one.section}]", *lines, "")))
    return "\n".join(blocks)
