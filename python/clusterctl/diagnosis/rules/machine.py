"""Rules of each machine: its session, cores, clock and leftovers, its processors, memory and sensors.

A machine check exception is an error that the hardware could not correct (Intel SDM volume 3, "Machine-Check
Architecture"). A threshold interrupt tells of corrected errors. The kernel polls every five minutes, and faster and
faster while it finds errors (Linux, Documentation/arch/x86/x86_64/machinecheck.rst, check_interval). Corrected errors
have no limit of their own in these sources, so a node is held against its neighbours.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from clusterctl.diagnosis.rules import launchable
from clusterctl.diagnosis.rules.engines import LEAST, SHOWN, beyond, groups, growth, span, stands_out, unlike
from clusterctl.diagnosis.rules.table import LOCAL_PORTS, MEMORY, MODULE, PROCESSORS, SLOW_PROCESSORS
from clusterctl.diagnosis.skew import PROVISION, artifact, compare
from clusterctl.model import nodeset
from clusterctl.model.findings import Finding, Severity, majority
from clusterctl.model.job_login import can_carry_a_launch
from clusterctl.support import content
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from module_utils import clock_rules as _rules  # mypy finds it by mypy_path

    from clusterctl.diagnosis.rules.engines import CounterKey, Growth
    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.clock import Clock
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.hardware import Hardware, HardwareLooks
else:
    _rules = content.module_util("clock_rules")

_GIB = 1 << 30
_SLOW_START, _SLOW_START_S = 3.0, 2.0  # times what others take, and seconds more; a session takes tenths of a second
_CLOCK_WARNING_S, _CLOCK_ERROR_S = 2.0, 60.0  # make and Horovod's logs; certificates and Kerberos
_SET_CLOCK = "have chrony or systemd-timesyncd set it"
_SWAPPED_PART = 0.1
_SHOWN_LEFTOVERS = 2
_KINDS = {"login": "a login session", "systemd": "a unit of systemd"}
_NO_COMMAND = {"ended": "ended before it ran a command", "silent": "ran no command in time"}


def machine(view: View) -> Iterator[Finding]:
    yield from _artifacts(view.nodes)
    yield from sessions(view.nodes)
    yield from logins(view.nodes)
    yield from _slow_sessions(view.nodes)
    yield from _leftovers(view.nodes)
    yield from _swap(view.nodes)
    yield from _cores(view)
    measured = {name: report.clock for name, report in view.logins.items() if report.clock is not None}
    yield from clocks(measured or clocks_of(view.nodes))


def _artifacts(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Report artifacts that are damaged or have lost their link; an artifact that is not installed is not reported."""
    for host, node in nodes.items():
        for found in node.artifacts:
            if found.target and not found.linked:
                cause = f"{found.link} is a folder, and clusterctl installs a link there"
                cure = f"move the folder away: 'mv {found.link} {found.link}.aside', then {PROVISION}"
                yield Finding("artifacts", "error", (host,), cause, cure)
            elif not found.ok and (found.target or "leads nowhere" in found.problem):
                cause = f"{found.name} is not as it was installed: {found.problem}"
                yield Finding("artifacts", "error", (host,), cause, PROVISION)


