"""Prove that every GPU of a node computes and copies right, and measure how fast it does.

mpirun starts one process per node; MPI is not used. PyTorch makes the products and the copies. ``rank_program.py`` and
``measure.py`` explain the lines that are printed.

``gpu_compute``  All GPUs of a node multiply matrices at the same time, one type after the other. A product of whole
                 numbers has a known result, exact in every type. A product of random numbers is made again and again
                 for ``--budget`` seconds. Every second batch is compared bit by bit with the first product. The digest
                 of that product is a fact, so that the controller compares GPUs of one model. cuBLAS promises the same
                 bits on GPUs with the same architecture and number of multiprocessors (its reference, "Results
                 Reproducibility"). ``nvidia-smi`` is asked meanwhile for clocks, power and what slows them down.
``gpu_copies``   One GPU after the other copies: from the host, to the host, within its memory, and to each other GPU.
                 Every byte is compared. The PCIe link is read from sysfs while it is busy, since idle links are slower.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, NamedTuple

import gpu_state
import measure
import nccl_library
import rank_program

CHECKS = ("gpu_compute", "gpu_copies")
RESERVE = 0.85  # share of the deadline for the work; the rest is for the start and the end
SEED = 20240229
ORDER, KNOWN_ORDER = 8192, 1024  # of the matrices; products of the larger ones take far longer than their launch
DRAWN = (1 << 22) + 1  # random numbers, repeated; odd, so that no two rows are alike
WINDOW_S = 0.1  # length of a sample
MOST_PRODUCTS = 2000  # in a sample
MOST_COMPARED = 64  # in a batch between two samples
DIGEST = 12  # characters
COPIES = 4  # in a sample
DRIVER = Path("/proc/driver/nvidia/version")
SYS = Path("/sys")


class Kind(NamedTuple):
    """A type of numbers: PyTorch's name of it, and the least compute capability of a GPU that multiplies it."""

    name: str
    dtype: str
    capability: tuple[int, int]


KINDS = (
    Kind("fp32", "float32", (0, 0)),
    Kind("tf32", "float32", (8, 0)),
    Kind("bf16", "bfloat16", (8, 0)),
    Kind("fp16", "float16", (7, 0)),
    Kind("fp8", "float8_e4m3fn", (8, 9)),
)


class Card:
    """A GPU as PyTorch sees it."""

    def __init__(self, torch: Any, index: int, place: str) -> None:
        """Learn what it is; ``place`` is its address on the PCI bus."""
        about = torch.cuda.get_device_properties(index)
        self.index, self.model, self.place = index, str(about.name), place.lower()
        self.capability = (int(about.major), int(about.minor))
        self.shape = f"{about.name}, {about.multi_processor_count} SMs"
        self.device = torch.device("cuda", index)

    @property
    def name(self) -> str:
        """``GPU 0 (NVIDIA H200, 0000:03:00.0)``."""
        return f"GPU {self.index} ({self.model}, {self.place})"


class Node:
    """The GPUs of a node and what is found of them."""

    def __init__(self, torch: Any, numpy: Any, rank: rank_program.Rank, ends: float) -> None:
        """Learn which GPUs there are.

        Raises:
            CheckError: the driver is missing, or it sees no GPU.
            RuntimeError: PyTorch sees none.
        """
        cuda = nccl_library.Cuda()
        count = torch.cuda.device_count()
        if not count:
            raise RuntimeError(f"PyTorch {torch.__version__} finds no GPU that it can use")
        self.torch, self.numpy, self.rank, self.ends = torch, numpy, rank, ends
        self.cards = [Card(torch, index, cuda.describe(index)[1]) for index in range(count)]
        self.lock = threading.Lock()
        rank.facts["versions"] = f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, driver {driver_version()}"
        rank.facts.update({f"gpu{card.index}_model": card.shape for card in self.cards})

    def attempt(self, card: Card, what: str, work: Callable[[], None]) -> None:
        """Do a work on a GPU; an error is a wrong answer of this GPU, and the others go on."""
        try:
            self.torch.cuda.set_device(card.index)
            work()
        except Exception as problem:  # noqa: BLE001 - the report must name it with the GPU
            with self.lock:
                self.rank.findings.note(f"{what} on {card.name}", "a result", f"{type(problem).__name__}: {problem}")


