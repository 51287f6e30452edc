"""The part of a run that another controller plays: what it gets for it, and how its part goes.

Everything goes through ssh. What travels may hold secrets: it lies in private folders, which go with the part.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shlex
import shutil
import signal
import subprocess
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from clusterctl.inventory import ansible_call
from clusterctl.model.hosts import InventorySources
from clusterctl.model.run_record import HostResult
from clusterctl.provisioning import playbook, runner_stream
from clusterctl.provisioning.ansible_events import Translator
from clusterctl.provisioning.worker import BEGINS, HEARTBEAT_S, PACK, RECORD
from clusterctl.remote import python
from clusterctl.state import paths
from clusterctl.support import held_files
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from clusterctl.model.hosts import InventoryOptions
    from clusterctl.model.run_record import Event
    from clusterctl.provisioning.controllers import Worker

STAGE = "worker"
OWN_CACHE = {"cluster_cache": ""}  # this controller gives a worker what it needs, so it asks no shared cache
_END_S = 60
_SILENCE_S = 120.0  # a worker tells each second that it lives
_LOOK_S = 0.5
_SILENT = f"took nothing and said nothing for {_SILENCE_S:g} s"
_MOST_ERRORS = 1 << 16
_MOST_LINES, _MOST_LINE = 4096, 1 << 13  # of login scripts
_PRIVATE = 0o600
_INVENTORY = "inventory.yml"


class BrokenOffError(Exception):
    """A worker could not play its part to the end; the text is a clause."""


class _Patience:
    """Ends the connection to a worker that keeps this controller waiting too long, or on demand.

    Attributes:
        is_lost: whether it was ended for its silence.
    """

    def __init__(self, process: subprocess.Popen[bytes], given_up: Callable[[], bool]) -> None:
        """Begin to watch; ``given_up`` says whether to end it at once."""
        self._process, self._given_up = process, given_up
        self._since = time.monotonic()
        self.is_lost = False
        threading.Thread(target=self._watch, daemon=True).start()

    def wait(self) -> None:
        """Wait for the worker from now on."""
        self._since = time.monotonic()

    def _watch(self) -> None:
        while self._process.poll() is None:
            self.is_lost = time.monotonic() - self._since > _SILENCE_S
            if self.is_lost or self._given_up():
                self.end()
                return
            time.sleep(_LOOK_S)

    def end(self) -> None:
        """End the connection at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def on(self, stream: IO[bytes] | None) -> IO[bytes]:
        """Return a pipe whose reads and writes are waited for."""
        return _Awaited(python.pipe(stream), self)  # type: ignore[return-value] # has all that is used here

    def timed(self, act: Callable[[Any], Any], given: Any) -> Any:
        """Read or write; what this controller does meanwhile is not the worker's silence."""
        self.wait()
        try:
            return act(given)
        finally:
            self._since = math.inf


class _Awaited:
    """A pipe of a worker."""

    def __init__(self, stream: IO[bytes], patience: _Patience) -> None:
        self._stream, self._patience = stream, patience

    def readline(self, most: int) -> bytes:
        return bytes(self._patience.timed(self._stream.readline, most))

    def read(self, most: int) -> bytes:
        return bytes(self._patience.timed(self._stream.read, most))

    def write(self, data: bytes) -> int:
        return int(self._patience.timed(self._stream.write, data))


@dataclass(frozen=True)
class WorkerPart:
    """What a worker plays."""

    worker: Worker  # who plays
    play: playbook.Play  # what this controller would play itself
    hosts: tuple[str, ...]  # the hosts of the play
    inventory: str  # the text of the inventory, as YAML
    trees: Collection[str]  # the folders of the artifacts that the nodes get


def inventory_text(sources: InventorySources, options: InventoryOptions) -> str:
    """Return an inventory as one text of YAML; what an Ansible vault encrypts inside of a file stays encrypted.

    Raises:
        ConfigError: ansible-inventory fails.
    """
    program = ansible_call.ansible_program("ansible-inventory")
    done = ansible_call.call([program, *ansible_call.arguments(sources, options), "--yaml"], options)
    if done.returncode != 0:
        raise ConfigError(f"ansible-inventory cannot write {sources} as YAML: {python.last_line(done.stderr)}")
    return done.stdout


