"""The texts of Slurm's commands are read, and lines for them written, without Slurm."""

from __future__ import annotations

import time

import pytest
from clusterctl.remote import slurm_text
from clusterctl.remote.slurm_text import JobState, SlurmRequest

# The columns of sinfo --Node --format='%P|%N|%o|%X|%Y|%Z|%G|%T|%E'; a node stands once for each partition.
SINFO = """\
debug*|node1|192.0.2.11|1|2|1|(null)|idle|none
debug*|node2|192.0.2.12|1|2|1|(null)|drained|disk | full
debug*|node3|192.0.2.13|1|2|1|(null)|idle*|Not responding
gpu|node1|192.0.2.11|1|2|1|(null)|idle|none
gpu|gpu7|gpu7|2|32|2|gpu:a100:8(S:0-1),nvme:1|allocated|none
gpu|gpu8|gpu8|2+|32|2|gpu:a100:8(S:0-1)|idle~|none
"""


def test_a_reason_that_time_does_not_heal_is_told_at_once() -> None:
    request = slurm_text.SlurmRequest(nodes=2, time_s=60, partition="gpu", account="hpc")
    told = slurm_text.hopeless(42, JobState("PENDING", "AccountNotAllowed"), request)
    assert told.startswith("The account 'hpc' may not submit jobs to partition 'gpu'; name another account with -A ")
    assert "Slurm job 42 would wait with the reason AccountNotAllowed" in told
    for state in (JobState("RUNNING", "AccountNotAllowed"), JobState("PENDING", "Priority"), None):
        assert slurm_text.hopeless(42, state, request) == ""


def test_nodes_are_those_of_the_default_partition_or_of_the_named_one() -> None:
    default = slurm_text.nodes(SINFO)
    assert [node.name for node in default] == ["node1", "node2", "node3"]
    assert [node.is_usable for node in default] == [True, False, False]
    assert (default[1].state, default[1].reason) == ("drained", "disk | full")
    assert (default[0].address, default[0].cores, default[0].gpus) == ("192.0.2.11", 2, 0)
    named = slurm_text.nodes(SINFO, "gpu")
    assert [(node.name, node.gpus, node.cores, node.is_usable) for node in named] == [
        ("node1", 0, 2, True),
        ("gpu7", 8, 64, True),
        ("gpu8", 8, 64, True),
    ]
    assert len(slurm_text.nodes(SINFO, "debug,gpu")) == 5
    assert slurm_text.default_partition(SINFO) == "debug"
    assert slurm_text.default_partition(SINFO.replace("*|", "|")) == ""
    assert slurm_text.nodes("a line of a login script\n") == ()


@pytest.mark.parametrize("mark", ["\v", "\f", "\x1c", "\x85", "\u2028"])
def test_the_reason_of_a_drain_makes_no_further_node(mark: str) -> None:
    """Python's splitlines ends a line at marks that a reason may have."""
    text = f"debug*|node1|192.0.2.11|1|2|1|(null)|drained|disk{mark}debug*|node9|192.0.2.99|1|2|1|(null)|idle|none\n"
    assert [node.name for node in slurm_text.nodes(text)] == ["node1"]
    assert slurm_text.host_names(f"node1{mark}node9\n") == (f"node1{mark}node9",)


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("(null)", 0),
        ("gpu:4", 4),
        ("gpu:a100:8(S:0-1)", 8),
        ("gpu:a100_3g.20gb:1(S:0),gpu:a100_1g.5gb:4(S:0-1)", 5),  # MIG instances, as AutoDetect=nvml names them
        ("gpu:a100:4(S:0,1),gpu:2,nvme:1", 6),
        ("craynetwork:4,gpu:1", 1),
    ],
)
def test_gpus_are_counted_over_their_types(gres: str, count: int) -> None:
    assert slurm_text.gpus_of(gres) == count


def test_hardware_of_several_kinds_is_told_and_of_one_kind_is_not() -> None:
    found = slurm_text.nodes(SINFO, "gpu")
    words = slurm_text.mixed(found)
    assert words.startswith("gpu[7-8]: 2 x 32 cores with 2 threads, 8 GPUs; node1: ")
    assert slurm_text.mixed(found[1:]) == ""


@pytest.mark.parametrize(
    ("text", "numbers"), [("2(x3),4", (2, 2, 2, 4)), ("64", (64,)), ("1,2(x2)", (1, 2, 2)), ("", ())]
)
def test_counts_per_node_are_unfolded_and_folded(text: str, numbers: tuple[int, ...]) -> None:
    assert slurm_text.counts(text) == numbers
    assert slurm_text.folded_counts(numbers) == text


