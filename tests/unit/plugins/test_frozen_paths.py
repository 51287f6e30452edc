"""A file system that does not answer is told apart from a folder that is missing, and the probe goes on without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import record
from clusterctl.provisioning import plan
from clusterctl.support import content

LOCAL = """\
22 1 0:20 / / rw,relatime - ext4 /dev/vda rw
24 22 0:22 / /proc rw - proc proc rw
25 24 0:35 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw,fd=29
26 22 0:5 / /dev rw - devtmpfs devtmpfs rw
30 22 0:27 / /run/user/1000/gvfs rw - fuse.gvfsd-fuse gvfsd-fuse rw
31 22 0:28 / /scratch rw shared:1 master:2 - xfs /dev/vdb rw
"""

# In a mount namespace of its own: a FUSE file system that never answers, and what the probe says of two homes.
DEAD = """
import ctypes, json, os, pwd, sys, time
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x4c000, None):
    sys.exit(77)
device = os.open("/dev/fuse", os.O_RDWR)
dead, alive = sys.argv[1], sys.argv[2]
options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
if libc.mount(b"dead", dead.encode(), b"fuse.dead", 0, options):
    sys.exit(77)
from node_look import record

record.frozen_paths.__defaults__ = (0.5,)
homes = {"ada": dead + "/ada", "grace": alive, "late": alive + "/late"}
pwd.getpwnam = lambda name: pwd.struct_passwd((name, "x", 20002, 20002, "", homes[name], "/bin/bash"))
watch = [
    {"path": dead + "/ada/.ssh/id", "kind": "file"},
    {"path": dead + "/ada/.ssh/keys", "kind": "block", "marker": "ssh_mesh"},
    {"path": alive + "/file", "kind": "file"},
]
print(json.dumps({name: record.collect({"job_user": name, "watch": watch}) for name in homes}))
sys.stdout.flush()
os._exit(0)
"""

# In a mount namespace of its own: a session whose search paths and folders lead to a file system that never answers.
DEAD_SEARCH_PATH = f"""{DEAD.partition("homes = ")[0].rpartition(chr(10))[0]}
bad = dead + "/bin"
os.environ |= {{
    "PATH": f"{{bad}}:{{alive}}",
    "LD_LIBRARY_PATH": f"{{bad}};{{alive}}:",
    "TMPDIR": bad,
    "UCX_CONFIG_DIR": bad,
    "NCCL_CONF_FILE": bad + "/nccl.conf",
    "SLURM_CONF": bad + "/slurm.conf",
}}
print(json.dumps(record.collect({{"libraries": [{{"soname": "libc.so.6"}}]}})))
sys.stdout.flush()
os._exit(0)
"""

# In a mount namespace of its own: the folder in which a vendor's Open MPI would be never answers, or one in it.
DEAD_VENDORS = f"""{DEAD.partition("homes = ")[0].rpartition(chr(10))[0]}
from node_look import existing_openmpi

existing_openmpi._PLACES = (f"{{dead}}/hpcx*/ompi", f"{{dead}}/openmpi*", f"{{alive}}/hpcx*/ompi")
print(json.dumps(record.collect({{}})))
sys.stdout.flush()
os._exit(0)
"""

# In a mount namespace of its own: a package of MPI names a folder that never answers for its libraries.
DEAD_LIBRARIES = f"""{DEAD.partition("homes = ")[0].rpartition(chr(10))[0]}
record.existing_python.refuse_unsafe = lambda *_unused: None  # everybody can write to /tmp
found = record.collect({{"existing_python": sys.argv[3]}})
print(json.dumps([found["existing_python"], found["problems"]]))
sys.stdout.flush()
os._exit(0)
"""

# In a mount namespace of its own: an automounter that has made the folder of a home and mounts nothing on it.
IDLE_AUTOMOUNTER = """
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x4c000, None):
    sys.exit(77)
asked, answer = os.pipe()
os.set_inheritable(answer, True)
options = f"fd={answer},pgrp={os.getpgrp()},minproto=5,maxproto=5,indirect".encode()
if libc.mount(b"auto", sys.argv[1].encode(), b"autofs", 0, options):
    sys.exit(77)
