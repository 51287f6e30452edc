from __future__ import annotations

import base64
import itertools
import json
import subprocess
from typing import Any

import pytest
from clusterctl.jobs import launcher_needs
from clusterctl.launch import accelerate, compose, launchers, own_options
from clusterctl.launch.compose import JobOptions, LaunchPlan
from clusterctl.launch.launchers import Launcher
from clusterctl.launch.mpirun import Affinity, Bind, PathOptions
from clusterctl.launch.mpirun_job import Member
from clusterctl.support.errors import ConfigError
from factory import provisioned

PYTHON = "/usr/local/python_env/bin/python"
OF_MPIRUN = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "PMIX_NAMESPACE": "prterun@1"}
PER_NODE = [launcher for launcher in Launcher if launchers.TRAITS[launcher].per_node]


def gpu(number: int) -> dict[str, Any]:
    return {"bus": f"0000:{number + 16:02x}:00.0", "uuid": f"GPU-{number}", "driver": "nvidia"}


def members(*slots: int, **changed: Any) -> dict[str, Member]:
    names = {f"node{number}": count for number, count in enumerate(slots, 1)}
    return {
        name: Member(provisioned(name, number, **changed), count, "5.0.7")
        for number, (name, count) in enumerate(names.items(), 1)
    }


def plan(launcher: Launcher, *program: str, on: dict[str, Member] | None = None, **wish: Any) -> LaunchPlan:
    return compose.compose(on or members(2, 2), "node1", JobOptions(program, launcher, **wish))


def started(line: LaunchPlan) -> list[str]:
    """Return what mpirun starts."""
    return list(line.argv[line.argv.index("sh") :])


