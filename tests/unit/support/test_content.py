from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusterctl.support import content
from clusterctl.support.errors import ConfigError

ORDER = [
    "preflight",
    "hosts",
    "ssh_mesh",
    "environment",
    "ucx",
    "openmpi",
    "fabric",
    "python_env",
    "mpi4py",
    "nccl",
    "horovod",
    "validation",
]
# The roles by which nodes meet each other come first, because hosts that are as they should be play these alone.
# The software is decided, built, installed and switched in a play each.
PLAYED = ["preflight", "software", "hosts", "ssh_mesh", "fabric", "environment", *["software"] * 3, "validation"]


def roles() -> list[str]:
    return sorted(path.parents[1].name for path in (content.root() / "roles").glob("*/tasks/main.yml"))


def test_ansible_finds_the_collection() -> None:
    collection = content.collections_path() / "ansible_collections" / "clusterctl" / "hpc"
    assert (collection / "roles" / "preflight").is_dir()


def test_the_digest_follows_what_runs_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "root", lambda: tmp_path)
    (tmp_path / "roles" / "x" / "molecule").mkdir(parents=True)
    (tmp_path / "roles" / "x" / "main.yml").write_text("a", encoding="utf-8")
    before = content.digest.__wrapped__()
    (tmp_path / "roles" / "x" / "molecule" / "verify.yml").write_text("a", encoding="utf-8")
    assert content.digest.__wrapped__() == before
    (tmp_path / "roles" / "x" / "main.yml").write_text("b", encoding="utf-8")
    assert content.digest.__wrapped__() != before


@pytest.mark.parametrize("name", ["fabric_rules", "job_user_rules"])
def test_a_file_that_plugins_and_clusterctl_share_is_loaded_once(name: str) -> None:
    assert content.module_util(name) is content.module_util(name)
    assert content.module_util(name).__doc__


def test_what_clusterctl_shares_with_the_collection_needs_no_ansible() -> None:
    """Only Ansible's own process finds ``ansible_collections``; the tests find it as well, so another process asks."""
    package = Path(content.__file__).parents[1]
    texts = [path.read_text(encoding="utf-8") for path in package.rglob("*.py")]
    names = sorted({name for text in texts for name in re.findall(r'\bmodule_util\("([\w.]+)"\)', text)})
    assert "fabric_rules" in names
    script = "import sys; from clusterctl.support import content\nfor name in sys.argv[1:]: content.module_util(name)"
    python = {"PYTHONPATH": str(package.parent), "HOME": str(Path.home())}
    done = subprocess.run(
        [sys.executable, "-c", script, *names], env=python, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_shared_file_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"plugins/module_utils/absent\.py is missing; reinstall clusterctl"):
        content.module_util("absent")


SOFTWARE = ["ucx", "openmpi", "python_env", "mpi4py", "nccl", "horovod"]


