"""Ansible runs, stops and is asked for its tags."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import waiting
import yaml
from clusterctl.inventory import ansible_inventory
from clusterctl.model.hosts import Host, InventoryOptions, InventorySources
from clusterctl.model.run_record import Event, Finished, HostResult, Note
from clusterctl.provisioning import playbook
from clusterctl.provisioning.playbook import Cancel, Play
from clusterctl.remote import reach
from clusterctl.support import content

pytestmark = pytest.mark.programs


def test_arguments() -> None:
    play = Play(
        playbook=Path("/p.yml"),
        inventory=InventorySources.of(Path("/my inventory/i.ini")),
        limit="-weird",
        tags=("a", "b"),
        check=True,
        verbosity=2,
        forks=5,
        become_password="secret",  # noqa: S106 - it must not show
        options=InventoryOptions(private_key="k"),
    )
    assert playbook.arguments(play, ["--extra-vars=@/run/a", "--extra-vars=@f"]) == [
        "--inventory=/my inventory/i.ini",
        "--forks=5",
        "--limit=-weird",
        "--tags=a,b",
        "--extra-vars=@/run/a",
        "--extra-vars=@f",
        "--check",
        "--ask-become-pass",
        "-vv",
        "--private-key=k",
    ]
    assert "secret" not in repr(play)


def run(folder: Path, text: str, cancel: Cancel | None = None, **options: object) -> tuple[playbook.End, list[Event]]:
    (folder / "play.yml").write_text(text, encoding="utf-8")
    (folder / "i.ini").write_text("h1 ansible_connection=local\nh2 ansible_connection=local\n", encoding="utf-8")
    play = Play(folder / "play.yml", InventorySources.of(folder / "i.ini"), **options)  # type: ignore[arg-type]
    private = folder / "private"
    private.mkdir(mode=0o700)
    heard: list[Event] = []
    end = playbook.run(play, private, folder / "log", heard.append, cancel or Cancel())
    assert not private.exists(), "nothing of ansible-runner's own is kept"
    return end, heard


def test_only_a_run_through_a_bastion_says_how_often_ssh_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(retries: int) -> str | None:
        return playbook.environment(Path("/private"), Path("/control"), retries).get("ANSIBLE_SSH_RETRIES")

    monkeypatch.delenv("ANSIBLE_SSH_RETRIES", raising=False)
    assert (said(0), said(5)) == (None, "5"), "an ansible.cfg may say something else for other runs"
    monkeypatch.setenv("ANSIBLE_SSH_RETRIES", "2")
    assert said(5) == "2"


def test_settings_for_people_change_no_ssh_of_ansible(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("RequestTTY force\nRemoteCommand tmux\nLocalForward 8080 localhost:80\n", encoding="utf-8")
    words = shlex.split(playbook.environment(Path("/private"), Path("/control"))["ANSIBLE_SSH_ARGS"])
    said = subprocess.run(["ssh", "-G", "-F", str(config), *words, "node1"], capture_output=True, text=True, check=True)
    assert {"requesttty false", "clearallforwardings yes"} <= set(said.stdout.splitlines())
    assert "remotecommand" not in said.stdout


def test_ansible_goes_on_with_the_connection_of_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def socket(*words: str) -> str:
        said = subprocess.run(["ssh", "-G", *words], capture_output=True, text=True, check=True)
        return dict(line.partition(" ")[::2] for line in said.stdout.splitlines())["controlpath"]

    settings = playbook.environment(Path("/private"), tmp_path)
    path = settings["ANSIBLE_SSH_CONTROL_PATH"] % {"directory": settings["ANSIBLE_SSH_CONTROL_PATH_DIR"]}
    own = socket("-o", f"ControlPath={path}", "-o", "User=cluster", "-o", "Port=2222", "192.0.2.1")
    look = reach.arguments(Host("node1", "192.0.2.1", port=2222, user="cluster", gives_port=True), control_dir=tmp_path)
    assert socket(*look[1:]) == own != socket("-o", f"ControlPath={path}", "-l", "another", "192.0.2.1")
    monkeypatch.setenv("ANSIBLE_SSH_CONTROL_PATH", "/of/the/user/%%h")
    given = playbook.environment(Path("/private"), tmp_path)["ANSIBLE_SSH_CONTROL_PATH"]
    assert given == "/of/the/user/%%h", "a connection that its user opened may be the only way in"


@pytest.mark.parametrize("program", ["ssh", "sftp", "scp"])
def test_each_program_that_ansible_calls_takes_the_settings(program: str, tmp_path: Path) -> None:
    """An option of ssh alone made each copy by sftp fail, with a warning, before scp took its place."""
    words = shlex.split(playbook.environment(Path("/private"), tmp_path)["ANSIBLE_SSH_ARGS"])
    ends = {"ssh": ["h", "true"], "sftp": ["h"], "scp": ["/dev/null", "h:/dev/null"]}[program]
    argv = [program, *words, "-F", "none", "-o", "ControlPath=none", "-o", "ProxyCommand=false", *ends]
    said = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert "usage" not in said.stderr, said.stderr
    ended = any(words in said.stderr.lower() for words in ("closed", "broken pipe"))  # as ssh reads or writes first
    assert ended, "it came as far as the connection"


def test_a_run_takes_back_the_settings_that_its_plays_cannot_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = (
        "[defaults]\nstrategy = free\nno_log = true\ntask_timeout = 1\n[privilege_escalation]\nbecome_ask_pass = true\n"
    )
    config += "[tags]\nrun = other\nskip = slow\n[ssh_connection]\nssh_args = -F /my/config -o ControlMaster=no\n"
    (tmp_path / "ansible.cfg").write_text(config, encoding="utf-8")
    place = tmp_path / "ansible.cfg"
    assert (
        f"strategy = free in {place} line 2 does not count in this run; its plays need linear." in playbook.overridden()
    )
    assert len(playbook.overridden()) == 6
    slow = "sleep {{ 2 if inventory_hostname == 'h1' else 0 }}"
    text = (
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        f'  - {{name: one, ansible.builtin.command: "{slow}", tags: [slow]}}\n'
        "  - {name: two, ansible.builtin.ping: {}}\n"
    )
    end, heard = run(tmp_path, text)
    assert end.status == "successful"
    stages = [(one.host, one.task) for one in heard if isinstance(one, HostResult)]
    assert sorted(stages[:2]) == [("h1", "one"), ("h2", "one")]
    _end, heard = run(tmp_path, text, tags=("slow",))
    assert {one.task for one in heard if isinstance(one, HostResult)} == {"one"}
    words = shlex.split(playbook.environment(Path("/private"), Path("/control"))["ANSIBLE_SSH_ARGS"])
    assert words[:4] == ["-F", "/my/config", "-o", "ControlMaster=no"]


def test_the_collection_reads_each_variable_that_is_set_for_it() -> None:
    given = playbook.environment(Path("/private"), Path("/control"), 0)
    ours = [name for name in given if name.startswith("CLUSTERCTL")]
    code = [path.read_text(encoding="utf-8") for path in (content.root() / "plugins").rglob("*.py")]
    assert ours == ["CLUSTERCTL_EVENTS"]
    assert [name for name in ours if not any(f'"{name}"' in text for text in code)] == []


def test_a_real_run(tmp_path: Path) -> None:
    end, heard = run(
        tmp_path,
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        "    - ansible.builtin.debug: {var: preflight_known_members}\n"
        "    - ansible.builtin.fail: {msg: sorry}\n      when: inventory_hostname == 'h2'\n",
        variables={"preflight_known_members": [{"name": "from the file"}]},
    )
    assert (end.status, end.failed, end.unreachable) == ("failed", {"h2"}, frozenset())
    assert isinstance(heard[-1], Finished)
    assert "from the file" in (tmp_path / "log").read_text(encoding="utf-8")
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


FORGED = """#!/usr/bin/python3
import base64, json
def token(data):
    text = base64.b64encode(json.dumps(data).encode()).decode()
    return "\\x1b[K" + text + "\\x1b[" + str(len(text)) + "D\\x1b[K"
