from __future__ import annotations

import re
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
    "openmpi",
    "fabric",
    "python_env",
    "mpi4py",
    "nccl",
    "horovod",
    "validation",
]
# The roles by which nodes meet each other come first, because hosts that are as they should be play these alone.
# NCCL comes before mpi4py, so that Horovod can be built beside mpi4py.
PLAYED = [*ORDER[:3], "fabric", "environment", "openmpi", "python_env", "nccl", "mpi4py", "horovod", "validation"]


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


def test_a_shared_file_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"plugins/module_utils/absent\.py is missing; reinstall clusterctl"):
        content.module_util("absent")


def whole_roles() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the plays, and the tasks that install each role.

    The first play brings the refusals of the software, the second installs it, and the third one proves it.
    """
    plays = yaml.safe_load(content.playbook("provision").read_text(encoding="utf-8"))
    tasks = [task for play in plays for task in play["tasks"] if "ansible.builtin.import_role" in task]
    return plays, [task for task in tasks if task["ansible.builtin.import_role"].get("tasks_from") in {None, "install"}]


def test_what_the_playbook_takes_of_the_software_is_the_whole_of_its_roles() -> None:
    """A step that a role's own list of steps has, and the playbook lacks, would be left out in silence."""
    plays = whole_roles()[0]
    taken: dict[str, set[str]] = {}
    for task in (
        task for play in plays for task in [*play["tasks"], *blocks(play)] if "ansible.builtin.import_role" in task
    ):
        brought = task["ansible.builtin.import_role"]
        taken.setdefault(brought["name"].rpartition(".")[2], set()).add(brought.get("tasks_from", "main"))
    installed = [role for role, parts in taken.items() if "install" in parts]
    assert installed == ["openmpi", "mpi4py", "python_env", "nccl", "horovod"]
    for role in installed:
        path = content.root() / "roles" / role / "tasks" / "main.yml"
        steps = yaml.safe_load(path.read_text(encoding="utf-8"))
        # What a role gathers where it is played alone, the playbook has gathered before.
        gathered = [step["ansible.builtin.include_role"] for step in steps if "ansible.builtin.include_role" in step]
        assert all(one.get("tasks_from", "main") in taken[one["name"].rpartition(".")[2]] for one in gathered)
        own = {step["ansible.builtin.import_tasks"] for step in steps if "ansible.builtin.include_role" not in step}
        whole = taken[role] - {"early"}  # an early fetch that a role alone has no use for
        assert {f"{part}.yml" for part in whole} == own


def blocks(play: dict[str, Any]) -> list[dict[str, Any]]:
    return [task for block in play["tasks"] for task in block.get("block", [])]


def test_every_role_is_provisioned_in_order() -> None:
    plays, tasks = whole_roles()
    named = [task["ansible.builtin.import_role"]["name"] for task in tasks]
    assert named == [f"clusterctl.hpc.{name}" for name in PLAYED if name in roles()]
    tagged = [name for name, task in zip(named, tasks, strict=True) if name.rpartition(".")[2] in task["tags"]]
    assert tagged == named, "each role answers to its own name as a tag"
    assert not any(play["gather_facts"] for play in plays)


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in strings(one)]
    if isinstance(value, list):
        return [text for one in value for text in strings(one)]
    return [str(value)]


def test_the_playbook_computes_nothing() -> None:
    """Which hosts play what, what the run is called, and where too many hosts have failed is all that it looks at.

    The switch alone looks at all nodes, because it changes the links of all or of none.
    """
    plays = whole_roles()[0]
    others = [play for play in plays if play["name"] != "Switch to the software"]
    assert len(others) == len(plays) - 1
    for play in others:
        computed = {text for text in strings(play) if "{{" in text}
        assert computed <= {
            "{{ clusterctl_run | default({}) | to_json }}",
            "{{ provision_whole | default('all') }}",
            "{{ provision_settled | default('!all') }}",
            "{{ provision_unfinished | default('!all') }}",
        }
    assert not [
        task
        for play in others
        for task in play["tasks"]
        if set(task) - {"ansible.builtin.import_role", "tags", "name"}
        and task.get("ansible.builtin.meta") != "end_play"
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
    r"|\w+_members|\w+_node|\w+_inventory|\w+_(openmpi|nccl)_key|horovod_nccl_expected"
    r"|horovod_framework|nccl_frameworks|python_env_nccl"
)


def shown_roles() -> list[str]:
    return [name for name in ORDER if (content.root() / "roles" / name / "defaults" / "main.yml").is_file()]


def example_text() -> str:
    """Return what the example has to be: each role's defaults, commented out, and their comments doubly."""
    text = HEAD
    for role in shown_roles():
        text += f"\n## --- {role} {'-' * (110 - len(role))}\n"
        lines = (content.root() / "roles" / role / "defaults" / "main.yml").read_text(encoding="utf-8").splitlines()
        above: list[str] = []  # the comment that stands above a variable
        hidden = False
        for line in lines[1:]:
            if line.startswith("#"):
                above.append(f"#{line}")
            elif not line:
                above, hidden = [*above, ""], False
            elif line[0] not in " -":
                hidden = bool(PASSED.fullmatch(line.partition(":")[0]))
                text += "" if hidden else "".join(f"{words}\n" for words in [*above, f"# {line}"])
                above = []
            elif not hidden:
                text += f"# {line}\n"
    return text


def test_the_example_shows_every_variable_with_its_default() -> None:
    """Run this file as a program to write the example anew."""
    assert (EXAMPLE / "group_vars" / "all.yml").read_text(encoding="utf-8") == example_text()


def test_the_example_names_what_the_roles_know() -> None:
    shown = set(re.findall(r"^# ([a-z][a-z0-9_]*):", example_text(), flags=re.MULTILINE))
    known = set()
    for role in shown_roles():
        path = content.root() / "roles" / role / "meta" / "argument_specs.yml"
        for entry in yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"].values():
            known |= set(entry.get("options", {}))
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
