"""The recipe of NCCL: its keys, what it is made of, which hosts get it, and what is refused before anything is done."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import nccl as rules
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import nccl
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Artifact, Host, Plan, Refusal
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.source import Fetched, SourceError
from recipe_clusters import BULLSEYE, Shelf, cluster, host

WHEEL = {"name": "nvidia-nccl-cu13", "version": "2.32.3", "filename": "nvidia_nccl.whl", "sha256": "1" * 64}
FRAMEWORK = {"name": "pytorch", "version": "2.8.0", "cuda": "13", "nccl": "2.29.7", "sha256": "2" * 64}
ARCHIVE = {"nccl_source": "archive", "nccl_archive": "/srv/nccl.txz", "nccl_sha256": "a" * 64}
BUILD = {"nccl_source": "build"}
PACKAGES = {"nccl_source": "packages", "nccl_version": "2.21.5"}
SUSE = {"family": "Suse", "major": "15", "id": "opensuse-leap", "name": "openSUSE Leap"}


class Archives(Shelf):
    """A controller that has NVIDIA's archive as well."""

    def fetch(self, name: str, version: str, sources: Any, cache_dir: str) -> Fetched:
        del name, version, cache_dir
        if self.refuses:
            raise self.refuses
        return Fetched(Path("/cache/nccl.txz"), "b" * 64, str(sources), cached=True)