def as_rank(line: LaunchPlan, rank: int, **more: str) -> list[str]:
    """Run what mpirun starts as one of its processes, with a program that shows its environment."""
    words = [word.replace("{port}", "4711") for word in started(line)]
    given = {"PATH": "/usr/bin:/bin", "OMPI_COMM_WORLD_RANK": str(rank), **OF_MPIRUN, **more}
    return subprocess.run(words, env=given, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize(
    ("processes", "world", "own"), [(None, "5", {0: "2", 1: "3"}), (1, "2", {0: "1", 1: "1"})], ids=["slots", "one"]
)
def test_none_tells_each_node_its_place_and_nothing_of_mpirun(
    processes: int | None, world: str, own: dict[int, str]
) -> None:
    line = plan(Launcher.NONE, "env", on=members(2, 3), processes=processes)
    assert line.port
    for rank in (0, 1):
        found = dict(word.partition("=")[::2] for word in as_rank(line, rank, OMPI_MCA_orte_hnp_uri="1", SEED="a b"))
        for name in ("PWD", "_", "SHLVL", "OLDPWD", "PATH"):
            found.pop(name, None)
        assert found == {
            "NODE_RANK": str(rank),
            "NNODES": "2",
            "WORLD_SIZE": world,
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": "4711",
            "NPROC_PER_NODE": own[rank],
            "SEED": "a b",
        }


def test_none_starts_the_clusters_python_and_waits_for_mpirun_of_5() -> None:
    line = compose.compose(members(1, 1), "node1", JobOptions(("python", "a.py"), Launcher.NONE), "run-0123456789ab")
    assert line.argv[-2:] == (PYTHON, "a.py")
    assert line.literal == 2
    assert compose._SETTLED[2] in line.argv  # noqa: SLF001 - the wait is the subject


def test_accelerate_gets_the_facts_of_the_run() -> None:
    line = plan(Launcher.ACCELERATE, "--mixed_precision", "bf16", "python", "train.py", "--lr", "1")
    assert started(line) == [
        *("sh", "-c", 'exec "$0" -m accelerate.commands.launch --machine_rank="$OMPI_COMM_WORLD_RANK" "$@"', PYTHON),
        *("--num_machines=2", "--num_processes=4", "--main_process_ip=10.0.0.1", "--main_process_port={port}"),
        *("--same_network", "--multi_gpu", "--mixed_precision", "bf16", "train.py", "--lr", "1"),
    ]
    assert line.literal == 5
    assert (line.port, line.notes) == (True, ())
    assert "ACCELERATE_USE_CPU=true" in line.argv


def test_accelerate_uses_gpus_where_there_are_some() -> None:
    line = plan(Launcher.ACCELERATE, "train.py", on=members(1, 1, gpus=[gpu(0)]))
    assert "ACCELERATE_USE_CPU=true" not in line.argv


@pytest.mark.parametrize(
    ("program", "end"),
    [
        (("-m", "pkg.train", "-x"), ["--module", "pkg.train", "-x"]),
        (("--module", "pkg.train"), ["--module", "pkg.train"]),
        (("--quiet", "-m", "pkg.train"), ["--quiet", "--module", "pkg.train"]),
        (("./program", "a.py"), ["--no_python", "./program", "a.py"]),
        (("--no_python", "./program"), ["--no_python", "./program"]),
        (("python", "-c", "1"), ["--no_python", PYTHON, "-c", "1"]),
    ],
)
@pytest.mark.parametrize("launcher", [Launcher.ACCELERATE, Launcher.DEEPSPEED])
def test_a_program_of_any_kind(launcher: Launcher, program: tuple[str, ...], end: list[str]) -> None:
    assert started(plan(launcher, *program))[-len(end) :] == end


@pytest.mark.parametrize(
    ("launcher", "program", "words"),
    [
        (Launcher.ACCELERATE, ("--num_machines", "4", "a.py"), "--num_machines of accelerate comes from the inventory"),
        (Launcher.ACCELERATE, ("--main-process-port=1", "a.py"), "--main-process-port of accelerate comes from"),
        (Launcher.DEEPSPEED, ("--master_addr=x", "a.py"), "--master_addr of deepspeed comes from the inventory"),
        (Launcher.ACCELERATE, ("--quiet",), "accelerate has no program to start; name a script or -m MODULE behind"),
    ],
)
def test_an_option_that_is_the_runs_own_is_refused(launcher: Launcher, program: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(launcher, *program)
    assert plan(launcher, "a.py", *program).argv[-len(program) :] == program, "the program's own words are its own"


def test_accelerate_needs_as_many_processes_on_each_node() -> None:
    with pytest.raises(ConfigError, match="the nodes' slots differ; give --nproc-per-node"):
        plan(Launcher.ACCELERATE, "a.py", on=members(2, 3))
    assert "--num_processes=4" in plan(Launcher.ACCELERATE, "a.py", on=members(2, 3), processes=2).argv


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 4\nmachine_rank: 0\n", ""),
        ("num_processes: -1\n", ""),
        (
            '{"num_machines": 4, "num_processes": 16, "machine_rank": 1}',
            (
                "num_machines 4, machine_rank 1, num_processes 16; this run uses num_machines 2, machine_rank by node, "
                "num_processes 4"
            ),
        ),
        (
            "main_process_ip: 10.0.0.9\nmain_process_port: 29500\n",
            (
                "main_process_ip 10.0.0.9, main_process_port 29500; this run uses main_process_ip 10.0.0.1, a free "
                "main_process_port"
            ),
        ),
    ],
)
def test_what_a_file_of_accelerate_contradicts_is_one_sentence(text: str, note: str) -> None:
    line = plan(Launcher.ACCELERATE, "--config_file", "a.yaml", "a.py", config=accelerate.parse("a.yaml", text))
    assert line.notes == ((f"a.yaml has {note}.",) if note else ())
    assert "--num_machines=2" in line.argv


@pytest.mark.parametrize(
    ("kind", "ours"),
    [("FSDP", []), ("NO", ["--multi_gpu"]), ("DEEPSPEED", ["--deepspeed_multinode_launcher=standard"])],
)
def test_the_kind_of_start_is_the_files_own(kind: str, ours: list[str]) -> None:
    config = accelerate.parse("a.yaml", f"distributed_type: {kind}\n")
    words = started(plan(Launcher.ACCELERATE, "--config_file=a.yaml", "a.py", config=config))
    assert words[words.index("--same_network") + 1 :] == [*ours, "--config_file=a.yaml", "a.py"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a\n", "c.yaml is not a configuration of accelerate"),
        ("a: [", "c.yaml is not a configuration of accelerate"),
        ("[" * 60000, "c.yaml is not a configuration of accelerate"),
        ("a: &a [1]\nb: *a\n", "c.yaml is not a configuration of accelerate"),
        ("num_machines: two\n", "num_machines of c.yaml is not a whole number"),
        ("num_processes: true\n", "num_processes of c.yaml is not a whole number"),
        ("main_process_ip: 'a b'\n", "main_process_ip of c.yaml is not a name or an address"),
        ("distributed_type: [1]\n", "distributed_type of c.yaml is not a name"),
        ("compute_environment: AMAZON_SAGEMAKER\n", "compute_environment of c.yaml is not LOCAL_MACHINE"),
    ],
)
def test_a_malformed_file_of_accelerate_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        accelerate.parse("c.yaml", text)