home = sys.argv[1] + "/grace"
os.mkdir(home)
look = "import sys; from node_look import record; print(*record.frozen_paths(sys.argv[1:], 0.5))"
subprocess.run([sys.executable, "-c", look, home, sys.argv[1]], start_new_session=True, check=True)
"""


def test_only_file_systems_that_wait_for_a_server_are_asked() -> None:
    assert not record.has_server(LOCAL)
    for kind in ("nfs4", "fuse.sshfs", "lustre", "autofs", "cifs", "one-of-tomorrow"):
        assert record.has_server(f"{LOCAL}40 22 0:44 / /home rw - {kind} server:/home rw\n")


def test_what_is_missing_has_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "has_server", lambda _text: True)
    assert record.frozen_paths(["/", "/no/such/folder", "relative"]) == set()


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="root alone mounts FUSE")
def test_the_probe_goes_on_where_a_home_hangs(tmp_path: Path) -> None:
    dead, alive = tmp_path / "dead", tmp_path / "alive"
    dead.mkdir()
    alive.mkdir()
    (alive / "file").touch()
    done = in_namespace(DEAD, str(dead), str(alive))
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    homes = {name: (it["job_user"]["has_home"], it["job_user"]["home_answers"]) for name, it in found.items()}
    assert homes == {"ada": (False, False), "grace": (True, True), "late": (False, True)}
    assert [entry["kind"] for entry in found["ada"]["watch"]] == ["silent", "silent", "file"]
    before = [{"path": f"{dead}/ada/.ssh/keys", "kind": "block", "marker": "ssh_mesh", "mode": "0600"}]
    (differs,) = plan.of_paths(before, found["ada"]["watch"])
    assert differs.words == "its file system does not answer"
    assert f"storage: {dead}/ada is on a file system that does not answer" in found["ada"]["problems"]
    assert f"storage: {dead}/ada is on a file system that does not answer" not in found["grace"]["problems"]


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="root alone mounts FUSE")
def test_the_probe_goes_on_where_a_folder_of_the_search_path_hangs(tmp_path: Path) -> None:
    dead, alive = tmp_path / "dead", tmp_path / "alive"
    dead.mkdir()
    alive.mkdir()
    (alive / "mpirun").symlink_to("/bin/true")
    found = json.loads(in_namespace(DEAD_SEARCH_PATH, str(dead), str(alive)).stdout)
    silent = [f"storage: {dead}/bin is on a file system that does not answer"]
    assert [one for one in found["problems"] if "does not answer" in one] == silent
    assert [one["path"] for one in found["launch"] if one["path"]] == [f"{alive}/mpirun"]
    assert found["libraries"][0]["path"].endswith("/libc.so.6")
    assert found["environment"] == {"PATH": f"{dead}/bin:{alive}", "LD_LIBRARY_PATH": f"{dead}/bin;{alive}:"}
    assert f"{dead}/bin" not in [one["path"] for one in found["scratch"]]


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="root alone mounts FUSE")
def test_the_probe_goes_on_where_the_folder_of_vendors_hangs(tmp_path: Path) -> None:
    dead, alive = tmp_path / "dead", tmp_path / "alive"
    dead.mkdir()
    for name in ("bin", "include"):
        (alive / "hpcx/ompi" / name).mkdir(parents=True)
    (alive / "hpcx/ompi/bin/mpirun").symlink_to("/bin/true")
    numbers = {"MAJOR": 5, "MINOR": 0, "RELEASE": 7}
    header = "".join(f"#define OMPI_{name}_VERSION {number}\n" for name, number in numbers.items())
    (alive / "hpcx/ompi/include/mpi.h").write_text(header)
    (alive / "hpcx-late").symlink_to(dead)
    found = json.loads(in_namespace(DEAD_VENDORS, str(dead), str(alive)).stdout)
    assert found["vendor_openmpis"] == [{"path": f"{alive}/hpcx/ompi", "version": "5.0.7"}]
    silent = [one for one in found["problems"] if "does not answer" in one]
    assert silent == [
        f"storage: {place} is on a file system that does not answer" for place in (f"{alive}/hpcx-late/ompi", dead)
    ]


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="root alone mounts FUSE")
def test_the_probe_goes_on_where_the_libraries_of_a_package_hang(tmp_path: Path) -> None:
    dead, alive, made = tmp_path / "dead", tmp_path / "alive", tmp_path / "env"
    dead.mkdir()
    alive.mkdir()
    venv.create(made, symlinks=True)
    package = made / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages/mpi4py"
    package.mkdir()
    empty = ["gcc", "-shared", "-x", "c", "/dev/null", "-o"]
    subprocess.run([*empty, str(alive / "libmpi.so"), "-Wl,-soname,libmpi.so.40"], check=True)
    linked = [f"-L{alive}", "-Wl,--no-as-needed", "-lmpi", f"-Wl,-rpath,{dead}/lib"]
    subprocess.run([*empty, str(package / "MPI.x.so"), *linked], check=True)
    found, problems = json.loads(in_namespace(DEAD_LIBRARIES, str(dead), str(alive), str(made)).stdout)
    assert not [one for one in problems if "existing_python" in one]
    assert found["mpi"]["mpi4py"]["library"] == f"{dead}/lib/libmpi.so.40"


def test_the_folders_of_a_session_are_those_of_its_search_paths_and_settings() -> None:
    variables = {
        "PATH": "/usr/bin:bin::/apps/bin/",
        "LD_LIBRARY_PATH": "/apps/lib;/usr/bin",
        "NCCL_CONF_FILE": "/apps/etc/nccl.conf",
        "HOME": "/home/ada",
    }
    assert record.session_folders(variables) == ["/usr/bin", "/apps/bin", "/apps/lib", "/apps/etc"]
    assert record.without(variables, {"/apps/bin", "/apps/etc"}) == {
        "PATH": "/usr/bin:bin::",
        "LD_LIBRARY_PATH": "/apps/lib;/usr/bin",
        "HOME": "/home/ada",
    }
    assert record.without(variables, set()) == variables


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone mounts autofs")
def test_an_automounted_home_is_mounted_by_the_look_where_its_folder_is_there(tmp_path: Path) -> None:
    done = in_namespace(IDLE_AUTOMOUNTER, str(tmp_path))
    assert done.stdout.split() == [f"{tmp_path}/grace"], done.stderr


def in_namespace(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program that makes a mount namespace for itself; skip where this machine has none."""
    utils = str(content.root() / "plugins" / "module_utils")
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": utils},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        start_new_session=True,
    )
    if done.returncode == 77:
        pytest.skip("this machine mounts no such file system in a namespace of its own")
    assert done.returncode == 0, done.stderr
    return done
