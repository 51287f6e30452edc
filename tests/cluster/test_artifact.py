"""An artifact's life on real nodes, with a C project so small that a build takes a second."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from artifact_lab import LINK, SMALL, WORK, Lab, Played, makefile, tarball
from clusterctl.sandbox import Sandbox
from clusterctl.state.files import zstd

Start = Callable[..., Sandbox]

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def lab(sandbox: Start, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    # Debian 13's sudo puts a terminal of its own between us and the build; Debian 12's does not.
    return Lab(sandbox("art", nodes=2, images=("debian13", "debian12")), tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="module")
def same(sandbox: Start, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Two nodes of one platform."""
    return Lab(sandbox("one", nodes=2), tmp_path_factory.mktemp("same"))


@pytest.fixture
def installed(same: Lab) -> Lab:
    """The demo built on node1 and installed on both nodes; whatever a test broke is mended by the same two tasks."""
    played = same.play(same.build(), same.install())
    assert played.rc == 0, played.text
    return same


def test_built_once_installed_everywhere_and_then_left_alone(installed: Lab) -> None:
    for node in ("node1", "node2"):
        assert installed.said(node, f"{LINK}/bin/demo") == "42"
    assert installed.ssh("node2", "which", "gcc").returncode != 0, "a compiler came to a node that does not build"
    assert not installed.said("node1", "find", WORK, "-name", "clusterctl-*")
    again = installed.play(installed.build(), installed.install())
    assert again.rc == 0, again.text
    assert not any(result.get("changed") for _, result in again.results)
    assert all(result["watch"][0]["files"] == 5 for _, result in again.results if result.get("watch"))


def slowly(seconds: float, then: str = "true") -> list[dict[str, Any]]:
    made = f'sleep {seconds}; mkdir -p "$0/bin"; {then}'
    return [{"name": "slow", "argv": ["sh", "-c", made, "@TREE@"]}]


def test_two_nodes_build_at_the_same_time_and_a_node_that_fails_hides_no_other(same: Lab) -> None:
    same.forget()
    built = same.plan(
        {"name": "demo", "on": "node1", "steps": slowly(4)}, {"name": "other", "on": "node2", "steps": slowly(4)}
    )
    assert built.rc == 0, built.text
    assert [built.of(node)[0]["changes"] for node in ("node1", "node2")] == [["built demo 1.0"], ["built other 1.0"]]
    records = [json.loads(path.read_bytes()) for path in sorted(same.cache.glob("artifacts/*.json"))]
    (first, first_end), (second, second_end) = (
        (its["started"], its["started"] + its["seconds"]) for its in (record["built"] for record in records)
    )
    assert first < second_end
    assert second < first_end
    changed = same.plan(
        {"name": "demo", "on": "node1", "steps": slowly(0)},
        {"name": "other", "on": "node2", "steps": slowly(1, "echo no luck; exit 3"), "inputs": {"variant": "bad"}},
    )
    assert changed.rc == 2
    (failed,) = changed.of("node2")
    assert "no luck" in failed["msg"]
    assert "other 1.0" in failed["msg"]
    log = Path(failed["artifacts"]["other"]["controller_log"])
    assert log.read_text(encoding="utf-8").splitlines()[-1] == "no luck"
    assert not changed.of("node1")[0]["changed"]


def test_check_mode_works_before_anything_is_there(same: Lab) -> None:
    same.forget()
    played = same.play(same.build(), same.install(), check=True)
    assert played.rc == 0, played.text
    assert played.of("node2")[-1]["changes"] == ["installed demo 1.0", f"{LINK} -> {tree(played)}"]
    assert same.ssh("node1", "test", "-e", LINK).returncode != 0
    assert not same.cache.exists()


def tree(played: Played) -> str:
    (demo,) = played.of("node2")[-1]["artifacts"].values()
    return f"demo-1.0-{demo['key']}"


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (["rm", f"{LINK}/.clusterctl.json"], "its marker is missing"),
        (["rm", f"{LINK}/lib/libdemo.so"], "lib/libdemo.so (missing)"),
    ],
    ids=["marker", "deleted"],
)
def test_a_broken_install_is_noticed_and_repaired(installed: Lab, damage: list[str], named: str) -> None:
    installed.said("node2", *damage)
    played = installed.play(installed.build(), installed.install())
    assert played.rc == 0, played.text
    assert named in played.of("node2")[-1]["changes"][0]
    assert not played.of("node1")[-1]["changed"]
    assert installed.said("node2", f"{LINK}/bin/demo") == "42"
    assert not installed.said("node2", "find", "/usr/local", "-name", ".demo*")


