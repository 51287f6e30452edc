"""The look at an environment that the user made: real venvs, folders like those of conda, and what cannot be used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import artifacts, existing_python, record
from clusterctl.support import content

gate = content.module_util("node_record_gate")
RELEASE = f"{sys.version_info.major}.{sys.version_info.minor}"
ANY_OWNER = -1
COMPILED = {"folder": "/opt/a", "library": "", "nccl": "", "framework": ""}
VERSION_FILE = "__version__ = '2.7.0+cu126'\ndebug = False\ncuda: Optional[str] = '12.6'\nhip: Optional[str] = None\n"
MAKER = content.root() / "roles" / "python_env" / "files" / "existing_environment.py"


def add(folder: Path, *packages: str) -> None:
    """Leave what an installer leaves of packages."""
    for name in packages:
        (folder / f"{name}.dist-info").mkdir(parents=True)


def packages_of(environment: Path) -> Path:
    return environment / "lib" / f"python{RELEASE}" / "site-packages"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A venv with packages, PyTorch among them."""
    folder = tmp_path / "env"
    venv.create(folder, symlinks=True)
    add(packages_of(folder), "numpy-2.3.1", "torch-2.7.0+cu126", "typing_extensions-4.15.0", "nvidia_nccl_cu12-2.26.2")
    (packages_of(folder) / "torch").mkdir()
    (packages_of(folder) / "torch/version.py").write_text(VERSION_FILE)
    library = packages_of(folder) / "nvidia/nccl/lib/libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    return folder


def look(path: Path | str) -> dict[str, Any]:
    found: dict[str, Any] = existing_python.look(str(path), ANY_OWNER, frozen=record.frozen_paths)
    return found


@pytest.mark.parametrize("named", ["", "/", "/bin/python", "/bin/python3"])
def test_a_venv_is_known_by_its_folder_or_its_python(made: Path, named: str) -> None:
    found = look(f"{made}{named}")
    assert (found["problem"], found["kind"], found["folder"]) == ("", "venv", str(made))
    assert found["version"] == ".".join(map(str, sys.version_info[:3]))
    assert found["base"] == sys.base_prefix
    assert found["real"] == os.path.realpath(sys.executable)
    assert found["folders"] == [str(packages_of(made))]
    assert found["packages"] == {
        "numpy": "2.3.1",
        "torch": "2.7.0+cu126",
        "typing-extensions": "4.15.0",
        "nvidia-nccl-cu12": "2.26.2",
    }
    assert found["cuda"] == {"torch": "12.6"}
    assert found["nccl"] == {"path": f"{packages_of(made)}/nvidia/nccl/lib/libnccl.so.2", "version": "2.26.2"}


