"""The one place that starts podman: how it works on this machine, its networks, and sentences of its complaints."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from clusterctl.sandbox.model import (
    LABEL,
    free_subnets,
    hardware_address,
    network_name,
    used_ipv6_networks,
    used_networks,
)
from clusterctl.support.errors import ConfigError, HostFailedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.sandbox.model import SandboxSpec, Subnet


PACKAGES = "podman runc crun netavark aardvark-dns iptables nftables catatonit mmdebstrap iproute2"
Report: TypeAlias = Callable[[str], None]

_OWN_CONF = Path(__file__).with_name("containers.conf")
_HELPER_FOLDERS = "/usr/libexec/podman:/usr/lib/podman:/usr/libexec/catatonit"
_PROBE_TIMEOUT_S = 30
_TRIES = 3
_FULL_DISK = "no space left on device"


@dataclass(frozen=True)
class Podman:
    """Podman with what stands before it on this machine (``sudo``, a containers.conf)."""

    prefix: tuple[str, ...]

    def argv(self, *arguments: str) -> list[str]:
        """Return the whole command line."""
        return [*self.prefix, "podman", *arguments]

    def run(self, *arguments: str, stdin: bytes = b"", folder: Path | None = None) -> bytes:
        """Run podman and return its standard output.

        ``folder`` is where it works, by default this process's. A container's monitor (conmon) stays there as long as
        the container runs, and leaves an empty file ``oom`` there when the node lacks memory.

        Raises:
            HostFailedError: it failed; the message ends with podman's own last line.
        """
        done = subprocess.run(self.argv(*arguments), input=stdin, capture_output=True, check=False, cwd=folder)
        if done.returncode != 0:
            raise failure(f"podman {arguments[0]}", done.stderr.decode(errors="replace"))
        return done.stdout

    def text(self, *arguments: str) -> str:
        """Run podman and return its standard output as text without the last line's end."""
        return self.run(*arguments).decode(errors="replace").strip()

    def unpack(self, archive: bytes, container: str) -> None:
        """Unpack a tar archive at the root of a container that is not started yet.

        The archive goes through a child of podman, which a busy machine ends now and then; the same again then works.
        Podman 4 also copies it into a temporary file that it leaves there, so it gets a folder that goes with the call.

        Raises:
            HostFailedError: it failed every time; the message ends with podman's own last line.
        """
        with tempfile.TemporaryDirectory(prefix="clusterctl-unpack-") as folder:
            here = Podman((*self.prefix, "env", f"TMPDIR={folder}"))
            for again in reversed(range(_TRIES)):
                try:
                    here.run("cp", "--archive=false", "-", f"{container}:/", stdin=archive)
                except HostFailedError:
                    if not again:
                        raise
                else:
                    return

    def succeeds(self, *arguments: str, timeout_s: float | None = None) -> bool:
        """Tell whether podman ends with 0 in time."""
        try:
            done = subprocess.run(self.argv(*arguments), capture_output=True, check=False, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def find() -> Podman:
    """Return podman as it works here: plain where it does, with our containers.conf where only that helps.

    Raises:
        ConfigError: podman or its helpers are missing, or this user may not become root.
        HostFailedError: podman starts no container either way.
    """
    programs = {name: shutil.which(name) for name in ("podman", "ssh", "ssh-keygen", "ip")}
    missing = [name for name, path in programs.items() if path is None]
    catatonit = shutil.which("catatonit", path=f"{os.environ.get('PATH', '')}:{_HELPER_FOLDERS}")
    if missing or catatonit is None:
        raise ConfigError(
            f"The sandbox needs {', '.join(missing or ['catatonit'])}; install it with 'sudo apt-get install "
            f"--no-install-recommends {PACKAGES} openssh-client'."
        )
    root = _root_prefix()
    plain = Podman(root)
    if _starts_a_container(plain, catatonit) is None:
        return plain
    own = Podman((*root, "env", f"CONTAINERS_CONF={_OWN_CONF}"))
    complaint = _starts_a_container(own, catatonit)
    if complaint is not None:
        raise failure("podman run", complaint)
    return own


def _root_prefix() -> tuple[str, ...]:
    """Return what makes a command run as root; nodes need addresses that rootless containers do not have."""
    if os.geteuid() == 0:
        return ()
    if shutil.which("sudo"):
        allowed = subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False)
        if allowed.returncode == 0:
            return ("sudo", "-n")
    raise ConfigError(
        "The sandbox needs root for its network; run 'sudo clusterctl sandbox …' or let this user run sudo without a "
        "password."
    )


