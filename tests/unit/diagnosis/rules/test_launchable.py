"""What hinders a launch on one node, from its facts alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import factory
import pytest
from clusterctl.diagnosis.rules import launchable, registry
from doctor_view import Record, seen

MIB = 1 << 20
TMP = "/tmp"  # noqa: S108 - its name in a record


def scratch(path: str = TMP, **changed: Any) -> list[Record]:
    space = {"exists": True, "free_bytes": 500 * MIB, "total_bytes": 1024 * MIB, "free_inodes": 9999}
    folders: list[Record] = [{"path": TMP, **space}, {"path": launchable.SHM, **space}]
    return [{**folder, **changed} if folder["path"] == path else folder for folder in folders]


def launch(version: str = "5.0.7", **states: str) -> dict[str, Any]:
    own = "/usr/local/openmpi/bin"
    names = ("mpirun", "prterun", "prted", "orted")
    programs = [
        {
            "name": name,
            "path": f"{own}/{name}",
            "real": f"{own}/{name}",
            "own": f"{own}/{name}",
            "own_real": f"{own}/{name}",
            "own_state": states.get(name, "missing" if name == "orted" and version.startswith("5") else "ok"),
        }
        for name in names
    ]
    return {"launch": programs, "artifacts": [factory.artifact("openmpi", version)]}


def told(**changed: Any) -> list[tuple[str, str, str]]:
    node = factory.node(**{"shm_bytes": 1024 * MIB, "scratch": scratch(), **changed})
    return [(one.check, one.severity, one.cause) for one in launchable.of_node("node1", node)]


def test_a_healthy_node_can_launch() -> None:
    assert told() == told(**launch()) == told(**launch("4.1.6", orted="ok", prted="missing", prterun="missing")) == []
    assert told(scratch=scratch(free_inodes=None)) == []


def trap(name: str, what: str, **more: str) -> dict[str, Any]:
    return {"login": {"shell": "/bin/bash", "traps": [{"name": name, "what": what, "source": "environment", **more}]}}


def test_open_mpis_of_others_are_notes() -> None:
    def has(*versions: str, used: str = "") -> Callable[[Record], None]:
        def change(record: Record) -> None:
            record["vendor_openmpis"] = [{"path": f"/opt/openmpi-{one}", "version": one} for one in versions]
            next(one for one in record["artifacts"] if one["name"] == "openmpi")["inputs"]["existing"] = used

        return change

    view = seen(node1=has("4.0.7", "4.1.7"), node2=has("4.1.7"), node3=has("4.1.7", used="/opt/hpcx/ompi"))
    version = view.nodes["node3"].artifact("openmpi").version
    line = "'openmpi_existing: /opt/openmpi-4.1.7' in the inventory has jobs use it."
    assert list(launchable.openmpi_notes(view)) == [
        f"node3: jobs run with Open MPI {version} of /opt/hpcx/ompi, which clusterctl did not make.",
        f"On node[1-2], Open MPI 4.1.7 is in /opt/openmpi-4.1.7; {line}",
    ]


def test_packages_of_an_environment_of_the_user_are_notes() -> None:
    def has(record: Record) -> None:
        its = next(one for one in record["artifacts"] if one["name"] == "mpi4py")
        its["inputs"]["taken_from"] = "/opt/pytorch/lib/python3.11/site-packages/mpi4py"

    (note,) = launchable.openmpi_notes(seen(node1=has))
    assert note.startswith("node1: mpi4py 4.")
    assert note.endswith(
        " is that of /opt/pytorch/lib/python3.11/site-packages/mpi4py, built against the cluster's Open MPI."
    )


@pytest.mark.parametrize(
    ("changed", "severity", "words"),
    [
        ({"login": {"shell": "/usr/bin/fish"}}, "error", "the login shell of user user1 is /usr/bin/fish"),
        (
            {"job_user": {"name": "mpi", "uid": 5, "shell": "/usr/sbin/nologin"}, "login": {"shell": "/bin/bash"}},
            "error",
            "the login shell of user mpi is /usr/sbin/nologin",
        ),
        (trap("PATH", "carriage return"), "error", "PATH (environment) holds a carriage return"),
        (trap("SITE", "carriage return"), "warning", "SITE (environment) holds a carriage return"),
        (
            trap("PATH", "not expanded", said="$PATH:/opt/x", source="/etc/environment line 2"),
            "error",
            "PATH = $PATH:/opt/x (/etc/environment line 2) names another variable",
        ),
        (trap("LD_LIBRARY_PATH", "not expanded", said="/a:$LD_LIBRARY_PATH"), "warning", "nothing expands it there"),
        (
            trap("PYTHONHOME", "breaks", program="/usr/bin/python3", said="No module named 'encodings'"),
            "error",
            "PYTHONHOME (environment) breaks /usr/bin/python3 in each session: No module named 'encodings'",
        ),
        (
            {"login": {"unsafe": ["/home/user1 has mode 0775, so that its group may write to it"]}},
            "warning",
            "for which sshd refuses the keys of user user1",
        ),
        ({"login": {"home_refuses": "not writable"}}, "warning", "the home /home/user1 is not writable"),
        (
            {"problems": ["job_user: PermissionError: [Errno 13] Permission denied: '/dev/null'"]},
            "error",
            "user user1 cannot open /dev/null",
        ),
        ({"login": {"home_refuses": "read-only"}}, "error", "the home /home/user1 is read-only for user user1"),
    ],
)
def test_what_a_login_gives_to_jobs(changed: dict[str, Any], severity: str, words: str) -> None:
    ((check, found, cause),) = told(**changed)
    assert (check, found) == ("home" if "home_refuses" in str(changed) else "session", severity)
    assert words in cause


def test_a_variable_that_breaks_several_programs_is_told_once() -> None:
    """Seen with a library of LD_PRELOAD that is missing: four errors said the same."""
    traps = [
        {"name": "LD_PRELOAD", "what": "breaks", "said": "ignored", "source": "line 8", "program": program}
        for program in ("/bin/sh", "/usr/bin/python3")
    ]
    ((_check, _severity, cause),) = told(login={"traps": traps})
    assert cause == "LD_PRELOAD (line 8) breaks /bin/sh, /usr/bin/python3 in each session: ignored"


def test_too_few_processes_are_an_error() -> None:
    pids = "/sys/fs/cgroup/pids.max"
    assert told(process_room={"left": 500, "by": pids}) == []
    ((check, severity, cause),) = told(process_room={"left": 10, "by": pids})
    assert (check, severity) == ("processes", "error")
    assert cause == f"a session may start 10 more processes and threads ({pids}), and its ranks need 19"


def test_modes_do_not_count_where_sshd_does_not_look_at_them() -> None:
    ssh = {"settings": {"StrictModes": "no"}}
    assert told(login={"unsafe": ["/home/user1 has mode 0775"]}, ssh=ssh) == []


def test_shells_of_two_languages_are_named() -> None:
    shells = {"node1": "/bin/bash", "node2": "/bin/dash", "node3": "/usr/bin/tcsh"}
    nodes = {name: factory.node(name, login={"shell": shell}) for name, shell in shells.items()}
    (found,) = launchable.unlike_shells(nodes)
    assert found.hosts == ("node3",)
    assert "csh (/usr/bin/tcsh), and of sh on most nodes" in found.cause
    assert not list(launchable.unlike_shells({"node3": nodes["node3"]}))


@pytest.mark.parametrize(
    ("changed", "check", "severity", "words"),
    [
        (launch(prted="not executable"), "launch", "error", "/usr/local/openmpi/bin/prted is not executable"),
        (launch("4.1.6", orted="missing"), "launch", "error", "/usr/local/openmpi/bin/orted is missing"),
        ({"interfaces": [{"name": "lo", "kind": "loopback"}]}, "network", "error", "its loopback interface lo is down"),
        ({"scratch": scratch(free_bytes=MIB)}, "temporary files", "error", f"{TMP} is full (1 of 1024 MiB are free)"),
        ({"scratch": scratch(free_inodes=0)}, "temporary files", "error", f"{TMP} is full (0 inodes are free)"),
        ({"scratch": scratch(read_only=True)}, "temporary files", "error", f"{TMP} is read-only"),
        ({"scratch": scratch(writable=False)}, "temporary files", "error", f"{TMP} is not writable for the login user"),
        ({"scratch": scratch(exists=False)}, "temporary files", "error", f"{TMP} does not exist"),
        ({"scratch": scratch(free_bytes=20 * MIB)}, "temporary files", "warning", f"{TMP} has 20 MiB free"),
        (
            {"scratch": scratch(blocked=[f"{TMP}/ompi.node1.1000"])},
            "temporary files",
            "error",
            f"{TMP}/ompi.node1.1000 belongs to another user",
        ),
        (
            {"scratch": scratch(launchable.SHM, free_bytes=0)},
            "shared memory",
            "error",
            f"{launchable.SHM} is full (0 of 1024 MiB are free)",
        ),
        (
            {"scratch": scratch(launchable.SHM, free_bytes=64 * MIB)},
            "shared memory",
            "warning",
            f"{launchable.SHM} has 64 of 1024 MiB free, and its ranks need about 128 MiB",
        ),
        ({"limits": {"nofile": {"soft": 16, "hard": 16}}}, "open files", "error", "a session may open 16 files"),
        ({"limits": {"as": {"soft": MIB, "hard": None}}}, "address space", "error", "a process may use 1 MiB"),
        (
            {"limits": {"as": {"soft": 600 * MIB, "hard": None}}},
            "address space",
            "warning",
            "a process may use 600 MiB",
        ),
        (
            {"limits": {"fsize": {"soft": 4096, "hard": None}}},
            "file size",
            "error",
            "a process may write files of 4 KiB",
        ),
        ({"limits": {"data": {"soft": 900 * MIB, "hard": None}}}, "data size", "warning", "a process may have 900 MiB"),
        ({"limits": {"cpu": {"soft": 60, "hard": 60}}}, "processor time", "error", "a process may take 60 s of"),
        (
            {"disk": [{"path": "/usr/local", "free_bytes": 0, "total_bytes": MIB}]},
            "disk",
            "error",
            "less than 100 MiB is free in /usr/local",
        ),
    ],
)
def test_what_hinders_a_launch_is_said_once_with_its_cause(
    changed: dict[str, Any], check: str, severity: str, words: str
) -> None:
    (found,) = told(**changed)
    assert found[:2] == (check, severity)
    assert found[2].startswith(words)


def test_doctor_has_the_same_findings() -> None:
    def full(record: Record) -> None:
        record["scratch"] = scratch(free_bytes=0)

    (found,) = registry.diagnose(seen(node3=full))
    assert (found.check, found.severity, found.hosts) == ("temporary files", "error", ("node3",))


# --- the mismatch of Slurm's PMIx and Open MPI's, named from the facts of nodes ---


FOLDER = "/usr/lib/x86_64-linux-gnu/pmix2/lib"
SITE = {"prefix": "/usr/lib/x86_64-linux-gnu/pmix2", "library": f"{FOLDER}/libpmix.so.2.6.2", "version": "4.2.2"}


def plugin(name: str = "pmix_v4", *, found: bool = True, version: str = "4.2.2") -> dict[str, Any]:
    return {"name": name, "opens": f"{FOLDER}/libpmix.so", "found": found, "version": version if found else ""}


def slurm(*plugins: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {"srun": "/usr/bin/srun", "conf": "/etc/slurm/slurm.conf", "plugins": plugins, **changed}


def slurm_node(
    settings: dict[str, Any] | None, *, pmix: str = "internal", version: str = "5.0.7", own: str = "5.0.5"
) -> dict[str, Any]:
    found = {"site": SITE, "own": own, "built_with": pmix}
    return {"slurm": settings, "pmix": found, "artifacts": [factory.artifact("openmpi", version)]}


def pmix_told(record: dict[str, Any]) -> tuple[list[tuple[str, str, str]], list[str]]:
    view = seen(node1=lambda captured: captured.update(record))
    found = [(one.severity, one.cause, one.cure) for one in launchable.slurm_pmix(view)]
    return found, list(launchable.slurm_pmix_notes(view))


def test_nothing_is_said_without_slurm_or_where_all_fits() -> None:
    assert pmix_told(slurm_node(None)) == ([], [])
    assert pmix_told(slurm_node(slurm(plugin(), mpi_default="pmix"), own="4.2.2")) == ([], [])
    assert pmix_told(slurm_node(slurm(plugin(), mpi_default="pmix_v4"), pmix="/opt/pmix", own="")) == ([], [])


@pytest.mark.parametrize(("default", "severity"), [("none", "warning"), ("pmix", "error")])
def test_a_library_that_the_plugin_opens_and_that_is_missing(default: str, severity: str) -> None:
    ((found, cause, cure),), _ = pmix_told(slurm_node(slurm(plugin(found=False), mpi_default=default)))
    assert found == severity
    assert f"{FOLDER}/libpmix.so, which is missing" in cause
    assert cure == f"make the link: 'ln -s libpmix.so.2.6.2 {FOLDER}/libpmix.so', then restart slurmd"


def test_a_missing_library_without_the_site_s_is_to_be_installed() -> None:
    record = {**slurm_node(slurm(plugin(found=False))), "pmix": {"site": None, "own": "5.0.5"}}
    ((_, _, cure),), _ = pmix_told(record)
    assert cure.startswith("install the PMIx library that Slurm was built with")


def test_a_library_of_another_major_release_than_the_plugin_s() -> None:
    ((_, cause, cure),), _ = pmix_told(
        slurm_node(slurm(plugin("pmix_v3"), mpi_default="none"), version="4.1.6", own="")
    )
    assert "pmix_v3 needs PMIx 3" in cause
    assert "is PMIx 4.2.2" in cause
    assert "install the PMIx 3" in cure


def test_a_server_too_old_for_open_mpi_5() -> None:
    ((_, cause, cure),), _ = pmix_told(slurm_node(slurm(plugin("pmix_v3", version="3.2.3"))))
    assert "Slurm speaks PMIx 3, and Open MPI 5.0.7" in cause
    assert "mpirun" in cure


def test_a_default_type_without_a_plugin() -> None:
    ((severity, cause, _),), _ = pmix_told(slurm_node(slurm(plugin(), mpi_default="pmix_v5")))
    assert severity == "error"
    assert "MpiDefault is pmix_v5, and Slurm has pmix, pmix_v4" in cause
    ((_, cause, cure),), _ = pmix_told(slurm_node(slurm(mpi_default="pmix", mpi_default_by="SLURM_MPI_TYPE")))
    assert "Slurm has no PMIx plugin" in cause
    assert "change SLURM_MPI_TYPE" in cure


@pytest.mark.parametrize("default", ["none", "pmi2"])
def test_a_default_without_pmix_is_a_finding_where_open_mpi_was_built_for_srun(default: str) -> None:
    ((severity, cause, cure),), notes = pmix_told(
        slurm_node(slurm(plugin(), mpi_default=default), pmix="/opt/pmix", own="")
    )
    assert severity == "warning"
    assert f"MpiDefault is {default}" in cause
    assert "world of size 1" in cause
    assert "set MpiDefault=pmix in /etc/slurm/slurm.conf" in cure
    assert notes == []


def test_open_mpi_4_1_does_not_start_alone_where_srun_has_started_it() -> None:
    record = slurm_node(slurm(plugin(), mpi_default="none"), pmix="/opt/pmix", own="", version="4.1.4")
    ((_, cause, _),), _ = pmix_told(record)
    assert "so plain srun starts no rank" in cause


@pytest.mark.parametrize("plugins", [(), (plugin(),)])
def test_the_notes_say_that_open_mpi_4_1_starts_no_rank(plugins: tuple[dict[str, Any], ...]) -> None:
    findings, notes = pmix_told(slurm_node(slurm(*plugins, mpi_default="none"), own="", version="4.1.6"))
    assert findings == []
    assert "srun starts no rank: each ends with an error" in notes[0]
    assert "world of size 1" not in notes[0]


def test_a_default_without_pmix_is_a_note_where_jobs_may_use_mpirun() -> None:
    findings, notes = pmix_told(slurm_node(slurm(plugin(), mpi_default="none"), own="4.2.2"))
    assert findings == []
    assert "node1: MpiDefault is none" in notes[0]
    assert "world of size 1" in notes[0]
    _, (without,) = pmix_told(slurm_node(slurm()))
    assert "no PMIx plugin" in without


@pytest.mark.parametrize(("version", "own", "names"), [("5.0.7", "5.0.5", "5.0.5"), ("4.1.6", "", "3.2")])
def test_pmix_of_two_major_releases_is_a_note(version: str, own: str, names: str) -> None:
    findings, notes = pmix_told(slurm_node(slurm(plugin(), mpi_default="pmix"), version=version, own=own))
    assert findings == []
    assert f"Slurm has PMIx 4.2.2 and Open MPI brings PMIx {names}" in notes[0]
