# SPDX-License-Identifier: Apache-2.0
"""Collect the whole record of a node: every section, each with a fallback."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import time
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from . import (
    artifacts,
    existing_openmpi,
    existing_python,
    gpu,
    libraries,
    login,
    machine,
    network,
    parameters,
    path_state,
    processes,
    ssh,
    users,
)
from .reading import Json, read_text
from .users import SHOWN_VARIABLES

if TYPE_CHECKING:
    import pwd

# --- frozen ----------------------------------------------------------------------------------------------------------

_WAIT_S = 8.0  # a server that an automounter asks first takes some seconds
_WAIT_SOON_S = 2.0  # after a login shell has looked there
_ANSWERS_ITSELF = frozenset(
    (
        *("bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "iso9660", "jfs", "overlay"),
        *("ramfs", "reiserfs", "rootfs", "squashfs", "tmpfs", "vfat", "xfs", "zfs"),
    )
)
_OF_THE_KERNEL = ("/proc", "/sys", "/dev", "/run")
_MOST_ASKED = 256
_LISTS = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")  # of folders
_FOLDERS = ("TMPDIR", "TEMP", "TMP", "UCX_CONFIG_DIR")
_FILES = ("NCCL_CONF_FILE", "SLURM_CONF")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def frozen_paths(paths: list[str], wait_s: float = _WAIT_S) -> set[str]:
    """Return those of the paths that are on a file system which gives no answer within some seconds.

    On a node whose file systems are all local, nothing is asked. Elsewhere each path is asked, because a link or an
    automounter can lead to any server.

    Args:
        paths: absolute paths; one that is missing has an answer.
        wait_s: how long all of them together may take.
    """
    if not has_server(read_text("/proc/self/mountinfo", "")):
        return set()
    asked = [path for path in dict.fromkeys(paths) if path.startswith("/")]
    return _silent(asked[:_MOST_ASKED], wait_s)


def session_folders(variables: dict[str, str]) -> list[str]:
    """Return the absolute folders that variables of a session have the probe look into, each once."""
    found = [folder for name in _LISTS for folder in re.split("[:;]", variables.get(name, ""))]
    found += [variables.get(name, "") for name in _FOLDERS]
    found += [os.path.dirname(variables.get(name, "")) for name in _FILES]
    return list(dict.fromkeys(_plain(folder) for folder in found if folder.startswith("/")))


def without(variables: dict[str, str], silent: set[str] | frozenset[str]) -> dict[str, str]:
    """Return variables of a session without what leads to one of the ``silent`` folders."""
    kept = dict(variables)
    for name in _LISTS:
        words = re.split("([:;])", kept.get(name, ""))  # a folder, what separates it from the next, and so on
        if not silent.isdisjoint(map(_plain, words)):
            pairs = zip(words[::2], [*words[1::2], ""])  # noqa: B905 - strict= came with Python 3.10
            left = [folder + sign for folder, sign in pairs if _plain(folder) not in silent]
            kept[name] = "".join(left)
    for name in (*_FOLDERS, *_FILES):
        value = kept.get(name, "")
        if _plain(os.path.dirname(value) if name in _FILES else value) in silent:
            del kept[name]
    return kept


def _plain(folder: str) -> str:
    return folder.rstrip("/") or folder[:1]


def has_server(mountinfo: str) -> bool:
    """Tell whether a file system is mounted that waits for a server, by the text of /proc/self/mountinfo."""
    for line in mountinfo.split("\n"):
        words, _unused, rest = line.partition(" - ")
        place = _ESCAPED.sub(lambda found: chr(int(found.group(1), 8)), " ".join(words.split()[4:5]))
        kind = rest.partition(" ")[0]
        if (
            kind
            and kind not in _ANSWERS_ITSELF
            and not f"{place}/".startswith(tuple(f"{at}/" for at in _OF_THE_KERNEL))
        ):
            return True
    return False


def _silent(paths: list[str], wait_s: float) -> set[str]:
    """Return the paths of which a process that looks at them is not back in time.

    A process may not end before its file system answers. So it holds nothing that this program's caller waits for.
    """
    waiting = {}
    for path in paths:
        source, sink = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                _look(path, sink)
            finally:
                os._exit(0)
        os.close(sink)
        waiting[source] = (path, child)
    end = time.monotonic() + wait_s
    while waiting:
        ready = select.select(list(waiting), [], [], max(0.0, end - time.monotonic()))[0]
        if not ready:
            break
        for source in ready:
            os.close(source)
            os.waitpid(waiting.pop(source)[1], 0)
    for source, (_path, child) in waiting.items():
        os.close(source)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, os.WNOHANG)
    return {path for path, _child in waiting.values()}


def _look(path: str, sink: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.closerange(3, sink)
    os.closerange(sink + 1, sink + _MOST_ASKED)
    # A refusal is an answer. To look at the path itself has no automounter mount it, where its folder is there already
    # (AT_NO_AUTOMOUNT in stat(2)); to look into it has.
    os.path.exists(os.path.join(path, "."))


# --- record ----------------------------------------------------------------------------------------------------------
# A section that fails leaves an empty value of the right shape and a sentence in ``problems``, so that the other
# sections still reach the reader.

SCHEMA_VERSION = 1
_EXISTING = {"existing_python": existing_python, "existing_openmpi": existing_openmpi}  # software of the user
READS = "clusterctl reads "
_STDERR = 2


def sections(request: Json, session: users.Session, silent: frozenset[str] | set[str] = frozenset()) -> list[tuple]:
    """Return the sections in their order: name, the function that answers, and what replaces a failed answer.

    Nothing below the ``silent`` folders is looked at, because their file systems do not answer.
    """
    variables = without(session.variables, silent)
    python = {"version": "", "executable": "", "has_packaging": False}
    cuda = {
        "major": None,
        "driver_version": "",
        "toolkit_version": "",
        "libcuda": False,
        "first_branches": gpu.first_branches(),
    }
    memory = {"memory_bytes": 0, "swap_bytes": 0, "swap_used_bytes": 0}
    tools = {
        "gcc": False,
        "make": False,
        "zstd": False,
        "libzstd": False,
        "nvcc": False,
        "ucx": False,
        "gdrcopy": False,
    }
    quota = {"group": "", "cores": None, "throttled_periods": 0, "throttled_s": 0.0}
    uid, home = users.uid_and_home()
    home = "" if home in silent else home
    login_user = users.login_user()
    root = str(request.get("prefix") or artifacts.DEFAULT_PREFIX)
    verifier = artifacts.Verifier(request.get("content"), silent)
    asked, library_path = request.get("libraries") or [], variables.get("LD_LIBRARY_PATH", "")
    return [
        ("session_start", processes.session_start, {"session_start_s": 0.0}),
        ("names", machine.names, {"hostname": "", "fqdn": ""}),
        ("kernel", machine.kernel, {"time": 0.0, "kernel": "", "machine": ""}),
        ("software", machine.software, {"distribution": machine.read_os_release(""), "glibc": "", "python": python}),
        ("cuda", gpu.cuda, {"cuda": cuda}),
        ("hardware", machine.hardware, {"cores": 0, "threads": 0, "threads_online": 0, "boot_id": "", **memory}),
        ("numa", machine.numa, {"numa": []}),
        (
            "prefix",
            lambda: artifacts.prefix(root),
            {"prefix": {"path": root, "problem": "", "read_only": False, "others": [], "trees": None}},
        ),
        ("storage", lambda: machine.storage(root), {"disk": [], "shm_bytes": 0}),
        ("scratch", lambda: machine.scratch(variables, uid), {"scratch": []}),
        ("cpu_quota", machine.cpu_quota, {"cpu_quota": quota}),
        ("interfaces", network.interfaces, {"interfaces": []}),
        ("routes", network.routes, {"routes": []}),
        ("rdma", network.rdma, {"rdma": []}),
        ("driverless_cards", machine.driverless_cards, {"driverless_cards": []}),
        ("fabric", network.fabric, {"fabric": None}),
        ("switch_ports", network.switch_ports, {"switch_ports": []}),
        ("resolved", lambda: network.resolved(request.get("resolve")), {"names": []}),
        ("leftovers", lambda: processes.leftovers(bool(request.get("leftovers"))), {"leftovers": []}),
        ("busy", lambda: processes.busy(bool(request.get("busy")), root), {"busy": []}),
        ("gpus", lambda: gpu.gpus(library_path, nvlink=bool(request.get("nvlink"))), {"gpus": []}),
        ("limits", lambda: users.limits(session), {"limits": {}, "limit_settings": {}}),
        (
            "processes",
            lambda: machine.processes(session.limits().get("nproc", {}).get("soft"), uid),
            {"process_room": None, "memory_kills": 0},
        ),
        ("environment", lambda: users.environment(session), {"environment": {}, "environment_source": ""}),
        (
            "user",
            lambda: users.user(bool(request.get("check_sudo"))),
            {"user": {"name": "", "uid": -1, "home": "", "sudo": None}},
        ),
        (
            "login",
            lambda: login.login(variables, home, login_user, root),
            {"login": {"shell": "", "traps": [], "unsafe": [], "home_refuses": ""}},
        ),
        (
            "sessions",
            lambda: _sessions(request, variables, home, login_user),
            {"sessions": []},
        ),
        ("job_user", lambda: users.job_user(request.get("job_user"), silent), {"job_user": None}),
        (
            "ssh",
            lambda: ssh.ssh_daemon(variables.get("SSH_CONNECTION", "")),
            {"ssh": {"host_keys": [], "port": 0, "settings": {}}},
        ),
        (
            "known_hosts",
            lambda: ssh.known_hosts(ssh.host_keys(), home, login_user),
            {"known_hosts": None},
        ),
        (
            "parameters",
            lambda: parameters.parameters(variables, home, login_user, root),
            {"parameters": [], "parameter_files": []},
        ),
        ("launch", lambda: users.programs(variables.get("PATH", ""), f"{root}/openmpi/bin"), {"launch": []}),
        (
            "slurm",
            lambda: parameters.slurm_pmix(variables, variables.get("PATH", ""), f"{root}/openmpi"),
            {"pmix": {"site": None, "own": "", "built_with": ""}, "slurm": None},
        ),
        ("tools", machine.tools, {"tools": tools}),
        ("artifacts", lambda: artifacts.artifacts(request.get("artifacts"), verifier, root), {"artifacts": []}),
        *((name, partial(_existing, name, request, uid, silent, root), {name: None}) for name in _EXISTING),
        ("vendor_openmpis", lambda: existing_openmpi.of_vendors(silent), {"vendor_openmpis": []}),
        ("libraries", lambda: libraries.libraries(asked, library_path, root), {"libraries": []}),
        ("job_look", lambda: {"job_look": _job_look(request, session, silent)}, {"job_look": None}),
        (
            "watch",
            lambda: {"watch": path_state.watch_states(request.get("watch") or [], verifier, silent)},
            {"watch": []},
        ),
    ]


def _sessions(request: Json, variables: dict[str, str], home: str, user: pwd.struct_passwd | None) -> Json:
    """Return what a login session finds, where that is asked for and jobs run as the login user."""
    if not request.get("sessions") or not user or request.get("job_user") not in {None, "", user.pw_name}:
        return {"sessions": []}
    from . import login_session  # noqa: PLC0415 - most looks compile it for nothing

    return login_session.sessions(variables, home, user, lambda paths: frozen_paths(paths, _WAIT_SOON_S))


def _existing(name: str, request: Json, uid: int, silent: frozenset[str] | set[str], root: str) -> Json:
    path = str(request.get(name) or "").rstrip("/")
    if not existing_python.PLAIN.fullmatch(path):  # the controller refuses it
        return {name: None}
    if name == "existing_python":
        return {name: existing_python.look(path, uid, silent, root, frozen_paths)}
    return {name: existing_openmpi.look(path, uid, silent, root)}


def _job_look(request: Json, session: users.Session, silent: frozenset[str] | set[str]) -> Json | None:
    """Return what a job asks for, by the module ``job_look`` that travels with this package then.

    None where nothing is asked, or where a file system that does not answer is on the way.
    """
    asked = request.get("job_look")
    if not asked or not silent.isdisjoint(_of_job(request, session)):
        return None
    names = [str(name) for name in asked["names"]]
    found = import_module("job_look").look(names, session.variables.get("PATH", ""), str(asked["directory"]))
    return {
        "found": [bool(found["found"][name]) for name in names],
        "runs": [name in found["runs"] for name in names],
        "folder": found["folder"],
        "has_folder": found["is"],
        "memory": found["memory"],
    }


def _of_job(request: Json, session: users.Session) -> list[str]:
    """Return the absolute folders that a job's files are looked for in."""
    asked = request.get("job_look")
    if not asked:
        return []
    start = _plain(os.path.join(users.uid_and_home()[1], str(asked["directory"])))
    named = [os.path.dirname(os.path.join(start, str(name))) for name in asked["names"] if "/" in str(name)]
    listed = session.variables.get("PATH", "").split(":")
    return [_plain(folder) for folder in dict.fromkeys([start, *named, *listed]) if folder.startswith("/")]


