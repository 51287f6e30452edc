# SPDX-License-Identifier: Apache-2.0
"""Settings of Open MPI, PRRTE, PMIx, UCX, NCCL and Gloo, in their files, in a session, and in what starts it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from . import login_files, shell_files
from .environment_file import read_environment_file
from .reading import Json, read_text, read_text_of_user

if TYPE_CHECKING:
    import pwd

SITE = "etc/openmpi"  # below the prefix
NCCL = "/etc/nccl.conf"
FABRIC = "/etc/clusterctl/fabric.json"
_FABRIC_FILES = ("openmpi-mca-params.conf", "prte-mca-params.conf")
_OTHER_FILES = ("pmix-mca-params.conf", "openmpi-mca-params-override.conf")
_OWN_NCCL = ".nccl.conf"
_HOME_FILES = (".openmpi/mca-params.conf", ".prte/mca-params.conf", ".pmix/mca-params.conf", _OWN_NCCL)
_BEGIN, _END = "# BEGIN clusterctl ", "# END clusterctl "
_PREFIXES = ("OMPI_", "PRTE_MCA_", "PMIX_MCA_", "NCCL_", "UCX_")
_ENVIRONMENT = "/etc/environment"
_UCX, _UCX_FILE = "/etc/ucx", "ucx.conf"
_VARIABLES = ("GLOO_SOCKET_IFNAME", "OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX", "LD_PRELOAD")


def parameters(variables: dict[str, str], home: str, user: pwd.struct_passwd | None, root: str) -> Json:
    """Return the settings outside the blocks of clusterctl, one for each place, and the files of the role ``fabric``.

    Only settings of the families above are told: files and variables hold secrets as well. ``in_session`` is false for
    what a start-up file sets and the session does not have.

    Args:
        variables: the variables of the session.
        home: the home of the login user.
        user: the login user, with whose identity root reads below the home.
        root: the prefix of the software.
    """
    found = []
    files = [{"path": FABRIC, "exists": os.path.exists(FABRIC), "own": {}}]
    of_fabric = [*(f"{root}/{SITE}/{name}" for name in _FABRIC_FILES), NCCL]
    others_of_site = [f"{root}/{SITE}/{name}" for name in _OTHER_FILES]
    texts = {path: read_text(path, "") for path in (*of_fabric, *others_of_site)}
    own_nccl = variables.get("NCCL_CONF_FILE", "")  # taken in the place of that of the home
    paths = [f"{home}/{name}" for name in _HOME_FILES if home and not (own_nccl and name == _OWN_NCCL)]
    texts.update({path: read_text_of_user(path, user) for path in paths})
    for path, text in texts.items():
        own, others = read_settings(text)
        found += [{"name": name, "value": value, "source": path} for name, value in others]
        if path in of_fabric:
            files.append({"path": path, "exists": bool(text) or os.path.exists(path), "own": own})
    if own_nccl.startswith("/"):
        found += _of_family(own_nccl, read_text_of_user(own_nccl, user), "NCCL_")
    for path in _ucx_files(variables, home, root):
        below_home = bool(home) and path.startswith(f"{home}/")
        text = read_text_of_user(path, user) if below_home else read_text(path, "")
        found += _of_family(path, text.partition("\n[")[0], "UCX_")  # a section holds for some processors alone
    return {"parameters": [*found, *_variables(variables, home, user)], "parameter_files": files}


def _of_family(path: str, text: str, prefix: str) -> list[Json]:
    settings = read_settings(text)[1]
    return [{"name": name, "value": value, "source": path} for name, value in settings if name.startswith(prefix)]


def _ucx_files(variables: dict[str, str], home: str, root: str) -> list[str]:
    """Return where UCX looks for its file (UCX documentation, "Setting UCX options"), each place once."""
    folders = [_UCX, f"{root}/ucx/etc/ucx", home, variables.get("UCX_CONFIG_DIR", "")]
    return [f"{folder}/{_UCX_FILE}" for folder in dict.fromkeys(folders) if folder.startswith("/")]


def _variables(variables: dict[str, str], home: str, user: pwd.struct_passwd | None) -> list[Json]:
    """Return the variables of the session with the place that sets them, and those of places that it did not take."""
    of_file = {
        name: value for name, value in read_environment_file(read_text(_ENVIRONMENT, "")).items() if _known(name)
    }
    places = {_ENVIRONMENT: (of_file, {name: {value} for name, value in of_file.items()})}
    places.update(login_files.read_files(home, user, _known))
    places.update(shell_files.read_files(home, user, _known))
    found = []
    for name in sorted(name for name in variables if _known(name)):
        value = variables[name]
        source = next((path for path, given in places.items() if value in given[1].get(name, ())), "environment")
        found.append({"name": name, "value": value, "source": source})
    for path, given in places.items():
        for name, value in sorted(given[0].items()):
            if variables.get(name) != value:
                found.append({"name": name, "value": value, "source": path, "in_session": False})
    return found


def _known(name: str) -> bool:
    return name.startswith(_PREFIXES) or name in _VARIABLES


def read_settings(text: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return the settings inside the blocks of clusterctl, and those outside: lines of ``name = value``."""
    own: dict[str, str] = {}
    others: list[tuple[str, str]] = []
    inside = False
    for line in text.split("\n"):
        words = line.strip()
        if words.startswith((_BEGIN, _END)):
            inside = words.startswith(_BEGIN)
        name, separator, value = (part.strip() for part in words.partition("="))
        if not separator or words.startswith("#"):
            continue
        if inside:
            own[name] = value
        else:
            others.append((name, value))
    return own, others
