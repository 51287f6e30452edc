# SPDX-License-Identifier: Apache-2.0
"""Settings of Open MPI, PRRTE, PMIx, UCX, NCCL and Gloo, in their files and in the variables of a session."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .environment_file import read_environment_file
from .reading import Json, read_text, read_text_of_user

if TYPE_CHECKING:
    import pwd

SITE = "etc/openmpi"  # below the prefix
NCCL = "/etc/nccl.conf"
FABRIC = "/etc/clusterctl/fabric.json"
_FABRIC_FILES = ("openmpi-mca-params.conf", "prte-mca-params.conf")
_OTHER_FILES = ("pmix-mca-params.conf", "openmpi-mca-params-override.conf")
_HOME_FILES = (".openmpi/mca-params.conf", ".prte/mca-params.conf", ".pmix/mca-params.conf", ".nccl.conf")
_BEGIN, _END = "# BEGIN clusterctl ", "# END clusterctl "
_PREFIXES = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_", "NCCL_", "UCX_")
_ENVIRONMENT = "/etc/environment"
_VARIABLES = ("GLOO_SOCKET_IFNAME", "OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX", "LD_PRELOAD")


def parameters(variables: dict[str, str], home: str, user: pwd.struct_passwd | None, root: str) -> Json:
    """Return the settings outside the blocks of clusterctl, and the files of the role ``fabric``.

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
    paths = [f"{home}/{name}" for name in _HOME_FILES if home]
    texts.update({path: read_text_of_user(path, user) for path in paths})
    for path, text in texts.items():
        own, others = read_settings(text)
        found += [{"name": name, "value": value, "source": path} for name, value in others]
        if path in of_fabric:
            files.append({"path": path, "exists": bool(text) or os.path.exists(path), "own": own})
    of_file = read_environment_file(read_text(_ENVIRONMENT, ""))
    found += [
        {
            "name": name,
            "value": variables[name],
            "source": _ENVIRONMENT if of_file.get(name) == variables[name] else "environment",
        }
        for name in sorted(variables)
        if name.startswith(_PREFIXES) or name in _VARIABLES
    ]
    return {"parameters": found, "parameter_files": files}


def read_settings(text: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return the settings inside the blocks of clusterctl, and those outside: lines of ``name = value``."""
    own: dict[str, str] = {}
    others: list[tuple[str, str]] = []
    inside = False
    for line in text.splitlines():
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
