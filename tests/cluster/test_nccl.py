"""NCCL on real nodes: from a wheel, an archive and a package; what is refused; what is in its way and named.

The NCCL here is a stand-in of a few kilobytes with NCCL's own names, made on a node; the real one is 344 MB and is what
the role's molecule scenario installs.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import playing
import pytest
from clusterctl.sandbox import Sandbox

Start = Callable[..., Sandbox]

pytestmark = pytest.mark.cluster

LINK = "/usr/local/nccl"
CHECK = f"{LINK}/libexec/clusterctl-nccl-check"
ENVIRONMENT = "/usr/local/python_env"
BUNDLED = f"{ENVIRONMENT}/lib/python3.11/site-packages"
NAME = "nccl_2.30.7-1+cuda13.0_x86_64"
_MESSAGE = re.compile(r'"msg": "((?:[^"\\]|\\.)*)"')


def library(version: str) -> str:
    _, minor, patch = map(int, version.split("."))
    return (
        f'const char banner[] = "NCCL version {version} compiled with CUDA 13.4";\n'
        f"int ncclGetVersion(int *version) {{ *version = {20000 + minor * 100 + patch}; return 0; }}\n"
    )


def header(version: str) -> str:
    _, minor, patch = map(int, version.split("."))
    return (
        f"#define NCCL_MAJOR 2\n#define NCCL_MINOR {minor}\n#define NCCL_PATCH {patch}\n"
        f"#define NCCL_VERSION_CODE {20000 + minor * 100 + patch}\n"
        "#include <cuda_runtime.h>\n#include <cuda_fp16.h>\n"
        "#if CUDART_VERSION >= 11080\n#include <cuda_bf16.h>\n#include <cuda_fp8.h>\n#endif\n"  # as of 2.25 to 2.28
        "typedef enum { ncclSuccess = 0 } ncclResult_t;\nncclResult_t ncclGetVersion(int *version);\n"
    )


@dataclass(frozen=True)
class Played:
    """What one run of the role said: how much each host changed (-1 where it failed), and the text."""

    changed: dict[str, int]
    text: str

    @property
    def refusal(self) -> str:
        """Return the one message of a run that failed."""
        failed = self.text.partition("FAILED! => ")[2]
        messages = [str(json.loads(f'"{found}"')) for found in _MESSAGE.findall(failed)]
        assert len(messages) == 1, self.text
        return messages[0]


class Cluster:
    """Nodes, a cache of their own on the controller, and a folder of wheels in place of an index."""

    def __init__(self, box: Sandbox, folder: Path) -> None:
        self.box, self.folder, self.cache, self.wheels = box, folder, folder / "cache", folder / "wheels"
        self.wheels.mkdir()

    def play(self, extra: dict[str, Any] | None = None, **variables: Any) -> Played:
        """Apply the role with its variables, and others as extra ones; ``members`` replaces what preflight says."""
        members = variables.pop("members", "{{ preflight_members }}")
        given = {
            "nccl_install": "always",
            "preflight_cache_dir": str(self.cache),
            "nccl_wheel_dir": str(self.wheels),
            **{f"nccl_{name}": value for name, value in variables.items()},
        }
        tasks = [
            {"set_fact": {"preflight_members": members}},
            {"import_role": {"name": "clusterctl.hpc.nccl"}, "vars": given},
        ]
        roles = ["clusterctl.hpc.preflight"]
        play = {"hosts": "all", "gather_facts": False, "roles": roles, "tasks": tasks}
        surroundings = playing.without_an_index(ANSIBLE_CALLBACK_RESULT_FORMAT="json")
        done = playing.play(self.box, self.folder, [play], extra, "-v", surroundings=surroundings)
        text = done.stdout + done.stderr
        return Played(playing.changes(text), text)

    def ssh(self, node: str, *argv: str) -> subprocess.CompletedProcess[str]:
        return playing.ssh(self.box, node, *argv)

    def said(self, node: str, *argv: str) -> str:
        return playing.said(self.box, node, "sudo", *argv)

    def write(self, node: str, path: str, text: str, *, mode: str = "0644") -> None:
        encoded = base64.b64encode(text.encode()).decode()
        script = f"mkdir -p {os.path.dirname(path)} && echo {encoded} | base64 -d > {path} && chmod {mode} {path}"  # noqa: PTH120
        self.said(node, "sh", "-c", script)

    def compile(self, node: str, path: str, version: str) -> None:
        """Make a library on a node; both run the same system."""
        self.write("node1", "/root/nccl.c", library(version))
        flags = "-shared -fPIC -Wl,-soname,libnccl.so.2"
        made = self.said("node1", "sh", "-c", f"gcc {flags} -o /root/made.so /root/nccl.c && base64 -w0 /root/made.so")
        self.write(node, f"{path}.b64", made)
        self.said(node, "sh", "-c", f"base64 -d {path}.b64 > {path} && rm {path}.b64")

    def fetched(self, version: str) -> bytes:
        """Return a library's bytes."""
        self.compile("node1", "/root/libnccl.so.2", version)
        return base64.b64decode(self.said("node1", "base64", "-w0", "/root/libnccl.so.2"))

    def loaded(self, node: str) -> dict[str, Any]:
        """Return what a session of the login user, no root, loads."""
        done = self.ssh(node, CHECK)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def versions(self) -> list[str]:
        return [str(self.loaded(node)["version"]) for node in ("node1", "node2")]

    def wheel(self, version: str, *, filler: int = 0) -> None:
        info = f"nvidia_nccl_cu13-{version}.dist-info"
        name = f"nvidia_nccl_cu13-{version}-py3-none-manylinux_2_18_x86_64.whl"
        with zipfile.ZipFile(self.wheels / name, "w") as bundle:
            bundle.writestr("nvidia/nccl/lib/libnccl.so.2", self.fetched(version))
            bundle.writestr("nvidia/nccl/include/nccl.h", header(version))
            bundle.writestr("nvidia/nccl/include/nccl_device/core.h", "")
            if filler:
                bundle.writestr("nvidia/nccl/lib/libnccl_device.bc", os.urandom(filler))
            bundle.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: nvidia-nccl-cu13\nVersion: {version}\n")
            bundle.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            bundle.writestr(f"{info}/RECORD", "")

    def tree(self, name: str, files: dict[str, str]) -> tuple[str, str]:
        """Pack texts as an archive with one folder; returns path and sha256."""
        path = self.folder / name
        with tarfile.open(path, "w:gz") as bundle:
            for inner, text in files.items():
                entry = tarfile.TarInfo(f"nccl/{inner}")
                entry.size = len(text)
                bundle.addfile(entry, io.BytesIO(text.encode()))
        return str(path), hashlib.sha256(path.read_bytes()).hexdigest()

    def archive(self, version: str) -> tuple[str, str]:
        """Pack a library and its header as NVIDIA does; returns path and sha256."""
        tree = self.folder / NAME
        (tree / "lib").mkdir(parents=True)
        (tree / "include").mkdir()
        (tree / "lib" / f"libnccl.so.{version}").write_bytes(self.fetched(version))
        (tree / "lib" / "libnccl.so.2").symlink_to(f"libnccl.so.{version}")
        (tree / "lib" / "libnccl.so").symlink_to("libnccl.so.2")
        (tree / "lib" / "libnccl_static.a").write_bytes(b"!<arch>\n")
        (tree / "include" / "nccl.h").write_text(header(version), encoding="utf-8")
        path = self.folder / f"{NAME}.txz"
        with tarfile.open(path, "w:xz") as bundle:
            bundle.add(tree, arcname=NAME)
        shutil.rmtree(tree)
        return str(path), hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def cluster(sandbox: Start, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    made = Cluster(sandbox("nccl", nodes=2), tmp_path_factory.mktemp("nccl"))
    install = "apt-get -q update && apt-get -q install -y --no-install-recommends gcc libc6-dev zstd"
    made.said("node1", "sh", "-c", install)
    made.wheel("2.32.3")
    made.wheel("2.31.2", filler=80_000_000)
    return made


@pytest.fixture(scope="module")
def first(cluster: Cluster) -> Played:
    played = cluster.play()
    assert set(played.changed) == {"node1", "node2"}, played.text
    assert -1 not in played.changed.values(), played.text
    return played


@pytest.fixture
def plain(cluster: Cluster, first: Played) -> Cluster:  # noqa: ARG001 - it is there afterwards
    """NCCL 2.32.3 of the wheel, whatever the test before left."""
    if cluster.versions() != ["2.32.3", "2.32.3"]:
        played = cluster.play()
        assert -1 not in played.changed.values(), played.text
    return cluster


def test_a_session_without_root_loads_it_on_every_node(plain: Cluster) -> None:
    for node in ("node1", "node2"):
        folder = plain.said(node, "realpath", LINK)
        assert plain.loaded(node) == {
            "version": "2.32.3",
            "header": "2.32.3",
            "path": f"{folder}/lib/libnccl.so.2",
        }
        assert plain.said(node, "readlink", "-f", "/usr/include/nccl.h") == f"{folder}/include/nccl.h"
        assert plain.said(node, "readlink", "-f", "/usr/include/nccl_device") == f"{folder}/include/nccl_device"


def test_a_second_run_asks_nobody_and_changes_nothing(plain: Cluster) -> None:
    assert plain.play(wheel_dir="").changed == {"node1": 0, "node2": 0}


def test_a_lost_line_in_the_loaders_cache_is_mended(plain: Cluster) -> None:
    plain.said(
        "node2",
        "sh",
        "-c",
        "mv /etc/ld.so.conf.d/nccl.conf /root/ && ldconfig && mv /root/nccl.conf /etc/ld.so.conf.d/",
    )
    assert plain.ssh("node2", CHECK).returncode == 1
    played = plain.play()
    assert played.changed == {"node1": 0, "node2": 1}, played.text
    assert plain.versions() == ["2.32.3", "2.32.3"]


def test_the_loaders_cache_gets_one_name_of_ours(plain: Cluster) -> None:
    folder = "/usr/local/lib/clusterctl"

    def cached() -> list[str]:
        lines = plain.said("node2", "/sbin/ldconfig", "-p").splitlines()
        return sorted(line.split()[-1] for line in lines if "/usr/local/" in line)

    assert cached() == [f"{folder}/libnccl.so.2"]
    library = plain.said("node2", "sh", "-c", "/sbin/ldconfig -p | sed -n 's/.*libz.so.1 .*=> //p'").split()[0]
    plain.said("node2", "sh", "-c", f"cp {library} {folder}/libz.so.1 && ldconfig")
    assert cached() == [f"{folder}/libnccl.so.2", f"{folder}/libz.so.1"]
    played = plain.play()
    assert played.changed == {"node1": 0, "node2": 1}, played.text
    assert cached() == [f"{folder}/libnccl.so.2"]


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"version": "2.99.1"}, "nvidia-nccl-cu13==2.99.1; the newest that fit are 2.31.2, 2.32.3"),
        ({"source": "build"}, "node1, which is to build NCCL, has no /usr/local/cuda/bin/nvcc: install the CUDA"),
        (
            {
                "members": "{{ preflight_members | map('combine', {'cuda': old_driver}) }}",
                "extra": {"old_driver": {"driver_major": 12, "driver_version": "550.54"}},
                "cuda": "13",
            },
            "driver of node1 (550.54, up to CUDA 12), node2 (550.54, up to CUDA 12): set nccl_cuda to '12'",
        ),
    ],
    ids=["version", "nvcc", "driver"],
)
def test_what_cannot_be_had_is_refused_before_a_build_and_the_former_works(
    plain: Cluster, variables: dict[str, Any], words: str
) -> None:
    given = dict(variables)
    if given.get("source") == "build":
        number = "NCCL_MAJOR := 2\nNCCL_MINOR := 29\nNCCL_PATCH := 7\n"
        given["archive"], given["sha256"] = plain.tree("tree.tar.gz", {"makefiles/version.mk": number})
    played = plain.play(**given)
    assert -1 in played.changed.values(), played.text
    assert words in played.refusal
    assert "\n" not in played.refusal
    assert "Traceback" not in played.text
    assert "installing packages" not in played.text, "a refusal costs no build"
    assert plain.versions() == ["2.32.3", "2.32.3"]


