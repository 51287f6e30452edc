"""Rules of logins and names: do all nodes log in to each other without a question, and do names mean their machines?

The subjects are logins between nodes, the user that jobs run as, how many logins sshd lets begin, and host names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from clusterctl.diagnosis.rules import network
from clusterctl.diagnosis.rules.evidence import FEW_PAIRS, blame, ends, is_everywhere, shown
from clusterctl.diagnosis.skew import PROVISION, provisioned
from clusterctl.model import fabric, job_login, nodeset
from clusterctl.model.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from clusterctl.diagnosis.rules.evidence import Pair, View
    from clusterctl.model.facts import JobUser, NodeFacts, Resolution
    from clusterctl.model.probe import FailureKind, ProbeFailure
    from clusterctl.remote.login_probe import LoginFailure, LoginKind

# This machine cannot log in to these hosts, so a failed login from another node adds nothing.
_AWAY: frozenset[FailureKind] = frozenset({"unreachable", "timeout"})
_FAILED: Mapping[FailureKind, str] = {
    "unreachable": "do not answer",
    "timeout": "do not answer in time",
    "refused": "refuse the login",
    "host_key": "show host keys that this machine does not know or that have changed",
    "no_python": "have no Python",
    "no_sudo": "cannot use sudo",
    "error": "could not be looked at",
}
_CLASSES: Mapping[LoginKind, str] = {
    "key_changed": "key",
    "key_unknown": "key",
    "refused": "refused",
    "name": "name",
    "closed": "network",
    "timeout": "network",
    "settings": "settings",
    "error": "error",
}
# Addresses, numbers, and what stands in brackets or quotes: the words of each node's own ssh.
_OF_ONE_NODE = re.compile(r"\([^()]*\)|'[^']*'|[0-9a-fA-F]*[:.][0-9a-fA-F:.]+|\d+")
_REFUSED_CURE = f"{PROVISION} (role ssh_mesh); else look at sshd_config, at the modes of the home and at sshd's log"
_KEY_CURE = f"{PROVISION} if the node was installed anew; else find out who answers at its address"
_NETWORK_CURE = (
    "look for a firewall between them, or set cluster_address or cluster_port to where they reach each other"
)
_SETTINGS_CURE = "limit the setting to other machines with a Host line, or remove it"
_CURES = {
    "key": _KEY_CURE,
    "refused": _REFUSED_CURE,
    "name": f"{PROVISION} (roles hosts and ssh_mesh)",
    "network": _NETWORK_CURE,
    "settings": _SETTINGS_CURE,
    "error": "try 'ssh -v' by hand between the two",
}
# What connect(2) says where the source's own kernel lets nothing out, as with a route that leads nowhere.
_STOPPED = re.compile(
    r"port \d+: (?:Invalid argument|Network is unreachable|Permission denied|Operation not permitted)"
)
UNRESOLVED = "it cannot resolve the name of"
_OF_THE_SOURCE = {"key", "name", "settings"}  # files of the node that logs in decide these
# A launcher's ssh ends at once with these. The trial does without them.
_NO_LAUNCH = {"remotecommand", "sessiontype", "forkafterauthentication"}
_NO_WAY = {"proxyjump", "proxycommand"}  # the login that they keep from an end has a finding of its own


def findings(view: View) -> Iterator[Finding]:
    yield from _from_here(view.failures)
    without = [
        name
        for name, report in view.logins.items()
        if not report.mesh and not report.passed and (report.failures or report.keyless)
    ]
    if without:
        cause = "logins to other nodes do not work without a question, which mpirun needs; the mesh of keys is missing"
        yield Finding("ssh", "error", tuple(without), cause, "run 'clusterctl provision', whose role ssh_mesh makes it")
    for name, report in view.logins.items():
        if report.problem:
            cause = f"logins from it could not be tried ({report.problem})"
            yield Finding("ssh", "warning", (name,), cause, "see that it answers, and run doctor again")
    yield from _between(view, frozenset(without))
    yield from _overruled(view)
    yield from _own_lines(view)


def _overruled(view: View) -> Iterator[Finding]:
    """Name the settings that win over those of the mesh, by the file that sets them."""
    hosts: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for name, report in view.logins.items():
        for one in report.overruled:
            if one.setting not in _NO_WAY:
                hosts[one.setting, one.what][name] = None
    for (setting, what), names in hosts.items():
        severity: Severity = "error" if setting in _NO_LAUNCH else "warning"
        cause = f"{what} wins over the ssh mesh, so its logins to other nodes are not those that provision made"
        yield Finding("ssh", severity, tuple(names), cause, _SETTINGS_CURE)


def _own_lines(view: View) -> Iterator[Finding]:
    """Name nodes whose known hosts lack the node itself; a login to its own name would ask a question."""
    for name, node in view.nodes.items():
        known = node.known_hosts
        if known is None or not known.has_mesh or not node.ssh.host_keys:
            continue
        own = {entry.partition("]")[0].removeprefix("[").lower() for entry in known.own_names}
        called = {name, node.hostname, node.fqdn, *view.addresses(name)}
        if not any(fnmatchcase(word.lower(), entry) for word in called for entry in own) and not any(
            entry.startswith("|") for entry in own
        ):
            cause = "its known_hosts has no line of the node itself, so that a login to its own name asks a question"
            yield Finding("host_key", "warning", (name,), cause, f"{PROVISION} (role ssh_mesh)")


def _from_here(failures: Mapping[str, ProbeFailure]) -> Iterator[Finding]:
    """Tell who cannot be looked at: alone in its own sentence, several of one cause in one line."""
    kinds: dict[tuple[FailureKind, str], list[ProbeFailure]] = defaultdict(list)
    for failure in failures.values():
        kinds[failure.kind, _alike(failure)].append(failure)
    for (kind, _unused), alike in kinds.items():
        check = "host_key" if kind == "host_key" else "reachable"
        cause, _, cure = alike[0].message.rstrip(".").partition("; ")
        if len(alike) > 1:
            cause = f"{_FAILED[kind]}, for example {cause}"
        yield Finding(check, "error", tuple(one.host for one in alike), cause, cure or "see that it answers to ssh")


def _alike(failure: ProbeFailure) -> str:
    """Return what two failures of one cause share: the sentence without host, addresses, numbers and quoted words."""
    return _OF_ONE_NODE.sub("", failure.message.replace(failure.host, ""))


def _between(view: View, without: frozenset[str]) -> Iterator[Finding]:
    away = {name for name, failure in view.failures.items() if failure.kind in _AWAY}
    classes: dict[str, dict[Pair, LoginFailure]] = defaultdict(dict)
    for source, report in view.logins.items():
        for failure in report.failures:
            if source not in without and failure.target not in away:
                classes[_CLASSES[failure.kind]][source, failure.target] = failure
    tried = sum(report.passed + len(report.failures) for report in view.logins.values())
    asked = {(source, target) for source, report in view.logins.items() for target in report.targets}
    for name, failed in classes.items():
        sources = {source for source, _target in failed}
        first = next(iter(failed.values()))
        if name in _OF_THE_SOURCE and len(sources) == 1 and len(failed) > 1:
            targets = nodeset.folded([target for _source, target in failed])
            words = _words(name, first, targets, is_target=False)
            yield Finding(_check(name), "error", tuple(sources), words, _cure(name, first))
            continue
        if is_everywhere(len(failed), tried, len(view.hosts)):
            cause = f"logins between them fail: {_last(first.said)}"
            yield Finding(_check(name), "error", ends(failed), cause, _cure(name, first))
            continue
        blamed, rest = blame(failed, len(view.hosts), asked)
        for one in blamed:
            others = nodeset.folded(one.others)
            pair = (one.others[0], one.host) if one.role == "target" else (one.host, one.others[0])
            words = _words(name, failed[pair], others, is_target=one.role == "target")
            yield Finding(_check(name), "error", (one.host,), words, _cure(name, failed[pair]))
        if len(rest) > FEW_PAIRS and name not in {"key", "name"}:
            cause = f"logins fail {shown(rest)}: {_last(failed[rest[0]].said)}"
            yield Finding("ssh", "error", ends(rest), cause, _cure(name, failed[rest[0]]))
            continue
        for source, target in rest:
            yield _alone(name, source, target, failed[source, target])


def _cure(name: str, failure: LoginFailure) -> str:
    return network.NO_WAY_OUT if name == "network" and _STOPPED.search(failure.said) else _CURES[name]


def _check(name: str) -> str:
    return "host_key" if name == "key" else "ssh"


def _words(name: str, failure: LoginFailure, others: str, *, is_target: bool) -> str:
    changed = failure.kind == "key_changed"
    if name == "key" and is_target:
        return f"it shows a host key that is {f'not the one that {others} know' if changed else f'unknown to {others}'}"
    if name == "key":
        known = f"another host key for {others} than is shown there" if changed else f"no host key for {others}"
        return f"its known_hosts has {known}"
    where = f"logins from {others} to it" if is_target else f"logins from it to {others}"
    return f"{where} fail: {_last(failure.said)}"


def _alone(name: str, source: str, target: str, failure: LoginFailure) -> Finding:
    """Tell of one login between nodes that get on with others; keys and settings are those of the one who asks."""
    if name in _OF_THE_SOURCE:
        words = _words(name, failure, target, is_target=False)
        return Finding(_check(name), "error", (source,), words, _CURES[name])
    cause = f"the login from {source} to {target} fails: {_last(failure.said)}"
    return Finding("ssh", "error", (source, target), cause, _cure(name, failure))


def _last(said: str) -> str:
    words: Sequence[str] = [part.strip() for part in said.split(" / ") if part.strip()]
    return words[-1].rstrip(".") if words else "ssh says nothing"


# --- the user that jobs run as ----------------------------------------------------------------------------------------


def job_user(view: View) -> Iterator[Finding]:
    """Return the nodes that refuse the account, and the provisioned nodes that lack it."""
    for name, failure in view.closed_to_jobs.items():
        cause, _, cure = failure.message.rstrip(".").partition("; ")
        yield Finding("job_user", "error", (name,), cause, cure or "see that it answers to ssh")
    users = _job_users(view)
    without = tuple(name for name in view.provisioned if name in users and not users[name].exists)
    if without:
        cause = f"the user {users[without[0]].name}, which jobs run as, is missing"
        yield Finding("job_user", "error", without, cause, "run 'clusterctl provision' (role ssh_mesh)")
    for name, user in users.items():
        cause, cure = job_login.without_home(user)
        if cause:
            yield Finding("job_user", "error", (name,), cause, cure)


def job_user_notes(view: View) -> Iterator[str]:
    """Return a sentence where jobs can become root, and one where the account's uid differs."""
    users = {name: user for name, user in _job_users(view).items() if user.exists}
    reaching = {name: "root" if user.uid == 0 else "sudo" for name, user in users.items() if user.sudo}
    if reaching:
        yield job_login.root_reach(users[next(iter(reaching))].name, reaching, len(users))
    uids: dict[int, list[str]] = {}
    for name, user in users.items():
        uids.setdefault(user.uid, []).append(name)
    if len(uids) > 1:
        shown = ", ".join(f"{uid} on {nodeset.folded(hosts)}" for uid, hosts in sorted(uids.items()))
        name = next(iter(users.values())).name
        yield (
            f"The uid of user {name} differs: {shown}. Files in a folder that the nodes share then "
            "belong to different users; give the user one uid with usermod."
        )


