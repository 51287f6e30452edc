"""Have a node image ready: from the base image of a registry that answers, else built from this machine's mirror."""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.sandbox import apt
from clusterctl.sandbox.container_engine import PACKAGES, File, failure, pack
from clusterctl.sandbox.model import IMAGES, RpmVendor
from clusterctl.state import files, paths
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.sandbox.container_engine import Podman, Report
    from clusterctl.sandbox.model import Image, Vendor


_RECIPE = Path(__file__).with_name("image")
_RECIPE_FILES = ("node-start", "sshd.conf", "sudoers")  # beside the image's own Containerfile
_NATIVE_FILES = ("Containerfile.native", "native-programs")
_NATIVE_PROGRAMS = ("bash", "coreutils", "dash", "diffutils", "findutils", "grep", "make", "mawk", "sed")
_PULL_TIMEOUT_S = 45
_MACHINES = {"arm64": "aarch64"}  # the kernel's name of a processor
# F: the emulator is open, so that containers need no copy of it. C: sudo works under it.
_EMULATORS = Path("/proc/sys/fs/binfmt_misc")
_MACHINE_CERTIFICATES = Path("/usr/local/share/ca-certificates")


class NoImageError(ConfigError):
    """This machine cannot have an image: no registry gives it, and it lacks what building it takes."""


def ensure(podman: Podman, image: str, report: Report) -> str:
    """Return the reference of the node image, built first where it is not there yet (half a minute).

    Raises:
        NoImageError: it has to be built and this machine lacks what that takes.
        HostFailedError: the build failed.
    """
    reference = f"localhost/clusterctl-node:{image}-{_digest(image, recipe=True)}"
    if podman.succeeds("image", "exists", reference):
        return reference
    if arch := IMAGES[image].arch:
        _refuse_foreign(image, arch)
    base = _ensure_base(podman, image, report)
    if _has_native_programs(image):
        base = _with_native_programs(podman, image, base, report)
    report(f"building the {image} node image")
    _follow(
        podman.argv(
            "build", *IMAGES[image].platform, "--network", "host", "--tag", reference, "--build-arg", f"BASE={base}",
            "--build-arg", f"PACKAGES={' '.join(IMAGES[image].packages)}",
            "--file", str(_RECIPE / IMAGES[image].recipe), str(_RECIPE),
        ),
        what="podman build", prefix=image, report=report,
    )  # fmt: skip
    return reference


def _digest(image: str, *, recipe: bool) -> str:
    """Return a hash of what shapes the base, or (with ``recipe``) the whole image."""
    parts = [image.encode(), " ".join(IMAGES[image].packages).encode()]
    if recipe:
        native = _NATIVE_FILES if _has_native_programs(image) else ()
        names = sorted({IMAGES[image].recipe, *_RECIPE_FILES, *native})
        parts += [name.encode() + b"\0" + (_RECIPE / name).read_bytes() for name in names]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def _refuse_foreign(image: str, arch: str) -> None:
    """Refuse an image whose programs this machine does not run, by itself or by an emulator.

    Raises:
        NoImageError: with what to install.
    """
    machine = _MACHINES[arch]
    if platform.machine() == machine:
        return
    try:
        told = (_EMULATORS / f"qemu-{machine}").read_text(encoding="ascii").splitlines()
    except OSError:
        told = []
    if not any(line.startswith("flags:") and {"F", "C"} <= set(line.partition(":")[2]) for line in told):
        raise NoImageError(
            f"This machine does not run the {arch} programs of {image}; let qemu-user-static emulate them, registered "
            "with the flags F and C, as docs/how-to/sandbox.md shows."
        )


def _has_native_programs(image: str) -> bool:
    """Tell whether an emulator runs the image's programs, and its archive has programs for this machine too."""
    return bool(IMAGES[image].gcc) and platform.machine() == "x86_64"


