"""Bring a sandbox up, look at it, take it down; what podman says is true, the state file only remembers."""

from __future__ import annotations

import json
import math
import shutil
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from clusterctl.sandbox import apt, container_engine, images, slurm
from clusterctl.sandbox.container_engine import File, pack
from clusterctl.sandbox.model import (
    IMAGES,
    INVENTORY_MARK,
    LABEL,
    LOGIN_USER,
    RpmVendor,
    Sandbox,
    SandboxNode,
    SandboxSpec,
    check_name,
    check_plain_path,
    hosts_text,
    inventory_text,
    known_hosts_text,
    neighbour_advice,
    network_name,
    plan_nodes,
    why_not,
    without_credentials,
)
from clusterctl.state import clusters, files, locks, paths
from clusterctl.support import held_path
from clusterctl.support.errors import ConfigError, HostFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clusterctl.sandbox.container_engine import Podman, Report
    from clusterctl.sandbox.model import Image, State, Subnet

Result = TypeVar("Result")

_PIP_CONF = Path("/etc/pip.conf")
_LOGIN_UID = 1000
_SSH_PORT = 22
_BANNER = b"SSH-2.0-OpenSSH"
_BANNER_TIMEOUT_S = 30
_CONNECT_TIMEOUT_S = 2
_POLL_S = 0.05
_WORKERS = 8  # podman takes its own locks; more at once only wait there
_WAKE = {"exited": "start", "stopped": "start", "paused": "unpause"}
_MACHINE_LIKE = (
    "--shm-size=1g",  # Open MPI and NCCL keep their shared memory in /dev/shm
    "--security-opt=seccomp=unconfined",  # a real kernel lets ranks read each other's memory and bind their own
    "--cap-add=AUDIT_WRITE,NET_RAW",  # sudo writes to the audit log; ping
)


def up(spec: SandboxSpec, report: Report = lambda _text: None) -> Sandbox:
    """Make the sandbox be as specified: create, start or add what is missing.

    Raises:
        ConfigError: this machine cannot carry a sandbox, or one of that name is made differently.
        HostFailedError: a node did not come up.
    """
    folder = _folder(spec.name)
    check_plain_path(folder)
    engine = container_engine.find()
    with _changing(report):
        recorded = _recorded(spec.name)
        if recorded is None or not recorded.private_key.is_file():
            _refuse_foreign(engine, spec.name)
            _remove(engine, spec.name)  # nodes whose key is lost allow no login
        elif reason := why_not(recorded, spec):
            raise ConfigError(
                f"Sandbox '{spec.name}' {reason}; take it down first with 'clusterctl sandbox down --name {spec.name}'."
            )
        inventory = _inventory_path(spec, recorded)
        references = {image: images.ensure(engine, image, report) for image in dict.fromkeys(spec.images)}
        extras = tuple(dict.fromkeys((*(recorded.extras if recorded is not None else ()), *spec.extras)))
        if not engine.succeeds("network", "exists", network_name(spec.name)):
            _remove(engine, spec.name)  # containers of a vanished network have addresses without a network
        sandbox = _describe(spec, container_engine.ensure(engine, spec, _folder(spec.name)), inventory, extras)
        _remember(sandbox)
        _ensure_key(sandbox)
        _ensure_nodes(engine, sandbox, references, report)
        report("waiting for sshd")
        host_keys = _each(lambda node: _host_key(engine, node), sandbox.nodes)
        addresses = (node.address for node in sandbox.nodes)
        _write(sandbox.known_hosts, known_hosts_text(dict(zip(addresses, host_keys, strict=True))))
        _write(sandbox.inventory, inventory_text(sandbox))
        if "slurm" in sandbox.extras:
            slurm.start(engine, sandbox, _each, report)
    return _with_states(sandbox, ["running"] * spec.nodes)


