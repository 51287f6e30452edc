# SPDX-License-Identifier: Apache-2.0
"""Look at what a node has of a certificate authority: its certificates, and the lines and settings that trust it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Dict, Sequence

from . import config_line, mesh_ca, sshd, text_edit, user_identity

if TYPE_CHECKING:
    import pwd

MARKER = "ssh_mesh_ca"
SSHD_CONFIG = "/etc/ssh/sshd_config"
SSHD_FOLDER = "/etc/ssh/sshd_config.d"
SSHD_DROP_IN = f"{SSHD_FOLDER}/05-clusterctl-ca.conf"
_INCLUDE = re.compile(r"^\s*include\s+.*sshd_config\.d/", re.IGNORECASE | re.MULTILINE)
_OF_A_NODE = re.compile(r" clusterctl:[A-Za-z0-9][A-Za-z0-9._-]*$")


def certificate_of(entry: pwd.struct_passwd, name: str) -> Dict[str, Any]:
    """Return the user's certificate and its path, links of the folder resolved; runs with the user's identity."""
    path = os.path.join(os.path.realpath(os.path.join(entry.pw_dir, ".ssh")), f"{name}-cert.pub")  # noqa: PTH118
    return {"certificate": {"path": path, "text": certificate_in(path)}}


def look(
    certificate: Dict[str, str], settings: Dict[str, str], authorized: Sequence[str], known: Sequence[str]
) -> Dict[str, Any]:
    """Return what the node has of an authority.

    Args:
        certificate: the user's, see :func:`certificate_of`.
        settings: sshd's own settings.
        authorized: the lines of the block in authorized_keys.
        known: the lines of the block in known_hosts.
    """
    host_certificate = certificate_in(mesh_ca.certificates.HOST_CERTIFICATE)
    lines = {
        "authorized_keys": mesh_ca.certificates.of_authority(authorized),
        "known_hosts": mesh_ca.certificates.of_authority(known),
    }
    revoked = settings.get("revokedkeys", "none")
    left = [mesh_ca.certificates.REVOKED, SSHD_DROP_IN]
    return {
        "host_keys": sshd.host_keys(),
        "user_path": certificate["path"],
        "user": certificate["text"],
        "host": host_certificate,
        "lines": lines,
        "has_keys": any(_OF_A_NODE.search(line) for line in authorized)
        or any(line and not line.startswith("@") for line in known),
        "remains": bool(certificate["text"] or host_certificate or any(map(os.path.lexists, left)) or has_block()),
        "revoked_keys": "" if revoked in {"none", mesh_ca.certificates.REVOKED} else revoked,
    }


def sshd_includes() -> bool:
    """Tell whether sshd reads its drop-in folder (OpenSSH 8.2 and later, where the distribution says so)."""
    return bool(_INCLUDE.search(text_of(SSHD_CONFIG)))


def with_first_block(text: str, content: str) -> str:
    """Return sshd_config with the block; a new one comes first, because the end may belong to a Match."""
    if not content or text_edit.begin_of(MARKER) in text_edit.lines_of(text):
        return text_edit.set_block(text, MARKER, content)
    return f"{text_edit.begin_of(MARKER)}\n{content}{text_edit.end_of(MARKER)}\n{text}"


def has_block() -> bool:
    """Tell whether sshd_config has the block."""
    return text_edit.begin_of(MARKER) in text_edit.lines_of(text_of(SSHD_CONFIG))


def certificate_in(path: str) -> str:
    """Return the one line of a certificate's file; '' for other text, such as a user may have added to it."""
    text = text_of(path)
    return text if not config_line.control_in(text) and "\n" not in text[:-1] and "\t" not in text else ""


def text_of(path: str) -> str:
    """Return the text of a regular file; '' where it cannot be read."""
    try:
        return (user_identity.read_regular(path) or b"").decode("utf-8", "replace")
    except (OSError, user_identity.IdentityError):
        return ""
