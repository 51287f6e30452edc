"""A provisioned cluster that is kept: each module gets its nodes as they were, in a second instead of a provision.

The images are of one test run, since they hold what the product of today made. A later run removes those of a run that
was killed.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clusterctl.inventory import ansible_inventory
from clusterctl.model.hosts import InventoryOptions, InventorySources
from clusterctl.sandbox import container_engine, lifecycle
from clusterctl.sandbox.container_engine import Podman
from clusterctl.state import clusters, paths
from validated import Cluster

REPOSITORY = "localhost/clusterctl-kept"


class Kept:
    """The images of a cluster's nodes, and copies of what the controller knows of it."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.engine = cluster, cluster.engine
        self.before = cluster.state()
        self.state = paths.cluster_id(cluster.box.inventory)
        places = (cluster.box.inventory.parent, paths.cluster_dir(self.state))
        self.copies = {place: folder / place.name for place in places}
        for place, copy in self.copies.items():
            shutil.copytree(place, copy, symlinks=True)
        self.images: dict[str, list[str]] = {}  # the arguments that make each container again
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._commit, (node.container for node in cluster.box.nodes)))

    def _commit(self, container: str) -> None:
        image = f"{REPOSITORY}:{container}"
        self.engine.run("commit", "--quiet", container, image)
        made_by = json.loads(self.engine.text("inspect", "--format", "{{json .Config.CreateCommand}}", container))
        self.images[container] = [*made_by[1:-1], image]

    def again(self) -> Cluster:
        """Make the cluster again as it was when it was kept, whatever has become of it since."""
        self._remove_nodes()
        for place, copy in self.copies.items():
            shutil.rmtree(place)
            shutil.copytree(copy, place, symlinks=True)
        sources = InventorySources.of(self.cluster.box.inventory)
        hosts = ansible_inventory.read(sources, InventoryOptions()).hosts
        clusters.choose(sources, hosts, self.state)  # a module may have given the nodes other host keys
        box = self.cluster.box
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._start, self.images))
            container_engine.pin_bridge(self.engine, box.name)
            list(pool.map(functools.partial(lifecycle._host_key, self.engine), box.nodes))  # noqa: SLF001 - waits for sshd
        made = Cluster(box)
        made.first_s = self.cluster.first_s
        return made

    def _start(self, container: str) -> None:
        self.engine.run(*self.images[container])
        self.engine.run("start", container, folder=self.cluster.box.inventory.parent)

    def _remove_nodes(self) -> None:
        self.engine.run("rm", "--force", "--ignore", "--time", "0", *self.images)

    def remove(self) -> None:
        self._remove_nodes()
        self.engine.run("rmi", "--force", *(arguments[-1] for arguments in self.images.values()))


def remove_images_of_killed_runs(engine: Podman) -> None:
    images = engine.text("images", "--filter", f"reference={REPOSITORY}", "--format", "{{.Repository}}:{{.Tag}}")
    for image in images.splitlines():
        if is_of_a_killed_run(image):
            engine.succeeds("rmi", "--force", image)  # another worker may do it at the same time


def is_of_a_killed_run(name: str) -> bool:
    """Whether the process whose number a sandbox or a node has in its name is gone, or another has its number."""
    found = re.search(r"test-[a-z0-9-]+?-(\d+)(-node\d+)?$", name)
    return found is not None and (int(found[1]) == os.getpid() or not Path("/proc", found[1]).exists())
