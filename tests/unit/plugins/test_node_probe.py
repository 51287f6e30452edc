"""The probe: whole records from this very machine, parsers against captured files, and holes instead of crashes."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact, node_probe
from clusterctl import content
from clusterctl.facts import NodeFacts

if TYPE_CHECKING:
    from conftest import RunModule

DATA = Path(__file__).resolve().parents[2] / "data" / "node_probe"


def captured(name: str) -> str:
    return (DATA / name).read_text()


def piped(request: dict[str, Any], *session: str, python: str = sys.executable) -> dict[str, Any]:
    """Run the probe the way it runs over ssh."""
    program = content.probe_program().encode()
    argv = [python, "-I", "-c", node_probe.BOOT, str(len(program)), *session]
    done = subprocess.run(argv, input=program + json.dumps(request).encode(), capture_output=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_record_of_this_machine_is_whole() -> None:
    record = piped({})
    assert record["problems"] == []
    facts = NodeFacts.model_validate(record)
    assert facts.hostname == os.uname().nodename
    assert facts.kernel == os.uname().release
    assert facts.cores >= 1
    assert facts.memory_bytes > 1 << 27
    assert {disk.path for disk in facts.disk} == {"/usr/local", "/var/tmp"}  # noqa: S108 - names in a record
    assert "127.0.0.1" in {entry.address for one in facts.interfaces for entry in one.addresses}
    assert re.fullmatch(r"[a-z]+-[\d.]+-\w+-glibc[\d.]+-py3\.\d+(-cuda\d+)?", facts.platform)


def test_it_runs_in_the_four_ways_with_one_answer(run_module: RunModule, tmp_path: Path) -> None:
    path = str(Path(content.root()) / "plugins/module_utils/node_probe.py")
    request = {"watch": [{"path": str(tmp_path), "kind": "dir"}], "artifacts": []}
    over_ssh = piped(request)
    as_program = json.loads(subprocess.check_output([sys.executable, path, json.dumps(request)]))
    as_module = run_module("node_facts", **request)["node"]
    imported = node_probe.collect(request)
    assert {record["platform"] for record in (over_ssh, as_program, as_module, imported)} == {over_ssh["platform"]}
    assert over_ssh["watch"] == as_program["watch"] == as_module["watch"] == imported["watch"] != []
    assert set(over_ssh) == set(as_module)


def test_it_needs_only_the_oldest_python_that_is_promised() -> None:
    """Nothing newer than Python 3.9 in the grammar; where such an interpreter is installed, it runs the probe."""
    ast.parse(content.probe_program(), feature_version=(3, 9))
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for python in sorted(root.glob("versions/3.9.*/bin/python3")):
        assert piped({}, python=str(python))["problems"] == []


def test_only_the_standard_library_is_imported() -> None:
    modules = re.findall(r"^\s*(?:import|from) (\w+)", content.probe_program(), flags=re.MULTILINE)
    assert set(modules) <= sys.stdlib_module_names


def test_a_section_that_fails_leaves_a_hole_and_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        raise PermissionError(13, "no one may look")

    monkeypatch.setattr(node_probe.os, "statvfs", broken)
    record = node_probe.collect({})
    assert record["disk"] == []
    assert record["shm_bytes"] == 0
    assert record["problems"] == ["storage: PermissionError: [Errno 13] no one may look"]
    assert NodeFacts.model_validate(record).cores >= 1


def test_every_section_has_a_fallback_of_its_own_shape() -> None:
    session = node_probe.Session()
    for section, fallback in node_probe._SECTIONS:  # noqa: SLF001 - the table is what is tested
        assert set(section({}, session)) == set(fallback), section.__name__


def test_the_session_is_told_even_past_sudo() -> None:
    if os.geteuid() != 0 or not Path("/usr/bin/sudo").exists():
        pytest.skip("needs root and sudo")
    program = content.probe_program().encode()
    argv = [
        "sudo",
        "-n",
        "--",
        sys.executable,
        "-I",
        "-c",
        node_probe.BOOT,
        str(len(program)),
        "/session/bin",
        "/lib64",
    ]
    done = subprocess.run(argv, input=program + b"{}", capture_output=True, check=True)
    record = json.loads(done.stdout)
    assert record["environment"] == {"PATH": "/session/bin", "LD_LIBRARY_PATH": "/lib64"}


# --- path states ---


def test_the_state_of_each_kind_of_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "link").symlink_to("nowhere")
    state = node_probe.watch_state(f"{tmp_path}/file")
    assert (state["kind"], state["mode"], state["sha256"]) == ("file", "0640", hashlib.sha256(b"x").hexdigest())
    link = node_probe.watch_state(f"{tmp_path}/link", "file")
    assert link == {"path": f"{tmp_path}/link", "kind": "link", "target": "nowhere"}
    assert node_probe.watch_state(f"{tmp_path}/none/of/it") == {"path": f"{tmp_path}/none/of/it", "kind": "absent"}
    assert set(node_probe.watch_state(str(tmp_path))) == {"path", "kind", "mode", "owner", "group"}


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    folder = tmp_path / "demo-1.0-k"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib/libdemo.so.1").write_bytes(b"library")
    (folder / "lib/libdemo.so").symlink_to("libdemo.so.1")
    manifest = artifact.manifest_bytes(artifact.make_manifest(str(folder)))
    (folder / artifact.MANIFEST).write_bytes(manifest)
    digest = hashlib.sha256(manifest).hexdigest()
    (folder / artifact.MARKER).write_bytes(artifact.marker_bytes("demo", "1.0", "k", {"version": "1.0", "secret": "not asked for"}, digest))
    (tmp_path / "demo").symlink_to("demo-1.0-k")
    return tmp_path / "demo"


def test_the_probe_reads_what_the_artifact_modules_write(installed: Path) -> None:
    assert (node_probe.MARKER, node_probe.MANIFEST) == (artifact.MARKER, artifact.MANIFEST)
    asked = [{"name": "demo", "link": str(installed), "inputs": ["version", "unknown"]}]
    found = node_probe.collect({"artifacts": asked})["artifacts"]
    target = str(installed.resolve())
    whole = {"name": "demo", "link": str(installed), "target": target, "version": "1.0", "key": "k"}
    assert found == [{**whole, "ok": True, "problem": "", "inputs": {"version": "1.0"}}]
    seen = artifact.inspect_tree(target, "demo", "1.0", "k")
    state = node_probe.watch_state(target, "artifact")
    assert state == {
        "path": target,
        "kind": "artifact",
        "marker_sha256": seen.marker_sha256,
        "files": seen.files,
    }


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda tree: (tree / "lib/libdemo.so.1").unlink(),
            "1 of 3 files are missing or changed, first lib/libdemo.so.1",
        ),
        (lambda tree: (tree / "lib/libdemo.so.1").write_bytes(b"short"), "first lib/libdemo.so.1"),
        (lambda tree: (tree / artifact.MANIFEST).unlink(), "is missing"),
        (lambda tree: (tree / artifact.MANIFEST).write_text("[]"), "not the one that the marker names"),
        (lambda tree: (tree / artifact.MARKER).unlink(), "never finished"),
        (lambda tree: (tree / artifact.MARKER).write_text("{"), "cannot be read"),
    ],
)
def test_a_damaged_artifact_is_noticed(installed: Path, damage: Any, words: str) -> None:
    before = node_probe.watch_state(str(installed), "artifact")
    damage(installed)
    found = node_probe.collect({"artifacts": [{"name": "demo", "link": str(installed)}]})["artifacts"][0]
    assert found["ok"] is False
    assert words in found["problem"]
    assert node_probe.watch_state(str(installed), "artifact") != before


def test_an_artifact_that_is_not_there_is_named() -> None:
    found = node_probe.collect({"artifacts": [{"name": "demo", "link": "/no/such"}]})["artifacts"][0]
    assert (found["ok"], found["problem"]) == (False, "/no/such does not exist")


# --- parsers ---


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("debian12", ("debian", "12", "Debian", "12")),
        ("rocky9", ("rocky", "9.6", "RedHat", "9")),
        ("ubuntu1804", ("ubuntu", "18.04", "Debian", "18")),
    ],
)
def test_os_release(name: str, expected: tuple[str, ...]) -> None:
    release = node_probe.read_os_release(captured(f"os-release.{name}.txt"))
    assert (release["id"], release["version_id"], release["family"], release["major"]) == expected


def test_platform_of_a_point_release_is_that_of_its_major_on_enterprise_linux() -> None:
    facts = {
        "distribution": node_probe.read_os_release(captured("os-release.rocky9.txt")),
        "machine": "x86_64",
        "glibc": "2.34",
        "python": {"version": "3.9.21"},
        "cuda": {"major": 12},
    }
    assert node_probe.platform_id(facts) == "rocky-9-x86_64-glibc2.34-py3.9-cuda12"


def test_ipv4_routes() -> None:
    assert node_probe.read_ipv4_routes(captured("route.txt")) == [
        {"family": 4, "destination": "0.0.0.0/0", "gateway": "10.66.0.1", "interface": "eth0", "metric": 100},
        {"family": 4, "destination": "10.66.0.0/24", "gateway": None, "interface": "eth0", "metric": 0},
    ]


def test_ipv6_routes_without_loopback_and_multicast() -> None:
    found = node_probe.read_ipv6_routes(captured("ipv6_route.txt"))
    assert [route["destination"] for route in found] == ["fe80::/64", "fe80::f40f:fff:fe07:2524/128"]


@pytest.mark.parametrize(("name", "version"), [("open", "580.95.05"), ("proprietary", "515.76")])
def test_driver_version(name: str, version: str) -> None:
    assert node_probe.driver_version(captured(f"nvidia-version.{name}.txt")) == version


def test_addresses_agree_with_ip() -> None:
    try:
        listed = json.loads(subprocess.check_output(["ip", "-j", "addr"]))
    except FileNotFoundError:
        pytest.skip("there is no ip here")
    ours = {
        (one["name"], entry["address"], entry["prefix"])
        for one in node_probe.collect({})["interfaces"]
        for entry in one["addresses"]
    }
    theirs = {
        (one["ifname"], entry["local"], entry["prefixlen"])
        for one in listed
        for entry in one["addr_info"]
        if "local" in entry
    }
    # Other tests start and stop containers meanwhile, whose interfaces on this machine come and go.
    assert ("lo", "127.0.0.1", 8) in ours & theirs
    assert {entry for entry in ours ^ theirs if not entry[0].startswith(("veth", "podman"))} == set()


def test_sshd_configuration(tmp_path: Path) -> None:
    (tmp_path / "one.conf").write_text("Port 2222\n")
    (tmp_path / "sshd_config").write_text(
        f"# Port 1\nInclude {tmp_path}/*.conf\nHostKey /etc/ssh/a\nPort=22\nMatch User x\nPort 9\n"
    )
    found = node_probe.read_sshd_config(str(tmp_path / "sshd_config"))
    assert found == {"port": ["2222", "22"], "hostkey": ["/etc/ssh/a"]}


def test_environment_file_as_pam_reads_it() -> None:
    text = "# c\nA=1\nexport B='two words' # note\nC=\"x\ny\nD\n"
    assert node_probe.read_environment_file(text) == {"A": "1", "B": "two words", "C": "x"}