def test_deepspeed_gets_the_world_of_its_own_launcher() -> None:
    line = plan(Launcher.DEEPSPEED, "--no_local_rank", "train.py", "--lr", "1", on=members(2, 3))
    *head, world, address, port = started(line)[:7]
    assert head == [
        *("sh", "-c", 'exec "$0" -m deepspeed.launcher.launch --node_rank="$OMPI_COMM_WORLD_RANK" "$@"', PYTHON)
    ]
    given = json.loads(base64.urlsafe_b64decode(world.removeprefix("--world_info=")))
    assert list(given.items()) == [("node1", [0, 1]), ("node2", [0, 1, 2])]
    assert (address, port) == ("--master_addr=10.0.0.1", "--master_port={port}")
    assert started(line)[7:] == ["--no_local_rank", "train.py", "--lr", "1"]


OF_RAY = "/usr/local/libexec/clusterctl/ray_node.py"


@pytest.mark.parametrize(
    ("program", "driver"),
    [
        (("train.py", "--lr", "1"), [PYTHON, "-u", "train.py", "--lr", "1"]),
        (("-m", "train"), [PYTHON, "-u", "-m", "train"]),
        (("python", "train.py"), [PYTHON, "train.py"]),
        (("/opt/a/bin/python", "train.py"), ["/opt/a/bin/python", "train.py"]),
        (("./start", "it"), ["./start", "it"]),
    ],
)
def test_ray_gets_the_addresses_and_the_slots_of_the_nodes_and_the_driver(
    program: tuple[str, ...], driver: list[str]
) -> None:
    line = plan(Launcher.RAY, *program, on=members(2, 3))
    words = started(line)
    assert words[words.index(PYTHON) :] == [
        PYTHON,
        OF_RAY,
        "--addresses=10.0.0.1,10.0.0.2",
        "--count-cpus",
        "--",
        *driver,
    ]
    assert line.literal == len(driver) + 1
    assert line.port
    assert "RAY_AUTH_TOKEN" not in line.argv, "who pastes the line has none"


def test_ray_counts_the_cores_beside_gpus_unless_the_user_does() -> None:
    on = members(2, 2, gpus=[gpu(0), gpu(1)])
    assert "--count-cpus" not in started(plan(Launcher.RAY, "a.py", on=on))
    assert "--count-cpus" in started(plan(Launcher.RAY, "a.py", on=on, processes=1))


def test_options_of_ray_start_stand_before_the_driver() -> None:
    words = started(plan(Launcher.RAY, "--resources={port}", "train.py"))
    assert words[-6:] == ["--count-cpus", "--resources={port}", "--", PYTHON, "-u", "train.py"]
    with pytest.raises(ConfigError, match="--num-cpus of ray comes from the inventory"):
        plan(Launcher.RAY, "--num-cpus=2", "train.py")


def test_the_secret_of_a_rays_job_stands_on_no_command_line() -> None:
    def exported(*given: str) -> list[str]:
        wish = JobOptions(("a.py",), Launcher.RAY, exported=given)
        argv = compose.compose(members(1, 1), "node1", wish, "run-0123456789ab").argv
        return [word for before, word in itertools.pairwise(argv) if before == "-x" and "RAY" in word]

    assert exported() == ["RAY_AUTH_MODE", "RAY_AUTH_TOKEN"]
    assert exported("RAY_AUTH_MODE=disabled") == ["RAY_AUTH_MODE=disabled", "RAY_AUTH_TOKEN"]
    found = launcher_needs.secrets_of(JobOptions(("a.py",), Launcher.RAY))
    assert found["RAY_AUTH_MODE"] == "token"
    assert len(found["RAY_AUTH_TOKEN"]) == 64
    assert found != launcher_needs.secrets_of(JobOptions(("a.py",), Launcher.RAY))
    assert not launcher_needs.secrets_of(JobOptions(("a.py",), Launcher.NONE))


