"""Sandboxes for tests that need real nodes, and the order in which workers take the tests.

Every module is run by one worker, and its sandboxes are its own. Each worker provisions four nodes with MPI alone
once and keeps them: a module that asks for :func:`mpi_cluster` or :func:`fresh_cluster` gets them as they were.
Modules with ``xdist_group("stack")`` or ``("slurm")`` are all run by one worker and share the cluster of
:func:`stack_cluster` or :func:`slurm_cluster`, which each of them leaves as it found it.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clusterctl import sandbox as sandboxes
from clusterctl.sandbox import container_engine
from clusterctl.state import paths
from kept import Kept, is_of_a_killed_run, remove_images_of_killed_runs
from validated import NODES, Cluster, engine, mpi_alone

Start = Callable[..., sandboxes.Sandbox]

ROOT = Path(__file__).parents[2]
# Workers take groups in this order. The longest come first, so that all workers end at about the same time. With an
# empty cache, the first four compile four different builds of Open MPI and Horovod.
LONGEST_FIRST = (
    "stack",
    "test_provision",
    "test_horovod",
    "test_scenarios",
    "test_platforms",
    "test_nccl",
    "test_ca",
    "test_members",
    "test_sessions",
    "test_validation",
    "test_rollback",
    "test_kills",
    "test_fabric",
    "slurm",
    "test_doctor",
    "test_artifact",
    "test_partial",
    "test_switch",
    "test_ssh_mesh",
    "test_python_env",
    "horovod-default",
    "python_env-default",
    "test_claim",
    "test_uninstall",
    "nccl-default",
    "ssh_mesh-ca",
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes minutes, so 'make test-long' runs it instead of 'make test'")
    config.addinivalue_line("markers", "repeat: depends on chance, so 'make test-long' runs it many times")


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "run each test that is marked 'repeat' so many times ('make test-long')"
    parser.addoption("--repeat", type=int, default=1, metavar="TIMES", help=help_text)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    times = metafunc.config.getoption("repeat")
    if times > 1 and metafunc.definition.get_closest_marker("repeat"):
        metafunc.fixturenames.append("_time")
        metafunc.parametrize("_time", range(times))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: turn(group_of(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give every group to one worker; xdist 3.8's own way loses the groups with pytest 9.2 (pytest-xdist #1386)."""
    from xdist.scheduler import LoadGroupScheduling  # noqa: PLC0415 - where there is no xdist, nobody asks

    class Groups(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Groups(config, log)


def group_of(nodeid: str) -> str:
    """Return the group of a test: the one that its module names, else the module; a molecule scenario is its own."""
    path, _, name = nodeid.partition("::")
    scenario = re.search(r"\[(.+)\]$", name)
    if path.startswith("tests/molecule/") and scenario:
        return scenario.group(1)
    return group_of_module(path)


@functools.cache
def group_of_module(path: str) -> str:
    mark = re.search(r'xdist_group\("(\w+)"\)', (ROOT / path).read_text(encoding="utf-8"))
    return mark.group(1) if mark else Path(path).stem


def turn(group: str) -> int:
    return LONGEST_FIRST.index(group) if group in LONGEST_FIRST else len(LONGEST_FIRST)


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Callable[..., sandboxes.Sandbox]]:
    """Return ``start(label, **specification)``: a sandbox of this test run's own, removed when the run ends.

    The label tells the run's sandboxes apart; starting the same label again mends or grows that sandbox. Its nodes get
    MPI alone: NCCL, a framework and Horovod are gigabytes that only the tests about them need, with ``stack=True``.
    """
    started: set[str] = set()

    def start(label: str, *, stack: bool = False, **specification: Any) -> sandboxes.Sandbox:
        name = f"test-{label}-{os.getpid()}"
        started.add(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(container_engine, "find", engine)
            box = sandboxes.up(sandboxes.SandboxSpec(name=name, **specification))
        if not stack:
            mpi_alone(box)
        return box

    def remove(names: Iterable[str]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(container_engine, "find", engine)
            for name in names:
                sandboxes.down(name)

    remove(path.name for path in paths.sandboxes_dir().glob("test-*") if is_of_a_killed_run(path.name))
    yield start
    remove(started)


@pytest.fixture(scope="session")
def kept(sandbox: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """Four nodes with MPI alone, which this worker has provisioned once."""
    remove_images_of_killed_runs(engine())
    cluster = Cluster(sandbox("kept", nodes=len(NODES)))
    cluster.provision()
    found = Kept(cluster, tmp_path_factory.mktemp("kept"))
    yield found
    found.remove()


@pytest.fixture(scope="module")
def fresh_cluster(kept: Kept) -> Cluster:
    """The worker's four nodes with MPI alone as they were provisioned; the module may leave them as it likes."""
    return kept.again()


@pytest.fixture(scope="module")
def mpi_cluster(kept: Kept) -> Iterator[Cluster]:
    """The worker's four nodes with MPI alone as they were provisioned; the module leaves them as it found them."""
    cluster = kept.again()
    yield cluster
    is_as_it_was(cluster, kept.before)


@pytest.fixture(scope="session")
def provisioned_stack(sandbox: Start) -> tuple[Cluster, list[str]]:
    """Four nodes with the whole training stack, and how they are made; the fourth joined the others."""
    three = Cluster(sandbox("shared-stack", nodes=len(NODES) - 1, stack=True))
    three.provision()
    cluster = Cluster(sandbox("shared-stack", nodes=len(NODES), stack=True))
    cluster.first_s = three.first_s
    cluster.last = cluster.provision()
    return cluster, cluster.state()


@pytest.fixture(scope="module")
def stack_cluster(provisioned_stack: tuple[Cluster, list[str]]) -> Iterator[Cluster]:
    """The cluster of the group "stack", which each module leaves as it found it."""
    cluster, before = provisioned_stack
    yield cluster
    is_as_it_was(cluster, before)


@pytest.fixture(scope="session")
def slurm_cluster(kept: Kept, sandbox: Start) -> Cluster:
    """Four provisioned nodes that Slurm owns, for the modules of the group "slurm"; its controller is on the first."""
    kept.again()
    cluster = Cluster(sandbox("kept", nodes=len(NODES), extras=("slurm",)))
    cluster.provision()
    return cluster


@pytest.fixture(scope="module")
def torch_litter(stack_cluster: Cluster) -> Iterator[None]:
    """Remove what PyTorch itself leaves in /tmp at the end of a module."""
    yield
    stack_cluster.remove_torch_litter()


def is_as_it_was(cluster: Cluster, before: list[str]) -> None:
    """Hold that nothing of a job is left on the nodes, and that each is made as before."""
    assert cluster.is_clean()
    now = cluster.state()
    gone = [f"- {line}" for line in before if line not in now]
    new = [line for line in now if line not in before and not _came_with_a_package(cluster, line, before)]
    assert gone + [f"+ {line}" for line in new] == []


def _came_with_a_package(cluster: Cluster, line: str, before: list[str]) -> bool:
    """Whether a line is a new setting of a package: a compiler comes to the builder when the cache lacks a build."""
    node, path = line.partition(":")[0], line.rpartition(" ")[2]
    if not path.startswith("/etc/") or any(one.startswith(f"{node}:") and one.endswith(f" {path}") for one in before):
        return False
    script = 'grep -lxF -- "$0" /var/lib/dpkg/info/*.conffiles; true'
    return bool(cluster.on(node, "sh", "-c", script, path))
