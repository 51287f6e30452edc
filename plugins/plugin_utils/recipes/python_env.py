# SPDX-License-Identifier: GPL-3.0-or-later
"""The recipe of the cluster's Python: an environment of pinned wheels, and the managed Python where it is asked for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import existing_env, python_lock, uv
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.frameworks import (
    drivers_below,
    framework_choice,
    framework_in_wheels,
    framework_release,
    gpus_left_idle,
    platform_cuda,
    platform_with_python,
)
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import (
    APT,
    Artifact,
    Pinned,
    Plan,
    Refusal,
    WheelWish,
    builders,
    of_family,
    places,
    role_file,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Cluster, Controller, Host

# Source archives whose sums are verified. Debian's source package has python.org's own archive.
RELEASES = {"3.13.5": "93e583f243454e6e9e4588ca2c2662206ad961659863277afcdb96801647d640"}

# Horovod needs the companions at run time.
_BASE = ["numpy"]
_COMPANIONS = ["cloudpickle", "packaging", "psutil", "pyyaml"]

# Packages built against Open MPI are artifacts of their own. The environment finds them by their links.
_LINKED = ["mpi4py/site-packages", "horovod/site-packages"]

# Removed: the installer's own files, and a test program of PyTorch that does not find its libraries.
# Ansible looks for python3.N before it takes /usr/bin/python3, and would run its modules as root in this one.
_PRUNED = words(
    ".lock .gitignore CACHEDIR.TAG bin/*.bat bin/*.ps1 bin/python3.* lib/python*/site-packages/torch/bin/test_*"
)

# Two copies of the wheels (in the transfer and in the work folder), the environment and its pack; measured, with a
# margin.
_NEEDS_BYTES = {"": 500_000_000, "cpu": 3_000_000_000, "cuda": 12_000_000_000}
_DEPENDENCIES = "dependencies_check.py"
_PROOF_S = 180  # the first import of gigabytes waits for a cold disk

# Each module that takes a library of the distribution is on or off by name. Otherwise configure would use what it finds
# on the builder. The libraries are those of the node's own Python.
_MODULES = words("_bz2 _ctypes _curses _hashlib _lzma readline _sqlite3 _ssl _uuid zlib")
_CONFIGURE = [
    "--without-ensurepip",
    "--without-static-libpython",
    "--with-system-libmpdec=no",
    "--disable-test-modules",
    "OPT=-DNDEBUG -O2",
    "py_cv_module__tkinter=n/a",
    "py_cv_module__gdbm=n/a",
    "py_cv_module__dbm=n/a",
]
_INSTALL = ["make", "-s", "install", "DESTDIR=@STAGE@", "COMPILEALL_OPTS=-j@JOBS@ --invalidation-mode=unchecked-hash"]
# Removed: programs with a window, manuals, and byte code for python -O.
_INTERPRETER_PRUNED = words(
    "share bin/idle* lib/python*/idlelib lib/python*/turtledemo lib/python*/tkinter lib/python*/**/*.opt-1.pyc"
    " lib/python*/**/*.opt-2.pyc"
)
_INTERPRETER_NEEDS_BYTES = 900_000_000

_PACKAGES: dict[str, dict[str, Any]] = {
    "Debian": {
        "interpreter": words(
            "gcc libc6-dev make pkg-config libbz2-dev libffi-dev liblzma-dev libncurses-dev libreadline-dev"
            " libsqlite3-dev libssl-dev uuid-dev zlib1g-dev zstd"
        ),
        "environment": [],
        "options": APT,
    },
    # Python 3.9 comes without distutils there, and uv makes no environment without it.
    "Debian_11": {"environment": ["python3-distutils"]},
    "RedHat": {
        "interpreter": words(
            "gcc glibc-devel make pkgconf-pkg-config bzip2-devel libffi-devel xz-devel ncurses-devel readline-devel"
            " sqlite-devel openssl-devel libuuid-devel zlib-devel zstd"
        ),
        "environment": [],
        "options": {},
    },
    "Suse": {
        "interpreter": words(
            "gcc glibc-devel make pkg-config libbz2-devel libffi-devel xz-devel ncurses-devel readline-devel"
            " sqlite3-devel libopenssl-devel libuuid-devel zlib-devel zstd"
        ),
        "environment": [],
        "options": {},
    },
}

_RELEASE = re.compile(r"3[.]\d+[.]\d+")
_VERSION = re.compile(r"([0-9][A-Za-z0-9.+]*)?")


def decide(cluster: Cluster, plans: Mapping[str, Plan]) -> Plan:
    """Decide which Python environment each host gets.

    Wheels are pinned only where neither this recipe nor one before it refuses anything. Then ``told`` has ``wheels``
    and ``frameworks``: for each platform its pinned wheels, and the framework in them.
    """
    groups = cluster.alike("python_env", also=_nccl_of)
    existing = existing_env.decide(cluster, groups, [f"{cluster.prefix}/{folder}" for folder in _LINKED])
    recipes = [_Recipe(cluster, hosts) for hosts in groups if not existing_env.path_of(hosts[0])]
    refusals = list(dict.fromkeys([*existing.refusals, *_refusals(recipes)]))
    if refusals or any(plan.refusals for plan in plans.values()):
        return Plan((), refusals)
    pins: dict[str, Pinned] = {}
    warnings: list[str] = []
    for recipe in recipes:
        if recipe.platform not in pins:
            try:
                pinned = recipe.pin(cluster.controller)
            except (ArtifactError, OSError) as error:
                return Plan((), [Refusal("", str(error))], warnings)
            pins[recipe.platform] = pinned
            warnings += [f"{recipe.platform}: {recipe.otherwise()}"] if pinned.taken > 0 else []
            warnings += pinned.notes
        recipe.take(pins[recipe.platform])
    refusals = list(dict.fromkeys(refusal for recipe in recipes for refusal in recipe.pinned_refusals()))
    if refusals:
        return Plan((), refusals, warnings)
    warnings += dict.fromkeys(warning for recipe in recipes for warning in recipe.warnings())
    told = {
        "wheels": {platform: pinned.wheels for platform, pinned in pins.items()},
        "frameworks": {**existing.told["frameworks"], **{recipe.platform: recipe.framework for recipe in recipes}},
        "horovod_lacks": {recipe.platform: recipe.horovod_lacks for recipe in recipes},
    }
    artifacts = [*existing.artifacts, *(artifact for recipe in recipes for artifact in recipe.artifacts())]
    return Plan(artifacts, (), warnings, told)


def _nccl_of(host: Host) -> str:
    """Return which NCCL a CUDA framework of a host loads: ``bundled`` or ``cluster``."""
    aligned = "cluster" if host.settings.text("nccl_align") == "cluster" else "bundled"
    return host.settings.text("python_env_nccl") or aligned


def _refusals(recipes: Sequence[_Recipe]) -> Iterator[Refusal]:
    """Yield what needs no download: of each platform, and of platforms whose hosts differ."""
    found = [refusal for recipe in recipes for refusal in recipe.refusals()]
    yield from found
    if found:
        return
    first: dict[str, _Recipe] = {}
    differ: list[_Recipe] = []
    for recipe in recipes:
        other = first.setdefault(recipe.platform, recipe)
        if recipe.asks != other.asks:
            differ += [one for one in (other, recipe) if one not in differ]
    if differ:
        yield Refusal(
            "",
            "python_env_framework, its version and build, python_env_python, python_env_requirements and"
            " python_env_lock must be the same on all hosts of one platform, which get the same bytes; they differ"
            f" between {', '.join(recipe.hosts[0].name for recipe in differ)}.",
        )
    for recipe in recipes:
        if recipe.asked_build == "cuda" and recipe.version.endswith("+cpu"):
            yield Refusal(
                "",
                f"python_env_framework_version is {recipe.version}, a build without CUDA, but"
                " python_env_framework_build is cuda; drop one of them.",
            )


class _Recipe:
    """The environment of hosts of one platform with equal settings."""

    def __init__(self, cluster: Cluster, hosts: Sequence[Host]) -> None:
        settings = hosts[0].settings
        self.settings, self.hosts, self.members, self.roles = settings, hosts, cluster.members, cluster.roles
        self.prefix, self.platform = cluster.prefix, hosts[0].platform
        self.lock = python_lock.Lock.of(settings)
        self.asked = settings.text("python_env_framework") if self.lock is None else "none"
        self.named = settings.text("python_env_framework_version")
        self.asked_build = settings.text("python_env_framework_build")
        has_gpus = platform_cuda(cluster.members, self.platform)["gpus"]
        self.kind = self.asked_build if self.asked_build != "auto" else "cuda" if has_gpus else "cpu"
        release = settings.text("python_env_python_version")
        self.managed = release if settings.text("python_env_python") == "managed" else ""
        self.target = platform_with_python(self.platform, self.managed)
        self.python = str(re.findall(r"-py([^-]+)", self.target)[0])
        self.link, self.interpreter_link = f"{self.prefix}/python_env", f"{self.prefix}/cpython"
        self.sources = settings.get("python_env_python_sources") or _known_sources(
            self.managed, settings.text("python_env_python_sha256")
        )
        self.builders = builders(hosts, settings.text("python_env_builder"), "python_env")
        self.packages = of_family(_PACKAGES, self.builders[0])
        self.version = ""  # of the framework; the first refusals find it out
        self.pinned = Pinned(())
        self.wheels: Sequence[Mapping[str, str]] = ()
        self.framework: Mapping[str, str] = {}
        self.nccl = "bundled"

    # --- what is asked ---

    @property
    def wish(self) -> WheelWish:
        """The wheels that it needs."""
        settings = self.settings
        return WheelWish(
            name="python_env",
            target=self.target,
            requirements=[
                *_BASE,
                *(_COMPANIONS if self.asked != "none" else []),
                *settings.texts("python_env_requirements"),
            ],
            variable="python_env_requirements",
            cache_dir=places(settings)["cache_dir"],
            wheel_dir=settings.text("python_env_wheel_dir"),
            first_of=framework_choice(self.asked, self.version, self.kind),
            choice_variable="python_env_framework_version",
        )

    @property
    def asks(self) -> tuple[Any, ...]:
        """What must be equal on all hosts of a platform."""
        wish = self.wish
        return bool(self.managed), wish.target, wish.requirements, wish.first_of, self.lock

    def pin(self, controller: Controller) -> Pinned:
        """Return the wheels that the controller finds."""
        if self.lock is None:
            return controller.pin(self.wish)
        return self.lock.pin(controller, self.lock.wish(self.settings, self.target, self.hosts, self.managed))

    def otherwise(self) -> str:
        """Return the warning where the index lacks the framework's first choice."""
        return (
            f"the package index has no CPU build of {self.asked} {self.version}, so the common one is taken, which may"
            " bring gigabytes of CUDA along; to spare them, put the CPU build into a folder of this controller that"
            " pip's find-links names, use one index-url that serves it too, or set python_env_framework to none"
        )

    def refusals(self) -> Iterator[Refusal]:
        """Yield why it cannot be built, as far as its settings and facts say; finds out the framework's version."""
        found = list(self._invalid())
        if not found:
            try:
                release = framework_release(self.asked, self.target, self.kind, self.named)
            except ArtifactError as error:  # such a platform has no wheels at all
                release = {"version": "", "problem": str(error)}
            self.version = release["version"]
            idle = gpus_left_idle(self.members, self.platform, self.asked, self.asked_build)
            found = [Refusal(host.name, problem) for host in self.hosts if (problem := release["problem"] or idle)]
        yield from found

    def _invalid(self) -> Iterator[Refusal]:
        yield from python_lock.unused_settings(self.settings, self.lock)
        if self.asked != "none" and not _VERSION.fullmatch(self.named):
            yield Refusal(
                "",
                f"python_env_framework_version is '{self.named}', which is not a version; write one like 2.13.0, or"
                " leave it empty.",
            )
        release = self.settings.text("python_env_python_version")
        is_managed = self.settings.text("python_env_python") == "managed"
        if is_managed and not _RELEASE.fullmatch(release):
            yield Refusal(
                "",
                f"python_env_python_version is '{release}', which is not a release of Python; write one like 3.13.5.",
            )
        elif is_managed and not self.sources:
            yield Refusal(
                "",
                f"No source of Python {release} is known (known are {', '.join(RELEASES)}); set"
                f" python_env_python_sha256 to the sha256 of python.org's Python-{release}.tar.xz, or list sources in"
                " python_env_python_sources.",
            )

    # --- what the wheels tell ---

    def take(self, pinned: Pinned) -> None:
        """Use these pinned wheels."""
        self.pinned, self.wheels, self.framework = pinned, pinned.wheels, framework_in_wheels(pinned.wheels)
        self.nccl = _nccl_of(self.hosts[0]) if self.framework["nccl"] else "bundled"

    @property
    def horovod_lacks(self) -> Sequence[str]:
        """The packages that Horovod imports and the environment does not have."""
        return python_lock.horovod_lacks(self.pinned) if self.lock and self.framework["name"] else ()

    def warnings(self) -> Iterator[str]:
        """Yield sentences about what comes otherwise than a lock says."""
        if self.lock and self.horovod_lacks and "horovod" in self.roles:
            yield self.lock.without_horovod(self.horovod_lacks, self.settings)

    def pinned_refusals(self) -> Iterator[Refusal]:
        """Yield why the pinned framework cannot run."""
        framework = self.framework
        has, variable = "the index", "python_env_framework_version"
        if self.lock:
            has, variable = self.lock.path, "python_env_lock"
            yield from self.lock.lacks(self.roles, self.pinned)
            idle = gpus_left_idle(self.members, self.platform, framework["name"] or "none", self.asked_build)
            yield from [Refusal(host.name, idle) for host in self.hosts if idle and not framework["cuda"]]
        name, version, cuda = framework["name"], framework["version"], framework["cuda"]
        label = "PyTorch" if name == "pytorch" else "TensorFlow"
        cure = f"name a version that does ({variable}), or set python_env_framework_build to cpu."
        # auto takes a PyTorch without CUDA where the index has no other, as for some releases on aarch64; a TensorFlow
        # never.
        wanted = (self.asked_build == "cuda" and name == "pytorch") or (self.kind == "cuda" and name == "tensorflow")
        old = {str(one["name"]): one for one in drivers_below(self.members, self.platform, cuda)}
        for host in self.hosts:
            if wanted and not cuda:
                yield Refusal(
                    host.name,
                    f"The GPUs of {self.platform} need a build with CUDA, but what {has} has of {label} {version}"
                    f" brings no CUDA; {cure}",
                )
            elif self.kind == "cuda" and host.name in old:
                driver = old[host.name]
                yield Refusal(
                    host.name,
                    f"{name} {version} was built for CUDA {cuda}, and the NVIDIA driver {driver['driver']} of"
                    f" {host.name} runs CUDA up to {driver['cuda']}; install a newer driver there, choose a release or"
                    f" build for that CUDA ({variable}), or set python_env_framework_build to cpu.",
                )
            elif self.asked_build == "auto" and self.kind == "cuda" and name and not cuda:
                yield Refusal(
                    host.name,
                    f"The GPUs of {self.platform} need a build with CUDA, and {name} {version} of {has} brings no"
                    f" CUDA; {cure}",
                )

    # --- what is built ---

    def artifacts(self) -> list[Artifact]:
        """Return the managed Python, if it is asked for, and the environment."""
        interpreter = [self._interpreter()] if self.managed else []
        return [*interpreter, self._environment(*interpreter)]

    def _interpreter(self) -> Artifact:
        settings, check = self.settings, role_file("python_env", "modules_check.py")
        configure = ["./configure", f"--prefix={self.interpreter_link}", *_CONFIGURE]
        source = {
            "name": "cpython",
            "version": self.managed,
            "sources": self.sources,
            "variable": "python_env_python_sources",
        }
        sums = {str(one.get("sha256", "")) + str((one.get("apt") or {}).get("sha256", "")) for one in self.sources}
        return Artifact(
            role="python_env",
            name="cpython",
            version=self.managed,
            inputs={
                "recipe": 1,
                "version": self.managed,
                "sources": sorted(sums),
                "configure": configure,
                "install": _INSTALL,
                "modules": _MODULES,
                "pruned": _INTERPRETER_PRUNED,
                "platform": self.target,
            },
            prefix=self.prefix,
            hosts=[host.name for host in self.hosts],
            builders=[host.name for host in self.builders],
            round=1,
            build={
                **places(settings),
                "packages": self.packages["interpreter"],
                "package_options": self.packages["options"],
                "files": [
                    {"source": source, "dest": "source", "unpack": True},
                    {"content": check, "dest": "modules_check.py"},
                ],
                "steps": [
                    {"name": "configure", "argv": configure, "chdir": "source"},
                    {"name": "make", "argv": ["make", "-s", "-j@JOBS@"], "chdir": "source"},
                    {"name": "install", "argv": _INSTALL, "chdir": "source"},
                    {
                        "name": "modules",
                        "argv": ["@TREE@/bin/python3", "-B", "modules_check.py", *_MODULES],
                        "speaks": True,
                    },
                ],
                "prune": _INTERPRETER_PRUNED,
                "jobs": settings.number("python_env_python_make_jobs"),
                "needs_bytes": _INTERPRETER_NEEDS_BYTES,
            },
            proof={
                "stands_on": [self.interpreter_link],
                "checks": [
                    {
                        "argv": ["@LINK@/bin/python3", "-", *_MODULES],
                        "stdin": check.rstrip(),
                        "expect": [f"Python {self.managed} has"],
                    }
                ],
            },
        )

    def _environment(self, interpreter: Artifact | None = None) -> Artifact:
        settings, framework = self.settings, self.framework
        kind = "" if not framework["name"] else "cuda" if framework["cuda"] else "cpu"
        linked = [f"{self.prefix}/{folder}" for folder in _LINKED]
        inputs: dict[str, Any] = {
            "recipe": 4,
            "platform": self.target,
            "wheels": {wheel["filename"]: wheel["sha256"] for wheel in self.wheels},
            "linked_folders": linked,
            "framework": {field: framework[field] for field in ("name", "version", "cuda", "nccl")},
            "nccl_align": self.nccl,
        }
        inputs |= python_lock.inputs(self.pinned.built)
        if interpreter:  # an environment of the node's own Python has no entry, so that its key stays
            inputs["interpreter"] = interpreter.key
        variable = self.lock.variable if self.lock else "python_env_requirements"
        source = {
            "platform": self.target,
            "wheel_dir": settings.text("python_env_wheel_dir"),
            "variable": variable,
        }
        pinned = {"name": "python_env", "pinned": self.wheels, **source}
        pins = [f"{wheel['name']}=={wheel['version']} --hash=sha256:{wheel['sha256']}\n" for wheel in self.wheels]
        based_on = self.interpreter_link if interpreter else ""
        return Artifact(
            role="python_env",
            name="python_env",
            version=self.python,
            inputs=inputs,
            prefix=self.prefix,
            hosts=[host.name for host in self.hosts],
            builders=[host.name for host in self.builders],
            round=1,
            uses=["cpython"] if interpreter else [],
            build={
                **places(settings),
                "packages": [] if interpreter else self.packages["environment"],
                "package_options": self.packages["options"],
                **python_lock.packages(self.pinned.built, self.builders[0], managed=bool(self.managed)),
                "files": [
                    *uv.brought(settings, "python_env", self.target, variable="requirements"),
                    {"wheels": pinned, "dest": "wheels"},
                    {"content": "".join(pins), "dest": "pinned.txt"},
                    {"content": role_file("python_env", _DEPENDENCIES), "dest": _DEPENDENCIES},
                    *python_lock.files(self.pinned.built, source),
                    {"content": "".join(f"{folder}\n" for folder in linked), "dest": "clusterctl.pth"},
                ],
                "steps": self._steps(),
                "prune": [*_PRUNED, *(python_lock.NOTES if self.pinned.built else [])],
                "needs_bytes": _NEEDS_BYTES[kind],
            },
            install={
                "closure_within": True,
                "closure_ignore": [
                    *settings.texts("python_env_optional_libraries"),
                    *(["libnccl.so.*"] if self.nccl == "cluster" else []),
                ],
            },
            proof={
                # a framework may load the cluster's NCCL
                "stands_on": [f"{self.prefix}/nccl", *([based_on] if based_on else [])],
                "timeout_s": _PROOF_S,
                "checks": [
                    {
                        "argv": [
                            *("@LINK@/bin/python", "-", "@LINK@"),
                            *(framework["name"], framework["version"], based_on),
                            *(python_lock.distributions(self.pinned) if self.lock else []),
                        ],
                        "stdin": role_file("python_env", "environment_check.py").rstrip(),
                        "expect": ['"trace": 180'],
                    }
                ],
            },
        )

    def _steps(self) -> list[dict[str, Any]]:
        packages = f"@TREE@/lib/python{self.python}/site-packages"
        base = (
            f"{self.interpreter_link}/bin/python{self.python}" if self.managed else uv.system_python(self.builders[0])
        )
        # The library that a CUDA framework finds by its own path becomes a link to the cluster's, which may be
        # installed later.
        library = ["find", f"{packages}/nvidia/nccl/lib", "-name", "libnccl.so.2"]
        library += ["-exec", "ln", "-sfn", f"{self.prefix}/nccl/lib/libnccl.so.2", "{}", ";"]
        install = uv.step(
            "packages",
            *("pip", "install", "--python=@TREE@/bin/python", "--no-index", "--find-links=wheels"),
            *("--no-deps", "--require-hashes", "--compile-bytecode", "--requirements=pinned.txt"),
        )
        consistency = uv.step("consistency", "pip", "check", "--python=@TREE@/bin/python")
        consistency["argv"] = ["@TREE@/bin/python", _DEPENDENCIES, *consistency["argv"]]
        return [
            # Relocatable: scripts find their interpreter beside themselves, by the link and in the versioned folder.
            uv.step("environment", "venv", "--relocatable", "--python", base, "@TREE@"),
            *([install] if self.wheels else []),
            *python_lock.steps(self.pinned.built),
            # what a lock leaves out comes from elsewhere
            *([] if self.pinned.left_out else [consistency]),
            {"name": "links", "argv": ["install", "-m", "0644", "clusterctl.pth", f"{packages}/clusterctl.pth"]},
            {"name": "nccl", "argv": library if self.nccl == "cluster" else ["true"]},
        ]


def _known_sources(release: str, sha256: str) -> list[dict[str, Any]]:
    """Return where a release of the managed Python can be had."""
    sha256 = sha256 or RELEASES.get(release, "")
    if not sha256:
        return []
    package = f"python{'.'.join(release.split('.')[:2])}"
    return [
        {"url": f"https://www.python.org/ftp/python/{release}/Python-{release}.tar.xz", "sha256": sha256},
        {"apt": {"package": package, "version": release, "sha256": sha256}},
    ]
