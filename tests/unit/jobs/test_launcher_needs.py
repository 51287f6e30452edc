"""What a launcher needs is refused before the start, in one sentence with its cure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from clusterctl.cli.main import main
from clusterctl.jobs import launcher_needs
from clusterctl.launch.compose import JobOptions
from clusterctl.launch.launchers import Launcher
from clusterctl.remote import supervised_job
from clusterctl.remote.supervised_job import Look
from clusterctl.support.errors import ConfigError
from factory import artifact, provisioned
from launching import Site

PACKAGES = "/usr/local/python_env/lib/python3.{}/site-packages/{}/__init__.py"
CONFIG = "compute_environment: LOCAL_MACHINE\nnum_machines: 4\nnum_processes: 32\n"


def nodes(*versions: str) -> dict[str, Any]:
    names = [f"node{number}" for number in range(1, len(versions) + 1)]
    return {
        name: provisioned(name, artifacts=[artifact("python_env", version, framework={"name": "pytorch"})])
        for name, version in zip(names, versions, strict=True)
    }


def test_a_package_is_looked_for_where_the_python_of_each_node_has_it() -> None:
    found = launcher_needs.package_files(nodes("3.11", "3.13"), JobOptions(("a.py",), Launcher.ACCELERATE))
    assert found == {
        "node1": {"accelerate": PACKAGES.format(11, "accelerate")},
        "node2": {"accelerate": PACKAGES.format(13, "accelerate")},
    }


@pytest.mark.parametrize(
    ("launcher", "program", "exported"),
    [
        (Launcher.MPIRUN, ("a.out",), ()),
        (Launcher.NONE, ("a.out",), ()),
        (Launcher.TORCHRUN, ("a.py",), ()),
        (Launcher.DEEPSPEED, ("a.py",), ("PYTHONPATH=/srv/deepspeed",)),
        (Launcher.JAX, ("/opt/conda/bin/python", "a.py"), ()),
    ],
)
def test_nothing_is_looked_for_where_nothing_is_needed_or_known(
    launcher: Launcher, program: tuple[str, ...], exported: tuple[str, ...]
) -> None:
    assert not launcher_needs.package_files(nodes("3.11"), JobOptions(program, launcher, exported=exported))


@pytest.mark.parametrize(
    ("launcher", "cure"),
    [
        (Launcher.ACCELERATE, r"provision them with python_env_requirements: \[accelerate\]"),
        (Launcher.JAX, r"provision them with python_env_requirements: \[jax\]"),
        (Launcher.DEEPSPEED, r"take it from a lock, by --project or python_env_lock"),
    ],
)
def test_nodes_without_the_package_are_named_with_the_cure(launcher: Launcher, cure: str) -> None:
    wish = JobOptions(("python", "a.py"), launcher)
    files = launcher_needs.package_files(nodes("3.11", "3.11"), wish)
    (path,) = files["node1"].values()
    has, lacks = Look("node1", found={path: path}), Look("node2", found={path: ""})
    launcher_needs.refuse_without_packages(launcher, files, [has])
    words = rf"^--launcher {launcher.value} needs {launcher.value}, which is missing on node2; {cure}, or leave them"
    with pytest.raises(ConfigError, match=words):
        launcher_needs.refuse_without_packages(launcher, files, [has, lacks])


@pytest.mark.parametrize("launcher", ["accelerate", "deepspeed", "torchrun"])
def test_nodes_without_pytorch_are_named(launcher: str, monkeypatch: Any, capsys: Any) -> None:
    site = Site(monkeypatch, ("node1", "node2"))
    site.nodes["node2"] = provisioned("node2", 2, stack=False)
    assert main(["run", "inventory.ini", "--print", "--no-gate", "--launcher", launcher, "--", "a.py"]) == 1
    assert f"--launcher {launcher} needs PyTorch, which is missing on node2" in capsys.readouterr().err


def shown(*words: str) -> int:
    return main(["run", "inventory.ini", "--print", "--launcher", "accelerate", *words])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Any) -> Path:
    Site(monkeypatch, ("node1", "node2"), slots=2)
    monkeypatch.setattr(
        supervised_job, "look", lambda logins, *_, **__: [Look(one.host.name, folder="/home/c") for one in logins]
    )
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "a.yaml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(("chdir", "name"), [("", "conf/a.yaml"), ("conf", "a.yaml"), ("conf", "../conf/a.yaml")])
def test_a_file_of_accelerate_is_read_where_it_is_copied_from(chdir: str, name: str, folder: Path, capsys: Any) -> None:
    assert shown("--sync", str(folder), "--chdir", chdir, "--", "--config_file", name, "train.py") == 0
    said = capsys.readouterr()
    assert (
        f"Note: {name} has num_machines 4, num_processes 32; this run uses num_machines 2, num_processes 4." in said.err
    )
    assert said.out.rstrip().endswith(f"--config_file {name} train.py")


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "a.yaml cannot be read in "), ("x" * 70000, "a.yaml is longer than 64 KiB"), ("- a", "a.yaml is not a")],
)
def test_a_file_that_is_no_configuration_is_one_sentence(
    text: str | None, words: str, folder: Path, capsys: Any
) -> None:
    place = folder / "conf" / "a.yaml"
    place.unlink()
    if text is not None:
        place.write_text(text, encoding="utf-8")
    assert shown("--sync", str(folder), "--", "--config_file", "conf/a.yaml", "train.py") == 1
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said


def test_a_file_that_no_node_has_is_one_sentence(folder: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(launcher_needs, "_there", lambda _team, place: None if place == "/srv/a.yaml" else b"")
    assert shown("--sync", str(folder), "--", "--config_file=/srv/a.yaml", "train.py") == 1
    assert "/srv/a.yaml cannot be read on node1; give --config_file a file that all nodes have" in (
        capsys.readouterr().err
    )