def advice(found: Sandbox) -> str:
    """Return what to set on this machine for so many nodes; '' where nothing is missing, or its kernel is another."""
    path = Path(f"/proc/sys/net/ipv{6 if found.is_ipv6 else 4}/neigh/default/gc_thresh3")
    try:
        limit = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return ""
    return neighbour_advice(len(found.nodes), limit, ipv6=found.is_ipv6)


def load(name: str) -> Sandbox:
    """Return the sandbox as it was written down, without asking podman.

    Raises:
        ConfigError: there is none of that name.
    """
    check_name(name)
    recorded = _recorded(name)
    if recorded is None:
        raise ConfigError(f"There is no sandbox '{name}'; 'clusterctl sandbox up --name {name}' starts it.")
    return recorded


def status(name: str) -> Sandbox:
    """Return the sandbox with the present state of every node.

    Raises:
        ConfigError: there is none of that name, or no podman to ask.
    """
    recorded = load(name)
    found = _containers(container_engine.find(), name)

    def state(node: SandboxNode) -> State:
        if node.container not in found:
            return "missing"
        if found[node.container] != "running":
            return "stopped"
        return "running" if _greets(node.address) else "silent"

    return _with_states(recorded, _each(state, recorded.nodes))


def _with_states(sandbox: Sandbox, states: Sequence[State]) -> Sandbox:
    nodes = tuple(node.model_copy(update={"state": now}) for node, now in zip(sandbox.nodes, states, strict=True))
    return sandbox.model_copy(update={"nodes": nodes})


def down(name: str, report: Report = lambda _text: None) -> bool:
    """Remove everything of a sandbox: containers, network, key, known_hosts, inventory, and what is kept of its runs.

    Returns:
        Whether there was anything.

    Raises:
        ConfigError: no podman to do it with; or the sandbox is gone, and what is kept of its runs cannot be removed.
        HostFailedError: podman, or the file system, could not remove something.
    """
    check_name(name)
    engine = container_engine.find()
    with _changing(report):
        recorded = _recorded(name)
        removed = _remove(engine, name)
        folder = _folder(name)
        try:
            if recorded is not None and recorded.known_hosts.is_file():
                clusters.forget(recorded.known_hosts.read_text(encoding="utf-8"))
        finally:  # the sandbox goes also where what is kept of its runs has to stay
            if recorded is not None:
                recorded.inventory.unlink(missing_ok=True)
            if folder.exists():
                shutil.rmtree(folder)
                removed = True
    return removed


def _folder(name: str) -> Path:
    return paths.sandbox_dir(name)


@contextmanager
def _changing(report: Report) -> Iterator[None]:
    """Let one command at a time change sandboxes, and make a sentence of what the file system refuses meanwhile."""
    try:
        paths.ensure_private(paths.sandboxes_dir())
        with locks.held(
            paths.sandboxes_lock(),
            "clusterctl sandbox",
            patience_s=math.inf,
            waiting=lambda holder: report(f"waiting for {holder}"),
        ):
            yield
    except OSError as error:
        raise container_engine.failure(
            f"writing to {paths.state_dir().value} or {paths.cache_dir().value}", str(error)
        ) from error


def _recorded(name: str) -> Sandbox | None:
    path = paths.sandbox_record(_folder(name))
    try:
        return Sandbox.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        raise ConfigError(
            f"{path} was written by another version of clusterctl; remove that folder and run 'clusterctl sandbox down "
            f"--name {name}'."
        ) from None


def _remember(sandbox: Sandbox) -> None:
    paths.ensure_private(_folder(sandbox.name))
    text = sandbox.model_dump_json(indent=2, exclude={"nodes": {"__all__": {"state"}}})
    _write(paths.sandbox_record(_folder(sandbox.name)), text + "\n")


