"""The kernel's log by the journal: a huge one, one that is refused, and lines of every kind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.hardware import kernel_log, record

pytestmark = pytest.mark.programs


def journal(folder: Path, body: str) -> dict[str, object]:
    tool = folder / "tools" / "journalctl"
    tool.parent.mkdir()
    tool.write_text(f"#!{sys.executable} -IS\nimport sys, time\n{body}\n", encoding="utf-8")
    tool.chmod(0o755)
    (folder / "root").mkdir()
    request = {"root": str(folder / "root"), "tools": str(tool.parent), "sections": ["kernel_log"], "patience": 10.0}
    return record.collect(request)


def ring(root: Path, *records: str) -> dict[str, object]:
    """Look at a kernel's ring of these records."""
    for path, text in (("dev/kmsg", "\n".join(records) + "\n"), ("proc/uptime", "10.0 10.0")):
        (root / path).parent.mkdir()
        (root / path).write_text(text, encoding="utf-8")
    return record.collect({"root": str(root), "sections": ["kernel_log"]})


LINE = "f'{time.time() - age:.6f} node1 kernel: NVRM: Xid (PCI:0000:3b:00): {code}, pid=1, name=python3, DBE'"


def test_a_journal_of_100_mb_is_cut_with_a_note_and_its_newest_faults_are_told(tmp_path: Path) -> None:
    body = f"""
age, code = 3600, 31
old = {LINE} + chr(10)
age, code = 60, 48
new = {LINE} + chr(10)
newest_first = "--reverse" in sys.argv or "-r" in sys.argv
for text, times in ((new, 1), (old, 100)) if newest_first else ((old, 100), (new, 1)):
    for _ in range(times):
        print(text * 10000, flush=True)
"""
    found = journal(tmp_path, body)
    assert ["xid", "0000:3b:00.0", "48"] in [event[1:4] for event in found["events"]]
    assert len([event for event in found["events"] if event[3] == "48"]) <= 10
    ((what, why),) = found["unseen"]
    assert what == "kernel log"
    assert why.startswith("older lines of the journal, since journalctl")
    assert "printed more than 16 MiB" in why


def test_a_journal_with_more_lines_than_are_asked_for_is_a_note(tmp_path: Path) -> None:
    body = f"""
age, code = 60, 48
for _ in range(int(sys.argv[sys.argv.index("-n") + 1])):
    print({LINE})
"""
    found = journal(tmp_path, body)
    assert len(found["events"]) == 10
    assert found["unseen"] == [["kernel log", "the journal's lines before its newest 100000 of the day"]]


def test_a_ring_with_too_many_records_keeps_the_newest_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_log, "_MOST_LINES", 100)
    records = [f"3,{number},{number * 1000},-;EDAC MC{number // 50}: 1 UE memory read error" for number in range(200)]
    found = ring(tmp_path, *records)
    assert {event[2] for event in found["events"]} == {"MC2", "MC3"}
    assert found["unseen"] == [["kernel log", "records of /dev/kmsg before its newest 100"]]


def test_of_too_many_kinds_the_newest_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "_MOST_KINDS", 2)
    body = (
        "for number in range(8, -1, -1): print(time.time() - 60 + number, f'node1 kernel: EDAC MC{number}: 1 UE error')"
    )
    found = journal(tmp_path, body)
    assert [event[2] for event in found["events"]] == ["MC7", "MC8"]
    assert found["unseen"] == [["kernel log", "7 older lines beyond the newest 2 kinds of events"]]


def test_a_journal_that_is_refused_is_a_note(tmp_path: Path) -> None:
    found = journal(tmp_path, "print('No journal files were opened due to insufficient permissions.')\nsys.exit(1)")
    assert found["events"] == []
    assert found["unseen"] == [["kernel log", "neither /dev/kmsg nor the journal can be read"]]


@pytest.mark.parametrize("text", ['{"MESSAGE": "x"}', "Nov 25 10:00:00 node1 kernel: NVRM: Xid", "\0 garbage"])
def test_a_journal_of_another_form_is_a_note(tmp_path: Path, text: str) -> None:
    found = journal(tmp_path, f"print({text!r})")
    assert found["events"] == []
    assert found["unseen"] == [["kernel log", "journalctl -o short-unix printed no line with a time"]]


