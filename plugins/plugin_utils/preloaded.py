# SPDX-License-Identifier: GPL-3.0-or-later
"""Load Jinja's filters and tests in Ansible's main process, so that its workers have them from the start.

It also has Ansible keep what it would make anew in each run, skip tasks without a worker, and wait without using a
processor: while workers are at work, its main process looks a thousand times a second whether one of them has ended.

Ansible forks a worker for each task of each host. A worker that needs a filter loads all files of filters, and compiles
those of a collection anew. The main process imports an action before it forks workers for it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import hashlib
import marshal
import os
import shutil
import stat
import sys
import tempfile
import time
from contextvars import ContextVar
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from ansible import constants  # type: ignore[import-untyped]
from ansible.errors import AnsibleError  # type: ignore[import-untyped]
from ansible.plugins.loader import filter_loader, test_loader  # type: ignore[import-untyped]
from ansible.release import __version__ as ansible_version
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import run_events
from jinja2.environment import TemplateExpression

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.process import BaseProcess
    from types import CodeType


# A folder of this user for what Ansible would make anew in each run, one for each state of the programs.

KEPT_VARIABLE = "CLUSTERCTL_KEPT"  # of the environment; without it, nothing is kept
COLLECTION = Path(__file__).absolute().parents[2]
_OLD_S = 30 * 24 * 3600.0


def kept_folder(kind: str, *parts: str) -> Path | None:
    """Return the folder; None where nothing is to be kept, or where another user could write into the folder.

    Args:
        kind: what is kept.
        parts: folders of the collection's plugins; a change of a file in them leads to another folder.
    """
    named = os.environ.get(KEPT_VARIABLE, "")
    if not named or not _is_private(Path(named)):
        return None
    base = Path(named) / kind
    files = sorted(path for part in parts for path in (COLLECTION / "plugins" / part).rglob("*.py"))
    states = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    versions = (sys.implementation.cache_tag, sys.hexversion, sys.prefix, ansible_version, jinja2.__version__)
    folder = base / hashlib.sha256(repr((versions, states)).encode()).hexdigest()[:16]
    try:
        for missing in (base, folder):
            missing.mkdir(mode=0o700, exist_ok=True)
        os.utime(folder)
        _forget_old(base)
    except OSError:
        return None
    return folder if _is_private(base) and _is_private(folder) else None


def holds(path: str) -> bool:
    """Tell whether a file is the collection's; Ansible's finder reaches it by a link, and names files by it."""
    return path.startswith(_places(COLLECTION))


@functools.cache
def _places(collection: Path) -> tuple[str, ...]:
    return f"{collection}/", f"{collection.resolve()}/"


def origin_reader() -> Callable[[object], str]:
    """Return what tells the path of the file that a text of Ansible's stands in, '' where that is unknown.

    Raises:
        ImportError: ansible-core is older than 2.19.
    """
    from ansible._internal._datatag._tags import Origin  # noqa: PLC0415 - not in 2.18

    def origin(text: object) -> str:
        tag = Origin.get_tag(text)
        return str(tag.path or "") if tag else ""

    return origin


def _is_private(folder: Path) -> bool:
    try:
        state = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o077


def _forget_old(base: Path) -> None:
    """Remove the folders of states that nobody has used for a month."""
    for folder in base.iterdir():
        if folder.lstat().st_mtime < time.time() - _OLD_S and _is_private(folder):
            shutil.rmtree(folder, ignore_errors=True)


# Keep the code that Jinja makes of a template, so that it is made once and not once for each task of each host.
#
# Ansible forks a worker for each task of each host, and each worker compiles each template that it meets, each time
# that it meets it. That is most of what a worker does. The code depends on the text and on settings alone, never on
# variables.
#
# The code of templates that are in files of this collection stays in a folder from run to run. All other templates may
# hold what a user keeps secret, so their code stays in the memory of its process.

_SETTINGS = (
    "block_start_string",
    "block_end_string",
    "variable_start_string",
    "variable_end_string",
    "comment_start_string",
    "comment_end_string",
    "line_statement_prefix",
    "line_comment_prefix",
    "trim_blocks",
    "lstrip_blocks",
    "newline_sequence",
    "keep_trailing_newline",
    "optimized",
    "autoescape",
    "is_async",
)
_made: ContextVar[list[CodeType] | None] = ContextVar("_made", default=None)


class Store:
    """Code by its key: in memory, and in a folder where that is asked for."""

    def __init__(self, folder: Path) -> None:
        """Keep the folder, which this user alone may write."""
        self._folder = folder
        self._known: dict[str, CodeType] = {}

    def find(self, key: str, *, on_disk: bool) -> CodeType | None:
        """Return the code of a key; None where it has to be made."""
        found = self._known.get(key)
        if found is None and on_disk:
            found = self._read(key)
            if found is not None:
                self._known[key] = found
        return found

    def keep(self, key: str, code: CodeType, *, on_disk: bool) -> None:
        """Keep the code of a key; a folder that cannot be written changes nothing else."""
        self._known[key] = code
        if not on_disk:
            return
        with contextlib.suppress(OSError):
            handle, name = tempfile.mkstemp(dir=self._folder)
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(marshal.dumps(code))
                Path(name).replace(self._folder / key)
            except OSError:
                Path(name).unlink()
                raise

    def _read(self, key: str) -> CodeType | None:
        try:
            handle = os.open(self._folder / key, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(handle, "rb") as stream:
                found = marshal.loads(stream.read())  # noqa: S302 - of this user's own folder
        except (OSError, ValueError, EOFError, TypeError):
            return None
        return found if hasattr(found, "co_code") else None


def use_template_code() -> bool:
    """Have Ansible keep the code of templates where something is to be kept; tells whether it does.

    It works with the templating of ansible-core 2.19 and later. With an earlier one, nothing changes.
    """
    folder = kept_folder("templates", "filter", "test")  # what Jinja passes to a filter is part of the code
    if folder is None:
        return False
    try:
        origin = origin_reader()
        from ansible._internal._templating import _jinja_bits as bits  # noqa: PLC0415 - not in 2.18

        environment, context, config = bits.AnsibleEnvironment, bits._TemplateCompileContext, bits._TemplateConfig  # noqa: SLF001
        if "compile" in vars(environment) or environment._debuggable_template_source:  # noqa: SLF001 - used already
            return False
    except (ImportError, AttributeError):
        return False

    def settings(of: Any) -> tuple[Any, ...]:
        escapes = context.current(optional=True)
        own = tuple(getattr(of, name) for name in _SETTINGS)
        return (*own, sorted(of.extensions), escapes and escapes.escape_backslashes, config.allow_embedded_templates)

    _patch(environment, Store(folder), origin, settings)
    return True


def _patch(
    environment: Any, store: Store, origin: Callable[[str], str], settings: Callable[[Any], tuple[Any, ...]]
) -> None:
    """Put the store before the two methods of Jinja that make code."""
    make, make_expression = environment.compile, environment.compile_expression

    def compile_template(self: Any, source: Any, *args: Any, **options: Any) -> Any:
        if args or options:  # a file that a template includes, or source text of Python
            return make(self, source, *args, **options)
        if not isinstance(source, str):
            code = make(self, source)
            into = _made.get()
            if into is not None:
                into.append(code)
            return code
        key, on_disk = _key("template", source, settings(self)), holds(origin(source))
        found = store.find(key, on_disk=on_disk)
        if found is None:
            found = make(self, source)
            store.keep(key, found, on_disk=on_disk)
        return found

    def compile_expression(self: Any, source: str, undefined_to_none: bool = True) -> Any:
        key, on_disk = _key("expression", source, settings(self)), holds(origin(source))
        found = store.find(key, on_disk=on_disk)
        if found is not None:
            template = self.template_class.from_code(self, found, self.make_globals(None), None)
            return TemplateExpression(template, undefined_to_none)
        into: list[CodeType] = []
        token = _made.set(into)
        try:
            expression = make_expression(self, source, undefined_to_none)
        finally:
            _made.reset(token)
        if len(into) == 1:
            store.keep(key, into[0], on_disk=on_disk)
        return expression

    environment.compile = compile_template
    environment.compile_expression = compile_expression


def _key(kind: str, source: str, settings: tuple[Any, ...]) -> str:
    return hashlib.sha256(repr((kind, str(source), settings)).encode()).hexdigest()


# Find in Ansible's main process that a task is skipped on a host, so that no worker is forked to find it.
#
# Ansible forks a worker for each task of each host, and the worker then looks at the conditions of the task. Two fifths
# of the tasks of a first provision end there. This looks at them before the fork, with the variables that the worker
# would have. A task that is not certainly skipped goes its usual way, and so does each task of a user's own playbook.

SKIP_VARIABLE = "CLUSTERCTL_SKIP_EARLY"  # of the environment; without it, nothing changes


def use_skipped_tasks() -> bool:
    """Look at conditions in the main process; tells whether it does.

    It works with ansible-core 2.19 and 2.20. With any other, nothing changes.
    """
    if not os.environ.get(SKIP_VARIABLE):
        return False
    try:
        origin = origin_reader()
        from ansible.executor.task_result import _RawTaskResult  # noqa: F401, PLC0415 - not in 2.21
        from ansible.plugins.strategy import StrategyBase  # noqa: PLC0415 - read by the main process alone

        queue = StrategyBase._queue_task  # noqa: SLF001
        if queue.__module__ != StrategyBase.__module__:  # used already
            return False
    except (ImportError, AttributeError):
        return False

    def queue_task(strategy: Any, host: Any, task: Any, task_vars: dict[str, Any], play_context: Any) -> None:
        if may_be_looked_at(task, origin):
            try:
                result = _skipped(strategy, task, task_vars, play_context)
                if result is not None:
                    _tell(strategy, host, task, task_vars, play_context, result)
                    return
            except Exception:  # noqa: BLE001, S110 - a worker meets it again, and reports it
                pass
        queue(strategy, host, task, task_vars, play_context)

    StrategyBase._queue_task = queue_task  # noqa: SLF001
    return True


def may_be_looked_at(task: Any, origin: Callable[[object], str]) -> bool:
    """Tell whether the conditions are the collection's own, and decide alone whether the task is skipped.

    Args:
        task: Ansible's task.
        origin: returns the path of the file that a text stands in, '' where that is unknown.
    """
    conditions = task.when
    return (
        bool(conditions)
        and task.loop is None
        and not task.loop_with
        and task.delegate_to is None
        and not task.no_log
        and all(isinstance(condition, bool) or holds(origin(condition)) for condition in conditions)
    )


def _skipped(strategy: Any, task: Any, variables: dict[str, Any], play_context: Any) -> dict[str, Any] | None:
    """Return the result of a task that is skipped for certain, as a worker would; None of any other."""
    from ansible._internal._display_utils import DeferredWarningContext  # noqa: PLC0415 - not in 2.18
    from ansible._internal._task import TaskContext  # noqa: PLC0415 - as above
    from ansible._internal._templating._engine import TemplateEngine  # noqa: PLC0415 - as above

    known = {**variables, "ansible_search_path": task.get_search_path()}
    templar = TemplateEngine(loader=strategy._loader, variables=known)  # noqa: SLF001
    with TaskContext(task), DeferredWarningContext(variables=known) as warned:
        context = play_context.set_task_and_variable_override(task=task, variables=known, templar=templar)
        context.update_vars(known)
        why: dict[str, Any] = {}
        goes_on = task._resolve_conditional(task.when, known, result_context=why)  # noqa: SLF001
        if goes_on or warned.get_warnings() or warned.get_deprecation_warnings():
            return None
    return {"changed": False, "skipped": True, "skip_reason": "Conditional result was False", **why}


def _tell(
    strategy: Any, host: Any, task: Any, variables: dict[str, Any], play_context: Any, result: dict[str, Any]
) -> None:
    """Give the strategy the result, as a worker would, and count it."""
    from ansible.executor.task_result import _RawTaskResult  # noqa: PLC0415 - not in 2.18

    told = _RawTaskResult(host=host, task=task, return_data=result, task_fields=task.dump_attrs())
    strategy._queued_task_cache[(host.name, task._uuid)] = {  # noqa: SLF001
        "host": host,
        "task": task,
        "task_vars": variables,
        "play_context": play_context,
    }
    strategy._tqm.send_callback("v2_runner_on_start", host, task)  # noqa: SLF001
    strategy._final_q.send_task_result(told)  # noqa: SLF001
    strategy._pending_results += 1  # noqa: SLF001 - the main process looks for it after this alone


# Keep the archives that Ansible makes of modules, so that a run does not make them anew.
#
# Ansible packs each module with the files that it imports, once in a run, in its folder for temporary files. A run that
# plays all roles makes about twenty. This puts those of an earlier run there, and takes the new ones at the end. It
# does so for modules of this collection and of ansible-core alone, whose files the name of the kept folder stands for.

_OURS = ("ansible_collections.clusterctl.hpc.", "ansible.modules.")
_PLACE = "ansiballz_cache"  # of ansible-core 2.9 and later


def use_module_zips() -> bool:
    """Give this run the archives of earlier ones, and keep its own at its end; tells whether it does."""
    kept = kept_folder("modules", "modules", "module_utils")
    if kept is None:
        return False
    place = Path(str(constants.DEFAULT_LOCAL_TMP)) / _PLACE
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        for archive in _archives(kept):
            _copy(archive, place)
    except OSError:
        return False
    atexit.register(keep, place, kept, os.getpid())
    return True


def keep(place: Path, kept: Path, process: int) -> None:
    """Keep what is new; a worker that ends leaves that to the main process."""
    if os.getpid() != process:
        return
    with contextlib.suppress(OSError):
        for archive in _archives(place):
            _copy(archive, kept)


def _archives(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith(_OURS) and path.suffix != ".lock" and path.is_file() and not path.is_symlink():
            yield path


def _copy(archive: Path, folder: Path) -> None:
    """Copy an archive where there is none; it has its name once it is whole."""
    if (folder / archive.name).exists():
        return
    handle, name = tempfile.mkstemp(dir=folder)
    os.close(handle)
    try:
        shutil.copyfile(archive, name)
        Path(name).rename(folder / archive.name)
    except OSError:
        Path(name).unlink()
        raise


# Wait for a free worker of Ansible without using a processor.
#
# Where more hosts take part than Ansible has workers (``forks``), its main process looks thousands of times a second
# whether a worker has ended. It takes the time from the workers.

POLL_VARIABLE = "CLUSTERCTL_POLL_S"  # of the environment: seconds between two looks; without it, nothing changes
_MOST_S = 1.0  # then Ansible looks itself


def use_free_worker() -> bool:
    """Have Ansible's main process wait so; tells whether it does."""
    if not os.environ.get(POLL_VARIABLE):
        return False
    try:
        from ansible.plugins.strategy import StrategyBase  # noqa: PLC0415 - read by the main process alone

        queue = StrategyBase._queue_task  # noqa: SLF001
    except (ImportError, AttributeError):
        return False

    @functools.wraps(queue)
    def queue_task(strategy: Any, *args: Any) -> None:
        wait_for_one(getattr(strategy, "_workers", ()))
        queue(strategy, *args)

    StrategyBase._queue_task = queue_task  # noqa: SLF001
    return True


