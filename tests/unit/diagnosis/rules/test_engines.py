"""The engines of doctor's table: growth between two looks at a node, and counters above their limits."""

from __future__ import annotations

import pytest
from clusterctl.diagnosis.rules import changes_since_last_look, engines, gpus, machine, rdma, registry
from clusterctl.diagnosis.rules.engines import Growth, GrowthLimit, growth, shrunk
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.findings import Value
from clusterctl.model.hardware import Counter, Hardware, HardwareLooks, HardwareReading, Part

DAY_S = 86_400.0
LIMIT = GrowthLimit(3600, "warning", "errors", "look", "a book", at_least=10)
KEY = ("nic", "eth0", "rx_errors")


def look(time: float, *values: int, key: tuple[str, str] = ("x", "errors")) -> Hardware:
    counters = tuple(Counter(key[0], f"d{number}", key[1], value) for number, value in enumerate(values))
    return Hardware(schema_version=1, time=time, boot_id="b", counters=counters)


def above(looks: HardwareLooks) -> list[tuple[str, Growth]]:
    return [(one.device, one.grown) for one in engines.above(looks, {("x", "errors"): LIMIT})]


def test_growth_in_this_run_comes_first_and_that_since_the_last_run_after_it() -> None:
    first, past = look(DAY_S, 100, 100_000, 40), (look(-DAY_S, 0, 0, 0), look(0.0, 90, 0, 40))
    looks = HardwareLooks(look(DAY_S + 10, 150, 100_000, 45), first, past)
    assert above(looks) == [("d0", Growth(50, 10.0)), ("d1", Growth(100_000, DAY_S + 10))]
    assert above(HardwareLooks(looks.now, past=past)) == [("d1", Growth(100_000, DAY_S + 10))]
    assert above(HardwareLooks(looks.now)) == []


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (("rdma_port", "symbol_error"), "d0 by 20000 in 24 h, and the limit is 120 an hour"),
        (("fabric_port", "SymbolErrorCounter"), "d0 by 20000 in 24 h, and the limit is 120 an hour"),
        (("gpu", "uncorrectable ECC errors"), "20000 more uncorrectable ECC errors in 24 h"),
        (("gpu", "PCIe replays"), "20000 more replays in 24 h, and the limit is 480 an hour"),
        (("pcie", "correctable errors"), "20000 more correctable errors in 24 h, and the limit is 480 an hour"),
        (("nvlink", "link 3 replay"), "link 3: 20000 replay errors in 24 h"),
        (("gpu", "microseconds of thermal slowdown"), "0.0 s of hardware thermal slowdown in 24 h"),
    ],
)
def test_a_rule_of_growth_judges_the_time_since_the_last_run_and_has_a_source(key: tuple[str, str], words: str) -> None:
    now, before = (look(time, value, key=key) for time, value in ((DAY_S, 20_000), (0.0, 0)))
    looks = HardwareLooks(now, first=look(DAY_S - 60, 20_000, key=key), past=(before,))
    view = View(hosts=(), nodes={}, hardware={"node1": looks})
    (found,) = registry.diagnose(view)
    assert words in found.cause
    assert found.source


def test_a_crc_error_of_nvlink_now_and_then_is_below_its_limit() -> None:
    now, before = (look(time, value, key=("nvlink", "link 3 crc")) for time, value in ((DAY_S, 20_000), (0.0, 0)))
    view = View(hosts=(), nodes={}, hardware={"node1": HardwareLooks(now, past=(before,))})
    assert registry.diagnose(view) == ()


def counted(time: float, value: int, boot_id: str = "b") -> Hardware:
    return Hardware(schema_version=1, time=time, boot_id=boot_id, counters=(Counter(*KEY, value),))


def test_growth_is_told_with_its_time() -> None:
    found = growth(counted(100.0, 7), counted(160.0, 10))
    assert found == {KEY: Growth(3, 60.0)}
    assert found[KEY].per_hour == 180.0


def test_a_counter_that_shrank_a_restart_and_a_clock_that_went_back_tell_nothing() -> None:
    assert growth(counted(100.0, 7), counted(160.0, 2)) == {}
    assert shrunk(counted(100.0, 7), counted(160.0, 2)) == (KEY,)
    assert shrunk(counted(100.0, 7), counted(160.0, 2, boot_id="c")) == ()
    assert growth(counted(100.0, 7), counted(160.0, 10, boot_id="c")) == {}
    assert growth(counted(100.0, 7), counted(100.0, 10)) == {}


