"""A person logs in to a node and types what a tutorial says, in each kind of session that people have."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt import Prompt
from validated import CLUSTERCTL, Cluster

pytestmark = pytest.mark.cluster

USER, OTHER = "trainer", "cluster"  # the account of jobs, and another one
HOME = f"/home/{USER}"
PAIR = ("node1", "node2")
PACKAGES = "zsh fish tcsh tmux screen cron at environment-modules gcc libc6-dev systemd systemd-sysv libpam-systemd"
INSTALL = (
    "apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends "
    f"dbus-user-session {PACKAGES} >/dev/null"
)
OURS = {
    "mpirun": "/usr/local/openmpi/bin/mpirun",
    "mpicc": "/usr/local/openmpi/bin/mpicc",
    "python": "/usr/local/python_env/bin/python",
    "python3": "/usr/local/python_env/bin/python3",
}
LIBRARY_PATH = "/usr/local/openmpi/lib"
RANKS = "mpirun -np 4 --hostfile mpi_hosts --mca btl self,tcp"
FILES = {
    "mpi_hosts": "node1 slots=2\nnode2 slots=2\n",
    # A message around the ring, a broadcast and an allreduce.
    "x.py": """
from mpi4py import MPI
c = MPI.COMM_WORLD
ring = c.sendrecv(c.rank, dest=(c.rank + 1) % c.size, source=(c.rank - 1) % c.size)
word = c.bcast({"word": 7} if c.rank == 0 else None, root=0)["word"]
print(f"rank {c.rank} {MPI.Get_processor_name()} {ring} {word} {c.allreduce(c.rank)}\\n", end="", flush=True)
""",
    "hello.c": """
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    printf("hello %d of %d\\n", rank, size);
    MPI_Finalize();
}
""",
    # For a session without a terminal that answers; it is read, and so has the environment of that session.
    "probe.sh": f"""
cd {HOME}
for name in {" ".join(OURS)}; do command -v $name; done
echo "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
{RANKS} python x.py
echo ended
""",
}
ANSWERS = [f"rank {rank} node{1 + rank // 2} {(rank - 1) % 4} 7 6" for rank in range(4)]


class Nodes(Prompt):
    """Nodes whose people have the shells and programs that people have."""

    def from_file(self, start: str, within_s: float = 90, file: str = "out") -> list[str]:
        """Return what the probe wrote to a file in a session that ``start`` starts."""
        self.said(start)
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            lines = self.said(f"cat {HOME}/{file} 2>/dev/null")
            if "ended" in lines:
                return lines
            time.sleep(1)
        raise AssertionError(f"no end of the probe: {lines}")

    def root(self, script: str, node: str = "node1") -> str:
        return self.cluster.on(node, "sh", "-c", script)


def is_right(lines: list[str], library_path: str | None = LIBRARY_PATH) -> None:
    """Hold that a probe found the cluster's programs, and that its ranks gave the right answers."""
    assert lines[: len(OURS)] == list(OURS.values())
    if library_path is not None:
        assert lines[len(OURS)] == f"LD_LIBRARY_PATH={library_path}"
    assert sorted(line for line in lines if line.startswith("rank ")) == ANSWERS, lines


@pytest.fixture(scope="module")
def nodes(fresh_cluster: Cluster) -> Nodes:
    found = Nodes(fresh_cluster, USER)
    for node in PAIR:
        fresh_cluster.on(node, "sh", "-ec", INSTALL)
        fresh_cluster.on(node, "sh", "-ec", "pgrep -x cron || cron; pgrep -x atd || atd")
    inventory = fresh_cluster.box.inventory
    inventory.write_text(inventory.read_text() + f"cluster_user={USER}\n")
    fresh_cluster.provision()
    for node in PAIR:
        for name, text in FILES.items():
            fresh_cluster.on(node, "sh", "-c", f"printf %s {shlex.quote(text)} > {HOME}/{name}")
        fresh_cluster.on(node, "chown", "-R", f"{USER}:", HOME)
    return found