def _job_users(view: View) -> dict[str, JobUser]:
    return {name: node.job_user for name, node in view.nodes.items() if node.job_user is not None}


# --- how many logins sshd lets begin ----------------------------------------------------------------------------------

# From ``start`` logins on that have not yet proven who they are, sshd refuses new ones at random (sshd_config(5),
# MaxStartups ``start:rate:full``). The value is that of ``sshd -T`` where root could ask it, else that of sshd's files.
# This undoes the change where sshd does not take it. The service is ssh on Debian, and sshd elsewhere.
_SET = (
    'cd /etc/ssh && cp -p sshd_config sshd_config.before && sed -i "1i $0" sshd_config && '
    "{ sshd -t || { mv sshd_config.before sshd_config; exit 1; }; } && "
    "{ systemctl reload sshd || systemctl reload ssh; }"
)
_DEFAULT = 10  # OpenSSH's own start; the role environment raises a lower one to it


def login_limits(view: View) -> Iterator[Finding]:
    """Return the nodes that let fewer logins begin than there are nodes, and fewer than sshd by default."""
    for value, hosts in _low(view).items():
        if _start(value) < min(len(view.hosts), _DEFAULT):
            cause = (
                f"sshd refuses logins at random when {_start(value)} are under way (MaxStartups {value}), and "
                f"{len(view.hosts)} nodes log in at once"
            )
            cure = f"{PROVISION} (role environment), or set 'MaxStartups {_enough(len(view.hosts))}' in sshd_config"
            yield Finding("ssh", "warning", tuple(hosts), cause, cure, start_limit(_enough(len(view.hosts))))


