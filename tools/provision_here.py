# SPDX-License-Identifier: Apache-2.0
"""Make this very machine a cluster of one without a network, and prove it: ``make provision-here``.

It takes the bundle of ``make bundle``, adopts the machine's own environment with PyTorch, and has an sshd of this
machine answer on the loopback address. Then it runs ``provision``, ``validate`` and the checks of ``make test-gpu``.
Every output lands in one folder, also that of a failure.

Python 3.11 and its standard library suffice. Exit codes: 0 all passed, and what was skipped says why; 1 a step failed;
3 refused before anything was changed. A time limit ends the step in progress, and the next ones are skipped.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
WORK = Path("/var/lib/clusterctl-here")
SCHEMA = 1
FAILED, REFUSED = 1, 3
LIMIT_S = 540.0
GPU_S = 60.0  # with less time left, the checks of test-gpu are not begun
PROBE_S = 120
END_S = 15.0  # from a polite end to a kill
ADDRESS, PORT = "127.0.0.1", 22
OLDEST = (3, 11)
_NOTHING_TO_RUN = 3  # of tests/gpu/gpu_run.py
_MOST_PACKS = 14 << 20  # NCCL's pack is hundreds of megabytes, and made of the environment's own copy
_BUILD_LOGS = Path("/var/log/clusterctl")
_CMAKE = "cmake"
_CONTROLLER = "controller.tar.xz"
_NAME = re.compile(r"(?:(?![.])[A-Za-z0-9_.+~%-]+/)*(?![.])[A-Za-z0-9_.+~%-]+")  # of a file in an archive

# Started with the environment's own Python. PyTorch is not imported: 'provision' proves that it loads.
PROBE = """
import importlib.metadata, importlib.util, json, os, runpy, sys, sysconfig
found = {"python": "%d.%d.%d" % sys.version_info[:3], "prefix": sys.prefix, "packages": sysconfig.get_path("purelib")}
spec = importlib.util.find_spec("torch")
if spec is not None and spec.origin:
    its = runpy.run_path(os.path.join(os.path.dirname(spec.origin), "version.py"))
    found["torch"], found["cuda"] = str(its["__version__"]), its.get("cuda") or ""
for one in importlib.metadata.distributions():
    name = (one.metadata["Name"] or "").lower().replace("_", "-")
    if name.startswith("nvidia-nccl-cu"):
        found["nccl"], found["nccl_cuda"] = one.version, name.replace("nvidia-nccl-cu", "")
        found["nccl_folder"] = str(one.locate_file("nvidia/nccl"))
print(json.dumps(found))
"""


class Refusal(Exception):  # noqa: N818 - nothing went wrong yet
    """Nothing was changed; the message is one sentence."""


class StepFailed(Exception):  # noqa: N818 - the step tells it
    """A step did not do its work; the message is one sentence."""


class StepSkipped(Exception):  # noqa: N818 - nothing went wrong
    """There is nothing to do; the message says why."""


@dataclass(frozen=True)
class Environment:
    """The machine's own Python environment."""

    python: str
    prefix: str
    packages: str
    torch: str = ""
    cuda: str = ""
    nccl: str = ""
    nccl_cuda: str = ""
    nccl_folder: str = ""


@dataclass(frozen=True)
class Bundle:
    """A bundle that fits this machine.

    Attributes:
        archive: its file.
        packages: names of packages of the distribution that the machine needs, from the bundle or not.
        controller: names of the wheels of clusterctl's environment, which lie in one of two folders.
        variables: of the roles.
        files: each file's sha256.
    """

    archive: Path
    packages: tuple[str, ...]
    controller: tuple[str, ...]
    variables: Mapping[str, Any]
    files: Mapping[str, str]


@dataclass
class Step:
    """One step, for the report: ``PASS``, ``FAIL`` or ``SKIP``, and the reason of the latter two."""

    name: str
    verdict: str = "PASS"
    seconds: float = 0.0
    reason: str = ""


# --- what there is, before anything is changed -----------------------------------------------------------------------


