"""What a sandbox is: names, addresses and the texts written about it. Pure; nothing here touches the machine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Literal, TypeAlias

from clusterctl.model.base import Record
from clusterctl.support.errors import ConfigError

MAX_NODES = 64
_ROOM_FOR_NODES = 0.9  # of the kernel's neighbours; others are on this machine's own network
LOGIN_USER = "cluster"
LABEL = "clusterctl.sandbox"
INVENTORY_MARK = "# clusterctl sandbox "
EXTRAS = {"slurm": ("debian12",)}  # what up adds to bare nodes, and the images that have it

# "clusterctl-<name>-node64" has to stay a valid host name and container name.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,39})")
# What passes unquoted through an INI inventory, Ansible's argument splitting and ssh's own option parser.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./+@,-]*")
# Room for 192 sandboxes where neither podman's own pool (10.88, 10.89) nor the usual home networks are.
_POOL = IPv4Network("10.90.0.0/15")
_SUBNET_PREFIX = 24
# Unique local addresses (RFC 4193); 65536 sandboxes.
_IPV6_POOL = IPv6Network("fd9c:51a7:d3e0::/48")
_IPV6_SUBNET_PREFIX = 64
_FIRST_HOST = 10  # node1 gets .11; the gateway is .1

_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s]*@")

Subnet: TypeAlias = IPv4Network | IPv6Network
State = Literal["running", "stopped", "missing", "silent"]


@dataclass(frozen=True)
class SandboxSpec:
    """What the user asks for; images are dealt to the nodes in turn.

    Raises:
        ConfigError: a value that no sandbox can have.
    """

    name: str = "sandbox"
    nodes: int = 4
    images: tuple[str, ...] = ("debian12",)
    inventory: Path | None = None  # None: beside the sandbox's state
    extras: tuple[str, ...] = ()  # what is added to bare nodes
    ipv6: bool = False  # nodes have addresses of IPv6 alone

    def __post_init__(self) -> None:
        """Refuse at the door what would fail half-way."""
        check_name(self.name)
        if not 1 <= self.nodes <= MAX_NODES:
            raise ConfigError(f"A sandbox has 1 to {MAX_NODES} nodes, not {self.nodes}.")
        for image in self.images:
            if image not in IMAGES:
                raise ConfigError(f"There is no image {image!r}; choose from {', '.join(IMAGES)}.")
        if not self.images:
            raise ConfigError(f"A sandbox needs an image; choose from {', '.join(IMAGES)}.")
        for extra in self.extras:
            if extra not in EXTRAS:
                raise ConfigError(f"There is no {extra!r} to add; choose from {', '.join(EXTRAS)}.")
            if not set(self.images) <= set(EXTRAS[extra]):
                raise ConfigError(f"--with {extra} needs nodes of {' or '.join(EXTRAS[extra])}; choose it by --image.")
            if self.ipv6:
                raise ConfigError(f"--with {extra} fetches packages over IPv4; leave out --ipv6 or --with.")


class SandboxNode(Record):
    """One container, known to ssh and Ansible as ``name``."""

    name: str
    container: str
    address: str
    image: str
    state: State = "missing"

    @property
    def hardware_address(self) -> str:
        """The MAC that goes with the address: a node that starts again keeps it.

        With a new one at each start, this machine would send to the former one for up to 45 s, until its neighbour
        entry has run out.
        """
        return hardware_address(self.address)


class Sandbox(Record):
    """A sandbox as it was written down; ``state`` of the nodes is true at the moment of asking only."""

    schema_version: Literal[1] = 1
    name: str
    network: str
    subnet: str
    images: tuple[str, ...]
    nodes: tuple[SandboxNode, ...]
    inventory: Path
    private_key: Path
    known_hosts: Path
    extras: tuple[str, ...] = ()

    @property
    def is_ipv6(self) -> bool:
        """Whether the nodes have addresses of IPv6 alone."""
        return ":" in self.subnet

    def node(self, name: str) -> SandboxNode:
        """Return the node of that name."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise ConfigError(f"Sandbox '{self.name}' has no node {name!r}; it has node1 to node{len(self.nodes)}.")


