"""Run a playbook: arguments in, typed events out.

What ansible-runner leaves open is closed here. A cancelled run ends ``ansible-playbook`` itself first, and then each
process that carries the run's mark in its environment or its arguments. From core 2.19 on the workers live in sessions
of their own, out of reach of a signal to the group.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clusterctl.inventory import ansible_call, ansible_settings
from clusterctl.inventory.ansible_call import ansible_program, for_ansible
from clusterctl.model.hosts import InventoryOptions
from clusterctl.model.run_record import Finished, Problem
from clusterctl.provisioning.ansible_events import Translator, complaints_in, first_complaint
from clusterctl.remote import reach
from clusterctl.state import processes
from clusterctl.support import content, held_files
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from clusterctl.model.hosts import Inventory, InventorySources
    from clusterctl.model.probe import ProbeFailure
    from clusterctl.model.run_record import Event


DEFAULT_FORKS = 32
NO_OPTIONS = InventoryOptions()
_GRACE_S = 8.0  # for ansible-playbook to end its workers; measured 0.5 s, a loaded machine takes longer
_NOTICE_SILENCE = shlex.join(reach.NOTICE_SILENCE)
_SHARING = "-o ControlMaster=auto -o ControlPersist=60s"
_NOT_INTERACTIVE = shlex.join(reach.NOT_INTERACTIVE)  # a terminal would echo a module that Ansible sends
# What plays of the collection depend on, by the name in ansible.cfg: the variable, and its value here.
_PINNED = {
    "any_errors_fatal": ("ANSIBLE_ANY_ERRORS_FATAL", "False"),
    "ask_pass": ("ANSIBLE_ASK_PASS", "False"),  # nobody would answer; clusterctl itself asks, with -K
    "ask_vault_pass": ("ANSIBLE_ASK_VAULT_PASS", "False"),
    "become_ask_pass": ("ANSIBLE_BECOME_ASK_PASS", "False"),
    "enable_task_debugger": ("ANSIBLE_ENABLE_TASK_DEBUGGER", "False"),
    "force_handlers": ("ANSIBLE_FORCE_HANDLERS", "False"),
    "no_log": ("ANSIBLE_NO_LOG", "False"),  # results decide what is told of a host
    "run": ("ANSIBLE_RUN_TAGS", ""),  # Ansible adds those of --tags to it
    "skip": ("ANSIBLE_SKIP_TAGS", ""),
    "strategy": ("ANSIBLE_STRATEGY", "linear"),
    "task_timeout": ("ANSIBLE_TASK_TIMEOUT", "43200"),  # seconds: a compile takes long; plays without any have less
}
# Settings of the way to nodes. A second controller gets them, and they count more than its own ansible.cfg.
_TRAVELLING = {
    "become": "ANSIBLE_BECOME",
    "become_exe": "ANSIBLE_BECOME_EXE",
    "become_method": "ANSIBLE_BECOME_METHOD",
    "become_user": "ANSIBLE_BECOME_USER",
    "connection": "ANSIBLE_TRANSPORT",
    "port": "ANSIBLE_REMOTE_PORT",
    "private_key_file": "ANSIBLE_PRIVATE_KEY_FILE",
    "python_interpreter": "ANSIBLE_PYTHON_INTERPRETER",
    "remote_user": "ANSIBLE_REMOTE_USER",
    "ssh_args": "ANSIBLE_SSH_ARGS",
    "ssh_common_args": "ANSIBLE_SSH_COMMON_ARGS",
    "ssh_executable": "ANSIBLE_SSH_EXECUTABLE",
    "ssh_extra_args": "ANSIBLE_SSH_EXTRA_ARGS",
}
# Ansible's own default. A distribution's package manager may need a module of community.general.
_COLLECTIONS = "~/.ansible/collections:/usr/share/ansible/collections"
KILLED = 254  # the code of an ansible-playbook that a signal ended, or whose end is not known
LOST_EVENTS = (
    "Ansible could not write the events of the run, so its end is not known; make room on the controller's disk."
)


@dataclass(frozen=True)
class Play:
    """Everything that makes one ``ansible-playbook`` command."""

    playbook: Path
    inventory: InventorySources
    limit: str | None = None
    tags: tuple[str, ...] = ()
    skip_tags: tuple[str, ...] = ()
    options: InventoryOptions = NO_OPTIONS  # the user's
    check: bool = False
    diff: bool = False
    verbosity: int = 0
    forks: int = DEFAULT_FORKS
    retries: int = 0  # how often ssh tries again to connect
    variables: Mapping[str, Any] = field(default_factory=dict)  # of the wrapper itself; no secrets
    become_password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class End:
    """How a playbook ended.

    ``complaints`` are Ansible's own errors outside of any task; ``failed`` and ``unreachable`` name the hosts that
    ended so. Failures recovered by a rescue block are not counted.
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


