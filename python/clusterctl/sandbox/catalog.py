"""The images that a sandbox can be made of: each distribution's name in a registry, its archive and its packages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# What a bare cloud host has. A compiler, zstd, rsync, pip and venv are missing, because the roles install them.
_APT_PACKAGES = ("openssh-server", "sudo", "python3", "iproute2", "procps", "ca-certificates")
_BASIC = ("ca-certificates", "diffutils", "findutils", "gzip", "hostname", "tar", "util-linux")
_DNF_PACKAGES = ("openssh-server", "openssh-clients", "sudo", "python3", "iproute", "procps-ng", "passwd", *_BASIC)
_ZYPPER_PACKAGES = ("openssh", "sudo", "python311", "iproute2", "procps", "shadow", *_BASIC)
# Reads a tar of certificates, lets the distribution's own tool do its work, gives back what the tool made.
_APT_TRUST = "tar -x -C / && update-ca-certificates >&2 && tar -c -C / etc/ssl/certs usr/local/share/ca-certificates"
_DNF_TRUST = (
    "tar -x -C / && cp /usr/local/share/ca-certificates/*.crt /etc/pki/ca-trust/source/anchors/"
    " && update-ca-trust extract >&2 && tar -c -C / etc/pki/ca-trust"
)
_ZYPPER_TRUST = (
    "tar -x -C / && cp /usr/local/share/ca-certificates/*.crt /etc/pki/trust/anchors/"
    " && update-ca-certificates >&2 && tar -c -C / etc/pki/trust/anchors var/lib/ca-certificates"
)


@dataclass(frozen=True)
class Vendor:
    """A distribution with an archive for apt: how a machine's apt sources name it, and where its keys are."""

    name: str
    keyring: Path
    releases: tuple[str, ...]
    components: str = "main"

    @property
    def keyring_package(self) -> str:
        """The package that holds the keys, in Debian and in Ubuntu."""
        return self.keyring.stem if self.name == "Debian" else "ubuntu-keyring"


DEBIAN = Vendor(
    "Debian",
    # Debian 11 to 13 have it under this name.
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    ("bullseye", "bookworm", "trixie", "forky", "sid", "oldstable", "stable", "testing", "unstable"),
)
UBUNTU = Vendor("Ubuntu", Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg"), ("jammy", "noble"), "main universe")


@dataclass(frozen=True)
class RpmVendor:
    """A distribution of RPM packages: how a machine's dnf names its repositories, and how its nodes read them.

    ``word`` stands in the section, the name or the key of each of its repositories. ``release`` is dnf's
    ``$releasever``. ``first`` are the packages that make a root file system the distribution's. ``folder`` is where its
    package manager reads repositories, and ``own_files`` are those in it that name the distribution's own mirrors.
    """

    name: str
    word: str
    release: str
    first: tuple[str, ...]
    folder: str = "etc/yum.repos.d"
    own_files: tuple[str, ...] = ()


ROCKY = RpmVendor(
    "Rocky Linux",
    "rocky",
    "9",
    ("rocky-release", "dnf", "glibc-minimal-langpack"),
    own_files=("rocky.repo", "rocky-extras.repo"),
)
LEAP = RpmVendor("openSUSE Leap", "leap", "15.6", ("openSUSE-release", "rpm", "zypper"), "etc/zypp/repos.d")


@dataclass(frozen=True)
class Image:
    """One image of the catalog.

    ``registry`` is its name in a registry, ``name:tag`` or ``name@sha256:digest``; ``up`` tells the digest of a tag.
    ``suite`` is its name in the vendor's archive. ``is_rolling``: a mirror may be older than the archive's own limit of
    days, and is used all the same. ``python`` is the interpreter of its nodes; on Leap 15, /usr/bin/python3 is 3.6,
    which is too old.
    """

    registry: str
    vendor: Vendor | RpmVendor
    suite: str = ""
    is_rolling: bool = False
    packages: tuple[str, ...] = _APT_PACKAGES
    recipe: str = "Containerfile"
    trust: str = _APT_TRUST
    python: str = "/usr/bin/python3"


IMAGES: Mapping[str, Image] = {
    "debian11": Image("debian:11", DEBIAN, "bullseye"),
    "debian12": Image("debian:12", DEBIAN, "bookworm"),
    "debian13": Image("debian:13", DEBIAN, "trixie"),
    "testing": Image(
        "debian:testing", DEBIAN, "testing", is_rolling=True, packages=(*_APT_PACKAGES, "openssh-client")
    ),  # its openssh-server no longer brings the client
    "ubuntu22.04": Image("ubuntu:22.04", UBUNTU, "jammy"),
    "ubuntu24.04": Image("ubuntu:24.04", UBUNTU, "noble"),
    "rocky9": Image("rockylinux:9", ROCKY, packages=_DNF_PACKAGES, recipe="Containerfile.dnf", trust=_DNF_TRUST),
    "leap15": Image(
        "opensuse/leap:15.6",
        LEAP,
        packages=_ZYPPER_PACKAGES,
        recipe="Containerfile.zypper",
        trust=_ZYPPER_TRUST,
        python="/usr/bin/python3.11",
    ),
}
