"""Call the hook of a job: start a program in its own process group, or POST to an address.

A hook that fails, hangs, floods its output or leaves processes behind costs the night only the time of its
:class:`RetryPolicy`.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from clusterctl.nightly import schedule
from clusterctl.nightly.records import HookResult, HookTarget
from clusterctl.remote.shared_cache.http import Proxies
from clusterctl.support.errors import ConfigError

RECORD = "CLUSTERCTL_NIGHT"
VALIDATION = "CLUSTERCTL_VALIDATION"
LOG = "hook.log"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_MOST_SAID = 64 * 1024  # bytes of its output that are kept
_CLIENT_ERRORS = range(300, 500)
_LATER = (408, 425, 429)  # timeout, too early, too many: worth another try


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how long a hook is tried, in seconds; the pause doubles after each try."""

    attempts: int = 4
    attempt_s: float = 60.0
    pause_s: float = 5.0
    deadline_s: float = 240.0
    grace_s: float = 2.0


@dataclass(frozen=True)
class _Try:
    ok: bool
    final: bool
    words: str


def parse(text: str) -> HookTarget:
    """Read the value of --on-fail.

    Raises:
        ConfigError: it is neither an address for a POST nor a command that can be started.
    """
    if _SCHEME.match(text):
        return HookTarget(url=_checked_url(text))
    try:
        argv = shlex.split(text)
    except ValueError:
        raise ConfigError("--on-fail has an unbalanced quote; give a command with its arguments, or a URL.") from None
    if not argv:
        raise ConfigError("--on-fail is empty; give a command with its arguments, or a URL.")
    program = shutil.which(argv[0])
    if program is None:
        raise ConfigError(f"--on-fail names the program {argv[0]!r}, which is missing or cannot be started.")
    return HookTarget(command=(str(Path(program).absolute()), *argv[1:]))