@pytest.fixture(autouse=True)
def _archives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys shall not follow the wording of the programs; archives are looked into elsewhere."""
    monkeypatch.setattr(nccl, "digest", lambda *_texts: "sum of programs")
    monkeypatch.setattr(rules, "look_into", lambda *_given: rules.Contents("built", "2.30.7"))


def of(hosts: list[Host], shelf: Shelf | None = None, prefix: str = "/usr/local", **plans: Plan) -> Plan:
    return nccl.decide(cluster(hosts, "nccl", prefix=prefix, controller=shelf or Archives(WHEEL)), plans)


def decided(*names: str, shelf: Shelf | None = None, prefix: str = "/usr/local", **given: Any) -> Plan:
    return of([host(name, given) for name in names or ("node1",)], shelf, prefix)


def artifact(**given: Any) -> Artifact:
    plan = decided(**given)
    assert not plan.refusals
    (found,) = plan.artifacts
    return found


# --- keys ---


def test_what_shapes_its_bytes_shapes_its_key() -> None:
    assert artifact().inputs == {
        "recipe": 1,
        "version": "2.32.3",
        "cuda": "13",
        "source": "wheel",
        "sha256": ["1" * 64],
        "packages": [],
        "build": [],
        "programs": "sum of programs",
        "platform": BULLSEYE,
    }
    same = (
        {"preflight_work_dir": "/scratch"},
        {"nccl_packages": ["a"]},
        {"nccl_cuda_home": "/c"},
        {"nccl_make_jobs": 2},
    )
    assert {artifact(**given).key for given in same} == {artifact().key}
    others: list[dict[str, Any]] = [
        {"nccl_cuda": "12"},
        {"prefix": "/opt/cluster"},
        ARCHIVE,
        BUILD,
        {**BUILD, "nccl_build_options": ["X=1"]},
        PACKAGES,
        {**PACKAGES, "nccl_packages": ["a"]},
    ]
    assert len({artifact(**given).key for given in others} | {artifact().key}) == len(others) + 1
    assert artifact(prefix="/opt/cluster").inputs["link"] == "/opt/cluster/nccl"
    assert artifact(**ARCHIVE).inputs["sha256"] == ["b" * 64]


# --- which one, and for whom ---


def test_it_follows_the_framework_of_the_environment() -> None:
    shelf = Shelf(WHEEL)
    told = {"frameworks": {BULLSEYE: FRAMEWORK}, "wheels": {}}
    plan = of([host("node1", {})], shelf, python_env=Plan(told=told))
    assert (plan.artifacts[0].version, shelf.wishes[0].requirements) == ("2.29.7", ["nvidia-nccl-cu13==2.29.7"])
    assert plan.told["platforms"][BULLSEYE] == {"version": "2.29.7", "release": "2.29.7", "cuda": "13"}


def test_without_a_known_framework_nothing_is_decided_and_alone_the_default_is() -> None:
    shelf = Shelf(WHEEL)
    assert of([host("node1", {})], shelf, python_env=Plan((), [Refusal("", "no wheels")])) == Plan()
    assert shelf.wishes == []
    assert of([host("node1", {})]).artifacts[0].version == "2.32.3"


def test_only_hosts_with_gpus_get_it_where_that_is_wanted() -> None:
    given = {"nccl_install": "gpu"}
    hosts = [host("node1", given), host("node2", given, gpus=8), host("node3", given, gpus=8)]
    plan = of(hosts)
    (found,) = plan.artifacts
    assert (list(found.hosts), plan.told["hosts"]) == (["node2", "node3"],) * 2
    assert list(found.builders) == ["node2", "node3"]
    nowhere = decided(nccl_install="never")
    assert (list(nowhere.artifacts), nowhere.told["hosts"]) == ([], [])


def test_it_is_prepared_beside_others_unless_a_compiler_is_needed() -> None:
    names = ("node1", "node2", "node3")
    assert decided(*names).artifacts[0].builders[0] == "node3"
    assert decided(*names, **BUILD).artifacts[0].builders[0] == "node1"
    assert decided(*names, nccl_builder="node2").artifacts[0].builders[0] == "node2"


# --- what it is made of ---


@pytest.mark.parametrize(
    ("given", "brought", "steps"),
    [
        ({}, ["wheels"], ["arrange", "libexec", "check", "load"]),
        (ARCHIVE, ["path"], ["arrange", "libexec", "check", "load"]),
        (BUILD, ["path"], ["nvcc", "compile", "arrange", "libexec", "check", "load"]),
        (PACKAGES, [], ["arrange", "libexec", "check", "load"]),
    ],
)
def test_each_source_brings_its_files_and_steps(given: dict[str, Any], brought: list[str], steps: list[str]) -> None:
    found = artifact(**given)
    kinds = [next(iter(item)) for item in found.build["files"]]
    assert kinds == [*brought, *["content"] * 6]
    assert [step["name"] for step in found.build["steps"]] == steps
    assert ("g++" in found.build["packages"]) is (given == BUILD)


def test_packages_come_to_each_host_and_the_builder_after_the_links_of_another_nccl_went() -> None:
    found = artifact(**PACKAGES)
    names = ["libnccl2=2.21.5-*", "libnccl-dev=2.21.5-*"]
    assert found.install["packages"] == names
    assert found.build["packages"][-2:] == names
    assert found.before == {"nccl_system": {"link": "/usr/local/nccl", "headers": []}}
    assert found.after["nccl_system"]["headers"] == []
    wheel = artifact()
    assert (dict(wheel.before), dict(wheel.install)) == ({}, {})
    assert wheel.after["nccl_system"]["headers"] == ["nccl.h", "nccl_device.h", "nccl_device"]


# --- refusals ---


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"nccl_source": "conda"}, "nccl_source is 'conda'; set it to wheel, archive, packages or build."),
        (
            {"nccl_source": "archive"},
            "nccl_source is 'archive' and nccl_archive is empty: set it to the path or URL of",
        ),
        ({"nccl_source": "packages"}, "nccl_source is 'packages' and nccl_version is empty: name the release"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_fetched(given: dict[str, Any], problem: str) -> None:
    shelf = Shelf()
    (refusal,) = decided("node1", "node2", shelf=shelf, **given).refusals
    assert (refusal.host, refusal.problem.startswith(problem), shelf.wishes) == ("", True, [])


def test_an_archive_that_cannot_be_had_is_named_with_its_cure() -> None:
    said = (
        "No source of nccl source could be used: /srv/nccl.txz: the file does not exist. Put the release's file there."
    )
    for given, cure in ((ARCHIVE, "correct nccl_archive or nccl_sha256"), (BUILD, "set nccl_archive and nccl_sha256")):
        (refusal,) = decided(shelf=Archives(refuses=SourceError(said)), **given).refusals
        assert refusal.problem == f"NCCL cannot be had from /srv/nccl.txz: the file does not exist; {cure}."


def test_each_host_whose_distribution_has_no_known_packages_is_named() -> None:
    hosts = [host(name, PACKAGES, node={"distribution": SUSE}) for name in ("node1", "node2")]
    refusals = of(hosts).refusals
    assert [refusal.host for refusal in refusals] == ["node1", "node2"]
    assert refusals[1].problem == (
        "nccl_source is 'packages', and no packages of NCCL are known for openSUSE Leap on node2; name them in"
        " nccl_packages, or set nccl_source to 'wheel'."
    )
    named = [host("node1", {**PACKAGES, "nccl_packages": ["libnccl"]}, node={"distribution": SUSE})]
    assert of(named).artifacts[0].install["packages"] == ["libnccl"]


WITHOUT = (
    "which is to build NCCL, has no {home}/bin/nvcc: install the CUDA toolkit there, name its folder in nccl_cuda_home"
    " or a host that has it in nccl_builder, or set nccl_source to 'wheel'."
)


@pytest.mark.parametrize(
    ("tools", "given", "refused"),
    [
        ({"nvcc": False}, {}, True),
        ({"nvcc": True}, {}, False),
        ({"nvcc": False}, {"nccl_cuda_home": "/opt/cuda"}, False),  # facts do not look there
        ({}, {}, False),
    ],
)
def test_a_builder_without_nvcc_is_refused_where_facts_tell(
    tools: dict[str, bool], given: dict[str, str], refused: bool
) -> None:
    plan = of([host("node1", {**BUILD, **given}, node={"tools": tools})])
    said = f"nccl_source is 'build', and node1, {WITHOUT.format(home='/usr/local/cuda')}"
    assert list(plan.refusals) == ([Refusal("node1", said)] if refused else [])
    assert bool(plan.artifacts) is not refused


@pytest.mark.programs
def test_the_first_step_of_a_build_says_that_nvcc_is_missing(tmp_path: Path) -> None:
    step = artifact(**BUILD, nccl_cuda_home=str(tmp_path)).build["steps"][0]
    assert step["speaks"]
    done = subprocess.run(step["argv"], capture_output=True, text=True, check=False)
    said = f"nccl_source is 'build', and this host, {WITHOUT.format(home=tmp_path)}\n"
    assert (done.returncode, done.stdout) == (1, said)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch(mode=0o755)
    assert subprocess.run(step["argv"], check=False).returncode == 0