def play_all(
    own: Callable[[Callable[[Event], None], playbook.Cancel], playbook.End] | None,
    parts: Sequence[WorkerPart],
    log: Path,
    hear: Callable[[Event], None],
    cancel: playbook.Cancel,
) -> list[playbook.End]:
    """Play all parts at the same time, this controller's own one in this thread; returns how each ended.

    ``own`` plays this controller's part, None where it has none. ``hear`` hears the events of all parts, one at a time.
    """
    turn = threading.Lock()

    def hear_alone(event: Event) -> None:
        with turn:
            hear(event)

    with ThreadPoolExecutor(max(1, len(parts))) as pool:
        others = [pool.submit(play, part, log, hear_alone, cancel) for part in parts]
        try:
            ends = [own(hear_alone, cancel)] if own is not None else []
        except BaseException:
            cancel.request()
            raise
        return [*ends, *(other.result() for other in others)]


def play(part: WorkerPart, log: Path, hear: Callable[[Event], None], cancel: playbook.Cancel) -> playbook.End:
    """Have a worker play its part; a worker that breaks off is told as a failure of each host that it left."""
    own, name = frozenset(part.hosts), part.worker.host.name

    def hear_own(event: Event) -> None:
        if getattr(event, "host", None) in {None, *own}:  # of other hosts, a worker knows nothing
            hear(event)

    def without_end(code: int, words: str) -> playbook.End:
        lost = own - translator.failed - translator.unreachable
        for host in sorted(lost):
            hear(HostResult(at=time.time(), host=host, stage=STAGE, task=STAGE, outcome="failed", message=words))
        failed, unreachable = own & (translator.failed | lost), own & translator.unreachable
        return playbook.End("failed", code, (words,), failed=failed, unreachable=unreachable)

    translator = Translator(hear_own, keep_diff=part.play.diff)
    try:
        give_cache(part.worker, part.trees, cancel)
        rc, complaints = _streamed(part, log, translator, cancel)
    except (BrokenOffError, OSError) as error:
        if cancel.requested:
            return playbook.End("canceled", playbook.KILLED)
        return without_end(2, f"The worker {name} {error}; run the same command again to go on.")
    if rc == 0 and not translator.is_complete and not cancel.requested:
        return without_end(playbook.KILLED, f"{name}: {playbook.LOST_EVENTS}")
    told = tuple(f"{name}: {text}" for text in complaints)
    return playbook.End(
        "canceled" if cancel.requested else "failed" if rc else "successful",
        2 if rc else 0,
        told,
        failed=own & translator.failed,
        unreachable=own & translator.unreachable,
    )


def give_cache(worker: Worker, trees: Collection[str], cancel: playbook.Cancel) -> None:
    """Send the packs of these trees, and the locks of wheels, that the worker's cache lacks.

    Raises:
        BrokenOffError: the worker did not take them.
    """
    cache = paths.cache_dir().value
    wanted = [f"artifacts/{tree}{ending}" for tree in sorted(trees) for ending in (PACK, RECORD)]  # the record last
    wanted += sorted(f"locks/{path.name}" for path in (cache / "locks").glob(f"*{RECORD}"))
    there = {name.removesuffix(RECORD) for name in worker.cached}
    missing = [cache / name for name in wanted if name.removesuffix(RECORD).removesuffix(PACK) not in there]
    if not missing:
        return
    said, errors = bytearray(), bytearray()
    with _started(worker.argv("take")) as process:
        patience = _Patience(process, lambda: cancel.requested)
        streams = ((process.stdout, said), (process.stderr, errors))
        threads = [threading.Thread(target=_drain, args=stream) for stream in streams]
        for thread in threads:
            thread.start()
        with contextlib.suppress(OSError), tarfile.open(fileobj=patience.on(process.stdin), mode="w|") as stream:
            for path in missing:
                if path.is_file():
                    stream.add(path, arcname=f"{path.parent.name}/{path.name}")
        patience.wait()
        with contextlib.suppress(OSError):
            python.pipe(process.stdin).close()
        for thread in threads:
            thread.join()
    if patience.is_lost:
        raise BrokenOffError(_SILENT)
    if python.last_answer(bytes(said), ("taken",)) is None:
        why = python.last_line(errors.decode("utf-8", "replace")) or "the connection broke off"
        raise BrokenOffError(f"could not take the artifacts of this controller ({why})")