@pytest.mark.parametrize(
    "key",
    [
        ("disk", "nvme0n1", "media errors"),
        ("gpu", "0000:3b:00.0", "rows remapped after uncorrectable errors"),
        ("gpu", "0000:3b:00.0", "pages retired after double bit errors"),
    ],
)
def test_what_a_part_counts_by_itself_outlasts_a_restart_and_is_not_held_against_another_part(
    key: tuple[str, str, str],
) -> None:
    def of(serial: str, time: float, value: int, boot_id: str) -> Hardware:
        parts = (Part(key[0], key[1], "", serial, "", ""),) if serial else ()
        counter = Counter(*key, value)
        return Hardware(schema_version=1, time=time, boot_id=boot_id, counters=(counter,), parts=parts)

    for serial in ("7", ""):
        assert growth(of("7", 0.0, 1, "a"), of(serial, 60.0, 3, "b")) == {key: Growth(2, 60.0)}
    for boot_id in ("a", "b"):
        assert growth(of("7", 0.0, 1, "a"), of("8", 60.0, 3, boot_id)) == {}
        assert shrunk(of("7", 0.0, 3, "a"), of("8", 60.0, 1, boot_id)) == ()
        assert shrunk(of("7", 0.0, 3, "a"), of("7", 60.0, 1, boot_id)) == (key,)


def test_growth_between_two_looks_is_computed_once_and_not_taken_for_that_of_others() -> None:
    before, after = counted(100.0, 7), counted(160.0, 10)
    assert growth(before, after) is growth(before, after)
    assert growth(counted(100.0, 8), after) == {KEY: Growth(2, 60.0)}
    later = after.with_counters_of(counted(220.0, 17))
    assert growth(before, later) == {KEY: Growth(10, 120.0)}
    assert growth(before, after) == {KEY: Growth(3, 60.0)}
    assert after == counted(160.0, 10), "what is kept does not count"


# --- counters of links beside their limits: against the first look of the run, and against the last run ---


HOUR = 3600.0


def link_look(time: float, boot_id: str = "b", *, up: bool = True, **values: int) -> Hardware:
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


def link_causes(looks: HardwareLooks) -> list[str]:
    return [one.cause for one in rdma.counters(View(hosts=(), nodes={}, hardware={"node1": looks}))]


def test_growth_since_the_last_run_counts_and_that_over_a_restart_does_not() -> None:
    now = link_look(20 * HOUR, link_downed=5)
    before = link_look(20 * HOUR - 60, link_downed=5)
    assert link_causes(
        HardwareLooks(now, first=before, past=(link_look(0, link_downed=1), link_look(HOUR, link_downed=2)))
    ) == ["losses of the link grew (link_downed): eth0 by 3 in 19 h"]
    assert link_causes(HardwareLooks(now, first=before, past=(link_look(HOUR, "a", link_downed=2),))) == []


def test_a_planned_interruption_between_runs_is_no_flap() -> None:
    assert (
        link_causes(HardwareLooks(link_look(24 * HOUR, carrier_changes=4), past=(link_look(0, carrier_changes=2),)))
        == []
    )
    assert link_causes(HardwareLooks(link_look(60, carrier_changes=4), first=link_look(0, carrier_changes=2))) != []


def test_a_sum_is_told_only_where_nothing_explains_it_and_an_interface_that_is_off_is_left_out() -> None:
    before, now = link_look(0, rx_errors=0, rx_crc_errors=0), link_look(60, rx_errors=90, rx_crc_errors=90)
    assert [cause.partition(":")[0] for cause in link_causes(HardwareLooks(now, first=before))] == [
        "frames with a wrong checksum (CRC) grew (rx_crc_errors)"
    ]
    now = link_look(60, rx_errors=90, rx_crc_errors=0)
    assert [cause.partition(":")[0] for cause in link_causes(HardwareLooks(now, first=before))] == [
        "errors at receiving grew (rx_errors)"
    ]
    assert (
        link_causes(HardwareLooks(link_look(60, up=False, rx_errors=90), first=link_look(0, up=False, rx_errors=0)))
        == []
    )


# --- counters that are smaller than before are one note: links and all others, in this run and since the last one ---


CULPRIT = "is smaller than before: it was reset or wrapped, and its growth is unknown."


