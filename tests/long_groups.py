"""Long groups of tests on nodes run where the change touched what they depend on; tests/changed.py says what changed.

Of each, the tests that prove its main promise run always. A file that is named on the command line runs whole.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import changed
import pytest

CLUSTER = "tests/cluster"


class Group(NamedTuple):
    """What keeps a file's tests from being left out."""

    always: tuple[str, ...]  # tests of its main promise
    paths: tuple[str, ...]  # folders and patterns; the file itself and the helpers that it imports are added


# The key is the file's name without 'test_'.
GROUPS = {
    "training": Group(
        ("test_a_healthy_pair_trains_by_each_of_the_three_ways", "test_a_wrong_average_on_one_rank_is_named"),
        (
            "roles/horovod",
            "roles/python_env",
            "roles/validation/files",
            "python/clusterctl/launch/*torch*",
            "python/clusterctl/launch/mpirun_job.py",
            "python/clusterctl/validation/checks",
            "plugins/*framework*",
            "plugins/*wheel*",
        ),
    ),
    "examples": Group(
        ("test_mpi[allreduce-*", "test_horovod[allgather-*"),
        (
            "examples",
            "roles/openmpi",
            "roles/mpi4py",
            "roles/horovod",
            "roles/python_env",
            "python/clusterctl/cli/run.py",
            "python/clusterctl/jobs",
            "python/clusterctl/launch",
        ),
    ),
    "members": Group(
        ("test_a_removed_node_is_shut_out_and_the_others_are_a_cluster",),
        (
            "playbooks/*members*",
            "playbooks/*keys*",
            "roles/hosts",
            "roles/ssh_mesh",
            "plugins/*mesh*",
            "plugins/*key*",
            "plugins/*hosts*",
            "python/clusterctl/provisioning",
            "python/clusterctl/cli/change.py",
        ),
    ),
    "nccl": Group(
        (
            "test_a_session_without_root_loads_it_on_every_node",
            "test_a_second_run_asks_nobody_and_changes_nothing",
            "test_another_nccl_in_every_sessions_way_is_named_with_its_cause",
        ),
        ("roles/nccl", "plugins/*nccl*", "plugins/*artifact*", "plugins/*build*"),
    ),
    "ca": Group(
        (
            "test_jobs_run_with_one_line_of_trust_on_each_node",
            "test_the_passphrase_is_nowhere_and_the_keys_are_encrypted",
            "test_a_new_node_changes_nothing_on_the_others",
            "test_a_revoked_node_is_shut_out_everywhere",
        ),
        (
            "roles/ssh_mesh",
            "plugins/*mesh*",
            "plugins/*key*",
            "plugins/*uninstall*",
            "python/clusterctl/cli/ca.py",
            "python/clusterctl/*certificate_*",
        ),
    ),
    "sessions": Group(
        ("test_a_person_at_the_prompt_types_what_a_tutorial_says", "test_nothing_of_ours_stands_in_roots_way[[]*"),
        (
            "roles/environment",
            "roles/hosts",
            "roles/openmpi",
            "plugins/*session*",
            "plugins/*sshd.py",
            "plugins/*text_edit*",
            "plugins/plugin_utils/recipes/openmpi.py",
            "python/clusterctl/diagnosis/rules/machine.py",
            "python/clusterctl/launch/compose.py",
        ),
    ),
    "rollback": Group(
        ("test_it_takes_seconds_and_provision_respects_it_until_it_is_released",),
        (
            "playbooks/switch_links.yml",
            "plugins/*artifact*",
            "plugins/*artifact_links*",
            "python/clusterctl/*rollback*",
            "python/clusterctl/provisioning/software.py",
            "python/clusterctl/state/snapshots.py",
        ),
    ),
    "kills": Group(
        ("test_a_killed_run_is_made_good_by_a_plain_one[[]provision]",),
        (
            "playbooks",
            "roles/preflight",
            "plugins/*artifact*",
            "plugins/*leftovers*",
            "plugins/*lock*",
            "python/clusterctl/provisioning",
            "python/clusterctl/state/locks.py",
        ),
    ),
}


def file_of(group: str) -> str:
    return f"{CLUSTER}/test_{group}.py"


def patterns(group: str, root: Path = changed.ROOT) -> tuple[str, ...]:
    """Return what a group depends on: its file, the helpers that this imports, and the paths of the map."""
    text = (root / file_of(group)).read_text(encoding="utf-8")
    named = re.findall(r"^ *(?:import|from) (\w+)", text, re.MULTILINE)
    helpers = {f"{CLUSTER}/{name}.py" for name in named if (root / CLUSTER / f"{name}.py").exists()}
    return (file_of(group), *sorted(helpers), *GROUPS[group].paths)


def untouched(paths: frozenset[str] | None) -> list[str]:
    """Return the groups that depend on no changed file."""
    if paths is None:
        return []
    return [group for group in GROUPS if not changed.matching(paths, patterns(group))]


def is_left_out(nodeid: str, groups: list[str]) -> str:
    """Return the untouched group that a test belongs to, or nothing for a test that runs."""
    path, _, name = nodeid.partition("::")
    group = next((one for one in groups if path == file_of(one)), "")
    return "" if group and changed.matches(name, GROUPS[group].always) else group


class LeftOut:
    """Deselects the tests of untouched groups, and says so at the end; xdist's workers get the groups from it."""

    def __init__(self, config: pytest.Config) -> None:
        self.groups: list[str]
        if hasattr(config, "workerinput"):
            self.groups = config.workerinput["untouched"]
        else:
            try:
                self.groups = untouched(changed.paths())
            except changed.UnknownBaseError as error:
                raise pytest.UsageError(str(error)) from None
        self.count: Counter[str] = Counter()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["untouched"] = self.groups

    @pytest.hookimpl(trylast=True)  # so that it counts no test that would not run anyway
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        named = {Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args}
        groups = {item: is_left_out(item.nodeid, self.groups) for item in items if item.path not in named}
        out = [item for item in items if groups.get(item)]
        items[:] = [item for item in items if not groups.get(item)]
        self.count.update(groups[item] for item in out)
        config.hook.pytest_deselected(items=out)
        if hasattr(config, "workeroutput"):
            config.workeroutput["left_out"] = dict(self.count)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.count |= Counter(getattr(node, "workeroutput", {}).get("left_out", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.count:
            tests = ", ".join(f"{number} of {group}" for group, number in sorted(self.count.items()))
            why = f"nothing that they depend on changed since {changed.base()[:10]}"
            terminalreporter.write_line(f"Left out, as {why}: {tests}. 'make test-all' runs them.")
