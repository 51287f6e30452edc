"""Keep what a GPU machine tells of itself, as files that can be committed: they replace composed ones in tests/data.

``make test-gpu`` writes the folder. Serial numbers, UUIDs, GUIDs, addresses, host names and names of programs become
others of the same form, each value the same one in all files. Python 3.9 and its standard library suffice.
"""

from __future__ import annotations

import json
import pickle
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for place in ("plugins/module_utils", "roles/validation/files"):
    sys.path.insert(0, str(ROOT / place))

import flight_record  # noqa: E402 - it lies in a folder above, as those below
import gpu_state  # noqa: E402
from node_look.hardware.record import collect  # noqa: E402

TOOLS = {
    "nvidia-smi-q-x.xml": ("nvidia-smi", "-q", "-x"),
    "nvidia-smi-L.txt": ("nvidia-smi", "-L"),
    "nvlink-s.txt": ("nvidia-smi", "nvlink", "-s"),
    "nvlink-e.txt": ("nvidia-smi", "nvlink", "-e"),
    "topo-m.txt": ("nvidia-smi", "topo", "-m"),
    "topo-p2p-n.txt": ("nvidia-smi", "topo", "-p2p", "n"),
    "gpu-state.csv": gpu_state.question("nvidia-smi", gpu_state.MASKS[0]),
}
DRIVER = "/proc/driver/nvidia"
RECORD = 2  # protocol of pickle that PyTorch uses
TOOL_S = 40.0
# Of a device of PCI; not its config space and its vital product data, which hold serial numbers.
PCI_FILES = (
    "vendor",
    "device",
    "subsystem_vendor",
    "subsystem_device",
    "class",
    "revision",
    "numa_node",
    "local_cpulist",
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
    "aer_dev_correctable",
    "aer_dev_nonfatal",
    "aer_dev_fatal",
)
PCI_CLASSES = ("0x0300", "0x0302", "0x0200", "0x0207", "0x0680")  # GPUs, network and InfiniBand cards, NVSwitches
MOST_FILE = 1 << 16
LEAST_SECRET = 4  # characters
SERIAL_OF_PART = 3  # kind, place, model, serial
SECRET_TAG = re.compile(r"<(\w*(?:serial|uuid|guid)\w*|pdi)>([^<]+)</\1>", re.IGNORECASE)
PROGRAM_TAG = re.compile(r"(<process_name>)[^<]*(</process_name>)")
BUILDER = re.compile(r"\([\w.-]+@[\w.-]*\)")  # who compiled the driver, and where, in /proc/driver/nvidia/version
SECRET_KEY = re.compile(r"serial|uuid|guid|asset|machine_id|boot_id|hardware_address|\bmac\b", re.IGNORECASE)
OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
SECRETS: tuple[tuple[str, str], ...] = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "00000000-0000-0000-0000-{:012x}"),
    (r"(?<![0-9a-f:])(?:[0-9a-f]{4}:){7}[0-9a-f]{4}(?![0-9a-f:])", "fe80:0000:0000:0000:0000:0000:0000:{:04x}"),
    (r"(?<![0-9a-f:])[0-9a-f]{4}:[0-9a-f]{4}:[0-9a-f]{4}:[0-9a-f]{4}(?![0-9a-f:])", "0000:0000:0000:{:04x}"),
    (r"(?<![0-9a-f:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![0-9a-f:])", "02:00:00:00:00:{:02x}"),
    (rf"(?<![\w.])(?!127\.|0\.0\.0\.0)(?:{OCTET}\.){{3}}{OCTET}(?![\w.])", "10.0.0.{}"),
    (r"(?<![\w:])(?:fe80|f[cd][0-9a-f]{2}|2[0-9a-f]{3})(?::[0-9a-f]{0,4}){2,7}(?![\w:])", "fd00::{:x}"),
)
WORTHLESS = frozenset({"", "n/a", "none", "unknown", "0", "[n/a]", "not specified", "to be filled by o.e.m."})
LOGS = {
    "nccl-log": "raw output of two ranks or more, with NCCL's log",
    "nccl-ras": "answers of NCCL's RAS, and which process is which rank",
    "flight-": "a rank's record of PyTorch's flight recorder, a pickle",
}
README = """# What a GPU machine told of itself

Written by `make test-gpu` ({when}); not edited. Serial numbers, UUIDs, GUIDs, addresses, host names and names of
programs and builders were replaced by others of the same form, each value by the same one in all files.

| file | what it is |
|---|---|
{rows}
"""


