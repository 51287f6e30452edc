"""The role validation as a call of file_set: the programs as the collection has them, and the proof that one starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ansible_collections.clusterctl.hpc.plugins.action import validation_install
from clusterctl.support import content

if TYPE_CHECKING:
    from conftest import RunModule

VARIABLES = yaml.safe_load((content.root() / "roles/validation/vars/main.yml").read_text(encoding="utf-8"))
GPUS = [{"bus": "0000:01:00.0", "name": "a"}]


def arguments(prefix: Path) -> dict[str, Any]:
    given = {"programs": VARIABLES["__validation_programs"], "shared": VARIABLES["__validation_shared"]}
    return validation_install.arguments_of({"prefix": str(prefix), "python": sys.executable, "gpus": GPUS, **given})


def test_each_program_is_compiled_in_one_call_and_root_owns_all() -> None:
    files = {one["path"]: one for one in arguments(Path("/opt/hpc"))["files"]}
    folder = "/opt/hpc/libexec/clusterctl"
    programs = [files[f"{folder}/{name}"] for name in VARIABLES["__validation_programs"]]
    assert {tuple(one["validate"][:2] + one["validate"][-1:]) for one in programs} == {(sys.executable, "-I", "%s...")}
    assert {one["mode"] for one in programs} == {"0755"}
    shared = [files[f"{folder}/{name}"] for name in VARIABLES["__validation_shared"]]
    assert {(one["mode"], one.get("validate")) for one in shared} == {("0644", None)}
    assert {(one["owner"], one["group"]) for one in [*programs, *shared, files[f"{folder}/node.json"]]} == {
        ("root", "root")
    }
    assert (files["/opt"]["state"], files["/opt/hpc"]["state"]) == ("directory", "directory")
    assert files[f"{folder}/node_probe"]["state"] == "absent"


@pytest.mark.programs
def test_the_programs_are_laid_out_and_one_of_them_starts(tmp_path: Path, run_module: RunModule) -> None:
    given = arguments(tmp_path)
    for one in given["files"]:
        one.pop("owner", None)
        one.pop("group", None)
    result = run_module("file_set", **given)
    assert result["changed"] is True, result
    folder = tmp_path / "libexec/clusterctl"
    assert json.loads((folder / "node.json").read_text()) == {"gpus": GPUS}
    source = content.root() / "roles/validation/files/gpu_state.py"
    assert (folder / "gpu_state.py").read_bytes() == source.read_bytes()
    given["files"] = [one for one in given["files"] if not one["path"].endswith("/bounded_run.py")]
    (folder / "bounded_run.py").unlink()
    assert "bounded_run" in run_module("file_set", **given)["msg"]