def test_it_passes_the_gate_and_is_looked_at_only_where_it_is_asked_for(made: Path) -> None:
    found = record.collect({"artifacts": [], "existing_python": str(made)})
    assert gate.passed(json.loads(json.dumps(found)))["existing_python"]["folder"] == str(made)
    assert record.collect({"artifacts": []})["existing_python"] is None
    assert record.collect({"artifacts": [], "existing_python": f"{made}/"})["existing_python"]["path"] == str(made)
    assert record.collect({"artifacts": [], "existing_python": "/opt/a b"})["existing_python"] is None


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("/opt/pytorch", True),
        ("/opt/job/.venv/bin/python3.11", True),
        ("/opt/..", False),
        ("/opt/./x", False),
        ("/opt//x", False),
        ("/opt/$(id)", False),
        ("/opt/a\nb", False),
        ("opt", False),
        ("/", False),
    ],
)
def test_paths_that_a_shell_would_read_otherwise_are_not_plain(path: str, plain: bool) -> None:
    assert bool(existing_python.PLAIN.fullmatch(path)) is plain


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("folder", "/opt/x'; rm", "an absolute path of letters"),
        ("folder", "/opt/~x", "an absolute path of letters"),
        ("base", "/opt/../tmp", "an absolute path of letters"),
        ("folders", ["/opt/a:/tmp/b"], "an absolute path of letters"),
        ("packages", {"a\nb": "1"}, "the name of a package"),
        ("packages", {"a": "1; rm"}, "the version of a package"),
        ("packages", {f"p{number}": "1" for number in range(9000)}, "a mapping of at most 8192"),
        ("nccl", {"path": "/x"}, "there"),
        ("folders", ["/x"] * 65, "a list of at most 64"),
        ("mpi", {"mpi4py": {**COMPILED, "library": "libmpi.so; rm"}}, "a library"),
        ("mpi", {"mpi4py": {**COMPILED, "library": f"{'a' * 255}/" * 65}}, "a library"),
        ("mpi", {"mpi4py": {**COMPILED, "nccl": "/opt/../tmp/\n"}}, "a library"),
        ("mpi", {"mpi4py": {**COMPILED, "framework": "2.7.0; rm"}}, "the version of a package"),
        ("mpi", {"mpi4py": {**COMPILED, "folder": "../a"}}, "an absolute path of letters"),
        ("mpi", {"mpi4py": {"folder": "/opt/a", "library": ""}}, "there"),
    ],
)
def test_what_a_node_invents_does_not_pass_the_gate(made: Path, field: str, value: Any, words: str) -> None:
    found = json.loads(json.dumps(record.collect({"artifacts": [], "existing_python": str(made)})))
    found["existing_python"][field] = value
    with pytest.raises(gate.RecordError, match=words):
        gate.passed(found)


def test_a_folder_like_condas_tells_its_packages_by_the_names_of_its_records(tmp_path: Path) -> None:
    folder = tmp_path / "conda"
    add(packages_of(folder), "numpy-2.3.1", "torch-2.5.1")
    (folder / f"lib/python{RELEASE}/os.py").write_text("")
    (folder / "bin").mkdir()
    (folder / f"bin/python{RELEASE}").write_bytes(Path(sys.executable).resolve().read_bytes()[:4096])
    (folder / f"bin/python{RELEASE}").chmod(0o755)
    (folder / "bin/python").symlink_to(f"python{RELEASE}")
    (folder / "lib/libnccl.so.2.23.4").write_bytes(b"")
    (folder / "lib/libnccl.so.2").symlink_to("libnccl.so.2.23.4")
    (folder / "conda-meta").mkdir()
    for name in (f"python-{RELEASE}.5-h123_0_cpython", "pytorch-2.5.1-cuda126_py312_300", "numpy-2.3.1-py312_0"):
        (folder / "conda-meta" / f"{name}.json").write_text("{}")
    found = look(folder)
    assert (found["problem"], found["kind"], found["version"]) == ("", "conda", f"{RELEASE}.5")
    assert (found["base"], found["shares"], found["headers"]) == (str(folder), True, False)
    assert found["machine"] == os.uname().machine
    assert found["packages"] == {
        "numpy": "2.3.1",
        "torch": "2.5.1",
        "conda:python": f"{RELEASE}.5=h123_0_cpython",
        "conda:pytorch": "2.5.1=cuda126_py312_300",
    }
    assert found["nccl"]["version"] == "2.23.4"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("rm -r $E", "$E does not exist"),
        (
            "rm $E/pyvenv.cfg",
            "$E is not a Python environment (it has no pyvenv.cfg, no conda-meta and no lib/python3*)",
        ),
        ("rm $E/bin/python*", "$E has no bin/python"),
        (
            "ln -sfn /nowhere/python $E/bin/python",
            "$E/bin/python leads to /nowhere/python, which is not a program there",
        ),
        ("rm $E/pyvenv.cfg; mkfifo $E/pyvenv.cfg", "$E/pyvenv.cfg is not the file of a venv: it is not a regular file"),
        ("truncate -s 1M $E/pyvenv.cfg", "$E/pyvenv.cfg is not the file of a venv: it has more than 65536 bytes"),
        ("rm $E/pyvenv.cfg; ln -s /etc/shadow $E/pyvenv.cfg", "$E/pyvenv.cfg cannot be read"),
    ],
)
def test_what_cannot_be_used_is_told_with_a_cure(made: Path, damage: str, words: str) -> None:
    subprocess.run(["sh", "-c", damage], env={**os.environ, "E": str(made)}, check=True)
    found = look(made)
    assert found["problem"].startswith(words.replace("$E", str(made))), found["problem"]
    assert found["cure"]
    assert "packages" not in found


