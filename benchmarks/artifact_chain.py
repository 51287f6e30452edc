"""A large file to many nodes over slow links: the chain of clusterctl beside other ways, and the ideal.

python benchmarks/artifact_chain.py [--nodes 16] [--megabytes 300] [--rate 50] [--repeat 3] [--only chain,star]

Starts a sandbox of its own. Every node sends and receives at most so many Mbit/s, and so does this machine towards all
of them together (tc tbf). The ideal is one copy over one such link, computed. Each way ends when all nodes have the
file, whose sha256 is compared.

chain: the module artifact_spread, as provision uses it, with sftp to the first node meanwhile
star:  scp from this machine to all nodes at once, what provision does without a chain
tree:  scp, where each node that has the file sends it to one that lacks it, until all have it
clush: clush --copy with a tree of gateways (ClusterShell), four of them
mpi:   sftp to the first node, whose rank meanwhile broadcasts the pieces to one rank on each node (MPI_Bcast, mpi4py)
sbcast: sftp to the first node, then Slurm's sbcast in an allocation of all nodes

mpi has the nodes provisioned with MPI alone, and sbcast has Slurm installed on them. A way that cannot run is left out
with one sentence.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import json
import os
import re
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import ClusterShell
from clusterctl import sandbox
from clusterctl.sandbox import container_engine
from clusterctl.sandbox.model import LOGIN_USER, ssh_options
from clusterctl.support import content
from clusterctl.support.errors import ClusterctlError, HostFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl.sandbox import Sandbox

TARGET = 2.0
GATEWAYS = 4
FOLDER = "/var/tmp"  # noqa: S108 - of the sandbox's nodes, and here, where /tmp may be memory
HERE = f"{FOLDER}/payload"
PIECE = 1 << 19
MPI_PIECE = 1 << 22
SPREAD = Path(__file__).with_name("mpi_spread.py")
SPREAD_THERE = f"{FOLDER}/mpi_spread.py"
OPENMPI, PYTHON = "/usr/local/openmpi/bin/mpirun", "/usr/local/python_env/bin/python"
WITHOUT_STACK = {"python_env_framework": "none", "nccl_install": "never", "horovod_install": "never"}


class Lab:
    """The nodes, the file and the shaped links."""

    def __init__(self, box: Sandbox, folder: Path, megabytes: int) -> None:
        self.box, self.folder, self.engine = box, folder, container_engine.find()
        self.names = [node.name for node in box.nodes]
        self.file = folder / "payload"
        with self.file.open("wb") as out:
            for _ in range(megabytes):
                out.write(os.urandom(1_000_000))
        self.size = megabytes * 1_000_000
        self.digest = hashlib.sha256(self.file.read_bytes()).hexdigest()
        self.environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(content.root() / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(content.collections_path()),
            "ANSIBLE_STDOUT_CALLBACK": "minimal",
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
        }

    def ansible(self, program: str, *words: str) -> str:
        argv = [str(Path(sys.executable).with_name(program)), "-i", str(self.box.inventory), *words]
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{program} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def mesh(self) -> None:
        book = self.folder / "mesh.json"
        roles = [
            {"ansible.builtin.import_role": {"name": f"clusterctl.hpc.{role}"}}
            for role in ("preflight", "hosts", "ssh_mesh")
        ]
        book.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": roles}]))
        self.ansible("ansible-playbook", str(book))

    def on(self, name: str, *argv: str) -> str:
        done = subprocess.run(
            sandbox.ssh_command(self.box, self.box.node(name), list(argv)),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            sys.exit(f"{name}: {shlex.join(argv)}: {done.stderr}")
        return done.stdout.strip()

    def everywhere(self, *argv: str) -> list[str]:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda name: self.on(name, *argv), self.names))

    def put(self, name: str, path: str = HERE) -> None:
        """Copy the file to a node by sftp, as Ansible does."""
        target = f"{LOGIN_USER}@{self.box.node(name).address}"
        argv = ["sftp", "-q", "-b", "-", "-i", str(self.box.private_key), *ssh_options(self.box), target]
        subprocess.run(argv, input=f"put {self.file} {path}\n".encode(), check=True, stdout=subprocess.DEVNULL)

    @contextlib.contextmanager
    def shaped(self, rate: str) -> Iterator[None]:
        """Limit what each node sends and takes, and what this machine sends to all of them."""
        rule = ["root", "tbf", "rate", rate, "burst", "128kb", "latency", "50ms"]
        links = {line.split(":")[0]: line.split()[1].partition("@")[0] for line in run("ip", "-o", "link").splitlines()}
        ends = []
        for node in self.box.nodes:
            pid = self.engine.text("inspect", "--format", "{{.State.Pid}}", node.container)
            inside = [*self.engine.prefix, "nsenter", "--target", pid, "--net"]
            ends.append((inside, "eth0"))
            index = re.search(r"eth0@if(\d+)", run(*inside, "ip", "-o", "link"))
            ends.append((list(self.engine.prefix), links[index.group(1) if index else ""]))
        route = run("ip", "-o", "route", "get", self.box.nodes[0].address)
        ends.append((list(self.engine.prefix), route.split(" dev ")[1].split()[0]))
        for prefix, device in ends:
            run(*prefix, "tc", "qdisc", "replace", "dev", device, *rule)
        try:
            yield
        finally:
            for prefix, device in ends:
                subprocess.run([*prefix, "tc", "qdisc", "del", "dev", device, "root"], check=False)


def run(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def chain(lab: Lab) -> None:
    """Do what artifact_install does: one copy to the first node, which passes it on meanwhile."""
    head, *others = lab.names
    sums = bytearray()
    with lab.file.open("rb") as stream:
        while data := stream.read(PIECE):
            sums += hashlib.sha256(data).digest()
    arguments = {
        "user": lab.on(head, "id", "-un"),
        "name": head,
        "paths": [HERE],
        "size": lab.size,
        "piece_bytes": PIECE,
        "sums": base64.b64encode(bytes(sums)).decode(),
        "marker": "/nonexistent/marker",
        "nodes": [{"name": name, "python": "python3", "file": Path(HERE).name, "folders": [FOLDER]} for name in others],
    }
    lab.on(head, "touch", HERE)
    with ThreadPoolExecutor(1) as pool:
        copying = pool.submit(lab.put, head)
        said = lab.ansible("ansible", head, "-m", "clusterctl.hpc.artifact_spread", "-a", json.dumps(arguments))
        copying.result()
    if "{" not in said:
        sys.exit(f"the chain said nothing: {said}")
    found = json.JSONDecoder().raw_decode(said, said.index("{"))[0]
    print(
        f"  {len(found['delivered'])} more nodes in {found['seconds']} s of the module;"
        f" failed {found['reasons']}, slow {found['slow']}"
    )


def star(lab: Lab) -> None:
    with ThreadPoolExecutor(len(lab.names)) as pool:
        list(pool.map(lab.put, lab.names))


def tree(lab: Lab) -> None:
    first, *lacking = lab.names
    lab.put(first)
    having = [first]
    while lacking:
        pairs = list(zip(having, lacking, strict=False))
        with ThreadPoolExecutor(len(pairs)) as pool:
            list(pool.map(lambda pair: lab.on(pair[0], "scp", "-q", "-B", HERE, f"{pair[1]}:{HERE}"), pairs))
        having += [taker for _giver, taker in pairs]
        lacking = lacking[len(pairs) :]


def clush(lab: Lab) -> None:
    """Copy with ClusterShell's tree mode; its own gateway program has to be on the gateways."""
    gateways, leaves = lab.names[:GATEWAYS], lab.names[GATEWAYS:]
    topology = lab.folder / "topology.conf"
    passing, last = ",".join(gateways), ",".join(leaves)
    topology.write_text(f"[routes]\n{socket.gethostname()}: {passing}\n{passing}: {last}\n")
    # clush hands its options of ssh on to the gateways, so one path leads to the settings of each machine
    config = Path(f"{FOLDER}/clush-{os.getpid()}.conf")
    settings = [option.replace("=", " ", 1) for option in ssh_options(lab.box) if option != "-o"]
    lines = [f"IdentityFile {lab.box.private_key}", *settings]
    for name in lab.names:
        address = lab.box.node(name).address
        lines += [f"Host {name}", f"  HostName {address}", f"  HostKeyAlias {address}"]
    for name in gateways:
        lab.on(name, "sh", "-c", 'echo "Include /etc/ssh/ssh_config" >"$1"', "sh", str(config))
    environment = {**os.environ, "CLUSTERSHELL_GW_PYTHON_EXECUTABLE": "python3"}
    argv = [str(Path(sys.executable).with_name("clush")), "--topology", str(topology), "-q", "-l", LOGIN_USER]
    argv += ["-O", f"ssh_options=-F {config}"]
    argv += ["-w", ",".join(lab.names), "--copy", str(lab.file), "--dest", HERE]
    try:
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        subprocess.run(argv, env=environment, check=True, timeout=3600)
    finally:
        config.unlink(missing_ok=True)


