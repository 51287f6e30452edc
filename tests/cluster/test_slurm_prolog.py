"""A prolog, an epilog and pam_slurm_adopt of a real Slurm: what they let through, and what they refuse and why."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import planting
import pytest
from clusterctl.model.results import ValidationRecord
from clusterctl.validation.checks import registry
from slurm_nodes import AS_USER, SUBMIT, all_take_jobs, by_slurm, configured, is_empty, resumed, states, with_job
from validated import CLUSTERCTL, NODES, Cluster, patient

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.xdist_group("slurm")]

SCRIPT = "/etc/slurm/clusterctl-prolog.sh"
FOLDERS = {"Prolog": "/etc/slurm/prolog.d", "Epilog": "/etc/slurm/epilog.d"}
SHM = "/dev/shm"  # noqa: S108 - the folder of a node
SEEN = "/run/slurm-seen"  # names of the hooks that have run on a node, one a line
HOOKS_WITHIN_S = 30.0
PROGRAM_ENDS_S = 40.0  # of srun, where the look at a node has a deadline of 5 s
OF_ADMINISTRATOR = "disk full"
REASON = "clusterctl check-node: "
PAM = "/etc/pam.d/sshd"
GATED = NODES[1:]  # the submit host stays open: clusterctl logs in there
INSTALL = """
dpkg-query --show libpam-slurm-adopt >/dev/null 2>&1 && exit
apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends libpam-slurm-adopt >/dev/null
"""


@pytest.fixture
def cluster(slurm_cluster: Cluster) -> Iterator[Cluster]:
    yield slurm_cluster
    assert is_empty(slurm_cluster)
    resumed(slurm_cluster)
    assert slurm_cluster.is_clean()


def rendered(*options: str) -> str:
    command = [*CLUSTERCTL, "render", "slurm-prolog", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def srun(cluster: Cluster, *command: str) -> tuple[int, float]:
    """Run a program once on every node as an ordinary user; its exit code, and after how many seconds it ended."""
    began = time.monotonic()
    words = ("srun", f"--nodes={len(NODES)}", "--ntasks-per-node=1", "--chdir=/tmp", *command)
    said = cluster.on(SUBMIT, *AS_USER, "sh", "-c", '"$@" >/dev/null 2>&1; echo $?', "sh", *words)
    return int(said), time.monotonic() - began


def seen(cluster: Cluster, hook: str) -> set[str]:
    """Return the nodes on which a hook has run."""
    return {node for node in NODES if hook in cluster.on(node, "sh", "-c", f"cat {SEEN} 2>/dev/null; true").split()}


@contextlib.contextmanager
def hooks(cluster: Cluster, *options: str, wanted: tuple[str, ...] = ("Prolog",)) -> Iterator[None]:
    """Have Slurm run the rendered script before or after each job, beside a hook that notes that it has run.

    slurmd reads its configuration in its own time. So jobs are started until the hooks have run on every node.
    """
    text = rendered(*options)
    for node in NODES:
        cluster.on(node, "sh", "-c", 'printf %s "$1" > "$2"; chmod 755 "$2"', "sh", text, SCRIPT)
        for hook in wanted:
            note = f"#!/bin/sh\necho {hook} >> {SEEN}\n"
            make = (
                'mkdir -p "$1"; printf %s "$2" > "$1/10-note"; chmod 755 "$1/10-note"; ln -sf "$3" "$1/50-clusterctl"'
            )
            cluster.on(node, "sh", "-c", make, "sh", FOLDERS[hook], note, SCRIPT)
    lines = "".join(f"{hook}={FOLDERS[hook]}/*\n" for hook in wanted)
    try:
        with configured(cluster, lambda conf: conf + lines):
            until = time.monotonic() + HOOKS_WITHIN_S
            while any(seen(cluster, hook) != set(NODES) for hook in wanted):
                assert time.monotonic() < until, [seen(cluster, hook) for hook in wanted]
                assert srun(cluster, "true")[0] == 0
            assert all_take_jobs(cluster)
            try:
                yield
            finally:
                assert is_empty(cluster)
                resumed(cluster)
        no_longer_run(cluster)
    finally:
        for node in NODES:
            cluster.on(node, "rm", "-rf", SEEN, SCRIPT, *FOLDERS.values())


def no_longer_run(cluster: Cluster) -> None:
    """Start jobs until no hook runs; slurmd would drain a node whose hooks are gone."""
    until = time.monotonic() + HOOKS_WITHIN_S
    while True:
        for node in NODES:
            cluster.on(node, "rm", "-f", SEEN)
        srun(cluster, "true")
        is_empty(cluster)  # the epilogs have ended
        if not any(seen(cluster, hook) for hook in FOLDERS):
            return
        assert time.monotonic() < until


def reason_of(cluster: Cluster, node: str, within_s: float = 15) -> str:
    """Wait until a node is drained, and return why."""
    until = time.monotonic() + within_s
    while "drain" not in states(cluster)[node][0] and time.monotonic() < until:
        time.sleep(0.3)
    state, reason = states(cluster)[node]
    assert "drain" in state, states(cluster)
    others = {name: found for name, (found, _) in states(cluster).items() if name != node and "drain" in found}
    assert others == {}
    return reason


def test_the_prolog_lets_jobs_start_on_fit_nodes_and_drains_an_unfit_one_until_it_is_proved(cluster: Cluster) -> None:
    with hooks(cluster):
        assert srun(cluster, "true")[0] == 0
        with planting.full(cluster, "node2", SHM):
            assert srun(cluster, "true")[0] == 1
            reason = reason_of(cluster, "node2")
            assert reason.startswith(f"{REASON}{SHM} is full"), reason
        is_empty(cluster)
        cluster.on(SUBMIT, "scontrol", "update", "nodename=node4", "state=drain", f"reason={OF_ADMINISTRATOR}")
        command = cluster.command(
            "--checks", "hello", "--undrain-proved", "--submit-host", SUBMIT, "--limit", "node2,node4"
        )
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert states(cluster)["node2"] == ("idle", "none")
        assert states(cluster)["node4"] == ("drained", OF_ADMINISTRATOR)


def test_the_epilog_drains_a_node_that_a_job_leaves_unfit(cluster: Cluster) -> None:
    with hooks(cluster, wanted=("Epilog",)), contextlib.ExitStack() as fault:
        with with_job(cluster, "node3", "sleep", "600"):
            fault.enter_context(planting.full(cluster, "node3", SHM))
        reason = reason_of(cluster, "node3")
        assert reason.startswith(f"{REASON}{SHM} is full"), reason
        fault.close()


def test_without_a_reason_the_prolog_only_fails_and_slurm_says_so(cluster: Cluster) -> None:
    with hooks(cluster, "--no-reason"), planting.full(cluster, "node2", SHM):
        assert srun(cluster, "true")[0] == 1
        assert reason_of(cluster, "node2") == "Prolog error"


def test_a_look_that_hangs_ends_at_its_deadline_and_names_what_hung(cluster: Cluster) -> None:
    with hooks(cluster, "--deadline", "5"):
        try:
            with planting.dead_file_system(cluster, "node2", "/var/tmp"):  # noqa: S108 - the folder of a node
                code, seconds = srun(cluster, "true")
                reason = reason_of(cluster, "node2")
        finally:
            cluster.on("node2", "install", "-d", "-m", "1777", "/var/tmp")  # noqa: S108 - the server's end removes it
    assert code == 1
    assert seconds < PROGRAM_ENDS_S
    assert reason.startswith(f"{REASON}the look at the disks of /usr/local and /var/tmp gave no answer within 5 s")


@contextlib.contextmanager
def gate(cluster: Cluster) -> Iterator[None]:
    """Let users log in to nodes by ssh only where they have a job."""
    for node in GATED:
        cluster.on(node, "sh", "-ec", INSTALL)
        cluster.on(node, "sh", "-c", f"cp -a {PAM} /root/sshd.pam; echo 'account required pam_slurm_adopt.so' >> {PAM}")
    try:
        with configured(
            cluster, lambda conf: conf.replace("PrologFlags=Alloc\n", "PrologFlags=Alloc,Contain\n"), restart=True
        ):
            assert all_take_jobs(cluster)
            yield
    finally:
        for node in GATED:
            cluster.on(node, "mv", "/root/sshd.pam", PAM)


def login(cluster: Cluster, node: str) -> tuple[str, str]:
    """Log in from the submit host as an ordinary user; return the exit code, and what was said."""
    said = cluster.on(SUBMIT, *AS_USER, "sh", "-c", 'ssh -o BatchMode=yes "$0" true 2>&1; echo "; $?"', node)
    words, _, code = said.rpartition("; ")
    return code, words


def verdicts(record: ValidationRecord) -> dict[str, str]:
    return {check.check: check.verdict.value for check in record.checks}


def test_where_pam_slurm_adopt_forbids_logins_the_verdicts_are_the_same(cluster: Cluster, tmp_path: Path) -> None:
    suite = registry.load(patient(tmp_path, "smoke"))
    ssh = cluster.validate(suite=suite, search=False)
    assert login(cluster, "node2")[0] == "0"
    with gate(cluster):
        code, words = login(cluster, "node2")
        assert code == "255"
        assert "pam_slurm_adopt" in words
        with with_job(cluster, "node2", "sleep", "600"):
            assert login(cluster, "node2")[0] == "0"
            assert login(cluster, "node3")[0] == "255"
        with contextlib.ExitStack() as closed:  # so that no login at all is part of the run, though it has a job there
            for node in GATED:
                rule = 'iifname != "lo" tcp dport 22 reject with tcp reset'
                closed.enter_context(planting.filtered(cluster, node, "input", rule))
            slurm = by_slurm(cluster, suite=suite)
    assert verdicts(slurm) == verdicts(ssh), [check.reason for check in slurm.checks if check.is_bad]
    assert verdicts(slurm)["allreduce"] == "PASS"