def platform_here(python: str, etc: Path = Path("/etc")) -> str:
    """Return the id of this machine's platform, as clusterctl writes it.

    Args:
        python: version of the environment's Python.
        etc: the folder of os-release.
    """
    fields = dict(line.split("=", 1) for line in (etc / "os-release").read_text("utf-8").splitlines() if "=" in line)
    system = "-".join(fields.get(name, "").strip("\"'") for name in ("ID", "VERSION_ID"))
    release = ".".join(python.split(".")[:2])
    return f"{system}-{platform.machine()}-glibc{platform.libc_ver()[1]}-py{release}"


def look_at(folder: str) -> Environment:
    """Return what an environment has; an empty folder means the one of ``python3`` on PATH.

    Raises:
        Refusal: it has no PyTorch, or a Python that clusterctl does not run with.
    """
    python = f"{folder.rstrip('/')}/bin/python" if folder else shutil.which("python3") or "python3"
    try:
        done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=False, timeout=PROBE_S)
        found = Environment(**json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError, TypeError) as error:
        why = f"did not answer within {PROBE_S} s" if isinstance(error, subprocess.TimeoutExpired) else "does not run"
        raise Refusal(f"{python} {why}; name the folder of the environment with PyTorch with --environment.") from None
    if not found.torch:
        raise Refusal(f"{python} has no PyTorch; name the folder of the environment that has it with --environment.")
    if tuple(int(number) for number in found.python.split(".")[:2]) < OLDEST:
        raise Refusal(f"{python} is Python {found.python}, and clusterctl needs 3.11 or newer.")
    return found


def bundle_in(named: str, here: str) -> Bundle:
    """Return the bundle.

    Args:
        named: its file; '' is the only one in ``dist/bundle``.
        here: the id of this machine's platform.

    Raises:
        Refusal: it is missing, damaged or for another platform.
    """
    found = [Path(named)] if named else sorted((ROOT / "dist" / "bundle").glob("*.tar"))
    if len(found) != 1:
        many = f"{ROOT / 'dist' / 'bundle'} has {len(found)} bundles" if found else "There is no bundle in dist/bundle"
        raise Refusal(f"{many}; make it with 'make bundle' on a machine with a network, or name it with --bundle.")
    (archive,) = found
    try:
        with tarfile.open(archive) as pack:
            member = pack.extractfile("manifest.json")
            said = json.loads(member.read()) if member else {}
        if said["schema"] != SCHEMA:
            raise ValueError("schema")  # noqa: TRY301 - as for any other field
        its = str(said["platform"])
        packages, controller = (tuple(map(str, said[name])) for name in ("packages", "controller"))
        made = Bundle(archive, packages, controller, dict(said["variables"]), dict(said["files"]))
    except FileNotFoundError:
        raise Refusal(f"The bundle {archive} does not exist; make it with 'make bundle'.") from None
    except (OSError, tarfile.TarError, KeyError, ValueError, TypeError):
        raise Refusal(f"{archive} is not a bundle of this release; make it anew with 'make bundle'.") from None
    if its != here:
        raise Refusal(
            f"The bundle {archive} is for {its}, and this machine is {here}; make one for it with"
            " 'make bundle SYSTEM=…'."
        )
    return made


def refuse_what_is_missing(bundle: Bundle, found: Environment) -> None:
    """Refuse a machine without a package that the bundle leaves to it, such as the compiler.

    Raises:
        Refusal: with the names of the packages.
    """
    missing = [
        name
        for name in bundle.packages
        if not any(path.startswith(f"debs/{name}_") for path in bundle.files)
        and not (name == _CMAKE and Path(found.prefix, "bin", _CMAKE).exists())
        and not _is_installed(name)
    ]
    if missing:
        raise Refusal(
            f"This machine lacks {', '.join(missing)}, and the bundle does not bring such packages; install them from"
            " the distribution of this machine."
        )


