"""A real OCI registry (Debian's docker-registry) at a port of this machine: with TLS, with a login, or with tokens."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# of the password 'secret', by bcrypt
HTPASSWD = "user:$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n"


@contextlib.contextmanager
def registry(
    folder: Path,
    *,
    login: bool = False,
    delete: bool = True,
    tls: dict[str, str] | None = None,
    token: dict[str, str] | None = None,
) -> Iterator[int]:
    """Run a registry at a free port; ``tls`` and ``token`` are these parts of its configuration."""
    unpacked = Path(__file__).parents[2] / "build/registry/usr/bin/docker-registry"
    program = str(unpacked) if unpacked.is_file() else shutil.which("docker-registry")
    if program is None:
        pytest.skip("needs the program docker-registry; 'make unit' gets it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir()
    (folder / "htpasswd").write_text(HTPASSWD, encoding="utf-8")
    auth: dict[str, Any] = {"token": token} if token else {}
    if login:
        auth = {"htpasswd": {"realm": "site", "path": str(folder / "htpasswd")}}
    config = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}, "delete": {"enabled": delete}},
        "http": {"addr": f"127.0.0.1:{port}", **({"tls": tls} if tls else {})},
        **({"auth": auth} if auth else {}),
    }
    (folder / "config.yml").write_text(json.dumps(config), encoding="utf-8")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(folder / "config.yml")], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.02)
        assert process.poll() is None, (folder / "log").read_text(encoding="utf-8")
        yield port
    finally:
        process.terminate()
        process.wait(timeout=20)