class Masks:
    """What stands for each secret; the same one each time."""

    def __init__(self, hosts: Iterable[str]) -> None:
        """Begin with the names of hosts."""
        self.known: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.given: set[str] = set()  # what stands for a secret has its form, and is none
        for number, host in enumerate(dict.fromkeys(name for name in hosts if len(name) > 1), 1):
            self.known[host.lower()] = f"node{number}"

    def learn(self, secret: str) -> None:
        """Note a serial number; a word that names nothing stays, and so does what a pattern knows anyway."""
        secret = secret.strip()
        has_form = any(re.search(pattern, secret, re.IGNORECASE) for pattern, _form in SECRETS)
        if has_form or len(secret) < LEAST_SECRET or secret.lower() in WORTHLESS:
            return
        if secret.lower() not in self.known:
            number = self.counts["serial"] = self.counts.get("serial", 0) + 1
            self.known[secret.lower()] = str(number).zfill(len(secret))

    def hidden(self, text: str) -> str:
        """Return a text without secrets."""
        text = BUILDER.sub("(builder@host)", PROGRAM_TAG.sub(r"\1program\2", text))
        for secret in sorted(self.known, key=len, reverse=True):
            text = re.sub(rf"(?<![\w]){re.escape(secret)}(?![\w])", self.known[secret], text, flags=re.IGNORECASE)
        for pattern, form in SECRETS:
            text = re.sub(pattern, lambda found, form=form: self._other(found.group(), form), text, flags=re.IGNORECASE)
        return text

    def hidden_record(self, data: bytes) -> bytes:
        """Return a record of PyTorch's flight recorder without secrets; of files outside packages the name stays."""
        try:
            return pickle.dumps(self._plain(flight_record.plain(data)), protocol=RECORD)
        except ValueError as problem:
            return f"{problem}\n".encode()

    def _plain(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: self._plain(one, str(name)) for name, one in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._plain(one) for one in value)
        if not isinstance(value, str):
            return value
        if key == "filename" and "/" in value:
            _before, is_packaged, within = value.rpartition("-packages/")
            return within if is_packaged else Path(value).name
        return self.hidden(value)

    def _other(self, secret: str, form: str) -> str:
        word = secret.lower()
        if word in self.given:
            return secret
        if word not in self.known:
            number = self.counts[form] = self.counts.get(form, 0) + 1
            self.known[word] = form.format(number)
            self.given.add(self.known[word])
        return self.known[word]


def learn_from(masks: Masks, value: Any, key: str = "") -> None:
    """Note the serial numbers in a record, by the names of its keys, and those of its parts."""
    if isinstance(value, dict):
        for name, one in value.items():
            learn_from(masks, one, str(name))
    elif isinstance(value, list):
        if key == "parts":
            for part in value:
                if isinstance(part, list) and len(part) > SERIAL_OF_PART:
                    masks.learn(str(part[SERIAL_OF_PART]))
        for one in value:
            learn_from(masks, one, "" if key == "parts" else key)
    elif isinstance(value, str) and SECRET_KEY.search(key):
        masks.learn(value)


def asked(command: tuple[str, ...]) -> str:
    """Return what a tool prints, or why it printed nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TOOL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return f"{type(problem).__name__}: {problem}\n"
    return done.stdout + (f"{done.stderr}(code {done.returncode})\n" if done.returncode else "")


def pci_files(root: Path = Path("/sys/bus/pci/devices")) -> dict[str, str]:
    """Return files of GPUs, network cards and the bridges above them, by their path below /sys."""
    found: dict[str, str] = {}
    for link in sorted(root.glob("*")) if root.is_dir() else []:
        if not text_of(link / "class").startswith(PCI_CLASSES):
            continue
        device = link.resolve()
        found[f"bus/pci/devices/{link.name}.path"] = f"{device}\n"
        for place in (device, *device.parents):
            if not (place / "vendor").is_file():
                break
            for name in PCI_FILES:
                if text := text_of(place / name):
                    found[f"bus/pci/devices/{place.name}/{name}"] = text
    return found


def driver_files(root: Path = Path(DRIVER)) -> dict[str, str]:
    """Return what the driver shows in /proc of itself and of each GPU, by its path."""
    paths = [root / "version", *sorted(root.glob("gpus/*/information"))]
    return {f"proc/driver/nvidia/{path.relative_to(root)}": text for path in paths if (text := text_of(path))}


def text_of(path: Path) -> str:
    """Return a small file, '' where it cannot be read."""
    try:
        return path.read_bytes()[:MOST_FILE].decode("utf-8", "replace")
    except OSError:
        return ""


def captured(
    logs: dict[str, str | bytes], *, record: Callable[[dict[str, Any]], dict[str, Any]] = collect
) -> dict[str, str | bytes]:
    """Return all files by name, without secrets.

    Args:
        logs: what parts printed or were told, by the name of its file; bytes are records of the flight recorder.
        record: looks at the hardware.
    """
    hardware = record({})
    files = {name: asked(command) for name, command in TOOLS.items()}
    masks = Masks((socket.gethostname(), socket.gethostname().partition(".")[0]))
    learn_from(masks, hardware)
    for text in files.values():
        for _tag, secret in SECRET_TAG.findall(text):
            masks.learn(secret)
    files["node_hardware.json"] = json.dumps(hardware, indent=1, sort_keys=True) + "\n"
    files.update({f"sys/{name}": text for name, text in pci_files().items()})
    files.update(driver_files())
    return {
        name: masks.hidden_record(text) if isinstance(text, bytes) else masks.hidden(text)
        for name, text in {**files, **logs}.items()
    }


def keep(files: dict[str, str | bytes], folder: Path, when: str) -> Path:
    """Write the files with a README, and return the folder."""
    what = {name: " ".join(command) for name, command in TOOLS.items()}
    what["node_hardware.json"] = "the record of doctor's look at the hardware"
    rows = [f"| `{name}` | `{what[name]}` |" for name in files if name in what]
    for begin, words in LOGS.items():
        rows += [f"| `{name}` | {words} |" for name in files if name.startswith(begin)]
    rows += ["| `sys/` | PCI devices: GPUs, network cards, NVSwitches, and the bridges above them |"]
    rows += ["| `proc/` | what the driver shows of itself and of each GPU |"]
    for name, text in {**files, "README.md": README.format(when=when, rows="\n".join(rows))}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder
