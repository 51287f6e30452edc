# SPDX-License-Identifier: Apache-2.0
"""Settings of the processors and of the memory that make one node slower than its like."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .record import Answer, Json
    from .tree import Tree

_CPU = "/sys/devices/system/cpu"
_NODE = "/sys/devices/system/node"
_HUGE_PAGES = "/sys/kernel/mm/hugepages"
_OF_IDLE = ("idle=", "cpuidle.off=", "intel_idle.max_cstate=", "processor.max_cstate=")  # kernel-parameters.txt
_OF_NODE = re.compile(r"MemTotal:\s+(\d+) kB")
_CHOSEN = re.compile(r"\[([^\]]+)\]")
# Files that hold one word each: the name of the reading, and the path.
_WORDS = (
    ("clock source", "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    ("idle driver", f"{_CPU}/cpuidle/current_driver"),
    ("deepest C-state of intel_idle", "/sys/module/intel_idle/parameters/max_cstate"),
    ("frequency driver", f"{_CPU}/cpufreq/policy0/scaling_driver"),
    ("hyperthreading", f"{_CPU}/smt/control"),
    ("automatic NUMA balancing", "/proc/sys/kernel/numa_balancing"),
    ("zone reclaim", "/proc/sys/vm/zone_reclaim_mode"),
)


def read(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell the governor, turbo, idle states, clock source, pages and NUMA nodes."""
    for name, path in _WORDS:
        word = tree.text(path)
        if word:
            answer.reading("cpu", "", name, word)
    _idle_states(tree, answer)
    _policies(tree, answer)
    _turbo(tree, answer)
    pages = _CHOSEN.search(tree.text("/sys/kernel/mm/transparent_hugepage/enabled") or "")
    if pages:
        answer.reading("cpu", "", "transparent huge pages", pages.group(1))
    _memory(tree, answer)
    offline = tree.text(f"{_CPU}/offline")
    if offline is not None:
        answer.reading("cpu", "", "processors offline", offline or "none")


def _idle_states(tree: Tree, answer: Answer) -> None:
    """Tell which idle states there are, which are switched off on any processor, and the kernel's parameters."""
    states = {
        name: tree.text(f"{_CPU}/cpu0/cpuidle/{name}/name") or name for name in tree.names(f"{_CPU}/cpu0/cpuidle")
    }
    if states:
        answer.reading("cpu", "", "idle states", " ".join(states.values()))
        processors = [name for name in tree.names(_CPU) if re.fullmatch(r"cpu\d+", name)]
        off = [
            word
            for name, word in states.items()
            if any(tree.number(f"{_CPU}/{processor}/cpuidle/{name}/disable") for processor in processors)
        ]
        answer.reading("cpu", "", "idle states switched off", " ".join(off) or "none")
    parameters = tree.text("/proc/cmdline")
    if parameters is not None:
        found = [word for word in parameters.split() if word.startswith(_OF_IDLE)]
        answer.reading("cpu", "", "kernel parameters of idle states", " ".join(found) or "none")


def _policies(tree: Tree, answer: Answer) -> None:
    base = f"{_CPU}/cpufreq"
    policies = [name for name in tree.names(base) if name.startswith("policy")]
    for name, file in (("governor", "scaling_governor"), ("energy preference", "energy_performance_preference")):
        words = sorted({tree.text(f"{base}/{policy}/{file}") or "" for policy in policies} - {""})
        if words:
            answer.reading("cpu", "", name, ", ".join(words))
    limits = {tree.number(f"{base}/{policy}/scaling_max_freq") for policy in policies} - {None}
    if limits:
        answer.reading("cpu", "", "highest frequency in kHz", max(limit for limit in limits if limit is not None))


def _turbo(tree: Tree, answer: Answer) -> None:
    off, boost = tree.number(f"{_CPU}/intel_pstate/no_turbo"), tree.number(f"{_CPU}/cpufreq/boost")
    if off is not None:
        answer.reading("cpu", "", "turbo", "off" if off else "on")
    elif boost is not None:
        answer.reading("cpu", "", "turbo", "on" if boost else "off")


def _memory(tree: Tree, answer: Answer) -> None:
    fields = dict(line.split(":", 1) for line in (tree.text("/proc/meminfo") or "").splitlines() if ":" in line)
    for name, field in (("memory in KiB", "MemTotal"), ("reserved huge pages", "HugePages_Total")):
        words = fields.get(field, "").split()
        if words and words[0].isdigit():
            answer.reading("memory", "", name, int(words[0]))
    usual = "".join(fields.get("Hugepagesize", "").split())  # its pages are those of the line above
    for folder in tree.names(_HUGE_PAGES):
        pages_of = folder.rpartition("-")[2]
        pages = tree.number(f"{_HUGE_PAGES}/{folder}/nr_hugepages")
        if pages_of != usual and pages is not None:
            answer.reading("huge pages", pages_of, "reserved huge pages", pages)
    nodes = [name for name in tree.names(_NODE) if re.fullmatch(r"node\d+", name)]
    if nodes:
        answer.reading("cpu", "", "NUMA nodes", len(nodes))
    for name in nodes:
        answer.reading("numa", name, "processors", tree.text(f"{_NODE}/{name}/cpulist") or "none")
        size = _OF_NODE.search(tree.text(f"{_NODE}/{name}/meminfo") or "")
        if size:
            answer.reading("numa", name, "memory in KiB", int(size.group(1)))
