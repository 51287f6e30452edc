"""Give bytes that atheris draws to each parser of bytes; an exception that a parser does not promise ends its run.

``make test-fuzz`` runs it. A failing input is kept in the present folder as ``crash-...``; give it as an argument with
``--parser`` to repeat it. Each parser has a process of its own, because libFuzzer ends the process.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
_LONGEST = 1 << 16
# Real inputs from which the drawing begins.
_SEEDS = {
    "library_cache": ("node_probe/ld.so.cache.*.bin",),
    "node_record": ("stack/node.json",),
    "dcgm": ("dcgm/*",),
    "ranks": ("validation/*.log", "launcher/*/*.txt", "nccl_diagnostics/*.txt"),
    "validation_record": ("records/*.json",),
}
_SUPERVISOR = b"""{"event":"started","session":"node1-1","argv":["mpirun"]}
{"event":"line","stream":"stdout","at":1.0,"text":"x"}
{"event":"data","stream":"stdout","data":"eA=="}
{"event":"swept","host":null,"killed":[{"command":"x"}],"left":[]}
{"event":"ended","reason":"exited","seconds":1.0,"rc":0,"signal":null}
"""
_HARDWARE = b""":1,"time":9.0,"boot_id":"b","readings":[["gpu","0000:19:00.0","on the bus",true],
["memory","","memory in KiB",5],["rdma_port","mlx5_0/1","state","ACTIVE"],["kernel log","","xid 79",2]],
"counters":[["rdma_port","mlx5_0/1","link_downed",1]],"events":[[1.0,"xid","0000:19:00.0","79","x"]],
"parts":[["disk","sda","x","1",""]],"unseen":[["disks","x"]]}"""
_MANIFEST = b'{"schema":1,"files":[["lib","d",0,"","0755"],["lib/a","f",3,"00","0644"],["b","l",0,"lib/a","0777"]]}'


def library_cache() -> Callable[[bytes], object]:
    """Return the reader of /etc/ld.so.cache."""
    from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.libraries import read_library_cache

    return lambda data: read_library_cache(data, "libmpi.so.40")


def job_output() -> Callable[[bytes], object]:
    """Return the readers of a job's output, which comes in pieces."""
    from clusterctl.jobs.output_lines import NoiseFilter, Prefixer

    def read(data: bytes) -> None:
        for reader in (
            NoiseFilter(lambda _stream, _data: None),
            Prefixer(["node1"], "host", lambda _stream, _data: None),
        ):
            for at in range(0, len(data), 7):
                reader("stderr", data[at : at + 7])
            reader.end()

    return read


def supervisor() -> Callable[[bytes], object]:
    """Return the reader of a supervisor's lines."""
    from clusterctl.remote.supervised_job import SupervisorAnswers

    def read(data: bytes) -> None:
        answers = SupervisorAnswers(None, lambda _stream, _data: None)
        for line in data.split(b"\n"):
            answers.take(line.decode("utf-8", "replace"))

    return read


def node_record() -> Callable[[bytes], object]:
    """Return the reader of the facts of a node."""
    from clusterctl.model.hosts import Host
    from clusterctl.remote import facts, python

    host = Host("node1", "192.0.2.1")
    return lambda data: facts.read(host, python.Ending(0, b'{"schema_version"' + data, ""))


def hardware_record() -> Callable[[bytes], object]:
    """Return the reader of what a node tells of its hardware, and the rules that judge it."""
    from clusterctl.diagnosis.rules import registry
    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.hardware import Hardware, HardwareLooks
    from clusterctl.model.hosts import Host
    from clusterctl.remote import facts, python

    host = Host("node1", "192.0.2.1")

    def read(data: bytes) -> None:
        found = facts._read_hardware((), host, python.Ending(0, b'{"schema_version"' + data, ""))  # noqa: SLF001
        if isinstance(found, Hardware):
            earlier = found.model_copy(update={"time": found.time - 60.0})
            view = View(hosts=(host,), nodes={}, hardware={"node1": HardwareLooks(now=found, first=earlier)})
            registry.diagnose(view)
            registry.notes(view)

    return read


def ranks() -> Callable[[bytes], object]:
    """Return the readers of what ranks and launchers print."""
    from clusterctl.analysis import nccl_diagnostics
    from clusterctl.model.job_outcome import OutputLine
    from clusterctl.validation.checks import mpirun_output, rank_output

    def read(data: bytes) -> None:
        lines = data.decode("utf-8", "replace").split("\n")
        output = rank_output.read([OutputLine("stdout", 1.0, line) for line in lines], ("node1",), {})
        rank_output.figures(output.measured)
        mpirun_output.read(lines, {"node1": "node1"}, "node1")
        for note in nccl_diagnostics.read(lines).notes:
            nccl_diagnostics.ranks_of(note)

    return read