def test_an_environment_that_others_could_change_is_refused(made: Path) -> None:
    made.chmod(0o777)
    found = existing_python.look(str(made), os.geteuid())
    assert "can be written by others than its owner (mode" in found["problem"]
    assert "who could change what jobs run" in found["problem"]


@pytest.mark.parametrize(
    ("path", "root", "among"),
    [
        ("/usr", "/usr/local", True),
        ("/opt/pytorch", "/usr/local", True),
        ("/sw/env", "/sw", True),
        ("/opt", "/usr/local", True),
        ("/optional/env", "/usr/local", False),
        ("/data/venvs/x", "/usr/local", False),
        ("/home/me/env", "/sw", False),
    ],
)
def test_software_lies_where_root_puts_it(path: str, root: str, among: bool) -> None:
    assert existing_python.among_software(path, root) is among


def test_elsewhere_than_among_software_root_alone_may_own_it(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, int] = {}
    monkeypatch.setattr(existing_python, "refuse_unsafe", lambda path, uid, *_words: asked.setdefault(path, uid))
    existing_python.look(str(made), 1000, root="/sw")
    assert asked[f"{made}/bin"] == 0
    asked.clear()
    existing_python.look(str(made), 1000, root=os.path.realpath(made.parent))
    assert asked[f"{made}/bin"] == 1000


def test_a_file_system_that_does_not_answer_is_not_looked_at(made: Path) -> None:
    found = existing_python.look(f"{made}/bin/python", ANY_OWNER, {str(made)})
    assert found["problem"] == f"{made} is on a file system that does not answer"


def artifact_on(made: Path, root: Path) -> Path:
    """Leave an artifact that stands on the environment, as an installation leaves it."""
    tree = root / "python_env-3.11-0123456789abcdef"
    tree.mkdir()
    (tree / "pyvenv.cfg").write_text("home = /usr/bin\n")
    manifest = artifact.manifest_bytes(artifact.make_manifest(str(tree)))
    (tree / artifact.MANIFEST).write_bytes(manifest)
    found = look(made)
    inputs = {"existing": str(made), "python": found["version"], "packages": found["packages"]}
    digest = artifact.hashlib.sha256(manifest).hexdigest()
    (tree / artifact.MARKER).write_bytes(artifact.marker_bytes("python_env", "3.11", "0" * 16, inputs, digest))
    return tree


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("true", ""),
        (
            "mv $P/torch-2.7.0+cu126.dist-info $P/torch-2.8.0.dist-info",
            "has torch 2.8.0 where the proof had 2.7.0+cu126",
        ),
        ("mkdir $P/scipy-1.17.0.dist-info", "has scipy 1.17.0, which came after the proof"),
        ("rm -r $P/numpy-2.3.1.dist-info", "has no numpy, which the proof had"),
        ("sed -i s/^version.*/version=$R.99/ $E/pyvenv.cfg", f"has Python {RELEASE}.99 where the proof had"),
        ("rm -r $E", "does not exist"),
    ],
)
def test_an_artifact_on_an_environment_that_has_changed_is_not_whole(
    made: Path, tmp_path: Path, change: str, words: str
) -> None:
    tree = artifact_on(made, tmp_path)
    variables = {**os.environ, "E": str(made), "P": str(packages_of(made)), "R": RELEASE}
    subprocess.run(["sh", "-c", change], env=variables, check=True)
    problem = artifacts.Verifier().verify(str(tree))[2]
    assert problem.startswith(f"{made} {words}") if words else problem == ""


