"""The recipe of the cluster's Python with a user's own lock: keys, what is built, what is left out, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import horovod, python_env
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Artifact, LockWish, Pinned, Plan
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import (
    Built,
    LockedEnvironment,
    LockError,
    PackedSdist,
    Wheel,
)
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels.packages import PlacedSdist, PlacedWheel
from recipe_clusters import BULLSEYE, Shelf, cluster, host, plan

NUMPY = PlacedWheel("numpy", "2.0.2", "numpy-2.0.2-cp39.whl", "1" * 64, "https://example.org/numpy.whl")
TORCH = PlacedWheel("torch", "2.8.0", "torch-2.8.0-cp39.whl", "2" * 64)
TORCH_CUDA = PlacedWheel("torch", "2.8.0+cu128", "torch-2.8.0-cp39.whl", "2" * 64)
COMPANIONS = [
    PlacedWheel(name, "1.0", f"{name}.whl", "3" * 64) for name in ("cloudpickle", "packaging", "psutil", "pyyaml")
]
QUICK = Built(PlacedSdist("quick-one", "1.0", "4" * 64), (Wheel("setuptools", "80.0", "setuptools.whl", "5" * 64),))
# The key that the default variables have with these two wheels; test_recipe_python_env.py has it as well.
KEY = "fea49e136965251c"
GPU = {"platform": f"{BULLSEYE}-cuda12", "gpus": 8, "cuda": {"driver_major": 12, "driver_version": "550.54.15"}}


class Locker(Shelf):
    """A controller that reads this from every lock, and keeps what it was asked."""

    def __init__(self, *wheels: PlacedWheel, built: tuple[Built, ...] = (), left_out: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.found = LockedEnvironment(wheels, built, left_out, ("a note",))
        self.asked: list[LockWish] = []

    def pin(self, wish: Any) -> Pinned:
        raise AssertionError(f"an index was asked: {wish}")

    def pin_lock(self, wish: LockWish) -> LockedEnvironment:
        self.asked.append(wish)
        if wish.path.endswith("bad.lock"):
            raise LockError(f"{wish.path} is not a lock.")
        return self.found


def decided(locker: Locker, *roles: str, versions: tuple[str, ...] = ("3.9.2",), **given: Any) -> Plan:
    """Return the plan of hosts with the same lock, whose own Pythons have these versions."""
    member = {name: given.pop(name) for name in ("platform", "gpus", "cuda", "idle_gpus") if name in given}
    settings = {"python_env_lock": "/srv/uv.lock", **given}
    hosts = [
        host(f"node{at}", settings, node={"python": {"version": version}}, **member)
        for at, version in enumerate(versions, 1)
    ]
    return python_env.decide(cluster(hosts, "python_env", *roles, controller=locker), {})


def environment(locker: Locker, **given: Any) -> Artifact:
    found = decided(locker, **given)
    assert not found.refusals
    return found.artifacts[-1]


def problem(locker: Locker, *roles: str, **given: Any) -> str:
    found = decided(locker, *roles, **given)
    assert not found.artifacts
    return found.refusals[0].problem


def test_the_key_depends_on_the_files_alone() -> None:
    locked = environment(Locker(NUMPY, TORCH))
    assert locked.key == KEY, "an environment with the same wheels is the same, wherever its list comes from"
    assert environment(Locker(NUMPY, TORCH), python_env_lock="/home/me/pylock.toml").key == KEY
    built = environment(Locker(NUMPY, TORCH, built=(QUICK,)))
    tools = Built(QUICK.source, (Wheel("setuptools", "81.0", "setuptools.whl", "6" * 64),))
    assert len({KEY, built.key, environment(Locker(NUMPY, TORCH, built=(tools,))).key}) == 3


def test_the_controller_is_asked_for_the_oldest_python_of_the_nodes_and_leaves_out_what_the_cluster_builds() -> None:
    locker = Locker(NUMPY)
    decided(locker, versions=("3.9.21", "3.9.3"), python_env_lock_extras=["web"], python_env_lock_groups="dev")
    (wish,) = locker.asked
    assert (wish.path, wish.target, wish.python) == ("/srv/uv.lock", BULLSEYE, "3.9.3")
    assert (wish.extras, wish.groups, wish.left_out) == (["web"], ["dev"], ("mpi4py", "horovod"))
    decided(locker, versions=("3.9.2+",))  # as a Python from its repository calls itself
    assert locker.asked[-1].python == "3.9.2"
    decided(locker, versions=("3.12.1",))
    assert locker.asked[-1].python == "3.9.0", "the Python of Ansible's modules is another one"
    decided(locker, python_env_python="managed")
    assert locker.asked[-1].python == "3.13.5"


def test_a_source_archive_is_built_with_its_own_tools_by_a_builder_with_a_compiler() -> None:
    found = environment(Locker(NUMPY, built=(QUICK,)))
    files = {entry["dest"]: entry for entry in found.build["files"]}
    assert files["sdists/quick_one-1.0.tar.gz"]["sdist"]["sha256"] == "4" * 64
    assert [tool["name"] for tool in files["tools/quick-one"]["wheels"]["pinned"]] == ["setuptools"]
    assert files["pins/quick-one.txt"]["content"] == f"quick-one==1.0 --hash=sha256:{'4' * 64}\n"
    (step,) = [step for step in found.build["steps"] if step["name"] == "build quick-one"]
    assert step["environment"]["UV_OFFLINE"] == "1"
    assert {"--no-index", "--require-hashes", "--find-links=tools/quick-one"} <= set(step["argv"])
    assert "--no-build-isolation" not in step["argv"]
    assert {"gcc", "libpython3-dev", "python3-distutils"} <= set(found.build["packages"])
    assert "gcc" not in environment(Locker(NUMPY)).build["packages"]
    assert found.proof["checks"][0]["argv"][-2:] == ["numpy==2.0.2", "quick-one==1.0"]


@pytest.mark.parametrize(
    ("version", "inner", "place", "proved"),
    [
        ("1.5", "", "sdists/top_two-1.5.tar.gz", "top-two==1.5"),
        ("0", "python/top", "sdists/top_two-0.tar.gz#subdirectory=python/top", "top-two"),
    ],
)
def test_a_packed_source_is_built_from_its_archive_alone(version: str, inner: str, place: str, proved: str) -> None:
    built = Built(PackedSdist("top-two", version, "4" * 64, inner), QUICK.tools)
    found = environment(Locker(NUMPY, built=(built,)))
    (step,) = [step for step in found.build["steps"] if step["name"] == "build top-two"]
    assert step["argv"][-1] == f"top-two @ file://@WORK@/{place}"
    assert {"--no-index", "--no-sources", "--find-links=tools/top-two"} <= set(step["argv"])
    assert step["environment"]["SETUPTOOLS_SCM_PRETEND_VERSION"] == version
    assert found.proof["checks"][0]["argv"][-1] == proved
    elsewhere = Built(PackedSdist("top-two", version, "4" * 64, "other"), QUICK.tools)
    assert environment(Locker(NUMPY, built=(elsewhere,))).key != found.key


def test_the_framework_is_read_out_of_the_lock() -> None:
    found = decided(Locker(NUMPY, TORCH, *COMPANIONS))
    assert found.told["frameworks"][BULLSEYE]["version"] == "2.8.0"
    assert found.told["horovod_lacks"][BULLSEYE] == []
    assert list(found.warnings) == ["a note"]
    argv = found.artifacts[-1].proof["checks"][0]["argv"]
    assert argv[3:6] == ["pytorch", "2.8.0", ""]


def test_what_is_left_out_is_told_and_does_not_count_as_missing() -> None:
    found = decided(Locker(NUMPY, left_out=("mpi4py 4.0.1",)))
    assert found.warnings[-1].startswith("mpi4py 4.0.1 of /srv/uv.lock is left out: the cluster's own mpi4py is built")
    names = [step["name"] for step in found.artifacts[-1].build["steps"]]
    assert "consistency" not in names
    assert "consistency" in [step["name"] for step in environment(Locker(NUMPY)).build["steps"]]


def test_horovod_is_left_out_or_refused_where_the_lock_lacks_what_it_imports() -> None:
    warned = decided(Locker(NUMPY, TORCH), "horovod").warnings[-1]
    assert warned == (
        "Horovod is left out: /srv/uv.lock lacks cloudpickle, packaging, psutil, pyyaml, which it imports; add them to"
        " the lock"
    )
    for install, expected in (("auto", 0), ("always", 1)):
        one = host("node1", {"horovod_install": install})
        told = {"frameworks": {BULLSEYE: {"name": "pytorch", "version": "2.8.0", "cuda": ""}}}
        python = plan("python_env", "5" * 16, [one], horovod_lacks={BULLSEYE: ["psutil"]}, **told)
        plans = {"openmpi": plan("openmpi", "6" * 16, [one]), "python_env": python}
        found = horovod.decide(cluster([one], "openmpi", "python_env", "horovod"), plans)
        assert (len(found.artifacts), len(found.refusals)) == (0, expected)
        assert all("lacks psutil, which Horovod imports; add them" in one.problem for one in found.refusals)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"python_env_requirements": ["scipy"]},
            "python_env_lock names /srv/uv.lock, which decides all packages; put python_env_requirements into the lock",
        ),
        ({"python_env_framework_version": "2.8.0"}, "put python_env_framework_version into the lock, and empty the"),
        (
            {"python_env_lock": "", "python_env_lock_extras": ["web"]},
            "python_env_lock_extras is set, and python_env_lock is empty; name the lock, or empty python_env_lock_",
        ),
        ({"python_env_lock": "/srv/bad.lock"}, "/srv/bad.lock is not a lock."),
    ],
)
def test_variables_that_do_not_go_together_and_bad_locks_are_refused(given: dict[str, Any], sentence: str) -> None:
    assert sentence in problem(Locker(NUMPY), **given)


def test_a_lock_without_what_other_roles_need_is_refused() -> None:
    assert "/srv/uv.lock has no numpy, which the proof of mpi4py" in problem(Locker(*COMPANIONS), "mpi4py")
    assert not decided(Locker(*COMPANIONS)).refusals


def test_a_framework_of_the_lock_that_does_not_fit_the_gpus_is_refused() -> None:
    sentence = "pytorch 2.8.0 of /srv/uv.lock brings no CUDA; name a version that does (python_env_lock), or set"
    assert sentence in problem(Locker(NUMPY, TORCH), **GPU)
    newer = PlacedWheel("torch", "2.8.0+cu130", "torch.whl", "2" * 64)
    assert "choose a release or build for that CUDA (python_env_lock)" in problem(Locker(NUMPY, newer), **GPU)
    assert not decided(Locker(NUMPY, TORCH_CUDA), **GPU).refusals
    idle = {"idle_gpus": "8 GPUs that jobs cannot use"}
    assert "a framework for CPUs would leave them unused" in problem(Locker(NUMPY, TORCH), **idle)
    assert not decided(Locker(NUMPY, TORCH_CUDA), **idle).refusals


def test_hosts_of_one_platform_have_the_same_lock() -> None:
    hosts = [host(f"node{at}", {"python_env_lock": f"/srv/{at}/uv.lock"}) for at in (1, 2)]
    found = python_env.decide(cluster(hosts, "python_env", controller=Locker(NUMPY)), {})
    assert "python_env_lock must be the same on all hosts of one platform" in found.refusals[0].problem