def test_a_person_at_the_prompt_types_what_a_tutorial_says(nodes: Nodes) -> None:
    which, ranks, compiled, ran, other = nodes.typed(
        f"which {' '.join(OURS)}",
        f"{RANKS} python x.py",
        "mpicc hello.c && scp -q a.out node2: && ls a.out",
        "mpirun -n 4 --hostfile /etc/clusterctl/hostfile ./a.out",
        "ssh node2 env",
    )
    assert which == list(OURS.values())
    assert sorted(line for line in ranks if line.startswith("rank ")) == ANSWERS
    assert compiled[-1] == "a.out"
    # PRRTE may warn of a process group that its child has set already.
    assert sorted(line for line in ran if line.startswith("hello ")) == [f"hello {rank} of 4" for rank in range(4)]
    assert f"LD_LIBRARY_PATH={LIBRARY_PATH}" in other
    assert any(line.startswith("PATH=/usr/local/openmpi/bin:") for line in other)


@pytest.mark.parametrize(
    ("first", "user"),
    [
        ("exec bash -lc 'exec bash --norc'", USER),
        (f"exec sudo su - {USER}", OTHER),
        (f"exec sudo -iu {USER}", OTHER),
        ("exec ssh -tt node1 bash --norc", USER),  # as an editor's server starts it: no login shell
        ("exec tmux new-session 'exec bash -l'", USER),
    ],
    ids=["bash -lc", "su -", "sudo -iu", "editor", "tmux"],
)
def test_a_session_of_each_kind_finds_the_programs_and_so_do_its_ranks(nodes: Nodes, first: str, user: str) -> None:
    (probed,) = nodes.typed(f". {HOME}/probe.sh > {HOME}/out 2>&1; cat {HOME}/out", first=first, user=user)
    is_right(nodes.said(f"cat {HOME}/out") if "tmux" in first else probed)  # tmux draws a screen


@pytest.mark.parametrize(
    ("start", "library_path"),
    [
        (f". {HOME}/probe.sh > {HOME}/out 2>&1", LIBRARY_PATH),
        ('screen -dmS s; sleep 1; screen -S s -X stuff ". ./probe.sh > out 2>&1; exit\n"', None),  # setgid
        ("echo '. ./probe.sh > out 2>&1' | at now", ""),  # atd leaves LD_* out
    ],
    ids=["command", "screen", "at"],
)
def test_a_session_without_a_person_finds_the_programs(nodes: Nodes, start: str, library_path: str | None) -> None:
    is_right(nodes.from_file(f"rm -f {HOME}/out; {start}"), library_path)


def test_a_line_of_a_crontab_activates_what_cron_takes_away(nodes: Nodes) -> None:
    """Settings of a crontab hold for the lines below them."""
    probe = f". {HOME}/probe.sh > {HOME}"
    crontab = f"""* * * * * . /etc/clusterctl/activate; {probe}/out 2>&1
SHELL=/bin/bash
BASH_ENV=/etc/clusterctl/activate
* * * * * {probe}/out.bash 2>&1
"""
    try:
        nodes.root(f"rm -f {HOME}/out; printf %s {shlex.quote(crontab)} | crontab -u {USER} -")
        is_right(nodes.from_file("true", within_s=150))
        is_right(nodes.from_file("true", within_s=150, file="out.bash"))
    finally:
        nodes.root(f"crontab -r -u {USER}")


@pytest.fixture
def login_shell(nodes: Nodes) -> Iterator[None]:
    yield
    for node in PAIR:
        nodes.root(f"usermod -s /bin/bash {USER}", node)