# One record of three lines, without the ends of its lines.
OFF_THE_BUS = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0NVRM: (PCI ID: 10de:26b5) installed in this system has"
    "NVRM: fallen off the bus and is not responding to commands."
)


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", ["xid", "0000:03:00.0", "14"]),
        (
            "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (x) to 0x0 (None)",
            ["xid", "0000:01:00.0", "154, None"],
        ),
        (
            "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)",
            ["xid", "0000:01:00.0", "154, OS Reboot"],
        ),
        ("NVRM: Xid (PCI:0000:01:00): 154, in other words", ["xid", "0000:01:00.0", "154"]),
        (
            "NVRM: Xid (PCI:0000:04:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000001)",
            ["xid", "0000:04:00.0", "145, Nonfatal"],
        ),
        (
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000)",
            ["xid", "0018:01:00.0", "149"],
        ),
        ("nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Severity 1 Engine instance 60", None),
        ("pcieport 0000:80:03.1: AER: PCIe Bus Error: severity=Correctable", ["aer", "0000:80:03.1", "Correctable"]),
        ("EDAC MC1: 3 CE memory scrubbing error on unknown label", ["edac", "MC1", "CE"]),
        ("Memory cgroup out of memory: Killed process 9 (python)", None),
        ("Out of memory: Kill process 9 (python) score 900 or sacrifice child", ["oom", "", "python"]),
        ("blk_update_request: I/O error, dev sdb, sector 7 op 0x0", ["io", "sdb", "I/O"]),
        ("I/O error, dev loop3, sector 0", None),
        ("I/O error, dev sr0, sector 0", None),
        ("EXT4-fs error (device dm-0): ext4_lookup:1855: inode #2", ["io", "dm-0", "EXT4-fs"]),
        ('XFS (nvme0n1p2): metadata I/O error in "xfs_trans_read_buf_map"', ["io", "nvme0n1p2", "XFS"]),
        ("nvme nvme1: I/O 12 (I/O Cmd) QID 5 timeout, aborting", ["io", "nvme1", "timeout"]),
        ("bnxt_en 0000:41:00.0 ens3f0: NIC Link is Down", ["link", "ens3f0", "Down"]),
        ("tg3 0000:02:00.0 eno2: Link is down", ["link", "eno2", "down"]),
        ("mlx5_core 0000:53:00.0 mlx5_3: Port: 1 Link DOWN", ["link", "mlx5_3", "DOWN"]),
        ("mlx5_core 0000:53:00.0 mlx5_3: Port: 1 Link ACTIVE", None),
        (
            OFF_THE_BUS.replace("NVRM", "\n NVRM").strip(),
            ["nvrm", "0000:b3:00.0", "fallen off the bus"],
        ),
        ("NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", ["nvrm", "0000:01:00.0", "fallen off the bus"]),
        ("NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1b06)\n NVRM: installed in this system is not", None),
        (
            "mlx5_core 0000:d2:00.0: poll_health:825: device's health compromised - reached miss count.",
            ["nic", "0000:d2:00.0", "compromised"],
        ),
        (
            "mlx5_core 0000:03:00.0: 0000:03:00.0:poll_health:289:(pid 0): device's health compromised - reached",
            ["nic", "0000:03:00.0", "compromised"],
        ),
        (
            "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature",
            ["module", "0000:5c:00.0", "Cable error, High Temperature"],
        ),
        ("mlx5_core 0000:1b:00.1: Port module event: module 1, Cable unplugged", None),
        ("watchdog: BUG: soft lockup - CPU#49 stuck for 22s! [migration/49:314]", ["lockup", "CPU#49", "soft"]),
        ("NMI watchdog: BUG: soft lockup - CPU#113 stuck for 22s! [kopald:854]", ["lockup", "CPU#113", "soft"]),
        ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 3", ["lockup", "cpu 3", "hard"]),
        ("rcu: INFO: rcu_sched detected stalls on CPUs/tasks:", ["lockup", "", "stall"]),
        ("INFO: rcu_sched self-detected stall on CPU { 17}  (t=15001 jiffies)", ["lockup", "", "stall"]),
        ("rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 3-... }", ["lockup", "", "stall"]),
        ("ata1: SATA link down (SStatus 0 SControl 300)", None),
        ("neighbour: arp_cache: neighbor table overflow!", ["neighbours", "", "table overflow"]),
        ("neighbour: ndisc_cache: neighbor table overflow!", ["neighbours", "", "table overflow"]),
        ("ipv4: Neighbour table overflow.", ["neighbours", "", "table overflow"]),
        ("Neighbour table overflow.", ["neighbours", "", "table overflow"]),
    ],
)
def test_a_line_is_read_as(tmp_path: Path, line: str, event: list[str] | None) -> None:
    found = journal(tmp_path, f"print(time.time(), 'node1 kernel: ' + {line!r})")
    assert [one[1:4] for one in found["events"]] == ([] if event is None else [event])


