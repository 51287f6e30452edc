"""An environment that the user made, on real nodes: used by MPI, watched, and refused where it cannot be used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clusterctl.sandbox import Sandbox
from validated import engine

pytestmark = pytest.mark.cluster

CLUSTERCTL = [sys.executable, "-m", "clusterctl"]
NODES = ("node1", "node2")
PATH, PACKAGES = "/opt/pytorch", "lib/python3.11/site-packages"
# Numpy comes from the environment that the role python_env made first; a venv needs no installer for it.
# The role mpi4py builds from mpi4py's source archive against the cluster's Open MPI, as a user would.
STASH = (
    f"mkdir /opt/stash && cp -r /usr/local/python_env/{PACKAGES}/numpy* /opt/stash/"
    " && mkdir /opt/stash-mpi4py && cp -r /usr/local/mpi4py/site-packages/mpi4py* /opt/stash-mpi4py/"
)
MAKE = f"""
set -e
python3 -m venv --without-pip {PATH}
cp -r /opt/stash/numpy* {PATH}/{PACKAGES}/
printf '#!{PATH}/bin/python\\nimport sys; print(sys.prefix, *sys.argv[1:])\\n' >{PATH}/bin/greet
chmod 755 {PATH}/bin/greet
touch /opt/made
"""
# A Python of its own, as an environment of conda has it: the distribution's, moved.
CONDA = f"""
set -e
mkdir -p /opt/conda/bin /opt/conda/conda-meta /opt/conda/{PACKAGES}
cp -r /usr/lib/python3.11 /opt/conda/lib/
cp /usr/bin/python3.11 /opt/conda/bin/
ln -s python3.11 /opt/conda/bin/python
cp -r {PATH}/{PACKAGES}/numpy* /opt/conda/{PACKAGES}/
touch /opt/conda/conda-meta/python-3.11.2-h1_0.json
"""
# The look by itself, as root, with the program that 'validate' has on the nodes.
LOOK = (
    'import json, sys; sys.path.insert(0, "/usr/local/libexec/clusterctl"); from node_look import existing_python;'
    f' print(json.dumps(existing_python.look("{PATH}", 1000)))'
)
# Debian's mpi4py, without the Open MPI of Debian that it was built against.
OTHER_MPI4PY = f"""
set -e
apt-get -qq update
cd /tmp
apt-get -qq download python3-mpi4py
dpkg -x python3-mpi4py_*.deb /tmp/of-debian
rm -rf {PATH}/{PACKAGES}/mpi4py*
cp -r /tmp/of-debian/usr/lib/python3/dist-packages/mpi4py* {PATH}/{PACKAGES}/
rm -r /tmp/of-debian python3-mpi4py_*.deb
"""
WHOSE = "import os; from mpi4py import MPI; print(os.path.realpath(MPI.__file__), MPI.COMM_WORLD.allreduce(1))"
# With PyTorch and Horovod: those of the environment that clusterctl made, and its build against the cluster's Open MPI.
# Of the folders that Horovod names, the one of the link is renamed, because a build of the user names the other one.
WITH_HOROVOD = f"""
set -e
rm -rf {PATH}
python3 -m venv --without-pip {PATH}
cp -al /usr/local/python_env/{PACKAGES}/* {PATH}/{PACKAGES}/
rm {PATH}/{PACKAGES}/clusterctl.pth
cp -r /usr/local/horovod/site-packages/horovod* {PATH}/{PACKAGES}/
sed -i 's|/usr/local/openmpi/lib:|/usr/local/missing/lib:|' {PATH}/{PACKAGES}/horovod/torch/mpi_lib_v2.*.so
cat >/opt/whose.py <<'END'
import os, horovod.torch as hvd
hvd.init()
print(os.path.realpath(hvd.__file__), hvd.size(), hvd.mpi_enabled(), flush=True)
END
touch /opt/made
"""
RANK = (
    "import sys, numpy; from mpi4py import MPI;"
    " print(MPI.Get_processor_name(), sys.base_prefix, numpy.__file__.split('/lib/')[0], MPI.COMM_WORLD.allreduce(1))"
)


class Operator:
    """Somebody who has an environment on the nodes and one cluster."""

    def __init__(self, box: Sandbox, state: Path) -> None:
        self.box, self.environment = box, {**os.environ, "XDG_STATE_HOME": str(state)}

    def on(self, node: str, script: str) -> str:
        """Run a script as root on a node."""
        return engine().run("exec", self.box.node(node).container, "sh", "-c", script).decode()

    def runs(self, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [*CLUSTERCTL, verb, str(self.box.inventory), *words]
        return subprocess.run(
            argv, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    def provisions(self, path: str = PATH, **more: Any) -> dict[str, Any]:
        """Provision with the environment, and return the record."""
        variables = json.dumps({"python_env_existing": path, **more})
        done = self.runs("provision", "--yes", "--no-validate", "--format", "json", "-e", variables)
        assert "Traceback" not in done.stderr
        record: dict[str, Any] = json.loads(done.stdout)
        return {**record, "code": done.returncode}

    def refused(self, path: str = PATH, **more: Any) -> str:
        """Return why a provision does not begin; of several nodes, the first one."""
        record = self.provisions(path, **more)
        assert record["code"] == 1, record
        problem = record["problems"][0]
        return f"{problem['problem']}; {problem['cure']}"

    def ranks(self) -> list[str]:
        """Return node, prefix of the Python, environment of numpy and the number of ranks, of each rank."""
        done = self.runs("run", "--", "python", "-c", RANK)
        assert done.returncode == 0, done.stderr[-4000:]
        return sorted(done.stdout.splitlines())


@pytest.fixture(scope="module")
def operator(sandbox: Callable[..., Sandbox], tmp_path_factory: pytest.TempPathFactory) -> Operator:
    """Two nodes with a venv at the same path, provisioned with it."""
    found = Operator(sandbox("existing", nodes=2), tmp_path_factory.mktemp("state"))
    done = found.runs("provision", "--yes", "--no-validate")
    assert done.returncode == 0, done.stderr[-4000:]
    for node in NODES:
        found.on(node, STASH)
        found.on(node, MAKE)
    record = found.provisions()
    assert record["code"] == 0, record
    return found


@pytest.fixture
def changed(operator: Operator) -> Iterator[Operator]:
    """The nodes, whose environment a test may change; it is made anew afterwards."""
    yield operator
    made_anew(operator)


@pytest.fixture
def proved(operator: Operator) -> Iterator[Operator]:
    """The nodes, whose environment a test may change and prove; it is made anew and proved afterwards."""
    yield operator
    made_anew(operator)
    record = operator.provisions()
    assert record["code"] == 0, record


def made_anew(operator: Operator) -> None:
    for node in NODES:
        operator.on(node, f"chown root:root /opt; chmod 755 /opt; rm -rf {PATH}; {MAKE}")


def everywhere(base: str, folder: str) -> list[str]:
    return [f"{node} {base} {folder} 4" for node in ("node1", "node1", "node2", "node2")]


def test_ranks_run_in_it_and_nothing_is_installed_into_it(operator: Operator) -> None:
    assert operator.ranks() == everywhere("/usr", PATH)
    assert operator.on("node2", f"find {PATH} -newer /opt/made") == ""
    assert operator.on("node1", "/usr/local/python_env/bin/greet a b") == "/usr/local/python_env a b\n"
    assert {host["outcome"] for host in operator.provisions()["hosts"]} == {"ok"}, "the second run changes nothing"


def test_a_validation_says_which_environment_it_proved(operator: Operator) -> None:
    done = operator.runs("validate", "--checks", "hello", "--format", "json")
    record = json.loads(done.stdout)
    assert (done.returncode, record["verdict"]) == (0, "PASS"), record
    (note,) = [one for one in record["notes"] if PATH in one]
    version = operator.on("node1", "python3 -V").split()[1]
    assert note == (
        f"node[1-2] ran the checks in {PATH} with Python {version}, an environment that clusterctl did not make."
    )


def test_its_mpi4py_is_taken_where_it_names_the_clusters_open_mpi(proved: Operator) -> None:
    def whose() -> set[str]:
        done = proved.runs("run", "--", "python", "-c", WHOSE)
        assert done.returncode == 0, done.stderr[-4000:]
        return set(done.stdout.splitlines())

    def noted(verb: str, *words: str) -> str:
        notes = json.loads(proved.runs(verb, *words, "--format", "json").stdout)["notes"]
        return " ".join(note for note in notes if "mpi4py" in note)

    ours = proved.on("node1", "readlink -f /usr/local/mpi4py").strip()
    for node in NODES:
        proved.on(node, f"cp -r /opt/stash-mpi4py/* {PATH}/{PACKAGES}/")
    record = proved.provisions()
    assert (record["code"], record["warnings"]) == (0, [one for one in record["warnings"] if "mpi4py" not in one])
    (line,) = whose()
    assert line.startswith(f"{PATH}/{PACKAGES}/mpi4py/MPI.")
    assert line.endswith(" 4")
    for words in (noted("validate", "--checks", "hello"), noted("doctor")):
        assert words.startswith("node[1-2]: mpi4py 4.")
        assert words.endswith(f" is that of {PATH}/{PACKAGES}/mpi4py, built against the cluster's Open MPI.")
    assert {host["outcome"] for host in proved.provisions()["hosts"]} == {"ok"}, "the second run changes nothing"

    for node in NODES:
        proved.on(node, OTHER_MPI4PY)
    record = proved.provisions()
    (warning,) = [one for one in record["warnings"] if "mpi4py" in one]
    assert warning.startswith(f"mpi4py 3.1.4 of {PATH} takes libmpi.so.40 of the system; jobs get the cluster's own")
    assert record["code"] == 0
    assert {line.rpartition("/site-packages/")[0] for line in whose()} == {ours}
    assert noted("doctor") == ""


def test_a_change_of_its_packages_is_named_by_everybody_until_it_is_proved_anew(changed: Operator) -> None:
    changed.on("node2", f"mv {PATH}/{PACKAGES}/numpy-*.dist-info {PATH}/{PACKAGES}/numpy-1.0.dist-info")
    drift = json.loads(changed.runs("drift", "--format", "json").stdout)["hosts"]
    (found,) = drift["node2"]
    assert "/opt/pytorch has numpy 1.0 where the proof had 2." in found["words"]
    assert "node1" not in drift
    doctor = json.loads(changed.runs("doctor", "--format", "json").stdout)
    assert [one["hosts"] for one in doctor["findings"] if "has numpy 1.0 where the proof" in one["cause"]] == [
        ["node2"]
    ]
    checked = json.loads(changed.runs("validate", "--checks", "hello", "--format", "json").stdout)
    assert checked["verdict"] == "FAIL"
    (gate,) = [one for one in checked["checks"] if one["check"] == "provisioned"]
    assert "has numpy 1.0 where the proof" in json.dumps(gate)
    assert changed.refused().startswith("node2: /opt/pytorch has numpy 1.0 and node1 2.")

    changed.on("node1", f"mv {PATH}/{PACKAGES}/numpy-*.dist-info {PATH}/{PACKAGES}/numpy-1.0.dist-info")
    former = changed.on("node2", "readlink /usr/local/python_env")
    record = changed.provisions()
    assert (record["code"], {host["outcome"] for host in record["hosts"]}) == (0, {"changed"})
    assert changed.on("node2", "readlink /usr/local/python_env") != former
    assert changed.ranks() == everywhere("/usr", PATH)


def test_a_node_without_it_is_named_by_everybody(changed: Operator) -> None:
    changed.on("node2", f"rm -r {PATH}")
    drift = json.loads(changed.runs("drift", "--format", "json").stdout)["hosts"]
    assert [one["words"] for one in drift["node2"]] == [f"{PATH} does not exist"]
    assert changed.refused() == (
        f"node2: {PATH} does not exist; make it there too, or name another python_env_existing"
    )


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (f"rm {PATH}/pyvenv.cfg", f"{PATH} is not a Python environment"),
        (f"ln -sfn /nowhere {PATH}/bin/python", f"{PATH}/bin/python leads to /nowhere, which is not a program there"),
        (f"chown -R 1000 {PATH}", ""),  # of the login user, who may be root anyway
        (f"chown -R nobody {PATH}/lib", f"{PATH}/lib belongs to nobody, who could change what jobs run"),
        (f"chown nobody {PATH}/bin", f"{PATH}/bin belongs to nobody, who could change what jobs run"),
        (f"chmod o+w {PATH}", f"{PATH} can be written by others than its owner (mode 0757)"),
        (f"chmod g+w {PATH}; chgrp nogroup {PATH}", f"{PATH} can be written by others than its owner (mode 0775)"),
        (f"chmod 700 {PATH}", f"{PATH} can be used by its owner alone (mode 0700)"),
        ("chown nobody /opt", "/opt belongs to nobody, who could change what jobs run"),
        (
            f"install -D /usr/bin/python3.11 /root/own/bin/python3; ln -sfn /root/own/bin/python3 {PATH}/bin/python",
            f"{PATH}/bin/python leads to /root/own/bin/python3, and /root can be used by its owner alone",
        ),
    ],
)
def test_what_others_could_change_or_cannot_use_is_named(changed: Operator, damage: str, words: str) -> None:
    changed.on("node2", damage)
    found = json.loads(changed.on("node2", f"python3 -c '{LOOK}'"))
    assert found["problem"].startswith(words) if words else found["problem"] == ""
    assert bool(found["cure"]) is bool(words)


def test_an_environment_of_root_may_lie_anywhere(operator: Operator) -> None:
    place = "/data/venvs/x"
    for node in NODES:
        operator.on(node, f"mkdir -p /data/venvs; {MAKE.replace(PATH, place)}")
    record = operator.provisions(place)
    assert record["code"] == 0, record
    assert operator.ranks() == everywhere("/usr", place)
    operator.on("node2", f"chown -R cluster {place}")
    assert operator.refused(place, environment_variables={"LOOKED": "again"}).startswith(
        f"node2: {place} belongs to cluster, who could change what jobs run"
    )
    operator.on("node2", f"chown -R root {place}")


def test_a_python_of_its_own_is_refused_where_nothing_can_be_compiled_for_it(operator: Operator) -> None:
    for node in NODES:
        operator.on(node, CONDA)
    assert operator.refused("/opt/conda") == (
        "mpi4py is compiled with Python.h, and /opt/conda on node1, the Python of /opt/conda, has none; install the"
        " headers of Python 3.11 there"
    )


def test_the_distributions_python_is_an_environment_too_and_the_way_back_is_open(operator: Operator) -> None:
    local = f"/usr/local/{PACKAGES.replace('site', 'dist')}"
    for node in NODES:
        operator.on(node, f"mkdir -p {local} && cp -r {PATH}/{PACKAGES}/numpy* {local}/")
    assert operator.provisions("/usr/bin/python3")["code"] == 0
    assert operator.ranks() == everywhere("/usr", "/usr/local")
    assert operator.provisions("")["code"] == 0
    assert {line.split()[2] for line in operator.ranks()} == {"/usr/local/python_env"}


@pytest.mark.long
def test_its_horovod_is_taken_where_it_was_built_for_the_cluster(operator: Operator) -> None:
    """The last test: it ends without the cluster's software."""
    stack = {"python_env_framework": "pytorch", "horovod_install": "auto"}
    assert operator.provisions("", **stack)["code"] == 0
    ours = operator.on("node1", "readlink /usr/local/horovod")
    for node in NODES:
        operator.on(node, WITH_HOROVOD)
    record = operator.provisions(**stack)
    assert (record["code"], record["warnings"]) == (0, [one for one in record["warnings"] if "Horovod" not in one])
    assert operator.on("node1", "readlink /usr/local/horovod") != ours
    its = f"{PATH}/{PACKAGES}/horovod"
    for launcher in ("mpirun", "horovodrun"):
        done = operator.runs("run", "--launcher", launcher, "--", "python", "/opt/whose.py")
        assert done.returncode == 0, done.stderr[-4000:]
        assert set(done.stdout.splitlines()) == {f"{its}/torch/__init__.py 4 True"}, launcher
    checked = json.loads(operator.runs("validate", "--checks", "horovod", "--format", "json").stdout)
    doctor = json.loads(operator.runs("doctor", "--format", "json").stdout)
    assert checked["verdict"] == "PASS", checked
    for record in (checked, doctor):
        (note,) = [one for one in record["notes"] if "Horovod" in one]
        assert note == f"node[1-2]: Horovod 0.28.1 is that of {its}, built against the cluster's Open MPI."
    assert not [one for one in doctor["findings"] if "Horovod" in one["cause"]]
    assert {host["outcome"] for host in operator.provisions(**stack)["hosts"]} == {"ok"}, "changes nothing"
    assert json.loads(operator.runs("drift", "--format", "json").stdout)["hosts"] == {}

    done = operator.runs("uninstall", "--yes")
    assert done.returncode == 0, done.stderr[-4000:]
    assert operator.on("node2", "ls -d /usr/local/horovod* || true") == ""
    assert operator.on("node2", f"find {PATH} -newer /opt/made") == ""