def counted_look(time: float, value: int, *keys: tuple[str, str, str], boot_id: str = "b") -> Hardware:
    counters = tuple(Counter(*key, value) for key in keys)
    return Hardware(schema_version=1, time=time, boot_id=boot_id, counters=counters)


def shrunk_notes(**looks: HardwareLooks) -> list[str]:
    return list(registry.notes(View(hosts=(), nodes={}, hardware=looks)))


@pytest.mark.parametrize(
    "key",
    [
        ("gpu", "0000:3b:00.0", "corrected ECC errors"),
        ("gpu", "0000:3b:00.0", "microseconds of thermal slowdown"),
        ("nvlink", "0000:3b:00.0", "link 4 replay"),
        ("memory", "P1-DIMMA1", "corrected"),
        ("pcie", "0000:3b:00.0", "correctable errors"),
        ("disk", "nvme0n1", "media errors"),
        ("rdma_port", "mlx5_0/1", "link_downed"),
        ("fabric_port", "leaf1 port 1 to leaf2 port 1", "SymbolErrorCounter"),
    ],
)
def test_a_counter_that_is_smaller_than_before_is_a_note(key: tuple[str, str, str]) -> None:
    told = [f"On node1, {key[2]} of {key[1]} {CULPRIT}"]
    now, before = counted_look(100.0, 1, key), counted_look(0.0, 7, key)
    assert shrunk_notes(node1=HardwareLooks(now, first=before)) == told
    assert shrunk_notes(node1=HardwareLooks(now, past=(before,))) == told, "since the last run"
    assert shrunk_notes(node1=HardwareLooks(now, first=counted_look(50.0, 1, key), past=(before,))) == told
    assert shrunk_notes(node1=HardwareLooks(now, first=before, past=(counted_look(-9.0, 7, key),))) == told, "once"


def test_a_restart_and_a_counter_that_no_rule_judges_tell_nothing() -> None:
    replays = ("gpu", "0000:3b:00.0", "PCIe replays")
    for key in (("interface", "eth0", "rx_packets"), ("disk", "sda", "pending sectors"), ("process", "7 (cp)", "ran")):
        assert shrunk_notes(node1=HardwareLooks(counted_look(100.0, 1, key), first=counted_look(0.0, 7, key))) == []
    assert (
        shrunk_notes(
            node1=HardwareLooks(counted_look(100.0, 1, replays), past=(counted_look(0.0, 7, replays, boot_id="a"),))
        )
        == []
    )


def test_a_driver_that_was_loaded_again_is_one_note_for_all_its_counters() -> None:
    links = [("nvlink", "0000:3b:00.0", f"link {number} crc") for number in range(18)]
    looks = HardwareLooks(counted_look(100.0, 0, *links), past=(counted_look(0.0, 7, *links),))
    shown = "link 0 crc of 0000:3b:00.0, link 1 crc of 0000:3b:00.0, link 2 crc of 0000:3b:00.0 and 15 more"
    words = "are smaller than before: they were reset or wrapped, and their growth is unknown."
    assert shrunk_notes(node1=looks, node2=looks) == [f"On node[1-2], {shown} {words}"]


# --- machine checks: an exception is an error, and corrected ones count beside other nodes alone ---


def view(kind: str, name: str, *grown: int, boots: tuple[str, str] = ("b", "b")) -> View:
    """Return nodes whose counter grew by so much within a minute."""
    looks = {}
    for number, count in enumerate(grown, start=1):
        first, now = (
            Hardware(schema_version=1, time=at, boot_id=boot, counters=(Counter(kind, "", name, 1000 + value),))
            for at, boot, value in ((100.0, boots[0], 0), (160.0, boots[1], count))
        )
        looks[f"node{number}"] = HardwareLooks(now=now, first=first)
    return View(hosts=(), nodes={}, hardware=looks)


def checks_told(name: str, *grown: int, boots: tuple[str, str] = ("b", "b")) -> list[tuple[str, tuple[str, ...], str]]:
    found = machine.machine_checks(view("machine check", name, *grown, boots=boots))
    return [(one.severity, one.hosts, one.cause) for one in found]


def test_an_exception_is_an_error_also_on_a_node_alone() -> None:
    ((severity, hosts, cause),) = checks_told("machine check exceptions", 64)
    assert (severity, hosts) == ("error", ("node1",))
    assert cause.startswith("64 machine check exceptions in 60 s")
    assert checks_told("machine check exceptions", 0, 0) == []
    assert checks_told("machine check exceptions", 64, boots=("a", "b")) == []