def unpack(bundle: Bundle, folder: Path) -> None:
    """Unpack a bundle into a new folder.

    Raises:
        Refusal: a file has another sha256 than the manifest names; nothing is kept.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, mode=0o700, exist_ok=True)  # it gets a private key
    folder.mkdir()
    with tarfile.open(bundle.archive) as pack:
        for name, sha256 in bundle.files.items():
            if not _NAME.fullmatch(name) or _unpacked(pack, name, folder / name) != sha256:
                shutil.rmtree(folder)
                raise Refusal(f"{name} in {bundle.archive} is damaged; copy the bundle again.")


def _unpacked(pack: tarfile.TarFile, name: str, target: Path) -> str:
    """Write a regular file of an archive, and return its sha256; '' where the archive lacks it."""
    with contextlib.suppress(KeyError):
        stream = pack.extractfile(name)
        if stream is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            with stream, target.open("w+b") as copy:
                shutil.copyfileobj(stream, copy)
                copy.seek(0)
                return hashlib.file_digest(copy, "sha256").hexdigest()
    return ""


# --- steps -----------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """A run with its time limit. Each program's output goes into ``output.txt`` of the folder."""

    out: Path
    environment: Environment
    bundle: Bundle
    options: Sequence[str]
    limit_s: float = LIMIT_S
    began: float = field(default_factory=time.monotonic)
    steps: list[Step] = field(default_factory=list)

    @property
    def left_s(self) -> float:
        """Seconds until the time limit."""
        return self.limit_s - (time.monotonic() - self.began)

    @property
    def inventory(self) -> Path:
        """The inventory of the cluster of one."""
        return WORK / "inventory.json"

    def do(self, name: str, work: Callable[[Run], None]) -> bool:
        """Do a step unless an earlier one failed, and return whether the next may begin."""
        step = Step(name)
        self.steps.append(step)
        began = time.monotonic()
        sys.stdout.write(f"{name} ...\n")
        sys.stdout.flush()
        try:
            if self.left_s <= 0:
                raise StepFailed(f"the limit of {self.limit_s:.0f} s has passed")  # noqa: TRY301 - as the work itself
            work(self)
        except StepSkipped as error:
            step.verdict, step.reason = "SKIP", str(error)
        except (StepFailed, OSError) as error:
            step.verdict, step.reason = "FAIL", str(error)
        step.seconds = round(time.monotonic() - began, 1)
        sys.stdout.write(f"{name}: {step.verdict} after {step.seconds} s{f': {step.reason}' * bool(step.reason)}\n")
        self.report()
        return step.verdict != "FAIL"

    def all(self, steps: Mapping[str, Callable[[Run], None]]) -> bool:
        """Do the steps in their order until one fails, and return whether none did.

        The GPU is checked also where ``validate`` failed: such a machine may be there only once.
        """
        done = True
        for name, work in steps.items():
            if done or (name == "gpu" and self.steps[-1].name == "validate"):
                done = self.do(name, work) and done
        return done

    def report(self) -> None:
        """Write what is known so far."""
        document = {
            "schema": SCHEMA,
            "bundle": {"name": self.bundle.archive.name, "bytes": self.bundle.archive.stat().st_size},
            "environment": asdict(self.environment),
            "cores": os.cpu_count(),
            "seconds": round(time.monotonic() - self.began, 1),
            "steps": [asdict(one) for one in self.steps],
        }
        (self.out / "summary.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    def program(self, argv: Sequence[str], *, stdout: str = "", **more: str) -> int:
        """Run a program until the time limit, and return its exit code.

        Args:
            argv: the command.
            stdout: file of the folder for its standard output; '' is the one for all output.
            more: variables of the environment.

        Raises:
            StepFailed: it ran past the limit.
        """
        with (self.out / "output.txt").open("ab") as said, contextlib.ExitStack() as stack:
            said.write(f"\n=== {' '.join(argv)}\n".encode())
            said.flush()
            target: IO[bytes] = stack.enter_context((self.out / stdout).open("wb")) if stdout else said
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=target, stderr=said, cwd=WORK, start_new_session=True,
                env={**os.environ, **more},
            )  # fmt: skip
            try:
                return process.wait(max(self.left_s, 1))
            except BaseException as error:
                _end(process)
                if isinstance(error, subprocess.TimeoutExpired):
                    raise StepFailed(f"it was ended at the limit of {self.limit_s:.0f} s") from None
                raise

    def must(self, argv: Sequence[str], what: str, **more: str) -> None:
        """Run a program that has to succeed.

        Raises:
            StepFailed: it did not.
        """
        if code := self.program(argv, **more):
            raise StepFailed(f"{what} ended with {code}; output.txt has its words")

    def clusterctl(self, *words: str, stdout: str) -> int:
        """Run clusterctl of this working tree with the bundle's packages, and return its exit code."""
        argv = [str(WORK / "controller" / "bin" / "python"), "-m", "clusterctl", *words]
        return self.program(
            argv, stdout=stdout, PYTHONPATH=str(ROOT / "python"), PIP_INDEX_URL="https://index.invalid/simple",
            XDG_CACHE_HOME=str(WORK / "cache"), XDG_STATE_HOME=str(WORK / "state"),
        )  # fmt: skip


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program politely, and then all that it left."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)