def test_many_changes_are_counted(made: Path, tmp_path: Path) -> None:
    tree = artifact_on(made, tmp_path)
    add(packages_of(made), *(f"more{number}-1.0" for number in range(8)))
    assert artifacts.Verifier().verify(str(tree))[2].endswith("more4 1.0 and 3 more, which came after the proof")


# --- packages of MPI ---


def compiled(folder: Path, package: str, module: str, *linked: str) -> None:
    """Put a compiled module into a package, linked by options of the linker with a libmpi and a libnccl."""
    stub = folder / "stub"
    stub.mkdir(exist_ok=True)
    (folder / package).mkdir(parents=True, exist_ok=True)
    empty = ["gcc", "-shared", "-x", "c", "/dev/null", "-o"]
    for name in ("libmpi.so.40", "libnccl.so.2"):
        subprocess.run([*empty, str(stub / f"{name.partition('.')[0]}.so"), f"-Wl,-soname,{name}"], check=True)
    subprocess.run([*empty, str(folder / package / module), f"-L{stub}", "-Wl,--no-as-needed", *linked], check=True)


@pytest.mark.parametrize(
    ("linked", "library"),
    [
        (["-lmpi", "-Wl,-rpath,/usr/local/openmpi/lib"], "/usr/local/openmpi/lib/libmpi.so.40"),
        (["-lmpi", "-Wl,--disable-new-dtags,-rpath,/x:/usr/local/openmpi/lib"], "/usr/local/openmpi/lib/libmpi.so.40"),
        (["-lmpi", "-Wl,-rpath,/opt/gone/lib"], "libmpi.so.40"),
        (["-lmpi"], "libmpi.so.40"),
        ([], ""),
    ],
)
def test_a_compiled_package_tells_the_mpi_that_it_loads(made: Path, linked: list[str], library: str) -> None:
    compiled(packages_of(made), "mpi4py", "MPI.cpython-311-x86_64-linux-gnu.so", *linked)
    its = {**COMPILED, "folder": str(packages_of(made)), "library": library}
    assert look(made)["mpi"] == {"mpi4py": its}
    assert gate.FORMS["existing_python"](json.loads(json.dumps(look(made))))["mpi"]["mpi4py"]["library"] == library


def test_a_library_beside_the_package_is_told_by_its_path(made: Path) -> None:
    folder = packages_of(made)
    compiled(folder, "mpi4py", "MPI.cpython-311-x86_64-linux-gnu.so", "-lmpi", "-Wl,-rpath,$ORIGIN/own")
    own = folder / "mpi4py/own"
    own.mkdir()
    (own / "libmpi.so.40").touch()
    assert look(made)["mpi"] == {"mpi4py": {**COMPILED, "folder": str(folder), "library": f"{own}/libmpi.so.40"}}


# Its last line is Horovod's own.
METADATA = '{\n"pytorch": "2.7.0+cu126",\n"tensorflow": "2.21.0",\n"dummy": "none"\n}'


def test_horovod_tells_its_libraries_and_the_version_of_each_framework(made: Path) -> None:
    folder, its_nccl = packages_of(made), "-Wl,-rpath,/usr/local/openmpi/lib:/usr/local/nccl/lib"
    compiled(folder, "horovod/torch", "mpi_lib_v2.cpython-311-x86_64-linux-gnu.so", "-lmpi", "-lnccl", its_nccl)
    compiled(folder, "horovod/tensorflow", "mpi_lib.cpython-311-x86_64-linux-gnu.so", "-lmpi")
    (folder / "horovod/metadata.json").write_text(METADATA)
    mpi, nccl = "/usr/local/openmpi/lib/libmpi.so.40", "/usr/local/nccl/lib/libnccl.so.2"
    assert look(made)["mpi"] == {
        "horovod-pytorch": {"folder": str(folder), "library": mpi, "nccl": nccl, "framework": "2.7.0+cu126"},
        "horovod-tensorflow": {**COMPILED, "folder": str(folder), "library": "libmpi.so.40", "framework": "2.21.0"},
    }
    gate.FORMS["existing_python"](json.loads(json.dumps(look(made))))


