"""Does each node's sshd let as many logins begin at once as jobs and checks need?

From ``start`` logins on that have not yet proven who they are, sshd refuses new ones at random (sshd_config(5),
MaxStartups ``start:rate:full``). The value is that of ``sshd -T`` where root could ask it, else that of sshd's files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.diagnosis.skew import PROVISION
from clusterctl.model import nodeset
from clusterctl.model.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.rules.evidence import View

ORDER = 13
# It undoes the change where sshd does not take it. The service is ssh on Debian, and sshd elsewhere.
_SET = (
    'cd /etc/ssh && cp -p sshd_config sshd_config.before && sed -i "1i $0" sshd_config && '
    "{ sshd -t || { mv sshd_config.before sshd_config; exit 1; }; } && "
    "{ systemctl reload sshd || systemctl reload ssh; }"
)
_DEFAULT = 10  # OpenSSH's own start; the role environment raises a lower one to it


def findings(view: View) -> Iterator[Finding]:
    """Return the nodes that let fewer logins begin than there are nodes, and fewer than sshd by default."""
    for value, hosts in _low(view).items():
        if _start(value) < min(len(view.hosts), _DEFAULT):
            cause = (
                f"sshd refuses logins at random when {_start(value)} are under way (MaxStartups {value}), and "
                f"{len(view.hosts)} nodes log in at once"
            )
            cure = f"{PROVISION} (role environment), or set 'MaxStartups {_enough(len(view.hosts))}' in sshd_config"
            yield Finding("ssh", "warning", tuple(hosts), cause, cure, _fix(_enough(len(view.hosts))))


def _fix(value: str) -> tuple[tuple[str, ...], ...]:
    """Return the command that sets it: sshd takes the first line of a name (sshd_config(5))."""
    return (("sh", "-c", _SET, f"MaxStartups {value}"),)


def notes(view: View) -> Iterator[str]:
    """Return the nodes whose limit is sshd's default or more, and below the number of nodes."""
    for value, hosts in _low(view).items():
        if _start(value) >= _DEFAULT:
            yield (
                f"On {nodeset.folded(hosts)}, sshd refuses logins at random when {_start(value)} are under way "
                f"(MaxStartups {value}). A program that logs in from all {len(view.hosts)} nodes at once needs "
                f"'MaxStartups {_enough(len(view.hosts))}'."
            )


def _low(view: View) -> dict[str, list[str]]:
    """Return the hosts with a limit below the number of nodes, by its value."""
    found: dict[str, list[str]] = {}
    for host, node in view.nodes.items():
        looks = view.hardware.get(host)
        asked = looks.now.text("sshd", "MaxStartups") if looks else ""
        values = [asked] if asked else node.ssh.settings.get("MaxStartups", "").split(", ")
        value = max(values, key=_start)  # which of several lines counts depends on the release of sshd
        if 0 <= _start(value) < len(view.hosts):
            found.setdefault(value, []).append(host)
    return found


def _start(value: str) -> int:
    begin = value.partition(":")[0]
    return int(begin) if begin.isascii() and begin.isdecimal() and len(begin) < len(str(1 << 31)) else -1


def _enough(nodes: int) -> str:
    return f"{max(nodes, _DEFAULT)}:30:{2 * max(nodes, 5 * _DEFAULT)}"
