"""The public CI and the execution environment name things that exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import tomllib
import yaml
from clusterctl.sandbox.model import IMAGES
from clusterctl.support import content
from packaging.requirements import Requirement

if TYPE_CHECKING:
    from pathlib import Path

ROOT = content.root()
WORKFLOW = ".github/workflows/ci.yml"
RELEASE = ".github/workflows/release.yml"
WORKFLOWS = (WORKFLOW, RELEASE)


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def ran(workflow: str) -> str:
    """Return what the steps of a workflow run, in its order."""
    jobs = read(workflow)["jobs"].values()
    return "\n".join(step["run"] for job in jobs for step in job["steps"] if "run" in step)


def test_the_workflows_have_the_jobs_and_each_has_a_deadline() -> None:
    jobs = {workflow: read(workflow)["jobs"] for workflow in WORKFLOWS}
    assert {"lint", "unit", "collection", "platforms", "images", "controllers"} <= set(jobs[WORKFLOW])
    assert set(jobs[RELEASE]) == {"packages", "cache", "draft"}
    assert [name for found in jobs.values() for name, job in found.items() if "timeout-minutes" not in job] == []


def test_a_release_is_made_by_targets_of_make() -> None:
    targets = ["publishable", "wheel", "collection", "execution-environment", "docs", "venv", "release-cache"]
    assert re.findall(r"make ([a-z-]+)", ran(RELEASE)) == targets
    kept = read(RELEASE)["permissions"]
    assert kept == {"contents": "read"}


@pytest.mark.programs
def test_the_signing_key_is_private_and_what_is_made_after_it_can_be_uploaded(tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    (step,) = (step for step in read(RELEASE)["jobs"]["cache"]["steps"] if "SIGNING_KEY" in step.get("env", {}))
    script = step["run"].partition("make venv")[0] + "touch cache.tar.gz\n"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SIGNING_KEY": key.read_text(encoding="utf-8")}
    subprocess.run(["bash", "-e", "-c", f"umask 022\n{script}"], cwd=tmp_path, env=environment, check=True)
    kept = tmp_path / ".config" / "clusterctl"
    made, own = (
        one.read_text(encoding="utf-8").split()[:2] for one in (kept / "signing_key.pub", tmp_path / "key.pub")
    )
    assert made == own
    assert [path.stat().st_mode & 0o777 for path in (kept, kept / "signing_key")] == [0o700, 0o600]
    assert (tmp_path / "cache.tar.gz").stat().st_mode & 0o777 == 0o644


def test_actions_are_named_by_their_commit_and_the_version_stands_beside_it() -> None:
    used = [one for name in WORKFLOWS for one in re.findall(r"uses: *(.+)", (ROOT / name).read_text(encoding="utf-8"))]
    assert used
    form = r"actions/[a-z-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+"
    assert [one for one in used if not re.fullmatch(form, one)] == []
    versions: dict[str, set[str]] = {}
    for one in used:
        versions.setdefault(one.partition("@")[0], set()).add(one)
    assert [found for found in versions.values() if len(found) > 1] == []


def test_the_execution_environment_has_whole_versions_and_its_base_a_tag_or_a_digest() -> None:
    environment = read("execution-environment.yml")
    base = environment["images"]["base_image"]["name"]
    assert re.fullmatch(r"[a-z]+(:\d+|@sha256:[0-9a-f]{64})", base)
    for name in ("ansible_core", "ansible_runner"):
        (found,) = Requirement(environment["dependencies"][name]["package_pip"]).specifier
        assert found.operator == "=="


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_each_target_of_make_and_each_folder_exists(workflow: str) -> None:
    said = ran(workflow)
    targets = re.findall(r"make ([a-z-]+)", said)
    assert targets
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [one for one in targets if f"\n{one}:" not in makefile] == []
    assert [one for one in re.findall(r"tests/[\w/.]+", said) if not (ROOT / one).exists()] == []


@pytest.mark.programs
def test_nodes_of_every_image_are_tried_on_both_architectures() -> None:
    job = read(WORKFLOW)["jobs"]["images"]
    assert job["runs-on"] == "${{ matrix.runner }}"
    matrix = job["strategy"]["matrix"]
    assert set(matrix) == {"image", "runner"}
    assert [one.endswith("-arm") for one in matrix["runner"]] == [False, True]
    old_and_new = {"debian11", "testing"}  # a long test has them in one cluster with the other two
    known = {one for one in set(IMAGES) - old_and_new if not one.startswith("debian")} | {"debian"}
    assert set(matrix["image"]) == known
    (step,) = (step for step in job["steps"] if "pytest" in step.get("run", ""))
    test, first, second = re.findall(r"(tests/\S+) -k \"(\w+) and (.+)\"", step["run"])[0]
    assert " -m " not in step["run"], "the tests of these images are long"
    argv = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-n", "0", str(ROOT / test)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    names = [line.partition("::")[2] for line in done.stdout.splitlines() if first in line]
    for image in known:
        wanted = second.replace("${{ matrix.image }}", image)
        assert [name for name in names if wanted in name] == [f"test_platforms_are_one_cluster[{image}]"]


@pytest.mark.parametrize("job", ["unit", "controllers"])
def test_controllers_of_every_python_are_tried(job: str) -> None:
    matrix = read(WORKFLOW)["jobs"][job]["strategy"]["matrix"]
    pythons = {str(one["python"]) for one in matrix["include"]} if "include" in matrix else set(matrix["python"])
    assert pythons == {"3.11", "3.12", "3.13", "3.14"}


def test_no_address_is_named() -> None:
    for name in (*WORKFLOWS, "execution-environment.yml", "meta/execution-environment.yml"):
        assert "://" not in (ROOT / name).read_text(encoding="utf-8")
    assert "/" not in read("execution-environment.yml")["images"]["base_image"]["name"]


def test_the_execution_environment_takes_this_version_of_the_collection() -> None:
    galaxy, environment = read("galaxy.yml"), read("execution-environment.yml")
    archive = f"{galaxy['namespace']}-{galaxy['name']}-{galaxy['version']}.tar.gz"
    (file,) = environment["additional_build_files"]
    (collection,) = environment["dependencies"]["galaxy"]["collections"]
    assert file["src"] == f"dist/{archive}"
    assert collection["name"] == f"{file['dest']}/{archive}"


def test_what_the_collection_needs_is_what_the_package_needs() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        ours = {one.name: one for one in map(Requirement, tomllib.load(file)["project"]["dependencies"])}
    paths = read("meta/execution-environment.yml")["dependencies"]
    needed = [Requirement(line) for line in (ROOT / paths["python"]).read_text(encoding="utf-8").splitlines()]
    assert needed
    assert [str(one) for one in needed] == [str(ours[one.name]) for one in needed]
    assert (ROOT / paths["system"]).is_file()
