"""Find the mirrors that this machine's own apt and dnf name; the project itself names no mirror."""

from __future__ import annotations

import configparser
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from clusterctl.sandbox.model import DEBIAN, Vendor
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clusterctl.sandbox.model import Image, RpmVendor


_APT = Path("/etc/apt")
_MIRROR_LIST = "mirror+file:"
_SECURITY = ("-security", "/updates")
_ONE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)")


@dataclass(frozen=True)
class Source:
    """One archive and suite of an apt source; ``signed_by`` is empty where apt's default keys apply."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str = ""


@dataclass(frozen=True)
class Mirror:
    """Where a vendor's main archive is, and the security archive where the sources name one."""

    main: str
    security: str | None = None

    def lines(self, image: Image) -> tuple[str, ...]:
        """Return one-line sources of an image's suite (``bookworm``): release, updates and, if known, security."""
        vendor = image.vendor if isinstance(image.vendor, Vendor) else DEBIAN
        old = " check-valid-until=no" if image.is_rolling else ""
        head, suite, components = f"deb [signed-by={vendor.keyring}{old}]", image.suite, vendor.components
        lines = [f"{head} {self.main} {suite} {components}", f"{head} {self.main} {suite}-updates {components}"]
        if self.security:
            lines.append(f"{head} {self.security} {suite}-security {components}")
        return tuple(lines)


def parse_one_line(text: str) -> list[Source]:
    """Read the one-line format (``sources.list``); lines of other kinds than ``deb`` are passed over."""
    sources = []
    for line in text.split("\n"):
        match = _ONE_LINE.fullmatch(line.split("#", 1)[0].strip())
        if match:
            options = dict(option.partition("=")[::2] for option in (match["options"] or "").split())
            components = tuple(match["components"].split())
            sources.append(Source(match["uri"], match["suite"], components, options.get("signed-by", "")))
    return sources


def parse_deb822(text: str) -> list[Source]:
    """Read the deb822 format (``*.sources``); disabled stanzas and source packages are passed over."""
    sources = []
    for stanza in re.split(r"\n[ \t]*\n", _without_comments(text)):
        fields = _fields(stanza)
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        components = tuple(fields.get("components", "").split())
        sources += [
            Source(uri, suite, components, fields.get("signed-by", ""))
            for uri in fields.get("uris", "").split()
            for suite in fields.get("suites", "").split()
        ]
    return sources


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.startswith("#"))


def _fields(stanza: str) -> dict[str, str]:
    """Return a stanza's fields by lower-case name, continuation lines joined."""
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.split("\n"):
        if line[:1] in {" ", "\t"}:
            fields[name] = f"{fields.get(name, '')} {line.strip()}".strip()
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    return fields


def find_mirror(sources: list[Source], vendor: Vendor = DEBIAN) -> Mirror | None:
    """Return a vendor's mirror among the sources; None where they name none, as of Debian on Ubuntu.

    Others name their suites after Debian's releases too; they are told apart by the key that they name.
    """
    keyring = vendor.keyring.name.removesuffix("keyring.gpg")
    its = [
        source
        for source in sources
        if "main" in source.components
        and (not source.signed_by or keyring in source.signed_by)
        and not source.uri.startswith("cdrom:")
    ]
    main = next((source.uri for source in its if source.suite in vendor.releases), None)
    if main is None:
        return None
    security = next((source.uri for source in its if _is_security(source.suite, vendor)), None)
    return Mirror(main.rstrip("/"), security.rstrip("/") if security else None)


def _is_security(suite: str, vendor: Vendor) -> bool:
    return any(suite.startswith(release) and suite.endswith(_SECURITY) for release in vendor.releases)


def machine_mirror(vendor: Vendor = DEBIAN, apt: Path = _APT) -> Mirror | None:
    """Return the vendor's mirror that this machine uses; None where it uses none.

    The vendor may be another than the machine's.

    Raises:
        OSError: a source is there and cannot be read.
    """
    sources: list[Source] = []
    for path in (apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.list"))):
        if path.is_file():
            sources += parse_one_line(path.read_text(encoding="utf-8"))
    for path in sorted((apt / "sources.list.d").glob("*.sources")):
        sources += parse_deb822(path.read_text(encoding="utf-8"))
    mirror = find_mirror(sources, vendor)
    if mirror is None:
        return None
    return Mirror(_resolved(mirror.main), _resolved(mirror.security) if mirror.security else None)


def _resolved(uri: str) -> str:
    """Return the first mirror of a ``mirror+file:`` list (Debian's cloud images name one), any other URI as it is."""
    if not uri.startswith(_MIRROR_LIST):
        return uri
    listed = Path(uri.removeprefix(_MIRROR_LIST)).read_text(encoding="utf-8")
    return next((line.split()[0].rstrip("/") for line in listed.split("\n") if line.strip()), uri)


# --- Find the RPM repositories that this machine's own dnf names; the project itself names no mirror ------------------

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
    """Return the sections of a file of repositories."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text, name)
    except configparser.Error as error:
        why = str(error).splitlines()[0]
        raise ConfigError(f"{name} cannot be read as a file of repositories: {why} Correct or remove it.") from error
    return [Repository(section, dict(parser.items(section))) for section in parser.sections() if section != "main"]


def machine_repositories(vendor: RpmVendor, folder: Path = FOLDER) -> tuple[Repository, ...]:
    """Return the vendor's repositories that this machine's dnf names; empty where it names none.

    The vendor may be another than the machine's.

    Raises:
        ConfigError: a file in it cannot be read as one of repositories.
        OSError: a file is there and cannot be read.
    """
    files = sorted(folder.glob("*.repo"))
    found = [one for path in files for one in parse(path.read_text(encoding="utf-8"), str(path))]
    return tuple(one for one in found if one.is_of(vendor))


def text_of(repositories: Iterable[Repository], *, for_nodes: bool = False) -> str:
    """Return the repositories as one file, which dnf and zypper read.

    ``for_nodes`` leaves out the options that log in, because every user of a node could read them there.
    """
    blocks = []
    for one in repositories:
        options = {key: value for key, value in one.options.items() if not for_nodes or key not in _SECRET}
        lines = (f"{key}={value}".replace("\n", "\n  ") for key, value in options.items())
        blocks.append("\n".join((f"[{one.section}]", *lines, "")))
    return "\n".join(blocks)