@pytest.mark.parametrize("launcher", PER_NODE)
def test_a_launcher_of_nodes_takes_no_ranks_and_no_places_of_mpirun(launcher: Launcher) -> None:
    with pytest.raises(ConfigError, match=f"-np is mpirun's and horovodrun's; {launcher.value} takes --nproc-per-node"):
        plan(launcher, "a.py", ranks=4)
    with pytest.raises(ConfigError, match=f"{launcher.value} starts its processes by itself"):
        plan(launcher, "a.py", path=PathOptions(bind=Bind.CORE))
    with pytest.raises(ConfigError, match="3 processes do not fit into the 2 slots of node1"):
        plan(launcher, "a.py", processes=3)
    assert plan(launcher, "a.py", processes=3, oversubscribe=True).argv.count("--map-by") == 1


def test_affinity_is_refused_where_a_launcher_cannot_hand_it_on() -> None:
    for launcher in (Launcher.NONE, Launcher.DEEPSPEED, Launcher.RAY):
        with pytest.raises(ConfigError, match="--affinity auto"):
            plan(launcher, "a.py", path=PathOptions(affinity=Affinity.AUTO))
    words = started(plan(Launcher.ACCELERATE, "--quiet", "a.py", path=PathOptions(affinity=Affinity.AUTO)))
    assert words[words.index("--quiet") + 1 :][:3] == ["--no_python", "/bin/sh", "-c"]
    assert words[-3:] == [PYTHON, "-u", "a.py"]


def jax_of(line: LaunchPlan, rank: int, **more: str) -> dict[str, str]:
    shown = dict(word.partition("=")[::2] for word in as_rank(line, rank, **more))
    return {name: shown[name] for name in shown if name.startswith("JAX_") or name == "OMPI_MCA_orte_hnp_uri"}


def test_jax_on_cpus_is_one_process_a_node_that_knows_where_to_meet() -> None:
    line = plan(Launcher.JAX, "env")
    assert line.argv[line.argv.index("-H") + 1] == "node1:1,node2:1"
    assert line.port
    assert jax_of(line, 1) == {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:4711", "OMPI_MCA_orte_hnp_uri": "-"}
    kept = jax_of(line, 1, OMPI_MCA_orte_hnp_uri="123.0;tcp://10.0.0.1:1")
    assert kept["OMPI_MCA_orte_hnp_uri"] == "123.0;tcp://10.0.0.1:1", "Open MPI 4.1 sets it by itself"


@pytest.mark.parametrize(
    ("slots", "processes", "devices"),
    [(4, None, [None] * 8), (4, 1, ["0,1,2,3"] * 2), (4, 2, ["0,1", "2,3"] * 2), (3, 3, ["0", "1", "2,3"] * 2)],
)
def test_each_process_of_jax_has_gpus_of_its_own(slots: int, processes: int | None, devices: list[str | None]) -> None:
    nodes = members(slots, slots, gpus=[gpu(number) for number in range(4)])
    line = plan(Launcher.JAX, "env", on=nodes, processes=processes)
    assert [jax_of(line, rank).get("JAX_LOCAL_DEVICE_IDS") for rank in range(len(devices))] == devices
    assert jax_of(line, 0, JAX_LOCAL_DEVICE_IDS="3")["JAX_LOCAL_DEVICE_IDS"] == "3", "the user's own choice stays"


def test_jax_takes_ranks_as_mpirun_does() -> None:
    line = plan(Launcher.JAX, "python", "a.py", ranks=3)
    assert line.argv[line.argv.index("-np") + 1] == "3"
    assert line.argv[-2:] == (PYTHON, "a.py")


def test_jax_is_told_its_processes_once() -> None:
    with pytest.raises(ConfigError, match="-np and --nproc-per-node both say how many"):
        plan(Launcher.JAX, "a.out", ranks=2, processes=1)


def test_an_address_of_ipv6_has_brackets_where_jax_reads_it() -> None:
    nodes = members(1, 1, fabric={"cidrs": ["fd00::/64"], "interface": "eth0", "address": "fd00::1"})
    assert jax_of(plan(Launcher.JAX, "env", on=nodes), 0)["JAX_COORDINATOR_ADDRESS"] == "[fd00::1]:4711"


def test_the_last_value_of_an_option_counts() -> None:
    value = own_options.OwnOptions.value
    assert value(("--config_file", "a", "--config-file=b"), "config_file") == "b"
    assert value(("--quiet", "--config_file"), "config_file") == ""
    assert accelerate.config_file(("a.py", "--config_file", "x")) == ""
