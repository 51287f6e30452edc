"""Translate the events of the callback ``run_events`` into typed events of a run: the gate for results of tasks.

A result belongs to the host and the task that Ansible's main process names. What a node put into it is data: a key
counts only where the action that answered may decide it, and each text becomes one line of printable characters.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from clusterctl.model.run_record import Event, HostResult, Note, Outcome, StageStarted, TaskStartedOnHost
from clusterctl.provisioning.software import ROLE_TAGS
from clusterctl.support import content

_MOST_COMPLAINTS = 40
_MOST_WORDS = 2000  # characters of a sentence of a node
_MOST_MESSAGE = 400
_MOST_ITEMS = 10000  # of a list
_MOST_VALUES = 1 << 17  # of one value of a result
_MOST_OF_ALL_HOSTS = 1 << 24  # of one value that has entries for the whole cluster
_MOST_COMPARED = 1 << 20  # characters of a file that is compared line by line
_MOST_FAILURE = 20000  # characters of a failure, which may be a table
_MOST_LINES_COMPARED = 5000  # of both texts; the time grows with the square of the lines that are alike
_MOST_DIFF_LINES = 60  # of a file that is shown line by line
_LONGEST_PATH = 4096
_PROGRAM_ENDS = (".py", ".sh", ".so")
_COMPLAINT = re.compile(
    r"^(?:\[ERROR\]:?|ERROR!)[ \t]*(?P<text>.+?)(?=\n\n|\n\[|\nERROR!|\Z)", re.DOTALL | re.MULTILINE
)
# Keys of a task's result that are worth keeping, and the actions that may decide them. These run on the controller, or
# say something of their own host. Everything else (arguments, output) may hold a secret.
_JUDGE = "clusterctl.hpc.preflight_judge"
_DECIDED_BY = {
    "members": {_JUDGE, "clusterctl.hpc.ssh_mesh_plan"},  # the second adds the users' keys
    "argument_errors": {"ansible.builtin.validate_argument_spec"},
    "assertion": {"ansible.builtin.assert"},
    "next_host_key": {"clusterctl.hpc.host_key"},
    "trees": {"clusterctl.hpc.artifact_collect"},
    "planned_trees": {"clusterctl.hpc.software_plan"},
    "told": {"clusterctl.hpc.artifact_collect", "clusterctl.hpc.fabric_decide", "clusterctl.hpc.uninstall"},
}
_FREE = frozenset({"problems"})
_OF_ARTIFACTS = frozenset(f"clusterctl.hpc.software_{name}" for name in ("build", "stage", "prove"))
_SPEAKS_OF_OTHERS = frozenset(  # they work on the controller alone
    {
        _JUDGE,
        "clusterctl.hpc.fabric_decide",
        "clusterctl.hpc.fabric_plan",
        "clusterctl.hpc.software_plan",
        "clusterctl.hpc.ssh_mesh_plan",
        "clusterctl.hpc.ssh_mesh_review",
        "clusterctl.hpc.ssh_mesh_sign",
    }
)
# What Ansible writes of a module that did not start.
_UNSTARTED = (
    "Traceback (most recent call last)",
    "Failed to create temporary directory",
    "mkdir: ",
    "failed to transfer",
)
# Ansible tells of an error that has no words of its own. A worker that runs out of memory has none.
_WITHOUT_WORDS = "Task failed."
_LARGE = "its answer takes more memory than a task may have (2 GiB)"
_LARGE_CURE = "find out who changed its Python, or leave it out of the inventory"
_LATE_CURE = "look at what runs there, start it again, or leave it out of the inventory"
_MOST_SECONDS = 1 << 31
_BAD = frozenset({"failed", "unreachable"})
_HOST_EVENTS: dict[str, Outcome] = {
    "runner_on_ok": "ok",
    "runner_on_failed": "failed",
    "runner_on_skipped": "skipped",
    "runner_on_unreachable": "unreachable",
}


class Translator:
    """Translates the events of one playbook, and collects the hosts that failed.

    Attributes:
        failed: the hosts that failed so far, at the end by Ansible's own count, which leaves out what was rescued.
        unreachable: the hosts that were lost, likewise.
        is_complete: whether the last event of the playbook has come.
    """

    def __init__(self, on_event: Callable[[Event], None], *, keep_diff: bool) -> None:
        """Begin; ``on_event`` hears each event, ``keep_diff`` keeps the content of changed files."""
        self._on_event = on_event
        self._keep_diff = keep_diff
        self.failed: set[str] = set()
        self.unreachable: set[str] = set()
        self.is_complete = False

    def handle(self, raw: Mapping[str, Any]) -> None:
        event = translate(raw, keep_diff=self._keep_diff)
        if event is not None:
            self._on_event(event)
        if isinstance(event, HostResult) and event.outcome == "failed":
            self.failed.add(event.host)
        elif isinstance(event, HostResult) and event.outcome == "unreachable":
            self.unreachable.add(event.host)
        elif raw.get("event") == "playbook_on_stats":
            stats = raw.get("event_data") or {}
            self.failed = set(stats.get("failures") or {})
            self.unreachable = set(stats.get("dark") or {})
            self.is_complete = True


def translate(raw: Mapping[str, Any], *, keep_diff: bool = False) -> Event | None:
    """Return the typed event of one of the callback's, None for those that say nothing to us."""
    kind = raw.get("event")
    at = _when(raw)
    data = raw.get("event_data") or {}
    stage = _stage(data)
    task = str(data.get("task") or "")
    if kind == "playbook_on_task_start":
        if str(data.get("task_action")).rpartition(".")[2] == "meta":  # a look at the hosts, which takes no time
            return None
        return StageStarted(at=at, stage=stage, task=task)
    if kind == "runner_on_start":
        return TaskStartedOnHost(at=at, host=str(data.get("host")), stage=stage, task=task)
    if kind in _HOST_EVENTS:
        return _host_result(at, _HOST_EVENTS[kind], stage, task, data, keep_diff=keep_diff)
    if kind == "note":
        return Note(at=at, host=str(data.get("host")), text=_words(data.get("text"), _MOST_MESSAGE))
    return None


