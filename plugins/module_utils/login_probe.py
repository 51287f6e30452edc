# SPDX-License-Identifier: Apache-2.0
"""Try the ssh logins of one node to the others, as a job would, and tell its clock.

The program changes nothing and needs the standard library of Python 3.9 alone. ``clusterctl.remote.python`` sends it
over ssh. It writes lines of JSON: ``ready``, then its clock for each line that it reads, then the failed logins. At the
end of its stdin it ends, and its logins with it.
"""

# pathlib is slow to import, and this program runs on every node.
# ruff: noqa: PTH110, PTH111, PTH119, PTH123, PTH208

from __future__ import annotations

import contextlib
import getopt
import json
import os
import pwd
import re
import select
import shlex
import signal
import stat
import subprocess
import sys
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

# A file of the role ssh_mesh. With it, nodes know each other by name. Earlier releases wrote the second one.
MESH = ("/etc/ssh/ssh_config.d/00-clusterctl.conf", "/etc/ssh/ssh_config.d/10-clusterctl.conf")
# Settings for people in anybody's ssh configuration, which a program cannot use: terminals, commands, forwardings. sftp
# takes them as well, to which Ansible gives what it gives to ssh; it has no option -T.
_FOR_PEOPLE = ("RequestTTY=no", "RemoteCommand=none", "ClearAllForwardings=yes", "PermitLocalCommand=no")
NOT_INTERACTIVE = tuple(word for setting in _FOR_PEOPLE for word in ("-o", setting))
# sshd starts to drop logins when ten of them wait (MaxStartups), and all nodes log in at once.
AT_ONCE = 4
# Without a mesh, stop after so many refusals without a success: sshd penalises a node that keeps failing.
_ENOUGH_REFUSALS = 2
_TICKETS = "/tmp"  # noqa: S108 - Kerberos keeps tickets there; it is only read
# If a login takes so long, more at once would be slower still: nodes may be containers of one machine.
_SLOW_S = 1.0
_POLL_S = 0.05
_PAUSE_S = 1.0
_MOST_SAID = 400
_MOST_OF_A_PIPE = 1 << 16  # bytes
_MOST_OF_A_FILE = 1 << 20  # bytes
_MOST_JUMPS = 8
COMPARED = 4  # targets of which ssh is asked for its settings; each takes some 20 ms
_ANSWER_S = 10
_SSH_OPTIONS = "46AaCfGgKkMNnqsTtVvXxYyB:b:c:D:E:e:F:I:i:J:L:l:m:O:o:P:p:Q:R:S:W:w:"  # of OpenSSH's client
_READING = re.compile(r"^debug1: Reading configuration data (.+?)\r?$", re.MULTILINE)
_LOOP = "jumphost loop"
ENDLESS = "{} leads ssh through one machine again and again, so no login was tried"
_END_S = 2.0  # of a program that was killed; a file system that does not answer may hold it
# Definite answers, which a second try would repeat. Any other failure may be due to load.
_DEFINITE = re.compile(
    r"Permission denied|Host key verification failed|HOST IDENTIFICATION HAS CHANGED|No \S+ host key is known"
    r"|Could not resolve|Name or service not known|Connection refused",
    re.IGNORECASE,
)
_REFUSED = re.compile(r"Permission denied|Host key verification failed|No \S+ host key is known", re.IGNORECASE)
_LAX = {"no", "off", "false", "accept-new"}

Json = Dict[str, Any]


def environment(user: Optional[str] = None) -> Dict[str, str]:
    """Return the environment of a user's launcher: without an agent, and without variables of this session.

    None is the user of this process.

    Raises:
        KeyError: there is no such user.
    """
    entry = pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())
    return {
        "HOME": entry.pw_dir,
        "USER": entry.pw_name,
        "LOGNAME": entry.pw_name,
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LC_ALL": "C",
    }


def login_argv(target: Json, timeout_s: int, mesh: bool, lax: bool) -> List[str]:
    """Return the command of a launcher, with ``true`` in the place of its daemon.

    The login must not write a file. So unknown host keys are refused; if the user's own configuration accepts any key
    (``lax``), keys are neither looked up nor kept.
    """
    argv = ["ssh", "-n", *NOT_INTERACTIVE, "-o", "BatchMode=yes", "-o", f"ConnectTimeout={timeout_s}"]
    argv += ["-o", "UpdateHostKeys=no", "-o", "ControlMaster=no", "-o", "ControlPath=none"]
    if lax:
        argv += ["-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"]
        argv += ["-o", "UserKnownHostsFile=/dev/null", "-o", "GlobalKnownHostsFile=/dev/null"]
    else:
        argv += ["-o", "StrictHostKeyChecking=yes"]
    if mesh:
        return [*argv, "--", str(target["name"]), "true"]
    return [*argv, "-p", str(target["port"]), "--", str(target["address"]), "true"]


