# SPDX-License-Identifier: Apache-2.0
"""Collect the whole record of a node: every section, each with a fallback.

A section that fails leaves an empty value of the right shape and a sentence in ``problems``, so that the other sections
still reach the reader.
"""

from __future__ import annotations

import os

from . import (
    artifacts,
    cpu_quota,
    frozen,
    gpu,
    known_hosts,
    launch_programs,
    libraries,
    login_session,
    name_lookup,
    network,
    parameters,
    path_state,
    prefix,
    processes,
    rdma,
    scratch_space,
    slurm_pmix,
    ssh_daemon,
    switch_ports,
    system,
    topology,
    user,
)
from .reading import Json

SCHEMA_VERSION = 1
READS = "clusterctl reads "
_STDERR = 2


def sections(
    request: Json, session: login_session.Session, silent: frozenset[str] | set[str] = frozenset()
) -> list[tuple]:
    """Return the sections in their order: name, the function that answers, and what replaces a failed answer.

    Nothing below the ``silent`` folders is looked at, because their file systems do not answer.
    """
    variables = frozen.without(session.variables, silent)
    python = {"version": "", "executable": "", "has_packaging": False}
    cuda = {
        "major": None,
        "driver_version": "",
        "toolkit_version": "",
        "libcuda": False,
        "first_branches": gpu.first_branches(),
    }
    memory = {"memory_bytes": 0, "swap_bytes": 0, "swap_used_bytes": 0}
    tools = {"gcc": False, "make": False, "zstd": False, "libzstd": False, "nvcc": False, "ucx": False}
    quota = {"group": "", "cores": None, "throttled_periods": 0, "throttled_s": 0.0}
    uid, home = user.uid_and_home()
    home = "" if home in silent else home
    login_user = user.login_user()
    root = str(request.get("prefix") or prefix.DEFAULT)
    verifier = artifacts.Verifier(request.get("content"))
    asked, library_path = request.get("libraries") or [], variables.get("LD_LIBRARY_PATH", "")
    return [
        ("names", system.names, {"hostname": "", "fqdn": ""}),
        ("kernel", system.kernel, {"time": 0.0, "kernel": "", "machine": ""}),
        ("software", system.software, {"distribution": system.read_os_release(""), "glibc": "", "python": python}),
        ("cuda", gpu.cuda, {"cuda": cuda}),
        ("hardware", system.hardware, {"cores": 0, "threads": 0, "threads_online": 0, "boot_id": "", **memory}),
        ("numa", topology.numa, {"numa": []}),
        (
            "prefix",
            lambda: prefix.prefix(root),
            {"prefix": {"path": root, "problem": "", "read_only": False, "others": [], "trees": None}},
        ),
        ("storage", lambda: system.storage(root), {"disk": [], "shm_bytes": 0}),
        ("scratch", lambda: scratch_space.scratch(variables, uid), {"scratch": []}),
        ("cpu_quota", cpu_quota.cpu_quota, {"cpu_quota": quota}),
        ("interfaces", network.interfaces, {"interfaces": []}),
        ("routes", network.routes, {"routes": []}),
        ("rdma", rdma.rdma, {"rdma": []}),
        ("fabric", network.fabric, {"fabric": None}),
        ("switch_ports", switch_ports.switch_ports, {"switch_ports": []}),
        ("resolved", lambda: name_lookup.resolved(request.get("resolve")), {"names": []}),
        ("leftovers", lambda: processes.leftovers(bool(request.get("leftovers"))), {"leftovers": []}),
        ("busy", lambda: processes.busy(bool(request.get("busy")), root), {"busy": []}),
        ("gpus", lambda: gpu.gpus(variables.get("LD_LIBRARY_PATH", "")), {"gpus": []}),
        ("limits", lambda: login_session.limits(session), {"limits": {}, "limit_settings": {}}),
        ("environment", lambda: login_session.environment(session), {"environment": {}, "environment_source": ""}),
        (
            "user",
            lambda: user.user(bool(request.get("check_sudo"))),
            {"user": {"name": "", "uid": -1, "home": "", "sudo": None}},
        ),
        ("job_user", lambda: user.job_user(request.get("job_user"), silent), {"job_user": None}),
        (
            "ssh",
            lambda: ssh_daemon.ssh_daemon(variables.get("SSH_CONNECTION", "")),
            {"ssh": {"host_keys": [], "port": 0, "settings": {}}},
        ),
        (
            "known_hosts",
            lambda: known_hosts.known_hosts(ssh_daemon.host_keys(), home, login_user),
            {"known_hosts": None},
        ),
        (
            "parameters",
            lambda: parameters.parameters(variables, home, login_user, root),
            {"parameters": [], "parameter_files": []},
        ),
        ("launch", lambda: launch_programs.programs(variables.get("PATH", ""), f"{root}/openmpi/bin"), {"launch": []}),
        (
            "slurm",
            lambda: slurm_pmix.slurm_pmix(variables, variables.get("PATH", ""), f"{root}/openmpi"),
            {"pmix": {"site": None, "own": "", "built_with": ""}, "slurm": None},
        ),
        ("tools", system.tools, {"tools": tools}),
        ("artifacts", lambda: artifacts.artifacts(request.get("artifacts"), verifier, root), {"artifacts": []}),
        ("libraries", lambda: libraries.libraries(asked, library_path, root), {"libraries": []}),
        (
            "watch",
            lambda: {"watch": path_state.watch_states(request.get("watch") or [], verifier, silent)},
            {"watch": []},
        ),
    ]


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
            - ``resolve``: names to look up besides the node's own; None looks up nothing.
            - ``leftovers``: find ranks whose launcher is gone.
            - ``busy``: find ranks, and processes that use an artifact.
            - ``check_sudo``: find out whether the login user has sudo without a password (starts one process).
            - ``job_user``: name of the account that jobs run as, '' for the login user (starts one process). None asks
              for no account.
            - ``session``: variables of the ssh session, if the caller passed them along before sudo.
            - ``aloud``: say on stderr which section is read, in lines that begin with :data:`READS`.

    Returns:
        A JSON-ready dict of schema :data:`SCHEMA_VERSION`; ``problems`` holds a sentence for each section that failed.
    """
    facts: Json = {"schema_version": SCHEMA_VERSION}
    problems: list[str] = []
    session = login_session.Session(request.get("session"))
    folders = [os.path.dirname(str(entry["path"])) for entry in request.get("watch") or []]
    folders += frozen.folders(session.variables)
    silent = frozen.frozen_paths([*user.homes(request.get("job_user")), *folders])
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
    facts["problems"] = problems
    return facts
