"""Counters of links beside their limits: against the first look of the run, and against the last run."""

from __future__ import annotations

from clusterctl.diagnosis.rules import rdma
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.hardware import Counter, Hardware, HardwareLooks, HardwareReading

HOUR = 3600.0


def look(time: float, boot_id: str = "b", *, up: bool = True, **values: int) -> Hardware:
    return Hardware(
        schema_version=1,
        time=time,
        boot_id=boot_id,
        readings=(HardwareReading("interface", "eth0", "wanted_up", up),),
        counters=tuple(
            Counter("interface" if name.startswith(("rx", "carrier")) else "rdma_port", "eth0", name, value)
            for name, value in values.items()
        ),
    )


def causes(looks: HardwareLooks) -> list[str]:
    return [one.cause for one in rdma.counters(View(hosts=(), nodes={}, hardware={"node1": looks}))]


def test_growth_since_the_last_run_counts_and_that_over_a_restart_does_not() -> None:
    now = look(20 * HOUR, link_downed=5)
    before = look(20 * HOUR - 60, link_downed=5)
    assert causes(HardwareLooks(now, first=before, past=(look(0, link_downed=1), look(HOUR, link_downed=2)))) == [
        "losses of the link grew (link_downed): eth0 by 3 in 19 h"
    ]
    assert causes(HardwareLooks(now, first=before, past=(look(HOUR, "a", link_downed=2),))) == []


def test_a_planned_interruption_between_runs_is_no_flap() -> None:
    assert causes(HardwareLooks(look(24 * HOUR, carrier_changes=4), past=(look(0, carrier_changes=2),))) == []
    assert causes(HardwareLooks(look(60, carrier_changes=4), first=look(0, carrier_changes=2))) != []


def test_a_sum_is_told_only_where_nothing_explains_it_and_an_interface_that_is_off_is_left_out() -> None:
    before, now = look(0, rx_errors=0, rx_crc_errors=0), look(60, rx_errors=90, rx_crc_errors=90)
    assert [cause.partition(":")[0] for cause in causes(HardwareLooks(now, first=before))] == [
        "frames with a wrong checksum (CRC) grew (rx_crc_errors)"
    ]
    now = look(60, rx_errors=90, rx_crc_errors=0)
    assert [cause.partition(":")[0] for cause in causes(HardwareLooks(now, first=before))] == [
        "errors at receiving grew (rx_errors)"
    ]
    assert causes(HardwareLooks(look(60, up=False, rx_errors=90), first=look(0, up=False, rx_errors=0))) == []
