"""Which Python the roles accept, and which one the programs of the checks run with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import role_plays
import role_templates


@pytest.mark.parametrize(
    ("interpreter", "taken"),
    [
        ("/usr/bin/python3.11", "/usr/bin/python3.11"),
        ("/usr/bin/python3", "/usr/bin/python3"),
        ("/opt/tools/bin/python3.12", "/usr/bin/python3"),  # such as a virtual environment
        ("/usr/bin/python3.11-config", "/usr/bin/python3"),
        ("auto_silent", "/usr/bin/python3"),
    ],
)
def test_checks_run_with_a_newer_python_where_ansible_uses_it(interpreter: str, taken: str) -> None:
    variables = role_templates.variables_of("validation", ["defaults/main.yml"])
    variables |= {"ansible_python_interpreter": interpreter}
    assert role_templates.rendered("validation_python", variables, ()) == taken


@pytest.mark.programs
def test_an_unknown_python_is_refused_in_one_sentence(tmp_path: Path) -> None:
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "vars": {"python_env_python": "conda"}}
    done = role_plays.play(json.dumps([{**play, "roles": ["clusterctl.hpc.python_env"]}]), tmp_path)
    assert done.returncode != 0
    said = re.sub(r"\s+", " ", done.stdout)
    assert "value of python_env_python must be one of: system, managed, got: conda" in said, said