def give_clustershell(lab: Lab) -> None:
    package = Path(ClusterShell.__file__).parent
    packed = lab.folder / "clustershell.tar"
    subprocess.run(
        ["tar", "-C", str(package.parent), "--exclude", "__pycache__", "-cf", str(packed), package.name], check=True
    )
    for name in lab.names[:GATEWAYS]:
        container = lab.box.node(name).container
        lab.engine.run("cp", str(packed), f"{container}:/root/clustershell.tar")
        lab.engine.run(
            "exec",
            container,
            "tar",
            "-C",
            "/usr/lib/python3/dist-packages",
            "--no-same-owner",
            "-xf",
            "/root/clustershell.tar",
        )


def mpi(lab: Lab) -> None:
    """Broadcast by Open MPI what arrives at the first node meanwhile."""
    first = lab.names[0]
    lab.on(first, "touch", HERE)
    ranks = ["--host", ",".join(f"{name}:1" for name in lab.names), "-np", str(len(lab.names)), "--bind-to", "none"]
    with ThreadPoolExecutor(1) as pool:
        copying = pool.submit(lab.put, first)
        lab.on(first, OPENMPI, *ranks, PYTHON, SPREAD_THERE, HERE, str(lab.size), str(MPI_PIECE))
        copying.result()


def sbcast(lab: Lab) -> None:
    """Let Slurm copy the file from the first node to all nodes of an allocation; it takes whole files alone."""
    first, source = lab.names[0], f"{HERE}.source"
    lab.put(first, source)
    lab.on(first, "salloc", "--quiet", f"--nodes={len(lab.names)}", "sbcast", "--force", source, HERE)
    lab.on(first, "rm", source)