def _with_native_programs(podman: Podman, image: str, base: str, report: Report) -> str:
    """Return the base with a compiler and a shell that run without the emulator; the base itself without a mirror."""
    made_of = IMAGES[image]
    vendor = made_of.vendor
    mirror = None if isinstance(vendor, RpmVendor) or not vendor.keyring.is_file() else apt.machine_mirror(vendor)
    if mirror is None or shutil.which("mmdebstrap") is None:
        report(f"{image} compiles with emulated programs, at a tenth of the speed: its compiler for this machine needs "
               f"mmdebstrap, a mirror in /etc/apt and the keys of {vendor.name}'s archive")  # fmt: skip
        return base
    reference = f"{base}-native"
    triple = f"{_MACHINES[made_of.arch]}-linux-gnu"
    with _folder_of_root(podman) as folder:
        archive = folder / "native.tar"
        compiler = (f"{name}-{made_of.gcc}-{triple}" for name in ("gcc", "g++"))
        packages = ",".join((*compiler, *_NATIVE_PROGRAMS))
        report(f"fetching a compiler and a shell of this machine for {image}")
        with archive.open("wb") as target:
            options = ("--variant=extract", "--architectures=amd64", f"--include={packages}")
            _mmdebstrap(podman, image, [*options, "--format=tar", made_of.suite, "-", *mirror.lines(made_of)], report,
                        target.fileno())  # fmt: skip
        _follow(
            podman.argv(
                "build", *made_of.platform, "--no-cache", "--network", "none", "--tag", reference,
                "--build-arg", f"BASE={base}", "--build-arg", f"GCC={made_of.gcc}",
                "--volume", f"{archive}:/native.tar:ro", "--file", str(_RECIPE / "Containerfile.native"), str(_RECIPE),
            ),
            what="podman build", prefix=image, report=report,
        )  # fmt: skip
    return reference


def _cache() -> Path:
    return paths.ensure_private(paths.cache_dir().value / "images")


def _ensure_base(podman: Podman, image: str, report: Report) -> str:
    """Return the reference of the distribution's own root file system."""
    reference = f"localhost/clusterctl-base:{image}-{_digest(image, recipe=False)}"
    if podman.succeeds("image", "exists", reference):
        return reference
    archive = _cache() / f"{image}-{_digest(image, recipe=False)}.tar"
    if not archive.is_file():
        name = IMAGES[image].registry
        report(f"asking for the base image {name}")
        if podman.succeeds("pull", "--quiet", *IMAGES[image].platform, name, timeout_s=_PULL_TIMEOUT_S):
            podman.run("tag", name, reference)
            if "@" not in name:
                digest = podman.text("image", "inspect", "--format", "{{.Digest}}", name)
                report(f"{name} was taken by its tag, which may name another image tomorrow; this one is {digest}")
            return reference
        report(f"no registry gave {name}; building it from this machine's mirror")
        _bootstrap(podman, image, archive, report)
    report(f"importing the {image} base image")
    arch = IMAGES[image].arch
    podman.run("import", *(("--arch", arch) if arch else ()), str(archive), reference)
    return reference


def _bootstrap(podman: Podman, image: str, archive: Path, report: Report) -> None:
    """Write the root file system of a bare distribution to ``archive``."""
    made_of = IMAGES[image]
    if isinstance(made_of.vendor, RpmVendor):
        _by_dnf(podman, image, made_of.vendor, archive, report)
    else:
        _by_apt(podman, image, made_of.vendor, archive, report)


def _by_apt(podman: Podman, image: str, vendor: Vendor, archive: Path, report: Report) -> None:
    made_of = IMAGES[image]
    mirror = apt.machine_mirror(vendor)
    if mirror is None:
        raise NoImageError(
            f"No registry gave the base image and /etc/apt names no {vendor.name} mirror to build {image} from; run "
            f"'podman pull {made_of.registry}' where a registry answers, or add a {vendor.name} mirror to "
            "/etc/apt/sources.list.d."
        )
    if shutil.which("mmdebstrap") is None or not vendor.keyring.is_file():
        raise NoImageError(
            f"Building {image} needs mmdebstrap and {vendor.name}'s keys; install them with 'sudo apt-get install "
            f"--no-install-recommends {PACKAGES} {vendor.keyring_package}'."
        )
    with files.replacing(archive) as target:
        words = ["--variant=minbase", f"--include={','.join(made_of.packages)}"]
        words += [f"--architectures={made_of.arch}"] if made_of.arch else []
        words += ["--format=tar", made_of.suite, "-", *mirror.lines(made_of)]
        _mmdebstrap(podman, image, words, report, target.fileno())