def driver_version(path: Path = DRIVER) -> str:
    """Return the version of NVIDIA's driver, ``unknown`` without it."""
    found = re.search(r"\s(\d+(?:\.\d+)+)\s", measure.read(path))
    return found[1] if found else "unknown"


# --- gpu_compute ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inputs:
    """Two square matrices of float32 in main memory, the same on every node; the right one is stored by columns."""

    left: Any
    columns: Any


def random_inputs(numpy: Any, order: int) -> Inputs:
    """Return random numbers; numpy promises that RandomState gives the same ones in every release."""
    drawn = numpy.random.RandomState(SEED)
    count = min(DRAWN, order * order)
    return Inputs(*(numpy.resize(drawn.standard_normal(count).astype("f4"), (order, order)) for _unused in range(2)))


def whole_inputs(numpy: Any, order: int) -> Inputs:
    """Return numbers of -1, 0 and 1: sums of so few are exact in every type, whatever their order."""
    drawn = numpy.random.RandomState(SEED + 1)
    return Inputs(*(drawn.randint(-1, 2, (order, order)).astype("f4") for _unused in range(2)))


class Product:
    """A matrix product of one type on one GPU, made into the same memory each time."""

    def __init__(self, torch: Any, kind: Kind, card: Card, inputs: Inputs) -> None:
        """Have the matrices on the GPU; fp8 needs the right one by columns."""
        self.torch, self.kind = torch, kind
        dtype = getattr(torch, kind.dtype)
        self.left = torch.from_numpy(inputs.left).to(card.device).to(dtype)
        self.right = torch.from_numpy(inputs.columns).to(card.device).to(dtype).t()
        self.fp8 = kind.name == "fp8"
        if self.fp8:
            self.scale = torch.ones((), device=card.device)
        else:
            self.out = torch.empty(inputs.left.shape, dtype=dtype, device=card.device)

    def make(self) -> None:
        """Begin a product; it is done when the GPU is synchronized."""
        if self.fp8:
            scales = {"scale_a": self.scale, "scale_b": self.scale}
            self.out = self.torch._scaled_mm(self.left, self.right, out_dtype=self.torch.bfloat16, **scales)  # noqa: SLF001
        else:
            self.torch.matmul(self.left, self.right, out=self.out)

    def bits(self, of: Any) -> Any:
        """Return a result as whole numbers, since not-a-number differs from itself."""
        return of.view(self.torch.int32 if of.element_size() == 4 else self.torch.int16)  # noqa: PLR2004 - bytes

    def numbers(self) -> Any:
        """Return the last result as float32 in main memory."""
        return self.out.float().cpu().numpy()


