from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from clusterctl.cli.main import main
from clusterctl.cli.run import joined
from clusterctl.jobs import run as jobs
from clusterctl.launch import compose, environment, horovodrun, torchrun
from clusterctl.launch.compose import Launcher, Member, Wish
from clusterctl.model import facts
from clusterctl.model.hosts import Host
from clusterctl.remote import supervised_job, sync
from clusterctl.support.errors import ConfigError
from factory import provisioned
from launching import Site
from local_jobs import HereLogin

NODES = ("node1", "node2", "node3")


def typed(*words: str) -> int:
    return main(["run", "inventory.ini", *words])


# --- bad input, a sentence each ---------------------------------------------------------------------------------------


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
        (["--print", "-x", "A B=1", "--", "a.out"], 1, "'A B' is no name of an environment variable"),
        (["--print", "-x", "-H", "--", "a.out"], 1, "'-H' is no name of an environment variable"),
        (["--print", "-x", "A=1\n2", "--", "a.out"], 1, "The value of A has a newline in it"),
        (["--print", "--mca", "btl;id", "tcp", "--", "a.out"], 1, "'btl;id' is no name of an MCA parameter"),
        (["--print", "--mca", "btl", "tcp", "--mca", "btl", "sm", "--", "a.out"], 1, "--mca btl is given twice"),
        (["--print", "--", "-np", "3"], 1, "The program '-np' is an option"),
        (["--print", "--chdir", "code", "--", "a.out"], 1, "it takes an absolute path"),
        (
            ["--print", "--launch-node", "node9", "--", "a.out"],
            1,
            "is none of the selected hosts: node1, node2, node3.",
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
        (["--sync", "/no/such/folder", "--", "a.out"], 1, "/no/such/folder is no folder"),
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
    assert "node2 has no Open MPI of clusterctl's (/usr/local/openmpi does not exist); run 'clusterctl provision" in (
        capsys.readouterr().err
    )
    for gone in range(len(there := provisioned("node2").model_dump()["watch"])):
        site.nodes["node2"] = provisioned("node2", watch=[entry for at, entry in enumerate(there) if at != gone])
        assert typed("--", "a.out") == 1
        assert "job_supervisor.py on node2 is not this clusterctl's" in capsys.readouterr().err


def test_a_node_that_does_not_answer_ends_it_with_4(monkeypatch: Any, capsys: Any) -> None:
    site = Site(monkeypatch, NODES)
    site.failures["node3"] = facts.ProbeFailure("node3", "unreachable", "node3 (10.0.0.3:22) does not answer.")
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
    assert f"--launcher {launcher} needs {lack}, which node2 has not" in capsys.readouterr().err


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


# --- what is missing on nodes -----------------------------------------------------------------------------------------


def looks(monkeypatch: Any, *without: str, runs: bool = True, folder: bool = True) -> None:
    def look(logins: Any, names: Any, paths: Any, directory: str = "") -> list[supervised_job.Look]:
        del paths
        return [
            supervised_job.Look(
                login.host.name,
                {name: "" if login.host.name in without else f"/bin/{name}" for name in names},
                frozenset(names if runs else ()),
                directory or "/home/alice",
                folder,
            )
            for login in logins
        ]

    monkeypatch.setattr(supervised_job, "look", look)


@pytest.mark.parametrize(
    ("words", "without", "sentence"),
    [
        (("--", "./a.out"), ("node2", "node3"), "./a.out is missing on node[2-3] (looked in /home/alice); --sync DIR"),
        (("--", "a.out"), NODES, "a.out is on none of the nodes (looked in the PATH of the nodes' sessions)"),
        (("--", "/opt/a.out"), ("node1",), "/opt/a.out is missing on node1; --sync DIR"),
        (("--launcher", "torchrun", "--", "train.py"), ("node1",), "./train.py is missing on node1"),
    ],
)
def test_a_missing_program_is_named_with_its_nodes(
    words: tuple[str, ...], without: tuple[str, ...], sentence: str, monkeypatch: Any, capsys: Any
) -> None:
    Site(monkeypatch, NODES)
    looks(monkeypatch, *without)
    assert typed(*words) == 1
    assert sentence in capsys.readouterr().err


def test_what_may_not_be_executed_and_a_missing_folder_are_named(monkeypatch: Any, capsys: Any) -> None:
    Site(monkeypatch, NODES)
    looks(monkeypatch, runs=False)
    assert typed("--", "./a.sh") == 1
    assert "./a.sh may not be executed on node[1-3]" in capsys.readouterr().err
    looks(monkeypatch, folder=False)
    assert typed("--chdir", "/data", "--", "./a.sh") == 1
    assert "The folder /data is not on node[1-3]" in capsys.readouterr().err


def test_a_look_at_this_machine(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    here = HereLogin(Host(name="node1", address="127.0.0.1"))
    names = ["sh", "./script.py", "nothing-of-this-name", "/bin/sh"]
    (found,) = supervised_job.look([here], names, {"node1": "/usr/bin:/bin"}, str(tmp_path))
    assert found.found["sh"].endswith("/sh")
    assert found.found["./script.py"] == str(tmp_path / "script.py")
    assert found.found["nothing-of-this-name"] == ""
    assert "./script.py" not in found.runs
    assert found.has_folder


# --- the job's bytes --------------------------------------------------------------------------------------------------


def test_output_comes_byte_by_byte_and_nothing_of_it_is_kept() -> None:
    here = HereLogin(Host(name="node1", address="127.0.0.1"))
    heard: dict[str, int] = {"stdout": 0, "stderr": 0}

    def take(stream: str, data: bytes) -> None:
        heard[stream] += len(data)

    argv = ("sh", "-c", "head -c 30000000 /dev/zero; printf 'no end' >&2; exit 3")
    outcome = supervised_job.run(here, supervised_job.JobSpec(f"unit-bytes-{os.getpid()}", argv, None), on_data=take)
    assert (outcome.ending, outcome.rc, outcome.lines) == ("exited", 3, ())
    assert heard == {"stdout": 30_000_000, "stderr": 6}


def test_the_users_words_stay_as_they_are_and_ours_get_a_port() -> None:
    here = HereLogin(Host(name="node1", address="127.0.0.1"))
    heard: list[bytes] = []
    argv = ("sh", "-c", 'echo "$@"', "sh", "{port}", "{port}", "{work_dir}")
    spec = supervised_job.JobSpec(f"unit-port-{os.getpid()}", argv, 20, port=True, literal=2, directory="/")
    supervised_job.run(here, spec, on_data=lambda _, data: heard.append(data))
    port, *rest = b"".join(heard).decode().split()
    assert 1024 <= int(port) < 65536
    assert rest == ["{port}", "{work_dir}"]


def test_a_reader_that_goes_away_ends_the_job() -> None:
    here = HereLogin(Host(name="node1", address="127.0.0.1"))

    def take(_stream: str, _data: bytes) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        supervised_job.run(here, supervised_job.JobSpec(f"unit-gone-{os.getpid()}", ("yes",), None), on_data=take)


def test_prefixes_take_the_place_of_mpiruns_tags() -> None:
    got: list[tuple[str, bytes]] = []
    for prefix, first in (("rank", b"[2]"), ("host", b"[node2]")):
        got.clear()
        prefixer = jobs.Prefixer(("node1", "node1", "node2"), prefix, lambda *two: got.append(two))  # type: ignore[arg-type]
        prefixer("stdout", b"[1,2]<stdout>: one\n[1,2]<std")
        prefixer("stdout", b"out>:two\nmpirun's own\n")
        prefixer("stderr", b"[1,0]<stderr>: open")
        prefixer.end()
        assert b"".join(data for stream, data in got if stream == "stdout") == (
            first + b" one\n" + first + b" two\nmpirun's own\n"
        )
        assert got[-1] == ("stderr", (b"[0]" if prefix == "rank" else b"[node1]") + b" open")
    got.clear()
    jobs.Prefixer((), "none", lambda *two: got.append(two))("stdout", b"[1,2]<stdout>: one\n")
    assert got == [("stdout", b"one\n")]


def test_endings_become_codes() -> None:
    options = jobs.RunOptions(Wish(("a.out",)), timeout_s=5)
    told: list[str] = []

    def code(**ended: Any) -> int:
        return jobs._concluded(supervised_job.JobOutcome(seconds=1, **ended), "node1", options, told.append)  # noqa: SLF001

    assert code(ending="exited", rc=7) == 7
    assert code(ending="exited", signal=9) == 137
    assert code(ending="deadline") == 124
    assert told == ["The job had not ended after 5 s and was ended."]
    for ending, number in (("lost", 4), ("not_started", 2), ("stopped", 2)):
        with pytest.raises(jobs.ClusterctlError) as caught:
            code(ending=ending, problem="why")
        assert caught.value.exit_code == number


# --- the words --------------------------------------------------------------------------------------------------------


def test_mca_takes_two_words_up_to_the_program() -> None:
    assert joined(["--mca", "a", "-p 1", "-np", "2", "--mca", "b=3", "--", "--mca", "c", "d"]) == [
        *("--mca=a=-p 1", "-np", "2", "--mca", "b=3", "--", "--mca", "c", "d")
    ]


def test_the_callers_nccl_variables_and_values_go_along() -> None:
    caller = {"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring", "SEED": "7", "OTHER": "x"}
    words = environment.of_job(("NCCL_DEBUG=INFO", "SEED", "HERE", "TEXT=a b;c"), caller)
    assert [variable.word for variable in words] == [
        *("PATH", "LD_LIBRARY_PATH", "NCCL_DEBUG=INFO", "NCCL_ALGO=Ring", "SEED=7", "HERE", "TEXT")
    ]
    assert environment.beside(words) == {"TEXT": "a b;c"}


@pytest.mark.parametrize("launcher", list(Launcher))
def test_no_value_of_the_user_becomes_an_option_or_shell_text(launcher: Launcher) -> None:
    nasty = "$(id); `id` ' \" -H x \\ {port} {work_dir}"
    members = {name: Member(provisioned(name, number), 2, "5.0.7") for number, name in enumerate(NODES, 1)}
    wish = Wish(
        ("./a.py", nasty), launcher, exported=(f"A={nasty}",), mca={"btl_tcp_links": nasty}, directory=f"/x {nasty}"
    )
    plan = compose.compose(members, "node2", wish, "run-0123456789ab")
    assert plan.argv[-1] == nasty
    assert plan.literal >= 1
    assert plan.environment["A"] == nasty
    if launcher is Launcher.HOROVODRUN:  # it hands them to a shell, which is to see words
        (given,) = (word for word in plan.argv if word.startswith("--mpi-args="))
        shown = subprocess.run(
            ["sh", "-c", f"printf '%s\\n' {given.removeprefix('--mpi-args=')}"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stdout.split("\n")[2] == nasty
    else:
        assert plan.argv.count(nasty) == 2
    pasted = subprocess.run(["sh", "-c", f"printf '%s\\n' {plan.shown()}"], capture_output=True, text=True, check=True)
    assert pasted.stdout.splitlines()[-1] == nasty


@pytest.mark.parametrize(("version", "count", "waits"), [("5.0.7", 2, True), ("5.0.7", 1, False), ("4.1.4", 2, False)])
def test_ranks_live_long_enough_for_mpirun_of_5_to_hear_of_their_end(version: str, count: int, waits: bool) -> None:
    names = [f"node{number}" for number in range(1, count + 1)]
    members = {name: Member(provisioned(name, version=version), 2, version) for name in names}
    wish = Wish(("hostname", "-s"))
    ran = compose.compose(members, "node1", wish, job="20261121T000000Z-run-1")
    assert ("/bin/sh" in ran.argv) is waits
    assert (ran.argv[-2:], ran.literal) == (("hostname", "-s"), 2)
    assert "/bin/sh" not in compose.compose(members, "node1", wish).shown()


def test_unlike_nodes_have_torchruns_of_their_own_size() -> None:
    spec = torchrun.Torchrun(2, 1, ("train.py", "--nproc-per-node=4"), master_addr="fd00::1", master_port=29500)
    words = torchrun.under_mpirun(spec, (4, 2))
    script, *rest = words[2:]
    assert rest[:3] == ["sh", torchrun.PYTHON, "4,2"]
    for rank, count in ((0, 4), (1, 2)):
        shown = subprocess.run(
            ["sh", "-c", script.replace('exec "$python"', 'echo "$python"'), *rest],
            env={"OMPI_COMM_WORLD_RANK": str(rank)}, capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        assert shown[3:5] == [f"--node-rank={rank}", f"--nproc-per-node={count}"]
        assert shown[-3:] == ["--", "train.py", "--nproc-per-node=4"]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (("train.py", "-n", "3"), ["--", "train.py", "-n", "3"]),
        (("python", "train.py"), ["--", "train.py"]),
        (("python3", "-m", "package.train", "x"), ["--module", "--", "package.train", "x"]),
        (("-m", "package.train"), ["--module", "--", "package.train"]),
        (("python", "-u", "train.py"), ["--no-python", "--", torchrun.PYTHON, "-u", "train.py"]),
        (("/opt/conda/bin/python", "train.py"), ["--no-python", "--", "/opt/conda/bin/python", "train.py"]),
        (("./train.sh",), ["--no-python", "--", "./train.sh"]),
    ],
)
def test_torchrun_takes_scripts_modules_and_commands(program: tuple[str, ...], words: list[str]) -> None:
    line = torchrun.argv(torchrun.Torchrun(1, 2, program))
    assert line[3:] == ["--nnodes=1", "--nproc-per-node=2", "--standalone", *words]


def test_torchruns_rendezvous() -> None:
    spec = torchrun.Torchrun(2, 4, ("a.py",), master_addr="fd00::1", master_port=5, rdzv_id="job")
    assert torchrun.argv(spec)[5:8] == ["--rdzv-backend=c10d", "--rdzv-endpoint=[fd00::1]:5", "--rdzv-id=job"]
    for changed, words in (
        ({"master_addr": "-x"}, "neither a name nor an address"),
        ({"master_port": 0}, "port 0 is none"),
        ({"master_addr": ""}, "need a place to meet"),
        ({"node_rank": 2}, "There is no node rank 2"),
        ({"nnodes": 0}, "one node and one process at least"),
        ({"rdzv_id": "a b"}, "is no name"),
        ({"program": ("--rdzv-id",)}, "is an option"),
        ({"program": ()}, "has no program"),
    ):
        with pytest.raises(ConfigError, match=words):
            torchrun.argv(torchrun.Torchrun(**{**spec.__dict__, **changed}))


def test_horovodrun_has_ranks_share_slots_on_purpose() -> None:
    for version, words in (
        ("5.0.7", "--binding-args=--bind-to none --map-by slot:OVERSUBSCRIBE"),
        ("4.1.4", "--mpi-args=--oversubscribe"),
    ):
        line = horovodrun.argv(horovodrun.HorovodrunLaunch(version, {"a": 1}, ("x",), ranks=2, oversubscribe=True))
        assert words in line


# --- the copy of the code ---------------------------------------------------------------------------------------------


def test_the_copy_leaves_out_git_and_what_it_ignores(tmp_path: Path, monkeypatch: Any) -> None:
    for name in ("train.py", "sub/data.bin", "sub/keep.me", "build/x.o", "with space\n", "nested/.git/x", "nested/y"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / ".gitignore").write_text("build/\n*.bin\n")
    wanted = [".gitignore", "nested/y", "sub/keep.me", "train.py", "with space\n"]
    assert sync.files(tmp_path) == wanted
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "add", "train.py"], check=True)
    assert sync.files(tmp_path) == wanted
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(ConfigError, match="install git"):
        sync.files(tmp_path)
    (tmp_path / ".gitignore").unlink()
    assert sync.files(tmp_path) == ["build/x.o", "nested/y", "sub/data.bin", "sub/keep.me", "train.py", "with space\n"]


def test_rsync_is_told_ssh_word_by_word() -> None:
    host = Host(name="n", address="fd00::1", user="alice", ssh_args=("-o", "ProxyCommand=nc 'a b' %h"))
    line = sync.rsync_argv(Path("/home/alice/co de"), supervised_job.JobLogin(host, as_user="bob"))
    shell = next(word for word in line if word.startswith("--rsh="))
    assert shell.startswith("--rsh='ssh' '-T' '-o' 'BatchMode=yes'")
    assert "\"ProxyCommand=nc 'a b' %h\"" in shell
    assert "--rsync-path=sudo -n -H -u bob -- rsync" in line
    assert line[-2:] == ["/home/alice/co de/", "[fd00::1]:/home/alice/co de/"]