def test_a_truncated_cache_file_is_noticed_and_made_anew_without_a_build(installed: Lab) -> None:
    (pack,) = installed.cache.glob("artifacts/*.tar.zst")
    whole = pack.stat().st_size
    os.truncate(pack, whole // 2)
    installed.said("node2", "rm", "-r", f"{LINK}/lib")
    played = installed.play(installed.build(), installed.install())
    assert played.rc == 0, played.text
    assert played.of("node1")[0]["changes"] == ["packed demo 1.0 again from node1"]
    assert f"{pack} has {whole // 2} bytes instead of {whole}" in played.text
    assert installed.said("node2", f"{LINK}/bin/demo") == "42"


def test_a_truncated_cache_file_is_noticed_and_rebuilt_where_nothing_is_installed(installed: Lab) -> None:
    (pack,) = installed.cache.glob("artifacts/*.tar.zst")
    os.truncate(pack, 100)
    for node in ("node1", "node2"):
        installed.said(node, "sh", "-c", "rm -rf /usr/local/demo*")
    played = installed.play(installed.build(), installed.install())
    assert played.rc == 0, played.text
    assert played.of("node1")[0]["changes"] == ["built demo 1.0"]
    assert installed.said("node2", f"{LINK}/bin/demo") == "42"


def test_the_steps_of_a_build_are_not_roots(installed: Lab) -> None:
    attack = (
        "id -u; mkdir -p @TREE@; chmod 777 @TREE@; echo x > @TREE@/file; chmod 666 @TREE@/file; cat /etc/shadow;"
        " touch /usr/local/evil && echo broke out; setsid sleep 7654 & touch /tmp/left; true"
    )
    inputs = {"variant": "who"}
    steps = [{"name": "who", "argv": ["sh", "-c", attack]}]
    played = installed.play(installed.build(inputs=inputs, files=[], steps=steps), installed.install(inputs=inputs))
    assert played.rc == 0, played.text
    log = installed.said("node1", "cat", played.of("node1")[0]["log"]).splitlines()
    assert int(log[1]) in range(60578, 61184)
    assert "broke out" not in log
    assert not [line for line in log if line.startswith("root:")]
    assert installed.said("node2", "stat", "-c", "%U:%G:%a", f"{LINK}/", f"{LINK}/file").split() == [
        "root:root:755",
        "root:root:644",
    ]
    nothing_is_left(installed, log[1])


def nothing_is_left(lab: Lab, uid: str) -> None:
    running = lab.ssh("node1", "ps", "-o", "stat=,args=", "-u", uid).stdout.splitlines()
    assert not [line for line in running if not line.startswith("Z")]
    assert lab.ssh("node1", "ls", "-d", "/tmp/left").returncode != 0  # noqa: S108 - the attack made it
    assert not lab.said("node1", "find", WORK, "-name", "clusterctl-*")


def test_proofs_are_not_roots(installed: Lab) -> None:
    prove = "id -u; touch $HOME/a $TMPDIR/b /tmp/left; setsid sleep 7654 > /dev/null 2>&1 & cat /etc/shadow; true"
    ask = {"name": "demo", "link": LINK, "checks": [{"argv": ["sh", "-c", prove]}]}
    played = installed.play({"clusterctl.hpc.artifact_check": {"artifacts": [ask]}})
    assert played.rc == 0, played.text
    (proved,) = played.of("node1")
    uid, *rest = proved["artifacts"]["demo"]["outputs"][0].splitlines()
    assert int(uid) in range(60578, 61184)
    assert not [line for line in rest if line.startswith("root:")]
    nothing_is_left(installed, uid)


# Root of the node replaces a program, and makes the manifest and the marker agree with it.
TAMPER = """
import hashlib, json, os
tree = os.path.realpath("/usr/local/demo")
with open(tree + "/bin/demo", "w") as out:
    out.write("#!/bin/sh\\necho evil\\n")
manifest = json.load(open(tree + "/.clusterctl.files.json"))
for entry in manifest["files"]:
    if entry[0] == "bin/demo":
        program = open(tree + "/bin/demo", "rb").read()
        entry[2:4] = [len(program), hashlib.sha256(program).hexdigest()]
data = json.dumps(manifest, separators=(",", ":")).encode()
open(tree + "/.clusterctl.files.json", "wb").write(data)
marker = json.load(open(tree + "/.clusterctl.json"))
marker["manifest_sha256"] = hashlib.sha256(data).hexdigest()
json.dump(marker, open(tree + "/.clusterctl.json", "w"))
"""


def test_a_tree_that_root_changed_on_its_node_does_not_spread(installed: Lab) -> None:
    installed.said("node1", "python3", "-c", TAMPER)
    assert installed.said("node1", f"{LINK}/bin/demo") == "evil"
    shutil.rmtree(installed.cache)
    installed.said("node2", "rm", "-r", f"{LINK}/lib")
    played = installed.play(installed.build(), installed.install())
    assert played.rc == 0, played.text
    warning = f"[WARNING]: node1: the content of {tree(played)} on this node differs from what was accepted"
    assert " ".join(played.text.split()).count(warning) == 1, played.text
    assert played.of("node1")[0]["changes"] == ["built demo 1.0"]
    for node in ("node1", "node2"):
        assert installed.said(node, f"{LINK}/bin/demo") == "42"


def test_a_pack_that_holds_other_files_than_its_record_says_is_made_anew(installed: Lab) -> None:
    (pack,) = installed.cache.glob("artifacts/*.tar.zst")
    spoiled = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(zstd.decompress(pack.read_bytes()))) as old,
        tarfile.open(fileobj=spoiled, mode="w") as new,
    ):
        for member in old:
            content = old.extractfile(member) if member.isfile() else None
            new.addfile(member, io.BytesIO(content.read()[::-1]) if content and member.name == "bin/demo" else content)
    pack.write_bytes(zstd.compress(spoiled.getvalue()))
    record = json.loads(pack.with_suffix("").with_suffix(".json").read_bytes())
    record |= {"sha256": hashlib.sha256(pack.read_bytes()).hexdigest(), "size": pack.stat().st_size}
    pack.with_suffix("").with_suffix(".json").write_text(json.dumps(record))
    installed.said("node2", "rm", "-r", f"{LINK}/lib")
    played = installed.play(installed.build(), installed.install())
    assert played.rc == 2, played.text
    refused = (
        "the content of 'bin/demo' is not the one of its manifest; the pack was removed from the cache, so run again"
    )
    assert refused in played.messages
    assert not pack.exists()
    again = installed.play(installed.build(), installed.install())
    assert again.rc == 0, again.text
    assert again.of("node1")[0]["changes"] == ["packed demo 1.0 again from node1"]
    assert installed.said("node2", f"{LINK}/bin/demo") == "42"


