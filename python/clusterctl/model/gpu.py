"""Type of a GPU of a node."""

from __future__ import annotations

from typing import Literal

from clusterctl.model.base import Fact


class Gpu(Fact):
    """A GPU on the bus; ``driver`` is empty when none has taken it.

    ``unusable`` says why jobs cannot use a GPU, and ``problem`` says it in a clause: without NVIDIA's driver, with a
    driver that lies in a container, without its device file or its library, with two versions of the driver, or in MIG
    mode without an instance. ``display`` is a card of the class of screens. ``instances`` are its MIG instances' names.
    ``numa`` is its NUMA node, -1 where unknown; ``pci_path`` has the bridges of PCI from the root, then the GPU itself.
    """

    bus: str
    name: str = ""
    uuid: str = ""
    driver: str = ""
    display: bool = False
    unusable: Literal["", "driver", "container", "device", "library", "versions", "mig"] = ""
    problem: str = ""
    instances: tuple[str, ...] = ()
    numa: int = -1
    pci_path: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether NVIDIA's driver has taken it and a session's programs reach that driver."""
        return self.driver == "nvidia" and not self.unusable

    @property
    def devices(self) -> tuple[str, ...]:
        """What ranks take one by one: its MIG instances, else the GPU itself; nothing of one that jobs cannot use."""
        return (self.instances or (self.uuid,)) if self.usable else ()