def start_limit(value: str) -> tuple[tuple[str, ...], ...]:
    """Return the command that sets it: sshd takes the first line of a name (sshd_config(5))."""
    return (("sh", "-c", _SET, f"MaxStartups {value}"),)


def login_limits_notes(view: View) -> Iterator[str]:
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


# --- names ------------------------------------------------------------------------------------------------------------

_HOSTS = f"{PROVISION} (role hosts), or correct /etc/hosts, the line hosts: of /etc/nsswitch.conf, or the name server"


def names(view: View) -> Iterator[Finding]:
    yield from _one_machine(view)
    yield from _one_name(view)
    yield from _own(view)
    yield from _of_others(view)


def _one_machine(view: View) -> Iterator[Finding]:
    """Name hosts of the inventory that are one machine: its host keys, its name and an address of its own agree."""
    machines: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for name, node in view.nodes.items():
        if node.ssh.host_keys and (hardware := _hardware(node)):
            machines[node.hostname, node.ssh.host_keys, hardware].append(name)
    for names in machines.values():
        if len(names) > 1:
            cause = "are names of one and the same machine, which would get the ranks of all of them"
            yield Finding("names", "error", tuple(names), cause, "leave one of them in the inventory")


def _hardware(node: NodeFacts) -> frozenset[str]:
    return frozenset(
        f"{link.mac} {entry.address}"
        for link in node.interfaces
        if link.kind not in {"loopback", "bridge"} and link.mac
        for entry in link.addresses
        if entry.scope == "global"
    )