def test_a_library_that_only_the_builder_has_is_named_and_nothing_is_switched(installed: Lab) -> None:
    before = installed.said("node2", "readlink", LINK)
    installed.said("node1", "sh", "-c", "echo 'int extra;' | gcc -shared -x c - -o /usr/lib/libextra.so && ldconfig")
    try:
        leaky = tarball(
            installed.folder / "leaky.tar.gz", Lab.files(Makefile=makefile(libraries="-Wl,--no-as-needed -lextra"))
        )
        inputs = {"variant": "leaky"}
        played = installed.play(installed.build(source=leaky, inputs=inputs), installed.install(inputs=inputs))
    finally:
        installed.said("node1", "rm", "-f", "/usr/lib/libextra.so")
    assert played.rc == 2
    message = played.of("node2")[-1]["msg"]
    assert "node2" in message
    assert "libextra.so, needed by lib/libdemo.so" in message
    assert installed.said("node2", "readlink", LINK) == before
    assert installed.said("node2", f"{LINK}/bin/demo") == "42"
    assert not played.of("node1")[-1].get("failed"), "the builder has the library"


@pytest.mark.long
def test_a_package_that_was_removed_is_installed_again(same: Lab) -> None:
    package, library = "libnuma1", "libnuma.so.1"
    inputs = {"variant": "numa"}
    needs = {"ansible.builtin.apt": {"name": package, "update_cache": True, "cache_valid_time": 86400}}
    source = tarball(
        same.folder / "numa.tar.gz", Lab.files(Makefile=makefile(libraries=f"-Wl,--no-as-needed -l:{library}"))
    )
    build, install = same.build(source=source, inputs=inputs), same.install(inputs=inputs)
    played = same.play(needs, build, install)
    assert played.rc == 0, played.text
    (watched,) = [each for each in played.of("node2")[-1]["watch"] if each["path"].endswith(library)]
    assert watched["kind"] == "library"
    same.said("node2", "dpkg", "--remove", "--force-depends", package)
    seen = same.play(install, check=True)
    words = f"restored {library}, which demo needs"
    assert (seen.rc, seen.of("node2")[-1]["changes"]) == (0, [words]), seen.text
    played = same.play(install)
    assert (played.rc, played.of("node2")[-1]["changes"]) == (0, [words]), played.text
    assert not played.of("node1")[-1]["changed"]
    assert same.said("node2", f"{LINK}/bin/demo") == "42"

    same.said("node2", "mv", watched["path"], f"{watched['path']}.lost")
    try:
        played = same.play(install)
    finally:
        same.said("node2", "mv", f"{watched['path']}.lost", watched["path"])
    assert played.rc == 2
    assert f"{library}, needed by lib/libdemo.so" in played.messages
    assert f"Install {package}" in played.messages