def platform_id(facts: Json) -> str:
    """Return the id of the platform: nodes of equal id can run each other's binaries.

    Example: ``debian-12-x86_64-glibc2.36-py3.11``. A node with an NVIDIA driver or a CUDA toolkit has ``-cuda12`` at
    the end; the driver decides if both are there.
    """
    distribution = facts["distribution"]
    release = distribution["version_id"] if distribution["family"] == "Debian" else distribution["major"]
    python = ".".join(facts["python"]["version"].split(".")[:2])
    words = [distribution["id"], release or "0", facts["machine"], f"glibc{facts['glibc'] or '0'}", f"py{python}"]
    if facts["cuda"]["major"]:
        words.append(f"cuda{facts['cuda']['major']}")
    return "-".join(words)


def collect(request: Json) -> Json:
    """Return the whole record of this node.

    Args:
        request: all keys are optional.

            - ``watch``: entries whose present state is wanted, and ``content``: the slices of the artifacts among
              them whose files are read to the last byte.
            - ``prefix``: the folder of the software, by default /usr/local.
            - ``artifacts``: artifacts to verify, each ``{name, link}``, and ``inputs``: names of inputs to report. A
              relative link is below the prefix. None verifies every artifact below the prefix.
            - ``libraries``: libraries to find as the loader does, each ``{soname}``, and ``also``: patterns of further
              files to report, which may be relative to the prefix.
            - ``existing_python``, ``existing_openmpi``: a Python environment and an Open MPI of the user to look at; ''
              looks at none.
            - ``nvlink``: find out which GPUs NVLink joins (may start ``nvidia-smi``).
            - ``resolve``: names to look up besides the node's own; None looks up nothing.
            - ``leftovers``: find ranks whose launcher is gone.
            - ``busy``: find ranks, and processes that use an artifact.
            - ``check_sudo``: find out whether the login user has sudo without a password (starts one process).
            - ``job_user``: name of the account that jobs run as, '' for the login user (starts one process). None asks
              for no account.
            - ``sessions``: find mpirun and python3 in a login session of that account, if this process is the account's
              (starts its login shell).
            - ``job_look``: ``names`` and ``directory`` of the files that a job needs; see ``job_look.py`` of the role
              ``validation``, which has to be beside this package.
            - ``session``: variables of the ssh session, if the caller passed them along before sudo.
            - ``aloud``: say on stderr which section is read, in lines that begin with :data:`READS`.

    Returns:
        A JSON-ready dict of schema :data:`SCHEMA_VERSION`; ``problems`` holds a sentence for each section that failed.
    """
    facts: Json = {"schema_version": SCHEMA_VERSION}
    problems: list[str] = []
    session = users.Session(request.get("session"))
    folders = [os.path.dirname(str(entry["path"])) for entry in request.get("watch") or []]
    folders += session_folders(session.variables)
    folders += _of_job(request, session)
    root = str(request.get("prefix") or artifacts.DEFAULT_PREFIX)
    named = [existing_python.folder_of(str(request.get(name) or "")) for name in _EXISTING]
    folders += filter(None, [*named, *(its.in_use(root) for its in _EXISTING.values())])
    folders += existing_openmpi.parents()
    silent = frozen_paths([*users.homes(request.get("job_user")), *folders])
    silent |= frozen_paths(existing_openmpi.places(silent))
    problems += [f"storage: {path} is on a file system that does not answer" for path in sorted(silent)]
    for name, answer, fallback in sections(request, session, silent):
        if request.get("aloud"):
            os.write(_STDERR, f"{READS}{name}\n".encode())
        try:
            facts.update(answer())
        except Exception as error:  # noqa: BLE001 - one failed section leaves the others alone
            facts.update(fallback)
            problems.append(f"{name}: {type(error).__name__}: {error}")
    facts["platform"] = platform_id(facts)
    if not os.access(os.devnull, os.R_OK | os.W_OK):
        problems.append(f"session: no permission for '{os.devnull}'")
    facts["problems"] = problems
    return facts


def main(arguments: list[str]) -> int:
    """Print the record of this node, and return 0.

    Args:
        arguments: the request as JSON, or else PATH and LD_LIBRARY_PATH of the session that called sudo. Without a
            request among them, the request is on stdin.
    """
    if arguments and arguments[0].startswith("{"):
        request = json.loads(arguments[0])
    else:
        request = json.loads(sys.stdin.buffer.read().decode("utf-8") or "{}")
        if arguments:
            pairs = zip(SHOWN_VARIABLES, arguments)  # noqa: B905 - strict= came with Python 3.10
            request["session"] = {name: value for name, value in pairs if value}
    sys.stdout.write(json.dumps(collect(request), separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