@pytest.mark.parametrize("shell", ["/bin/zsh", "/bin/tcsh", "/bin/dash"])
@pytest.mark.usefixtures("login_shell")
def test_a_login_shell_of_another_kind_finds_the_programs(nodes: Nodes, shell: str) -> None:
    for node in PAIR:
        nodes.root(f"usermod -s {shell} {USER}", node)
    for first, user in (("", USER), (f"exec sudo su - {USER}", OTHER)):
        which, shown, ranks = nodes.typed(
            f"which {' '.join(OURS)}", "echo $LD_LIBRARY_PATH", f"{RANKS} python x.py", first=first, user=user
        )
        assert which[-len(OURS) :] == list(OURS.values())
        assert shown[-1:] == [LIBRARY_PATH]
        assert sorted(line for line in ranks if line.startswith("rank ")) == ANSWERS, ranks
    assert nodes.said("which mpirun python") == [OURS["mpirun"], OURS["python"]]


@pytest.mark.usefixtures("login_shell")
def test_fish_finds_the_programs_and_mpirun_needs_another_shell_on_the_other_nodes(nodes: Nodes) -> None:
    """No mpirun starts its daemon through fish, which doctor says."""
    nodes.root(f"usermod -s /usr/bin/fish {USER}")
    assert nodes.said("which mpirun python; echo $LD_LIBRARY_PATH") == [
        *(OURS[name] for name in ("mpirun", "python")),
        LIBRARY_PATH,
    ]
    own = nodes.said("fish -lc 'source /etc/clusterctl/activate.fish; string join : $PATH'")
    assert own[0].startswith("/usr/local/openmpi/bin:/usr/local/horovod/bin:/usr/local/python_env/bin:")
    assert own[0].count("/usr/local/openmpi/bin") == 1
    ranks = nodes.said("mpirun -np 2 -H node1:2 --mca plm_ssh_assume_same_shell 0 python x.py")
    assert sorted(ranks) == ["rank 0 node1 1 7 1", "rank 1 node1 0 7 1"]


def test_another_account_finds_mpi_last_and_activates_the_rest(nodes: Nodes) -> None:
    found = "command -v mpirun; command -v python3; echo L=$LD_LIBRARY_PATH"
    for script in (found, f"bash -lc {shlex.quote(found)}"):
        assert nodes.said(script, user=OTHER) == [OURS["mpirun"], "/usr/bin/python3", "L="]
    activated = f". /etc/clusterctl/activate; {found}"
    assert nodes.said(activated, user=OTHER) == [OURS["mpirun"], OURS["python3"], f"L={LIBRARY_PATH}"]
    module = f"module load clusterctl; {found}"
    assert nodes.said(f"bash -lc {shlex.quote(module)}", user=OTHER) == [
        *(OURS[name] for name in ("mpirun", "python3")),
        f"L={LIBRARY_PATH}",
    ]


@pytest.mark.parametrize("session", ["env", "bash -lc env", "su - -c env", "sudo env", "sudo -i env"])
def test_nothing_of_ours_stands_in_roots_way(nodes: Nodes, session: str) -> None:
    nodes.root("mkdir -p /root/.ssh && cp /home/cluster/.ssh/authorized_keys /root/.ssh/authorized_keys")
    lines = nodes.said(session, user="root")
    (path,) = (line.removeprefix("PATH=").split(":") for line in lines if line.startswith("PATH="))
    ours = [number for number, folder in enumerate(path) if "openmpi" in folder or "python_env" in folder]
    assert all(number > path.index("/usr/bin") for number in ours), path
    assert not any("python_env" in folder for folder in path)
    assert not [line for line in lines if line.startswith("LD_LIBRARY_PATH=")]
    cached = [line.split(" => ")[1] for line in nodes.root("ldconfig -p").splitlines() if " => " in line]
    assert not [one for one in cached if one.startswith("/usr/local") and not one.endswith("/libnccl.so.2")]