class Compute:
    """The check ``gpu_compute`` on one node."""

    def __init__(self, node: Node) -> None:
        """Make the matrices in main memory."""
        self.node, self.torch, self.options = node, node.torch, node.rank.arguments
        self.known = whole_inputs(node.numpy, min(KNOWN_ORDER, self.options.order))
        self.expected = self.known.left @ self.known.columns.T
        self.inputs = random_inputs(node.numpy, self.options.order)
        self.digests: dict[int, list[str]] = {card.index: [] for card in node.cards}
        self.samples: dict[tuple[int, str], list[float]] = {}

    def go(self) -> None:
        """Multiply in each type on all GPUs at once, watch the clocks meanwhile, and print what was found."""
        rank = self.node.rank
        watch = gpu_state.Watch()
        watch.start()
        for kind in KINDS:
            self.at_once(kind)
        watch.stop()
        looks = watch.looks
        gpu_state.report(rank, looks, watch.lost)
        rank.figures.update(gpu_state.clock_figures(looks))
        for card in self.node.cards:
            rank.facts[f"gpu{card.index}_digests"] = " ".join(self.digests[card.index])
            for kind in KINDS:
                found = self.samples.get((card.index, kind.name))
                if found:
                    about = {"operation": kind.name, "backend": card.model, "algorithm": f"GPU {card.index}"}
                    measure.say(rank.voice, found, quantity="gpu_compute", unit="FLOP/s", better="higher", **about)

    def at_once(self, kind: Kind) -> None:
        """Multiply in one type on all GPUs that have it, a thread for each."""
        self.node.rank.doing(f"products in {kind.name}")
        settings = self.torch.backends.cuda.matmul
        settings.allow_tf32 = kind.name == "tf32"
        settings.allow_fp16_reduced_precision_reduction = settings.allow_bf16_reduced_precision_reduction = False
        until = min(self.node.ends, time.monotonic() + self.options.budget)
        able = [card for card in self.node.cards if card.capability >= kind.capability]
        threads = [
            threading.Thread(target=self.node.attempt, args=(card, f"a product in {kind.name}", work), daemon=True)
            for card in able
            for work in [lambda card=card: self.multiply(card, kind, until)]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def multiply(self, card: Card, kind: Kind, until: float) -> None:
        """Make products of one type on one GPU until the time is up."""
        findings, lock = self.node.rank.findings, self.node.lock
        whole = Product(self.torch, kind, card, self.known)
        whole.make()
        numbers = whole.numbers()
        product = Product(self.torch, kind, card, self.inputs)
        product.make()
        first = product.out.clone()
        none = int(self.torch.isnan(first).sum())
        with lock:
            findings.array(f"{kind.name} product of whole numbers on {card.name}", numbers, self.expected)
            findings.value(f"values that are not a number in a {kind.name} product on {card.name}", none, 0)
        count, samples = self.in_a_window(product, card), []
        compared, wrong, where = 0, 0, ""
        while True:
            samples.append(2.0 * self.options.order**3 * count / self.seconds(product, card, count))
            for _unused in range(min(count, MOST_COMPARED)):
                product.make()
                different = product.bits(product.out) != product.bits(first)
                compared += 1
                if bool(different.any()):
                    wrong, where = wrong + 1, where or difference(different, first, product.out)
            if time.monotonic() >= until:
                break
        digest = hashlib.sha256(product.bits(first).cpu().numpy().tobytes()).hexdigest()[:DIGEST]
        with lock:
            findings.compared += compared
            if wrong:
                what = f"{kind.name} products on {card.name}, {wrong} of {compared} differ from the first"
                findings.note(what, *where.split(" / "))
            self.digests[card.index] += [kind.name, digest]
            self.samples[card.index, kind.name] = samples

    def in_a_window(self, product: Product, card: Card) -> int:
        """Return how many products fill a window; the first one is not timed, since libraries load then."""
        self.seconds(product, card, 1)
        return max(1, min(MOST_PRODUCTS, int(WINDOW_S / self.seconds(product, card, 1))))

    def seconds(self, product: Product, card: Card, count: int) -> float:
        """Make so many products, and return the seconds that they took."""
        self.torch.cuda.synchronize(card.index)
        began = time.perf_counter()
        for _unused in range(count):
            product.make()
        self.torch.cuda.synchronize(card.index)
        return max(1e-9, time.perf_counter() - began)


def difference(different: Any, first: Any, last: Any) -> str:
    """Return the first and the last result at the first place where they differ: ``value 7: 1.5 / 1.25``."""
    at = int(different.cpu().numpy().reshape(-1).argmax())
    values = [one.float().cpu().numpy().reshape(-1)[at].item() for one in (first, last)]
    return f"value {at}: {values[0]!r} / {values[1]!r}"


# --- gpu_copies -------------------------------------------------------------------------------------------------------

ENCODING_FROM = 8.0  # GT/s; PCIe 3.0 and later send 128 bits as 130, earlier ones 8 as 10 (PCIe base specification)
LEAST_SHARE = 0.5  # of what the link can carry; healthy links reach 75 to 90 % of it
NO_LINK = 1.05  # copies faster than the link by this show that sysfs tells another link (a VM, NVLink to the CPU)
ONE_WAY = 2.0  # times by which the two ways between two GPUs may differ
NO_LANES = (0, 255)  # what the kernel tells where it does not know


class Link(NamedTuple):
    """A PCIe link now, and what both of its ends can, 0 where an end is not told: GT/s of a lane, and lanes."""

    speed: float
    width: int
    most_speed: float
    most_width: int

    @property
    def bytes_per_s(self) -> float:
        """What it can carry now."""
        share = 128 / 130 if self.speed >= ENCODING_FROM else 0.8
        return self.speed * 1e9 * share / 8 * self.width

    @property
    def trained_low(self) -> bool:
        """Whether it is slower or narrower than both ends can."""
        return self.speed < self.most_speed or self.width < self.most_width

    @property
    def words(self) -> str:
        """``16 GT/s x8 of 32 GT/s x16``."""
        most = f"{self.most_speed:g} GT/s x{self.most_width}" if self.most_width else "an unknown port"
        return f"{self.speed:g} GT/s x{self.width} of {most}"


def link_of(place: str, root: Path = SYS) -> Link | None:
    """Return the link of a device on the PCI bus, None where the kernel does not tell it."""
    device = root / "bus" / "pci" / "devices" / place
    if not device.exists():
        return None
    device = device.resolve()
    now = (_speed(device / "current_link_speed"), _width(device / "current_link_width"))
    ends = [(_speed(end / "max_link_speed"), _width(end / "max_link_width")) for end in (device, device.parent)]
    if not all(now):
        return None
    if not all(map(all, ends)):  # in a virtual machine, the port above a GPU has none of these files
        return Link(*now, 0.0, 0)
    return Link(*now, min(end[0] for end in ends), min(end[1] for end in ends))


def _speed(path: Path) -> float:
    found = re.match(r"(\d{1,3}(?:\.\d)?) GT/s", measure.read(path))
    return float(found[1]) if found else 0.0


def _width(path: Path) -> int:
    text = measure.read(path)
    lanes = int(text) if re.fullmatch(r"[0-9]{1,3}", text) else 0
    return 0 if lanes in NO_LANES else lanes


def link_problems(link: Link | None, rates: dict[str, float]) -> list[tuple[str, str, str]]:
    """Return what is wrong with a link: of what, expected and got.

    Args:
        link: as sysfs tells it.
        rates: bytes per second of the copies over it, by the way in words.
    """
    if link is None or max(rates.values()) > NO_LINK * link.bytes_per_s:
        return []
    found = []
    if link.trained_low:
        expected = f"{link.most_speed:g} GT/s x{link.most_width}, as both ends can"
        found.append(("PCIe link", expected, f"{link.speed:g} GT/s x{link.width}"))
    least = LEAST_SHARE * link.bytes_per_s
    for way, rate in rates.items():
        if rate < least:
            expected = f"at least {least / 1e9:.3g} GB/s, half of what its PCIe link ({link.words}) carries"
            found.append((f"copies {way}", expected, f"{rate / 1e9:.3g} GB/s"))
    return found


def uneven(rates: dict[tuple[int, int], float]) -> list[tuple[int, int]]:
    """Return the ways between GPUs that are far slower than the way back, from and to."""
    return [(a, b) for (a, b), rate in rates.items() if ONE_WAY * rate < rates.get((b, a), 0.0)]


class Copies:
    """The check ``gpu_copies`` on one node."""

    def __init__(self, node: Node) -> None:
        """Take page-locked buffers, which the GPU's own engines read and write."""
        torch, numpy = node.torch, node.numpy
        self.node, self.torch, self.options = node, torch, node.rank.arguments
        self.size = self.options.size
        block = numpy.frombuffer(numpy.random.RandomState(SEED).bytes(min(self.size, 1 << 20)), dtype="u1")
        self.pattern = numpy.resize(block, self.size)
        self.source = torch.from_numpy(self.pattern).pin_memory()
        self.target = torch.from_numpy(numpy.zeros(self.size, "u1")).pin_memory()

    def go(self) -> None:
        """Copy with one GPU after the other, then between them."""
        between: dict[tuple[int, int], float] = {}
        for card in self.node.cards:
            self.node.attempt(card, "copies", lambda card=card: self.alone(card))  # type: ignore[misc]
        for card in self.node.cards:
            for peer in self.node.cards:
                if peer is not card:
                    self.node.attempt(
                        card,
                        f"a copy to {peer.name}",
                        lambda card=card, peer=peer: between.update(self.to_peer(card, peer)),  # type: ignore[misc]
                    )
        for a, b in uneven(between):
            names = f"{self.node.cards[a].name} to {self.node.cards[b].name}"
            expected = f"about {between[b, a] / 1e9:.3g} GB/s, as on the way back"
            self.node.rank.findings.note(f"copies from {names}", expected, f"{between[a, b] / 1e9:.3g} GB/s")

    def alone(self, card: Card) -> None:
        """Copy from the host, within the GPU's memory and to the host, and hold the link against it."""
        rank = self.node.rank
        one, other = (self.empty(card) for _unused in range(2))
        looks: list[Link | None] = []
        to = self.measured(
            card, f"host to GPU {card.index}", one, self.source, lambda: looks.append(link_of(card.place))
        )
        self.measured(card, f"GPU {card.index}", other, one, moved=2)
        back = self.measured(card, f"GPU {card.index} to host", self.target, other)
        links = [look for look in looks if look is not None]
        link = max(links, key=lambda look: look.bytes_per_s, default=None)
        rank.facts[f"gpu{card.index}_link"] = link.words if link else "not told"
        for what, expected, got in link_problems(link, {"from the host": to, "to the host": back}):
            rank.findings.note(f"{what} of {card.name}", expected, got)

    def to_peer(self, card: Card, peer: Card) -> dict[tuple[int, int], float]:
        one, other = self.empty(card), self.empty(peer)
        one.copy_(self.source)
        direct = self.torch.cuda.can_device_access_peer(card.index, peer.index)
        way = f"GPU {card.index} to GPU {peer.index}"
        rate = self.measured(card, way, other, one, peer=peer)
        self.node.rank.facts["peers"] = "direct" if direct and self.node.rank.facts.get("peers") != "host" else "host"
        return {(card.index, peer.index): rate}

    def empty(self, card: Card) -> Any:
        return self.torch.empty(self.size, dtype=self.torch.uint8, device=card.device)

    def measured(
        self,
        card: Card,
        way: str,
        target: Any,
        source: Any,
        busy: Callable[[], None] = lambda: None,
        moved: int = 1,
        peer: Card | None = None,
    ) -> float:
        """Copy until the rate is known well enough, compare every byte, and return the median in bytes per second.

        Args:
            card: the GPU whose memory it is about.
            way: in words.
            target: where to.
            source: where from.
            busy: is called while copies are under way.
            moved: how often a byte passes the memory.
            peer: the other GPU.
        """
        rank, options = self.node.rank, self.options
        rank.doing(f"copies {way}")
        cards = [one for one in (card, peer) if one is not None]
        target.zero_()

        def take() -> float:
            for one in cards:
                self.torch.cuda.synchronize(one.index)
            began = time.perf_counter()
            for _unused in range(COPIES):
                target.copy_(source, non_blocking=True)
            busy()
            for one in cards:
                self.torch.cuda.synchronize(one.index)
            return COPIES * moved * self.size / max(1e-9, time.perf_counter() - began)

        found = measure.until_sure(
            take,
            warmup=1,
            at_least=6,
            at_most=200,
            budget_s=options.budget,
            confidence=options.confidence,
            precision=options.precision,
            deadline=self.node.ends,
        )
        rank.findings.array(f"a copy {way} ({card.name})", target.cpu().numpy(), self.pattern)
        if not found.values:
            raise RuntimeError("the time was too short for a copy")
        about = {"operation": "copy", "backend": card.model, "algorithm": way, "bytes": self.size}
        measure.say(rank.voice, found.values, quantity="copy_bandwidth", unit="B/s", better="higher", **about)
        return found.median


def prove(rank: rank_program.Rank, ends: float) -> None:
    rank.doing("import torch")
    import numpy as np  # noqa: PLC0415 - "started" is said before anything that can fail
    import torch  # noqa: PLC0415 - the same

    node = Node(torch, np, rank, ends)
    (Compute if rank.arguments.check == "gpu_compute" else Copies)(node).go()


def work(rank: rank_program.Rank) -> int:
    """Report; the code is 0 in any case, since mpirun would end the other nodes with an error."""
    rank.libraries = ()
    ends = rank.began + RESERVE * rank.arguments.deadline
    rank.begin()
    rank.attempt(lambda: prove(rank, ends))
    return 0


def main() -> int:
    """Say that this rank is up, then work."""
    parser = rank_program.parser("Prove the GPUs of every node. Started by mpirun, one process a node.", CHECKS)
    parser.add_argument("--budget", type=float, default=1.0, help="seconds for a type of numbers, or for a way")
    parser.add_argument("--confidence", type=float, default=0.95, help="of the interval of each median")
    parser.add_argument("--precision", type=float, default=0.02, help="half width of the interval that is enough")
    parser.add_argument("--order", type=int, default=ORDER, help="of the matrices")
    parser.add_argument("--size", type=int, default=64 << 20, help="bytes of a copy")
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the numbers of nvidia-smi
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS's reference: the same bits each time
    return rank_program.run(parser.parse_args(), work)


if __name__ == "__main__":
    sys.exit(main())