def _mmdebstrap(podman: Podman, image: str, words: Sequence[str], report: Report, stdout: int) -> None:
    """Run mmdebstrap as root.

    Its mounts of /proc, /sys and /dev/shm end with it, however it ends: no folder stays behind in which the machine's
    own /dev/shm waits to be removed.
    """
    argv = [*podman.prefix, "unshare", "--mount", "mmdebstrap", *words]
    _follow(argv, what="mmdebstrap", prefix=image, report=report, stdout=stdout)


def _by_dnf(podman: Podman, image: str, vendor: RpmVendor, archive: Path, report: Report) -> None:
    made_of = IMAGES[image]
    found = apt.machine_repositories(vendor)
    if not found:
        raise NoImageError(
            f"No registry gave the base image and {apt.FOLDER} names no {vendor.name} repository to build {image} "
            f"from; run 'podman pull {made_of.registry}' where a registry answers, or add a repository with "
            f"'{vendor.word}' in its name to {apt.FOLDER}."
        )
    if any(shutil.which(program) is None for program in apt.PROGRAMS):
        raise NoImageError(
            f"Building {image} needs dnf and rpmdb; install them with 'sudo apt-get install --no-install-recommends "
            f"{apt.PACKAGES}'."
        )
    with _folder_of_root(podman) as folder, files.replacing(archive) as target:
        repositories = folder / "repositories"
        repositories.mkdir()
        files.write_atomically(repositories / "sandbox.repo", apt.text_of(found))
        argv = dnf_root_argv(podman.prefix, folder, repositories, vendor.release, (*vendor.first, *made_of.packages))
        _follow(argv, what="dnf", prefix=image, report=report, stdout=target.fileno())


def dnf_root_argv(
    prefix: Sequence[str], folder: Path, repositories: Path, release: str, packages: Sequence[str]
) -> list[str]:
    """Return the command that writes a root file system of RPM packages to its standard output.

    Its mounts end with it, as those of mmdebstrap do. ``prefix`` is what makes it run as root, ``folder`` an empty one
    of this run's own, and ``release`` dnf's ``$releasever``.
    """
    script = str(_RECIPE / "dnf-root")
    return [*prefix, "unshare", "--mount", "sh", script, str(folder), str(repositories), release, *packages]


@contextmanager
def _folder_of_root(podman: Podman) -> Iterator[Path]:
    """Yield a folder that is removed with what root has put into it."""
    folder = Path(tempfile.mkdtemp(prefix="root-", dir=_cache()))
    try:
        yield folder
    finally:
        subprocess.run([*podman.prefix, "rm", "-rf", "--one-file-system", str(folder)], check=False)


def _follow(command: list[str], *, what: str, prefix: str, report: Report, stdout: int | None = None) -> None:
    """Run a long command and pass on every line that it says.

    ``stdout`` is a file descriptor for its output; None merges it with what it says on stderr.
    """
    said: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if stdout is None else stdout,
        stderr=subprocess.STDOUT if stdout is None else subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            for line in (process.stdout if stdout is None else process.stderr) or ():
                said.append(line)
                if line.strip():
                    report(f"{prefix}: {line.strip()}")
        except KeyboardInterrupt:
            process.communicate()  # the terminal has interrupted it as well; let it remove what it has made
            raise
    if process.returncode != 0:
        raise failure(what, "".join(said))


def trust(podman: Podman, reference: str, image: Image, report: Report) -> bytes:
    """Return a tar of system certificates that trusts what this machine's certificate folder holds; empty if nothing.

    Done once per image and set of certificates, since update-ca-certificates takes a second and more.
    """
    certificates = sorted(_MACHINE_CERTIFICATES.glob("*.crt"))
    if not certificates:
        return b""
    content = {str(path).lstrip("/"): path.read_bytes() for path in certificates}
    digest = hashlib.sha256(b"\0".join([reference.encode(), *content.values()])).hexdigest()[:16]
    cached = _cache() / f"certificates-{digest}.tar"
    if not cached.is_file():
        report("adding this machine's certificates")
        made = podman.run(
            "run", *image.platform, "--rm", "--interactive", "--network", "none", reference, "sh", "-ec", image.trust,
            stdin=pack({name: File(data) for name, data in content.items()}),
        )  # fmt: skip
        with files.replacing(cached) as target:
            target.write(made)
    return cached.read_bytes()