@pytest.fixture(scope="module")
def archive(cluster: Cluster) -> tuple[str, str]:
    return cluster.archive("2.30.7")


def test_nvidias_archive_tells_its_version_and_is_switched_on_and_back(
    plain: Cluster, archive: tuple[str, str]
) -> None:
    played = plain.play(source="archive", archive=archive[0], sha256=archive[1])
    assert -1 not in played.changed.values(), played.text
    assert plain.versions() == ["2.30.7", "2.30.7"]
    folder = plain.said("node2", "realpath", LINK)
    assert plain.loaded("node2")["path"] == f"{folder}/lib/libnccl.so.2.30.7"
    assert plain.ssh("node2", "test", "-e", f"{LINK}/lib/libnccl_static.a").returncode != 0
    assert plain.ssh("node2", "test", "-L", "/usr/include/nccl_device").returncode != 0, "it has none"
    back = plain.play()
    assert -1 not in back.changed.values(), back.text
    assert "would build" not in back.text
    assert plain.versions() == ["2.32.3", "2.32.3"]


@pytest.mark.long
def test_a_source_tree_is_compiled_with_the_toolkit_and_the_options_that_were_named(plain: Cluster) -> None:
    plain.write("node1", "/opt/cuda/bin/nvcc", "#!/bin/sh\n", mode="0755")
    makefile = (
        "src.build:\n\ttest -x $(CUDA_HOME)/bin/nvcc\n"
        "\ttest '$(NVCC_GENCODE)' = '-gencode=arch=compute_80,code=sm_80'\n"
        "\tmkdir -p $(BUILDDIR)/lib $(BUILDDIR)/include && cp nccl.h $(BUILDDIR)/include\n"
        "\tgcc -shared -fPIC -Wl,-soname,libnccl.so.2 -o $(BUILDDIR)/lib/libnccl.so.2.29.7 nccl.c\n"
        "\tln -s libnccl.so.2.29.7 $(BUILDDIR)/lib/libnccl.so.2\n"
    )
    number = "NCCL_MAJOR := 2\nNCCL_MINOR := 29\nNCCL_PATCH := 7\n"
    files = {"Makefile": makefile, "nccl.h": header("2.29.7"), "nccl.c": library("2.29.7")}
    path, sha256 = plain.tree("tree.tar.gz", {**files, "makefiles/version.mk": number})
    options = ["NVCC_GENCODE=-gencode=arch=compute_80,code=sm_80"]
    played = plain.play(source="build", archive=path, sha256=sha256, cuda_home="/opt/cuda", build_options=options)
    assert -1 not in played.changed.values(), played.text
    assert plain.versions() == ["2.29.7", "2.29.7"]


