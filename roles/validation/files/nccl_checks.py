"""The checks of NCCL by its own calls: prove that it gives right answers on the GPUs, and measure its speed.

mpirun starts the ranks, and mpi4py carries NCCL's unique id. On a machine without MPI, torchrun starts them, and
PyTorch's TCPStore carries the id. Every rank prints its findings as JSON lines; ``rank_program.py`` explains them.

1. Every rank loads libnccl through the loader's cache, as a non-interactive session does (``nccl_library.py``). It
   reports the file and the version that ncclGetVersion returns. The first rank of each node also runs the program that
   the role ``nccl`` has compiled against the header.
2. Ranks that have a GPU form one communicator (``nccl_library.py``). From NCCL 2.30.3 on, up to four ranks share a
   GPU; before, one rank per GPU takes part. Of a GPU in MIG mode, each instance takes part from NCCL 2.31 on; before,
   one instance does. The other ranks report that they stand aside.
3. Answers are compared with known ones.
4. Time and bus bandwidth are measured as nccl-tests does (``nccl_sweep.py``).

From NCCL 2.31 on, ``nccl`` and ``nccl_sweep`` have NCCL run its own diagnostics when the communicator begins. It prints
their report on standard output, and the controller reads it there. The user guide has them under "Troubleshooting",
"Diagnostics" and "RAS Diagnostics". They are left out where ranks share a GPU or have MIG instances, since the guide
says nothing of P2P there.

``nccl_sweep`` does steps 1 and 2. Then it measures more sizes and operations and watches the GPUs' clocks
(``nccl_sweep.py``). ``nccl_nvlink``, ``nccl_pcie`` and ``nccl_nic`` do steps 1 and 2 with one rank per GPU, and measure
one way alone; ``nccl_pairs`` leaves the way to NCCL. The checks need numpy, CUDA's driver and the libnccl under test.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import bounded_run
import nccl_sweep
import rank_program
import sweep_checks
from nccl_library import FLOAT32, LIBRARY, MAX, MIG, MIN, SUM, Communicator, Cuda, Mpi, Nccl, Store, crew, local_rank
from nccl_sweep import MEASURE_SHARE, Timing, sweep
from rank_program import CheckError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence


# Prove that NCCL's operations give right answers, for every type and several counts.
#
# Answers are compared with those known beforehand: small integers, exact in every type used, so there is no tolerance.
# Buffers are filled with another pattern before each operation. A margin behind each buffer must keep that pattern.

COUNTS = (1, 3, 1001, 40009, 1048583)  # values; the largest is beyond every switch of protocol. See Answers.counts
MARGIN = 64  # values behind the end of every receive buffer
ALL_PAIRS_UP_TO = 32  # ranks; beyond it send and receive go at distances 1, 2, 4, ...
ANSWERS_SHARE = 0.5  # of the deadline; later answers are left out, and the record says so


class Kind(NamedTuple):
    """A type of values: its number in ncclDataType_t, how it is stored, and up to where every integer is exact."""

    name: str
    number: int
    storage: str
    exact_to: int


KINDS = (
    Kind("u1", 1, "u1", 254),  # 255 fills the buffers before
    Kind("i4", 2, "i4", 2**31 - 1),
    Kind("i8", 4, "i8", 2**53),
    Kind("f2", 6, "f2", 2**11),
    Kind("bf16", 9, "u2", 2**8),
    Kind("f4", FLOAT32, "f4", 2**24),
    Kind("f8", 8, "f8", 2**53),
)


def distances(size: int) -> list[int]:
    """Return the distances between ranks that send to each other; up to 32 ranks, all of them."""
    if size == 1:
        return [0]
    return list(range(1, size)) if size <= ALL_PAIRS_UP_TO else [2**power for power in range(size.bit_length() - 1)]


class Answers:
    """Run every operation with known values, and note each wrong answer."""

    def __init__(self, team: Communicator) -> None:
        self.team, self.numpy, self.nccl, self.cuda = team, team.numpy, team.nccl, team.cuda
        self.ranks, self.report, self.rank, self.size = team.ranks, team.report, team.rank, team.size

    def values(self, count: int, rank: int) -> Any:
        """Return the numbers that a rank contributes; they differ by position and by rank."""
        return self.numpy.arange(count, dtype="i8") % 7 + 1 + rank

    def shares(self, first: int) -> Callable[[Any], Any]:
        """Return what tells each rank's share of the sums at some places, counted from ``first`` on."""
        ranks = self.numpy.arange(self.size)[:, None]
        return lambda places: ((places + first) % 7 + 1 + ranks).tolist()

    def stored(self, numbers: Any, kind: Kind) -> Any:
        """Return integers as the bytes of a type; bf16 is the upper half of f4."""
        if kind.name == "bf16":
            return (numbers.astype("f4").view("u4") >> 16).astype("u2")
        return numbers.astype(kind.storage)

    def read(self, stored: Any, kind: Kind) -> Any:
        return (stored.astype("u4") << 16).view("f4") if kind.name == "bf16" else stored

    def counts(self) -> Iterator[int]:
        """Yield how many values; the largest is less per rank where many ranks gather, for a host must hold it all."""
        for count in COUNTS:
            yield min(count, max(COUNTS[-2], COUNTS[-1] * 8 // self.size))

    def fits(self, kind: Kind, highest: int) -> bool:
        """Whether every number up to here is exact in a type."""
        return highest <= kind.exact_to

    def prove(
        self,
        what: str,
        kind: Kind,
        sent: Any,
        expected: Any,
        launch: Callable[[], None],
        part: int = 0,
        shares: Callable[[Any], Any] | None = None,
    ) -> None:
        """Run one operation and compare what arrived.

        Args:
            what: words for the report.
            kind: type of the values.
            sent: the numbers in the send buffer.
            expected: the numbers that must be in the receive buffer; None for a rank that receives nothing.
            launch: calls NCCL.
            part: number of values of the answer that come from each rank, 0 otherwise.
            shares: of a sum, as in :meth:`rank_program.Findings.array`.
        """
        numpy, cuda = self.numpy, self.cuda
        what = self.report.doing(f"{what} {kind.name}[{len(sent)}]")
        blank = kind.exact_to + 1 if kind.name == "u1" else -77
        room = (0 if expected is None else len(expected)) + MARGIN
        received = self.stored(numpy.full(room, blank, dtype="i8"), kind)
        content = self.stored(sent, kind)
        cuda.reserve(max(content.nbytes, received.nbytes))
        cuda.upload(cuda.send, content)
        cuda.upload(cuda.receive, received)
        launch()
        self.team.wait()
        if expected is None:
            self.report.findings.compared += 1  # taking part without an error is what this rank can prove
            return
        cuda.download(received, cuda.receive)
        got, wanted = self.read(received, kind), self.read(self.stored(expected, kind), kind)
        self.report.findings.array(what, got[: len(wanted)], wanted, part, shares=shares)
        margin = self.read(self.stored(numpy.full(MARGIN, blank, dtype="i8"), kind), kind)
        self.report.findings.array(f"{what}: the margin behind the buffer", got[len(wanted) :], margin)

    def prove_all(self, until: float) -> None:
        """Prove every operation with every type, small counts first; the first rank decides when it has been enough."""
        done = 0
        for count in self.counts():
            if not self.ranks.first_says(time.monotonic() < until):
                break
            for number, kind in enumerate(KINDS):
                self._reductions(kind, count, number % self.size)
                self._copies(kind, count, (number + self.size // 2) % self.size)
            done = count
        self.report.facts["largest"] = f"{done} values a rank"
        if done < COUNTS[-2]:
            raise CheckError(f"too slow: only {done} values a rank were proved in {ANSWERS_SHARE:.0%} of the deadline")

    def _reductions(self, kind: Kind, count: int, root: int) -> None:
        nccl, cuda, comm, size, stream = self.nccl, self.cuda, self.team.handle, self.size, self.cuda.stream
        mine, position = self.values(count, self.rank), self.values(count, 0)
        ranks_sum = size * (size - 1) // 2
        for name, operation, expected in (
            ("sum", SUM, position * size + ranks_sum),
            ("max", MAX, position + size - 1),
            ("min", MIN, position),
        ):
            if not self.fits(kind, int(expected.max())):
                continue

            def allreduce(operation: int = operation) -> None:
                nccl("ncclAllReduce", cuda.send, cuda.receive, count, kind.number, operation, comm, stream)

            its = self.shares(0) if name == "sum" else None
            self.prove(f"allreduce {name}", kind, mine, expected, allreduce, shares=its)
        if not self.fits(kind, 7 * size + ranks_sum):
            return
        total = position * size + ranks_sum

        def reduce() -> None:
            nccl("ncclReduce", cuda.send, cuda.receive, count, kind.number, SUM, root, comm, stream)

        sums = total if self.rank == root else None
        self.prove(f"reduce to rank {root}", kind, mine, sums, reduce, shares=self.shares(0))

        def reduce_scatter() -> None:
            nccl("ncclReduceScatter", cuda.send, cuda.receive, count, kind.number, SUM, comm, stream)

        whole = self.values(count * size, 0)
        share = whole[self.rank * count : (self.rank + 1) * count] * size + ranks_sum
        its = self.shares(self.rank * count)
        self.prove("reduce-scatter", kind, whole + self.rank, share, reduce_scatter, shares=its)

    def _copies(self, kind: Kind, count: int, root: int) -> None:
        nccl, cuda, comm, size, stream = self.nccl, self.cuda, self.team.handle, self.size, self.cuda.stream
        limit = min(kind.exact_to, 251)

        def from_rank(rank: int) -> Any:
            return self.values(count, rank) % limit

        mine = from_rank(self.rank)

        def broadcast() -> None:
            nccl("ncclBroadcast", cuda.send, cuda.receive, count, kind.number, root, comm, stream)

        self.prove(f"broadcast from rank {root}", kind, mine, from_rank(root), broadcast)

        def allgather() -> None:
            nccl("ncclAllGather", cuda.send, cuda.receive, count, kind.number, comm, stream)

        everybody = self.numpy.concatenate([from_rank(rank) for rank in range(size)])
        self.prove("allgather", kind, mine, everybody, allgather, part=count)
        for distance in distances(size):
            target, source = (self.rank + distance) % size, (self.rank - distance) % size

            def exchange(target: int = target, source: int = source) -> None:
                self.team.exchange(count, kind.number, target, source)

            self.prove(f"send to rank {target}, receive from rank {source}", kind, mine, from_rank(source), exchange)


CHECKS = ("nccl", "nccl_sweep", *nccl_sweep.CHECKS)
PREFIX = Path(__file__).absolute().parents[2]  # this lies in its libexec/clusterctl
INSTALLED = f"{PREFIX}/nccl/lib/libnccl.so.2"
PROOF = f"{PREFIX}/nccl/libexec/clusterctl-nccl-check"
PROOF_LIMIT_S = 60.0

SHARING_SINCE = 23003  # NCCL 2.30.3: NCCL_MULTI_RANK_GPU_ENABLE
INSTANCES_SINCE, INSTANCES_CUDA = 23100, 13  # NCCL 2.31 joins MIG instances of one GPU; its driver runs CUDA 13
DIAGNOSTICS_SINCE = 23100
DIAGNOSTICS = ("NCCL_RUN_DIAGNOSTICS", "NCCL_RUN_RAS_DIAGNOSTICS")
MOST_SHARING = 4  # ranks on one GPU; without MPS they take turns, and each step of a collective waits for a turn
SHARED_SETTINGS = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_NVLS_ENABLE": "0",  # a GPU can join a multicast group once
    "NCCL_MAX_CTAS": "2",  # the ranks' kernels must fit on the GPU side by side where MPS lets them
}


def prove_nccl(report: rank_program.Rank, ranks: Mpi | Store) -> None:
    """Load NCCL, then prove and measure it on the ranks that have a GPU."""
    began = time.monotonic()
    report.doing("loading NCCL")
    nccl = load(report)
    if local_rank() == 0:
        report.facts.update(proof(report.arguments.proof))
    report.findings.compared += 1  # the library is loaded
    report.doing("looking for a GPU")
    cuda = found_gpu(report)
    places = gpu_places(report, ranks, nccl, cuda)
    if not places:
        return
    one_way = report.arguments.check in nccl_sweep.CHECKS
    shares = nccl.code >= SHARING_SINCE or report.arguments.pretend_hosts
    most = MOST_SHARING if shares and not one_way else 1
    members = crew(places, most)
    side = ranks.among(members)
    if cuda is None:
        return
    if ranks.rank not in members:
        limit = mig_limit(nccl) if instance() else f"no more than {most} a GPU"
        report.facts["aside"] = limit if one_way else f"NCCL {nccl.version}: {limit}"
        return
    gpus = len({places[member] for member in members})
    if gpus < len(members):
        report.facts["shared"] = f"{len(members)} ranks on {gpus} GPU{'s' if gpus > 1 else ''}"
    set_environment(report)
    if not one_way:
        ask_for_diagnostics(report, nccl, side.rank)
    cuda.open(local_rank() % cuda.count)
    if one_way:
        nccl_sweep.go(report, nccl, cuda, side, [places[member].partition(" ")[0] for member in members])
        return
    team = Communicator(nccl, cuda, side, report)
    if report.arguments.check == "nccl_sweep":
        sweep(report, team)
    else:
        play(report, team, began)


def gpu_places(report: rank_program.Rank, ranks: Mpi | Store, nccl: Nccl, cuda: Cuda | None) -> list[str]:
    """Return each rank's GPU as ``host bus-id``, empty for a rank without a GPU.

    The list is empty when ranks have loaded different versions of NCCL, which is a finding. A communicator of different
    versions is refused by NCCL, or hangs.
    """
    place = ""
    if cuda:
        report.facts["gpu"], report.facts["gpu_place"] = cuda.describe(local_rank() % cuda.count)
        place = f"{report.voice.host} {report.facts['gpu_place']}"
        if instance():
            report.facts["mig_instance"] = instance()
            place += f" {instance() if joins_instances(nccl, cuda) else MIG}"
    report.doing("the exchange of who has which GPU")
    everybody = ranks.gathered([place, nccl.version])
    versions = sorted({str(entry[1]) for entry in everybody})
    if len(versions) > 1:
        report.findings.note("NCCL's version", f"one everywhere, not {' and '.join(versions)}", nccl.version)
        return []
    return [str(entry[0]) for entry in everybody]


def found_gpu(report: rank_program.Rank) -> Cuda | None:
    """Return CUDA if it sees a GPU; otherwise note the reason, which only the controller can judge."""
    try:
        cuda = Cuda()
        report.facts["cuda_driver"] = cuda.version
    except CheckError as problem:
        report.facts["no_gpu"] = str(problem)
        return None
    return cuda


def instance() -> str:
    """Return the MIG instance that the launch line gave to this rank, '' without MIG."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
    return first if first.startswith(MIG) else ""


def joins_instances(nccl: Nccl, cuda: Cuda) -> bool:
    """Tell whether a communicator takes several MIG instances of a GPU (NCCL's user guide, "Using MIG instances")."""
    return nccl.code >= INSTANCES_SINCE and int(cuda.version.partition(".")[0]) >= INSTANCES_CUDA


def mig_limit(nccl: Nccl) -> str:
    """Return in words how many ranks of a GPU in MIG mode take part."""
    if nccl.code < INSTANCES_SINCE:
        return "one MIG instance a GPU"
    return f"one rank a MIG instance, and one instance a GPU where the driver is not for CUDA {INSTANCES_CUDA}"


def set_environment(report: rank_program.Rank) -> None:
    """Set what NCCL reads when the first communicator begins; what the user has set stays, but for one way alone."""
    if "mig_instance" in report.facts:
        os.environ.setdefault("NCCL_MNNVL_ENABLE", "0")  # MIG has no NVLink between instances
    if "shared" in report.facts:
        for name, value in SHARED_SETTINGS.items():
            os.environ.setdefault(name, value)
    if report.arguments.pretend_hosts:
        os.environ["NCCL_HOSTID"] = f"clusterctl-{report.rank}"
    if report.arguments.check in nccl_sweep.CHECKS:
        os.environ.update(nccl_sweep.WAYS[report.arguments.check[len(nccl_sweep.BEGIN) :]].settings)
    os.environ.setdefault("NCCL_DEBUG", "WARN")  # the warnings before an error go into the log


def ask_for_diagnostics(report: rank_program.Rank, nccl: Nccl, rank: int) -> None:
    """Have NCCL diagnose the communicator where it can, and note the rank in it, by which NCCL calls this one."""
    report.facts["nccl_rank"] = str(rank)
    if nccl.code < DIAGNOSTICS_SINCE or "shared" in report.facts or "mig_instance" in report.facts:
        return
    for name in DIAGNOSTICS:
        os.environ.setdefault(name, "1")
    report.facts["nccl_diagnostics"] = "asked for"


def play(report: rank_program.Rank, team: Communicator, began: float) -> None:
    """Compare answers, measure if they are right, and leave in order."""
    deadline = report.arguments.deadline
    team.join()
    Answers(team).prove_all(began + ANSWERS_SHARE * deadline)
    if not any(team.ranks.gathered(report.findings.wrong)):  # the speed of wrong answers is of no use
        Timing(team).measure(began + MEASURE_SHARE * deadline, shared="shared" in report.facts)
    report.doing("ncclCommDestroy")
    team.leave()


def load(report: rank_program.Rank) -> Nccl:
    """Load NCCL and note its file, its version, the installed file, and other mapped copies of NCCL."""
    facts = report.facts
    facts["nccl_installed"] = str(Path(INSTALLED).resolve()) if Path(INSTALLED).exists() else ""
    nccl = Nccl(report.arguments.library)
    facts["nccl_version"], facts["nccl_path"] = nccl.version, nccl.path
    others = [f"{Nccl(path).version} of {path}" for path in mapped_files("libnccl") if path != nccl.path]
    if others:
        facts["nccl_beside"] = ", ".join(others)
    return nccl


def mapped_files(name: str) -> list[str]:
    """Return the real paths of all files ``name.so…`` that this process has mapped."""
    wanted = re.compile(rf"/{re.escape(name)}\.so[^/]*$")
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    paths = [line[line.find("/") :] for line in lines if wanted.search(line)]
    return list(dict.fromkeys(str(Path(path).resolve()) for path in paths))


def proof(program: str) -> dict[str, str]:
    """Run the program that was compiled against the header, and return its report, empty without that program.

    Raises:
        CheckError: it does not load NCCL, or its output is not a report.
    """
    if not Path(program).exists():
        return {}
    try:
        done = bounded_run.run([program], PROOF_LIMIT_S)
        if done.status:
            raise CheckError(f"{program}: {' '.join(done.errors.split()) or f'code {done.status}'}")
        said = json.loads(done.output)
        return {f"proof_{name}": str(said[name]) for name in ("version", "header", "path")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise CheckError(f"{program} gave no answer: {type(problem).__name__}: {problem}") from problem


def under_torchrun(report: rank_program.Rank) -> int:
    """Let PyTorch's store carry what mpi4py would."""

    def body() -> None:
        from torch.distributed import TCPStore  # noqa: PLC0415 - "started" is said before this import

        environment = os.environ
        agent_has_it = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        store = TCPStore(
            environment["MASTER_ADDR"],
            int(environment["MASTER_PORT"]),
            report.size,
            is_master=report.rank == 0 and not agent_has_it,
        )
        report.begin()
        ranks = Store(store, report.rank, report.size)
        prove_nccl(report, ranks)
        report.doing("the barrier at the end")
        ranks.gathered(0)

    report.doing("PyTorch's store")
    return report.code if report.attempt(body) else 1


def work(report: rank_program.Rank) -> int:
    report.libraries = ("libmpi", "libnccl")
    if report.arguments.launcher == "torchrun":
        return under_torchrun(report)
    return rank_program.with_mpi(report, lambda mpi: prove_nccl(report, Mpi(mpi.COMM_WORLD)))


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    words = rank_program.parser("Prove that NCCL gives right answers. Started by mpirun or torchrun.", CHECKS)
    sweep_checks.add_options(words)
    words.add_argument("--library", default=LIBRARY, help="the libnccl to load; a bare name is left to the loader")
    words.add_argument("--proof", default=PROOF, help="the program that was compiled against NCCL's header")
    words.add_argument("--launcher", choices=("mpirun", "torchrun"), default="mpirun", help="what started the ranks")
    words.add_argument(
        "--pretend-hosts",
        action="store_true",
        help="give each rank a host of its own (NCCL_HOSTID), so that older NCCL lets ranks share a GPU, over sockets",
    )
    return words.parse_args(argv)


def main() -> int:
    """Say that this rank is up, then run the check."""
    arguments = parsed()
    voice = None
    if arguments.launcher == "torchrun":
        rank_program.end_with_parent()  # torchrun gives its workers sessions of their own
        voice = rank_program.Voice(
            arguments.check, int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        )
    return rank_program.run(arguments, work, voice, nccl=True, counts=True)


if __name__ == "__main__":
    sys.exit(main())