def sessions(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Tell where a job's session would not find Open MPI, which is what mpirun over ssh starts with.

    Programs find their libraries by RUNPATH, so the loader of a session need not.
    """
    for host, node in nodes.items():
        if artifact(node, "openmpi") is None or "PATH" not in node.environment:
            continue
        wanted = [f"{node.layout.openmpi}/bin"]
        wanted += [f"{node.layout.link('horovod')}/bin"] if artifact(node, "horovod") else []
        folders = [folder.rstrip("/") for folder in node.environment["PATH"].split(":")]
        missing = [folder for folder in wanted if folder not in folders]
        cure = f"{PROVISION} (role environment), or find what sets PATH in /etc/environment or a start-up file"
        foreign = launchable.foreign_mpirun(node)
        if foreign and not missing:
            yield Finding("session", "error", (host,), foreign, launchable.path_cure(node))
        if missing:
            cause = f"PATH of a session without a terminal lacks {' and '.join(missing)}"
            yield Finding("session", "error", (host,), cause, cure)


def logins(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Tell where a login session or a unit of systemd finds other programs than the account was given, and why."""
    for host, node in nodes.items():
        user = node.user.name
        for one in node.sessions:
            if one.problem == "unreadable":
                path = launchable.activate(node)
                cause = f"user {user} cannot read {path}, so a login session goes on without the cluster's programs"
                fix = (("chmod", "644", path),)
                yield Finding("session", "warning", (host,), cause, f"'chmod 644 {path}', or {PROVISION}", fix)
        for (kind, place), found in _taken(node).items():
            if not _is_users_choice(node, place, found):
                where = _KINDS.get(kind, kind)
                what = " and ".join(f"{name} {f'is {path}' if path else 'is missing'}" for name, path in found.items())
                cause = f"in {where} of user {user}, {what}{f', because of {place}' if place else ''}"
                yield Finding("session", "warning", (host,), cause, _login_cure(node, kind, place))


def login_notes(view: View) -> Iterator[str]:
    """Say where the user's own start-up file has another Python, and which login sessions ran no command."""
    said: dict[str, list[str]] = {}
    for host, node in view.nodes.items():
        user = f"user {node.user.name}"
        for (kind, place), found in _taken(node).items():
            if _is_users_choice(node, place, found):
                what = f"python3 in {_KINDS.get(kind, kind)} of {user} is {found['python3']}"
                words = f"{what}: {place} is the user's own, and wins"
                said.setdefault(words, []).append(host)
        for one in node.sessions:
            if one.problem in _NO_COMMAND and can_carry_a_launch(node.login.shell):
                at = f", at {one.place}" if one.place else ""
                words = f"a login session of {user} {_NO_COMMAND[one.problem]}{at}; what it finds is unknown"
                said.setdefault(words, []).append(host)
    yield from (f"{nodeset.folded(hosts)}: {words}" for words, hosts in said.items())


def _taken(node: NodeFacts) -> dict[tuple[str, str], dict[str, str]]:
    """Return the programs of each kind of session and place that are not the cluster's.

    An mpirun that a session without a terminal finds as well is left out, because that is a finding of its own.
    """
    told = {
        one.path for one in node.launch if one.name == "mpirun" and (not one.path or launchable.foreign_mpirun(node))
    }
    found: dict[tuple[str, str], dict[str, str]] = {}
    for one in node.sessions:
        if one.name and not one.own and not (one.name == "mpirun" and one.path in told):
            found.setdefault((one.kind, one.place), {})[one.name] = one.path
    return found


def _is_users_choice(node: NodeFacts, place: str, found: Mapping[str, str]) -> bool:
    return set(found) == {"python3"} and bool(found["python3"]) and place.startswith(f"{node.user.home}/")


def _login_cure(node: NodeFacts, kind: str, place: str) -> str:
    if kind == "systemd":
        return f"end all sessions of user {node.user.name} there, or have it run 'systemctl --user daemon-reload'"
    if not place:
        return f"look for what sets PATH in the start-up files of {node.login.shell}, or {PROVISION} (role environment)"
    below = f"have that line put its folders behind $PATH, or put 'source {launchable.activate(node)}' below it"
    return f"{below}; where /etc/profile.d/zz-clusterctl.sh is missing, {PROVISION} (role environment)"


def _slow_sessions(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Tell where a login waits, so that each job starts late, and its commands with it."""
    taken = {host: node.session_start_s for host, node in nodes.items() if node.session_start_s}
    for host, seconds in taken.items():
        others = [its for name, its in taken.items() if name != host]
        usual = statistics.median(others) if others else seconds
        if seconds > max(_SLOW_START * usual, usual + _SLOW_START_S):
            cause = f"a session takes {seconds:.1f} s until its command runs, and {usual:.1f} s on other nodes"
            cure = "look for what waits in the start-up files of the shell (.bashrc, .zshenv, .cshrc), and in PAM"
            yield Finding("session", "warning", (host,), f"{cause}, so each job starts late", cure)


def _leftovers(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    for host, node in nodes.items():
        if not node.leftovers:
            continue
        ranks = [f"{one.pid} of {one.user}, {_age(one.age_s)} old: {one.command[:60]}" for one in node.leftovers]
        shown = and_more(ranks, _SHOWN_LEFTOVERS, "; ")
        cause = f"{_ranks(len(node.leftovers))} left over from jobs whose launcher is gone ({shown})"
        pids = [str(one.pid) for one in node.leftovers[:8]]
        cure = f"end them there: 'kill {' '.join(pids)}'"
        yield Finding("leftovers", "error", (host,), cause, cure, (("kill", *pids),))


def _ranks(count: int) -> str:
    return "a rank is" if count == 1 else f"{count} ranks are"


def _age(seconds: float) -> str:
    if seconds < 120:  # noqa: PLR2004
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"  # noqa: PLR2004


def _swap(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    for host, node in nodes.items():
        if node.memory_bytes and node.swap_used_bytes > max(_GIB, _SWAPPED_PART * node.memory_bytes):
            cause = "more than a tenth of its memory is in swap, and ranks that wait for a disk have all others wait"
            yield Finding("swap", "warning", (host,), cause, "find who uses the memory, then 'swapoff -a'")


def _cores(view: View) -> Iterator[Finding]:
    for host, node in view.nodes.items():
        slots = view.slots.get(host, 0)
        if node.threads and slots > node.threads:
            cause = f"it has {slots} slots and {node.threads} hardware threads, so that ranks take turns"
            yield Finding("cores", "warning", (host,), cause, "give it fewer slots in the inventory")
        elif node.cpu_quota.cores is not None and node.cpu_quota.cores < slots:
            cause = f"it has {slots} slots, and its control group a CPU quota of {node.cpu_quota.cores:g} cores"
            cure = "raise the quota (cpu.max, CPUQuota, or the limit of the container), or give it fewer slots"
            yield Finding("cores", "warning", (host,), cause, cure)
    yield from _confined(view)
    smt = {
        host: "on" if node.threads > node.cores else "off"
        for host, node in view.nodes.items()
        if node.threads and node.cores
    }
    yield from compare("cores", "warning", "hyperthreading", smt, "set it alike in the firmware of all nodes")


def _confined(view: View) -> Iterator[Finding]:
    """Name nodes whose sessions may use fewer hardware threads than those of most nodes with as many online."""
    alike: dict[int, dict[str, int]] = {}
    for host, node in view.nodes.items():
        if node.threads and node.threads_online:
            alike.setdefault(node.threads_online, {})[host] = node.threads
    for online, usable in alike.items():
        usual = majority(usable).usual
        for host, threads in usable.items():
            if usual is not None and view.slots.get(host, 0) <= threads < usual:
                cause = f"a session may use {threads} of {online} hardware threads, and {usual} on most nodes"
                cure = "find what binds sshd: the affinity ('taskset -cp PID'), AllowedCPUs of its unit, or a cpuset"
                yield Finding("cores", "warning", (host,), f"{cause}, so ranks share cores or a socket", cure)


def clocks_of(nodes: Mapping[str, NodeFacts]) -> dict[str, Clock]:
    """Return the clocks as the look at the nodes tells them, which is less exact than a question for them alone."""
    return {host: node.clock for host, node in nodes.items() if node.clock is not None}


def clocks(found: Mapping[str, Clock]) -> Iterator[Finding]:
    """Name nodes whose clock differs by more than the measurement's own error, as ``clock_rules`` judges it."""
    bounds = {
        host: _rules.Bounds(its.offset_s - its.uncertainty_s, its.offset_s + its.uncertainty_s)
        for host, its in found.items()
    }
    told = _rules.judge(bounds, _CLOCK_WARNING_S)
    if told.together:
        first, last = _rules.furthest(bounds)
        severity = _clock_severity(bounds[first].beyond(bounds[last]))
        apart = bounds[first].middle_s - bounds[last].middle_s
        cause = (
            f"their clocks are up to {apart:.1f} s apart ({first} is ahead of {last}), and most confirm none of them"
        )
        yield Finding("clock", severity, tuple(told.wrong), cause, _SET_CLOCK)
        return
    whose = "this machine's" if len(found) <= 2 else "most nodes'"  # noqa: PLR2004 - of two, none is most
    for host, ahead in told.wrong.items():
        cause = f"its clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} {whose}"
        yield Finding("clock", _clock_severity(bounds[host].beyond(told.reference)), (host,), cause, _SET_CLOCK)


def _clock_severity(least_s: float) -> Severity:
    return "error" if least_s > _CLOCK_ERROR_S else "warning"


# --- processors and machine checks ------------------------------------------------------------------------------------

_EXCEPTIONS, _THRESHOLDS, _POLLS = "machine check exceptions", "threshold interrupts", "machine check polls"
_LEAST_CHECKS = {_THRESHOLDS: 10, _POLLS: 100}  # smaller growth tells nothing
_EXCEPTION_CURE = (
    "drain the node and read 'ras-mc-ctl --errors' or the board's log; replace the processor or module named there"
)
_CHECK_CURE = "read 'ras-mc-ctl --errors', 'mcelog' or the board's log, which name the module or processor"


def machine_checks(view: View) -> Iterator[Finding]:
    """Return nodes with exceptions, and those whose corrected errors grow far faster than on their like."""
    for host, looks in view.hardware.items():
        for (kind, _device, name), one in _since_start(looks).items():
            if kind == "machine check" and name == _EXCEPTIONS and one.grown:
                cause = f"{one.grown} {name} in {span(one.seconds)}, each counted once for a processor that took it"
                yield Finding("machine checks", "error", (host,), cause, _EXCEPTION_CURE)
    for group in groups(view):
        for name, least in _LEAST_CHECKS.items():
            rates = {
                host: grown
                for host in group
                if (grown := _since_start(view.hardware[host]).get(("machine check", "", name)))
            }
            for host, one in rates.items():
                if one.grown < least or len(rates) < LEAST:
                    continue
                usual = stands_out(host, {peer: other.per_hour for peer, other in rates.items()})
                if usual is not None:
                    often = f"{one.grown} {name} in {span(one.seconds)}"
                    beside = f"{usual * one.seconds / 3600:.3g} are the median of its like"
                    cause = f"{often}, and {beside}; they tell of errors that were corrected"
                    yield Finding("machine checks", "warning", (host,), cause, _CHECK_CURE)


def _since_start(looks: HardwareLooks) -> Mapping[CounterKey, Growth]:
    """Return the growth since the oldest look that the counters can be compared with."""
    earlier = [look for look in looks.earlier() if look.boot_id == looks.now.boot_id]
    return growth(earlier[-1], looks.now) if earlier else {}


def processors(view: View) -> Iterator[Finding]:
    """Return settings that differ between nodes of one kind, and those that are slow everywhere."""
    yield from unlike(view, "processors", PROCESSORS)
    for host, looks in view.hardware.items():
        yield from beyond(host, looks.now, SLOW_PROCESSORS)
        yield from beyond(host, looks.now, LOCAL_PORTS)


# --- memory -----------------------------------------------------------------------------------------------------------

_CORRECTED_A_DAY = 10  # for a module
_MCELOG = "mcelog.conf, ce-error-threshold"
_DAY_S = 86_400.0
_LESS = 0.98  # of the memory that most nodes of the kind have
_MEMORY_CURE = "run its memory test, then replace the module; until then leave the node out"


def memory(view: View) -> Iterator[Finding]:
    """Return modules whose errors grow, and nodes with less memory than their like."""
    for host, looks in view.hardware.items():
        yield from _module_errors(host, looks)
    yield from unlike(view, "memory", MEMORY)
    for group in groups(view):
        yield from _less(group)


def _less(group: Mapping[str, Hardware]) -> Iterator[Finding]:
    """Name nodes with less memory than is usual, in sum or on a NUMA node; a node's modules may be named already."""
    sizes = {host: int(seen.number("memory", "memory in KiB") or 0) for host, seen in group.items()}
    usual = statistics.median_high(sizes.values())
    places = {host: seen.numbers("numa", "memory in KiB") for host, seen in group.items()}
    counted = {seen.number("memory", "memory modules") for seen in group.values()}
    for host, size in sizes.items():
        short = {
            place: (int(own), most)
            for place, own in places[host].items()
            if own < (most := statistics.median_high(int(other.get(place, 0)) for other in places.values())) * _LESS
        }
        if 0 < size < usual * _LESS:
            where = f", less on {and_more(short, SHOWN)}" if short else ""
            cause = f"it has {size >> 20} GiB of memory, and {usual >> 20} GiB are usual on its like{where}"
            if len(counted) < 2:  # noqa: PLR2004 - else the modules are named
                yield Finding("memory", "warning", (host,), cause, MODULE)
        elif size:
            for place, (own, most) in short.items():
                cause = f"its NUMA {place} has {own >> 20} GiB of memory, and {most >> 20} GiB are usual on its like"
                yield Finding("memory", "warning", (host,), cause, MODULE)


def _module_errors(host: str, looks: HardwareLooks) -> Iterator[Finding]:
    """Compare with the oldest look of the last day, so that single errors add up."""
    day = [look for look in looks.earlier() if looks.now.time - look.time <= _DAY_S]
    if not day:
        return
    for (kind, device, name), grown in growth(day[-1], looks.now).items():
        if kind != "memory" or not grown.grown:
            continue
        hours = grown.seconds / 3600
        errors = "1 error" if grown.grown == 1 else f"{grown.grown} errors"
        cause = f"the memory module {device} made {errors} in {hours:.2g} h that were {name}"
        if name == "uncorrected":
            yield Finding("memory", "error", (host,), cause, _MEMORY_CURE)
        elif grown.grown >= _CORRECTED_A_DAY:
            yield Finding(
                "memory",
                "warning",
                (host,),
                f"{cause}; {_CORRECTED_A_DAY} a day are the limit",
                _MEMORY_CURE,
                source=_MCELOG,
            )


# --- what the board's management controller says ----------------------------------------------------------------------

_SHOWN_EVENTS = 3
_SENSORS: dict[str, tuple[Severity, str]] = {
    "nc": ("warning", "outside its normal limits"),
    "cr": ("error", "critical"),
    "nr": ("error", "beyond recovery"),
    "us": ("error", "faulty"),
}


def sensors(view: View) -> Iterator[Finding]:
    """Return sensors that are not well, and events of the last day."""
    for host, looks in view.hardware.items():
        for sensor, state in looks.now.texts("sensor", "state").items():
            word, _, value = state.partition(", ")
            severity, means = _SENSORS.get(word, ("warning", word))
            cure = "look at fans, power supplies and cooling: 'ipmitool sdr list', 'ipmitool sel elist'"
            yield Finding("sensors", severity, (host,), f"the sensor {sensor} is {means} ({value})", cure)
        told = list(dict.fromkeys(event.text for event in looks.now.events if event.source == "ipmi"))
        if told:
            cause = f"the board's event log has {and_more(told, _SHOWN_EVENTS, '; ')}"
            yield Finding("sensors", "warning", (host,), cause, "read all of it: 'ipmitool sel elist'")