def check_name(name: str) -> None:
    """Refuse a sandbox name that cannot be part of a container's name."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no sandbox name; use up to 40 lower-case letters, digits and '-', beginning with a letter or "
            "digit."
        )


def hardware_address(address: str) -> str:
    """Return a locally administered MAC made of the last four bytes of an address."""
    return ":".join(f"{byte:02x}" for byte in b"\x02\x63" + ip_address(address).packed[-4:])


def network_name(name: str) -> str:
    """Return the name of the sandbox's network, which also begins the names of its containers."""
    return f"clusterctl-{name}"


def plan_nodes(spec: SandboxSpec, subnet: Subnet) -> tuple[SandboxNode, ...]:
    """Return the nodes of a specification: images in turn, addresses counted up from ``.11``."""
    return tuple(
        SandboxNode(
            name=f"node{number}",
            container=f"{network_name(spec.name)}-node{number}",
            address=str(subnet[_FIRST_HOST + number]),
            image=spec.images[(number - 1) % len(spec.images)],
        )
        for number in range(1, spec.nodes + 1)
    )


def why_not(recorded: Sandbox, spec: SandboxSpec) -> str | None:
    """Return what of the specification an existing sandbox cannot become, None where growing is enough."""
    if recorded.images != spec.images:
        return f"is made of {' + '.join(recorded.images)}, not of {' + '.join(spec.images)}"
    if recorded.is_ipv6 != spec.ipv6:
        return f"has IPv{6 if recorded.is_ipv6 else 4} addresses, not IPv{6 if spec.ipv6 else 4}"
    if len(recorded.nodes) > spec.nodes:
        return f"has {len(recorded.nodes)} nodes, not {spec.nodes}"
    return None


def neighbour_advice(nodes: int, limit: int, *, ipv6: bool = False) -> str:
    """Return what to set where the kernel's one table of neighbours is too small for so many nodes; '' where it is not.

    Each node may talk to each other one, and this machine to all of them.
    """
    needed = nodes * (nodes + 1)
    if needed <= limit * _ROOM_FOR_NODES:
        return ""
    names = f"net.ipv{6 if ipv6 else 4}.neigh.default.gc_thresh"
    wanted = 1 << (2 * needed - 1).bit_length()
    return (
        f"This machine's kernel keeps {limit} neighbours for all containers together, and {nodes} nodes need up to "
        f"{needed}. Connections then time out at random. Set as root: sysctl -w {names}2={wanted // 2} "
        f"{names}3={wanted}"
    )


def used_networks(proc_net_route: str) -> list[Subnet]:
    """Return the networks of the kernel's IPv4 routing table, default routes left out.

    The text is that of ``/proc/net/route``; addresses and masks are little-endian hexadecimal.
    """
    networks: list[Subnet] = []
    for line in proc_net_route.splitlines()[1:]:
        fields = line.split()
        destination, mask = (ip_address(bytes.fromhex(fields[column])[::-1]) for column in (1, 7))
        if int(mask):
            networks.append(IPv4Network((int(destination), f"{mask}"), strict=False))
    return networks


def used_ipv6_networks(proc_net_ipv6_route: str) -> list[Subnet]:
    """Return the networks of the kernel's IPv6 routing table, default routes left out.

    The text is that of ``/proc/net/ipv6_route``; addresses and lengths are hexadecimal.
    """
    fields = (line.split() for line in proc_net_ipv6_route.splitlines())
    found = [(IPv6Address(bytes.fromhex(words[0])), int(words[1], 16)) for words in fields]
    return [IPv6Network((address, length), strict=False) for address, length in found if length]


def free_subnets(used: Iterable[Subnet], *, ipv6: bool = False) -> Iterable[Subnet]:
    """Yield the subnets of the pool that overlap with none of ``used``."""
    taken = list(used)
    pool, length = (_IPV6_POOL, _IPV6_SUBNET_PREFIX) if ipv6 else (_POOL, _SUBNET_PREFIX)
    for candidate in pool.subnets(new_prefix=length):
        if not any(candidate.version == network.version and candidate.overlaps(network) for network in taken):
            yield candidate