def test_another_nccl_in_every_sessions_way_is_named_with_its_cause(plain: Cluster) -> None:
    plain.compile("node2", "/opt/libnccl.so.2", "2.18.5")
    before = plain.said("node2", "cat", "/etc/environment")
    plain.write("node2", "/etc/environment", "LD_LIBRARY_PATH=/opt\n")
    try:
        played = plain.play()
    finally:
        plain.write("node2", "/etc/environment", before)
    assert played.changed == {"node1": 0, "node2": -1}, played.text
    assert "gets NCCL 2.18.5 of /opt/libnccl.so.2 instead of 2.32.3" in played.text
    assert "LD_LIBRARY_PATH of /etc/environment is '/opt'" in played.text


@pytest.fixture
def torch(plain: Cluster) -> Iterator[str]:
    """A framework on node2 that loads an NCCL of its own by its full path, as a CUDA PyTorch does by RPATH."""
    place = f"{BUNDLED}/nvidia/nccl/lib/libnccl.so.2"
    plain.said("node2", "mkdir", "-p", f"{BUNDLED}/nvidia/nccl/lib")
    plain.compile("node2", place, "2.28.9")
    plain.write("node2", f"{BUNDLED}/torch/lib/libtorch_cuda.so", "")
    plain.write("node2", f"{BUNDLED}/torch/__init__.py", f"import ctypes\nctypes.CDLL('{place}')\n")
    starter = f'#!/bin/sh\nPYTHONPATH={BUNDLED} exec /usr/bin/python3 "$@"\n'
    plain.write("node2", f"{ENVIRONMENT}/bin/python", starter, mode="0755")
    yield place
    plain.said("node2", "rm", "-rf", ENVIRONMENT)


