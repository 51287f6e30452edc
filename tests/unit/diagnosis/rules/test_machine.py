from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from clusterctl.diagnosis.rules import launchable, machine, registry
from clusterctl.remote import login_probe
from doctor_view import NODES, rdma_port, seen, told

if TYPE_CHECKING:
    from doctor_view import Change, Record


GIB = 1 << 30


def damaged(record: Record) -> None:
    record["artifacts"][0].update(ok=False, problem="1 of 9 files are missing or changed, first bin/mpirun")


def foreign_mpirun(record: Record) -> None:
    own = "/usr/local/openmpi/bin/mpirun"
    found = {"path": "/opt/foreign/bin/mpirun", "real": "/opt/foreign/bin/mpirun"}
    record["launch"] = [{"name": "mpirun", **found, "own": own, "own_real": f"{own}-5", "own_state": "ok"}]


def leftover(record: Record) -> None:
    entry = {"pid": 7, "user": "user", "command": "python train.py", "age_s": 7300, "why": "its launcher is gone"}
    record["leftovers"] = [entry]


def limited(**limits: int) -> Change:
    return lambda record: record["limits"].update({key: {"soft": soft, "hard": None} for key, soft in limits.items()})


@pytest.mark.parametrize(
    ("change", "check", "severity", "words"),
    [
        (damaged, "artifacts", "error", "openmpi is not as it was installed: 1 of 9 files"),
        (
            lambda record: record["environment"].update(PATH="/usr/bin:/bin"),
            "session",
            "error",
            "PATH of a session without a terminal lacks /usr/local/openmpi/bin",
        ),
        (
            leftover,
            "leftovers",
            "error",
            "a rank is left over from jobs whose launcher is gone (7 of user, 2 h old: py",
        ),
        (
            limited(nofile=64),
            "open files",
            "warning",
            "a session may open 64 files, and a job of 8 ranks needs about 72",
        ),
        (lambda record: record.update(shm_bytes=64 << 20), "shared memory", "warning", f"{launchable.SHM} has 64 MiB"),
        (
            lambda record: record["disk"][0].update(free_bytes=GIB // 2),
            "disk",
            "warning",
            "less than 1 GiB is free in /usr/local",
        ),
        (lambda record: record["disk"][0].update(free_bytes=0), "disk", "error", "less than 100 MiB is free in /usr/"),
        (
            lambda record: record.update(swap_used_bytes=9 * GIB, memory_bytes=64 * GIB),
            "swap",
            "warning",
            "more than a tenth of its memory is in swap",
        ),
        (
            lambda record: record["artifacts"][0].update(linked=False),
            "artifacts",
            "error",
            "/usr/local/openmpi is a folder, and clusterctl installs a link there",
        ),
        (
            lambda record: record.update(cpu_quota={"group": "/g", "cores": 0.5}),
            "cores",
            "warning",
            "it has 2 slots, and its control group a CPU quota of 0.5 cores",
        ),
        (
            foreign_mpirun,
            "session",
            "error",
            "mpirun of a session is /opt/foreign/bin/mpirun, and not the installed /usr/local/openmpi/bin/mpirun",
        ),
        (
            lambda record: record.update(known_hosts={"has_mesh": True, "own_names": ["another"]}),
            "host_key",
            "warning",
            "its known_hosts has no line of the node itself",
        ),
        (lambda record: record.update(threads=1, cores=1), "cores", "warning", "it has 2 slots and 1 hardware threads"),
    ],
)
def test_a_node_is_named_with_what_is_wrong(change: Change, check: str, severity: str, words: str) -> None:
    (found,) = registry.diagnose(seen(node3=change))
    assert (found.check, found.severity, found.hosts) == (check, severity, ("node3",))
    assert found.cause.startswith(words)
    assert found.cure


def test_a_pattern_of_a_certificate_authority_covers_the_node() -> None:
    def change(*names: str) -> Change:
        return lambda record: record.update(known_hosts={"has_mesh": True, "own_names": list(names)})

    assert told(seen(node3=change("10.9.9.*", "node*"))) == []
    assert told(seen(node3=change("[node*]:*"))) == []
    assert [one[0] for one in told(seen(node3=change("login*")))] == ["host_key"]


def test_little_memory_may_be_locked_where_rdma_is_used() -> None:
    def change(record: Record) -> None:
        rdma_port()(record)
        limited(memlock=64 << 10)(record)

    assert told(seen(node3=limited(memlock=64 << 10))) == []
    (found,) = registry.diagnose(seen(node3=change))
    assert (found.check, found.cause.partition(",")[0]) == ("memlock", "a session may lock 64 KiB of memory")


@pytest.mark.parametrize(
    ("offset_s", "uncertainty_s", "severity"),
    [(1.9, 0.01, None), (2.5, 0.01, "warning"), (2.5, 0.8, None), (-7.0, 0.1, "warning"), (90.0, 0.1, "error")],
)
def test_a_clock_is_wrong_only_beyond_what_the_round_trip_may_hide(
    offset_s: float, uncertainty_s: float, severity: str | None
) -> None:
    found = dict.fromkeys(NODES, login_probe.Clock(0.3, 0.01)) | {
        "node3": login_probe.Clock(0.3 + offset_s, uncertainty_s)
    }
    assert [(one.hosts, one.severity) for one in machine.clocks(found)] == (
        [(("node3",), severity)] if severity else []
    )
