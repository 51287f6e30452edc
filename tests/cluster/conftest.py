"""Sandboxes for tests that need real nodes, and the order in which workers take the tests.

Every module is run by one worker, and its sandboxes are its own. Modules with ``xdist_group("mpi")``,
``("stack")`` or ``("slurm")`` are all run by one worker and share the cluster of :func:`mpi_cluster`,
:func:`stack_cluster` or :func:`slurm_cluster`, which each of them leaves as it found it.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from clusterctl import sandbox as sandboxes
from clusterctl.sandbox import podman
from clusterctl.support.errors import ConfigError
from validated import NODES, Cluster, engine, mpi_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Start = Callable[..., sandboxes.Sandbox]

ROOT = Path(__file__).parents[2]
# Workers take groups in this order. The longest come first, so that all workers end at about the same time. With an
# empty cache, the first four compile four different builds of Open MPI and Horovod.
LONGEST_FIRST = (
    "stack",
    "mpi",
    "test_horovod",
    "test_scenarios",
    "test_platforms",
    "test_members",
    "test_provision",
    "test_nccl",
    "test_ca",
    "slurm",
    "test_fabric",
    "test_kills",
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
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(podman, "find", engine)
            if name not in started and is_recorded(name):
                sandboxes.down(name)  # of a killed run whose process number has come round again
            started.add(name)
            box = sandboxes.up(sandboxes.SandboxSpec(name=name, **specification))
        if not stack:
            mpi_alone(box)
        return box

    yield start
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(podman, "find", engine)
        for name in started:
            sandboxes.down(name)


def is_recorded(name: str) -> bool:
    try:
        sandboxes.load(name)
    except ConfigError:
        return False
    return True


@pytest.fixture(scope="session")
def shared() -> dict[str, tuple[Cluster, list[str]]]:
    """The shared clusters that this worker has started, by group, each with its state before the first test."""
    return {}


@pytest.fixture(scope="session")
def mpi_cluster(sandbox: Start, shared: dict[str, tuple[Cluster, list[str]]]) -> Cluster:
    """Four nodes with MPI alone, for the modules of the group "mpi"."""
    return _shared(shared, "mpi", sandbox("shared-mpi", nodes=len(NODES)))


@pytest.fixture(scope="session")
def stack_cluster(sandbox: Start, shared: dict[str, tuple[Cluster, list[str]]]) -> Cluster:
    """Four nodes with the whole training stack, for the modules of the group "stack"; the fourth joined the others."""
    cluster = Cluster(sandbox("shared-stack", nodes=len(NODES) - 1, stack=True))
    cluster.provision()
    return _shared(shared, "stack", sandbox("shared-stack", nodes=len(NODES), stack=True), cluster.first_s)


@pytest.fixture(scope="session")
def slurm_cluster(sandbox: Start) -> Cluster:
    """Four provisioned nodes that Slurm owns, for the modules of the group "slurm"; its controller is on the first."""
    cluster = Cluster(sandbox("slurm", nodes=len(NODES), extras=("slurm",)))
    cluster.provision()
    return cluster


def _shared(
    shared: dict[str, tuple[Cluster, list[str]]], group: str, box: sandboxes.Sandbox, first_s: float = 0.0
) -> Cluster:
    cluster = Cluster(box)
    cluster.first_s = first_s
    cluster.last = cluster.provision()
    shared[group] = cluster, cluster.state()
    return cluster


@pytest.fixture(scope="module")
def torch_litter(stack_cluster: Cluster) -> Iterator[None]:
    """Remove what PyTorch itself leaves in /tmp at the end of a module."""
    yield
    stack_cluster.remove_torch_litter()


@pytest.fixture(scope="module", autouse=True)
def _leaves_the_shared_cluster_as_it_was(
    request: pytest.FixtureRequest, shared: dict[str, tuple[Cluster, list[str]]]
) -> Iterator[None]:
    yield
    cluster, before = shared.get(group_of(request.node.nodeid), (None, []))
    if cluster is None:
        return
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