@pytest.mark.long
def test_what_a_framework_really_maps_is_told_and_judged(plain: Cluster, torch: str) -> None:
    refused = plain.play()
    assert refused.changed == {"node1": 0, "node2": -1}, refused.text
    assert f"PyTorch takes NCCL 2.28.9 of {torch}, and the cluster's is 2.32.3" in refused.text
    told = plain.play(align="report")
    assert told.changed == {"node1": 0, "node2": 0}, told.text
    assert f"2.28.9 of {torch} (the framework's, mapped by torch)" in told.text
    refused = plain.play(align="cluster")
    assert "run the role python_env again, which links it there" in refused.text
    plain.said("node2", "ln", "-sf", f"{LINK}/lib/libnccl.so.2", torch)
    aligned = plain.play(align="cluster")
    assert aligned.changed == {"node1": 0, "node2": 0}, aligned.text
    assert "(the cluster's, mapped by session and torch)" in aligned.text


@pytest.mark.long
def test_what_a_package_owns_is_left_and_used(plain: Cluster) -> None:
    multiarch = "/usr/lib/x86_64-linux-gnu"
    for package, files in (("libnccl2", f"{multiarch}/libnccl.so.2.29.7"), ("libnccl-dev", "/usr/include/nccl.h")):
        root = f"/root/{package}"
        control = f"Package: {package}\nVersion: 2.29.7-1\nArchitecture: amd64\nMaintainer: test\nDescription: test\n"
        plain.write("node1", f"{root}/DEBIAN/control", control)
        if package == "libnccl2":
            plain.said("node1", "mkdir", "-p", f"{root}{multiarch}")
            plain.compile("node1", f"{root}{files}", "2.29.7")
            plain.said("node1", "ln", "-s", "libnccl.so.2.29.7", f"{root}{multiarch}/libnccl.so.2")
        else:
            plain.write("node1", f"{root}{files}", header("2.29.7"))
        plain.said("node1", "sh", "-c", f"mkdir -p /srv/repo && dpkg-deb --build {root} /srv/repo/{package}.deb")
        listed = (
            f'cd /srv/repo && {{ dpkg-deb -f {package}.deb; echo "Filename: ./{package}.deb";'
            f' echo "Size: $(stat -c %s {package}.deb)"; echo "SHA256: $(sha256sum < {package}.deb | head -c64)";'
            " echo; } >> Packages"
        )
        plain.said("node1", "sh", "-c", listed)
    repository = plain.said("node1", "sh", "-c", "tar -C /srv -c repo | base64 -w0")
    plain.write("node2", "/root/repo.b64", repository)
    plain.said("node2", "sh", "-c", "base64 -d /root/repo.b64 | tar -C /srv -x")
    for node in ("node1", "node2"):
        plain.write(node, "/etc/apt/sources.list.d/here.list", "deb [trusted=yes] file:/srv/repo ./\n")
        plain.said(node, "sh", "-c", "rm -f /etc/apt/sources.list.d/debian.sources && apt-get -q update")

    unnamed = plain.play(source="packages")
    assert "name the release that your package manager offers" in unnamed.refusal

    played = plain.play(source="packages", version="2.29.7")
    assert -1 not in played.changed.values(), played.text
    for node in ("node1", "node2"):
        assert plain.loaded(node) == {
            "version": "2.29.7",
            "header": "2.29.7",
            "path": f"{multiarch}/libnccl.so.2.29.7",
        }
        assert plain.said(node, "dpkg-query", "--search", "/usr/include/nccl.h") == "libnccl-dev: /usr/include/nccl.h"
        assert plain.said(node, "dpkg", "--verify", "libnccl-dev") == "", "the package's files are as it brought them"
    assert plain.play(source="packages", version="2.29.7").changed == {"node1": 0, "node2": 0}

    back = plain.play()
    assert -1 not in back.changed.values(), back.text
    assert "Left as it is: /usr/include/nccl.h (of the package libnccl-dev)" in back.text
    assert plain.versions() == ["2.32.3", "2.32.3"], "the cluster's goes before the package's"
    assert f"2.29.7 of {multiarch}/libnccl.so.2.29.7 (the loader's cache)" in back.text
