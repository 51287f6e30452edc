"""The watch reads NCCL's RAS: processes that have mapped a libnccl, and a TCP server that plays a captured answer."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from clusterctl.jobs.watch import Watch, WatchedJob
from clusterctl.model.job_outcome import StallRecord
from factory import captured_ras
from local_jobs import HERE

RANK = """\
import mmap, sys, time
with open(sys.argv[1], "rb") as library:
    kept = mmap.mmap(library.fileno(), 0, prot=mmap.PROT_READ)
time.sleep(600)
"""


@contextlib.contextmanager
def ras(text: list[str]) -> Iterator[tuple[str, list[bytes]]]:
    """Answer each client with the text, as NCCL does, and keep the questions."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client = server.accept()[0]
                except OSError:
                    return
                with client:
                    asked.append(client.recv(100))
                    client.sendall(text[0].encode())

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}", asked
        server.shutdown(socket.SHUT_RDWR)


def test_the_rank_that_lags_by_nccls_own_count_is_named(tmp_path: Path) -> None:
    job = f"unit-watch-ras-{os.getpid()}"
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(bytes(4096))
    text = [""]
    started: list[subprocess.Popen[bytes]] = []
    with ras(text) as (address, asked):
        more = {"CLUSTERCTL_JOB": job, "WORLD_SIZE": "3", "NCCL_RAS_ADDR": address}
        try:
            for rank in range(3):
                environment = {**os.environ, **more, "OMPI_COMM_WORLD_RANK": str(rank)}
                started.append(subprocess.Popen([sys.executable, "-c", RANK, str(library)], env=environment))
            late = captured_ras("late")
            here = f"process {started[late.culprit].pid} on node 127.0.0.1"
            text[0] = late.answers[0].replace(f"process {late.process} on node 10.0.0.1", here)
            found = stalled(job)
        finally:
            for one in started:
                one.send_signal(signal.SIGKILL)
                one.wait()
    assert set(asked) == {b"verbose status\n"}
    assert (found.verdict.cause, found.verdict.ranks, found.verdict.hosts) == ("behind", (2,), ("node1",))
    assert "node1 rank 2 has not launched AllReduce #9, by NCCL's RAS" in found.verdict.sentence
    assert found.verdict.sentence.endswith(", 2 others wait in AllReduce #9")
    assert any("MISMATCH" in line for look in found.looks for line in look.ras)


def stalled(job: str) -> StallRecord:
    found: list[StallRecord] = []
    job_here = WatchedJob(job, (HERE,), ("node1",) * 3, {"127.0.0.1": "node1"})
    watch = Watch(job_here, 3.0, lambda _hosts: [], list, found.append, [].append)
    end = time.monotonic() + 240
    while not found and time.monotonic() < end:
        watch.poll()
        time.sleep(0.05)
    watch.close()
    (record,) = found
    return record
