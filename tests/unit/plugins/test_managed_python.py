"""Variables of the roles that build for a Python: the node's own keeps its artifacts, the managed one has its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import role_plays
import role_templates
import yaml
from ansible_collections.clusterctl.hpc.plugins.filter import artifact as artifact_filters
from ansible_collections.clusterctl.hpc.plugins.filter import stack
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact
from clusterctl.support import content

ROLES = content.root() / "roles"
MODULES_CHECK = ROLES / "python_env" / "files" / "modules_check.py"
OLD = "debian-11-x86_64-glibc2.31-py3.9"
TARGET = "debian-11-x86_64-glibc2.31-py3.13"
SHA256 = "93e583f243454e6e9e4588ca2c2662206ad961659863277afcdb96801647d640"
PYTHON = {"version": "3.13", "key": "0123456789abcdef"}
# The keys of builds for a node's own Python that exist already. Another key costs each site a build of minutes.
KEYS = {"python_env": "624ea35f77974dcb"}
MODES = ("system", "managed")
UNKNOWN_SOURCE = (
    "No source of Python 3.12.1 is known (known are 3.13.5); set python_env_python_sha256 to the sha256 of"
    " python.org's Python-3.12.1.tar.xz, or list sources in python_env_python_sources."
)
WHEELS = [
    {"name": "numpy", "version": "2.0.2", "filename": "numpy-2.0.2-cp39.whl", "sha256": "1" * 64},
    {"name": "torch", "version": "2.8.0", "filename": "torch-2.8.0-cp39.whl", "sha256": "2" * 64},
]


def made(role: str, expression: str, **given: Any) -> Any:
    """Return what an expression gives on a node with Debian 11, with the variables of one role."""
    variables: dict[str, Any] = {}
    for name in ("defaults/main.yml", "vars/main.yml", "vars/Debian.yml", "vars/Debian_11.yml"):
        path = ROLES / role / name
        variables |= yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for own in variables.values():
        for name, value in own.items() if isinstance(own, dict) else ():
            if "lookup(" in str(value):  # a file of the role, of which the key takes the content
                own[name] = f"sum of {name}"
    variables |= {
        f"{role}_node": {"platform": OLD, "artifacts": []},
        f"{role}_members": [{"name": "node1", "platform": OLD}],
        "ansible_play_hosts": ["node1"],
        "python_env_lock": {"wheels": {OLD: WHEELS}},
        "software_two_phases": True,
        "python_env_nccl": "bundled",
        **given,
    }
    return role_templates.rendered(expression, variables, (artifact_filters, stack))


def managed(role: str, expression: str, **given: Any) -> Any:
    return made(role, expression, python_env_python="managed", python_env_interpreter=PYTHON, **given)


@pytest.mark.parametrize("role", KEYS)
def test_what_is_built_for_the_nodes_own_python_keeps_its_key(role: str) -> None:
    inputs = made(role, f"__{role}_inputs", python_env_interpreter=PYTHON)
    assert "interpreter" not in inputs
    assert inputs["platform"] == OLD
    assert artifact.artifact_key(inputs) == KEYS[role]


@pytest.mark.parametrize("role", KEYS)
def test_what_is_built_for_the_managed_python_names_it(role: str) -> None:
    inputs = managed(role, f"__{role}_inputs")
    assert (inputs["platform"], inputs["interpreter"]) == (TARGET, managed(role, "__python_env_interpreter_key"))


def test_the_framework_is_the_newest_for_the_managed_python() -> None:
    release = {name: made("python_env", "__python_env_release.version", python_env_python=name) for name in MODES}
    assert release == {"system": "2.8.0", "managed": "2.13.0"}
    wish = managed("python_env", "__python_env_managed_wish")
    assert (wish["target"], wish["first_of"][0]) == (TARGET, ["torch==2.13.0+cpu"])
    assert "target" not in made("python_env", "__python_env_wish")


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
def test_a_newer_python_beside_the_distributions_own_is_taken_where_ansible_uses_it(
    interpreter: str, taken: str
) -> None:
    for role in ("python_env", "nccl"):
        found = made(role, f"__{role}_system_python", ansible_python_interpreter=interpreter)
        assert (role, found) == (role, taken)
    given = {"ansible_python_interpreter": interpreter}
    assert made("python_env", "__python_env_interpreter", **given) == taken
    assert made("validation", "validation_python", **given) == taken


def test_the_source_is_pythons_own_and_the_distributions() -> None:
    assert managed("python_env", "python_env_python_sources") == [
        {"url": "https://www.python.org/ftp/python/3.13.5/Python-3.13.5.tar.xz", "sha256": SHA256},
        {"apt": {"package": "python3.13", "version": "3.13.5", "sha256": SHA256}},
    ]
    assert managed("python_env", "python_env_python_sources", python_env_python_version="3.12.1") == []
    named = {"python_env_python_version": "3.12.1", "python_env_python_sha256": "3" * 64}
    (url, _) = managed("python_env", "python_env_python_sources", **named)
    assert url == {"url": "https://www.python.org/ftp/python/3.12.1/Python-3.12.1.tar.xz", "sha256": "3" * 64}
    assert managed("python_env", "__python_env_target", **named) == TARGET.replace("3.13", "3.12")


def test_each_release_and_source_of_the_interpreter_has_a_key_of_its_own() -> None:
    sites: tuple[dict[str, Any], ...] = (
        {},
        {"python_env_python_version": "3.13.6", "python_env_python_sha256": "4" * 64},
        {"python_env_python_sha256": "5" * 64},
        {"cluster_prefix": "/opt/cluster"},
        {"python_env_node": {"platform": OLD.replace("glibc2.31", "glibc2.36")}},
    )
    keys = [managed("python_env", "__python_env_interpreter_key", **given) for given in sites]
    assert len(set(keys)) == len(sites)
    elsewhere = {"python_env_python_sources": [{"path": "/srv/python.tar.xz", "sha256": SHA256}]}
    assert managed("python_env", "__python_env_interpreter_key", **elsewhere) == keys[0], "the same archive"


@pytest.mark.parametrize(
    ("platform", "version", "expected"),
    [
        (OLD, "", OLD),
        (OLD, "3.13.5", TARGET),
        (f"{OLD}-cuda12", "3.13.5", f"{TARGET}-cuda12"),
        ("debian-forky-x86_64-glibc2.43-py3.14", "3.9", "debian-forky-x86_64-glibc2.43-py3.9"),
    ],
)
def test_a_platform_gets_another_python(platform: str, version: str, expected: str) -> None:
    assert stack.platform_with_python(platform, version) == expected


@pytest.mark.programs
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"python_env_python_version": "3.13"}, "python_env_python_version is '3.13', which is not a release"),
        ({"python_env_python_version": "3.12.1"}, UNKNOWN_SOURCE),
    ],
)
def test_a_managed_python_that_cannot_be_built_is_refused_first(
    given: dict[str, str], said: str, tmp_path: Path
) -> None:
    variables = {
        "python_env_python": "managed",
        "python_env_members": [{"name": "localhost", "platform": OLD}],
        "python_env_node": {"platform": OLD},
        "python_env_cache_dir": str(tmp_path / "cache"),
        **given,
    }
    tasks = {"include_role": {"name": "clusterctl.hpc.python_env", "tasks_from": "preflight.yml"}}
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "vars": variables, "tasks": [tasks]}
    done = role_plays.play(json.dumps([play]), tmp_path)
    assert done.returncode != 0
    assert said in " ".join(done.stdout.replace('"', " ").split()), done.stdout + done.stderr
    assert not (tmp_path / "cache").exists()


@pytest.mark.programs
def test_an_unknown_python_is_refused_in_one_sentence(tmp_path: Path) -> None:
    variables = {
        "python_env_python": "conda",
        "python_env_members": [{"name": "localhost", "platform": OLD}],
        "python_env_node": {"platform": OLD},
    }
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "vars": variables}
    done = role_plays.play(json.dumps([{**play, "roles": ["clusterctl.hpc.python_env"]}]), tmp_path)
    assert done.returncode != 0
    said = re.sub(r"\s+", " ", done.stdout)
    assert "value of python_env_python must be one of: system, managed, got: conda" in said, said


@pytest.mark.programs
def test_a_python_without_a_module_names_it(tmp_path: Path) -> None:
    argv = [sys.executable, str(MODULES_CHECK)]
    whole = subprocess.run([*argv, "zlib", "_ssl"], capture_output=True, text=True, check=False, env=dict(os.environ))
    assert (whole.returncode, whole.stdout.split(" has ")[1]) == (0, "zlib, _ssl.\n")
    done = subprocess.run([*argv, "zlib", "_none"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert re.match(r"Python 3\.\S+ lacks _none \(.*; install the headers of these libraries", done.stderr)