def _host_result(
    at: float, outcome: Outcome, stage: str, task: str, data: Mapping[str, Any], *, keep_diff: bool
) -> HostResult:
    result = data.get("res") or {}
    if outcome == "ok" and result.get("changed"):
        outcome = "changed"
    if outcome == "failed" and data.get("ignore_errors"):
        outcome = "ok"
    host = str(data.get("host"))
    elsewhere = bool(result.get("_ansible_delegated_vars"))  # what a task saw on another machine is not this host's
    action = str(data.get("task_action"))
    if outcome in _BAD:
        stage = _role_of_failure(result, action) or stage
    message = _why(outcome, result, host) if outcome in _BAD else _words(result.get("msg"), _MOST_MESSAGE)
    return HostResult(
        at=at,
        host=host,
        stage=stage,
        task=task,
        outcome=outcome,
        seconds=float(data.get("duration") or 0.0),
        message=message,
        changes=tuple(_words(item) for item in _list(result, "changes")),
        watch=() if elsewhere else tuple(filter(_is_watch, map(_plain, _list(result, "watch")))),
        diff=_diff(result) if keep_diff else "",  # content of files has no place in the record unless asked for
        data=_decided(result, action, host),
        warnings=tuple(_text(item) for item in _list(result, "warnings")),
    )


def _role_of_failure(result: Mapping[str, Any], action: str) -> str:
    """Return the role whose artifact failed first, of a task that is about the artifacts of all roles; '' of others."""
    artifacts = result.get("artifacts")
    if action not in _OF_ARTIFACTS or not isinstance(artifacts, dict):
        return ""
    roles = (one.get("role") for one in artifacts.values() if isinstance(one, dict) and one.get("failed"))
    return next((role for role in roles if role in ROLE_TAGS), "")


def _decided(result: Mapping[str, Any], action: str, host: str) -> dict[str, Any]:
    """Return what a result decides: the keys that its action may decide, and problems of its own host alone."""
    kept = {key: result[key] for key in result if key in _FREE or action in _DECIDED_BY.get(key, ())}
    most = _MOST_OF_ALL_HOSTS if action in _SPEAKS_OF_OTHERS else _MOST_VALUES
    found = {key: _plain(value, most) for key, value in kept.items()}
    problems = found.get("problems")
    if isinstance(problems, list) and action not in _SPEAKS_OF_OTHERS:
        found["problems"] = [{**item, "host": host} for item in problems if isinstance(item, dict)]
    elif problems is not None and not isinstance(problems, list):
        del found["problems"]
    if "told" in found:
        found["told"] = [text for text in _list(found, "told") if isinstance(text, str)]
    return found


def _is_watch(item: Any) -> bool:
    """Whether something that is to hold from now on names an absolute path, and what is there in words."""
    if not isinstance(item, dict) or not isinstance(item.get("kind"), str):
        return False
    path = item.get("path")
    words = (item.get(name, "") for name in ("target", "marker"))
    return (
        isinstance(path, str)
        and path.startswith("/")
        and len(path) <= _LONGEST_PATH
        and all(isinstance(word, str) for word in words)
        and not any(isinstance(value, (dict, list)) for value in item.values())
    )


def _plain(value: Any, most: int = _MOST_VALUES) -> Any:
    """Return a value of a node with printable texts; one that is too deep or too large says so in its place."""
    try:
        return content.module_util("plain_text").inert(value, most=most)
    except ValueError as error:
        return {"refused": f"a value of a result {error}"}


def _words(text: Any, most: int = _MOST_WORDS) -> str:
    """Return words of a node as one line of printable characters."""
    words: str = content.module_util("plain_text").one_line(str(text or ""), most)
    return words


