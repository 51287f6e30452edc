"""Where the playbooks, roles and plugins are: in a checkout or in an installed wheel.

This is the only module that knows which of the two is running.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

from clusterctl.support.errors import ConfigError

_COLLECTION = Path("ansible_collections") / "clusterctl" / "hpc"
_PACKAGE = Path(__file__).resolve().parents[1]  # clusterctl
_REINSTALL = "reinstall clusterctl with 'pip install --force-reinstall'"
_SHAPING_FOLDERS = ("playbooks", "roles", "plugins")


@cache
def root() -> Path:
    """Return the folder that holds ``playbooks/``, ``roles/`` and ``plugins/``.

    Raises:
        ConfigError: neither a checkout nor an installed wheel is around this module.
    """
    installed = _PACKAGE / "_collections" / _COLLECTION
    if (installed / "plugins" / "module_utils").is_dir():  # 'clusterctl-launch' has nothing else of it
        return installed
    checkout = _PACKAGE.parent.parent
    if (checkout / "galaxy.yml").is_file() and (checkout / "playbooks").is_dir():
        return checkout
    raise ConfigError(f"No playbooks were found beside {_PACKAGE}; {_REINSTALL}.")


@cache
def collections_path() -> Path:
    """Return the folder to name in ``ANSIBLE_COLLECTIONS_PATH``.

    A checkout gets a link ``.ansible/collections/ansible_collections/clusterctl/hpc`` to itself, made on first use.
    """
    here = root()
    if here.parts[-3:] == _COLLECTION.parts:
        return here.parents[2]
    base = here / ".ansible" / "collections"
    link = base / _COLLECTION
    if not link.is_symlink() or link.resolve() != here:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(here, target_is_directory=True)
    return base


def playbook(name: str) -> Path:
    """Return the path of a playbook by its bare name, for example ``provision``."""
    return root() / "playbooks" / f"{name}.yml"


def role_files(role: str) -> Path:
    """Return the folder of the files that a role puts on nodes."""
    return root() / "roles" / role / "files"


@cache
def module_util(name: str) -> Any:
    """Return a module or package of ``plugins/module_utils``, which the plugins and clusterctl then share.

    Args:
        name: of a module or package that imports the standard library and others of this folder; ``package.module`` is
            a part of a package.

    Raises:
        ConfigError: it is missing.
    """
    folder = root() / "plugins" / "module_utils"
    top = folder / name.partition(".")[0]
    if not top.is_dir() and not top.with_suffix(".py").is_file():
        raise ConfigError(f"{top.with_suffix('.py')} is missing; {_REINSTALL}.")
    return importlib.import_module(f"{_package(folder)}.{name}")


@cache
def _package(folder: Path) -> str:
    """Return the name of the package that the modules of a folder are imported from, which has no __init__.py."""
    spec = importlib.machinery.ModuleSpec("clusterctl_module_utils", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    return spec.name


@cache
def node_module(path: str) -> Any:
    """Return a module that the role ``validation`` puts on nodes, by its path among the role's files.

    Raises:
        ConfigError: it is missing.
    """
    place = role_files("validation") / path
    return _loaded(f"clusterctl_on_nodes_{place.stem}", place)


def _loaded(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"{path} is missing; {_REINSTALL}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def node_programs() -> tuple[str, ...]:
    """Return the file names of the programs that the role ``validation`` puts on nodes, from the role's one list."""
    import yaml  # noqa: PLC0415 - 'clusterctl launch' does without it

    variables = yaml.safe_load((root() / "roles" / "validation" / "vars" / "main.yml").read_text(encoding="utf-8"))
    return tuple(sorted(variables["__validation_programs"]))


@cache
def digest() -> str:
    """Return the sha256 (hex) of everything in the content tree that can change what a run does to a node."""
    total = hashlib.sha256()
    for folder in _SHAPING_FOLDERS:
        for path in sorted((root() / folder).rglob("*")):
            relative = path.relative_to(root())
            if not path.is_file() or "__pycache__" in relative.parts or "molecule" in relative.parts:
                continue
            total.update(f"{relative}\0".encode())
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