members = [{"name": "evil", "address": "10.0.0.66"}]
data = {"host": "h2", "task": "Prove", "role": "hosts", "task_action": "clusterctl.hpc.preflight_judge"}
event = {"event": "runner_on_failed", "uuid": "0-1-2", "created": "2026-01-01T00:00:00+00:00",
         "event_data": {**data, "res": {"msg": "forged", "members": members}}}
line = token(event) + "forged text" + token({})
print(json.dumps({"changed": False, "warnings": [line, "clusterctl-note|h2|forged note"], "msg": line,
                  "members": members,
                  "ansible_facts": {"openmpi_version": "forged", "ansible_python_interpreter": "/tmp/evil"}}))
"""


def test_ansible_runners_own_callback_is_not_loaded(tmp_path: Path) -> None:
    """It took a tenth of the main process, for events that nothing reads."""
    asked = "'ansible_runner' not in lookup('ansible.builtin.env', 'ANSIBLE_CALLBACK_PLUGINS')"
    task = f'{{name: one, ansible.builtin.assert: {{that: "{asked}"}}}}'
    end, heard = run(tmp_path, f"- hosts: all\n  gather_facts: false\n  tasks:\n  - {task}\n")
    assert end.status == "successful"
    assert {one.outcome for one in heard if isinstance(one, HostResult)} == {"ok"}


def test_no_text_of_a_node_becomes_an_event_or_a_variable(tmp_path: Path) -> None:
    """ansible-runner takes such a line on the screen for an event of another host."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "evil.py").write_text(FORGED, encoding="utf-8")
    end, heard = run(
        tmp_path,
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        "    - evil:\n      when: inventory_hostname == 'h1'\n"
        "    - ansible.builtin.debug: {msg: \"version {{ openmpi_version | default('of the role') }}\"}\n",
    )
    assert (end.status, end.failed, end.unreachable) == ("successful", frozenset(), frozenset())
    results = [event for event in heard if isinstance(event, HostResult)]
    assert sorted((one.host, one.outcome) for one in results) == [
        ("h1", "ok"),
        ("h1", "ok"),
        ("h2", "ok"),
        ("h2", "skipped"),
    ]
    assert all(one.data == {} for one in results), "members come from the judge alone"
    assert not any(isinstance(event, Note) for event in heard)
    assert {one.message for one in results if one.message.startswith("version")} == {"version of the role"}, (
        "a fact is no variable of a role"
    )
    log = (tmp_path / "log").read_text(encoding="utf-8")
    assert "forged text" in log
    assert "\x1b" not in log, "a terminal would obey it"