def arguments(play: Play, variables: Sequence[str] = ()) -> list[str]:
    """Return the arguments of ``ansible-playbook``, without the program, the playbook and any password.

    ``variables`` are the options that name the files of variables; the last one stands above the others.
    """
    options = play.options
    argv = [f"--inventory={word}" for word in for_ansible(play.inventory)]  # with '=', no value is taken for an option
    argv.append(f"--forks={play.forks}")
    argv += [f"--limit={play.limit}"] if play.limit is not None else []
    argv.append(f"--tags={','.join(play.tags or ('all',))}")
    argv += [f"--skip-tags={','.join(play.skip_tags)}"] if play.skip_tags else []
    argv += variables
    argv += [f"--vault-id={value}" for value in options.vault_ids]
    argv += [f"--vault-password-file={value}" for value in options.vault_password_files]
    for wanted, option in (
        (play.check, "--check"),
        (play.diff, "--diff"),
        (options.become, "--become"),
        (play.become_password is not None, "--ask-become-pass"),
        (play.verbosity > 0, "-" + "v" * play.verbosity),
    ):
        if wanted:
            argv.append(option)
    argv += [f"--user={options.user}"] if options.user is not None else []
    argv += [f"--private-key={options.private_key}"] if options.private_key is not None else []
    return argv


def travelling() -> dict[str, str]:
    """Return what this controller's ansible.cfg and environment say of the way to nodes, for a second controller."""
    given = ansible_settings.effective().given
    return {_TRAVELLING[name]: _shown(one.value) for name, one in given.items() if name in _TRAVELLING}


def of_first(told: object) -> dict[str, str]:
    """Return what a first controller said by :func:`travelling`, and no other variable."""
    given = told if isinstance(told, dict) else {}
    return {name: str(given[name]) for name in _TRAVELLING.values() if name in given}