def test_corrected_errors_count_beside_other_nodes() -> None:
    ((severity, hosts, cause),) = checks_told("threshold interrupts", 1, 40, 2, 1)
    assert (severity, hosts) == ("warning", ("node2",))
    assert "40 threshold interrupts in 60 s, and 1 are the median" in cause
    assert checks_told("threshold interrupts", 30, 40, 20, 35) == []
    assert checks_told("threshold interrupts", 0, 9, 0, 0) == []
    assert checks_told("threshold interrupts", 0, 4000) == []  # of two that differ, neither is the odd one
    assert checks_told("machine check polls", 12, 12, 6000) != []


def test_corrected_errors_of_a_gpu_count_beside_other_gpus() -> None:
    name = "corrected ECC errors"
    (found,) = gpus.health(view("gpu", name, 3, 900, 0))
    assert (found.check, found.severity, found.hosts) == ("ecc", "warning", ("node2",))
    assert list(gpus.health(view("gpu", name, 500, 900, 700))) == []
    assert list(gpus.health(view("gpu", name, 0, 99, 0))) == []


# --- changes since the last look at the same device ---


MAC = "b8:3f:d2:01:17:00"


def interface_look(
    speed: Value, mtu: int = 1500, address: str = MAC, at: float = 90_000.0, firmware: str = "1"
) -> Hardware:
    told: dict[str, Value] = {"speed": speed, "mtu": mtu, "address": address, "operstate": "up", "wanted_up": True}
    readings = tuple(HardwareReading("interface", "eth0", name, value) for name, value in told.items())
    return Hardware(schema_version=1, time=at, readings=readings, parts=(Part("disk", "sda", "M", "S", firmware),))


def looks_view(*nodes: tuple[Hardware, Hardware | None]) -> View:
    looks = {
        f"node{number}": HardwareLooks(now=now, past=(before,) if before else ())
        for number, (now, before) in enumerate(nodes, start=1)
    }
    return View(hosts=(), nodes={}, hardware=looks)


def changed_causes(given: View) -> list[str]:
    return [one.cause for one in changes_since_last_look.changes(given)]


def test_a_node_alone_is_held_against_its_past_and_told_once() -> None:
    before, now = interface_look(10_000, at=0.0), interface_look(1_000)
    (told,) = changes_since_last_look.changes(looks_view((now, before)))
    assert told.hosts == ("node1",)
    assert told.cause == "the speed in Mb/s of eth0 is 1000, and was 10000 at the last look 25 h ago"
    assert changed_causes(looks_view((interface_look(1_000), now))) == []
    assert changed_causes(looks_view((now, None))) == []


def test_what_got_better_is_a_note() -> None:
    given = looks_view((interface_look(10_000), interface_look(1_000, at=0.0)))
    assert changed_causes(given) == []
    assert list(changes_since_last_look.changes_notes(given)) == [
        "Changed on node1: the speed in Mb/s of eth0 is 10000, and was 1000 at the last look."
    ]


def test_a_change_that_neighbours_share_or_judge_is_a_note() -> None:
    before, now = interface_look(10_000, mtu=1500, at=0.0), interface_look(10_000, mtu=9000)
    shared = looks_view((now, before), (now, before), (now, before))
    assert changed_causes(shared) == []
    assert list(changes_since_last_look.changes_notes(shared)) == [
        "Changed on node[1-3]: the MTU of eth0 is 9000, and was 1500 at the last look."
    ]
    odd = looks_view((now, before), (interface_look(10_000, mtu=4000), before), (before, before))
    assert len(changed_causes(odd)) == 2  # three values on three nodes: nothing is usual


def test_another_device_in_its_place_is_not_compared() -> None:
    other = interface_look(1_000, address="b8:3f:d2:09:17:00")
    assert changed_causes(looks_view((other, interface_look(10_000, at=0.0)))) == []


def test_firmware_of_a_part_is_compared_by_its_serial_number() -> None:
    given = looks_view((interface_look(10_000, firmware="2"), interface_look(10_000, at=0.0)))
    assert changed_causes(given) == ["the firmware of the M of sda is 2, and was 1 at the last look 25 h ago"]


def test_an_odd_value_is_not_compared() -> None:
    assert changed_causes(looks_view((interface_look("fast"), interface_look(10_000, at=0.0)))) == []