def _inventory_path(spec: SandboxSpec, recorded: Sandbox | None) -> Path:
    """Return where the inventory goes; a file that somebody else wrote is never written over.

    A sandbox keeps its inventory: another checkout of a project may have started it, and still use it.
    """
    kept = recorded.inventory if recorded is not None and recorded.inventory.is_file() else None
    if spec.inventory is None:
        return kept or _folder(spec.name) / "inventory.ini"
    path = spec.inventory.absolute()
    if kept is not None and not (path.exists() and path.samefile(kept)):
        raise ConfigError(
            f"Sandbox '{spec.name}' is in use with the inventory {kept}; use that one without --inventory, choose "
            f"another --name, or take it down first with 'clusterctl sandbox down --name {spec.name}'."
        )
    if path.exists() and not (path.is_file() and path.read_bytes().startswith(INVENTORY_MARK.encode())):
        raise ConfigError(f"{path} exists already and is no sandbox's inventory; give --inventory another name.")
    return path


def _describe(spec: SandboxSpec, subnet: Subnet, inventory: Path, extras: tuple[str, ...]) -> Sandbox:
    folder = _folder(spec.name)
    return Sandbox(
        name=spec.name,
        network=network_name(spec.name),
        subnet=str(subnet),
        images=spec.images,
        nodes=plan_nodes(spec, subnet),
        inventory=inventory,
        private_key=folder / "id_ed25519",
        known_hosts=folder / "known_hosts",
        extras=extras,
    )


def _write(path: Path, text: str) -> None:
    """Replace a file in one step, readable for its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with held_path.to_file(path) as held:
        files.write_atomically(held, text)


def _containers(engine: Podman, name: str) -> dict[str, str]:
    """Return podman's word for the state of each container of the sandbox."""
    listed = engine.text("ps", "--all", "--filter", f"label={LABEL}={name}", "--format", "json")
    return {container["Names"][0]: container["State"] for container in json.loads(listed)}


def _remove(engine: Podman, name: str) -> bool:
    """Remove containers and network of a sandbox; tell whether there were any."""
    containers = _containers(engine, name)
    if containers:
        engine.run("rm", "--force", "--time", "0", *containers)
    has_network = engine.succeeds("network", "exists", network_name(name))
    if has_network:
        engine.run("network", "rm", network_name(name))
    return bool(containers) or has_network


def _refuse_foreign(engine: Podman, name: str) -> None:
    """Refuse to touch a sandbox that another user, or another state folder, has started under the same name."""
    if not engine.succeeds("network", "exists", network_name(name)):
        return
    network = json.loads(engine.text("network", "inspect", network_name(name)))[0]
    owner = (network.get("labels") or {}).get(LABEL, "elsewhere")
    if owner != str(_folder(name)):
        raise ConfigError(
            f"A sandbox '{name}' was started from {owner}; choose another --name, or remove that one with 'clusterctl "
            f"sandbox down --name {name}'."
        )


def _ensure_key(sandbox: Sandbox) -> None:
    if sandbox.private_key.is_file():
        return
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", sandbox.network, "-f", str(sandbox.private_key)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise container_engine.failure("ssh-keygen", done.stderr)


def _ensure_nodes(engine: Podman, sandbox: Sandbox, references: dict[str, str], report: Report) -> None:
    """Start every node that is not running; what is missing or was never started is made from scratch."""
    found = _containers(engine, sandbox.name)
    todo = [node for node in sandbox.nodes if found.get(node.container) != "running"]
    if not todo:
        return
    fresh = {node.image for node in todo if found.get(node.container) not in _WAKE}
    folder = paths.sandbox_dir(sandbox.name)
    outfits = {image: outfit_of(engine, sandbox, image, references[image], report) for image in fresh}

    def bring(node: SandboxNode) -> None:
        state = found.get(node.container)
        if state in _WAKE:
            engine.run(_WAKE[state], node.container, folder=folder)
            return
        if state is not None:
            engine.run("rm", "--force", "--time", "0", node.container)
        engine.run(
            "create", *IMAGES[node.image].platform, "--pull", "never", "--init", "--no-hosts",
            "--name", node.container, "--hostname", node.name,
            "--network", sandbox.network, "--ip6" if sandbox.is_ipv6 else "--ip", node.address,
            "--mac-address", node.hardware_address, "--label", f"{LABEL}={sandbox.name}",
            *_MACHINE_LIKE, references[node.image],
        )  # fmt: skip
        own = pack({"etc/hosts": File(hosts_text(node).encode())}, outfits[node.image])
        engine.unpack(own, node.container)
        engine.run("start", node.container, folder=folder)

    report(f"starting {len(todo)} node{'s' if len(todo) > 1 else ''}")
    _each(bring, todo)
    container_engine.pin_bridge(engine, sandbox.name)


