"""The srun line: the place of each rank, what a rank's environment has, and what is refused."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
from clusterctl.launch import compose, mpirun_job, srun
from clusterctl.launch.compose import JobOptions
from clusterctl.launch.mpirun_job import Member
from clusterctl.support.errors import ConfigError
from factory import provisioned

PROGRAM = ("python3", "check.py", "--check", "a b")


def members(*slots: int, version: str = "5.0.7") -> dict[str, Member]:
    return {
        f"node{n}": Member(provisioned(f"node{n}", n, version=version), count, version, called=f"slurm{n}")
        for n, count in enumerate(slots, 1)
    }


def option(argv: tuple[str, ...], name: str) -> str:
    return next(word.partition("=")[2] for word in argv if word.startswith(f"{name}="))


def test_the_ranks_of_the_launch_node_come_first_and_each_has_its_place() -> None:
    job = mpirun_job.MpirunJob(PROGRAM, job="run-1", mca={"mpi_yield_when_idle": "1", "errmgr_base_verbose": "1"})
    line = srun.line(members(2, 1), {"node1": 2, "node2": 1}, job, "node2")
    assert option(line.argv, "--nodelist") == "slurm2,slurm1,slurm1"
    assert (option(line.argv, "--ntasks"), option(line.argv, "--mpi")) == ("3", "pmix")
    assert {"srun", "--overlap", "--distribution=arbitrary", "--kill-on-bad-exit=1"} <= set(line.argv)
    assert line.argv[-len(PROGRAM) :] == PROGRAM
    assert line.environment == {
        "SLURM_PMIX_FENCE": "ring",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "tcp,self,sm",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "CLUSTERCTL_JOB": "run-1",
    }


def test_one_process_a_node_and_another_type() -> None:
    job = mpirun_job.MpirunJob(PROGRAM, per_node=True, directory="/w", mca={"psec": "x", "psec_base_verbose": "2"})
    line = srun.line(members(2, 2), {"node1": 2, "node2": 2}, job, "node1", "pmix_v4")
    assert option(line.argv, "--nodelist") == "slurm1,slurm2"
    assert "--chdir=/w" in line.argv
    assert "--mpi=pmix_v4" in line.argv
    assert line.environment["PMIX_MCA_psec_base_verbose"] == "2"


@pytest.mark.parametrize(("slots", "node", "local"), [((2, 2), "slurm2", "2"), ((2, 1), "slurm2", "1")])
def test_a_rank_knows_before_mpi_init_what_mpirun_would_tell_it(slots: tuple[int, int], node: str, local: str) -> None:
    wanted = dict(zip(("node1", "node2"), slots, strict=True))
    print_all = ("sh", "-c", 'env | grep ^OMPI_COMM | sort; echo "$1"', "sh", "a b")
    line = srun.line(members(*slots), wanted, mpirun_job.MpirunJob(print_all), "node1")
    own = line.argv[line.argv.index("sh") :]
    environment = {"PATH": "/usr/bin:/bin", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURMD_NODENAME": node}
    said = subprocess.run(own, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == [
        "OMPI_COMM_WORLD_LOCAL_RANK=0",
        f"OMPI_COMM_WORLD_LOCAL_SIZE={local}",
        "OMPI_COMM_WORLD_RANK=1",
        f"OMPI_COMM_WORLD_SIZE={sum(slots)}",
        "a b",
    ]


def test_each_rank_sees_its_own_mig_instance_or_one_of_those_that_slurm_gave_to_the_job() -> None:
    cut = {"bus": "0000:07:00.0", "driver": "nvidia"}
    nodes = {
        name: Member(
            provisioned(name, number, gpus=[{**cut, "uuid": f"GPU-{number}", "instances": instances}]),
            len(instances),
            "5.0.7",
            called=f"slurm{number}",
        )
        for number, (name, instances) in enumerate({"node1": ["MIG-a", "MIG-b"], "node2": ["MIG-c"]}.items(), 1)
    }
    tell = ("sh", "-c", 'echo "${CUDA_VISIBLE_DEVICES-unset}"')
    slots = {name: one.slots for name, one in nodes.items()}
    line = srun.line(nodes, slots, mpirun_job.MpirunJob(tell), "node2")
    own = line.argv[line.argv.index("sh") :]

    def seen(rank: int, local: int, **more: str) -> str:
        environment = {"PATH": "/usr/bin:/bin", "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local), **more}
        environment["SLURMD_NODENAME"] = "slurm2" if rank == 0 else "slurm1"
        return subprocess.run(own, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    places = [(0, 0), (1, 0), (2, 1)]  # the launch node's ranks come first
    assert [seen(*place) for place in places] == ["MIG-c", "MIG-a", "MIG-b"]
    given = {"CUDA_VISIBLE_DEVICES": "MIG-x,MIG-y"}
    assert [seen(*place, **given) for place in places[1:]] == ["MIG-x", "MIG-y"]


def test_what_cannot_be_launched_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 ranks do not fit into 1 slots"):
        srun.argv({"a": 1}, PROGRAM, ranks=2)
    with pytest.raises(ConfigError, match="is an option"):
        srun.argv({"a": 1}, ("--mpi=none",))


# --- the mpirun line that run and validate share: the names, the transport and the user ---


VERSIONS = ("4.1.4", "5.0.7")


def called_members(called: dict[str, str], version: str = "5.0.7") -> dict[str, Member]:
    return {
        name: Member(provisioned(name, number, hostname=own), 2, version, address=f"10.0.0.{number}")
        for number, (name, own) in enumerate(called.items(), 1)
    }


@pytest.mark.parametrize(
    ("called", "names"),
    [
        ({"10.0.0.1": "node1", "10.0.0.2": "node2"}, ["node1", "10.0.0.2"]),
        ({"alpha": "node1", "beta": "node2"}, ["node1", "10.0.0.2"]),
        ({"node1": "node1.example.org", "node2": "node2.example.org"}, ["node1", "node2"]),
        ({"alpha": "node1.example.org", "beta": "node2"}, ["node1", "10.0.0.2"]),
        ({"alpha": "a.example.org", "beta": "a.example.net"}, ["a.example.org", "10.0.0.2"]),  # one short name
        ({"node1.example.org": "node1", "node2.example.org": "node2"}, ["node1", "node2"]),
        ({"a.b": "a.b", "c.d": "c.d"}, ["a.b", "c.d"]),
        ({"node1": "node1", "node2": "pypi", "node3": "node3"}, ["node1", "10.0.0.2", "node3"]),
        ({"pypi": "node1", "node2": "pypi"}, ["node1", "node2"]),
        ({"alpha": "localhost", "beta": "localhost.localdomain"}, ["alpha", "beta"]),  # names that others share
        ({"alpha": "image", "beta": "image", "gamma": "node3"}, ["alpha", "beta", "10.0.0.3"]),
        ({"node1": "node2", "node2": "node1"}, ["node1", "node2"]),  # names of other nodes in the inventory
        ({"alpha": "-H", "beta": "a:9,evil", "gamma": ""}, ["alpha", "beta", "gamma"]),
    ],
)
def test_only_the_launch_node_may_have_a_name_that_it_gave_itself(called: dict[str, str], names: list[str]) -> None:
    assert list(mpirun_job.node_names(called_members(called), next(iter(called))).values()) == names


def test_a_node_that_only_launches_gets_no_name() -> None:
    nodes = called_members({"alpha": "one", "beta": "two"})
    assert mpirun_job.node_names(nodes, "outside") == {"alpha": "10.0.0.1", "beta": "10.0.0.2"}


def test_an_address_that_mpirun_cannot_read_leaves_the_name() -> None:
    nodes = {
        name: replace(one, address="fd00::2") for name, one in called_members({"alpha": "one", "beta": "two"}).items()
    }
    assert mpirun_job.node_names(nodes, "alpha") == {"alpha": "one", "beta": "beta"}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_run_on_bare_addresses_names_the_nodes_by_their_host_names(version: str) -> None:
    nodes = called_members({"10.0.0.1": "one", "10.0.0.2": "two"}, version)
    plan = compose.compose(nodes, "10.0.0.2", JobOptions(("hostname",), ranks=2))
    assert plan.argv[plan.argv.index("-H") + 1] == "two:2,10.0.0.1:2"
    assert plan.hosts == ("10.0.0.2", "10.0.0.2", "10.0.0.1", "10.0.0.1")  # what the user sees is the inventory's


@pytest.mark.parametrize(("version", "option"), list(zip(VERSIONS, ("--mca orte", "--prtemca prte"), strict=True)))
def test_names_with_a_domain_stay_whole(version: str, option: str) -> None:
    nodes = called_members({"a.example.org": "a.example.org", "b.example.org": "b.example.org"}, version)
    line = mpirun_job.line(nodes, {"a.example.org": 1, "b.example.org": 1}, mpirun_job.MpirunJob(("true",)))
    assert "-H a.example.org:1,b.example.org:1" in " ".join(line.argv)
    assert f"{option}_keep_fqdn_hostnames 1" in " ".join(line.argv)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_check_and_a_run_differ_in_nothing_but_what_they_ask_for(version: str) -> None:
    nodes = called_members({"alpha": "node1", "beta": "node2"}, version)
    ran = compose.compose(nodes, "alpha", JobOptions(("true",))).argv
    checked = mpirun_job.line(nodes, {"alpha": 2, "beta": 2}, mpirun_job.MpirunJob(("true",)))
    exports = ["-x", "PATH", "-x", "LD_LIBRARY_PATH"]
    assert [word for word in ran if word not in exports] == [word for word in checked.argv if word not in exports]
