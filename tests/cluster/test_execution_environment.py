"""What docs/how-to/awx.md shows, without an image: ansible-builder reads the files, ansible-navigator the playbook.

The programs come from the package index into an environment of their own. No image is built here.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import TYPE_CHECKING

import collection
import installed
import pytest
import yaml
from clusterctl.sandbox.model import inventory_text

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Start

pytestmark = [pytest.mark.cluster, pytest.mark.long]

TOOLS = ("ansible-builder>=3.1", "ansible-navigator>=25", "ansible-core>=2.19")
DEFINITION = "execution-environment.yml"
NEEDS = {
    kind: (installed.ROOT / "meta" / name).read_text(encoding="utf-8").splitlines()
    for kind, name in (("python", "ee-requirements.txt"), ("system", "ee-bindep.txt"))
}
# Open MPI and the mesh; a framework adds minutes and nothing to what is tested here.
MPI_ALONE = ("-e", "python_env_framework=none", "-e", "nccl_install=never")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    return collection.build(folder, folder / "source")


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> installed.Controller:
    """An environment with the tools, and with what the collection says that it needs of Python."""
    folder = tmp_path_factory.mktemp("tools") / "environment"
    return installed.newly_made(folder, (sys.executable,), *TOOLS, *NEEDS["python"])


def test_the_definition_becomes_the_files_of_an_image(
    tools: installed.Controller, archive: Path, tmp_path: Path
) -> None:
    (tmp_path / "dist").mkdir()
    shutil.copy(archive, tmp_path / "dist")
    shutil.copy(installed.ROOT / DEFINITION, tmp_path)
    context = tmp_path / "context"
    tools.says("ansible-builder", "create", "--file", str(tmp_path / DEFINITION), "--context", str(context))
    packed = context / "_build" / "collections" / archive.name
    assert packed.read_bytes() == archive.read_bytes()
    asked = yaml.safe_load((context / "_build" / "requirements.yml").read_text(encoding="utf-8"))
    assert asked["collections"] == [{"name": f"collections/{archive.name}", "type": "file"}]
    base = yaml.safe_load((tmp_path / DEFINITION).read_text(encoding="utf-8"))["images"]["base_image"]["name"]
    assert f'EE_BASE_IMAGE="{base}"' in (context / "Containerfile").read_text(encoding="utf-8")


def test_the_collection_tells_what_an_image_needs(tools: installed.Controller, archive: Path, tmp_path: Path) -> None:
    collection.install(archive, tmp_path)
    told = yaml.safe_load(tools.says("ansible-builder", "introspect", str(tmp_path)))
    for kind, needs in NEEDS.items():
        said = [str(line).partition("#")[0].strip() for line in told[kind] if "clusterctl.hpc" in str(line)]
        assert sorted(said) == sorted(needs), told


def test_navigator_plays_the_playbook_of_the_collection(
    tools: installed.Controller, archive: Path, sandbox: Start, tmp_path: Path
) -> None:
    box = sandbox("navigator", nodes=2)
    collection.install(archive, tmp_path / "collections")
    (tmp_path / "inventory.ini").write_text(inventory_text(box), encoding="utf-8")
    environment = {
        "PATH": f"{tools.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "ANSIBLE_COLLECTIONS_PATH": str(tmp_path / "collections"),
        "ANSIBLE_NOCOLOR": "1",
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    here = ("--execution-environment", "false", "--playbook-artifact-enable", "false", "--mode", "stdout")
    log = ("--log-file", str(tmp_path / "navigator.log"))
    words = ("run", "clusterctl.hpc.provision", "-i", str(tmp_path / "inventory.ini"), *here, *log, *MPI_ALONE)
    for expected in (r"changed=[1-9]\d*", "changed=0"):
        done = tools.run("ansible-navigator", *words, env=environment)
        assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
        assert done.stdout.count("failed=0") == len(box.nodes)
        assert len(re.findall(rf"^node\d+ .*{expected}\b", done.stdout, re.MULTILINE)) == len(box.nodes), done.stdout[
            -3000:
        ]
