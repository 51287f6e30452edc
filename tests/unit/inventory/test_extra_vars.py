"""Extra variables reach Ansible's programs unchanged, and their values stand in no process list."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clusterctl.inventory import ansible_call, ansible_inventory
from clusterctl.model.hosts import InventoryOptions, InventorySources
from clusterctl.model.run_record import Event
from clusterctl.provisioning import playbook
from clusterctl.provisioning.playbook import Cancel, Play
from clusterctl.support.errors import ConfigError

pytestmark = pytest.mark.programs

VALUES = (
    "a=1 b='two words'",
    'quoted="it\'s" path=C:\\\\x later={{ a }}',
    '{"c": 3, "d": ["x", {"e": null}], "f": true}',
    "{g: yes, h: 'no'}",
    "a=last",
)
# A task that writes its variables, and the argument lists of all processes of this machine, while the play runs.
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.copy:
        dest: "{{ answer }}"
        content: "{{ dict(names | zip(names | map('extract', vars))) | to_json }}"
    - ansible.builtin.shell: cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ > {{ answer }}.processes 2>/dev/null || true
"""


def play(folder: Path, values: tuple[str, ...], more: dict[str, Any]) -> None:
    (folder / "play.yml").write_text(PLAY, encoding="utf-8")
    (folder / "i.ini").write_text("here ansible_connection=local\n", encoding="utf-8")
    heard: list[Event] = []
    options = InventoryOptions(extra_vars=values)
    asked = Play(folder / "play.yml", InventorySources.of(folder / "i.ini"), options=options, variables=more)
    (folder / "private").mkdir(mode=0o700)
    end = playbook.run(asked, folder / "private", folder / "log", heard.append, Cancel())
    assert end.status == "successful", (folder / "log").read_text(encoding="utf-8")


def test_a_play_gets_what_ansibles_own_options_would_give(tmp_path: Path) -> None:
    names = [*"abcdfgh", "quoted", "path", "later"]
    (tmp_path / "user.yml").write_text("i: of a file\n", encoding="utf-8")
    ours = {"answer": str(tmp_path / "ours"), "names": names, "a": "of the wrapper"}
    play(tmp_path, (*VALUES, f"@{tmp_path}/user.yml"), ours)
    options = [word for value in (json.dumps({**ours, "answer": str(tmp_path / "theirs")}), *VALUES)
               for word in ("-e", value)]  # fmt: skip
    program = Path(sys.executable).with_name("ansible-playbook")
    argv = [str(program), "-i", str(tmp_path / "i.ini"), str(tmp_path / "play.yml"), *options]
    subprocess.run(argv, check=True, capture_output=True)
    got = [json.loads((tmp_path / name).read_text(encoding="utf-8")) for name in ("ours", "theirs")]
    assert got[0] == got[1]
    assert got[0]["later"] == "last"


def test_no_process_shows_a_value_while_a_play_runs(tmp_path: Path) -> None:
    ours = {"answer": str(tmp_path / "ours"), "names": ["a", "b"]}
    play(tmp_path, ("a=canary-one b=2", '{"c": "canary-two"}'), ours)
    seen = (tmp_path / "ours.processes").read_bytes()
    assert b"ansible-playbook" in seen
    assert b"canary" not in seen
    assert "canary-one" in (tmp_path / "ours").read_text(encoding="utf-8")


def test_no_process_shows_a_value_while_an_inventory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inventory is a program: it sees the arguments of ansible-inventory, which has started it."""
    monkeypatch.setattr(ansible_call, "subprocess", subprocess)
    script = tmp_path / "inventory.sh"
    script.write_text(
        f"#!/bin/sh\ntr '\\0' ' ' < /proc/$PPID/cmdline >> {tmp_path}/seen\n"
        'echo \'{"nodes": {"hosts": ["n1"], "vars": {"ansible_host": "{{ at }}"}}}\'\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    options = InventoryOptions(extra_vars=("at=192.0.2.7 canary=x", "{slots: 3}"))
    (host,) = ansible_inventory.load(script, options).hosts
    assert (host.address, host.slots) == ("192.0.2.7", 3)
    seen = (tmp_path / "seen").read_text(encoding="utf-8")
    folders = {str(Path(file).parent) for file in re.findall(r"--extra-vars=@(\S+)", seen)}
    assert len(folders) == 2, "ansible-inventory and the program beside it"
    assert not any(Path(folder).exists() for folder in folders)
    assert "canary" not in seen


def test_a_file_of_a_value_is_its_owners_alone(tmp_path: Path) -> None:
    options = ansible_call.in_folder(["a=1", "@theirs"], tmp_path)
    (path,) = tmp_path.iterdir()
    assert options == [f"--extra-vars=@{path}", "--extra-vars=@theirs"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):  # nor is a file or link of that name written through
        ansible_call.in_folder(["a=1"], tmp_path)


@pytest.mark.parametrize(("value", "words"), [("a='1", "unbalanced quotes"), ("./vars.yml", "@PATH")])
def test_what_ansible_would_refuse_is_refused_without_its_value(value: str, words: str, tmp_path: Path) -> None:
    inventory = tmp_path / "i.ini"
    inventory.write_text("n1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=words) as caught:
        ansible_call.call(["true"], InventoryOptions(extra_vars=(value,)))
    assert value not in str(caught.value)
