"""The look at an Open MPI that clusterctl did not install, and the small one that leads to it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import existing_openmpi, existing_python, record
from clusterctl.support import content

gate = content.module_util("node_record_gate")
SAID = Path(__file__).resolve().parents[2] / "data" / "openmpi" / "ompi_info_5.0.7_ucx.txt"
MAKER = content.root() / "roles" / "openmpi" / "files" / "existing_openmpi.py"
ANY_OWNER = -1
PROGRAM = '#!/bin/sh\necho "$0 $OPAL_PREFIX $LD_LIBRARY_PATH $*"\n'
HEADER = "#define OMPI_MAJOR_VERSION 5\n#define OMPI_MINOR_VERSION 0\n#define OMPI_RELEASE_VERSION 7\n"


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def made() -> Iterator[Path]:
    """The Open MPI of an HPC-X, whose ompi_info answers anybody but root; a folder that nobody can reach."""
    with tempfile.TemporaryDirectory(prefix="hpcx-") as folder:
        above = Path(folder)
        above.chmod(0o755)
        for name in ("ompi/bin", "ompi/lib/openmpi", "ompi/include", "ompi/share", "ucx/lib"):
            (above / name).mkdir(parents=True)
        (above / "hpcx-init.sh").touch()
        (above / "ompi/include/mpi.h").write_text(HEADER)
        (above / "ompi/lib/libmpi.so").write_bytes(Path(sys.executable).resolve().read_bytes()[:64])
        (above / "said").write_text(SAID.read_text())
        for name in ("mpirun", "mpicc"):
            program(above / "ompi/bin" / name, PROGRAM)
        answers = f'[ "$(id -u)" != 0 ] && [ "$OPAL_PREFIX" = {above}/ompi ] && cat {above}/said\n'
        program(above / "ompi/bin/ompi_info", f"#!/bin/sh\n{answers}")
        yield above / "ompi"


def look(path: Path, login_uid: int = ANY_OWNER) -> dict[str, Any]:
    found: dict[str, Any] = existing_openmpi.look(str(path), login_uid)
    return found


def test_it_tells_version_and_what_carries_messages(made: Path) -> None:
    found = look(made)
    assert (found["problem"], found["version"], found["cuda"], found["fortran"]) == ("", "5.0.7", False, False)
    assert found["library"] == str(made / "lib")
    assert found["folders"] == [str(made / "lib"), str(made.parent / "ucx/lib")]
    assert found["options"] == ["--with-pmix=internal", "--with-ucx"]
    assert {"pml/ucx", "pml/ob1", "btl/tcp", "btl/sm"} <= set(found["components"])
    assert found["components"]["pml/ucx"] == "5.0.7"


def test_it_passes_the_gate_and_is_looked_at_only_where_it_is_asked_for(made: Path) -> None:
    found = record.collect({"artifacts": [], "existing_openmpi": str(made)})
    # other users can write to the folder of this test
    assert "can be written by others" in gate.passed(found)["existing_openmpi"]["problem"]
    found["existing_openmpi"] = look(made)
    assert gate.passed(json.loads(json.dumps(found)))["existing_openmpi"] == look(made)
    assert record.collect({"artifacts": []})["existing_openmpi"] is None
    assert record.collect({"artifacts": [], "existing_openmpi": f"{made}/"})["existing_openmpi"]["path"] == str(made)
    found["existing_openmpi"]["components"] = {"pml/ucx\n": "1"}
    with pytest.raises(gate.RecordError):
        gate.passed(found)


@pytest.mark.parametrize("field", ["path", "library", "folders"])
@pytest.mark.parametrize("value", ["/srv/evil:~/x", "/a,--plugin", "/opt/../tmp", "/opt/a=b", "/opt/x/"])
def test_only_paths_that_a_shell_and_a_linker_take_as_they_are_pass_the_gate(field: str, value: str) -> None:
    section = {"path": "/opt/ompi", "problem": "p", "cure": "c", field: [value] if field == "folders" else value}
    with pytest.raises(gate.RecordError, match="is not an absolute path of letters"):
        gate.FORMS["existing_openmpi"](section)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda ompi: (ompi / "bin/mpicc").unlink(), "has no bin/mpicc"),
        (lambda ompi: (ompi / "bin/mpirun").chmod(0o644), "has no bin/mpirun"),
        (lambda ompi: (ompi / "lib/libmpi.so").unlink(), "has no lib/libmpi.so"),
        (lambda ompi: (ompi / "include/mpi.h").write_text("#define MPICH 1\n"), "has no include/mpi.h of Open MPI"),
        (lambda ompi: (ompi / ".clusterctl.json").touch(), "was installed by clusterctl"),
        (
            lambda ompi: (ompi.parent / "said").write_text("ompi:version:full:5; rm\n"),
            "/bin/ompi_info does not run there",
        ),
        (lambda ompi: ompi.rename(ompi.parent / "gone"), "does not exist"),
    ],
)
def test_what_cannot_be_used_is_said(made: Path, damage: Callable[[Path], Any], problem: str) -> None:
    damage(made)
    found = look(made)
    assert found["problem"].startswith(str(made))
    assert found["problem"].endswith(problem)
    assert found["cure"]


def led_elsewhere(place: Path) -> None:
    """Let a link lead to a copy in a folder that everybody may write to."""
    (target := place.parents[2] / "alice").mkdir(mode=0o755)
    target.chmod(0o777)
    shutil.move(place, target / place.name)
    place.symlink_to(target / place.name)


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        *(
            (name, lambda place: place.chmod(0o777), f"{name} can be written by others than its owner (mode 0777)")
            for name in ("bin/mpirun", "bin/mpicc", "bin/ompi_info", "bin/prted", "lib/libmpi.so")
        ),
        ("bin/mpirun", led_elsewhere, "/alice can be written by others than its owner (mode 0777)"),
        ("lib/libmpi.so", led_elsewhere, "/alice can be written by others than its owner (mode 0777)"),
        ("lib/libmpi.so", lambda place: place.chmod(0o600), "can be used by its owner alone (mode 0600)"),
    ],
)
def test_a_program_or_library_that_others_could_change_is_refused(
    made: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: Callable[[Path], None], words: str
) -> None:
    program(made / "bin/prted", PROGRAM)
    (made / "lib/libmpi.so").chmod(0o644)
    outside = {str(one) for one in made.parent.parents}  # other users can write to the folder of this test
    above = existing_python._above  # noqa: SLF001
    monkeypatch.setattr(existing_python, "_above", lambda path: [one for one in above(path) if one not in outside])
    asked = {"path": str(made), "login_uid": os.geteuid(), "root": str(made.parent)}
    assert existing_openmpi.look(**asked)["problem"] == ""
    damage(made / name)
    assert words in existing_openmpi.look(**asked)["problem"]


def test_a_change_after_the_proof_is_said(made: Path) -> None:
    known = {"existing": str(made), "version": "5.0.7rc1", "files": look(made)["files"]}
    assert existing_openmpi.changes(known) == ""
    (made / "lib/openmpi/mca_pml_ucx.so").touch()
    assert existing_openmpi.changes(known) == f"{made} has files of other names or sizes than at the proof"
    (made / "include/mpi.h").write_text(HEADER.replace(" 7", " 8"))
    assert existing_openmpi.changes(known) == f"{made} has Open MPI 5.0.8 where the proof had 5.0.7rc1"
    (made / "include/mpi.h").write_text(HEADER.replace(" 7", " 10"))
    older = {**known, "version": "5.0.1"}
    assert existing_openmpi.changes(older) == f"{made} has Open MPI 5.0.10 where the proof had 5.0.1"
    (made / "include/mpi.h").write_text(HEADER.replace(" 7", " 1"))
    newer = {**known, "version": "5.0.10"}
    assert existing_openmpi.changes(newer) == f"{made} has Open MPI 5.0.1 where the proof had 5.0.10"
    (made / "bin/mpirun").unlink()
    assert existing_openmpi.changes(known) == f"{made} has no bin/mpirun"
    assert existing_openmpi.changes(known, {str(made)}) == f"{made} is on a file system that does not answer"


def test_those_of_vendors_are_found_once(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (made.parent / "ompi-latest").symlink_to(made)
    (made.parent / "ompi-empty").mkdir()
    monkeypatch.setattr(existing_openmpi, "_PLACES", (f"{made.parent}/ompi*",))
    assert existing_openmpi.of_vendors() == {"vendor_openmpis": [{"path": str(made), "version": "5.0.7"}]}
    silent = {f"{made.parent}/{name}" for name in ("ompi", "ompi-latest", "ompi-empty")}
    assert existing_openmpi.of_vendors(silent) == {"vendor_openmpis": []}


def test_the_one_that_leads_to_it_runs_its_programs_by_its_own_name(made: Path, tmp_path: Path) -> None:
    found, tree = look(made), tmp_path / "tree"
    asked = {"path": str(made), "folders": found["folders"], "link": str(tree), "etc": "/e/openmpi", "ucx": "/e/ucx"}
    subprocess.run([sys.executable, str(MAKER), json.dumps(asked), str(tree)], check=True)
    said = subprocess.check_output([tree / "bin/mpirun", "a b", "c"], text=True, env={"PATH": "/usr/bin:/bin"})
    assert said == f"{made}/bin/mpirun {tree} {tree}/lib:{made.parent}/ucx/lib a b c\n"
    assert {name: (tree / name).readlink() for name in ("lib", "include", "share")} == {
        name: made / name for name in ("lib", "include", "share")
    }
    assert (tree / "etc").readlink() == Path("/e/openmpi"), "the settings of the cluster"
    shutil.copy("/bin/sh", made / "bin/mpirun")
    assert subprocess.check_output([tree / "bin/mpirun", "-c", "echo $0"], text=True) == f"{tree}/bin/mpirun\n"
    program(made / "bin/mpirun", "#!/bin/sh\nenv\n")
    lines = subprocess.check_output([tree / "bin/mpirun"], text=True, env={"HOME": "/h"}).splitlines()
    files = f"/h/.openmpi/mca-params.conf,/e/openmpi/openmpi-mca-params.conf,{made}/etc/openmpi-mca-params.conf"
    assert f"OMPI_MCA_mca_base_param_files={files}" in lines
