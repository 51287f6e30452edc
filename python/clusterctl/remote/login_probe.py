"""Try the ssh logins between the nodes, and read their clocks: one connection per node, all at once.

The program on the node is ``plugins/module_utils/login_probe.py``. It ends when this process ends, because its stdin
ends then.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from clusterctl.model.clock import Clock
from clusterctl.remote import python, reach
from clusterctl.support import content

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from module_utils import login_probe as node_login_probe  # mypy finds it by mypy_path

    from clusterctl.model.hosts import Host
else:
    node_login_probe = content.module_util("login_probe")

LoginKind: TypeAlias = Literal[
    "key_changed", "key_unknown", "refused", "name", "closed", "timeout", "settings", "error"
]

_CLOCK_ROUNDS = 5
_MOST_SAID = 1000  # characters; the program on the node cuts at less
_MOST_LOGINS = 1 << 20
_MOST_OVERRULED = 100
_SETTING = re.compile(r"[a-z0-9]{1,40}")
_LAST_TIME = 1e11  # seconds since 1970, beyond all clocks
_READY, _CLOCK, _LOGINS = (f'{{"event":"{event}"'.encode() for event in ("ready", "clock", "logins"))
_KINDS: tuple[tuple[LoginKind, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))  # type: ignore[misc]
    for kind, pattern in (
        ("key_changed", r"HOST IDENTIFICATION HAS CHANGED|Offending \S+ key"),
        ("key_unknown", r"No \S+ host key is known|Host key verification failed"),
        # What the kernel says of the connection, such as EACCES of a firewall and EINVAL of a blackhole route.
        ("timeout", r"connect to host \S+ port \d+: (?!Connection refused|.*\(through Proxy)"),
        ("refused", r"Permission denied|not available|nologin|account is locked"),
        ("settings", r"again and again|\(through Proxy"),
        ("name", r"Could not resolve|Name or service not known"),
        ("closed", r"Connection refused"),
        ("timeout", r"timed? ?out|No route to host|unreachable|Connection (?:closed|reset)"),
    )
)


@dataclass(frozen=True)
class LoginTarget:
    """A node that others log in to: by name if there is a mesh, else by address and port."""

    name: str
    address: str
    port: int = 22


@dataclass(frozen=True)
class Login:
    """A host and the targets that it logs in to; ``as_user`` is the user who tries, None for the login user."""

    host: Host
    targets: tuple[LoginTarget, ...]
    as_user: str | None = None


@dataclass(frozen=True)
class LoginFailure:
    """A login that failed, and the words of ssh."""

    target: str
    kind: LoginKind
    said: str


@dataclass(frozen=True)
class Overruled:
    """A setting that wins over those of the mesh for logins to a target, or that no launcher can use.

    ``what`` is a clause with the setting, its value, and the file and line that sets it.
    """

    target: str
    setting: str  # as ssh -G writes it, in lower case
    what: str


@dataclass(frozen=True)
class LoginReport:
    """The logins of one node.

    ``mesh`` tells whether the role ssh_mesh has run there. Without a mesh, ``keyless`` means that the user has no key,
    so no login was tried. ``stopped_early`` means that two logins were refused, and the others not tried. ``untried``
    counts the logins for which time ran out. ``problem`` says why there is no answer. ``targets`` are the nodes that it
    was asked to log in to.
    """

    mesh: bool = False
    passed: int = 0
    failures: tuple[LoginFailure, ...] = ()
    untried: int = 0
    stopped_early: bool = False
    keyless: bool = False
    clock: Clock | None = None
    problem: str = ""
    targets: tuple[str, ...] = ()
    overruled: tuple[Overruled, ...] = ()


def gather(
    logins: Sequence[Login],
    *,
    login_timeout_s: int = 5,
    budget_s: float = 20,
    timeout_s: float = 45,
    fanout: int = 64,
    control_dir: Path | None = None,
    ended: Callable[[int], None] = lambda _count: None,
) -> dict[str, LoginReport]:
    """Let every node log in to its targets, and read its clock.

    The targets of a login are in the order of the tries. ``login_timeout_s`` limits one login. After ``budget_s`` a
    node starts no more of them, and after ``timeout_s`` it is given up. ``ended`` hears how many logins are
    done, whenever a node has answered or failed.
    """
    done = 0

    async def everyone() -> list[LoginReport]:
        turn = asyncio.Semaphore(min(fanout, reach.at_once(login.host for login in logins)))

        async def one(login: Login) -> LoginReport:
            nonlocal done
            request = {
                "targets": [{"name": to.name, "address": to.address, "port": to.port} for to in login.targets],
                "timeout_s": login_timeout_s,
                "budget_s": budget_s,
                "clock": _CLOCK_ROUNDS,
            }
            async with turn:
                report = await _ask(login, request, timeout_s, control_dir)
            done += len(login.targets)
            ended(done)
            return replace(report, targets=tuple(to.name for to in login.targets))

        return await asyncio.gather(*(one(login) for login in logins))

    return {login.host.name: report for login, report in zip(logins, asyncio.run(everyone()), strict=True)}


def kind_of(said: str) -> LoginKind:
    """Return the kind of failure that the words of ssh mean."""
    return next((kind for kind, pattern in _KINDS if pattern.search(said)), "error")


async def _ask(login: Login, request: Mapping[str, Any], timeout_s: float, control_dir: Path | None) -> LoginReport:
    program = python.program("login_probe")
    argv = reach.command(login.host, program.argv(login.host.python), as_user=login.as_user, control_dir=control_dir)
    targets = [to.name for to in login.targets]
    opening = program.data + json.dumps(request).encode() + b"\n"
    try:
        async with python.talk(argv) as talk:
            return await asyncio.wait_for(_converse(talk, opening, targets), timeout_s)
    except asyncio.TimeoutError:
        return LoginReport(problem=f"no answer within {timeout_s:g} s")
    except python.EndedError as ended:
        return LoginReport(problem=str(ended) or "it ended without an answer")
    except (ValueError, LookupError, TypeError, OverflowError):
        return LoginReport(problem="its answer is not readable")


async def _converse(talk: python.Conversation, opening: bytes, targets: Collection[str]) -> LoginReport:
    await talk.send(opening)
    await talk.answer(_READY)
    rounds = []
    for _ in range(_CLOCK_ROUNDS):
        sent = time.time()
        await talk.send(b"\n")
        theirs = float((await talk.answer(_CLOCK))["time"])
        if not 0 <= theirs < _LAST_TIME:  # nor is it not a number
            raise ValueError("it is not a time")
        rounds.append((sent, theirs, time.time()))
    found = await talk.answer(_LOGINS)
    await talk.finish()
    return read(found, clock_of(rounds), targets)


def clock_of(rounds: Sequence[tuple[float, float, float]]) -> Clock | None:
    """Return a clock's offset from the quickest of several exchanges (sent, the node's time, received).

    The node read its clock somewhere between sending and receiving, so half the round trip bounds the error
    (F. Cristian, "Probabilistic clock synchronization", Distributed Computing 3, 1989).
    """
    if not rounds:
        return None
    sent, theirs, received = min(rounds, key=lambda entry: entry[2] - entry[0])
    return Clock(offset_s=theirs - (sent + received) / 2, uncertainty_s=max(0.0, received - sent) / 2)


def read(event: Mapping[str, Any], clock: Clock | None, targets: Collection[str] | None = None) -> LoginReport:
    """Return the report of the program's last event.

    ``targets`` are the only nodes of which it can say something, each once; None takes all.

    Raises:
        ValueError, LookupError, TypeError: the event has another form.
    """
    if event.get("problem"):
        return LoginReport(clock=clock, problem=str(event["problem"])[:_MOST_SAID])
    said = {str(entry["target"]): str(entry["said"])[:_MOST_SAID] for entry in event["failures"]}
    known = said if targets is None else {name: said[name] for name in targets if name in said}
    most = _MOST_LOGINS if targets is None else len(targets)
    return LoginReport(
        mesh=bool(event["mesh"]),
        passed=_count(event["passed"], most),
        failures=tuple(LoginFailure(name, kind_of(words), words) for name, words in known.items()),
        untried=0 if event["keyless"] else _count(event["untried"], most),
        stopped_early=bool(event["stopped_early"]),
        keyless=bool(event["keyless"]),
        clock=clock,
        overruled=_overruled(event.get("overruled", []), [*known, *(targets or ())]),
    )


def _overruled(said: Any, targets: Collection[str]) -> tuple[Overruled, ...]:
    found = []
    for entry in said[:_MOST_OVERRULED]:
        setting = str(entry["setting"])
        if str(entry["target"]) in targets and _SETTING.fullmatch(setting):
            words = {key: str(entry[key])[:_MOST_SAID] for key in ("value", "where")}
            found.append(
                Overruled(
                    str(entry["target"]), setting, node_login_probe.overruled_words({**words, "setting": setting})
                )
            )
    return tuple(found)


def _count(value: Any, most: int) -> int:
    number = int(value)
    if not 0 <= number <= most:
        raise ValueError("it counts logins that it was not asked for")
    return number
