"""Can this machine log in to every node, and every node to every other, without a question?"""

from __future__ import annotations

from collections import defaultdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from clusterctl.diagnosis.rules.evidence import FEW_PAIRS, blame, ends, is_everywhere, shown
from clusterctl.diagnosis.skew import PROVISION
from clusterctl.model import nodeset
from clusterctl.model.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from clusterctl.diagnosis.rules.evidence import Pair, View
    from clusterctl.model.probe import FailureKind, ProbeFailure
    from clusterctl.remote.login_probe import LoginFailure, LoginKind

ORDER = 10
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
    "error": "error",
}
_REFUSED_CURE = f"{PROVISION} (role ssh_mesh); else look at sshd_config, at the modes of the home and at sshd's log"
_KEY_CURE = f"{PROVISION} if the node was installed anew; else find out who answers at its address"
_NETWORK_CURE = (
    "look for a firewall between them, or set cluster_address or cluster_port to where they reach each other"
)
_CURES = {
    "key": _KEY_CURE,
    "refused": _REFUSED_CURE,
    "name": f"{PROVISION} (roles hosts and ssh_mesh)",
    "network": _NETWORK_CURE,
    "error": "try 'ssh -v' by hand between the two",
}


def findings(view: View) -> Iterator[Finding]:
    """Return what is wrong with logins."""
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
    yield from _own_lines(view)


def _own_lines(view: View) -> Iterator[Finding]:
    """Name nodes whose known hosts lack the node itself; a login to its own name would ask a question."""
    for name, node in view.nodes.items():
        known = node.known_hosts
        if known is None or not known.has_mesh or not node.ssh.host_keys:
            continue
        own = {entry.partition("]")[0].removeprefix("[") for entry in known.own_names}
        called = {name, node.hostname, node.fqdn, *view.addresses(name)}
        if not any(fnmatchcase(word, entry) for word in called for entry in own) and not any(
            entry.startswith("|") for entry in own
        ):
            cause = "its known_hosts has no line of the node itself, so that a login to its own name asks a question"
            yield Finding("host_key", "warning", (name,), cause, f"{PROVISION} (role ssh_mesh)")


def _from_here(failures: Mapping[str, ProbeFailure]) -> Iterator[Finding]:
    """Tell who cannot be looked at: alone in its own sentence, several of one kind in one line."""
    kinds: dict[FailureKind, list[ProbeFailure]] = defaultdict(list)
    for failure in failures.values():
        kinds[failure.kind].append(failure)
    for kind, alike in kinds.items():
        check = "host_key" if kind == "host_key" else "reachable"
        cause, _, cure = alike[0].message.rstrip(".").partition("; ")
        if len(alike) > 1:
            cause = f"{_FAILED[kind]}, for example {cause}"
        yield Finding(check, "error", tuple(one.host for one in alike), cause, cure or "see that it answers to ssh")


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
        if is_everywhere(len(failed), tried, len(view.hosts)):
            words = _last(next(iter(failed.values())).said)
            yield Finding(_check(name), "error", ends(failed), f"logins between them fail: {words}", _CURES[name])
            continue
        blamed, rest = blame(failed, len(view.hosts), asked)
        for one in blamed:
            others = nodeset.folded(one.others)
            pair = (one.others[0], one.host) if one.role == "target" else (one.host, one.others[0])
            words = _words(name, failed[pair], others, is_target=one.role == "target")
            yield Finding(_check(name), "error", (one.host,), words, _CURES[name])
        if len(rest) > FEW_PAIRS and name not in {"key", "name"}:
            cause = f"logins fail {shown(rest)}: {_last(failed[rest[0]].said)}"
            yield Finding("ssh", "error", ends(rest), cause, _CURES[name])
            continue
        for source, target in rest:
            yield _alone(name, source, target, failed[source, target])


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
    """Tell of one login between nodes that get on with others; a key is known by the one who asks."""
    if name in {"key", "name"}:
        words = _words(name, failure, target, is_target=False)
        return Finding(_check(name), "error", (source,), words, _CURES[name])
    cause = f"the login from {source} to {target} fails: {_last(failure.said)}"
    return Finding("ssh", "error", (source, target), cause, _CURES[name])


def _last(said: str) -> str:
    words: Sequence[str] = [part.strip() for part in said.split(" / ") if part.strip()]
    return words[-1].rstrip(".") if words else "ssh says nothing"
