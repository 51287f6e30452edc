"""Cards that could do RDMA and that no driver has taken."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import machine
from clusterctl.support import content

gate = content.module_util("node_record_gate")


def test_an_rdma_card_without_a_driver_is_told(tmp_path: Path) -> None:
    """Composed by sysfs-bus-pci: cards with and without a driver, of a virtual function, and of another vendor."""
    cards = {
        "0000:5e:00.0": ("0x15b3", "0x020700", ""),
        "0000:5e:00.1": ("0x15b3", "0x020000", ""),
        "0000:5f:00.0": ("0x15b3", "0x020700", "driver"),
        "0000:5f:00.2": ("0x15b3", "0x020700", "physfn"),
        "0000:60:00.0": ("0x8086", "0x020000", ""),
        "0000:61:00.0": ("0x15b3", "0x060400", ""),
    }
    for bus, (vendor, kind, link) in cards.items():
        place = tmp_path / "sys" / "bus" / "pci" / "devices" / bus
        place.mkdir(parents=True)
        (place / "vendor").write_text(f"{vendor}\n")
        (place / "class").write_text(f"{kind}\n")
        if link:
            (place / link).symlink_to(tmp_path)
    assert machine.driverless_cards(str(tmp_path)) == {"driverless_cards": ["0000:5e:00.0", "0000:5e:00.1"]}
    assert machine.driverless_cards(str(tmp_path / "none")) == {"driverless_cards": []}
    assert gate.FORMS["driverless_cards"](["0000:5e:00.0"]) == ["0000:5e:00.0"]