def dcgm() -> Callable[[bytes], object]:
    """Return the reader of what dcgmi diag prints."""
    sys.path.insert(0, str(ROOT / "roles" / "validation" / "files"))
    import dcgm_checks

    def read(data: bytes) -> None:
        with contextlib.suppress(ValueError):
            dcgm_checks.read(data.decode("utf-8", "replace"))

    return read


def manifest() -> Callable[[bytes], object]:
    """Return the reader of the manifest in a pack."""
    from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, parse_manifest

    def read(data: bytes) -> None:
        with contextlib.suppress(ArtifactError):
            parse_manifest(data)

    return read


def archive() -> Callable[[bytes], object]:
    """Return the unpacker of sources; nothing may lie outside of its folder afterwards."""
    from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError
    from ansible_collections.clusterctl.hpc.plugins.module_utils.build_files import unpack

    def read(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            pack = Path(folder, "pack")
            pack.write_bytes(data)
            with contextlib.suppress(ArtifactError, OSError, tarfile.TarError, zipfile.BadZipFile, EOFError):
                unpack(str(pack), Path(folder, "target"), 0, [])
            assert {path.name for path in Path(folder).iterdir()} <= {"pack", "target"}

    return read


def zstd() -> Callable[[bytes], object]:
    """Return the decompressor of packs."""
    from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact_pack

    def read(data: bytes) -> None:
        with contextlib.suppress(artifact_pack.ZstdError):
            for _ in artifact_pack.decompressed(io.BytesIO(data)):
                pass

    return read


def validation_record() -> Callable[[bytes], object]:
    """Return the reader of a validation's record."""
    from clusterctl.model.results import load
    from clusterctl.support.errors import ConfigError

    def read(data: bytes) -> None:
        with contextlib.suppress(ConfigError):
            load(data, "fuzzed")

    return read


PARSERS = {
    made.__name__: made
    for made in (
        library_cache,
        job_output,
        supervisor,
        node_record,
        hardware_record,
        ranks,
        dcgm,
        manifest,
        archive,
        zstd,
        validation_record,
    )
}


def seed(name: str, folder: Path) -> None:
    """Put real inputs of a parser into a folder."""
    for pattern in _SEEDS.get(name, ()):
        for path in DATA.glob(pattern):
            shutil.copy(path, folder / f"{path.parent.name}-{path.name}")
    (folder / "supervisor").write_bytes(_SUPERVISOR)
    (folder / "hardware").write_bytes(_HARDWARE.replace(b"\n", b""))
    (folder / "manifest").write_bytes(_MANIFEST)
    for mode in ("w", "w:gz", "w:bz2", "w:xz"):
        with tarfile.open(folder / mode.replace(":", "-"), mode) as bundle:
            bundle.addfile(tarfile.TarInfo("folder/file"))
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.SYMTYPE, "../.."
            bundle.addfile(link)
            bundle.addfile(tarfile.TarInfo("link/outside"))
    with zipfile.ZipFile(folder / "zip", "w", zipfile.ZIP_DEFLATED) as pack:
        pack.writestr("folder/file", "text")


def fuzz(name: str, rest: list[str]) -> None:
    """Fuzz one parser until libFuzzer ends the process."""
    import atheris

    sys.path.insert(0, str(ROOT / "python"))
    from clusterctl.support import content

    sys.path.insert(0, str(content.collections_path()))
    with atheris.instrument_imports(include=["clusterctl", "ansible_collections"]):
        read = PARSERS[name]()

    def once(data: bytes) -> None:
        read(data)

    with tempfile.TemporaryDirectory() as corpus:
        seed(name, Path(corpus))
        atheris.Setup([sys.argv[0], f"-max_len={_LONGEST}", *rest, corpus], once)
        atheris.Fuzz()


def main() -> int:
    """Fuzz every parser in turn, and return 1 where one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="time of each parser")
    parser.add_argument("--parser", choices=PARSERS, help="this parser alone; further arguments go to libFuzzer")
    given, rest = parser.parse_known_args()
    if given.parser:
        fuzz(given.parser, [f"-max_total_time={given.seconds}", *rest])
        return 0
    failed = []
    for name in PARSERS:
        print(f"== {name}, {given.seconds} s", flush=True)
        argv = [sys.executable, __file__, "--parser", name, "--seconds", str(given.seconds), "-verbosity=0"]
        if subprocess.run(argv, check=False).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
