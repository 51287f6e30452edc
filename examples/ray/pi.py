"""Pi as a sum of parts with Ray: tasks on all nodes sum strips, and an actor on each node adds up its node's.

`ray.init()` finds the job's own Ray by RAY_ADDRESS. Each node has to do its share, or the answer is wrong.

    clusterctl run inventory.ini --launcher ray --sync examples -- ray/pi.py
"""

import math
import sys

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

STRIPS = 1_000_000
TASKS = 4  # of each node


@ray.remote
def part(first, step):
    """Return every `step`-th strip under the curve, from `first` on."""
    return sum(4 / (1 + ((strip + 0.5) / STRIPS) ** 2) for strip in range(first, STRIPS, step)) / STRIPS


@ray.remote(num_cpus=0)
class Total:
    """Adds up the parts of its node."""

    total = 0.0

    def add(self, value):
        """Return the sum so far."""
        self.total += value
        return self.total


ray.init(log_to_driver=False)
nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
places = [NodeAffinitySchedulingStrategy(name, soft=False) for name in nodes]
totals = [Total.options(scheduling_strategy=place).remote() for place in places]
count = TASKS * len(nodes)
for number in range(count):
    place = number % len(nodes)
    totals[place].add.remote(part.options(scheduling_strategy=places[place]).remote(number, count))
shares = ray.get([total.add.remote(0.0) for total in totals])
right = min(shares) > 0 and abs(sum(shares) - math.pi) < 1e-9
print(f"pi {sum(shares):.9f} by {len(nodes)} nodes: {'right' if right else 'WRONG'}", flush=True)
sys.exit(0 if right else 1)