def wait_for_one(workers: Sequence[BaseProcess | None]) -> None:
    """Wait until one of the workers has ended, for a second at most; at once where one is missing or has ended."""
    running = [worker for worker in workers if worker is not None]
    try:
        if 0 < len(running) == len(workers) and all(worker.is_alive() for worker in running):
            connection.wait([worker.sentinel for worker in running], _MOST_S)
    except ValueError:  # closed by its strategy
        return


_POLL_SETTING = "DEFAULT_INTERNAL_POLL_INTERVAL"


def load() -> None:
    """Load all filters of this collection, and all filters and tests of Ansible."""
    run_events.refuse_keys()
    use_template_code()
    use_module_zips()
    use_free_worker()  # before the next one: a skipped task needs no worker
    use_skipped_tasks()
    _wait(os.environ.get(POLL_VARIABLE, ""))
    for loader, name in ((filter_loader, "clusterctl.hpc.artifact_builder"), (test_loader, "ansible.builtin.match")):
        try:
            loader.get(name)
        except (AnsibleError, KeyError):  # the task that needs it says why
            break
    _share_memory()


def _share_memory() -> None:
    """Keep the garbage collector of each worker from writing into the memory that it shares with the main process."""
    if os.environ.get(POLL_VARIABLE):
        gc.collect()
        gc.freeze()


def _wait(seconds: str) -> None:
    """Set how long Ansible waits between two looks, unless the user's configuration says it."""
    with contextlib.suppress(AnsibleError, AttributeError, ValueError):
        if seconds and constants.config.get_config_value_and_origin(_POLL_SETTING)[1] == "default":
            setattr(constants, _POLL_SETTING, float(seconds))
