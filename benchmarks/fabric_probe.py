"""How long the probe of all pairs takes, beside one `ssh node true` to each node with the same concurrency.

python benchmarks/fabric_probe.py INVENTORY [--rounds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.inventory import ansible_inventory
from clusterctl.model import fabric
from clusterctl.remote import facts, network_probe, reach

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterctl.model.hosts import Host


def logins(hosts: Sequence[Host]) -> None:
    async def one(host: Host, turn: asyncio.Semaphore) -> None:
        async with turn:
            process = await asyncio.create_subprocess_exec(*reach.ssh_command(host, ["true"]))
            if await process.wait():
                raise SystemExit(f"{host.name} could not be reached")

    async def everyone() -> None:
        turn = asyncio.Semaphore(64)
        await asyncio.gather(*(one(host, turn) for host in hosts))

    asyncio.run(everyone())


def seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def told(name: str, times: list[float]) -> float:
    middle = statistics.median(times)
    print(f"{name:<28} median {middle:6.2f} s   spread {min(times):.2f} to {max(times):.2f} s   {len(times)} rounds")
    return middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inventory", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    hosts = ansible_inventory.load(given.inventory).hosts
    found = fabric.candidates(facts.gather(hosts).facts)

    def probe() -> None:
        failed = [one for one in network_probe.probe(hosts, found) if one.kind != "ok"]
        if failed:
            raise SystemExit(f"{len(failed)} connections failed, the first: {failed[0]}")

    plain, probed = [], []
    for _ in range(given.rounds):  # in turn, so that a machine that is busy for a while is so for both
        plain.append(seconds(lambda: logins(hosts)))
        probed.append(seconds(probe))
    pairs = len(fabric.pairs([host.name for host in hosts])) * len(found.networks)
    base = told(f"ssh true, {len(hosts)} nodes", plain)
    print(f"ratio {told(f'{pairs} connections', probed) / base:.2f}")


if __name__ == "__main__":
    main()
