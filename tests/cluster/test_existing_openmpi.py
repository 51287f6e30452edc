"""An Open MPI that the nodes have already, moved as HPC-X's is: used, watched, never changed, and refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator

import playing
import pytest
from clusterctl.model.results import Verdict
from clusterctl.sandbox import Sandbox
from validated import CLUSTERCTL, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.long]

NODES = ("node1", "node2")
PATH = "/opt/hpcx/ompi"
# The cluster's own with the paths of another machine in each program and library.
MOVE = """
set -e
mkdir -p PATH
cp -r /usr/local/openmpi/. PATH/
rm -r PATH/.clusterctl* PATH/libexec
grep -rlZ /usr/local/openmpi PATH | xargs -0 sed -i s#/usr/local/openmpi#/build-result/ompi#g
"""
# One library lies in a folder beside.
MAKE = f"""{MOVE.replace("PATH", PATH)}
mkdir -p /opt/hpcx/ucx/lib
mv {PATH}/lib/libhwloc.so* /opt/hpcx/ucx/lib/
touch /opt/hpcx/hpcx-init.sh /opt/made
"""
RANK = (
    "import os; from mpi4py import MPI;"
    " maps = {line.split()[-1] for line in open('/proc/self/maps') if 'libmpi.so' in line or 'libhwloc' in line};"
    " print(MPI.Get_processor_name(), MPI.COMM_WORLD.allreduce(1), *sorted(map(os.path.dirname, maps)))"
)
OWN = "realpath /usr/local/openmpi/lib"
# The look by itself, as root, with the program that 'validate' has on the nodes.
LOOK = (
    'import json, sys; sys.path.insert(0, "/usr/local/libexec/clusterctl"); from node_look import existing_openmpi;'
    f' print(json.dumps(existing_openmpi.look("{PATH}", 1000)))'
)


class Operator(Cluster):
    """Somebody who has an Open MPI on the nodes and one cluster."""

    said = ""  # by the last run, beside what its ranks print

    def wish(self, path: str, **more: str) -> None:
        """Name an Open MPI in the inventory, beside what the sandbox has."""
        variables = self.box.inventory.parent / "group_vars" / "all.yml"
        known = json.loads(variables.read_text(encoding="utf-8"))
        variables.write_text(json.dumps({**known, "openmpi_existing": path, **more}), encoding="utf-8")

    def script(self, node: str, words: str) -> str:
        """Run a script as root on a node."""
        return self.on(node, "sh", "-c", words)

    def refused(self) -> str:
        """Return why a provision does not begin."""
        done, _unused = self.run("provision", "--yes", "--no-validate", "--format", "json")
        assert done.returncode == 1, done.stdout
        (problem,) = json.loads(done.stdout)["problems"]
        return f"{problem['problem']}; {problem['cure']}"

    def ranks(self) -> list[str]:
        """Return node, sum, and the folders of libhwloc and libmpi of each rank."""
        argv = [*CLUSTERCTL, "run", str(self.box.inventory), "--", "python", "-c", RANK]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        self.said = " ".join(done.stderr.split())
        return sorted(done.stdout.splitlines())


@pytest.fixture(scope="module")
def operator(sandbox: Callable[..., Sandbox]) -> Operator:
    """Two nodes that are provisioned with the Open MPI in /opt/hpcx/ompi."""
    found = Operator(sandbox("hpcx", nodes=len(NODES)))
    found.provision()
    for node in NODES:
        found.script(node, MAKE)
    found.wish(PATH)
    found.provision()
    return found


@pytest.fixture
def changed(operator: Operator) -> Iterator[Operator]:
    """The nodes, whose Open MPI a test may change on node2; it is made anew afterwards."""
    operator.script("node2", "rm -rf /opt/kept; cp -a /opt/hpcx /opt/kept")
    yield operator
    operator.script("node2", "rm -rf /opt/hpcx; mv /opt/kept /opt/hpcx")


def test_ranks_run_on_it_and_nothing_is_written_into_it(operator: Operator) -> None:
    assert operator.ranks() == [f"{node} 4 {PATH}/lib /opt/hpcx/ucx/lib" for node in NODES for _rank in range(2)]
    openmpi = f"Open MPI 5.0.7 of {PATH}, which clusterctl did not make."
    assert f"Note: node[1-2]: the job runs with {openmpi}" in operator.said
    record = operator.validate("hello", "point_to_point", "allreduce", "network")
    assert {one.verdict for one in record.checks} == {Verdict.PASS}
    assert [one for one in record.notes if PATH in one] == [f"node[1-2] ran the checks with {openmpi}"]
    assert {host["outcome"] for host in operator.provision()[0]["hosts"]} == {"ok"}, "the second run changes nothing"
    assert operator.script("node2", "find /opt/hpcx -newer /opt/made") == ""


def test_a_change_and_its_end_are_named_by_everybody(changed: Operator) -> None:
    changed.script("node2", f"touch {PATH}/lib/libother.so")
    words = f"{PATH} has files of other names or sizes than at the proof"
    drift = json.loads(changed.run("drift", "--format", "json")[0].stdout)["hosts"]
    assert {node: [one["words"] for one in its] for node, its in drift.items()} == {"node2": [words]}
    findings = json.loads(changed.run("doctor", "--format", "json")[0].stdout)["findings"]
    assert [one["hosts"] for one in findings if words in one["cause"]] == [["node2"]]
    assert changed.refused().startswith(f"node2: {PATH} has library files with digest ")
    changed.script("node2", f"sed -i 's/RELEASE_VERSION 7/RELEASE_VERSION 8/' {PATH}/include/mpi.h")
    (gate,) = [one for one in changed.validate("hello").checks if one.check == "provisioned"]
    assert gate.verdict is Verdict.FAIL
    assert f"{PATH} has Open MPI 5.0.8 where the proof had 5.0.7" in gate.reason
    changed.script("node2", f"rm -r {PATH}")
    assert changed.refused() == f"node2: {PATH} does not exist; install it there too, or name another openmpi_existing"
    done, _unused = changed.run("doctor", "--format", "json")
    assert f"{PATH} does not exist" in done.stdout


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (f"chown -R 1000 {PATH}", ""),  # of the login user, who may be root anyway
        (f"chown nobody {PATH}/lib", f"{PATH}/lib belongs to nobody, who could change what jobs run"),
        ("chmod o+w /opt/hpcx", "/opt/hpcx can be written by others than its owner (mode 0757)"),
        ("chown nobody /opt/hpcx/ucx/lib", "/opt/hpcx/ucx/lib belongs to nobody"),
        (f"rm {PATH}/bin/mpicc", f"{PATH} has no bin/mpicc"),
        ("rm -r /opt/hpcx/ucx", f"{PATH}/bin/ompi_info does not run there"),
    ],
)
def test_what_others_could_change_or_cannot_run_is_named(changed: Operator, damage: str, words: str) -> None:
    changed.script("node2", damage)
    found = json.loads(changed.on("node2", "python3", "-c", LOOK))
    assert found["problem"].startswith(words) if words else found["problem"] == ""


def test_the_way_back_and_a_rollback_and_an_uninstall_leave_it_alone(operator: Operator) -> None:
    operator.wish("")
    operator.provision()
    assert {line.split()[2] for line in operator.ranks()} == {operator.script("node1", OWN).strip()}
    notes = json.loads(operator.run("doctor", "--format", "json")[0].stdout)["notes"]
    line = f"On node[1-2], Open MPI 5.0.7 is in {PATH}; 'openmpi_existing: {PATH}' in the inventory has jobs use it."
    assert line in notes
    done, _unused = operator.run("rollback", "--yes")
    assert done.returncode == 0, done.stderr
    assert {line.split()[2] for line in operator.ranks()} == {f"{PATH}/lib"}
    done, _unused = operator.run("uninstall", "--yes")
    assert done.returncode == 0, done.stderr
    assert operator.script("node2", "ls -d /usr/local/openmpi* 2>/dev/null; find /opt/hpcx -newer /opt/made") == ""


# --- series 4.1 ------------------------------------------------------------------------------------------------------

OLDER, VERSION = "/opt/vendor/ompi41", "4.1.4"
OF_41 = (
    "from mpi4py import MPI;"
    " print(MPI.Get_processor_name(), MPI.COMM_WORLD.allreduce(1), MPI.Get_library_version().split(',')[0])"
)


@pytest.fixture(scope="module")
def older(sandbox: Callable[..., Sandbox]) -> Operator:
    """Two nodes with the default Open MPI, that are provisioned with an Open MPI 4.1 in /opt/vendor."""
    found = Operator(sandbox("vendor", nodes=len(NODES)))
    found.wish("", openmpi_version=VERSION)
    found.provision()
    for node in NODES:
        found.script(node, MOVE.replace("PATH", OLDER) + "touch /opt/made")
    found.wish("", openmpi_version="5.0.7")
    found.provision()
    found.wish(OLDER)
    found.provision()
    return found


def test_one_of_series_4_1_carries_jobs_checks_and_mpi4py(older: Operator) -> None:
    argv = [*CLUSTERCTL, "run", str(older.box.inventory), "--network", "tcp", "--", "python", "-c", OF_41]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert sorted(done.stdout.splitlines()) == [f"{node} 4 Open MPI v{VERSION}" for node in NODES for _rank in range(2)]
    record = older.validate("hello", "point_to_point", "allreduce", "network")
    assert {one.verdict for one in record.checks} == {Verdict.PASS}, record.checks
    assert (
        f"node[1-2] ran the checks with Open MPI {VERSION} of {OLDER}, which clusterctl did not make." in record.notes
    )
    words = playing.said(older.box, "node1", "sh", "-c", "mpicc --showme:command; mpirun --version | head -n 1")
    assert words.splitlines() == ["gcc", f"mpirun (Open MPI) {VERSION}"]
    assert {host["outcome"] for host in older.provision()[0]["hosts"]} == {"ok"}, "the second run changes nothing"
    assert older.script("node2", "find /opt/vendor -newer /opt/made") == ""


def test_another_series_on_one_node_is_named_with_both_versions(older: Operator) -> None:
    """The other one is real: the cluster's own 5.0.7, moved to the same place."""
    tree = older.script("node2", "ls -d /usr/local/openmpi-5.0.7-*")
    older.script("node2", f"mv {OLDER} {OLDER}.aside; cp -r {tree} {OLDER}; rm -r {OLDER}/.clusterctl*")
    try:
        problem = older.refused()
    finally:
        older.script("node2", f"rm -r {OLDER}; mv {OLDER}.aside {OLDER}")
    assert problem.startswith(f"node2: {OLDER} has Open MPI 5.0.7 and node1 Open MPI {VERSION}"), problem
    assert problem.endswith(f"make {OLDER} the same on all nodes of the platform"), problem