@pytest.mark.parametrize("text", ["", '{"pytorch": 2.7}', '{"pytorch": "2.7; rm"}', '{"pytorch": ["2.7.0"]}'])
def test_a_horovod_that_notes_no_version_has_none(made: Path, text: str) -> None:
    compiled(packages_of(made), "horovod/torch", "mpi_lib_v2.cpython-311-x86_64-linux-gnu.so", "-lmpi")
    (packages_of(made) / "horovod/metadata.json").write_text(text)
    assert look(made)["mpi"]["horovod-pytorch"]["framework"] == ""


@pytest.mark.parametrize("content", [b"", b"\x7fELF\2\1" + b"\xff" * 400, b"#!/bin/sh\n"])
def test_a_module_that_is_no_library_names_none(made: Path, content: bytes) -> None:
    (packages_of(made) / "mpi4py").mkdir()
    (packages_of(made) / "mpi4py" / "MPI.x.so").write_bytes(content)
    assert look(made)["mpi"]["mpi4py"]["library"] == ""
    (packages_of(made) / "mpi4py" / "MPI.y.so").symlink_to("/dev/zero")
    assert look(made)["mpi"]["mpi4py"]["library"] == ""


# --- the environment that leads to it ---


def led_to(made: Path, tree: Path, **more: Any) -> Path:
    """Make the cluster's environment as a build does."""
    found = look(made)
    asked = {name: found[name] for name in ("folder", "interpreter", "base", "real", "shares", "folders")}
    asked |= {"release": RELEASE, "linked": [], **more}
    subprocess.run([sys.executable, str(MAKER), json.dumps(asked), str(tree)], check=True)
    return tree


def test_the_environment_that_leads_to_it_sees_what_is_linked_before_its_packages(made: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    for folder, says in ((linked, "linked"), (packages_of(made), "own")):
        folder.mkdir(exist_ok=True)
        (folder / "both.py").write_text(f"said = {says!r}\n")
    (packages_of(made) / "alone.py").write_text("said = 'own'\n")
    (packages_of(made) / "other.pth").write_text(f"{tmp_path}/elsewhere\n")
    (tmp_path / "elsewhere").mkdir()
    tree = led_to(made, tmp_path / "tree", linked=[str(linked)])
    told = "sys.prefix, sys.base_prefix, both.said, alone.said, sys.path"
    code = f"import json, sys, both, alone; print(json.dumps([{told}]))"
    out = subprocess.check_output([tree / "bin/python", "-c", code], text=True)
    prefix, base, first, own, path = json.loads(out)
    assert (prefix, base, first, own) == (str(tree), sys.base_prefix, "linked", "own")
    assert f"{tmp_path}/elsewhere" in path, "its .pth files count"
    assert (packages_of(tree) / "nvidia").readlink() == packages_of(made) / "nvidia"


def test_its_programs_run_in_the_environment_that_leads_to_it(made: Path, tmp_path: Path) -> None:
    says = "import sys; print(sys.prefix, *sys.argv[1:])\n"
    for name, first in {
        "torchrun": f"#!{made}/bin/python\n",
        "accelerate": f"#!/bin/sh\n'''exec' '{made}/bin/python' \"$0\" \"$@\"\n' '''\n",
        "pip3.11": f"#!{made}/bin/python\n",
        "mpirun": "#!/bin/sh\n",
        "other": "#!/usr/bin/python3\n",
    }.items():
        (made / "bin" / name).write_text(f"{first}{says}")
        (made / "bin" / name).chmod(0o755)
    tree = led_to(made, tmp_path / "tree")
    made_programs = {path.name for path in (tree / "bin").iterdir() if not path.is_symlink()}
    assert made_programs == {"torchrun", "accelerate"}
    for name in made_programs:
        out = subprocess.check_output([tree / "bin" / name, "a b", "c"], text=True)
        assert out == f"{tree} a b c\n"
