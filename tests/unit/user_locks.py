"""Locks that users have, files of packages in them, and a server of such files."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ansible_collections.clusterctl.hpc.plugins.plugin_utils import wheels as w

NODE = w.Target.of("debian-12-x86_64-glibc2.36-py3.11")
PYTHON = "3.11.2"
SUM = "a" * 64
LOGIN = "me:s3cret"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def archive(folder: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """Write the source archive of a package."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for inner, text in files.items():
            member = tarfile.TarInfo(f"{name}-{version}/{inner}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


class Quiet(SimpleHTTPRequestHandler):
    """A file server that refuses what lies below /refused, and without a login what lies below /private."""

    def do_GET(self) -> None:
        login = f"Basic {base64.b64encode(LOGIN.encode()).decode()}"
        if self.path.startswith("/private") and self.headers.get("Authorization") != login:
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic realm=packages")
            self.end_headers()
            return
        if self.path.startswith("/refused"):
            self.send_error(401 if self.path.startswith("/refused401") else 403)
        else:
            super().do_GET()

    def log_message(self, *_unused: Any) -> None: ...


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder; yields its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def pylock(folder: Path, *packages: str, top: str = "") -> Path:
    """Write a pylock.toml."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pylock.toml"
    head = f'lock-version = "1.0"\ncreated-by = "test"\n{top}\n'
    path.write_text(head + "".join(f"[[packages]]\n{one}\n" for one in packages), encoding="utf-8")
    return path


def entry(wheel: Path, url: str = "", more: str = "") -> str:
    """Return the package of a wheel in a pylock.toml."""
    name, version, _rest = wheel.name.split("-", 2)
    place = f'url = "{url}/{wheel.name}"' if url else f'path = "{wheel}"'
    file = f'{{name = "{wheel.name}", {place}, hashes = {{sha256 = "{digest(wheel)}"}}}}'
    return f'name = "{name}"\nversion = "{version}"\n{more}\nwheels = [{file}]'


def brought(cache: Path, path: Path, *extras: str, groups: tuple[str, ...] = (), own: str = "") -> w.LockedEnvironment:
    store = w.WheelStore(cache, own)
    return w.locked_environment(store, path, w.Asked.of(extras, groups), NODE, PYTHON, ["mpi4py"])


def names(found: w.LockedEnvironment) -> list[str]:
    return [f"{wheel.name} {wheel.version}" for wheel in found.wheels]


def requirements(folder: Path, text: str) -> Path:
    path = folder / "requirements.txt"
    path.write_text(text, encoding="utf-8")
    return path