def _one_name(view: View) -> Iterator[Finding]:
    """Name machines that call themselves the same: launchers tell nodes apart by that."""
    called: dict[str, dict[frozenset[str], str]] = defaultdict(dict)
    for name, node in view.nodes.items():
        if node.hostname:
            called[node.hostname.lower()].setdefault(_hardware(node), name)
    cure = "give each its own name with 'hostnamectl set-hostname'"
    for hostname, machines in called.items():
        if len(machines) < 2:  # noqa: PLR2004 - one machine, one name
            continue
        mine = [name for name in machines.values() if name.lower().partition(".")[0] == hostname.partition(".")[0]]
        if len(mine) == 1:  # it has the name that the inventory gives it; another one took it
            others = tuple(name for name in machines.values() if name not in mine)
            cause = f"it calls itself {hostname} as {mine[0]} does, and mpirun takes them for one node"
            yield Finding("names", "error", others, cause, cure)
        else:
            cause = f"all call themselves {hostname}, and mpirun takes them for one node"
            yield Finding("names", "error", tuple(machines.values()), cause, cure)


def _own(view: View) -> Iterator[Finding]:
    for name, node in view.nodes.items():
        own = next((entry for entry in node.names if entry.name == node.hostname), None)
        if own is None:
            continue
        if not own.addresses:
            cause = f"it cannot resolve its own name, {node.hostname} ({own.problem})"
            yield Finding("names", "error", (name,), cause, _HOSTS)
        elif _is_loopback(own.addresses[0]):
            if len(view.nodes) > 1:  # one node alone finds itself there
                cause = f"its own name leads to {own.addresses[0]}, at which no other node finds it"
                yield Finding("names", "error", (name,), cause, _HOSTS)
        elif not view.addresses(name) & set(own.addresses):
            cause = f"its own name leads to {own.addresses[0]}, which is not an address of its own"
            yield Finding("names", "error", (name,), cause, _HOSTS)


