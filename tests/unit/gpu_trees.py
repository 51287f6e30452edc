"""Trees of /proc, /sys and /dev of hosts with GPUs, composed as tests/data/gpu_hosts/README.md says."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"
UUIDS = ("GPU-a22537c7-6eaa-7bdb-0ba4-45e67e84e963", "GPU-91d61502-6349-8428-a597-fd33747ccbee")
COMPUTE, DISPLAY = "0x030200", "0x030000"


def written(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def bus_of(number: int) -> str:
    return f"0000:{number + 7:02x}:00.0"


def on_the_bus(root: Path, count: int = 2, driver: str = "", kind: str = COMPUTE) -> Path:
    """Put GPUs on the PCI bus, taken by a driver of the kernel or by none."""
    for number in range(count):
        place = root / "sys" / "bus" / "pci" / "devices" / bus_of(number)
        written(place / "vendor", "0x10de\n")
        written(place / "class", f"{kind}\n")
        if driver:
            (place / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
    return root


def with_modules(root: Path, count: int = 2) -> Path:
    """Make a host whose kernel has NVIDIA's modules loaded, with device files."""
    on_the_bus(root, count, "nvidia")
    version = (DATA / "node_probe" / "nvidia-version.open.txt").read_text()
    written(root / "proc" / "driver" / "nvidia" / "version", version)
    about = (DATA / "stack" / "gpu-information.txt").read_text()
    for number in range(count):
        text = about.replace("GPU-00000000-0000-0000-0000-000000000000", UUIDS[number])
        text = text.replace("Device Minor: \t 0", f"Device Minor: \t {number}")
        written(root / "proc" / "driver" / "nvidia" / "gpus" / bus_of(number) / "information", text)
        written(root / "dev" / f"nvidia{number}")
    written(root / "dev" / "nvidiactl")
    return root


def with_instances(root: Path, minor: int, *instances: tuple[int, int]) -> Path:
    """Cut a GPU into MIG instances, each with its numbers of GPU instance and compute instance."""
    base = root / "proc" / "driver" / "nvidia" / "capabilities" / f"gpu{minor}" / "mig"
    for gpu_instance, compute_instance in instances:
        written(base / f"gi{gpu_instance}" / "access")
        written(base / f"gi{gpu_instance}" / f"ci{compute_instance}" / "access")
    return root


def library(folder: Path, version: str) -> str:
    """Lay a libcuda of a version for this machine into a folder, and return the folder for LD_LIBRARY_PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    with Path("/proc/self/exe").open("rb") as stream:
        (folder / f"libcuda.so.{version}").write_bytes(stream.read(64))
    (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")
    return str(folder)
