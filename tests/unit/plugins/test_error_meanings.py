"""The table of known messages: each row has a real example, and each example its meaning."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import string
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import error_meanings
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import artifact_action
from clusterctl.validation.checks import mpirun_output

DATA = Path(__file__).parents[2] / "data"
EXAMPLES = json.loads((DATA / "error_meanings.json").read_text(encoding="utf-8"))
PROGRAMS = sorted({row.program for row in error_meanings.ROWS})
NO_WORDS = re.compile(r"\(\?[^)]*>|\\[a-zA-Z]|\(\?s\)|\(\?:|\{[^}]*\}|[\\^$()?*+|\[\]]")
MOST_S = 2.0  # of CPU; a pattern with two gaps of any length takes minutes
NAMED = ("account", "bastion", "file", "job", "let_in", "login", "minutes", "mirror", "node", "of", "partition")
VALUES = dict.fromkeys((*NAMED, "place", "python", "speaker"), "VALUE")


def captured() -> Iterator[dict[str, Any]]:
    """Yield the examples that other tests read as well, without their meaning."""
    files = {"ssh": "node_probe/ssh-failures", "bastion": "node_probe/bastion-failures", "srun": "slurm/srun-failures"}
    for program, name in files.items():
        for case in json.loads((DATA / f"{name}.json").read_text(encoding="utf-8")):
            yield {"program": program, "said": case["stderr"]}
    for path in sorted((DATA / "launcher").rglob("*.txt")):
        for passage in mpirun_output._passages(path.read_text(encoding="utf-8").splitlines()[1:]):  # noqa: SLF001
            yield {"program": "mpirun", "said": passage.text}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: f"{one['program']}: {one['said'][-50:].strip()}")
def test_what_a_program_says_has_one_meaning(example: dict[str, Any]) -> None:
    found = error_meanings.find(example["program"], example["said"])
    if example["means"] is None:
        assert found is None
        return
    told = "; ".join(found.meaning(**VALUES))
    assert found.row.kind == example["kind"]
    assert example["means"] in told
    assert "\n" not in told
    assert found.line in example["said"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_row_has_an_example_and_a_source(program: str) -> None:
    said = [one["said"] for one in (*EXAMPLES, *captured()) if one["program"] == program]
    found = {message.row for message in (error_meanings.find(program, text) for text in said) if message}
    rows = [row for row in error_meanings.ROWS if row.program == program]
    assert [row.pattern for row in rows if row not in found] == []
    assert all(row.cause and row.cure and row.source for row in rows)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_row_names_only_its_groups_and_known_values(program: str) -> None:
    for row in error_meanings.ROWS:
        groups = re.compile(row.pattern).groupindex
        for text in (row.cause, row.cure) if row.program == program else ():
            assert {name for _, name, _, _ in string.Formatter().parse(text) if name} <= {*groups, *VALUES}


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_text_makes_a_pattern_slow(program: str) -> None:
    """The words of a pattern, repeated one by one and one after another, are the texts that make a pattern slow."""
    for row in error_meanings.ROWS:
        if row.program != program:
            continue
        words = [word for word in NO_WORDS.split(row.pattern) if word.strip()]
        joined = ["".join(words[:count]) for count in range(1, len(words) + 1)]
        blocks = ["".join(f"{word} " * (4096 // len(words) // (len(word) + 1)) for word in words)]
        begun = time.process_time()
        for text in (*words, *joined, *blocks, "a", " ", "/", "@", "a/ompi.a.1"):
            re.search(row.pattern, (text * 4096)[:4096], re.IGNORECASE)
        assert time.process_time() - begun < MOST_S, row.pattern


def test_a_message_is_found_at_both_ends_of_a_text_of_any_length() -> None:
    noise = "x" * 100_000
    for text in (f"Missing sudo password\n{noise}", f"{noise}\nMissing sudo password", f"{noise}\n" * 100):
        found = error_meanings.find("Ansible", text)
        assert (found is not None) == ("sudo" in text)


def test_what_a_message_holds_is_never_a_template() -> None:
    found = error_meanings.find("package", 'Could not find a matching action for the "{0.__class__}" package manager')
    assert found.meaning()[0].endswith("{0.__class__}")


def test_the_mirror_and_the_file_are_named_and_no_password() -> None:
    with_password = next(one["said"] for one in EXAMPLES if "secret" in one["said"])
    told = artifact_action.package_complaint(with_password)
    assert told.startswith("the package mirror 192.0.2.1 sent another file in place of InRelease, such as a login ")
    assert "secret" not in told
    assert artifact_action.package_complaint("E: Unable to locate package gcc") == "E: Unable to locate package gcc"


@pytest.mark.programs
def test_what_this_ansible_says_without_the_module_is_known() -> None:
    argv = [str(Path(sys.executable).with_name("ansible")), "localhost", "--connection", "local", "--one-line"]
    argv += ["--module-name", "ansible.builtin.package", "--args", "name=hello use=another_manager"]
    environment = {**os.environ, "ANSIBLE_STDOUT_CALLBACK": "minimal", "ANSIBLE_LOCALHOST_WARNING": "false"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    words = artifact_action.package_complaint(done.stdout.replace('\\"', '"'))
    assert words.startswith("Ansible on the controller has no module for another_manager;"), done.stdout


PAGE = b"<!doctype html><html><body>Sign in</body></html>"


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_unused: object) -> None:
        pass


@pytest.fixture
def mirror() -> Iterator[str]:
    """Yield the address of a server that answers everything with the page."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/debian"
        server.shutdown()


@pytest.mark.programs
def test_what_a_real_apt_says_of_such_a_mirror_is_known(mirror: str, tmp_path: Path) -> None:
    if shutil.which("apt-get") is None:
        pytest.skip("needs apt-get")
    for folder in ("lists/partial", "cache/archives/partial", "sources", "conf"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "sources.list").write_text(f"deb {mirror} bookworm main\n", encoding="utf-8")
    (tmp_path / "apt.conf").write_text('Acquire::http::Proxy "DIRECT";\n', encoding="utf-8")
    settings = {
        "Dir::State::lists": tmp_path / "lists",
        "Dir::Cache": tmp_path / "cache",
        "Dir::Etc::sourcelist": tmp_path / "sources.list",
        "Dir::Etc::sourceparts": tmp_path / "sources",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "true",
    }
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    environment = {**os.environ, "LC_ALL": "C", "APT_CONFIG": str(tmp_path / "apt.conf")}
    argv = ["apt-get", "-q", *options, "update"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode != 0, done.stdout
    told = artifact_action.package_complaint(done.stderr)
    assert told.startswith("the package mirror 127.0.0.1 sent another file in place of InRelease"), done.stderr
