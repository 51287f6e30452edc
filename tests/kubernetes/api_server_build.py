"""Build an API server of Kubernetes from the distribution's source package; run as a script, it prints the folder.

Debian packages only kubectl. Its source package has all of Kubernetes with everything that it imports. So the compiler
(``golang-go``), etcd and the sources come from the distribution's own mirror, and nothing is installed: packages are
unpacked in the folder. One package of the sources is too old for Debian's Go and is replaced by the packaged one.

The build takes seven minutes on two busy cores, 2 GiB of disk (kept: 200 MB) and 3 GiB of memory.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAMS = ("kube-apiserver", "kube-controller-manager")
PACKAGES = ("golang-go", "golang-src", "etcd-server", "golang-github-modern-go-reflect2-dev")
REPLACED = "github.com/modern-go/reflect2"  # crashes when it is built by Go 1.18 or newer before 1.0.2
KUBERNETES = "k8s.io/kubernetes"
OPENAPI = f"{KUBERNETES}/pkg/generated/openapi"
_TAG = b"+k8s:openapi-gen="
_NOT_SERVED = re.compile(r"/(?:code-generator|sample-[^/]*|testdata|test|openapi-gen)(?:/|$)")
_VERSION_PACKAGES = ("component-base/version", "client-go/pkg/version")


class CannotBuildError(Exception):
    """The programs cannot be had on this machine; the text says why."""


def folder() -> Path:
    """Return where the programs are kept from run to run."""
    named = os.environ.get("CLUSTERCTL_KUBERNETES")
    return Path(named) if named else Path.home() / ".cache" / "clusterctl-kubernetes"


def programs() -> dict[str, Path]:
    """Return the programs that are there by name, etcd among them."""
    found = {name: folder() / name for name in (*PROGRAMS, "etcd")}
    return {name: path for name, path in found.items() if path.is_file()}


def build() -> Path:
    """Build what is missing, and return the folder.

    Raises:
        CannotBuildError: a package cannot be had, or the build fails.
    """
    target = folder()
    if len(programs()) == len(PROGRAMS) + 1:
        return target
    work = target / "build"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, mode=0o755)
    root = _unpacked(work)
    source, version = _sources(work)
    _compile(work, root, source, version, target)
    shutil.copy2(root / "usr" / "bin" / "etcd", target / "etcd")
    shutil.rmtree(work)
    return target


def _run(argv: list[str], where: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(argv, cwd=where, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise CannotBuildError(f"{' '.join(argv[:3])}: {last[0]}")
    return done.stdout


def _unpacked(work: Path) -> Path:
    """Return a folder with the unpacked packages that the build needs."""
    packages, root = work / "packages", work / "root"
    packages.mkdir()
    wanted = [*PACKAGES, *_versioned_go()]
    _run(["apt-get", "-q", "download", *wanted], packages)
    for package in sorted(packages.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(package), str(root)], work)
    return root


def _versioned_go() -> list[str]:
    """Return the packages that the distribution's golang-go stands for."""
    told = _run(["apt-cache", "depends", "golang-go"], Path("/"))
    match = re.search(r"Depends: (golang-[\d.]+)-go", told)
    if match is None:
        raise CannotBuildError("the distribution has no golang-go; run apt-get update.")
    return [f"{match[1]}-go", f"{match[1]}-src"]


def _sources(work: Path) -> tuple[Path, str]:
    """Fetch the source package through the machine's own mirror, and return its folder and version."""
    lists = work / "apt"
    for name in ("lists/partial", "cache/archives/partial", "sources"):
        (lists / name).mkdir(parents=True)
    (lists / "sources.list").write_text("".join(_source_lines()), encoding="utf-8")
    options = {
        "Dir::State::lists": lists / "lists",
        "Dir::Cache": lists / "cache",
        "Dir::Etc::sourcelist": lists / "sources.list",
        "Dir::Etc::sourceparts": lists / "sources",
        "APT::Sandbox::User": "root",
    }
    given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    _run(["apt-get", "-q", *given, "update"], work)
    _run(["apt-get", "-q", *given, "source", "--download-only", "kubernetes"], work)
    place = work / "gopath" / "src" / "k8s.io" / "kubernetes"
    place.parent.mkdir(parents=True)
    (description,) = work.glob("kubernetes_*.dsc")
    _run(["dpkg-source", "--no-check", "-x", str(description), str(place)], work)
    if not (place / "vendor" / REPLACED).is_dir():
        raise CannotBuildError(f"the source package {description.name} lacks what Kubernetes imports.")
    release = re.search(r"really(\d+\.\d+\.\d+)", description.name) or re.search(r"_(\d+\.\d+\.\d+)", description.name)
    return place, release[1] if release else "0.0.0"


def _source_lines() -> list[str]:
    """Return the machine's sources of packages as sources of source packages."""
    suites = _run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"], Path("/"))
    words = {tuple(line.split()) for line in suites.splitlines() if len(line.split()) == len(("uri", "suite", "part"))}
    return [f"deb-src {uri} {suite} {part}\n" for uri, suite, part in sorted(words)]


def _compile(work: Path, root: Path, source: Path, version: str, target: Path) -> None:
    (go,) = (root / "usr" / "lib").glob("go-*/bin/go")
    environment = {
        "PATH": f"{go.parent}:{os.environ['PATH']}",
        "HOME": str(work),
        "GOROOT": str(go.parents[1]),
        "GOPATH": str(work / "gopath"),
        "GOCACHE": str(work / "cache"),
        "GOFLAGS": "-p=2",
        "GO111MODULE": "off",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
    }
    vendored = source / "vendor" / REPLACED
    shutil.rmtree(vendored)
    shutil.copytree(root / "usr" / "share" / "gocode" / "src" / REPLACED, vendored)
    generator = work / "openapi-gen"
    _run([str(go), "build", "-o", str(generator), "./vendor/k8s.io/kube-openapi/cmd/openapi-gen"], source, environment)
    _run(
        [
            str(generator),
            *("--go-header-file", "hack/boilerplate/boilerplate.generatego.txt"),
            *("--output-file-base", "zz_generated.openapi", "--output-base", str(work / "gopath" / "src")),
            *("--output-package", OPENAPI, "--report-filename", str(work / "violations")),
            *("--input-dirs", ",".join(_served(source))),
        ],
        source,
        environment,
    )
    major, minor, _ = version.split(".")
    told = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    flags = [
        f"-X {KUBERNETES}/vendor/k8s.io/{package}.{name}={value}"
        for package in _VERSION_PACKAGES
        for name, value in told.items()
    ]
    for name in PROGRAMS:
        argv = [str(go), "build", "-ldflags", " ".join(("-s -w", *flags)), "-o", str(work / name), f"./cmd/{name}"]
        _run(argv, source, environment)
        (work / name).replace(target / name)


def _served(source: Path) -> list[str]:
    """Return the packages of which the API server's description of itself is made."""
    found = set()
    for top, prefix in (("pkg", f"{KUBERNETES}/pkg"), ("staging/src/k8s.io", f"{KUBERNETES}/vendor/k8s.io")):
        for path in (source / top).rglob("*.go"):
            if not _NOT_SERVED.search(f"/{path.relative_to(source)}") and _TAG in path.read_bytes():
                found.add(f"{prefix}/{path.parent.relative_to(source / top)}")
    return sorted(found)


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{build()}\n")
    except CannotBuildError as error:
        sys.exit(f"Kubernetes cannot be built here: {error}")