def _of_others(view: View) -> Iterator[Finding]:
    for looking, node in view.nodes.items():
        known = _known(node)
        asked = [other for other in view.nodes if other in known and other != looking]
        unknown = [other for other in asked if not known[other].addresses]
        if unknown:
            severity: Severity = "error" if provisioned(node) else "warning"
            whom = "any other node" if len(unknown) == len(view.nodes) - 1 else nodeset.folded(unknown)
            yield Finding("names", severity, (looking,), f"{UNRESOLVED} {whom}", _HOSTS)
    owners = _owners(view)
    for looking, other, addresses in _misleading(view):
        whose = [name for address in addresses for name in owners.get(address, set()) - {other}]
        if all(_is_loopback(address) for address in addresses):
            cause = f"the name {other} leads it to {addresses[0]}, which is itself"
            yield Finding("names", "error", (looking,), cause, _HOSTS)
        elif len(whose) == 1:
            address = next(address for address in addresses if whose[0] in owners.get(address, set()))
            cause = f"the names {other} and {whose[0]} lead it to one address, {address}"
            yield Finding("names", "error", (looking,), cause, _HOSTS)
        else:
            yield _elsewhere(view, looking, other, addresses[0])


def _elsewhere(view: View, looking: str, other: str, address: str) -> Finding:
    """Return the finding about a name that leads to a foreign address; something may translate addresses on the way."""
    called = {(one.source, one.target): one.kind for one in view.pairs if one.network == fabric.NAMES}
    cause = f"the name {other} leads it to {address}, "
    if called.get((looking, other), "error") in fabric.NOT_THERE:
        return Finding("names", "error", (looking,), f"{cause}at which {other} does not answer", _HOSTS)
    return Finding("names", "warning", (looking,), f"{cause}which is not an address of {other}", _HOSTS)


def dead(view: View) -> Iterator[Finding]:
    """Return the names that lead to an address at which their node does not answer."""
    found = (_elsewhere(view, *name) for name in elsewhere(view))
    yield from (one for one in found if one.severity == "error")


def elsewhere(view: View) -> list[tuple[str, str, str]]:
    """Return who looks up a name, whose name it is, and the address, where that is of no node that is known."""
    owners = _owners(view)
    return [
        (looking, other, addresses[0])
        for looking, other, addresses in _misleading(view)
        if not any(_is_loopback(address) or address in owners for address in addresses)
    ]


def _misleading(view: View) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield who looks up a name, whose name it is, and the addresses, where none is of that node."""
    for looking, node in view.nodes.items():
        known = _known(node)
        for other in view.nodes:
            addresses = known[other].addresses if other in known and other != looking else ()
            if addresses and not view.addresses(other) & set(addresses):
                yield looking, other, addresses


def _known(node: NodeFacts) -> dict[str, Resolution]:
    return {entry.name: entry for entry in node.names if entry.name != node.hostname}


def _owners(view: View) -> dict[str, set[str]]:
    owners: dict[str, set[str]] = defaultdict(set)
    for name in view.nodes:
        for address in view.addresses(name):
            owners[address].add(name)
    return owners


def _is_loopback(address: str) -> bool:
    try:
        return fabric.parsed(address, may_have_scope=True).is_loopback
    except ValueError:
        return False