def environment(
    private: Path, control_dir: Path, retries: int = 0, of_another: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return Ansible's settings for a run; they stand above any ansible.cfg.

    ``retries`` is how often ssh tries again to connect, where the user's environment does not say; 0 leaves it as it
    is. ``of_another`` is, on a second controller, what the first one said by :func:`travelling`.
    """
    first = dict(of_another or {})
    interpreter = first.pop("ANSIBLE_PYTHON_INTERPRETER", "")
    again = {"ANSIBLE_SSH_RETRIES": os.environ.get("ANSIBLE_SSH_RETRIES", str(retries))} if retries else {}
    given = ansible_settings.effective()
    others = os.environ.get("ANSIBLE_COLLECTIONS_PATH") or _COLLECTIONS
    collections = os.pathsep.join((str(content.collections_path()), others))
    ssh_args = first.pop("ANSIBLE_SSH_ARGS", None) or given.get("ssh_args") or ""
    return {
        **again,
        **first,
        **dict(_PINNED.values()),
        "ANSIBLE_CALLBACK_PLUGINS": os.pathsep.join(
            filter(None, (os.environ.get("ANSIBLE_CALLBACK_PLUGINS"), str(content.root() / "plugins" / "callback")))
        ),
        "ANSIBLE_COLLECTIONS_PATH": collections,
        "ANSIBLE_DEPRECATION_WARNINGS": "False",
        "ANSIBLE_DISPLAY_ARGS_TO_STDOUT": "False",
        "ANSIBLE_FORCE_COLOR": "False",
        "ANSIBLE_GATHERING": "explicit",
        "ANSIBLE_HOST_KEY_CHECKING": "True",  # ansible-runner would switch it off
        "ANSIBLE_INJECT_FACT_VARS": "False",  # a fact of a node is no variable of a role
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FATAL": "True",
        "ANSIBLE_LOCAL_TEMP": str(private / "tmp"),
        "ANSIBLE_LOCALHOST_WARNING": "False",
        "ANSIBLE_NOCOLOR": "True",
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_PYTHON_INTERPRETER": ansible_settings.interpreter(interpreter) if interpreter else given.interpreter,
        # Of two values, ssh takes the first.
        "ANSIBLE_SSH_ARGS": f"{ssh_args} {_SHARING} {_NOTICE_SILENCE} {_NOT_INTERACTIVE}".strip(),
        "ANSIBLE_SSH_CONTROL_PATH": str(given.get("control_path") or reach.CONTROL_PATH),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(control_dir),
        "ANSIBLE_STDOUT_CALLBACK": "default",
        "CLUSTERCTL_EVENTS": str(private / EVENTS),
        "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",  # macOS ends Ansible's forks without it; Linux ignores it
        "PATH": os.pathsep.join(
            (str(Path(ansible_program("ansible-playbook")).parent), os.environ.get("PATH", os.defpath))
        ),
    }


def overridden() -> tuple[str, ...]:
    """Return a sentence for each of the user's settings of Ansible that a run takes back: its plays need another."""
    given = ansible_settings.effective().given
    return tuple(
        f"{name} = {_shown(given[name].value)} in {given[name].place} does not count in this run; its plays need "
        f"{value or 'none'}."
        for name, (_, value) in _PINNED.items()
        if name in given and _shown(given[name].value) not in {value, ""}
    )


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def known_tags(playbook: Path) -> tuple[str, ...]:
    """Return the tags that the playbook knows, by asking Ansible."""
    with held_files.folder() as folder:
        done = subprocess.run(
            [ansible_program("ansible-playbook"), "-i", "localhost,", "--tags=all", "--list-tags", str(playbook)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environment(folder, folder)},
        )
    if done.returncode != 0:
        raise ConfigError(f"The playbook {playbook} cannot be read: {first_complaint(done.stderr)}")
    found = {
        tag.strip()
        for line in done.stdout.splitlines()
        if (match := re.search(r"TASK TAGS: \[(.*)\]", line))
        for tag in match[1].split(",")
    }
    return tuple(sorted(found - {""}))


def run(
    play: Play,
    private: Path,
    log: Path,
    on_event: Callable[[Event], None],
    cancel: Cancel,
    connections: Path | None = None,
) -> End:
    """Run a playbook to its end, or until ``cancel`` is requested.

    The folder ``private`` (mode 0700) is gone again afterwards. ``on_event`` hears every event, in order, in this
    thread; it must be quick. ``connections`` is the folder of connections that it shares with others; None is for
    connections of its own.
    """
    translator = Translator(on_event, keep_diff=play.diff)
    complaints: tuple[str, ...] = ()
    with contextlib.nullcontext(connections) if connections else reach.control_folder() as control_dir:
        stop = Stop(cancel, mark=str(private), control_dir=control_dir)
        rc: int | None = None
        try:
            variables = ansible_call.in_folder(values_of(play), private)
            call = Call(str(play.playbook), shlex.join(arguments(play, variables)), passwords_of(play))
            rc = execute(call, private, environment(private, control_dir, play.retries), translator.handle, stop.poll)
            if not translator.is_complete:
                stop.end()  # workers outlive an ansible-playbook that was killed
        except Exception:
            # A cancelled child leaves pexpect with an open pty; without a cancel it is a defect.
            if not cancel.requested:
                stop.end()  # the workers must not go on unheard
                raise
        finally:
            stop.verify()
            complaints = keep_log(private, log)
            shutil.rmtree(private, ignore_errors=True)
    code = KILLED if rc is None else rc
    if cancel.requested:
        status: Literal["successful", "failed", "canceled"] = "canceled"
    elif code == 0 and not translator.is_complete:
        status, code, complaints = "failed", KILLED, (LOST_EVENTS,)
    else:
        status = "successful" if code == 0 else "failed"
    on_event(Finished(at=time.time(), status=status, rc=code))
    return End(
        status, code, complaints, failed=frozenset(translator.failed), unreachable=frozenset(translator.unreachable)
    )


def passwords_of(play: Play) -> dict[str, str]:
    """Return the passwords by the pattern of the prompt at which Ansible asks for them."""
    found = {}
    if play.become_password is not None:
        found[r"^(?:BECOME|SUDO)[^:\n]* password[^:\n]*:\s*?$"] = play.become_password
    for label, password in play.options.vault_passwords.items():
        found[rf"^Vault password \({re.escape(label)}\):\s*?$"] = password
    return found


def values_of(play: Play) -> list[str]:
    """Return the values of extra variables; the user's own stand above those of the wrapper."""
    return [*([ansible_call.data_text(play.variables)] if play.variables else []), *play.options.extra_vars]


class Stop:
    """Carries out a cancel request, and makes sure that nothing of the run outlives it."""

    def __init__(self, cancel: Cancel, mark: str, control_dir: Path) -> None:
        """Watch ``cancel``; ``mark`` and ``control_dir`` are what the processes of the run carry."""
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
            for pid in processes.children(os.getpid()):
                if self._is_ours(pid):
                    processes.send(pid, signal.SIGTERM)
            return False
        hurried = self._cancel.requests > 1
        return hurried or time.monotonic() - self._asked_at > _GRACE_S

    def verify(self) -> None:
        """Wait for the rest of the run to end, then end it."""
        if self._cancel.requested:
            self.end()

    def end(self) -> None:
        """End every process of the run."""
        processes.end_all(self._is_ours)

    def _is_ours(self, pid: int) -> bool:
        """Whether a process carries the run's mark: the private folder in its environment, or a socket of ours."""
        return processes.carries(pid, self._mark, self._control_dir)


# --- Refuse a provisioning run before it changes anything: unreadable files, unknown tags, hosts that do not answer ---

_UNREACHABLE_KINDS = frozenset({"unreachable", "refused", "host_key", "timeout"})


def check_files(cluster: Inventory, options: InventoryOptions) -> None:
    """Refuse a key or password file that cannot be read, before ssh or Ansible says it once per host."""
    keys = {host.private_key: host.name for host in cluster.selected_hosts if host.private_key and host.by_ssh}
    for key, name in keys.items():
        whose = "--private-key" if options.private_key else f"ansible_ssh_private_key_file of {name}"
        _readable(Path(key), whose)


def _readable(path: Path, whose: str) -> None:
    try:
        with path.expanduser().open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{whose} names {path}, which cannot be read: {error.strerror}.") from None


def check_tags(wanted: Sequence[str]) -> None:
    """Refuse a tag that no task has: Ansible would do nothing and call it a success."""
    special = {"all", "always", "never", "tagged", "untagged"}
    if not set(wanted) - special:
        return
    known = known_tags(content.playbook("provision"))
    for tag in wanted:
        if tag not in special and tag not in known:
            raise ConfigError(f"No task has the tag '{tag}'; known tags are {', '.join(known)}.")


def extra_vars_content(value: str) -> str:
    """Return a value, or the digest of the file that it names."""
    if not value.startswith("@"):
        return value
    try:
        return hashlib.sha256(Path(value[1:]).expanduser().read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"--extra-vars names {value[1:]}, which cannot be read: {error.strerror}.") from None


def connection_problem(failure: ProbeFailure) -> Problem:
    """Return a host that could not be looked at as a line of the problem table."""
    return Problem(
        host=failure.host,
        subject=failure.kind,
        problem=failure.message,
        kind="unreachable" if failure.kind in _UNREACHABLE_KINDS else "host",
    )


# --- Start ansible-playbook under ansible-runner, which this module alone imports -------------------------------------
#
# ansible-runner finds its events in the text of the screen, which also holds what nodes say. They are not used: the
# collection's callback ``run_events`` writes events into a file of the run.

EVENTS = "events.jsonl"  # in the folder of the run
POLL_S = 0.2
_BLOCK = 1 << 20
_MOST_COMPLAINTS = 1 << 20  # characters of Ansible's output in which its errors are looked for
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # what a terminal obeys, but for tab and newline


@dataclass(frozen=True)
class Call:
    """What ansible-runner starts: the playbook, the options of ansible-playbook as for a shell, and the passwords."""

    playbook: str
    words: str
    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)  # by the pattern of the prompt