def install_packages(run: Run) -> None:
    """Install from the bundle the packages of the distribution that the machine lacks; its own apt sources stay."""
    missing = [name for name in run.bundle.packages if not _is_installed(name)]
    own_cmake = Path(run.environment.prefix, "bin", _CMAKE)
    if _CMAKE in missing and own_cmake.exists():
        _lead_to_cmake(run, own_cmake)
        missing.remove(_CMAKE)
    if not missing:
        raise StepSkipped("the machine has all that is needed")
    lists = WORK / "apt"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    sources = WORK / "sources.list"
    sources.write_text(f"deb [trusted=yes] file:{WORK / 'bundle' / 'debs'} ./\n", encoding="utf-8")
    options = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": lists,
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "APT::Install-Recommends": "false",
    }
    apt = ["apt-get", "-q", "-y", *(f"-o{name}={value}" for name, value in options.items())]
    run.must([*apt, "update"], "apt-get update")
    if run.program([*apt, "--simulate", "install", *missing], DEBIAN_FRONTEND="noninteractive"):
        raise StepFailed(f"the bundle cannot bring {', '.join(missing)}; output.txt has the words of apt")
    run.must([*apt, "install", *missing], "apt-get install", DEBIAN_FRONTEND="noninteractive")


def _is_installed(package: str) -> bool:
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status}", package], capture_output=True, text=True, check=False
    )
    return done.stdout == "installed"


def _lead_to_cmake(run: Run, program: Path) -> None:
    """Install a package ``cmake`` that leads to the environment's, which takes rules of trees older than CMake 3.5."""
    folder = WORK / "cmake"
    control, script = folder / "DEBIAN" / "control", folder / "usr" / "bin" / _CMAKE
    for path in (control, script):
        path.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(f'#!/bin/sh\nCMAKE_POLICY_VERSION_MINIMUM=3.5 exec {program} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    control.write_text(
        "Package: cmake\nVersion: 0~environment\nArchitecture: all\nMaintainer: clusterctl <root@localhost>\n"
        f"Description: leads to {program}\n",
        encoding="utf-8",
    )
    run.must(["dpkg-deb", "--build", str(folder), str(WORK / "cmake.deb")], "dpkg-deb")
    run.must(["dpkg", "--install", str(WORK / "cmake.deb")], "dpkg")


def start_sshd(run: Run) -> None:
    """Have sshd answer on the loopback address, and let root log in with a key of its own."""
    key, authorized = WORK / "id_ed25519", Path.home() / ".ssh" / "authorized_keys"
    if not key.exists():
        run.must(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "provision-here", "-f", str(key)], "ssh-keygen")
    public = key.with_suffix(".pub").read_text("utf-8")
    authorized.parent.mkdir(mode=0o700, exist_ok=True)
    known = authorized.read_text("utf-8") if authorized.exists() else ""
    if public not in known:
        authorized.write_text(f"{known}{'' if known.endswith(chr(10)) or not known else chr(10)}{public}", "utf-8")
        authorized.chmod(0o600)
    run.must(["ssh-keygen", "-A"], "ssh-keygen -A")
    if not _answers():
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        run.must(["/usr/sbin/sshd", "-o", f"ListenAddress={ADDRESS}"], "sshd")
    host_key = Path("/etc/ssh/ssh_host_ed25519_key.pub").read_text("utf-8").split()[:2]
    (WORK / "known_hosts").write_text(f"{ADDRESS} {' '.join(host_key)}\n", encoding="utf-8")


def _answers() -> bool:
    with contextlib.suppress(OSError), socket.create_connection((ADDRESS, PORT), timeout=5):
        return True
    return False


