from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from clusterctl.cli.main import main
from clusterctl.jobs import launcher_needs, run
from clusterctl.launch.compose import JobOptions
from clusterctl.model.probe import ProbeFailure
from clusterctl.remote import supervised_job, sync
from clusterctl.support.errors import ClusterctlError
from factory import provisioned
from launching import Site

NODES = ("node1", "node2", "node3")


def typed(*words: str) -> int:
    return main(["run", "inventory.ini", *words])


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ([], 1, "There is no program to start"),
        (["--"], 1, "There is no program to start"),
        (
            ["--print", "-np", "7", "--", "a.out"],
            1,
            "7 ranks do not fit into 6 slots; raise slots= on the hosts, or take --ov",
        ),
        (["--print", "-x", "A B=1", "--", "a.out"], 1, "'A B' is not the name of an environment variable"),
        (["--print", "-x", "-H", "--", "a.out"], 1, "'-H' is not the name of an environment variable"),
        (["--print", "-x", "A=1\n2", "--", "a.out"], 1, "The value of A has a newline in it"),
        (["--print", "--mca", "btl;id", "tcp", "--", "a.out"], 1, "'btl;id' is not the name of an MCA parameter"),
        (["--print", "--mca", "btl", "tcp", "--mca", "btl", "sm", "--", "a.out"], 1, "--mca btl is given twice"),
        (["--print", "--", "-np", "3"], 1, "The program '-np' is an option"),
        (["--print", "--chdir", "code", "--", "a.out"], 1, "it takes an absolute path"),
        (
            ["--print", "--launch-node", "node9", "--", "a.out"],
            1,
            "is not among the selected hosts: node1, node2, node3.",
        ),
        (["--print", "--nproc-per-node", "2", "--", "a.out"], 1, "--nproc-per-node is torchrun's"),
        (["--print", "--launcher", "torchrun", "-np", "2", "--", "a.py"], 1, "torchrun takes --nproc-per-node"),
        (
            ["--print", "--launcher", "torchrun", "--nproc-per-node", "3", "--", "a.py"],
            1,
            "3 processes do not fit into the 2 slots of node1",
        ),
        (["--print", "--launcher", "horovodrun", "--network", "ucx", "--", "a.py"], 1, "use --launcher mpirun for UCX"),
        (
            ["--print", "--launcher", "horovodrun", "--mca", "pml", "cm", "--", "a.py"],
            1,
            "horovodrun sets pml by itself",
        ),
        (["--print", "--network", "ucx", "--", "a.out"], 1, "on node1, node2, node3 was built without UCX"),
        (["--sync", "/no/such/folder", "--", "a.out"], 1, "/no/such/folder is not a folder"),
        (["--launcher", "srun", "--", "a.out"], 2, "'srun' is not one of 'mpirun', 'horovodrun', 'torchrun'"),
        (["--timeout", "0", "--", "a.out"], 2, "a deadline is a positive number of seconds"),
    ],
)
def test_bad_input_gets_a_sentence(
    words: list[str], code: int, sentence: str, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    Site(monkeypatch, NODES, slots=2)
    monkeypatch.setattr(supervised_job, "run", lambda *_, **__: pytest.fail("something was started"))
    assert typed(*words) == code
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said


def test_nodes_that_were_never_provisioned_are_named(monkeypatch: Any, capsys: Any) -> None:
    site = Site(monkeypatch, NODES)
    site.nodes["node2"] = provisioned("node2", artifacts=[])
    assert typed("--", "a.out") == 1
    assert (
        "Open MPI of clusterctl is missing on node2 (/usr/local/openmpi does not exist); run 'clusterctl provision"
        in (capsys.readouterr().err)
    )
    for gone in range(len(there := provisioned("node2").model_dump()["watch"])):
        site.nodes["node2"] = provisioned("node2", watch=[entry for at, entry in enumerate(there) if at != gone])
        assert typed("--", "a.out") == 1
        assert "job_supervisor.py on node2 is not this clusterctl's" in capsys.readouterr().err


def test_a_node_that_does_not_answer_ends_it_with_4(monkeypatch: Any, capsys: Any) -> None:
    site = Site(monkeypatch, NODES)
    site.failures["node3"] = ProbeFailure("node3", "unreachable", "node3 (10.0.0.3:22) does not answer.")
    assert typed("--", "a.out") == 4
    assert "node3 (10.0.0.3:22) does not answer." in capsys.readouterr().err


def test_nodes_that_differ_are_refused_with_10_unless_one_insists(monkeypatch: Any, capsys: Any) -> None:
    site = Site(monkeypatch, NODES)
    site.nodes["node3"] = provisioned("node3", 3, version="5.0.8")
    assert typed("--print", "--", "a.out") == 10
    said = capsys.readouterr().err
    assert "node3" in said
    assert "--no-gate runs it nevertheless" in said
    assert typed("--print", "--no-gate", "--", "a.out") == 0


@pytest.mark.parametrize(("launcher", "lack"), [("torchrun", "PyTorch"), ("horovodrun", "Horovod")])
def test_a_launcher_that_a_node_lacks_is_named(launcher: str, lack: str, monkeypatch: Any, capsys: Any) -> None:
    site = Site(monkeypatch, NODES)
    site.nodes["node2"] = provisioned("node2", 2, stack=False)
    assert typed("--print", "--no-gate", "--launcher", launcher, "--", "a.py") == 1
    assert f"--launcher {launcher} needs {lack}, which is missing on node2" in capsys.readouterr().err


def test_nodes_without_a_common_network_get_the_matrix(monkeypatch: Any, capsys: Any) -> None:
    site = Site(monkeypatch, NODES, fabric=None)
    for number, name in enumerate(NODES, 1):
        wire = {
            "name": "eth0", "kind": "physical", "up": True, "carrier": True,
            "addresses": [{"family": 4, "address": "10.1.0.1", "prefix": 24, "scope": "global"}],
        }  # fmt: skip
        site.nodes[name] = provisioned(name, number, fabric=None, interfaces=[wire])
    assert typed("--print", "--", "a.out") == 1
    said = capsys.readouterr().err
    assert "The nodes have no network in common" in said
    assert "10.1.0" in said


def looks(monkeypatch: Any, *without: str, runs: bool = True, folder: bool = True) -> None:
    def look(logins: Any, names: Any, paths: Any, directory: str = "") -> list[supervised_job.Look]:
        del paths
        return [
            supervised_job.Look(
                login.host.name,
                {name: "" if login.host.name in without else f"/bin/{name}" for name in names},
                frozenset(names if runs else ()),
                directory or "/home/user1",
                folder,
            )
            for login in logins
        ]

    monkeypatch.setattr(supervised_job, "look", look)


@pytest.mark.parametrize(
    ("words", "without", "sentence"),
    [
        (("--", "./a.out"), ("node2", "node3"), "./a.out is missing on node[2-3] (looked in /home/user1); --sync PATH"),
        (("--", "a.out"), NODES, "a.out is missing on all nodes (looked in the PATH of the nodes' sessions)"),
        (("--", "/opt/a.out"), ("node1",), "/opt/a.out is missing on node1; --sync PATH"),
        (("--launcher", "torchrun", "--", "train.py"), ("node1",), "./train.py is missing on node1"),
        (
            ("--", "python", "a.py"),
            ("node2",),
            "python_env/bin/python, the cluster's Python, is missing on node2 (its environment was removed); put",
        ),
    ],
)
def test_a_missing_program_is_named_with_its_nodes(
    words: tuple[str, ...], without: tuple[str, ...], sentence: str, monkeypatch: Any, capsys: Any
) -> None:
    Site(monkeypatch, NODES)
    looks(monkeypatch, *without)
    assert typed(*words) == 1
    assert sentence in capsys.readouterr().err


def told(site: Site, *without: str, files: int = 1, runs: bool = True, **more: Any) -> None:
    """Have the nodes tell of files with their facts."""
    for number, name in enumerate(NODES, 1):
        found = (name not in without,) * files
        look = {"found": found, "runs": (runs,) * files, "folder": "/home/user1", "has_folder": True, "memory": {}}
        site.nodes[name] = provisioned(name, number, job_look=look, **more)


def test_files_of_which_the_facts_tell_are_not_asked_for_again(monkeypatch: Any, capsys: Any) -> None:
    site = Site(monkeypatch, NODES)
    monkeypatch.setattr(supervised_job, "look", lambda *_: pytest.fail("the nodes were asked again"))
    told(site, "node2")
    assert typed("--", "a.out") == 1
    assert "a.out is missing on node2 (looked in the PATH of the nodes' sessions)" in capsys.readouterr().err
    told(site, runs=False)
    assert typed("--", "./a.sh") == 1
    assert "./a.sh is not executable on node[1-3]" in capsys.readouterr().err
    told(site)
    monkeypatch.setattr(supervised_job, "run", lambda *_, **__: pytest.fail("it was started"))
    with pytest.raises(pytest.fail.Exception, match="it was started"):
        typed("--no-watch", "--", "a.out")


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (("--", "a.out"), 2),  # a node that tells of other files than it was asked for
        (("--launcher", "accelerate", "--", "train.py"), 1),  # its packages are known with the facts alone
        (("--sync", ".", "--remote-dir", "/data/code", "--", "a.out"), 1),  # what is copied is there afterwards
    ],
)
def test_files_of_which_the_facts_cannot_tell_are_asked_for(words: Any, files: int, monkeypatch: Any) -> None:
    site = Site(monkeypatch, NODES)
    told(site, files=files)
    monkeypatch.setattr(sync, "copy", lambda *_: sync.Copied(1))
    package = {"node1": {"accelerate": "/usr/local/python_env/lib/python3.11/site-packages/accelerate/__init__.py"}}
    monkeypatch.setattr(launcher_needs, "package_files", lambda _, wish: package if "train.py" in wish.program else {})

    def look(_logins: Any, names: Any, *_: Any) -> Any:
        if list(names) == ["rsync"]:
            return []
        pytest.fail("the nodes were asked")

    monkeypatch.setattr(supervised_job, "look", look)
    with pytest.raises(pytest.fail.Exception, match="the nodes were asked"):
        typed("--no-watch", *words)