def execute(
    call: Call,
    private: Path,
    settings: Mapping[str, str],
    hear: Callable[[dict[str, Any]], object],
    poll: Callable[[], bool],
    *,
    project: Path | None = None,
) -> int:
    """Start ansible-playbook under ansible-runner, and wait for its end.

    ``hear`` hears each event that the callback ``run_events`` writes. ``poll`` says whether the play is to end at once;
    it is called about every 0.2 s. ``project`` is the folder in which the play runs, by default the user's: relative
    paths among the options mean it.

    Returns:
        The exit code; 254 where a signal ended it.
    """
    import ansible_runner  # noqa: PLC0415 - 60 ms that a run with nothing to do need not pay

    channel = _Channel(private / EVENTS, hear)

    class Runner(ansible_runner.Runner):  # type: ignore[misc] # ansible-runner carries no types
        def event_callback(self, event_data: object) -> None:  # noqa: ARG002 - ansible-runner's signature
            """Pass over what looks like an event in the text of the screen."""
            channel.drain()

    def look() -> bool:
        channel.drain()
        return poll()

    config = ansible_runner.RunnerConfig(
        private_data_dir=str(private),
        project_dir=str(project or Path.cwd()),
        ident="run",
        playbook=call.playbook,
        cmdline=call.words,
        envvars=dict(settings),
        passwords=dict(call.passwords) or None,
        fact_cache_type="memory",
        suppress_env_files=True,
        quiet=True,
    )
    config.prepare()
    config.pexpect_timeout = POLL_S
    config.env["ANSIBLE_STDOUT_CALLBACK"] = "default"  # ansible-runner's own would write its events into the text
    config.env["ANSIBLE_CALLBACK_PLUGINS"] = settings["ANSIBLE_CALLBACK_PLUGINS"]  # nor is it loaded
    runner = Runner(config, cancel_callback=look)
    runner.run()
    channel.drain()
    return KILLED if runner.rc is None else int(runner.rc)


class _Channel:
    """The file into which the callback ``run_events`` writes the events, read while it grows."""

    def __init__(self, path: Path, hear: Callable[[dict[str, Any]], object]) -> None:
        """Make the file; only its owner can read it."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        self._stream = os.fdopen(descriptor, "rb", buffering=0)
        self._hear = hear
        self._rest = b""

    def drain(self) -> None:
        """Pass on the events that are whole; a broken line is left out, and the end of the run shows the loss."""
        while block := self._stream.read(_BLOCK):
            *lines, self._rest = (self._rest + block).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError, RecursionError):
                    self._hear(json.loads(line))


def keep_log(private: Path, log: Path) -> tuple[str, ...]:
    """Append Ansible's output to the run's log, without control characters, and return the errors in it.

    The rest of the folder (environment, raw results) is not kept.
    """
    stdout = private / "artifacts" / "run" / "stdout"
    beginning = ""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may lie across two blocks
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "wb") as target, stdout.open("rb") as source:
            while block := source.read(_BLOCK):
                plain = _CONTROL.sub("", decoder.decode(block))
                target.write(plain.encode())
                beginning += plain[: _MOST_COMPLAINTS - len(beginning)]
    return complaints_in(beginning)