def _streamed(
    part: WorkerPart, log: Path, translator: Translator, cancel: playbook.Cancel
) -> tuple[int | None, tuple[str, ...]]:
    """Transmit the play, and process its events to the end; returns Ansible's exit code, and the errors it wrote."""
    with held_files.folder() as folder:
        options = _project(part, folder / "project")
        passwords, settings = playbook.passwords_of(part.play), playbook.travelling()
        target = f"{part.worker.playbooks}/{part.play.playbook.name}"
        with _started(part.worker.argv("work", str(part.play.retries))) as process:
            done, errors = threading.Event(), bytearray()
            patience = _Patience(process, lambda: False)

            def write() -> None:
                pipe = python.pipe(process.stdin)
                with contextlib.suppress(OSError, ValueError):
                    runner_stream.transmit(folder, pipe, target, shlex.join(options), passwords, settings)
                    while not done.wait(HEARTBEAT_S) and not cancel.requested:
                        pipe.write(b"\n")
                        pipe.flush()
                with contextlib.suppress(OSError, ValueError):
                    pipe.close()  # the worker stops the play

            threads = [threading.Thread(target=write), threading.Thread(target=_drain, args=(process.stderr, errors))]
            for thread in threads:
                thread.start()
            try:
                there = _beginning(patience.on(process.stdout))
                received = runner_stream.receive(patience.on(process.stdout), folder, translator.handle)
                if received.explanation:  # it may go on writing, and nobody reads that
                    patience.end()
            except BrokenOffError:
                patience.end()
                raise
            finally:
                patience.wait()
                done.set()
                for thread in threads:
                    thread.join()
        complaints = playbook.keep_log(folder, log)
    if received.rc is not None or cancel.requested:
        return received.rc, complaints
    _end(part.worker, there)
    if patience.is_lost:
        raise BrokenOffError(_SILENT)
    said = "; ".join(filter(None, (received.explanation, python.last_line(errors.decode("utf-8", "replace")))))
    raise BrokenOffError(f"broke off in the middle of its part ({said or 'its process ended'})")


def _project(part: WorkerPart, project: Path) -> list[str]:
    """Write what the play needs into a private folder, and return the options that name it there."""
    project.mkdir(mode=0o700)
    _write(project / _INVENTORY, part.inventory)
    values = []
    for number, value in enumerate(playbook.values_of(part.play)):
        if ansible_call.is_file(value):
            shutil.copyfile(Path(value[1:]).expanduser(), project / f"given-{number}.yml")
            (project / f"given-{number}.yml").chmod(_PRIVATE)
            values.append(f"--extra-vars=@given-{number}.yml")
        else:
            values += [word.replace(f"@{project}/", "@") for word in _numbered(value, number, project)]
    # The keys of a certificate authority stay here; the nodes have met each other, so no part needs them.
    values += ["--extra-vars=ssh_mesh_trust=keys"]
    vaults = []
    options = part.play.options
    for number, given in enumerate((*options.vault_ids, *options.vault_password_files)):
        label, at, source = given.rpartition("@")
        if source.startswith("prompt"):
            vaults.append(f"--vault-id={given}")
            continue
        _write(project / f"vault-{number}", _vault_password(Path(source).expanduser()))
        vaults.append(
            f"--vault-id={label or 'default'}@vault-{number}" if at else f"--vault-password-file=vault-{number}"
        )
    bare = dataclasses.replace(options, vault_ids=(), vault_password_files=())
    play = dataclasses.replace(part.play, inventory=InventorySources(()), options=bare)
    return [f"--inventory={_INVENTORY}", *playbook.arguments(play, values), *vaults]


def _numbered(value: str, number: int, project: Path) -> list[str]:
    """Write one value of extra variables into a folder of its own, and return the option that names the file."""
    folder = project / f"variables-{number}"
    folder.mkdir(mode=0o700)
    return ansible_call.in_folder([value], folder)


def _vault_password(path: Path) -> str:
    if path.stat().st_mode & 0o111:
        raise BrokenOffError(f"cannot get the vault's password from the program {path}; give a file or LABEL@prompt")
    return path.read_text(encoding="utf-8")


def _write(path: Path, text: str) -> None:
    path.touch(_PRIVATE)
    path.write_text(text, encoding="utf-8")


def _started(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE  # a session of its own: Ctrl-C is for this process alone
    return subprocess.Popen(list(argv), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)


def _drain(stream: IO[bytes] | None, found: bytearray) -> None:
    while stream is not None and (block := stream.read1(_MOST_ERRORS)):  # type: ignore[attr-defined]
        found += block
        del found[:-_MOST_ERRORS]


def _beginning(stream: IO[bytes]) -> str:
    """Read what login scripts print, up to our line; returns the worker's folder, '' where the stream ends before."""
    for _ in range(_MOST_LINES):
        line = stream.readline(_MOST_LINE)
        if line.startswith(BEGINS):
            return line.removeprefix(BEGINS).decode("utf-8", "surrogateescape").strip()
        if not line:
            return ""
    raise BrokenOffError("does not begin its part: its login scripts print without an end")


def _end(worker: Worker, folder: str) -> None:
    """End what a worker left that broke off; one that cannot be reached stops by itself after a minute of silence."""
    if folder:
        python.ask(worker.argv("end"), f"{folder}\n".encode(), _END_S, ("ended",))
