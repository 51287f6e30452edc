"""A package mirror that answers with a page of HTML is named in one sentence."""

from __future__ import annotations

import http.server
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import package_failure

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = b"<!doctype html><html><body>Sign in</body></html>"
# Of ansible.builtin.package (core 2.19) on nodes of Debian 12: of a node with python3-apt, and of a proxy that answered
# for a package. The name and the password in the first address were put in.
WITH_PYTHON_APT = (
    "Failed to update apt cache after 5 retries: E:Failed to fetch "
    "http://user:secret@192.0.2.1:8765/debian/dists/bookworm/InRelease  Clearsigned file isn't valid, "
    "got 'NOSPLIT' (does the network require authentication?), "
    "E:The repository 'http://192.0.2.1:8765/debian bookworm InRelease' is not signed."
)
OF_A_PACKAGE = (
    "'/usr/bin/apt-get -y install 'hello=2.10-3'' failed: E: Failed to fetch "
    "http://mirror.example.org/debian/pool/main/h/hello/hello_2.10-3_amd64.deb  File has unexpected size "
    "(48 != 53080). Mirror sync in progress? [IP: 192.0.2.1 8765]\n   Hashes of expected file:\n"
)


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_unused: object) -> None:
        pass


@pytest.fixture
def mirror() -> Iterator[str]:
    """Yield the address of a server that answers everything with the page."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/debian"
        server.shutdown()


@pytest.mark.parametrize(
    ("said", "host", "file"),
    [
        (WITH_PYTHON_APT, "192.0.2.1", "InRelease"),
        (OF_A_PACKAGE, "mirror.example.org", "hello_2.10-3_amd64.deb"),
    ],
)
def test_the_mirror_and_the_file_are_named_and_no_password(said: str, host: str, file: str) -> None:
    told = package_failure.told(said)
    assert told.startswith(f"the package mirror {host} sent another file in place of {file}, such as a login ")
    assert told.endswith("then run again.")
    assert "secret" not in told
    assert "\n" not in told


def test_another_failure_keeps_its_words() -> None:
    for said in ("", "No package matching 'gcc' is available", "E: Unable to locate package gcc"):
        assert package_failure.told(said) == said


def test_a_package_manager_without_a_module_is_told_with_the_collection_that_has_it() -> None:
    told = package_failure.told('Could not find a matching action for the "zypper" package manager.')
    assert told.startswith(
        "Ansible on the controller has no module for zypper; run 'ansible-galaxy collection install "
    )
    assert "community.general" in told


@pytest.mark.programs
def test_what_this_ansible_says_without_the_module_is_known() -> None:
    argv = [str(Path(sys.executable).with_name("ansible")), "localhost", "--connection", "local", "--one-line"]
    argv += ["--module-name", "ansible.builtin.package", "--args", "name=hello use=another_manager"]
    environment = {**os.environ, "ANSIBLE_STDOUT_CALLBACK": "minimal", "ANSIBLE_LOCALHOST_WARNING": "false"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    words = package_failure.told(done.stdout.replace('\\"', '"'))
    assert words.startswith("Ansible on the controller has no module for another_manager;"), done.stdout


@pytest.mark.programs
def test_what_a_real_apt_says_of_such_a_mirror_is_known(mirror: str, tmp_path: Path) -> None:
    if shutil.which("apt-get") is None:
        pytest.skip("needs apt-get")
    for folder in ("lists/partial", "cache/archives/partial", "sources", "conf"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "sources.list").write_text(f"deb {mirror} bookworm main\n", encoding="utf-8")
    (tmp_path / "apt.conf").write_text('Acquire::http::Proxy "DIRECT";\n', encoding="utf-8")
    settings = {
        "Dir::State::lists": tmp_path / "lists",
        "Dir::Cache": tmp_path / "cache",
        "Dir::Etc::sourcelist": tmp_path / "sources.list",
        "Dir::Etc::sourceparts": tmp_path / "sources",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "true",
    }
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    environment = {**os.environ, "LC_ALL": "C", "APT_CONFIG": str(tmp_path / "apt.conf")}
    argv = ["apt-get", "-q", *options, "update"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode != 0, done.stdout
    told = package_failure.told(done.stderr)
    assert told.startswith("the package mirror 127.0.0.1 sent another file in place of InRelease"), done.stderr