def give_mpi(lab: Lab) -> None:
    """Provision the nodes with MPI alone; without a cached Open MPI it is compiled first."""
    variables = lab.box.inventory.parent / "group_vars" / "all.yml"
    variables.parent.mkdir(exist_ok=True)
    variables.write_text(json.dumps(WITHOUT_STACK), encoding="utf-8")
    program = str(Path(sys.executable).with_name("clusterctl"))
    argv = [program, "provision", "--yes", "--no-validate", str(lab.box.inventory)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise HostFailedError(f"the nodes could not be provisioned with Open MPI: {said[-1] if said else 'no output'}")
    for node in lab.box.nodes:
        lab.engine.run("cp", str(SPREAD), f"{node.container}:{SPREAD_THERE}")


def give_slurm(lab: Lab) -> None:
    sandbox.up(sandbox.SandboxSpec(name=lab.box.name, nodes=len(lab.names), extras=("slurm",)))


WAYS: dict[str, Callable[[Lab], None]] = {
    "chain": chain,
    "star": star,
    "tree": tree,
    "clush": clush,
    "mpi": mpi,
    "sbcast": sbcast,
}


def able(lab: Lab, names: list[str]) -> list[str]:
    """Give the nodes what the ways need, and return those that can run."""
    needs = {"clush": give_clustershell, "mpi": give_mpi, "sbcast": give_slurm}
    can = []
    for name in names:
        try:
            needs.get(name, lambda _lab: None)(lab)
        except ClusterctlError as error:
            print(f"{name} is left out: {error}", flush=True)
        else:
            can.append(name)
    return can


def measure(lab: Lab, names: list[str], repeat: dict[str, int], rate: int) -> None:
    ideal = lab.size * 8 / (rate * 1e6)
    what = f"{lab.size / 1e6:.0f} MB to {len(lab.names)} nodes, {rate} Mbit/s each way"
    print(f"{what}; the ideal is {ideal:.1f} s; load {os.getloadavg()[0]:.1f}", flush=True)
    for name in names:
        seconds = []
        for _ in range(repeat.get(name, 1)):
            lab.everywhere("rm", "-f", HERE)
            with lab.shaped(f"{rate}mbit"):
                began = time.perf_counter()
                WAYS[name](lab)
                seconds.append(time.perf_counter() - began)
            bad = [line for line in lab.everywhere("sha256sum", HERE) if not line.startswith(lab.digest)]
            if bad:
                sys.exit(f"{name}: {len(bad)} nodes have another file")
            print(f"  {name}: {seconds[-1]:.1f} s, load {os.getloadavg()[0]:.1f}", flush=True)
        median = statistics.median(seconds)
        spread = f"{min(seconds):.1f} to {max(seconds):.1f}, {len(seconds)} runs"
        print(f"{name:6} median {median:7.1f} s ({spread}), {median / ideal:.2f} times the ideal", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--rate", type=int, default=50, help="Mbit/s")
    parser.add_argument("--repeat", type=int, default=3, help="of the chain; the others are measured once")
    parser.add_argument("--only", default=",".join(WAYS))
    parser.add_argument("--name", default=f"links-{os.getpid()}", help="of the sandbox")
    options = parser.parse_args()
    wanted = options.only.split(",")
    if unknown := [way for way in wanted if way not in WAYS]:
        parser.error(f"--only {unknown[0]} is not a way; choose from {', '.join(WAYS)}.")
    name = options.name
    try:
        box = sandbox.up(sandbox.SandboxSpec(name=name, nodes=options.nodes))
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            lab = Lab(box, Path(folder), options.megabytes)
            lab.mesh()
            measure(lab, able(lab, wanted), {"chain": options.repeat}, options.rate)
    finally:
        sandbox.down(name)


if __name__ == "__main__":
    main()