def shown(target: HookTarget) -> str:
    """Return the name of a hook, without its secrets."""
    if target.url:
        parts = urlsplit(target.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/…"
    return PurePosixPath(target.command[0]).name + (" …" if target.command[1:] else "")


def call(
    target: HookTarget,
    record: Path,
    variables: Mapping[str, str],
    folder: Path,
    policy: RetryPolicy | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> HookResult:
    """Call the hook, and repeat a failed call as the policy allows; a failing hook never raises.

    ``record`` is on the standard input of a program, and in the body of a POST. ``variables`` are additions to the
    environment of a program, and ``folder`` is its working directory.
    """
    policy = policy or RetryPolicy()
    began = time.monotonic()
    attempt, last = 0, _Try(ok=False, final=True, words="was not called: the time was up")
    pause = policy.pause_s
    while attempt < policy.attempts:
        left = policy.deadline_s - (time.monotonic() - began)
        if left <= 0:
            break
        attempt += 1
        last = _attempt(target, record, variables, folder, min(policy.attempt_s, left), policy.grace_s)
        if last.ok or last.final or attempt == policy.attempts:
            break
        left = policy.deadline_s - (time.monotonic() - began)
        if left <= pause:
            break
        sleep(pause)
        pause *= 2
    return HookResult(
        at=datetime.now(timezone.utc),
        ok=last.ok,
        attempts=attempt,
        seconds=round(time.monotonic() - began, 3),
        words=f"{shown(target)} {last.words}",
    )


def _attempt(
    target: HookTarget, record: Path, variables: Mapping[str, str], folder: Path, timeout_s: float, grace_s: float
) -> _Try:
    if target.url:
        return _posted(target.url, record.read_bytes(), timeout_s)
    environment = {**os.environ, **variables, RECORD: str(record)}
    log = record.with_name(LOG)
    rc = _run(list(target.command), record, environment, folder, log, timeout_s, grace_s)
    if isinstance(rc, str):
        return _Try(ok=False, final=True, words=rc)
    if rc is None:
        return _Try(ok=False, final=False, words=f"did not end within {timeout_s:.0f} s and was ended")
    how = f"was ended by signal {-rc}" if rc < 0 else f"ended with {rc}"
    return _Try(ok=rc == 0, final=False, words=how if rc == 0 else f"{how}; its output is in {log}")


def _posted(address: str, body: bytes, timeout_s: float) -> _Try:
    """POST within a time.

    The thread is left behind at the deadline: a name server, or a peer that sends a byte a minute, outlasts every
    timeout of a socket.
    """
    found: list[_Try] = []
    thread = threading.Thread(target=lambda: found.append(_post(address, body, timeout_s)), daemon=True)
    thread.start()
    thread.join(timeout_s)
    return found[0] if found else _Try(ok=False, final=False, words=f"did not answer within {timeout_s:.0f} s")


class _Nowhere(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: urllib would make a GET of the POST, and carry the address's secrets elsewhere."""

    def redirect_request(self, *_arguments: Any, **_named: Any) -> None:
        """Refuse."""


def _post(address: str, body: bytes, timeout_s: float) -> _Try:
    """Return what a POST came to, in words that leave out the address."""
    parts = urlsplit(address)
    headers = {"Content-Type": "application/json", "User-Agent": "clusterctl"}
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()
    try:
        request = urllib.request.Request(plain, data=body, headers=headers, method="POST")  # noqa: S310 - http or https
        with urllib.request.build_opener(_Nowhere, Proxies).open(request, timeout=timeout_s) as answer:
            return _Try(ok=True, final=True, words=f"answered {answer.status}")
    except urllib.error.HTTPError as error:
        moved = ", a redirect, which is not followed; give the final address" if error.code in range(300, 400) else ""
        final = error.code in _CLIENT_ERRORS and error.code not in _LATER
        return _Try(ok=False, final=final, words=f"answered {error.code}{moved}")
    except urllib.error.URLError as error:
        return _Try(ok=False, final=False, words=_reason(error.reason))
    except (OSError, ValueError, http.client.HTTPException) as error:
        return _Try(ok=False, final=isinstance(error, http.client.InvalidURL), words=_reason(error))


def _reason(error: object) -> str:
    """Return the reason without the address, which the texts of some exceptions hold."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "it did not answer in time" if isinstance(error, TimeoutError) else type(error).__name__


def _run(
    argv: list[str],
    stdin: Path,
    environment: Mapping[str, str],
    folder: Path,
    log: Path,
    timeout_s: float,
    grace_s: float,
) -> int | str | None:
    """Return the exit code, None where the deadline ended it, or the reason why it could not be started.

    Its output goes to a file: a child of the program could hold a pipe open.
    """
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        return f"could not be started: its log {log} cannot be written ({error.strerror})"
    with os.fdopen(descriptor, "wb") as output, stdin.open("rb") as record:
        try:
            process = subprocess.Popen(
                argv,
                stdin=record,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder if folder.is_dir() else None,
                env=dict(environment),
                start_new_session=True,
            )
        except OSError as error:
            return f"could not be started: {error.strerror}"
        try:
            return _wait(process, log, timeout_s)
        finally:
            _end(process, grace_s)
            with contextlib.suppress(OSError):
                if log.stat().st_size > _MOST_SAID:
                    os.truncate(log, _MOST_SAID)


def _wait(process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> int | None:
    """Wait until it ends, is late, or has written so much that the disk may fill."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=max(0.01, min(0.2, end - time.monotonic())))
        if log.stat().st_size > 100 * _MOST_SAID:
            return None
    return None


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """End the whole process group, with the processes that it left in the background."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        except PermissionError:  # a program of another user in this group, such as one of sudo
            pass
        end = time.monotonic() + grace_s
        while _group_lives(process) and time.monotonic() < end:
            time.sleep(0.02)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace_s)


def _group_lives(process: subprocess.Popen[bytes]) -> bool:
    process.poll()  # a zombie child counts as a member
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _checked_url(text: str) -> str:
    schedule.refuse_control_characters(text)
    try:
        parts = urlsplit(text)
        good = parts.scheme.lower() in {"http", "https"} and bool(parts.hostname) and " " not in text
        _ = parts.port
    except ValueError:
        good = False
    if not good:
        raise ConfigError("--on-fail is not an address for a POST; begin it with http:// or https:// and a host.")
    return text