class Client:
    """The configuration that this user's ssh has for a target (``ssh -G``)."""

    def __init__(self, name: str, file: str = "", *, verbose: bool = False) -> None:
        """Read the configuration for a target.

        Args:
            name: of the target, as a launcher gives it to ssh.
            file: the only file to read; by default ssh reads all of its own.
            verbose: whether to learn which files ssh reads.
        """
        done = subprocess.run(
            ["ssh", "-G", *(["-v"] if verbose else []), *(["-F", file] if file else []), "--", name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            check=False,
            timeout=_ANSWER_S,
        )
        self.settings: Dict[str, List[str]] = {}
        for line in done.stdout.decode("utf-8", "replace").split("\n"):
            keyword, _unused, value = line.partition(" ")
            self.settings.setdefault(keyword, []).append(value)
        said = done.stderr.decode("utf-8", "replace")
        self.files = list(dict.fromkeys(_READING.findall(said)))
        self.is_loop = _LOOP in said  # a ProxyJump of a machine through itself, the one kind that ssh sees
        self._identities = [os.path.expanduser(value) for value in self.settings.get("identityfile", [])]

    def get(self, keyword: str) -> str:
        """Return the value of a setting of which the first counts."""
        return self.settings.get(keyword, [""])[0]

    @property
    def is_lax(self) -> bool:
        """Whether ssh accepts unknown host keys."""
        return self.get("stricthostkeychecking") in _LAX

    @property
    def has_key(self) -> bool:
        """Whether ssh has a credential: a key, the host's own key, or a ticket."""
        if len(self.settings) < 2 or self.get("hostbasedauthentication") == "yes":  # noqa: PLR2004 - ssh told nothing
            return True
        tickets = [name for name in os.listdir(_TICKETS) if name.startswith(f"krb5cc_{os.geteuid()}")]
        if self.get("gssapiauthentication") == "yes" and tickets:
            return True
        return any(os.path.exists(path) for path in self._identities)


# --- what wins over the mesh's settings, asked of ssh itself ----------------------------------------------------------

# The mesh decides these also where its file does not write them.
_ALWAYS = ("hostname", "port", "user")
# A user may have another value of these without harm to a job.
_HARMLESS = {"connecttimeout", "forwardagent", "forwardx11", "gssapiauthentication", "updatehostkeys"}
# Settings for people: with them, the ssh of a launcher gets a terminal, another command, no input, or no way out.
_FOR_PEOPLE: Tuple[Tuple[str, "re.Pattern[str]"], ...] = (
    ("requesttty", re.compile(r"force|yes|true")),
    ("remotecommand", re.compile(r"(?!none$).+")),
    ("sessiontype", re.compile(r"none|subsystem")),
    ("stdinnull", re.compile(r"yes|true")),
    ("forkafterauthentication", re.compile(r"yes|true")),
    ("localforward", re.compile(r".+")),
    ("remoteforward", re.compile(r".+")),
    ("dynamicforward", re.compile(r".+")),
)
WAYS = ("proxyjump", "proxycommand")
# ssh -G writes the names of settings in lower case.
_SPELLING = {
    name.lower(): name
    for name in (
        "DynamicForward", "ForkAfterAuthentication", "GlobalKnownHostsFile", "HostName", "IdentitiesOnly",
        "IdentityFile", "LocalForward", "Port", "PreferredAuthentications", "ProxyCommand", "ProxyJump",
        "RemoteCommand", "RemoteForward", "RequestTTY", "SessionType", "StdinNull", "StrictHostKeyChecking", "User",
        "UserKnownHostsFile",
    )
}  # fmt: skip
_TRUTHS = {"yes": "true", "no": "false"}


def overruled(name: str, drop_in: str) -> List[Json]:
    """Return the settings that win over those of the mesh for a target, and those that no launcher can use.

    Args:
        name: the target.
        drop_in: the file of the mesh.

    Returns:
        For each the setting, its value, and the file and line that sets it, as far as that is known.

    Raises:
        OSError, subprocess.TimeoutExpired: ssh does not tell its settings.
    """
    ours, found = Client(name, drop_in), Client(name, verbose=True)
    if ours.get("userknownhostsfile") != "/dev/null":  # the mesh is not this user's
        return []
    written = {line.split()[0].lower() for line in _lines(drop_in) if line.split()} - _HARMLESS - {"match", "host"}
    wrong = [
        keyword
        for keyword in dict.fromkeys([*_ALWAYS, *sorted(written)])
        if not set(ours.settings.get(keyword, [])) <= set(found.settings.get(keyword, []))  # ssh adds up some, as keys
    ]
    wrong += [keyword for keyword, bad in _FOR_PEOPLE if keyword not in wrong and bad.fullmatch(found.get(keyword))]
    if endless(name, found):
        wrong += [keyword for keyword in WAYS if found.get(keyword) not in {"", "none"}]
    return [_told(name, keyword, found) for keyword in wrong]


def _told(name: str, keyword: str, found: Client) -> Json:
    value = found.get(keyword)
    where = setting_place(keyword, value, [one for one in found.files if one not in MESH])
    return {"target": name, "setting": keyword, "value": value[:_MOST_SAID], "where": where}


def way_words(name: str) -> str:
    """Return a clause about the proxy that ssh takes to a target, for a login that failed; '' without one."""
    try:
        found = Client(name, verbose=True)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    ways = (keyword for keyword in WAYS if found.get(keyword) not in {"", "none"})
    return "".join(f" (through {overruled_words(_told(name, keyword, found))})" for keyword in ways)


def overruled_words(found: Mapping[str, Any]) -> str:
    """Return a clause about a setting of :func:`overruled`."""
    name = _SPELLING.get(str(found["setting"]), str(found["setting"]))
    value = str(found["value"])
    given = f"{name} {value}" if value and value != "none" else f"the missing {name}"
    return f"{given}{' in ' + str(found['where']) if found['where'] else ''}"


def endless(name: str, client: Optional[Client] = None) -> bool:
    """Tell whether ssh would start itself without an end: on its way to the target it goes through a host twice."""
    seen = {name}
    client = client or Client(name)
    for _unused in range(_MOST_JUMPS):
        name = jump_of(client.get("proxyjump"), client.get("proxycommand"))
        if client.is_loop or name in seen:
            return True
        if not name:
            return False
        seen.add(name)
        client = Client(name)
    return True


def jump_of(jumps: str, command: str) -> str:
    """Return the machine that ssh logs in to first on its way to a target by its own settings; '' without one."""
    first = jumps.partition(",")[0]
    if not first or first == "none":
        try:
            words = shlex.split(command)
            if not words or os.path.basename(words[0]) != "ssh":
                return ""
            options, left = getopt.getopt(words[1:], _SSH_OPTIONS)
        except (ValueError, getopt.GetoptError):
            return ""
        if not left or any(name in {"-F", "-J"} for name, _unused in options):
            return ""
        first = left[0]
    host = first.rpartition("://")[2].rpartition("@")[2]
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def setting_place(keyword: str, value: str, files: Sequence[str]) -> str:
    """Return the file and the line that set a setting: the first with this value, else the first with the keyword.

    Args:
        keyword: the setting, as ``ssh -G`` writes it.
        value: its value there.
        files: what ssh reads, in its order.
    """
    places = []
    for path in files:
        for number, line in enumerate(_lines(path), 1):
            found = re.match(r"\s*([A-Za-z0-9]+)(?:\s*=\s*|\s+)(.*?)\s*$", line)
            if found and found.group(1).lower() == keyword:
                given = found.group(2).strip('"')
                places.append((f"{path} line {number}", _TRUTHS.get(given.lower(), given.lower())))
    same = [place for place, given in places if given == _TRUTHS.get(value.lower(), value.lower())]
    return [*same, *(place for place, _unused in places), ""][0]


def _lines(path: str) -> List[str]:
    """Return the lines of a regular file; [] where it cannot be read."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return []
            return file.read(_MOST_OF_A_FILE).decode("utf-8", "replace").split("\n")
    except OSError:
        return []


class Logins:
    """All logins of one node: a few at a time, each with a deadline, all within a budget."""

    def __init__(self, targets: Sequence[Json], timeout_s: int, budget_s: float) -> None:
        """Prepare the logins."""
        drop_in = next((path for path in MESH if os.path.exists(path)), "")
        self.mesh = bool(drop_in)
        client = Client(str(targets[0]["name"])) if targets else None
        self.lax = client is not None and client.is_lax
        # Without a key every answer is known: each login would be refused.
        self.keyless = not self.mesh and client is not None and not client.has_key
        self.failures: List[Json] = []
        self.passed = 0
        self.overruled: List[Json] = []
        self.stopped_early = False
        self._timeout_s = timeout_s
        self._end = time.monotonic() + budget_s
        self._at_once = 1
        # target, number of tries, earliest time of the next one
        self._waiting: List[Tuple[Json, int, float]] = [(target, 0, 0.0) for target in targets]
        self._running: List[Tuple[Json, int, float, "subprocess.Popen[bytes]"]] = []
        self._drop_in = drop_in

    def _compare(self) -> None:
        """Ask ssh what wins over the mesh on the way to the first targets, and leave out a login without an end."""
        for entry in self._waiting[:COMPARED]:
            name = str(entry[0]["name"])
            found = overruled(name, self._drop_in)
            self.overruled += found
            if any(one["setting"] in WAYS for one in found):
                self._waiting.remove(entry)
                self.failures.append({"target": name, "said": ENDLESS.format(overruled_words(found[-1]))})

    def run(self) -> Json:
        """Try every login until the budget is spent or stdin ends; without a key, try none."""
        try:
            if self.mesh:
                self._compare()
            while (
                not self.keyless
                and (self._waiting or self._running)
                and time.monotonic() < self._end
                and not _stdin_ended(_POLL_S)
            ):
                self._start()
                self._collect()
                if not self.mesh and not self.passed and self._refusals() >= _ENOUGH_REFUSALS:
                    self.stopped_early = True
                    break
        finally:
            for *_unused, process in self._running:
                _ended(process)
        return {
            "mesh": self.mesh,
            "lax": self.lax,
            "keyless": self.keyless,
            "passed": self.passed,
            "failures": self.failures,
            "overruled": self.overruled,
            "untried": len(self._waiting) + len(self._running),
            "stopped_early": self.stopped_early,
        }

    def _refusals(self) -> int:
        return len([failure for failure in self.failures if _REFUSED.search(failure["said"])])

    def _start(self) -> None:
        now = time.monotonic()
        ready = [entry for entry in self._waiting if entry[2] <= now]
        most = self._at_once if self.mesh or self.passed else _ENOUGH_REFUSALS
        for entry in ready[: max(0, most - len(self._running))]:
            self._waiting.remove(entry)
            target, tries, _unused = entry
            process = subprocess.Popen(
                login_argv(target, self._timeout_s, self.mesh, self.lax),
                cwd="/",
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._running.append((target, tries + 1, now + 2 * self._timeout_s, process))

    def _collect(self) -> None:
        for entry in list(self._running):
            target, tries, deadline, process = entry
            late = time.monotonic() > deadline
            if process.poll() is None and not late:
                continue
            said = _last_words(_ended(process))
            self._running.remove(entry)
            took = time.monotonic() - (deadline - 2 * self._timeout_s)
            self._at_once = 1 if took > _SLOW_S else min(AT_ONCE, self._at_once + 1)
            if late:
                said = f"ssh timed out after {2 * self._timeout_s} s"
            elif process.returncode == 0:
                self.passed += 1
                continue
            if tries == 1 and not _DEFINITE.search(said):
                self._waiting.append((target, tries, time.monotonic() + _PAUSE_S))
            else:
                said = said or f"ssh ended with status {process.returncode}"
                said += way_words(str(target["name"])) if self.mesh else ""
                self.failures.append({"target": str(target["name"]), "said": said})


def _ended(process: "subprocess.Popen[bytes]") -> bytes:
    """End ssh and what it has started, and return what waits in the pipe of its errors."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    if process.stderr is None:
        return b""
    with process.stderr as errors, contextlib.suppress(BlockingIOError):
        os.set_blocking(errors.fileno(), False)
        return os.read(errors.fileno(), _MOST_OF_A_PIPE)
    return b""


def _last_words(errors: bytes) -> str:
    """Return the words of ssh; of a page about a changed key, the first line and the last two."""
    lines = [line.strip(" @") for line in errors.decode("utf-8", "replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("Warning: Permanently")]
    return " / ".join([*lines[:1], *lines[1:][-2:]])[:_MOST_SAID]


def _stdin_ended(wait_s: float) -> bool:
    """Wait, and tell whether stdin has ended."""
    return bool(select.select([0], [], [], wait_s)[0]) and not os.read(0, 1)


def say(event: Json) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(event, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def main(_arguments: Sequence[str] = ()) -> Optional[int]:
    """Answer one request: ``{targets: [{name, address, port}], timeout_s, budget_s, clock}``."""
    request = json.loads(sys.stdin.buffer.readline())
    say({"event": "ready"})
    for _unused in range(int(request["clock"])):
        if not sys.stdin.buffer.readline():
            return None
        say({"event": "clock", "time": time.time()})
    try:
        found = Logins(request["targets"], int(request["timeout_s"]), float(request["budget_s"])).run()
    except OSError as error:
        found = {"problem": f"ssh could not be started ({error.strerror or error})"}
    except subprocess.TimeoutExpired as error:
        found = {"problem": f"ssh did not tell its settings within {error.timeout:g} s"}
    say({"event": "logins", **found})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