@pytest.mark.parametrize(
    ("line", "job"),
    [
        ("salloc: Pending job allocation 5698241", 5698241),
        ("salloc: job 5698241 queued and waiting for resources", 5698241),
        ("salloc: job 5698241 has been allocated resources", 5698241),
        ("salloc: Granted job allocation 7", 7),
        ("salloc: Nodes gcn1234 are ready for job", None),
        ("salloc: Waiting for resource configuration", None),
    ],
)
def test_the_job_is_known_from_salloc_s_own_lines(line: str, job: int | None) -> None:
    assert slurm_text.job_id(line) == job


def test_the_state_of_a_job() -> None:
    assert slurm_text.job_state("PENDING||Resources\n") == JobState("PENDING", "Resources")
    assert slurm_text.job_state("RUNNING|node[1-4]|None\n") == JobState("RUNNING", "", "node[1-4]")
    assert slurm_text.job_state("\n") is None
    state = slurm_text.job_state("PENDING||(ReqNodeNotAvail, UnavailableNodes:node3)")
    assert state is not None
    assert "node3" in state.reason
    assert slurm_text.cluster_name("ClusterName             = hpc1\n") == "hpc1"
    assert slurm_text.host_names("node1\nnode2\n\n") == ("node1", "node2")


def test_a_request_is_tokens_alone() -> None:
    line = slurm_text.salloc(SlurmRequest(4, 61, "gpu", "a b", ("n1", "n2"), ("n9",), 8), ["sh", "-c", "x"])
    assert line[0] == "salloc"
    assert line[-3:] == ["sh", "-c", "x"]
    assert {"--nodes=4", "--time=2", "--partition=gpu", "--account=a b", "--nodelist=n1,n2"} <= set(line)
    assert {"--exclude=n9", "--gres=gpu:8", "--exclusive", "--no-kill"} <= set(line)
    bare = slurm_text.salloc(SlurmRequest(1, 60), ())
    assert not [word for word in bare if word.startswith(("--partition", "--account", "--nodelist", "--gres"))]


def test_mpirun_sees_the_whole_allocation_and_may_start_steps_beside_its_own() -> None:
    variables = dict(slurm_text.launch_variables(42, ["node1", "node2", "n3"], [2, 2, 8]))
    assert (variables["SLURM_NODELIST"], variables["SLURM_TASKS_PER_NODE"]) == ("node1,node2,n3", "2(x2),8")
    assert (variables["SLURM_JOBID"], variables["SLURM_JOB_ID"], variables["SLURM_OVERLAP"]) == ("42", "42", "1")


def test_a_refusal_has_culprit_and_cure() -> None:
    said = "salloc: error: Job submit/allocate failed: {}\n"
    told = slurm_text.refusal(said.format("Invalid partition name specified"), SlurmRequest(2, 60, "gpu", "hpc"))
    assert told.startswith("Slurm has no partition 'gpu'; name one of 'sinfo' with -p (salloc: error: ")
    told = slurm_text.refusal(said.format("Node count specification invalid"), SlurmRequest(2, 60))
    assert told.startswith("The default partition has no such nodes; ")
    told = slurm_text.refusal(said.format("Something new"))
    assert all(word in told for word in ("Something new", "by hand"))


def test_a_missing_client_names_the_machine() -> None:
    sentence = slurm_text.refusal("bash: line 1: sinfo: command not found", place="login")
    assert sentence.startswith("login has no sinfo")


def test_the_end_of_a_job_has_its_cure() -> None:
    assert slurm_text.ended(42, JobState("CANCELLED by 0"), 30) == (
        "Slurm job 42 is gone: it was cancelled; see 'scontrol show job 42' for who did"
    )
    assert "scontrol show job 42" in slurm_text.ended(42, None, 30)
    for state in (JobState("TIMEOUT"), JobState("COMPLETING", "TimeLimit")):
        assert "time limit of 30 min" in slurm_text.ended(42, state, 30)


@pytest.mark.parametrize("text", ["1(x999999999)", "9" * 5000, f"1(x{'9' * 5000})"])
def test_a_count_that_no_slurm_has_fills_no_memory(text: str) -> None:
    assert slurm_text.counts(text) == ()


def test_no_answer_takes_long_to_read() -> None:
    began = time.process_time()
    assert slurm_text.refusal("salloc: error: " * 100_000).startswith("Slurm refused")
    for gres in ("," * 1_000_000, "(" * 1_000_000, "gpu:(" * 200_000):
        assert slurm_text.gpus_of(gres) == 0
    assert time.process_time() - began < 2


def test_a_number_of_thousands_of_digits_is_no_number() -> None:
    digits = "9" * 5000
    assert slurm_text.gpus_of(f"gpu:{digits}") == 0
    assert slurm_text.job_id(f"Granted job allocation {digits}") is None
    (node,) = slurm_text.nodes(f"all*|n1|n1|{digits}|1|1|(null)|idle|none\n")
    assert node.sockets < 10**10
