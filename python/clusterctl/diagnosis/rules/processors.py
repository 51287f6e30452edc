"""Are the processors of nodes set alike, and in a way that does not slow jobs down?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.diagnosis.rules import alike
from clusterctl.model.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.hardware import Hardware

ORDER = 80
_CHECK = "processors"
_FIRMWARE = "set it alike in the firmware of all nodes, or with the site's tool (tuned-adm, cpupower)"
# Readings that differ between nodes of one kind only by mistake, each with its cure.
_ALIKE = {
    "governor": "set it alike: 'cpupower frequency-set -g performance'",
    "energy preference": "set it alike, for example with 'tuned-adm profile hpc-compute'",
    "highest frequency in kHz": "look for a limit: 'cpupower frequency-info'",
    "turbo": _FIRMWARE,
    "idle driver": _FIRMWARE,
    "idle states": _FIRMWARE,
    "idle states switched off": "switch them on or off alike: 'cpupower idle-set'",
    "kernel parameters of idle states": "give all nodes the same kernel parameters",
    "deepest C-state of intel_idle": "give all nodes the same kernel parameters",
    "clock source": "look in the kernel's log for 'clocksource', and restart the node",
    "transparent huge pages": "write the same word to /sys/kernel/mm/transparent_hugepage/enabled on all nodes",
    "automatic NUMA balancing": "set kernel.numa_balancing alike with sysctl",
    "zone reclaim": "set vm.zone_reclaim_mode alike with sysctl",
    "processors offline": "bring them back: write 1 to /sys/devices/system/cpu/cpuN/online",
    "NUMA nodes": "set nodes per socket (NPS), or sub-NUMA clustering, alike in the firmware",
}
_THP = "/sys/kernel/mm/transparent_hugepage/enabled"
# Commands that set a reading; '@' stands for the usual value.
_FIXES: dict[str, tuple[str, ...]] = {
    "governor": ("cpupower", "frequency-set", "-g", "@"),
    "transparent huge pages": ("sh", "-c", f'echo "$0" > {_THP}', "@"),
    "automatic NUMA balancing": ("sysctl", "-w", "kernel.numa_balancing=@"),
    "zone reclaim": ("sysctl", "-w", "vm.zone_reclaim_mode=@"),
    "reserved huge pages": ("sysctl", "-w", "vm.nr_hugepages=@"),
}
# The kernel takes one of these where it distrusts the processor's counter; each reading then costs a microsecond.
_SLOW_CLOCKS = frozenset({"hpet", "acpi_pm", "jiffies"})


def findings(view: View) -> Iterator[Finding]:
    """Return settings that differ between nodes of one kind, and those that are slow everywhere."""
    for name, cure in _ALIKE.items():
        yield from alike.compare_readings(view, _CHECK, "cpu", name, cure, _fix(name))
    cure = "set huge pages alike with sysctl (vm.nr_hugepages)"
    name = "reserved huge pages"
    yield from alike.compare_readings(view, _CHECK, "memory", name, cure, _fix(name))
    cure = "reserve pages of that size alike: 'hugeadm', or nr_hugepages in /sys/kernel/mm/hugepages"
    yield from alike.compare_readings(view, _CHECK, "huge pages", name, cure)
    cure = "look for processors that are offline, and for firmware settings that differ"
    yield from alike.compare_readings(view, _CHECK, "numa", "processors", cure)
    for host, looks in view.hardware.items():
        yield from _slow(host, looks.now)


def _fix(name: str) -> Callable[[str], tuple[tuple[str, ...], ...]]:
    """Return what makes the commands that give a node the usual value, if one does and the value is a plain word."""
    command = _FIXES.get(name, ())

    def commands(usual: str) -> tuple[tuple[str, ...], ...]:
        return (tuple(word.replace("@", usual) for word in command),) if command and usual.isalnum() else ()

    return commands


def _slow(host: str, seen: Hardware) -> Iterator[Finding]:
    clock = seen.text("cpu", "clock source")
    if clock in _SLOW_CLOCKS:
        cause = f"the kernel reads the time from {clock}, which is slow, because it distrusts the processor's counter"
        yield Finding(_CHECK, "warning", (host,), cause, _ALIKE["clock source"])
    driver, governor = (seen.text("cpu", name) for name in ("frequency driver", "governor"))
    if driver == "acpi-cpufreq" and governor == "powersave":
        cause = "the governor powersave keeps the processors at their lowest frequency"
        yield Finding(_CHECK, "warning", (host,), cause, _ALIKE["governor"])