def _starts_a_container(podman: Podman, program: str) -> str | None:
    """Start the one static program that is certainly here on the default network; return why that failed."""
    with tempfile.TemporaryDirectory(prefix="clusterctl-probe-") as folder:
        shutil.copy(program, folder)
        name = f"/{Path(program).name}"
        command = podman.argv("run", "--rm", "--init", "--rootfs", f"{folder}:O", name, "-V")
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PROBE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"no container started within {_PROBE_TIMEOUT_S} s"
    return None if done.returncode == 0 else done.stderr


def failure(what: str, output: str) -> HostFailedError:
    """Make a sentence of a failed program's output."""
    if _FULL_DISK in output.lower():
        return HostFailedError(
            f"The disk is full: {what} found no space left; free some ('podman system prune' removes unused images) "
            "and try again."
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return HostFailedError(f"{what} failed: {lines[-1].removeprefix('Error: ') if lines else 'it gave no reason'}")


# --- The network of a sandbox: a bridge of podman's with a subnet of its own ------------------------------------------

_ROUTES = Path("/proc/net/route")
_IPV6_ROUTES = Path("/proc/net/ipv6_route")
_SUBNET_ATTEMPTS = 16


def ensure(engine: Podman, spec: SandboxSpec, folder: Path) -> Subnet:
    """Return the subnet of the sandbox's network, made in a free one where it is missing.

    ``folder`` is that of the sandbox's state; the network's label names it.

    Raises:
        ConfigError: this machine has no IPv6, and the nodes are to have it.
        HostFailedError: no subnet is free.
    """
    network = network_name(spec.name)
    if engine.succeeds("network", "exists", network):
        return ip_network(json.loads(engine.text("network", "inspect", network))[0]["subnets"][0]["subnet"])
    for subnet in itertools.islice(free_subnets(_used_networks(spec), ipv6=spec.ipv6), _SUBNET_ATTEMPTS):
        # Networks without a running container have no route; podman knows them and refuses their subnet.
        label = f"--label={LABEL}={folder}"
        if engine.succeeds("network", "create", "--disable-dns", label, f"--subnet={subnet}", network):
            return subnet
    raise HostFailedError("No free subnet was found for the sandbox; 'podman network prune' removes unused networks.")


def _used_networks(spec: SandboxSpec) -> list[Subnet]:
    if not spec.ipv6:
        return used_networks(_ROUTES.read_text(encoding="ascii"))
    try:
        return used_ipv6_networks(_IPV6_ROUTES.read_text(encoding="ascii"))
    except FileNotFoundError:
        raise ConfigError("This machine's kernel has no IPv6; leave out --ipv6.") from None


def pin_bridge(engine: Podman, name: str) -> None:
    """Give the network's bridge a MAC of its own.

    Without one the kernel lends it the lowest of its ports'. When that port's node goes, the bridge changes its MAC.
    All connections between this machine and the other nodes then stand still for most of a minute.
    """
    network = json.loads(engine.text("network", "inspect", network_name(name)))[0]
    gateway, bridge = network["subnets"][0]["gateway"], network["network_interface"]
    command = [*engine.prefix, "ip", "link", "set", "dev", bridge, "address", hardware_address(gateway)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise failure("ip link set", done.stderr)


# Files for a node as a tar archive in memory: what podman copies into a container before its first process starts.


@dataclass(frozen=True)
class File:
    """A file's content and how it is kept; None as content makes a directory."""

    content: bytes | None
    mode: int = 0o644
    owner: int = 0  # uid and gid


def pack(files: Mapping[str, File], *archives: bytes) -> bytes:
    """Return a tar of the files (by path without the leading '/') together with the members of other tars."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as target:
        for archive in filter(None, archives):  # a machine without certificates of its own has none to give
            with tarfile.open(fileobj=io.BytesIO(archive)) as source:
                for member in source:
                    target.addfile(member, source.extractfile(member) if member.isreg() else None)
        for path, file in files.items():
            member = tarfile.TarInfo(path)
            member.type = tarfile.DIRTYPE if file.content is None else tarfile.REGTYPE
            member.size = len(file.content or b"")
            member.mode, member.uid, member.gid = file.mode, file.owner, file.owner
            target.addfile(member, io.BytesIO(file.content or b""))
    return buffer.getvalue()
