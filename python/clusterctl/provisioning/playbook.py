"""Run a playbook: arguments in, typed events out. The only module that imports ansible_runner.

What ansible-runner leaves open is closed here: a cancelled run ends ``ansible-playbook`` itself first, and then each
process that carries the run's mark in its environment. From core 2.19 on the workers live in sessions of their own, out
of reach of a signal to the group or its arguments is left alive.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clusterctl.inventory.ansible_inventory import ansible_program
from clusterctl.model.events import Event, Finished, HostResult, Note, Outcome, StageStarted, TaskStartedOnHost
from clusterctl.remote import ssh
from clusterctl.support import content
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

NOTE_MARK = "clusterctl-note|"
DEFAULT_FORKS = 32
_POLL_S = 0.2
_GRACE_S = 8.0  # for ansible-playbook to end its workers; measured 0.5 s, a loaded machine takes longer
_LARGEST_RESULT = "50000000"  # characters; ansible-runner drops a larger result whole
_MOST_COMPLAINTS = 40
_COMPLAINT = re.compile(r"^(?:\[ERROR\]:?|ERROR!)\s*(?P<text>.+)", re.DOTALL)
# Keys of a task's result that are worth keeping; everything else (arguments, stdout, invocation) may hold a secret.
_KEPT_DATA = frozenset({"problems", "argument_errors", "members", "assertion", "told"})
_LOOSE_OUTPUT = frozenset({"verbose", "error", "warning", "system_warning"})
_HOST_EVENTS: dict[str, Outcome] = {
    "runner_on_ok": "ok",
    "runner_on_failed": "failed",
    "runner_on_skipped": "skipped",
    "runner_on_unreachable": "unreachable",
}


@dataclass(frozen=True)
class Play:
    """Everything that makes one ``ansible-playbook`` command."""

    playbook: Path
    inventory: Path
    limit: str | None = None
    tags: tuple[str, ...] = ()
    skip_tags: tuple[str, ...] = ()
    extra_vars: tuple[str, ...] = ()
    check: bool = False
    diff: bool = False
    verbosity: int = 0
    forks: int = DEFAULT_FORKS
    become: bool = False
    user: str | None = None
    private_key: str | None = None
    vault_ids: tuple[str, ...] = ()
    vault_password_files: tuple[str, ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)  # of the wrapper itself; no secrets
    become_password: str | None = field(default=None, repr=False)
    vault_passwords: Mapping[str, str] = field(default_factory=dict, repr=False)  # label → what the user typed


@dataclass(frozen=True)
class End:
    """How a playbook ended.

    ``complaints`` are Ansible's own errors outside of any task; ``failed`` and ``unreachable`` name the hosts that
    ended so (a failure that a rescue put right is none).
    """

    status: Literal["successful", "failed", "canceled"]
    rc: int
    complaints: tuple[str, ...] = ()
    failed: frozenset[str] = frozenset()
    unreachable: frozenset[str] = frozenset()


class Cancel:
    """A stop request that a signal handler may set; the second one hurries."""

    def __init__(self) -> None:
        """Nothing is requested yet."""
        self.requests = 0

    def request(self) -> None:
        """Ask the run to stop."""
        self.requests += 1

    @property
    def requested(self) -> bool:
        """Whether the run is to stop."""
        return self.requests > 0

    @contextlib.contextmanager
    def on_signals(self, told: Callable[[int], None] | None = None) -> Iterator[None]:
        """Take SIGINT and SIGTERM as requests while the block runs; ``told`` hears the count."""

        def handle(_number: int, _frame: object) -> None:
            self.request()
            if told is not None:
                told(self.requests)

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def arguments(play: Play, variables_file: Path | None = None) -> list[str]:
    """Return the arguments of ``ansible-playbook``, without the program, the playbook and any password.

    Args:
        play: what to run.
        variables_file: where ``play.variables`` were written; the user's own extra variables stand above them.
    """
    argv = [f"--inventory={play.inventory}", f"--forks={play.forks}"]  # with '=', no value is taken for an option
    argv += [f"--limit={play.limit}"] if play.limit is not None else []
    for name, values in (("--tags", play.tags), ("--skip-tags", play.skip_tags)):
        if values:
            argv.append(f"{name}={','.join(values)}")
    argv += [f"--extra-vars=@{variables_file}"] if variables_file is not None else []
    argv += [f"--extra-vars={value}" for value in play.extra_vars]
    argv += [f"--vault-id={value}" for value in play.vault_ids]
    argv += [f"--vault-password-file={value}" for value in play.vault_password_files]
    for wanted, option in (
        (play.check, "--check"),
        (play.diff, "--diff"),
        (play.become, "--become"),
        (play.become_password is not None, "--ask-become-pass"),
        (play.verbosity > 0, "-" + "v" * play.verbosity),
    ):
        if wanted:
            argv.append(option)
    argv += [f"--user={play.user}"] if play.user is not None else []
    argv += [f"--private-key={play.private_key}"] if play.private_key is not None else []
    return argv


def environment(private: Path, control_dir: Path) -> dict[str, str]:
    """Return Ansible's settings for a run; they stand above any ansible.cfg."""
    collections = os.pathsep.join(
        filter(None, (str(content.collections_path()), os.environ.get("ANSIBLE_COLLECTIONS_PATH")))
    )
    return {
        "ANSIBLE_COLLECTIONS_PATH": collections,
        "ANSIBLE_DEPRECATION_WARNINGS": "False",
        "ANSIBLE_DISPLAY_ARGS_TO_STDOUT": "False",
        "ANSIBLE_FORCE_COLOR": "False",
        "ANSIBLE_GATHERING": "explicit",
        "ANSIBLE_HOST_KEY_CHECKING": "True",  # ansible-runner would switch it off
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FATAL": "True",
        "ANSIBLE_LOCAL_TEMP": str(private / "tmp"),
        "ANSIBLE_LOCALHOST_WARNING": "False",
        "ANSIBLE_NOCOLOR": "True",
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_PYTHON_INTERPRETER": os.environ.get("ANSIBLE_PYTHON_INTERPRETER", "/usr/bin/python3"),
        "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=60s",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(control_dir),
        "ANSIBLE_STDOUT_CALLBACK": "default",
        "MAX_EVENT_RES": _LARGEST_RESULT,
        "PATH": os.pathsep.join(
            (str(Path(ansible_program("ansible-playbook")).parent), os.environ.get("PATH", os.defpath))
        ),
    }