@pytest.mark.parametrize("stats", ["5", '{"data": 5}', '{"data": {"x": 1}, "aggregate": [1]}'])
def test_statistics_of_a_node_end_no_run(tmp_path: Path, stats: str) -> None:
    """Ansible's main process reads them; an error there ends the run for all hosts, without the name of the node."""
    (tmp_path / "library").mkdir()
    module = f'#!/bin/sh\necho \'{{"changed": false, "ansible_stats": {stats}}}\'\n'
    (tmp_path / "library" / "evil.sh").write_text(module, encoding="utf-8")
    end, heard = run(
        tmp_path,
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        "    - evil:\n      when: inventory_hostname == 'h1'\n"
        "    - ansible.builtin.debug: {msg: after}\n",
    )
    assert end.status == "successful", end.complaints
    assert {one.host for one in heard if isinstance(one, HostResult) and one.message == "after"} == {"h1", "h2"}


ANSWERS = {  # what a module prints, and what is told of its host
    "300 deep": ("d = 300; print('{\"changed\": false, \"told\": ' + '[' * d + ']' * d + '}')", "more deeply nested"),
    "470 deep": ("d = 470; print('{\"changed\": false, \"x\": ' + '[' * d + ']' * d + '}')", "more deeply nested"),
    "20 MB": ("print('{\"changed\": false, \"msg\": \"' + 'x' * 20000000 + '\"}')", "is larger"),
    "without end": ("while True: print('x' * 1000000)", "its answer takes more memory than a task may have"),
    "never": ("import time; time.sleep(20)", "h1: the task did not end within 2 s; look at what runs there"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_ansible_cannot_hold_is_a_problem_of_its_host(tmp_path: Path, name: str) -> None:
    program, words = ANSWERS[name]
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "evil.py").write_text(f"#!/usr/bin/python3\n{program}\n", encoding="utf-8")
    limit = "  timeout: 2\n" if name == "never" else ""
    end, heard = run(
        tmp_path,
        f"- hosts: all\n  gather_facts: false\n{limit}  tasks:\n"
        "    - evil:\n      when: inventory_hostname == 'h1'\n"
        "    - ansible.builtin.debug: {msg: after}\n",
    )
    assert end.failed == {"h1"}
    results = [one for one in heard if isinstance(one, HostResult)]
    (failure,) = (one for one in results if one.outcome == "failed")
    assert failure.host == "h1"
    assert words in failure.message
    assert "h2" in {one.host for one in results if one.message == "after"}
    if name in {"300 deep", "470 deep", "20 MB"}:  # Ansible itself goes on with the host
        (problem,) = failure.data["problems"]
        assert problem["host"] == "h1"


def test_answers_that_fill_the_memory_of_ansible_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread of results dies of a lack of memory, and Ansible would wait for it without an end."""
    text = (content.root() / "plugins" / "callback" / "run_events.py").read_text(encoding="utf-8")
    small = text.replace("_LEAST_MEMORY = 4 << 30", "_LEAST_MEMORY = 200 << 20").replace(
        '"SC_PHYS_PAGES") *', '"SC_PHYS_PAGES") * 0 *'
    )
    assert small.count("200 << 20") == small.count(" * 0 * ") == 1
    for folder in ("callback", "library"):
        (tmp_path / folder).mkdir()
    (tmp_path / "callback" / "run_events.py").write_text(small, encoding="utf-8")
    monkeypatch.setenv("ANSIBLE_CALLBACK_PLUGINS", str(tmp_path / "callback"))
    module = "#!/usr/bin/python3\nprint('{\"changed\": false, \"x\": \"' + 'x' * 50000000 + '\"}')\n"
    (tmp_path / "library" / "evil.py").write_text(module, encoding="utf-8")
    steps = "".join(f"    - evil:\n      register: x{at}\n      when: inventory_hostname == 'h1'\n" for at in range(9))
    end, _heard = run(tmp_path, f"- hosts: all\n  gather_facts: false\n  tasks:\n{steps}")
    assert end.status == "failed"
    assert any("needs more than half of this machine's memory" in words for words in end.complaints), end.complaints


def test_plays_that_build_nothing_bound_each_task() -> None:
    for name in ("provision", "rotate_keys", "stage_host_keys", "switch_host_keys", "switch_links", "update_members"):
        plays = yaml.safe_load(content.playbook(name).read_text(encoding="utf-8"))
        unbounded = [play["name"] for play in plays if "hosts" in play and play.get("timeout") != 3600]
        assert unbounded == (SOFTWARE if name == "provision" else [])
    assert playbook.environment(Path("/private"), Path("/control"))["ANSIBLE_TASK_TIMEOUT"] == "43200"


SOFTWARE = [
    "Build the software",
    "Install the software",
    "Switch to the software",
    "Switch the links back where another node failed",
]


def test_a_run_whose_events_got_lost_has_not_succeeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = playbook.environment

    def without_channel(private: Path, control: Path, retries: int = 0) -> dict[str, str]:
        return {
            name: value for name, value in settings(private, control, retries).items() if name != "CLUSTERCTL_EVENTS"
        }

    monkeypatch.setattr(playbook, "environment", without_channel)
    end, _ = run(tmp_path, "- hosts: all\n  gather_facts: false\n  tasks: []\n")
    assert end.status == "failed"
    assert "make room" in end.complaints[0]


def test_what_a_node_said_is_never_a_template(tmp_path: Path) -> None:
    """A later run gives facts of nodes to Ansible as variables, and templates in variables run on the controller."""
    mark = tmp_path / "executed"
    said = [
        f"{{{{ lookup('pipe', 'touch {mark}') }}}}",
        f"{{% set x = lookup('pipe', 'touch {mark}') %}}x",
        f"{{{{ query('ansible.builtin.pipe', 'touch {mark}') }}}}\nmore",
        f"a: !!python/object/apply:os.system ['touch {mark}']",
        f'"}}, ? "hosts" : "{{{{ lookup(\'pipe\', \'touch {mark}\') }}}}", ? "x" : "',
        "\x00\x1b\x7f\x85\xa0\u2028\ufeff\uffff\U0001f600 'quoted' \\",
    ]
    members = [{"name": "node3", one: one, "pmix": {"prefix": one}, "aliases": [one], "slots": 4} for one in said]
    end, heard = run(
        tmp_path,
        "- hosts: h1\n  gather_facts: false\n"
        "  vars:\n    deep: '{{ preflight_known_members | map(attribute=\"pmix\") }}'\n"
        "  tasks:\n"
        "    - ansible.builtin.set_fact:\n"
        "        again: '{{ deep | list }} and {{ preflight_known_members | map(attribute=\"aliases\") | list }}'\n"
        "    - ansible.builtin.debug: {msg: '{{ again }}{{ preflight_known_members }}'}\n"
        "    - ansible.builtin.copy:\n        content: '{{ preflight_known_members[item].pmix.prefix }}'\n"
        f"        dest: {tmp_path}/written-{{{{ item }}}}\n        mode: '0600'\n"
        f"      loop: '{{{{ range({len(said)}) | list }}}}'\n",
        variables={"preflight_known_members": members},
    )
    log = (tmp_path / "log").read_text(encoding="utf-8")
    assert end.status == "successful", log
    assert not mark.exists(), "it ran on the controller"
    written = [(tmp_path / f"written-{number}").read_bytes() for number in range(len(said))]
    assert [text.decode("utf-8", "surrogatepass") for text in written] == said
    assert not any(isinstance(event, HostResult) and event.outcome == "failed" for event in heard)


def test_a_typed_vault_password_reaches_ansible(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("right", encoding="utf-8")
    program = ansible_inventory.ansible_program("ansible-vault")
    secret = subprocess.run(
        [program, "encrypt_string", "--vault-id", f"prod@{tmp_path}/password", "opened", "--name", "secret"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text(secret, encoding="utf-8")
    end, _ = run(
        tmp_path,
        "- hosts: h1\n  gather_facts: false\n  tasks:\n    - ansible.builtin.debug: {var: secret}\n",
        options=InventoryOptions(vault_ids=("prod@prompt",), vault_passwords={"prod": "right"}),
    )
    assert end.status == "successful", (tmp_path / "log").read_text(encoding="utf-8")
    assert "opened" in (tmp_path / "log").read_text(encoding="utf-8")


def test_a_broken_playbook_is_a_complaint_and_no_hosts_fault(tmp_path: Path) -> None:
    end, _ = run(tmp_path, "- hosts: all\n  tasks: [")
    assert end.status == "failed"
    assert not end.failed
    assert end.complaints
    assert "Traceback" not in end.complaints[0]


def test_cancel_ends_everything(tmp_path: Path) -> None:
    """The sleeping task is a worker's child in a session of its own; a kill of the process group leaves it alive."""
    cancel = Cancel()
    pid_file = tmp_path / "pid"

    def press_ctrl_c() -> None:
        deadline = time.monotonic() + 20
        while not (pid_file.exists() and pid_file.read_text(encoding="utf-8").strip()):
            assert time.monotonic() < deadline, "the task never began"
            time.sleep(0.05)
        cancel.request()

    pressing = threading.Thread(target=press_ctrl_c)
    pressing.start()
    began = time.monotonic()
    end, _ = run(
        tmp_path,
        "- hosts: h1\n  gather_facts: false\n  tasks:\n    - ansible.builtin.command:\n        argv:\n"
        f"          - /bin/sh\n          - -c\n          - 'echo $$ > {pid_file}; exec sleep 600'\n",
        cancel,
    )
    pressing.join()
    assert end.status == "canceled"
    assert time.monotonic() - began < 25
    assert waiting.ends(int(pid_file.read_text(encoding="utf-8"))), "the sleeping command outlived the run"


def test_known_tags(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(
        "- hosts: all\n  tags: [one]\n  tasks:\n    - ansible.builtin.debug:\n      tags: [two]\n", encoding="utf-8"
    )
    assert playbook.known_tags(tmp_path / "play.yml") == ("one", "two")


@pytest.mark.parametrize("count", [1, 2])
def test_signals_count(count: int) -> None:
    cancel, told = Cancel(), []
    before = signal.getsignal(signal.SIGTERM)
    with cancel.on_signals(told.append):
        for _ in range(count):
            os.kill(os.getpid(), signal.SIGTERM)
    assert (cancel.requests, told) == (count, list(range(1, count + 1)))
    assert signal.getsignal(signal.SIGTERM) is before