def _list(result: Mapping[str, Any], key: str) -> list[Any]:
    """Return a list of the result and of the items of its loop."""
    found = list(result.get(key) or []) if isinstance(result.get(key), list) else []
    for item in result.get("results") or []:
        if isinstance(item, dict) and isinstance(item.get(key), list):
            found += item[key]
    return found[:_MOST_ITEMS]


def _text(warning: Any) -> str:
    """Return a warning in words; some releases of Ansible pass a mapping."""
    return _words(warning.get("msg") if isinstance(warning, dict) else warning)


def _why(outcome: Outcome, result: Mapping[str, Any], host: str) -> str:
    """Return why a task failed or a host was lost, with the cure where Ansible's own words are known."""
    text = _message(result)
    late = result.get("timedout")
    if isinstance(late, dict):
        return f"{host}: the task did not end within {_hours(late.get('period'))}; {_LATE_CURE}."
    if text == _WITHOUT_WORDS:
        return f"{host}: {_LARGE}; {_LARGE_CURE}."
    if outcome == "unreachable":
        found = content.module_util("preflight_rules").look_failure(host, text)
        return text if found.check == "error" else f"{host}: {found.problem}; {found.cure}."
    unstarted = any(words in text for words in _UNSTARTED)  # a module that started names the path itself
    known = content.module_util("error_meanings").find("module", text) if unstarted else None
    return f"{host}: {known.row.cause}; {known.row.cure}." if known else text


def _hours(seconds: Any) -> str:
    """Return the time limit of a task in words; it comes from the playbook, by way of the result."""
    known = isinstance(seconds, int) and 0 < seconds < _MOST_SECONDS
    return "its time limit" if not known else f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds} s"  # noqa: PLR2004 - an hour


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
    plain: str = content.module_util("plain_text").printable(text[:_MOST_FAILURE].replace("\t", " "), keep="\n")
    return plain.strip() or "it failed without a message"


def _diff(result: Mapping[str, Any]) -> str:
    """Return what changes inside files: small texts line by line, programs and long texts by size and hash."""
    given = result.get("diff")
    parts = []
    for entry in given if isinstance(given, list) else [given]:
        if not isinstance(entry, dict):
            continue
        if "prepared" in entry:
            parts.append(str(entry["prepared"]))
        elif "before" in entry or "after" in entry:
            old, new = (str(entry.get(f"{side}_header") or entry.get("path") or side) for side in ("before", "after"))
            parts.append(_file_diff(_text_of(entry.get("before")), _text_of(entry.get("after")), old, new))
    plain: str = content.module_util("plain_text").printable("\n".join(part for part in parts if part), keep="\n\t")
    return plain


def _file_diff(before: str, after: str, old: str, new: str) -> str:
    import difflib  # noqa: PLC0415 - only for results with a diff

    lines_of_both = before.count("\n") + after.count("\n")
    if len(before) + len(after) > _MOST_COMPARED or lines_of_both > _MOST_LINES_COMPARED:
        return f"{new}: {_hash(before)} → {_hash(after)}\n"
    lines = list(difflib.unified_diff(_lines(before), _lines(after), old, new))
    is_program = new.endswith(_PROGRAM_ENDS) or any(text.startswith("#!") for text in (before, after))
    is_program = is_program and not new.startswith("/etc/")  # what sessions of all users read is shown
    if not lines or (len(lines) <= _MOST_DIFF_LINES and not is_program):
        return "".join(lines)
    if not before or not after:
        return (
            f"{new}: {'new' if after else 'removed'}, {len(_lines(after or before))} lines, {_hash(after or before)}\n"
        )
    added, removed = (sum(line.startswith(sign) for line in lines[2:]) for sign in "+-")
    return f"{new}: {added} lines added, {removed} removed, {_hash(before)} → {_hash(after)}\n"


def _hash(text: str) -> str:
    return f"sha256 {hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:12]}"


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _lines(text: str) -> list[str]:
    return [line if line.endswith("\n") else line + "\n" for line in text.splitlines(keepends=True)]


def _stage(data: Mapping[str, Any]) -> str:
    return str(data.get("role") or data.get("play") or "").rpartition(".")[2]


def _when(raw: Mapping[str, Any]) -> float:
    try:
        return datetime.fromisoformat(str(raw["created"])).timestamp()
    except (KeyError, ValueError):
        return time.time()


def complaints_in(text: str) -> tuple[str, ...]:
    """Return the errors that Ansible wrote; what stands in the text decides nothing, since nodes write there too."""
    found = (match["text"].strip() for match in _COMPLAINT.finditer(text))
    return tuple(dict.fromkeys(found))[:_MOST_COMPLAINTS]


def first_complaint(text: str) -> str:
    """Return the first error that Ansible wrote, or the beginning of the text."""
    return next(iter(complaints_in(text)), text.strip()[:400])