def check_plain_path(path: Path) -> None:
    """Refuse a path that an ssh option in an inventory cannot carry."""
    if not _PLAIN_PATH.fullmatch(str(path)):
        raise ConfigError(
            f"ssh options in an inventory cannot carry the path {path}; set XDG_STATE_HOME to a folder whose name has "
            "letters, digits, '.', '-' and '_' only."
        )


def inventory_text(sandbox: Sandbox) -> str:
    """Return the inventory, as the user would have written it for real machines."""
    lines = [
        f"{INVENTORY_MARK}'{sandbox.name}': containers on this machine, reached by ssh like any other host.",
        "# 'clusterctl sandbox up' writes this file anew and 'clusterctl sandbox down' removes it.",
        "",
        "[nodes]",
        *(f"{node.name} ansible_host={node.address} slots=2{_interpreter(node)}" for node in sandbox.nodes),
        "",
        "[nodes:vars]",
        f"ansible_user={LOGIN_USER}",
        "ansible_become=true",
        f"ansible_ssh_private_key_file={sandbox.private_key}",
        "ansible_ssh_common_args='" + " ".join(ssh_options(sandbox)) + "'",
        "",
    ]
    return "\n".join(lines)


def _interpreter(node: SandboxNode) -> str:
    """Return the variable of a node whose Python is another than /usr/bin/python3."""
    python = IMAGES[node.image].python
    return "" if python == "/usr/bin/python3" else f" ansible_python_interpreter={python}"


def ssh_options(sandbox: Sandbox) -> tuple[str, ...]:
    """Return the ssh arguments that make the sandbox's own known_hosts the only one that counts."""
    return (
        "-o", f"UserKnownHostsFile={sandbox.known_hosts}",
        "-o", "GlobalKnownHostsFile=none",
        "-o", "StrictHostKeyChecking=yes",
        "-o", "IdentitiesOnly=yes",
    )  # fmt: skip


def known_hosts_text(host_keys: Mapping[str, str]) -> str:
    """Return known_hosts lines from address to public key (``ssh-ed25519 AAAA… comment``; the comment is dropped)."""
    return "".join(f"{address} {' '.join(key.split()[:2])}\n" for address, key in host_keys.items())


def hosts_text(node: SandboxNode) -> str:
    """Return a node's first /etc/hosts: what Debian's installer writes, the node's own name on loopback included."""
    return (
        "127.0.0.1\tlocalhost\n"
        f"127.0.1.1\t{node.name}\n"
        "::1\tlocalhost ip6-localhost ip6-loopback\n"
        "ff02::1\tip6-allnodes\n"
        "ff02::2\tip6-allrouters\n"
    )


def without_credentials(text: str) -> str:
    """Return a text with the user and password of every URL removed: ``https://user:secret@host`` is ``https://host``.

    Every user of a node could read them there.
    """
    return _CREDENTIALS.sub("", text)


def ssh_command(sandbox: Sandbox, node: SandboxNode, remote: Sequence[str]) -> list[str]:
    """Return the argv that opens a shell on a node, or runs ``remote`` there, each token arriving as it is."""
    argv = ["ssh", "-i", str(sandbox.private_key), *ssh_options(sandbox), "-l", LOGIN_USER, "--", node.address]
    return [*argv, shlex.join(remote)] if remote else argv


# --- The images that a sandbox can be made of: each distribution's name in a registry, its archive and its packages ---

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
    which is too old. ``arch`` is a processor's name in the archive; '' is that of this machine. ``gcc`` is the release
    of its compiler, of which the archive also has a cross compiler.
    """

    registry: str
    vendor: Vendor | RpmVendor
    suite: str = ""
    is_rolling: bool = False
    packages: tuple[str, ...] = _APT_PACKAGES
    recipe: str = "Containerfile"
    trust: str = _APT_TRUST
    python: str = "/usr/bin/python3"
    arch: str = ""
    gcc: str = ""

    @property
    def platform(self) -> tuple[str, ...]:
        """The option by which podman takes images of that processor."""
        return ("--platform", f"linux/{self.arch}") if self.arch else ()


IMAGES: Mapping[str, Image] = {
    "debian11": Image("debian:11", DEBIAN, "bullseye"),
    "debian12": Image("debian:12", DEBIAN, "bookworm"),
    "debian12-arm64": Image("debian:12", DEBIAN, "bookworm", arch="arm64", gcc="12"),
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
