"""The network of a sandbox: a bridge of podman's with a subnet of its own."""

from __future__ import annotations

import itertools
import json
import subprocess
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.sandbox import podman
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
    from clusterctl.sandbox.model import SandboxSpec, Subnet
    from clusterctl.sandbox.podman import Podman

_ROUTES = Path("/proc/net/route")
_IPV6_ROUTES = Path("/proc/net/ipv6_route")
_SUBNET_ATTEMPTS = 16


def ensure(engine: Podman, spec: SandboxSpec, folder: Path) -> Subnet:
    """Return the subnet of the sandbox's network, made in a free one where it is missing.

    Args:
        engine: podman.
        spec: what the sandbox shall be.
        folder: of the sandbox's state; the network's label names it.

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
        raise podman.failure("ip link set", done.stderr)
