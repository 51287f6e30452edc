from __future__ import annotations

import shlex
import subprocess

import pytest
from clusterctl.launch import compose, mpirun_job
from clusterctl.launch.compose import JobOptions
from clusterctl.launch.launchers import Launcher
from clusterctl.launch.mpirun import Bind, MapBy, PathOptions
from clusterctl.launch.mpirun_job import Member
from clusterctl.model.facts import ParameterFile
from clusterctl.model.network_facts import Fabric
from clusterctl.support.errors import ConfigError
from factory import provisioned

NODES = ("node1", "node2", "node3")


@pytest.mark.parametrize("launcher", list(Launcher))
def test_no_value_of_the_user_becomes_an_option_or_shell_text(launcher: Launcher) -> None:
    nasty = "$(id); `id` ' \" -H x \\ {port} {work_dir}"
    members = {name: Member(provisioned(name, number), 2, "5.0.7") for number, name in enumerate(NODES, 1)}
    wish = JobOptions(
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


TREES = ("/usr/local/python_env-3.11-0123456789abcdef", "/usr/local/python_env-3.13-fedcba9876543210")


@pytest.mark.parametrize("launcher", [one for one in Launcher if one is not Launcher.HOROVODRUN])
def test_nodes_of_two_platforms_find_the_python_of_a_project_by_path(launcher: Launcher) -> None:
    nodes = {
        "node1": provisioned("node1").with_project(*TREES),
        "node2": provisioned("node2").with_project(*TREES[::-1]),
    }
    members = {name: Member(node, 2, "5.0.7") for name, node in nodes.items()}
    plan = compose.compose(members, "node1", JobOptions(("python", "a.py"), launcher))
    assert not [word for word in plan.argv if word.startswith(TREES)], plan.argv
    assert "python" in plan.argv
    assert plan.argv[plan.argv.index("PATH") - 1] == "-x", "the launch node's own has both"
    path = nodes["node1"].environment["PATH"]
    assert path.startswith(":".join(f"{tree}/bin" for tree in TREES))
    assert plan.shown().startswith("env ")
    assert f"PATH={path}" in shlex.split(plan.shown()), "the line is pasted into a session with another PATH"
    with pytest.raises(ConfigError, match="-x PATH hides the environment of the project"):
        compose.compose(members, "node1", JobOptions(("python", "a.py"), launcher, exported=("PATH=/usr/bin",)))


@pytest.mark.parametrize(("version", "given"), [("5.0.7", "PATH=/x"), ("5.0.7", "PATH"), ("4.1.4", "PATH=/x")])
def test_a_path_of_the_users_is_that_of_the_ranks_although_they_inherit_one(version: str, given: str) -> None:
    """PMIx of 5.0 sets what it inherits last, after what -x says; 4.1 does it the other way round (both seen)."""
    members = {"node1": Member(provisioned("node1"), 2, version)}
    plan = compose.compose(members, "node1", JobOptions(("x",), exported=(given,)))
    inherits = plan.environment.get("PMIX_MCA_pmdl_ompi_include_envars")
    assert inherits == ("OMPI_*" if (version, given) == ("5.0.7", "PATH=/x") else None)


@pytest.mark.parametrize(("version", "count", "waits"), [("5.0.7", 2, True), ("5.0.7", 1, False), ("4.1.4", 2, False)])
def test_ranks_live_long_enough_for_mpirun_of_5_to_hear_of_their_end(version: str, count: int, waits: bool) -> None:
    names = [f"node{number}" for number in range(1, count + 1)]
    members = {name: Member(provisioned(name, version=version), 2, version) for name in names}
    wish = JobOptions(("hostname", "-s"))
    ran = compose.compose(members, "node1", wish, job="20261121T000000Z-run-1")
    assert ("/bin/sh" in ran.argv) is waits
    assert (ran.argv[-2:], ran.literal) == (("hostname", "-s"), 2)
    assert "/bin/sh" not in compose.compose(members, "node1", wish).shown()


@pytest.mark.parametrize(
    ("values", "mca", "waits"),
    [
        (("0", "0"), {}, False),
        (("0", ""), {}, True),
        (("0", "16"), {}, True),
        (("0", "0"), {"odls_base_max_threads": "4"}, True),
    ],
)
def test_ranks_wait_for_nothing_where_no_daemon_starts_them_in_threads(
    values: tuple[str, ...], mca: dict[str, str], waits: bool
) -> None:
    members = {}
    for number, value in enumerate(values, 1):
        file = ParameterFile(path="/x", exists=True, own={"odls_base_max_threads": value} if value else {})
        facts = provisioned(f"node{number}").model_copy(update={"parameter_files": (file,)})
        members[f"node{number}"] = Member(facts, 2, "5.0.7")
    plan = compose.compose(members, "node1", JobOptions(("hostname",), mca=mca), job="20261121T000000Z-run-1")
    assert ("/bin/sh" in plan.argv) is waits


BY_ROLE = ("btl_tcp_if_include", "oob_tcp_if_include", "prte_if_include")


@pytest.mark.parametrize(
    ("shells", "version", "asks"),
    [
        (["/bin/bash", "/usr/bin/tcsh"], "5.0.7", "--prtemca plm_ssh_assume_same_shell 0"),
        (["/bin/tcsh", "/bin/bash"], "4.1.6", "--mca plm_rsh_assume_same_shell 0"),
        (["/bin/csh", "/usr/bin/tcsh"], "5.0.7", ""),
        (["/bin/zsh", "/bin/dash"], "5.0.7", ""),
    ],
)
def test_mpirun_asks_each_node_for_its_shell_where_they_differ(shells: list[str], version: str, asks: str) -> None:
    members = {
        f"node{at}": mpirun_job.member(provisioned(f"node{at}", at, version=version, login={"shell": shell}), slots=1)
        for at, shell in enumerate(shells, start=1)
    }
    line = " ".join(mpirun_job.line(members, dict.fromkeys(members, 1), mpirun_job.MpirunJob(("a.out",))).argv)
    assert ("assume_same_shell" in line) is bool(asks)
    assert asks in line


def of_fabric(interface: str, *include: str, version: str = "5.0.7") -> Member:
    own = dict.fromkeys(include, "x")
    files = (ParameterFile(path="/usr/local/etc/openmpi/openmpi-mca-params.conf", exists=True, own=own),)
    known = Fabric(cidrs=("10.0.0.0/24",), interface=interface, address="10.0.0.1")
    node = provisioned("node1", version=version).model_copy(update={"parameter_files": files, "fabric": known})
    return Member(node, 2, version)


@pytest.mark.parametrize("launcher", [Launcher.MPIRUN, Launcher.HOROVODRUN])
@pytest.mark.parametrize("version", ["4.1.4", "5.0.7"])
@pytest.mark.parametrize(
    ("name", "included"),
    [
        ("btl_tcp_if_exclude", {"4.1.4": "btl_tcp_if_include", "5.0.7": "btl_tcp_if_include"}),
        ("oob_tcp_if_exclude", {"4.1.4": "oob_tcp_if_include", "5.0.7": "prte_if_include"}),
        ("prte_if_exclude", {"4.1.4": "prte_if_include", "5.0.7": "prte_if_include"}),
    ],
)
def test_an_exclusion_that_open_mpi_would_refuse_is_left_out_with_a_note(
    name: str, included: dict[str, str], version: str, launcher: Launcher
) -> None:
    members = {"node1": of_fabric("eth0", *BY_ROLE, version=version)}
    wish = JobOptions(("x",), launcher, mca={name: "lo,docker0", "coll_base_verbose": "1"})
    plan = compose.compose(members, "node1", wish)
    assert "_if_exclude" not in plan.shown()
    assert "coll_base_verbose" in plan.shown()
    (note,) = plan.notes
    assert note.startswith(f"--mca {name} is left out: Open MPI takes {included[version]} or ")
    for prefix in ("OMPI_MCA_", "PRTE_MCA_"):
        wish = JobOptions(("x",), launcher, exported=(f"{prefix}{name}=lo,docker 0", "SEED=1"))
        plan = compose.compose(members, "node1", wish)
        assert "_if_exclude" not in plan.shown(), "neither on the line nor beside it"
        assert "SEED=1" in plan.shown()
        assert plan.notes[0].startswith(f"-x {prefix}{name} is left out")


def test_an_exclusion_by_a_variable_of_the_launch_node_is_left_out() -> None:
    wish = JobOptions(("x",), exported=("OMPI_MCA_btl_tcp_if_exclude",))
    plan = compose.compose({"node1": of_fabric("eth0", *BY_ROLE)}, "node1", wish)
    assert "OMPI_MCA_btl_tcp_if_exclude" not in plan.argv
    assert len(plan.notes) == 1


@pytest.mark.parametrize("other", ["prte_if_include", "oob_tcp_if_include"])
def test_an_exclusion_beside_an_inclusion_of_the_same_caller_stays(other: str) -> None:
    wish = JobOptions(("x",), mca={"oob_tcp_if_exclude": "lo", other: "eth1"})
    plan = compose.compose({"node1": of_fabric("eth0", *BY_ROLE)}, "node1", wish)
    assert "prte_if_exclude" in plan.argv
    assert plan.notes == ()


def test_an_open_mpi_that_clusterctl_did_not_make_is_named() -> None:
    node = provisioned("node1")
    artifacts = [one.model_copy(update={"inputs": {"existing": "/opt/hpcx/ompi"}}) for one in node.artifacts]
    members = {"node1": Member(node.model_copy(update={"artifacts": tuple(artifacts)}), 2, "5.0.7")}
    plan = compose.compose(members, "node1", JobOptions(("x",)))
    assert plan.notes == ("node1: the job runs with Open MPI 5.0.7 of /opt/hpcx/ompi, which clusterctl did not make.",)


def test_an_exclusion_stays_where_nothing_includes() -> None:
    wish = JobOptions(("x",), mca={"btl_tcp_if_exclude": "lo,docker0"})
    plan = compose.compose({"node1": of_fabric("eth0", "other")}, "node1", wish)
    assert "btl_tcp_if_exclude" in plan.argv
    assert plan.notes == ()


@pytest.mark.parametrize("excluded", ["lo,eth0", "10.0.0.0/24"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("--mca btl_tcp_if_exclude", "--mca btl_tcp_if_include"),
        ("--mca oob_tcp_if_exclude", "--mca prte_if_include"),
        ("-x OMPI_MCA_btl_tcp_if_exclude", "--mca btl_tcp_if_include"),
    ],
)
def test_an_exclusion_of_the_clusters_network_is_refused(excluded: str, given: str, told: str) -> None:
    option, name = given.split()
    wish = JobOptions(
        ("x",), **({"mca": {name: excluded}} if option == "--mca" else {"exported": (f"{name}={excluded}",)})
    )
    words = rf"^{given} leaves out .*, the cluster's network of node1; name the network that you want with {told},"
    with pytest.raises(ConfigError, match=words):
        compose.compose({"node1": of_fabric("eth0", *BY_ROLE)}, "node1", wish)


def test_ranks_that_go_round_the_nodes_are_told_apart() -> None:
    members = {name: Member(provisioned(name), 2, "5.0.7") for name in ("node1", "node2")}
    plan = compose.compose(members, "node1", JobOptions(("x",), path=PathOptions(map_by=MapBy.NODE)))
    assert plan.hosts == ("node1", "node2", "node1", "node2")


def test_torchrun_places_its_processes_by_itself() -> None:
    members = {"node1": Member(provisioned("node1"), 2, "5.0.7")}
    with pytest.raises(ConfigError, match="torchrun starts its processes by itself"):
        compose.compose(
            members, "node1", JobOptions(("x",), launcher=Launcher.TORCHRUN, path=PathOptions(bind=Bind.CORE))
        )


@pytest.mark.parametrize("launcher", list(Launcher))
@pytest.mark.parametrize(("session", "path"), [({}, ""), ({"PYTHONPATH": "/site/a b:$HOME"}, "/site/a b:$HOME:")])
def test_the_folder_of_pace_goes_behind_the_python_path_that_a_node_has(
    launcher: Launcher, session: dict[str, str], path: str
) -> None:
    members = {name: Member(provisioned(name, number), 2, "5.0.7") for number, name in enumerate(NODES, 1)}
    plan = compose.compose(members, "node1", JobOptions(("./a.py",), launcher, pace=True), "run-0123456789ab")
    assert not [word for word in (*plan.argv, *plan.environment) if word.startswith("PYTHONPATH=/")]
    folder = members["node1"].facts.layout.pace
    at = plan.argv.index(folder)
    show = ("sh", "-c", 'printf "%s\\n" "$PYTHONPATH" "$0"', "the program's word")
    done = subprocess.run([*plan.argv[at - 3 : at + 1], *show], env=session, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{path}{folder}", "the program's word"]
    words = (*plan.argv, *(f"{name}={value}" for name, value in plan.environment.items()))
    assert "CLUSTERCTL_PACE=1" in words