def test_another_user_behind_sudo_looks_by_himself(monkeypatch: Any) -> None:
    site = Site(monkeypatch, NODES)
    site.hosts = tuple(replace(host, variables={"ssh_mesh_user": "somebody"}) for host in site.hosts)
    told(site)
    monkeypatch.setattr(supervised_job, "look", lambda *_: pytest.fail("the nodes were asked"))
    with pytest.raises(pytest.fail.Exception, match="the nodes were asked"):
        typed("--no-watch", "--", "a.out")


def test_what_may_not_be_executed_and_a_missing_folder_are_named(monkeypatch: Any, capsys: Any) -> None:
    Site(monkeypatch, NODES)
    looks(monkeypatch, runs=False)
    assert typed("--", "./a.sh") == 1
    assert "./a.sh is not executable on node[1-3]" in capsys.readouterr().err
    looks(monkeypatch, folder=False)
    assert typed("--chdir", "/data", "--", "./a.sh") == 1
    assert "The folder /data is not on node[1-3]" in capsys.readouterr().err


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate", "deepspeed"])
def test_a_script_that_a_launcher_starts_by_python_need_not_be_executable(launcher: str, monkeypatch: Any) -> None:
    Site(monkeypatch, NODES)
    looks(monkeypatch, runs=False)
    monkeypatch.setattr(supervised_job, "run", lambda *_, **__: pytest.fail("it was started"))
    with pytest.raises(pytest.fail.Exception, match="it was started"):
        typed("--no-watch", "--launcher", launcher, "--", "folder/train.py")


def test_endings_become_codes() -> None:
    options = run.RunOptions(JobOptions(("a.out",)), timeout_s=5)
    told: list[str] = []

    def code(**ended: Any) -> int:
        return run._concluded(supervised_job.JobOutcome(seconds=1, **ended), "node1", options, told.append)  # noqa: SLF001

    assert code(ending="exited", rc=7) == 7
    assert code(ending="exited", signal=9) == 137
    assert code(ending="deadline") == 124
    assert told == ["The job had not ended after 5 s and was ended."]
    for ending, number in (("lost", 4), ("not_started", 2), ("stopped", 2)):
        with pytest.raises(ClusterctlError) as caught:
            code(ending=ending, problem="why")
        assert caught.value.exit_code == number