SEGFAULT = "segfault at 0 ip 0000000000401106 sp 00007ffd1c1c error 4 in"


@pytest.mark.parametrize(
    "text",
    [
        f"job[77]: {SEGFAULT} NVRM: Xid (PCI:0000:3b:00): 79, pid=1[401000+1000]",
        f"job[77]: {SEGFAULT} NVRM: GPU 0000:3b:00.0: RmInitAdapter failed[401000+1000]",
        f"job[77]: {SEGFAULT} mce: [Hardware Error]: CPU 1: Machine Check: 0 Bank 5: be00000000800400[401000+1000]",
        f"job[77]: {SEGFAULT} I-O error, critical medium error, dev sda[401000+1000]",
        f"EDAC MC0: 1 UE [77]: {SEGFAULT} job[401000+1000]",
        f"XFS (sda1): x[77]: {SEGFAULT} shutdown[401000+1000]",
        f"eth0: Link down[77]: {SEGFAULT} job[401000+1000]",
        f"eth0: Link DOWN[77]: {SEGFAULT} job[401000+1000]",
        f"NVRM: GPU 3b:00[77]: {SEGFAULT} fallen off the bus[401000+1000]",
        f"rcu: INFO: rcu_a[77]: {SEGFAULT} detected stall[401000+1000]",
        "traps: EDAC MC0: 1 UE [77] general protection fault ip:401106 sp:7ffd error:0 in job[401000+1000]",
    ],
)
def test_a_process_that_crashes_tells_of_no_fault_by_its_names(tmp_path: Path, text: str) -> None:
    assert ring(tmp_path, f"6,1,1000,-;{text}")["events"] == []


@pytest.mark.parametrize("separator", ["\x0b", "\x1c", "\x85", "\u2028", "\u2029"], ids=ascii)
def test_nor_does_it_by_another_separator_of_lines(tmp_path: Path, separator: str) -> None:
    """The journal prints a name as the process has it, where the ring escapes it."""
    fault = "node1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1[401000+1000]"
    words = f"node1 kernel: job[77]: {SEGFAULT} {separator}"
    body = f"print(f'{{time.time():.6f}}', {words!r} + f'{{time.time():.6f}}', {fault!r})"
    assert journal(tmp_path, body)["events"] == []


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("nvidia-nvswitch2: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 28", ["sxid", "0000:a9:00.0", "20034, Fatal"]),
        ("pcieport 0000:00:1c.0: AER: PCIe Bus Error: severity=Corrected", ["aer", "0000:00:1c.0", "Corrected"]),
        ("blk_update_request: critical medium error, dev sdb, sector 8", ["io", "sdb", "critical medium"]),
        ("igb 0000:01:00.0 eth1: igb: eth1 NIC Link is Down", ["link", "eth1", "Down"]),
        ("EDAC MC1: 2 CE memory read error on CPU_SrcID#0_MC#1", ["edac", "MC1", "CE"]),
        (
            OFF_THE_BUS.replace("NVRM: (", "\\x0aNVRM: (").replace("NVRM: f", "\\x0aNVRM: f"),
            ["nvrm", "0000:b3:00.0", "fallen off the bus"],
        ),
        ("XFS (dm-0): Filesystem has been shut down; shutdown due to log error", ["io", "dm-0", "XFS"]),
    ],
)
def test_a_line_of_a_driver_tells_of_its_fault(tmp_path: Path, text: str, event: list[str]) -> None:
    (found,) = ring(tmp_path, f"3,1,1000,-;{text}")["events"]
    assert found[1:4] == event