def known_tags(playbook: Path) -> tuple[str, ...]:
    """Return the tags that the playbook knows, by asking Ansible.

    Raises:
        ConfigError: the playbook cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="clusterctl-") as folder:
        done = subprocess.run(
            [ansible_program("ansible-playbook"), "-i", "localhost,", "--list-tags", str(playbook)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environment(Path(folder), Path(folder))},
        )
    if done.returncode != 0:
        raise ConfigError(f"The playbook {playbook} cannot be read: {_first_complaint(done.stderr)}")
    found = {
        tag.strip()
        for line in done.stdout.splitlines()
        if (match := re.search(r"TASK TAGS: \[(.*)\]", line))
        for tag in match[1].split(",")
    }
    return tuple(sorted(found - {""}))


def _first_complaint(text: str) -> str:
    for line in text.splitlines():
        if match := _COMPLAINT.match(line.strip()):
            return match["text"]
    return text.strip()[:400]


def run(play: Play, private: Path, log: Path, on_event: Callable[[Event], None], cancel: Cancel) -> End:
    """Run a playbook to its end, or until ``cancel`` is requested.

    Args:
        play: what to run.
        private: a folder (mode 0700) for ansible-runner's own files, gone again afterwards.
        log: where Ansible's output is kept.
        on_event: hears every event, in order, in this thread; it must be quick.
        cancel: the way to stop it.
    """
    import ansible_runner  # noqa: PLC0415 - 60 ms that a run with nothing to do need not pay

    translator = _Translator(on_event, keep_diff=play.diff)
    with ssh.control_folder() as control_dir:
        stop = _Stop(cancel, mark=str(private), control_dir=control_dir)
        passwords = {}
        if play.become_password is not None:
            passwords[r"^(?:BECOME|SUDO)[^:\n]* password[^:\n]*:\s*?$"] = play.become_password
        for label, password in play.vault_passwords.items():
            passwords[rf"^Vault password \({re.escape(label)}\):\s*?$"] = password
        rc: int | None = None
        variables_file = private / "variables.json" if play.variables else None
        if variables_file is not None:  # a file, for the list of a thousand hosts is no argument
            variables_file.write_text(json.dumps(play.variables), encoding="utf-8")
        try:
            result = ansible_runner.run(
                private_data_dir=str(private),
                project_dir=str(Path.cwd()),  # relative paths among the options mean the user's folder
                ident="run",
                playbook=str(play.playbook),
                cmdline=shlex.join(arguments(play, variables_file)),
                envvars=environment(private, control_dir),
                passwords=passwords or None,
                settings={"pexpect_timeout": _POLL_S},
                fact_cache_type="memory",
                suppress_env_files=True,
                quiet=True,
                event_handler=translator.handle,
                cancel_callback=stop.poll,
            )
            rc = result.rc
        except Exception:
            # A cancelled child leaves pexpect with an open pty; without a cancel it is a defect.
            if not cancel.requested:
                raise
        finally:
            stop.verify()
            _keep_log(private, log)
            shutil.rmtree(private, ignore_errors=True)
    if cancel.requested:
        status: Literal["successful", "failed", "canceled"] = "canceled"
    else:
        status = "successful" if rc == 0 else "failed"
    on_event(Finished(at=time.time(), status=status, rc=254 if rc is None else rc))
    return End(
        status,
        254 if rc is None else rc,
        tuple(translator.complaints),
        failed=frozenset(translator.failed),
        unreachable=frozenset(translator.unreachable),
    )


def _keep_log(private: Path, log: Path) -> None:
    """Append Ansible's output to the run's log; the rest of the folder (environment, raw results) is not kept."""
    stdout = private / "artifacts" / "run" / "stdout"
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "wb") as target, stdout.open("rb") as source:
            shutil.copyfileobj(source, target)


class _Stop:
    """Carries out a cancel request, and makes sure that nothing of the run outlives it."""

    def __init__(self, cancel: Cancel, mark: str, control_dir: Path) -> None:
        self._cancel = cancel
        self._mark = mark.encode()
        self._control_dir = str(control_dir).encode()
        self._asked_at: float | None = None

    def poll(self) -> bool:
        """Called by ansible-runner every 0.2 s; True has it kill the process group."""
        if not self._cancel.requested:
            return False
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            for pid in _children(os.getpid()):
                if self._is_ours(pid):
                    _signal(pid, signal.SIGTERM)
            return False
        hurried = self._cancel.requests > 1
        return hurried or time.monotonic() - self._asked_at > _GRACE_S

    def verify(self) -> None:
        """Wait for the rest of the run to end, then end it."""
        if not self._cancel.requested:
            return
        for number, patience_s in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 2.0)):
            deadline = time.monotonic() + patience_s
            left = self._left()
            for pid in left:
                _signal(pid, number)
            while left and time.monotonic() < deadline:
                time.sleep(0.05)
                left = self._left()
            if not left:
                return

    def _left(self) -> list[int]:
        return [pid for pid in _processes() if pid != os.getpid() and self._is_ours(pid)]

    def _is_ours(self, pid: int) -> bool:
        """Whether a process carries the run's mark: the private folder in its environment, or a socket of ours."""
        process = Path("/proc") / str(pid)
        try:
            if (process / "stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z":
                return False
            return (
                self._mark in (process / "environ").read_bytes()
                or self._control_dir in (process / "cmdline").read_bytes()
            )
        except OSError:  # it ended meanwhile, or is another user's
            return False


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _children(parent: int) -> list[int]:
    found = []
    for pid in _processes():
        with contextlib.suppress(OSError, IndexError, ValueError):
            if int((Path("/proc") / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1]) == parent:
                found.append(pid)
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


class _Translator:
    """Makes typed events of ansible-runner's."""

    def __init__(self, on_event: Callable[[Event], None], *, keep_diff: bool) -> None:
        self._on_event = on_event
        self._keep_diff = keep_diff
        self.complaints: list[str] = []
        self.failed: set[str] = set()
        self.unreachable: set[str] = set()

    def handle(self, raw: dict[str, Any]) -> bool:
        """Take one event; True keeps ansible-runner's own bookkeeping whole."""
        event = translate(raw, keep_diff=self._keep_diff)
        if event is not None:
            self._on_event(event)
        if isinstance(event, HostResult) and event.outcome == "failed":
            self.failed.add(event.host)
        elif isinstance(event, HostResult) and event.outcome == "unreachable":
            self.unreachable.add(event.host)
        elif raw.get("event") == "playbook_on_stats":
            stats = raw.get("event_data") or {}
            self.failed = set(stats.get("failures") or {})  # Ansible's own count leaves out what was rescued
            self.unreachable = set(stats.get("dark") or {})
        elif raw.get("event") in _LOOSE_OUTPUT:
            match = _COMPLAINT.match(str(raw.get("stdout", "")).strip())
            if match and len(self.complaints) < _MOST_COMPLAINTS:
                self.complaints.append(match["text"].partition("\n\nTraceback")[0].strip())
        return True


def translate(raw: Mapping[str, Any], *, keep_diff: bool = False) -> Event | None:
    """Return the typed event of one of ansible-runner's, None for those that say nothing to us."""
    kind = raw.get("event")
    at = _when(raw)
    data = raw.get("event_data") or {}
    stage = _stage(data)
    task = str(data.get("task") or data.get("name") or "")
    if kind == "playbook_on_task_start":
        return StageStarted(at=at, stage=stage, task=task)
    if kind == "runner_on_start":
        return TaskStartedOnHost(at=at, host=str(data.get("host")), stage=stage, task=task)
    if kind in _HOST_EVENTS:
        return _host_result(at, _HOST_EVENTS[kind], stage, task, data, keep_diff=keep_diff)
    text = str(raw.get("stdout", "")).strip()
    if text.startswith(NOTE_MARK):
        host, _, words = text.removeprefix(NOTE_MARK).partition("|")
        return Note(at=at, host=host, text=words)
    return None


def _host_result(
    at: float, outcome: Outcome, stage: str, task: str, data: Mapping[str, Any], *, keep_diff: bool
) -> HostResult:
    result = data.get("res") or {}
    if outcome == "ok" and result.get("changed"):
        outcome = "changed"
    if outcome == "failed" and data.get("ignore_errors"):
        outcome = "ok"
    elsewhere = bool(result.get("_ansible_delegated_vars"))  # what a task saw on another machine is not this host's
    return HostResult(
        at=at,
        host=str(data.get("host")),
        stage=stage,
        task=task,
        outcome=outcome,
        seconds=float(data.get("duration") or 0.0),
        message=_message(result) if outcome in {"failed", "unreachable"} else str(result.get("msg") or "")[:400],
        changes=tuple(str(item) for item in _list(result, "changes")),
        watch=() if elsewhere else tuple(item for item in _list(result, "watch") if isinstance(item, dict)),
        diff=_diff(result) if keep_diff else "",  # content of files has no place in the record unless asked for
        data={key: value for key, value in result.items() if key in _KEPT_DATA},
    )


def _list(result: Mapping[str, Any], key: str) -> list[Any]:
    """Return a list of the result and of the items of its loop."""
    found = list(result.get(key) or []) if isinstance(result.get(key), list) else []
    for item in result.get("results") or []:
        if isinstance(item, dict) and isinstance(item.get(key), list):
            found += item[key]
    return found


def _message(result: Mapping[str, Any]) -> str:
    """Return why a task failed; of a loop, why its items failed."""
    words = [
        str(item.get("msg", ""))
        for item in result.get("results") or []
        if isinstance(item, dict) and item.get("failed")
    ]
    text = "; ".join(word for word in words if word) or str(result.get("msg") or result.get("censored") or "")
    stderr = str(result.get("stderr") or result.get("module_stderr") or "").strip()
    if stderr and stderr not in text:
        text = f"{text}: {stderr[-1500:]}"
    return text.strip() or "it failed without a message"


def _diff(result: Mapping[str, Any]) -> str:
    import difflib  # noqa: PLC0415 - only for results with a diff

    given = result.get("diff")
    parts = []
    for entry in given if isinstance(given, list) else [given] if isinstance(given, dict) else []:
        if "prepared" in entry:
            parts.append(str(entry["prepared"]))
        elif "before" in entry or "after" in entry:
            before, after = (_lines(entry.get(side)) for side in ("before", "after"))
            old, new = (str(entry.get(f"{side}_header") or entry.get("path") or side) for side in ("before", "after"))
            parts.append("".join(difflib.unified_diff(before, after, old, new)))
    return "\n".join(part for part in parts if part)


def _lines(value: Any) -> list[str]:
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return [line if line.endswith("\n") else line + "\n" for line in text.splitlines(keepends=True)]


def _stage(data: Mapping[str, Any]) -> str:
    return str(data.get("role") or data.get("play") or "").rpartition(".")[2]


def _when(raw: Mapping[str, Any]) -> float:
    try:
        return datetime.fromisoformat(str(raw["created"])).timestamp()
    except (KeyError, ValueError):
        return time.time()