def make_controller(run: Run) -> None:
    """Make a Python environment with the bundle's packages, and numpy of the machine's own environment behind them."""
    folder, bundle, uv = WORK / "controller", WORK / "bundle", WORK / "uv"
    with tarfile.open(bundle / _CONTROLLER) as pack:
        for name in filter(_NAME.fullmatch, pack.getnames()):
            _unpacked(pack, name, bundle / "controller" / name)
    (its,) = (bundle / "cache" / "wheels").glob("uv-*.whl")
    with zipfile.ZipFile(its) as wheel, uv.open("wb") as program:
        (name,) = (one for one in wheel.namelist() if one.endswith(".data/scripts/uv"))
        shutil.copyfileobj(wheel.open(name), program)
    uv.chmod(0o700)
    places = [bundle / place / name for name in run.bundle.controller for place in ("controller", "cache/wheels")]
    wheels = [str(path) for path in places if path.is_file()]
    python = f"{run.environment.prefix}/bin/python3"
    run.must([python, "-m", "venv", "--clear", "--without-pip", str(folder)], "venv")
    argv = [str(uv), "--quiet", "--no-cache", "--no-config", "pip", "install", "--offline", "--no-index", "--no-deps"]
    run.must([*argv, "--python", str(folder / "bin" / "python"), *wheels], "uv pip install")
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "environment.pth").write_text(f"{run.environment.packages}\n", encoding="utf-8")
    shutil.copytree(WORK / "bundle" / "cache", WORK / "cache" / "clusterctl", dirs_exist_ok=True)


def nccl_variables(found: Environment, folder: Path) -> dict[str, Any]:
    """Pack the environment's own NCCL as an archive of NVIDIA's layout, and return the variables that name it.

    Args:
        found: the environment.
        folder: where the archive goes; it is not compressed.
    """
    place = Path(found.nccl_folder)
    if not found.nccl or not (place / "include" / "nccl.h").is_file():
        return {"nccl_install": "never"}
    version, top = found.nccl.partition(".post")[0], "nccl"
    archive = folder / f"nccl_{version}-1+cuda{found.nccl_cuda}.0_{platform.machine()}.tar"
    with tarfile.open(archive, "w") as pack:
        for part in ("include", "lib"):
            pack.add(place / part, f"{top}/{part}", filter=_without_notes)
    with archive.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"nccl_source": "archive", "nccl_archive": str(archive), "nccl_sha256": digest}


def _without_notes(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in member.name or member.name.endswith(".py") else member


def write_inventory(run: Run) -> None:
    """Write the inventory, whose only host is this machine."""
    its = nccl_variables(run.environment, WORK)
    options = [f"UserKnownHostsFile={WORK / 'known_hosts'}", "GlobalKnownHostsFile=none", "StrictHostKeyChecking=yes"]
    variables = {
        "ansible_host": ADDRESS,
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(WORK / "id_ed25519"),
        "ansible_ssh_common_args": " ".join(f"-o {one}" for one in (*options, "IdentitiesOnly=yes")),
        "python_env_existing": run.environment.prefix,
        **run.bundle.variables,
        **its,
    }
    document = {"all": {"hosts": {"here": variables}}}
    run.inventory.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def provision(run: Run) -> None:
    """Run ``clusterctl provision``."""
    words = ["provision", "--yes", "--no-validate", "--format", "jsonl", *run.options, str(run.inventory)]
    if code := run.clusterctl(*words, stdout="provision.jsonl"):
        raise StepFailed(f"clusterctl provision ended with {code}{_first_problem(run.out / 'provision.jsonl')}")


def _first_problem(record: Path) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError, TypeError):
        said = json.loads(record.read_bytes().splitlines()[-1])
        failed = [host["message"] for host in said["hosts"] if host["message"]]
        return f": {failed[0] if failed else said['problems'][0]['problem']}"
    return "; output.txt has its words"


def validate(run: Run) -> None:
    """Run ``clusterctl validate``."""
    words = ["validate", "--no-history", "--format", "jsonl", *run.options, str(run.inventory)]
    if code := run.clusterctl(*words, stdout="validation.jsonl"):
        raise StepFailed(f"clusterctl validate ended with {code}; validation.jsonl has each check")


