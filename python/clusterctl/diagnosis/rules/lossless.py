"""Settings that keep RoCE free of loss, beside those of other nodes: PFC, ECN and the trust state of each interface."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from clusterctl.diagnosis.rules import alike
from clusterctl.diagnosis.skew import compare

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.findings import Finding
    from clusterctl.model.hardware import Hardware

ORDER = 33
_PRIORITIES = "01234567"
# Names of readings: what they are, and the command that sets them.
_SETTINGS = {
    "pfc": ("the priorities with PFC", "'dcb pfc set dev {interface} prio-pfc …' or 'mlnx_qos -i {interface} --pfc …'"),
    "trust": ("the trust state", "'mlnx_qos -i {interface} --trust dscp'"),
    "ecn_roce_np": ("the priorities with ECN (notification point)", "/sys/class/net/{interface}/ecn/roce_np/enable"),
    "ecn_roce_rp": ("the priorities with ECN (reaction point)", "/sys/class/net/{interface}/ecn/roce_rp/enable"),
}


def findings(view: View) -> Iterator[Finding]:
    """Return the ports whose settings differ from those of most nodes. Names of interfaces may differ."""
    for group in alike.groups(view, least=1):
        for name in _SETTINGS:
            yield from _compared(group, name)


def _compared(group: Mapping[str, Hardware], name: str) -> Iterator[Finding]:
    what, command = _SETTINGS[name]
    values: dict[str, dict[str, str]] = defaultdict(dict)
    interfaces: dict[str, str] = {}
    names: dict[str, set[str]] = defaultdict(set)
    for host, look in group.items():
        settings = look.texts("lossless", name)
        for port, interface in look.texts("rdma_port", "interface").items():
            if interface in settings:
                values[port][host] = settings[interface]
                interfaces[port] = interface
                names[port].add(interface)
    tool = "mlnx_qos" if any(look.texts("lossless", "trust") for look in group.values()) else "dcb"
    for port, found in values.items():
        cure = f"set the same on all nodes and on the switch: {command.format(interface=interfaces[port])}"
        fix = partial(_commands, name, interfaces[port], tool) if len(names[port]) == 1 else lambda _usual: ()
        yield from compare("roce", "warning", f"{what} of {interfaces[port]} (RDMA {port})", found, cure, fix)


def _commands(name: str, interface: str, tool: str, usual: str) -> tuple[tuple[str, ...], ...]:
    """Return the commands that give an interface the usual setting, with the tool that has read it."""
    if name == "trust":
        return (("mlnx_qos", "-i", interface, "--trust", usual),)
    on = set() if usual == "off" else set(usual.split(","))
    if on - set(_PRIORITIES):
        return ()
    if name != "pfc":
        folder = f"/sys/class/net/{interface}/ecn/{name.removeprefix('ecn_')}/enable"
        values = [(str(int(priority in on)), f"{folder}/{priority}") for priority in _PRIORITIES]
        return tuple(("sh", "-c", 'echo "$0" > "$1"', value, path) for value, path in values)
    if tool == "mlnx_qos":
        return ((tool, "-i", interface, "--pfc", ",".join(str(int(one in on)) for one in _PRIORITIES)),)
    states = [f"{priority}:{'on' if priority in on else 'off'}" for priority in _PRIORITIES]
    return (("dcb", "pfc", "set", "dev", interface, "prio-pfc", *states),)