def test_a_compiler_error_shows_the_last_lines_and_both_logs(installed: Lab) -> None:
    broken = tarball(
        installed.folder / "broken.tar.gz", Lab.files(**{"library.c": "int answer(void) { return nonsense; }\n"})
    )
    played = installed.play(installed.build(source=broken, inputs={"variant": "broken"}))
    assert played.rc == 2
    (result,) = played.of("node1")
    assert "error: 'nonsense' undeclared" in result["msg"]
    assert f"{result['log']} on node1" in result["msg"]
    local = Path(result["controller_log"])
    assert str(local) in result["msg"]
    assert local.read_text() == installed.said("node1", "cat", result["log"]) + "\n"
    assert not installed.said("node1", "find", WORK, "-name", "clusterctl-*")
    assert not list(installed.cache.glob("artifacts/*broken*"))


def test_a_long_step_says_that_it_is_alive(installed: Lab) -> None:
    command = "echo 'Making all in btl/tcp'; echo '  CC       one.lo'; sleep 8; mkdir -p @TREE@; touch @TREE@/done"
    steps = [{"name": "make", "argv": ["sh", "-c", command]}]
    played = installed.play(installed.build(files=[], steps=steps, inputs={"variant": "slow"}))
    assert played.rc == 0, played.text
    assert "node1: demo: make: 1 files, now btl/tcp\n" in played.text


def test_a_full_disk_on_the_builder_is_named(installed: Lab) -> None:
    # /dev is the one small file system that every container has: 64 MiB
    installed.said("node1", "mkdir", "-p", SMALL)
    installed.said("node1", "chmod", "1777", SMALL)
    try:
        inputs = {"variant": "big"}
        early = installed.play(installed.build(inputs=inputs, work_dir=SMALL, needs_bytes=10**8))
        filling = tarball(
            installed.folder / "big.tar.gz", Lab.files(Makefile=makefile(before="head -c 80000000 /dev/zero > filler"))
        )
        late = installed.play(installed.build(source=filling, inputs=inputs, work_dir=SMALL))
        assert not installed.said("node1", "ls", SMALL)
    finally:
        installed.said("node1", "rm", "-rf", SMALL)
    for played in (early, late):
        assert played.rc == 2
        assert re.search(r"node1: the builder's disk is full: /dev/small has \d+ bytes free", played.messages), (
            played.text
        )


def test_a_full_cache_on_the_controller_is_named_and_the_build_is_not_lost(installed: Lab) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk on the controller")
    small = installed.folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], check=True)
    noise = {"variant": "noise"}
    bulky = tarball(
        installed.folder / "bulky.tar.gz",
        Lab.files(
            Makefile=makefile().replace(
                "\tln -s", "\thead -c 300000 /dev/urandom > $(DESTDIR)/usr/local/demo/noise\n\tln -s"
            )
        ),
    )
    try:
        played = installed.play(installed.build(source=bulky, inputs=noise, cache_dir=str(small)))
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert played.rc == 2
    assert re.search(rf"The controller's disk is full: {small}/artifacts has \d+ bytes free", played.messages), (
        played.text
    )
    assert installed.said("node1", "ls", "/var/cache/clusterctl/packs"), "what was built is kept for the next run"
    again = installed.play(installed.build(source=bulky, inputs=noise))
    assert again.rc == 0, again.text
    assert again.of("node1")[0]["changes"] == ["fetched demo 1.0 that was built on node1 before"]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL], ids=["TERM", "KILL"])
@pytest.mark.parametrize("host", ["node1", "node2"], ids=["sudo-with-terminal", "plain-sudo"])
def test_nothing_of_a_build_survives_its_playbook(lab: Lab, host: str, signum: signal.Signals) -> None:
    steps = [{"name": "wait", "argv": ["sh", "-c", "sleep 987 & sleep 987 & wait"]}]
    task = lab.build(files=[], packages=[], steps=steps, inputs={"variant": f"{host}-{signum}"})
    task["when"] = f"inventory_hostname == '{host}'"
    with subprocess.Popen(
        lab.argv([task]), env=lab.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as play:
        wait_for(lambda: lab.ssh(host, "pgrep", "-fc", "^sleep 987").stdout.strip() == "2", "the build has started")
        if signum == signal.SIGKILL:
            kill_tree(play.pid)
        else:
            play.terminate()
        play.communicate(timeout=30)
    wait_for(lambda: lab.ssh(host, "pgrep", "-f", "^sleep 987").returncode != 0, "the build's children have gone")
    wait_for(lambda: not lab.said(host, "find", WORK, "-name", "clusterctl-*"), "its folder has gone")


def kill_tree(root: int) -> None:
    """Kill a process and all below it at once; ansible's workers have sessions of their own."""
    listing = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in listing.splitlines():
        pid, parent = map(int, line.split())
        children.setdefault(parent, []).append(pid)
    doomed, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        doomed.append(pid)
        waiting += children.get(pid, [])
    for pid in doomed:
        os.kill(pid, signal.SIGKILL)


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{timeout_s} s passed and not: {what}"
        time.sleep(0.3)