def check_gpu(run: Run) -> None:
    """Run the checks of ``make test-gpu``, with ranks that share the GPU where there is one."""
    if run.left_s < GPU_S:
        raise StepSkipped(f"less than {GPU_S:.0f} s were left")
    kept = WORK / "gpu"
    argv = ["/usr/local/python_env/bin/python", str(ROOT / "tests" / "gpu" / "gpu_run.py")]
    code = run.program(argv, stdout="gpu.txt", TEST_GPU_PYTHON=argv[0], TEST_GPU_OUT=str(kept))
    for path in (*kept.glob("*.md"), *kept.glob("*.json")):
        shutil.copy(path, run.out)
    if code == _NOTHING_TO_RUN:
        raise StepSkipped((run.out / "output.txt").read_text("utf-8", "replace").splitlines()[-1])
    if code:
        raise StepFailed("a check of test-gpu failed; gpu.txt names it")


STEPS: Mapping[str, Callable[[Run], None]] = {
    "packages": install_packages,
    "sshd": start_sshd,
    "controller": make_controller,
    "inventory": write_inventory,
    "provision": provision,
    "validate": validate,
    "gpu": check_gpu,
}


# --- the run ---------------------------------------------------------------------------------------------------------


def collect(out: Path) -> None:
    """Pack the logs, and the small packs of what was built, with which ``--packs`` spares the next run its builds."""
    with tarfile.open(out / "logs.tar.gz", "w:gz") as pack:
        for path, name in ((_BUILD_LOGS, "builds"), (WORK / "cache" / "clusterctl" / "logs", "controller"),
                           (WORK / "gpu", "gpu"), (WORK / "inventory.json", "inventory.json")):  # fmt: skip
            if path.exists():
                pack.add(path, name)
    with tarfile.open(out / "packs.tar", "w") as pack:
        for path in sorted((WORK / "cache" / "clusterctl" / "artifacts").glob("[a-z]*.tar.zst")):
            if path.stat().st_size < _MOST_PACKS:
                record = path.with_name(path.name.replace(".tar.zst", ".json"))
                pack.add(path, path.name)
                pack.add(record, record.name)


def take_packs(packs: Path) -> None:
    """Put packs that an earlier run has built into the cache.

    Raises:
        Refusal: the file is not readable as such.
    """
    place = WORK / "cache" / "clusterctl" / "artifacts"
    try:
        with tarfile.open(packs) as pack:
            for name in filter(_NAME.fullmatch, pack.getnames()):
                _unpacked(pack, name, place / Path(name).name)
    except (OSError, tarfile.TarError):
        raise Refusal(f"{packs} is not the packs.tar of an earlier run; leave --packs out.") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Look, unpack, do the steps, report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bundle", default="", help="file of the bundle (default: the one in dist/bundle)")
    parser.add_argument("--environment", default="", help="folder of the environment (default: that of python3)")
    parser.add_argument("--out", default=os.environ.get("OUT") or str(ROOT / "build" / "provision-here"),
                        help="folder for every output (default: $OUT, else build/provision-here)")  # fmt: skip
    parser.add_argument("--packs", default="", help="packs.tar of an earlier run on such a machine")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="seconds in all (default: %(default)s)")
    parser.add_argument("-e", dest="variables", action="append", default=[], help="a variable for provision, as there")
    given = parser.parse_args(argv)
    out = Path(given.out).resolve()
    try:
        if os.geteuid() != 0:
            raise Refusal("provision-here changes this machine, so it needs root; run it with sudo.")  # noqa: TRY301
        environment = look_at(given.environment)
        bundle = bundle_in(given.bundle, platform_here(environment.python))
        refuse_what_is_missing(bundle, environment)
        out.mkdir(parents=True, exist_ok=True)
        (out / "output.txt").unlink(missing_ok=True)
        unpack(bundle, WORK / "bundle")
        if given.packs:
            take_packs(Path(given.packs))
    except Refusal as refusal:
        sys.stderr.write(f"{refusal}\n")
        return REFUSED
    except OSError as error:
        sys.stderr.write(f"{error.filename} cannot be used: {error.strerror}.\n")
        return REFUSED
    options = [word for one in given.variables for word in ("-e", one)]
    run = Run(out, environment, bundle, options, given.limit_s)
    try:
        done = run.all(STEPS)
    finally:
        collect(out)
    sys.stdout.write(f"{'Passed' if done else 'Failed'} after {run.limit_s - run.left_s:.0f} s; see {out}\n")
    return 0 if done else FAILED


if __name__ == "__main__":
    sys.exit(main())