def test_ansible_of_others_finds_the_systems_python(nodes: Nodes, tmp_path: Path) -> None:
    """Its discovery asks a session of the login user, here the account of jobs, for python3.N first."""
    config = tmp_path / "ansible.cfg"
    config.write_text("[defaults]\ninterpreter_python = auto\n")
    program, inventory = Path(sys.executable).with_name("ansible"), nodes.cluster.box.inventory
    as_user = ("-e", f"ansible_user={USER}", "-e", "ansible_become=false")
    done = subprocess.run(
        [str(program), "-i", str(inventory), "node1", "-m", "ping", *as_user],
        env={**os.environ, "ANSIBLE_CONFIG": str(config)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert re.search(r'"discovered_interpreter_python": "/usr/bin/python3\.\d+"', done.stdout), done.stdout


def test_programs_need_no_environment_and_mpicc_makes_such_programs(nodes: Nodes) -> None:
    bare = f"env -i HOME={HOME} PATH=/usr/bin:/bin"
    ranks = nodes.said(f"{bare} {OURS['mpirun']} -np 2 -H node1:1,node2:1 {OURS['python']} x.py")
    assert sorted(ranks) == ["rank 0 node1 1 7 1", "rank 1 node2 0 7 1"]
    assert nodes.said(f"{bare} {OURS['mpicc']} -o bare hello.c && {bare} ./bare") == ["hello 0 of 1"]


def test_ranks_inherit_an_activated_environment_and_an_own_path_of_run(nodes: Nodes) -> None:
    own = f"{HOME}/own/bin"
    for node in PAIR:
        nodes.root(f"mkdir -p {own} && printf '#!/bin/sh\\necho own $(hostname)\\n' > {own}/python", node)
        nodes.root(f"chmod 755 {own}/python", node)
    line = f"export PATH={own}:$PATH; mpirun -np 2 -H node1:1,node2:1 python"
    assert sorted(nodes.said(line)) == ["own node1", "own node2"]
    given = ["-np", "2", "--map-by", "node", "--limit", "node1,node2", "-x", f"PATH={own}:/usr/bin:/bin"]
    argv = [*CLUSTERCTL, "run", *given, str(nodes.cluster.box.inventory), "--", "sh", "-c", "python"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert sorted(done.stdout.splitlines()) == ["own node1", "own node2"], done.stderr


@pytest.fixture
def booted(nodes: Nodes) -> Iterator[str]:
    """A machine that systemd runs, as the first node is; the sandbox's own nodes have none."""
    engine, name = nodes.cluster.engine, f"{nodes.cluster.box.name}-systemd"
    nodes.root("rm -rf /tmp/* && systemctl disable ssh")
    engine.text("commit", "--quiet", nodes.cluster.box.node("node1").container, f"localhost/{name}")
    boot = ("--detach", "--name", name, "--systemd=always", "--network=none", f"localhost/{name}", "/sbin/init")
    try:
        engine.text("run", *boot)
        yield name
    finally:
        engine.text("rm", "--force", "--ignore", "--time", "0", name)
        engine.text("rmi", "--force", f"localhost/{name}")


def test_units_of_systemd_find_the_programs(nodes: Nodes, booted: str) -> None:
    look = 'for name in mpirun python3; do command -v $name; done; echo "$LD_LIBRARY_PATH"'
    script = f"""
while ! systemctl is-system-running 2>/dev/null | grep -qE 'running|degraded'; do sleep 0.2; done
systemd-run --quiet --wait --pipe -p User={USER} -p EnvironmentFile=/etc/clusterctl/environment sh -c '{look}'
loginctl enable-linger {USER}
uid=$(id -u {USER})
while ! test -e /run/user/$uid/systemd/private; do sleep 0.2; done
runuser -u {USER} -- env XDG_RUNTIME_DIR=/run/user/$uid systemd-run --user --quiet --wait --pipe sh -c '{look}'
"""
    found = nodes.cluster.engine.text("exec", booted, "timeout", "60", "sh", "-c", script).splitlines()
    assert found == 2 * [OURS["mpirun"], OURS["python3"], LIBRARY_PATH]


CONDA = """# >>> conda initialize >>>
__conda_setup="$('/opt/conda/bin/conda' 'shell.bash' 'hook' 2> /dev/null)"
if [ $? -eq 0 ]; then
    eval "$__conda_setup"
fi
unset __conda_setup
# <<< conda initialize <<<
"""
FAKE_CONDA = r"""
mkdir -p /opt/conda/bin && cd /opt/conda/bin
printf '%s\n' '#!/bin/sh' 'echo export PATH=/opt/conda/bin:\$PATH' > conda
ln -sf /usr/bin/python3 python3 && chmod 755 conda
"""
SYSTEM_PATH = "PATH=/usr/local/bin:/usr/bin:/bin"
BOTH = {"mpirun", "python3"}


@pytest.mark.parametrize(
    ("file", "text", "place", "programs"),
    [
        ("/etc/profile", f"\n{SYSTEM_PATH}\n", r"/etc/profile line \d+", BOTH),
        ("/etc/profile.d/zzz-site.sh", f"# the site's\n{SYSTEM_PATH}\n", "/etc/profile.d/zzz-site.sh line 2", BOTH),
        (f"{HOME}/.bash_profile", f"{SYSTEM_PATH}\n", f"{HOME}/.bash_profile line 1", BOTH),
        (f"{HOME}/.bashrc", CONDA, rf"{HOME}/.bashrc line \d+", {"python3"}),
        ("/etc/clusterctl/activate", None, "/etc/clusterctl/activate", set()),
    ],
    ids=["profile", "profile.d", "bash_profile", "conda", "unreadable"],
)  # fmt: skip
def test_doctor_names_the_line_that_takes_the_programs_away(
    nodes: Nodes, file: str, text: str | None, place: str, programs: set[str]
) -> None:
    nodes.root(FAKE_CONDA)
    nodes.root(f"cp -a {file} /root/before 2>/dev/null; test -e {file} || touch /root/new")
    try:
        nodes.root(f"chmod 600 {file}" if text is None else f"printf %s {shlex.quote(text)} >> {file}")
        nodes.root(f"chown --reference={HOME} {file}" if file.startswith(HOME) else "true")
        done, _seconds = nodes.cluster.run("doctor", "--format", "json")
        assert nodes.said("true") == [], "a login goes on"
    finally:
        nodes.root(f"if test -e /root/new; then rm {file} /root/new; else cp -a /root/before {file}; fi")
    found = json.loads(done.stdout)
    words = [one["cause"] for one in found["findings"] if one["check"] == "session"]
    words += [note for note in found["notes"] if "python3" in note]
    assert len(words) == 1, found
    assert re.search(place, words[0]), words
    assert all(name in words[0] for name in programs)
    assert "node1" in str(found["findings"]) + str(found["notes"])


def test_a_home_that_becomes_another_shell_keeps_the_programs(nodes: Nodes) -> None:
    nodes.root(f"touch {HOME}/.zshrc; cp -a {HOME}/.bashrc /root/bashrc; echo exec zsh >> {HOME}/.bashrc")
    try:
        which, shell = nodes.typed(f"which {' '.join(OURS)}", "echo $ZSH_NAME")
        done, _seconds = nodes.cluster.run("doctor", "--format", "json")
    finally:
        nodes.root(f"cp -a /root/bashrc {HOME}/.bashrc")
    assert (which[-len(OURS) :], shell[-1:]) == (list(OURS.values()), ["zsh"])
    assert [one for one in json.loads(done.stdout)["findings"] if one["check"] == "session"] == []


def test_the_other_series_does_the_same(nodes: Nodes) -> None:
    done, _seconds = nodes.cluster.run("provision", "--yes", "--no-validate", "-e", "openmpi_version=4.1.4")
    assert done.returncode == 0, done.stderr
    test_a_person_at_the_prompt_types_what_a_tutorial_says(nodes)
    test_programs_need_no_environment_and_mpicc_makes_such_programs(nodes)
    test_ranks_inherit_an_activated_environment_and_an_own_path_of_run(nodes)
