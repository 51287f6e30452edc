"""Claims over ssh: this machine stands for the nodes, and nodes that answer with something else are failures."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.hosts import Host
from clusterctl.provisioning import node_ownership

pytestmark = pytest.mark.programs

HOST = Host("node7", "192.0.2.7", python=sys.executable)
MARK = '{"cluster":"c","name":"n","controller":"x","inventory":"/i","since":"","members":{"a":"b"}}'


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an ``ssh`` in front that runs the command here, or the script of a node that answers otherwise."""
    program = tmp_path / "ssh"
    program.write_text(
        f'#!/bin/sh\ntest -e {tmp_path}/says && exec sh {tmp_path}/says\nfor word; do :; done\neval "$word"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CLUSTERCTL_CLAIM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("CLUSTERCTL_CLAIM_RUN", str(tmp_path / "run"))
    return tmp_path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root claims a node")
def test_a_node_is_locked_marked_looked_at_and_released(node: Path) -> None:
    lock: dict[str, Any] = {"run": "r", "host": "node7", "user": "first", "pid": 7}
    look = {"names": ["node7"], "addresses": ["192.0.2.7"], "cluster": "", "lock": lock}
    mark = {"cluster": "c", "name": "lab", "controller": "first@desk", "inventory": "/lab.ini", "members": {"gone": ""}}
    answers, failures = node_ownership.ask({HOST: look})
    assert (answers["node7"].taken, answers["node7"].mark, failures) == (True, None, {})
    node_ownership.ask({HOST: {"mark": mark}})
    other, _ = node_ownership.ask({HOST: {**look, "cluster": "c", "lock": {**lock, "run": "s"}}})
    assert other["node7"].holder is not None
    assert (other["node7"].holder.run, other["node7"].holder.user, other["node7"].taken) == ("r", "first", False)
    foreign, _ = node_ownership.ask({HOST: look})
    assert foreign["node7"].lost == ("gone",)
    node_ownership.ask({HOST: {"release": "r", "forget": "c"}})
    assert [path for path in node.rglob("*") if path.is_file() and path.parent != node] == []


@pytest.mark.parametrize(
    "says",
    [
        "echo hello",
        """echo '{"node_ownership": []}'""",
        """echo '{"node_ownership":[]}'""",
        """echo '{"node_ownership":{"lost":7}}'""",
        f"""echo '{{"node_ownership":{{"mark":{MARK.replace('"c"', "[]")}}}}}'""",
        """printf '{"node_ownership":{"taken":\\377}}\\n'""",
        "exec head -c 20000000 /dev/zero",
        "exit 3",
    ],
)
def test_another_answer_is_a_failure_of_its_host(node: Path, says: str) -> None:
    (node / "says").write_text(says)
    answers, failures = node_ownership.ask({HOST: {}})
    assert answers == {}
    assert "node7" in failures["node7"].message


def test_words_of_a_login_script_around_the_answer_do_not_matter(node: Path) -> None:
    (node / "says").write_text(f"""echo welcome; echo '{{"node_ownership":{{"mark":{MARK}}}}}'; echo bye""")
    answers, _ = node_ownership.ask({HOST: {}})
    assert answers["node7"].mark is not None
    assert answers["node7"].mark.members == {"a": "b"}
