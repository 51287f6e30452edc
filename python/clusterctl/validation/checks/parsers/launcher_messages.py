"""Parser of what mpirun and ssh say when a launch fails: causes with the nodes that the messages name.

The rules know the messages of Open MPI 4.1 (ORTE) and 5.0 (PRRTE). A node is taken from the place where a message
names it, and never from other words of the output. The captured messages stand in ``tests/data/launcher``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from clusterctl.validation.checks.causes import Cause

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

# Where a rule finds the node: in its group ``node``; in the tag "[node3:1234]" of the line; the node whose daemon
# mpirun lost, since the message names none; or the way from the launch node to ``node``.
_Where: TypeAlias = Literal["node", "speaker", "daemon", "way"]

_MOST_TEXT = 4096  # characters of a passage; help messages have half of it, and some patterns take long on long texts
_TAG = re.compile(r"^\[(?P<host>[^\]\[:,\s]+):\d+\]\s*")
_RULE_OFF = re.compile(r"^-{20,}$")
_RANK_LINE = re.compile(r'\{"(?:clusterctl|rank)"')
_LOST = "mpirun lost the daemon on this node"
_PROVISION = "run 'clusterctl provision'"
_LOOK = "look at the node's kernel log and at what ended its daemon"
_FREE_TMP = "free space in /tmp"
_LOCAL_HOST = r".*?Local host:\s*(?P<node>\S+)"


@dataclass(frozen=True)
class _Rule:
    """A message: its pattern over one passage, where the node stands, what it means and what to do.

    ``cause`` and ``cure`` may name groups of the pattern. ``is_loss`` is a message that often is the consequence of
    another one. ``subject`` is as in :class:`clusterctl.validation.checks.causes.Cause`.
    """

    pattern: re.Pattern[str]
    where: _Where
    cause: str
    cure: str
    is_loss: bool = False
    subject: str = ""


@dataclass(frozen=True)
class _Passage:
    """A line, or the lines of a help message; ``speaker`` is the node of its tag, ``line`` is shown as evidence."""

    speaker: str
    text: str
    line: str


def _rule(where: _Where, pattern: str, cause: str, cure: str, *, is_loss: bool = False) -> _Rule:
    return _Rule(re.compile(pattern, re.DOTALL | re.IGNORECASE), where, cause, cure, is_loss)


def _about(subject: str, *rules: _Rule) -> tuple[_Rule, ...]:
    return tuple(replace(rule, subject=subject) for rule in rules)


_RULES = (
    # --- ssh from the launch node ---
    *_about(
        "ssh",
        _rule(
            "node",
            r"ssh: connect to host (?P<node>\S+) port (?P<port>\d+): (?P<why>Connection refused)",
            "its sshd refuses connections at port {port}",
            "start sshd there, or look for a firewall that rejects the port",
        ),
        _rule(
            "way",
            r"ssh: connect to host (?P<node>\S+) port (?P<port>\d+): (?P<why>[^\r\n]+)",
            "ssh does not get through to port {port} ({why})",
            "look at the network and at firewalls between the two",
        ),
        _rule(
            "way",
            r"ssh: Could not resolve hostname (?P<node>[^\s:]+): (?P<why>[^\r\n]+)",
            "the launch node does not know the name ({why})",
            f"{_PROVISION} (role hosts)",
        ),
        _rule(
            "way",
            r"No \S+ host key is known for (?P<node>\S+)",
            "the launch node knows no host key of the other",
            f"{_PROVISION} (role ssh_mesh)",
        ),
        _rule(
            "way",
            r"Host key for (?P<node>\S+) has changed and you have requested strict checking",
            "the host key has changed since the launch node learned it",
            f"{_PROVISION} if the node was installed anew; else find out who answers at its address",
        ),
        _rule(
            "node",
            r"^\S+@(?P<node>\S+): Permission denied \((?P<why>[^)]*)\)",
            "it refuses the login of mpirun ({why})",
            f"{_PROVISION} (role ssh_mesh)",
        ),
        _rule(
            "node",
            r"(?:Connection (?:closed|reset) by|banner exchange: Connection to) (?:remote host )?(?P<node>[\w.:-]+)"
            r" port \d+",
            "its sshd ends the connection before the login",
            "look at the log of sshd there, and at MaxStartups in sshd_config",
        ),
        _rule(
            "daemon",
            r"(?P<why>(?:exec|shell) request failed on channel \d+|This account is currently not available)",
            "its sshd starts no program for the user ({why})",
            "look at the user's shell and limits there, and at the log of sshd",
        ),
    ),
    # --- the daemon's program ---
    *_about(
        "launch",
        _rule(
            "daemon",
            r"(?P<path>/\S*/(?P<name>prted|orted|mpirun|prterun)): Permission denied",
            "{path} is not executable",
            f"{_PROVISION}, or 'chmod 755 {{path}}'",
        ),
        _rule(
            "daemon",
            r"(?P<path>/\S*/(?P<name>prted|orted|mpirun|prterun)): No such file or directory",
            "{path} is missing",
            _PROVISION,
        ),
        _rule(
            "daemon",
            r"(?P<path>/\S*/(?P<name>prted|orted|mpirun|prterun)): (?:cannot execute\S*:? ?)?"
            r"(?P<why>Exec format error)",
            "{path} is a program of another kind of machine",
            _PROVISION,
        ),
        _rule(
            "daemon",
            r"(?P<name>prted|orted|prterun): (?:command )?not found",
            "{name} is missing in PATH",
            _PROVISION,
        ),
        _rule(
            "daemon",
            r"(?P<name>\S+): error while loading shared libraries: (?P<library>[^\s:]+): (?P<why>[^\r\n]+)",
            "{name} does not find {library} ({why})",
            _PROVISION,
        ),
    ),
    _rule(
        "daemon",
        r"(?:fork|exec)\w*: (?:retry: )?(?P<why>Resource temporarily unavailable|Cannot allocate memory)",
        "no further process can be started ({why})",
        "raise nproc in /etc/security/limits.d, or end what fills the memory",
    ),
    # --- the program of the ranks ---
    _rule(
        "node",
        r"(?:could not access\s+or|lacked\s+permissions\s+to)\s+execute\s+an\s+executable:"
        r".*?Executable:\s*(?P<path>\S+).*?Node:\s*(?P<node>\S+)",
        "{path} cannot be executed",
        _PROVISION,
    ),
    _rule(
        "node",
        r"(?:find|found|locate)[^\n]* (?:specified )?executable.*?Node:\s*(?P<node>\S+).*?Executable:\s*(?P<path>\S+)",
        "{path} is missing",
        _PROVISION,
    ),
    # --- folders ---
    *_about(
        "files",
        _rule(  # ORTE's own folder has the host's name in it
            "node",
            r"create the desired directory:.*?Directory:\s*(?P<path>/\S+?/ompi\.(?P<node>\S+)\.\d+\S*)"
            r".*?Error:\s*(?P<why>[^\r\n]+)",
            "{path} cannot be made ({why})",
            "make its folder writable, and free space there",
        ),
        _rule(
            "daemon",
            r"create the desired directory:.*?Directory:\s*(?P<path>\S+).*?Error:\s*(?P<why>[^\r\n]+)",
            "{path} cannot be made ({why})",
            "make its folder writable, and free space there",
        ),
    ),
    *_about(
        "temporary files",
        _rule(
            "speaker",
            r"ORTE_ERROR_LOG: \w+ in file util/session_dir\.c",
            "its daemon cannot make its folder in /tmp",
            "make /tmp writable, and free space there",
        ),
        _rule(
            "speaker",
            r"PMIX ERROR: (?:PMIX_ERR_)?OUT[-_]OF[-_]RESOURCE\S* in file dstore_\w+\.c",
            "PMIx has no room for its files in /tmp",
            _FREE_TMP,
        ),
    ),
    *_about(
        "shared memory",
        _rule(
            "node",
            rf"not enough space for (?P<path>/\S+).*?shared-memory backing{_LOCAL_HOST}",
            "no space is left for shared memory ({path})",
            "remove files that earlier jobs left in /dev/shm, or mount it larger",
        ),
        _rule(
            "node",
            rf"system call failed during shared memory initialization{_LOCAL_HOST}"
            r".*?System call:\s*(?P<call>[^\r\n]+?)\s+Error:\s*(?P<why>[^\r\n]+)",
            "shared memory cannot be set up ({call}: {why})",
            "make /dev/shm writable, and free space there",
        ),
    ),
    *_about(
        "files",
        _rule(
            "speaker",
            r"(?P<what>[^\s:]+): (?P<why>No space left on device|Read-only file system)",
            "{what}: {why}",
            "free space there, and see whether the file system is read-only",
        ),
    ),
    # --- limits ---
    *_about(
        "open files",
        _rule(
            "node",
            rf"accept\(\d\) system call failed{_LOCAL_HOST}.*?Errno:\s*(?P<why>[^\r\n]+)",
            "its daemon can accept no further connections ({why})",
            "raise nofile in /etc/security/limits.d",
        ),
        _rule(
            "speaker",
            r"system limit on number of (?P<what>[\w ]+?)(?: a process can open)? was reached"
            r"|(?P<why>Too many open files)|ORTE_ERROR_LOG: Out of resource in file oob_tcp_\w+\.c",
            "its limit of open files is reached",
            "raise nofile in /etc/security/limits.d",
        ),
    ),
    *_about(
        "memlock",
        _rule(
            "node",
            rf"(?:allocate|register) (?:some |enough )?(?:locked |registered )?memory{_LOCAL_HOST}",
            "the limit of locked memory is too low",
            "set memlock to unlimited in /etc/security/limits.d",
        ),
    ),
    # --- a daemon that is gone ---
    _rule(
        "node",
        r"lost communication with a remote daemon.*?Remote daemon\s*:\s*\[.*?\]\s*on node\s+(?P<node>\S+)",
        _LOST,
        _LOOK,
        is_loss=True,
    ),
    _rule(
        "node",
        r"daemon has unexpectedly failed after launch and before.*?on node:?\s+(?P<node>\S+)",
        "its daemon ended before it was connected to mpirun",
        _LOOK,
        is_loss=True,
    ),
    _rule(
        "node",
        r"Connection to (?P<node>\S+) closed by remote host",
        "its connection to the launch node was closed",
        _LOOK,
        is_loss=True,
    ),
    _rule(
        "daemon",
        r"unable to reliably start one or more daemons|daemon has unexpectedly failed after launch and before",
        "a daemon did not start",
        "look at the nodes one by one: 'clusterctl doctor'",
        is_loss=True,
    ),
)


def read(lines: Iterable[str], names: Mapping[str, str], launch_node: str) -> tuple[Cause, ...]:
    """Return the causes that the output gives, strongest first; ``hosts`` of a cause is empty where none is named.

    Where a message gives the cause, messages of lost daemons count as its consequence and are left out.

    Args:
        lines: the output of mpirun, both streams; lines of ranks may be among them.
        names: the inventory's name for each name and address of a node.
        launch_node: the inventory's name of the node on which mpirun ran.
    """
    found = [one for passage in _passages(lines) for one in _of(passage, names, launch_node)]
    lost = tuple(dict.fromkeys(host for rule, cause in found if rule.is_loss for host in cause.hosts))
    given = []
    for rule, cause in found:
        if rule.is_loss:
            continue
        # One lost daemon is the one that the message is about; of several, no message says which.
        named = cause.at(*lost) if rule.where == "daemon" and len(lost) == 1 else cause
        given.append(named)
    given = given or [cause for _, cause in found]
    first: dict[tuple[tuple[str, ...], str], Cause] = {}
    for cause in sorted(given, key=lambda cause: not cause.hosts):
        first.setdefault((cause.hosts, cause.cause), cause)
    return tuple(first.values())


def _of(passage: _Passage, names: Mapping[str, str], launch_node: str) -> Iterator[tuple[_Rule, Cause]]:
    """Return what the first rule that fits says of a passage."""
    for rule in _RULES:
        match = rule.pattern.search(passage.text)
        if match is None:
            continue
        words = {name: " ".join((text or "").split()) for name, text in match.groupdict().items()}
        named = _host(words.get("node", ""), names)
        hosts: tuple[str, ...] = (named,) if named else ()
        if rule.where == "speaker":
            speaker = _host(passage.speaker, names)
            hosts = (speaker,) if speaker else ()
        if rule.where == "way" and named:
            hosts = (launch_node, named) if named != launch_node else (named,)
        yield (
            rule,
            Cause(
                hosts=hosts,
                kind="one_way" if len(hosts) > 1 else "node",
                cause=rule.cause.format(**words),
                cure=rule.cure.format(**words),
                line=passage.line,
                is_consequence=rule.is_loss,
                subject=rule.subject,
            ),
        )
        return


def _host(name: str, names: Mapping[str, str]) -> str:
    """Return the inventory's name of a node, empty for one that is unknown."""
    bare = name.strip("[]().,;:'\"")
    found = names.get(bare) or names.get(bare.lower())
    if found:
        return found
    short = {value for key, value in names.items() if key.partition(".")[0] == bare.partition(".")[0]}
    is_address = bare.replace(".", "").isdigit() or ":" in bare
    return short.pop() if len(short) == 1 and not is_address else ""


def _passages(lines: Iterable[str]) -> Iterator[_Passage]:
    """Return single lines, and the lines of a help message, which stands between two rules, as one passage."""
    block: list[str] | None = None
    for raw in lines:
        line = raw.replace("\0", "").strip()[:_MOST_TEXT]
        if _RULE_OFF.match(line):
            if block:
                yield _help(block)
            block = [] if block is None else None
            continue
        if not line or _RANK_LINE.search(line):
            continue
        tag = _TAG.match(line)
        if block is not None and tag is None:
            block.append(line)
        else:  # a tag never stands in a help message, so the end of that one was lost between other lines
            if block:
                yield _help(block)
            block = None
            yield _Passage(tag["host"] if tag else "", line[tag.end() :] if tag else line, line)
    if block:
        yield _help(block)


def _help(block: Sequence[str]) -> _Passage:
    return _Passage("", "\n".join(block)[:_MOST_TEXT], next((line for line in block if line), ""))
