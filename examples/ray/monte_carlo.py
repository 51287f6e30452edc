"""Pi by Monte Carlo with Ray: tasks on all nodes count points, and an actor on each node adds them up.

`ray.init()` finds the job's own Ray by RAY_ADDRESS. Every node has to take part, or the answer is wrong.

    clusterctl run inventory.ini --launcher ray --sync examples -- ray/monte_carlo.py
"""

import random
import sys

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

POINTS = 200_000  # of one task


@ray.remote
def inside(seed: int) -> tuple[str, int]:
    """Return the node, and how many points of the unit square lie inside the circle."""
    chance = random.Random(seed)
    hits = sum(chance.random() ** 2 + chance.random() ** 2 <= 1 for _unused in range(POINTS))
    return ray.get_runtime_context().get_node_id(), hits


@ray.remote(num_cpus=0)
class Counter:
    """Adds up what the tasks of its node found."""

    def __init__(self) -> None:
        self.hits = 0

    def add(self, hits: int) -> int:
        self.hits += hits
        return self.hits


ray.init(log_to_driver=False)
nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
places = {name: NodeAffinitySchedulingStrategy(name, soft=False) for name in nodes}
counters = {name: Counter.options(scheduling_strategy=place).remote() for name, place in places.items()}
tasks = [inside.options(scheduling_strategy=places[name]).remote(seed) for seed, name in enumerate(nodes * 4)]
for name, hits in ray.get(tasks):
    counters[name].add.remote(hits)
totals = ray.get([counter.add.remote(0) for counter in counters.values()])
pi = 4 * sum(totals) / POINTS / len(tasks)
right = all(totals) and abs(pi - 3.14159) < 0.02
print(f"pi is about {pi:.4f} by {len(nodes)} nodes: {'right' if right else 'WRONG'}", flush=True)
sys.exit(0 if right else 1)