def outfit_of(engine: Podman, sandbox: Sandbox, image: str, reference: str, report: Report) -> bytes:
    """Return a tar of what ties a node to this machine: the login key, certificates, pip's settings, its mirrors."""
    public_key = sandbox.private_key.with_suffix(".pub").read_bytes()
    home = f"home/{LOGIN_USER}/.ssh"
    files = {
        home: File(None, mode=0o700, owner=_LOGIN_UID),
        f"{home}/authorized_keys": File(public_key, mode=0o600, owner=_LOGIN_UID),
    }
    if _PIP_CONF.is_file():
        text = _PIP_CONF.read_text(encoding="utf-8", errors="surrogateescape")
        files["etc/pip.conf"] = File(without_credentials(text).encode("utf-8", "surrogateescape"))
    made_of = IMAGES[image]
    files |= _mirrors_of(made_of)
    return pack(files, images.trust(engine, reference, made_of, report))


def _mirrors_of(image: Image) -> dict[str, File]:
    """Return the files that give a node this machine's mirrors; a pulled image names others in files of its own."""
    vendor = image.vendor
    if isinstance(vendor, RpmVendor):
        found = apt.machine_repositories(vendor)
        if not found:
            return {}
        keys = {key for repository in found for key in repository.key_files() if key.is_file()}
        return {
            **{f"{vendor.folder}/{name}": File(b"") for name in vendor.own_files},
            **{str(key).lstrip("/"): File(key.read_bytes()) for key in keys},
            f"{vendor.folder}/sandbox.repo": File(without_credentials(apt.text_of(found, for_nodes=True)).encode()),
        }
    mirror = apt.machine_mirror(vendor)
    if mirror is None:
        return {}
    lines = "\n".join(mirror.lines(image))
    return {
        "etc/apt/sources.list": File(f"{without_credentials(lines)}\n".encode()),
        f"etc/apt/sources.list.d/{vendor.name.lower()}.sources": File(b""),
    }


def _host_key(engine: Podman, node: SandboxNode) -> str:
    """Wait for the node's sshd and return its public host key, read through podman and never over the network."""
    deadline = time.monotonic() + _BANNER_TIMEOUT_S
    while not _greets(node.address):
        if time.monotonic() > deadline:
            said = engine.text("logs", "--tail", "1", node.container)
            raise HostFailedError(
                f"{node.container} has no sshd answering on {node.address} after {_BANNER_TIMEOUT_S} s"
                f"{f'; it said: {said}' if said else ''}. Remove it with 'podman rm -f {node.container}' and bring the "
                "sandbox up again."
            )
        time.sleep(_POLL_S)
    return engine.text("exec", node.container, "cat", "/etc/ssh/ssh_host_ed25519_key.pub")


def _greets(address: str) -> bool:
    """Tell whether an OpenSSH server answers at the address now."""
    try:
        with socket.create_connection((address, _SSH_PORT), timeout=_CONNECT_TIMEOUT_S) as connection:
            return connection.recv(len(_BANNER), socket.MSG_WAITALL) == _BANNER
    except OSError:
        return False


def _each(act: Callable[[SandboxNode], Result], nodes: Sequence[SandboxNode]) -> list[Result]:
    """Do something to every node, a few at a time, and return the results in order; the first failure ends it."""
    with ThreadPoolExecutor(max_workers=_WORKERS) as pool:
        futures = [pool.submit(act, node) for node in nodes]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
