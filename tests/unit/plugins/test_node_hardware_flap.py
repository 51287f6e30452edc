"""A real link that goes down and comes back, in a network namespace of its own, is found by its counter's growth."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from clusterctl.diagnosis.rules import registry
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.hardware import Hardware, HardwareLooks
from clusterctl.support import content

pytestmark = pytest.mark.programs

_LOOK = f'{sys.executable} -m node_look.hardware.record \'{{"sections":["interfaces","interface_counters"]}}\''
_STEPS = f"""
set -e
mount -t sysfs sysfs /sys
ip link add veth0 type veth peer name veth1
ip link add veth2 type veth peer name veth3
ip link set veth0 up; ip link set veth1 up
ip address add 10.9.9.1/24 dev veth0; ip route add default via 10.9.9.2
{_LOOK}
{_LOOK}
ip link set veth1 down; ip link set veth1 up
{_LOOK}
"""


def test_a_link_that_flaps_is_named_and_a_quiet_one_is_not() -> None:
    alone = ["unshare", "--map-root-user", "--net", "--mount"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a network namespace")
    done = subprocess.run(
        [*alone, "sh", "-c", _STEPS],
        cwd=content.root() / "plugins" / "module_utils",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second, third = (Hardware.model_validate(json.loads(line)) for line in done.stdout.splitlines())
    assert {one.device for one in first.counters} == {"veth0"}  # the one with the default route

    def told(now: Hardware, before: Hardware) -> list[tuple[tuple[str, ...], str]]:
        view = View(hosts=(), nodes={}, hardware={"node1": HardwareLooks(now, first=before)})
        return [(one.hosts, one.cause.partition(" in ")[0]) for one in registry.diagnose(view)]

    assert told(second, first) == []
    assert told(third, second) == [(("node1",), "changes of its carrier grew (carrier_changes): veth0 by 2")]
