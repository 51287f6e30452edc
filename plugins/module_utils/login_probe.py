# SPDX-License-Identifier: Apache-2.0
"""Try the ssh logins of one node to the others, as a job would, and tell its clock.

The program changes nothing and needs the standard library of Python 3.9 alone. ``clusterctl.remote.python`` sends it
over ssh. It writes lines of JSON: ``ready``, then its clock for each line that it reads, then the failed logins. At the
end of its stdin it ends, and its logins with it.
"""

# pathlib is slow to import, and this program runs on every node.
# ruff: noqa: PTH110, PTH111, PTH208

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import select
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

# A file of the role ssh_mesh. With it, nodes know each other by name.
MESH = "/etc/ssh/ssh_config.d/10-clusterctl.conf"
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


def environment() -> Dict[str, str]:
    """Return the environment of a job's launcher: without an agent, and without variables of this session."""
    entry = pwd.getpwuid(os.geteuid())
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
    argv = ["ssh", "-n", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={timeout_s}"]
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

    def __init__(self, target: Json) -> None:
        """Read the configuration for a target."""
        done = subprocess.run(
            ["ssh", "-G", "--", str(target["name"])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            check=False,
            timeout=10,
        )
        pairs = [line.partition(" ")[::2] for line in done.stdout.decode("utf-8", "replace").split("\n")]
        self._words = dict(pairs)
        self._identities = [os.path.expanduser(value) for key, value in pairs if key == "identityfile"]

    @property
    def is_lax(self) -> bool:
        """Whether ssh accepts unknown host keys."""
        return self._words.get("stricthostkeychecking", "") in _LAX

    @property
    def has_key(self) -> bool:
        """Whether ssh has a credential: a key, the host's own key, or a ticket."""
        if not self._words or self._words.get("hostbasedauthentication") == "yes":
            return True
        tickets = [name for name in os.listdir(_TICKETS) if name.startswith(f"krb5cc_{os.geteuid()}")]
        if self._words.get("gssapiauthentication") == "yes" and tickets:
            return True
        return any(os.path.exists(path) for path in self._identities)


class Logins:
    """All logins of one node: a few at a time, each with a deadline, all within a budget."""

    def __init__(self, targets: Sequence[Json], timeout_s: int, budget_s: float) -> None:
        """Prepare the logins."""
        self.mesh = os.path.exists(MESH)
        client = Client(targets[0]) if targets else None
        self.lax = client is not None and client.is_lax
        # Without a key every answer is known: each login would be refused.
        self.keyless = not self.mesh and client is not None and not client.has_key
        self.failures: List[Json] = []
        self.passed = 0
        self.stopped_early = False
        self._timeout_s = timeout_s
        self._end = time.monotonic() + budget_s
        self._at_once = 1
        # target, number of tries, earliest time of the next one
        self._waiting: List[Tuple[Json, int, float]] = [(target, 0, 0.0) for target in targets]
        self._running: List[Tuple[Json, int, float, "subprocess.Popen[bytes]"]] = []

    def run(self) -> Json:
        """Try every login until the budget is spent or stdin ends; without a key, try none."""
        try:
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
                self.failures.append({"target": str(target["name"]), "said": said})


def _ended(process: "subprocess.Popen[bytes]") -> bytes:
    """End ssh, and return what waits in the pipe of its errors; a program that it has started may keep that open."""
    process.kill()
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
