"""The command line as a user meets it: a process, its exit code, and what it writes where."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import program_forks
import pytest
from clusterctl.cli.commands import COMMANDS, GROUPS
from clusterctl.sandbox.model import Sandbox, SandboxNode
from clusterctl.state import paths
from past_runs import record, remember

pytestmark = pytest.mark.programs

PROGRAM = str(Path(sys.executable).with_name("clusterctl"))


def run(*arguments: str | Path, state: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return program_forks.clusterctl(*arguments, XDG_STATE_HOME=str(state), **variables)


def test_help_names_every_command_and_imports_nothing_heavy(tmp_path: Path) -> None:
    done = run("--help", state=tmp_path)
    assert done.returncode == 0
    words = set(re.findall(r"[\w-]+", done.stdout.partition("Commands:")[2]))
    assert {name for name, command in COMMANDS.items() if not command.hidden} <= words
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(
        name for name, command in COMMANDS.items() if not command.hidden
    )
    lines = done.stdout.splitlines()
    assert len(lines) < 24, "the prompt has a line, too"
    assert max(map(len, lines)) <= 80
    program = "import sys; from clusterctl.cli.main import main; main(['--help']); print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert not any(
        f"'{name}'" in loaded for name in ("typer", "click", "rich", "pydantic", "asyncio", "ansible_runner")
    )


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        # a job's nodes are asked while the rest is still being imported
        ("jobs.first_look", ("pydantic", "ansible", "clusterctl.model.facts")),
        ("provisioning.run", ("ansible", "http.client")),
        ("cli.run", ("pydantic",)),
    ],
)
def test_what_a_command_begins_with_imports_nothing_heavy(module: str, heavy: tuple[str, ...]) -> None:
    program = f"import sys, clusterctl.{module}; print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert not [name for name in heavy if f"'{name}'" in loaded]


def test_no_command_is_wrong_usage(tmp_path: Path) -> None:
    done = run(state=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: clusterctl COMMAND" in done.stderr


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself(tmp_path: Path, command: str) -> None:
    done = run(command, "--help", state=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Usage: clusterctl" in done.stdout
    assert not re.search(r"<(str|int|float|path|Path|list\[\w+\])>", done.stdout), (
        "a type of Python is no word for a person"
    )


@pytest.mark.parametrize(
    ("command", "panels"),
    [
        ("validate", ["Which hosts", "Suite", "Network and cores", "Slurm", "Pods of Kubernetes", "Output"]),
        ("run", ["Which hosts", "Options", "Network and cores", "Ranks", "Folders", "Watch", "Output"]),
        ("provision", ["Which hosts", "Options", "Other controllers", "What is done", "Shared cache", "Output"]),
    ],
)
def test_the_options_of_a_long_command_stand_in_panels(tmp_path: Path, command: str, panels: list[str]) -> None:
    text = run(command, "--help", state=tmp_path).stdout
    assert re.findall(r"^(\w.*):$", text, flags=re.MULTILINE) == [*panels, "Login and variables"]
    login = text.partition("Login and variables:")[2]
    assert "-u, --user NAME" in login


def test_old_names_go_on_with_a_hint(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.ini"
    inventory.write_text("node1 ansible_host=127.0.0.1 ansible_port=1\n", encoding="utf-8")
    old = run("inventory-of", "node1", inventory, state=tmp_path)
    new = run("hardware", inventory, "node1", state=tmp_path)
    assert old.stderr.splitlines()[1:] == new.stderr.splitlines() != []
    assert "is now 'hardware INVENTORY NODE'" in old.stderr.splitlines()[0]
    for words, says in [
        (("check-node", "--user", "1"), "--user is now --job-user"),
        (("nightly", "enable", inventory, "--at", "25:00", "--user"), "--user without a name is now --own-timer"),
        (("nightly", "enable", "--at", "25:00", "--user", inventory), "--user without a name is now --own-timer"),
        (("nightly", "enable", "--at", "25:00", "--user", inventory, inventory), f"give --user={inventory}"),
        (("nightly", "enable", "--at", "25:00", "--user", "node1,node2"), "--user without a name is now --own-timer"),
        (("nightly", "enable", inventory, "--at", "25:00", "--system"), "--system is now --system-timer"),
        (("nightly", "enable", inventory, "--at", "25:00", "--remote-user", "me"), "--remote-user is now --user"),
    ]:
        said = run(*words, state=tmp_path).stderr
        assert says in said
        assert "No such option" not in said
        assert words[0] != "nightly" or "25:00" in said.splitlines()[-1], said
    said = run("nightly", "enable", "--at", "25:00", "--user", "me", inventory, state=tmp_path).stderr
    assert "is now" not in said
    assert "--system " not in run("nightly", "enable", "--help", state=tmp_path).stdout


def test_as_a_module(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "clusterctl", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("clusterctl ")
    found = json.loads(run("version", "--format", "json", state=tmp_path).stdout)
    assert set(found["versions"]) == {"clusterctl", "ansible-core", "ansible-runner", "python"}


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("history", "--help"),
        ("history", "{inventory}"),
        ("history", "{inventory}", "--format", "json"),
        ("report", "last"),
        ("report", "--schema"),
        ("version",),
        ("provision", "{inventory}"),
        ("history", "{inventory}-gone"),
    ],
    ids=" ".join,
)
def test_a_closed_pipe_ends_as_sigpipe_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], stream: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    inventory = tmp_path / "inventory.ini"
    inventory.write_text("node1 ansible_host=127.0.0.1 ansible_port=1\n", encoding="utf-8")
    remember(inventory, record(1))
    reader, writer = os.pipe()
    os.close(reader)
    command = [PROGRAM, *(word.format(inventory=inventory) for word in words)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: writer}
    done = subprocess.run(command, text=True, check=False, stdin=subprocess.DEVNULL, **streams)  # type: ignore[call-overload]
    os.close(writer)
    said = (done.stdout or "") + (done.stderr or "")
    on_stderr = words[0] == "provision" or words[-1].endswith("gone")
    if (stream == "stderr") is on_stderr:
        assert (done.returncode, said) == (128 + signal.SIGPIPE, "")
    else:
        assert (done.returncode, said != "") == ({"provision": 4}.get(words[0], int(on_stderr)), True)


def test_completion(tmp_path: Path) -> None:
    done = run(
        state=tmp_path,
        _CLUSTERCTL_COMPLETE="complete_bash",
        _TYPER_COMPLETE_ARGS="clusterctl ",
        COMP_WORDS="clusterctl pro",
        COMP_CWORD="1",
    )
    assert done.stdout.split() == ["provision"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["bogus"], 2, "No such command"),
        (["provision"], 2, "INVENTORY: it is missing"),
        (["provision", "{good}", "--bogus"], 2, "No such option"),
        (["provision", "{good}", "--forks", "0"], 2, "--forks"),
        (["provision", "{good}", "--format", "xml"], 2, "--format"),
        (["gc", "{good}", "--keep", "-1"], 2, "Invalid value for '--keep': it must be greater than or equal to 2"),
        (["rotate"], 2, "host-keys"),
        (["rotate", "keys", "{good}"], 1, "so no node has such keys; provision it first"),
        (["drift", "{good}"], 1, "node1: not provisioned yet"),
        (["rollback", "{good}"], 1, "There is nothing to go back to"),
        (["provision", "{good}", "--full", "-t", "hosts"], 2, "leave out --tags and --skip-tags"),
        (["provision", "{good}", "--batch", "0"], 2, "'0' is too small; the least is 1"),
        (["provision", "{good}", "--batch", "150%"], 2, "'150%' is more than all hosts; the most is 100%"),
        (["provision", "{good}", "--batch", "some"], 2, "'some' is neither a number of hosts"),
        (["provision", "{good}", "--max-fail", "-1"], 2, "'-1' is neither a number of hosts"),
        (["provision", "{good}", "-e", "novalue"], 2, "'novalue' is not key=value, a JSON mapping or @file"),
        (["provision", "{good}", "-e", "{broken"], 2, "must be a JSON or YAML mapping"),
        (["provision", "{good}", "-e", "a='b"], 2, "unbalanced quotes"),
        (["provision", "{good}", "-e", "@/nix"], 2, "/nix does not exist"),
        (["provision", "{good}", "-K"], 1, "no terminal"),
        (["provision", "{good}", "--vault-id", "prod@prompt"], 1, "no terminal"),
        (["provision", "{good}", "--vault-password-file", "/nix"], 1, "vault"),
        (["provision", "{good}", "--private-key", "/nix"], 1, "/nix, which cannot be read"),
        (["provision", "{good}", "--limit", "nobody"], 1, "'nobody' matches no host"),
        (["provision", "{good}", "--limit", "node[1-999999999]"], 2, "names more than 100,000 hosts"),
        (["remove", "{good}", "node[1-999999999]"], 2, "'node[1-999999999]' names more than 100,000 hosts"),
        (["provision", "node[1-999999999],"], 2, "'node[1-999999999]' names more than 100,000 hosts"),
        (["rotate", "keys", "{certified}", "--ask-ca-passphrase"], 1, "/ca is missing; restore it from a backup"),
        (["replace", "{certified}", "node1", "--ask-ca-passphrase"], 1, "/ca is missing; restore it from a backup"),
        (["ca", "renew", "{certified}", "--ask-ca-passphrase"], 1, "/ca is missing; restore it from a backup"),
        (["provision", "{good}", "--tags", "nothing"], 1, "known tags are"),
        (["provision", "{nowhere}"], 1, "does not exist; 'clusterctl init"),
        (["hardware", "{good}", "nobody"], 1, "'nobody' matches no host"),
        (["hardware", "{good}", "node1"], 1, "No part of node1 is known"),
        (["hardware", "{nowhere}", "node1"], 1, "does not exist; 'clusterctl init"),
        (["provision", "{empty}"], 1, "names no host"),
        (["provision", "{broken}"], 1, "cannot be parsed"),
    ],
)
def test_bad_input_gets_one_sentence(tmp_path: Path, arguments: list[str], code: int, says: str) -> None:
    places = {name: tmp_path / f"{name}.yml" for name in ("good", "nowhere", "empty", "broken", "certified")}
    places["good"].write_text("nodes: {hosts: {node1: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n", encoding="utf-8")
    places["certified"].write_text("nodes: {hosts: {node1: {ssh_mesh_trust: ca}}}\n", encoding="utf-8")
    places["empty"].write_text("", encoding="utf-8")
    places["broken"].write_text("a: [b", encoding="utf-8")
    done = run(*(word.format(**places) if word[1:-1] in places else word for word in arguments), state=tmp_path)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not list(tmp_path.rglob("crashes"))


@pytest.mark.skipif(not shutil.which("podman"), reason="podman is asked for the containers")
def test_the_state_of_a_sandbox_is_on_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = paths.sandbox_dir("nothere")
    folder.mkdir(parents=True)
    found = Sandbox(
        name="nothere",
        network="nothere",
        subnet="192.0.2.0/24",
        images=("debian12",),
        nodes=(SandboxNode(name="node1", container="nothere-node1", address="192.0.2.1", image="debian12"),),
        inventory=tmp_path / "inventory.ini",
        private_key=tmp_path / "key",
        known_hosts=tmp_path / "known_hosts",
    )
    paths.sandbox_record(folder).write_text(found.model_dump_json(), encoding="utf-8")
    done = run("sandbox", "status", "--name", "nothere", state=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["node", "node1", "inventory"]


LONG = "x" * 300


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("report", LONG), "is not in the history"),
        (("history", LONG), "is not in the history"),
        (("compare", LONG, "last"), "is not in the history"),
        (("history", f"{LONG}.ini"), "File name too long"),
        (("report", f"{LONG}/validation.json"), "cannot be read: File name too long"),
        (("validate", LONG), "File name too long"),
        (("init", LONG), "File name too long"),
        (("hostfile", LONG), "File name too long"),
        (("nightly", "enable", "--at", "02:00", LONG), "File name too long"),
        (("provision", "n1,", "-e", f"@{LONG}"), "File name too long"),
        (("report", "last", f"--html={LONG}/x"), "File name too long"),
        (("report", "closed/validation.json"), "cannot be read: Permission denied"),
        (("report", "closed"), "closed cannot be used: Permission denied"),
        (("history", "closed/"), "closed cannot be used: Permission denied"),
        (("history", "closed/inventory.ini"), "Permission denied"),
        (("validate", "closed/inventory.ini"), "Permission denied"),
        (("hardware", "secret.ini", "n1"), "The inventory secret.ini cannot be read: Permission denied"),
        (("report", "secret.json"), "Permission denied"),
    ],
    ids=lambda words: " ".join(words).replace(LONG, "LONG") if isinstance(words, tuple) else "",
)
@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root gives up a right with setpriv")
def test_a_path_that_cannot_be_looked_at_gets_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    remember(Path("n1,"), record(1))
    (tmp_path / "closed").mkdir(mode=0)
    for name in ("secret.ini", "secret.json"):
        Path(name).touch(mode=0)
    rights = "-dac_override,-dac_read_search"
    under = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"] if os.geteuid() == 0 else []
    done = subprocess.run([*under, PROGRAM, *words], capture_output=True, text=True, check=False)
    (tmp_path / "closed").chmod(0o700)
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr
    assert "should not have happened" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_init_writes_an_inventory_that_loads(tmp_path: Path) -> None:
    target = tmp_path / "my cluster" / "inventory.ini"
    assert run("init", target, state=tmp_path).returncode == 0
    done = run("provision", target, "--limit", "nobody", state=tmp_path)
    assert "its hosts are: node1, node2" in done.stderr
    again = run("init", target, state=tmp_path)
    assert again.returncode == 1
    assert f"{target} exists" in again.stderr
    variables = target.parent / "group_vars" / "all.yml"
    variables.write_text("slots: 4\n", encoding="utf-8")
    second = run("init", target.with_name("second.ini"), state=tmp_path)
    assert (second.returncode, variables.read_text(encoding="utf-8")) == (0, "slots: 4\n")
    assert f"{variables} stays as it is" in second.stderr
    target.write_text("mine", encoding="utf-8")
    assert run("init", target, "--force", state=tmp_path).returncode == 0
    assert "[nodes]" in target.read_text(encoding="utf-8")


def test_json_goes_to_stdout_alone(tmp_path: Path) -> None:
    inventory = tmp_path / "i.ini"
    inventory.write_text("node1 ansible_host=127.0.0.1 ansible_port=1\n", encoding="utf-8")
    done = run("provision", inventory, "--format", "json", "-e", "token=hunter2", state=tmp_path)
    record = json.loads(done.stdout)
    assert (done.returncode, record["exit_code"], record["problems"][0]["host"]) == (4, 4, "node1")
    assert done.stderr == ""
    kept = "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("*") if path.is_file())
    assert "hunter2" not in kept
    lines = run("provision", inventory, "--format", "jsonl", state=tmp_path).stdout.splitlines()
    assert json.loads(lines[-1])["event"] == "Record"


def test_text_names_the_problem_in_a_table(tmp_path: Path) -> None:
    inventory = tmp_path / "i.ini"
    inventory.write_text("node[1:3] ansible_host=127.0.0.1 ansible_port=1\n", encoding="utf-8")
    done = run("provision", inventory, state=tmp_path)
    assert done.returncode == 4
    assert done.stdout == ""
    assert "What stands in the way" in done.stderr
    assert "Stopped before anything was changed" in done.stderr