def whole_roles() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the plays, and the tasks that play a role in whole or a part of the software."""
    plays = yaml.safe_load(content.playbook("provision").read_text(encoding="utf-8"))
    tasks = [task for play in plays for task in play["tasks"] if "ansible.builtin.import_role" in task]
    parts = {None, "judge", "mesh", "plan", "build", "stage", "install", "switch"}
    return plays, [task for task in tasks if task["ansible.builtin.import_role"].get("tasks_from") in parts]


@pytest.mark.parametrize("role", SOFTWARE)
def test_a_role_of_the_software_plays_what_they_share(role: str) -> None:
    path = content.root() / "roles" / role / "tasks" / "main.yml"
    (task,) = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert task["ansible.builtin.import_role"] == {"name": "clusterctl.hpc.software"}
    assert task["vars"] == {"software_roles": [role]}


def test_every_role_is_provisioned_in_order() -> None:
    plays, tasks = whole_roles()
    named = [task["ansible.builtin.import_role"]["name"].rpartition(".")[2] for task in tasks]
    assert named == PLAYED
    decided, *others = [task for name, task in zip(named, tasks, strict=True) if name == "software"]
    assert "always" in decided["tags"], "what is refused is told before anything changes"
    assert [task["tags"] for task in others] == [["software", *SOFTWARE]] * 3
    alone = [(name, task) for name, task in zip(named, tasks, strict=True) if name != "software"]
    assert all(name in task["tags"] for name, task in alone), "each role answers to its own name as a tag"
    assert not any(play["gather_facts"] for play in plays)


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in strings(one)]
    if isinstance(value, list):
        return [text for one in value for text in strings(one)]
    return [str(value)]


def test_the_playbook_computes_nothing() -> None:
    """It looks at the hosts of plays, the run's name, a node's facts, who builds, and whether too many hosts failed."""
    plays = whole_roles()[0]
    for play in plays:
        computed = {text for text in strings(play) if "{{" in text}
        assert computed <= {
            "{{ clusterctl_run | default({}) | to_json }}",
            "{{ provision_whole | default('all') }}",
            "{{ provision_settled | default('!all') }}",
            "{{ provision_unfinished | default('!all') }}",
            "{{ provision_max_failed | default(0) }}",
            "{{ __preflight_look.node }}",
        }
    assert not [
        task
        for play in plays
        for task in play["tasks"]
        if set(task) - {"ansible.builtin.import_role", "tags", "name"}
        and task.get("ansible.builtin.meta") not in {"end_play", "end_host"}
    ]


def test_every_role_takes_from_preflight_who_is_there() -> None:
    for role in shown_roles():
        path = content.root() / "roles" / role / "defaults" / "main.yml"
        defaults = yaml.safe_load(path.read_text(encoding="utf-8"))
        given = {name: defaults[f"{role}_{name}"] for name in ("members", "node") if f"{role}_{name}" in defaults}
        assert (
            given.items()
            <= {
                "members": "{{ preflight_members | default([]) }}",
                "node": "{{ preflight_node | default({}) }}",
            }.items()
        ), role


def test_every_readme_opens_with_the_roles_promise() -> None:
    for role in roles():
        text = (content.root() / "roles" / role / "README.md").read_text(encoding="utf-8")
        promise = re.match(rf"# {role}\n\n\*\*`{role}`: ([^*]+)\*\*\n", text)
        assert promise, role
        assert promise[1].endswith("."), role
        assert len(promise[1].split()) <= 25, role


def test_every_variable_is_described_in_sentences() -> None:
    """The reference of variables is made of these descriptions."""
    for role in shown_roles():
        path = content.root() / "roles" / role / "meta" / "argument_specs.yml"
        for name, option in yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]["main"][
            "options"
        ].items():
            words = option["description"]
            for sentence in [words] if isinstance(words, str) else words:
                assert re.fullmatch(r"[A-Z].*[.)]", sentence, flags=re.DOTALL), name


EXAMPLE = content.root() / "inventories" / "example"
HEAD = """\
---
## Every variable of every role with its default. A line that begins with one '#' is a variable, or belongs to the one
## above it. Remove the '# ' from what you change. Variables of single hosts go into host_vars/HOST.yml in the same way.
"""
# Taken from another role's facts or passed by the wrapper; a user does not set them.
PASSED = re.compile(
    r"preflight_known_members|\w+_settled|preflight_distrusted|preflight_left_out|preflight_adopt|preflight_claimed|preflight_cluster|ssh_mesh_rotate|ssh_mesh_more_host_keys"
    r"|\w+_members|\w+_node|\w+_inventory"
)


def shown_roles() -> list[str]:
    return [name for name in ORDER if (content.root() / "roles" / name / "defaults" / "main.yml").is_file()]


def options_of(role: str) -> dict[str, Any]:
    """Return the options of a role's argument specs."""
    path = content.root() / "roles" / role / "meta" / "argument_specs.yml"
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"].values()
    return {name: option for entry in entries for name, option in entry.get("options", {}).items()}


def described(option: dict[str, Any]) -> str:
    """Return a description as comments, without the markup of Ansible."""
    words = option["description"]
    text = words if isinstance(words, str) else " ".join(words)
    if "choices" in option:
        text += f" One of {', '.join(str(one) or 'empty' for one in option['choices'])}."
    text = re.sub(r"\b[VOCEP]\(((?:[^()\\]|\\.)*)\)", r"\1", text).replace("\\", "")
    return "".join(f"## {line}\n" for line in textwrap.wrap(text, 117, break_on_hyphens=False))


def example_text() -> str:
    """Return what the example has to be: each role's defaults, commented out, below what their specs say of them."""
    text = HEAD
    for role in shown_roles():
        text += f"\n## --- {role} {'-' * (110 - len(role))}\n"
        lines = (content.root() / "roles" / role / "defaults" / "main.yml").read_text(encoding="utf-8").splitlines()
        options, hidden = options_of(role), False
        for line in lines[2:]:
            if line[0] not in " -":
                name = line.partition(":")[0]
                hidden = bool(PASSED.fullmatch(name))
                text += "" if hidden else f"{described(options[name])}# {line}\n\n"
            elif not hidden:
                text = f"{text.removesuffix(chr(10))}# {line}\n\n"
        text = text.removesuffix("\n")
    return text


def test_what_a_variable_means_is_said_once() -> None:
    for role in shown_roles():
        path = content.root() / "roles" / role / "defaults" / "main.yml"
        head, *others = path.read_text(encoding="utf-8").splitlines()[1:]
        assert head == "# meta/argument_specs.yml says what each variable means."
        assert not [line for line in others if not line or line.startswith("#")], role


def test_the_example_shows_every_variable_with_its_default() -> None:
    """Run this file as a program to write the example anew."""
    assert (EXAMPLE / "group_vars" / "all.yml").read_text(encoding="utf-8") == example_text()


def test_the_example_names_what_the_roles_know() -> None:
    shown = set(re.findall(r"^# ([a-z][a-z0-9_]*):", example_text(), flags=re.MULTILINE))
    known = set()
    for role in shown_roles():
        known |= set(options_of(role))
    assert {name for name in known if not PASSED.fullmatch(name)} == shown


def test_the_example_uncommented_is_what_the_roles_default_to() -> None:
    given = yaml.safe_load(re.sub(r"^# ", "", example_text(), flags=re.MULTILINE)) or {}
    for role in shown_roles():
        path = content.root() / "roles" / role / "defaults" / "main.yml"
        for name, value in yaml.safe_load(path.read_text(encoding="utf-8")).items():
            if not PASSED.fullmatch(name):
                assert given[name] == value, name


if __name__ == "__main__":
    (EXAMPLE / "group_vars" / "all.yml").write_text(example_text(), encoding="utf-8")
