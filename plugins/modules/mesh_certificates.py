# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Lay out a node's certificates and the list of revoked keys, and have sshd use them."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: mesh_certificates
short_description: Lay out a node's certificates and the list of revoked keys, and have sshd use them
version_added: "0.2.0"
author: The clusterctl authors (!UNKNOWN)
description:
  - Writes the certificate of the user's mesh key, the certificate of the host key, and the list of revoked keys.
  - Has sshd show the host's certificate and refuse the revoked keys. The two settings stand in a drop-in where sshd
    reads C(/etc/ssh/sshd_config.d), and else in a block at the beginning of C(/etc/ssh/sshd_config).
  - Reloads sshd where it does not show the certificate. Open sessions stay.
  - Which certificates a user's account accepts is a line of its C(authorized_keys), which this module does not write.
options:
  state:
    description: V(absent) removes everything that the module made.
    type: str
    choices: [present, absent]
    default: present
  user:
    description: User whose mesh key has the certificate.
    type: str
    required: true
  user_path:
    description: File of the user's certificate, with links of its folder resolved.
    type: str
    required: true
  user_certificate:
    description: Certificate of the user's mesh key. Empty leaves the present one.
    type: str
    default: ""
  host_certificate:
    description: Certificate of the host key. Empty leaves the present one.
    type: str
    default: ""
  revoked:
    description: Revoked keys, one a line.
    type: str
    default: ""
attributes:
  check_mode: {support: full, description: Says what would change.}
  diff_mode: {support: full, description: Before and after of the files.}
"""

EXAMPLES = r"""
- name: Lay out the node's certificates
  clusterctl.hpc.mesh_certificates:
    user: mpi
    user_path: /home/mpi/.ssh/id_clusterctl-cert.pub
    user_certificate: "{{ example_user_certificate }}"
    host_certificate: "{{ example_host_certificate }}"
    revoked: "{{ example_revoked }}"
"""

RETURN = r"""
changes: {description: A short phrase for each change., type: list, returned: always}
watch: {description: States of paths that hold from now on., type: list, returned: always}
"""

import grp
import os
import pwd
import time
from typing import Any, Dict, List, Optional

from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    command,
    file_stage,
    file_transaction,
    mesh_ca,
    mesh_certificates_look,
    sshd,
)

_KEYSCAN_S = 3
_RELOAD_S = 10
_LOGIN_S = 10
_UNASKED_S = 2  # time for a reload that cannot be watched
_SSHD = "/usr/sbin/sshd"


def wanted_files(given: Dict[str, Any], entry: pwd.struct_passwd) -> List[file_transaction.Entry]:
    """Return the files that the node should have; what sshd refers to stands before sshd's settings.

    Raises:
        StageError: a certificate is more than one line.
    """
    present = given["state"] == "present"
    entries = []
    lines = mesh_ca.certificates
    if given["user_certificate"] or not present:
        entries.append(
            file_transaction.Entry(
                path=given["user_path"],
                state="file" if present else "absent",
                content=_certificate(given["user_path"], given["user_certificate"]),
                mode=0o644,
                uid=entry.pw_uid,
                gid=entry.pw_gid,
                user=entry,
            )
        )
    if present:
        entries.append(_root_file(lines.REVOKED, given["revoked"].encode()))
        if given["host_certificate"]:
            entries.append(
                _root_file(lines.HOST_CERTIFICATE, _certificate(lines.HOST_CERTIFICATE, given["host_certificate"]))
            )
    return [*entries, *_settings(entry.pw_name if present else "")]


def _certificate(path: str, text: str) -> bytes:
    line = file_transaction.one_line(path, "the certificate", text.removesuffix("\n"))
    return f"{line}\n".encode() if text else b""


def files_of_settings() -> List[file_transaction.Entry]:
    """Return what goes only after sshd reads its settings without it: sshd refuses every key if the list is missing."""
    gone = (mesh_ca.certificates.REVOKED, mesh_ca.certificates.HOST_CERTIFICATE)
    return [file_transaction.Entry(path=path, state="absent", is_watched=False) for path in gone]


def _settings(user: str) -> List[file_transaction.Entry]:
    """Return the entries of sshd's settings; an empty user removes them."""
    look = mesh_certificates_look
    by_drop_in = look.sshd_includes()
    content = mesh_ca.certificates.sshd_config(user if by_drop_in else "") if user else ""
    validate = (_SSHD, "-t", "-f", "%s") if os.access(_SSHD, os.X_OK) else ()
    entries = []
    if content and by_drop_in:
        entries.append(_root_file(look.SSHD_DROP_IN, content.encode(), validate))
    elif os.path.isdir(look.SSHD_FOLDER):  # noqa: PTH112 - a folder that root alone may enter answers no
        entries.append(file_transaction.Entry(path=look.SSHD_DROP_IN, state="absent", is_watched=False))
    block = "" if by_drop_in else content
    if not block and not look.has_block():
        return entries
    entries.append(
        file_transaction.Entry(
            path=look.SSHD_CONFIG,
            state="edit",
            edit=lambda text: look.with_first_block(text, block),
            what=f"block '{look.MARKER}'",
            validate=validate,
            is_watched=bool(block),
            watched_block=look.MARKER if block else "",
        )
    )
    return entries


def _root_file(path: str, content: bytes, validate: Any = ()) -> file_transaction.Entry:
    return file_transaction.Entry(path=path, state="file", content=content, mode=0o644, uid=0, gid=0, validate=validate)


def shown_by_sshd(certificate: str) -> Optional[bool]:
    """Tell whether the running sshd shows this certificate; None where it cannot be asked."""
    words = certificate.split()
    if len(words) < 2:  # noqa: PLR2004 - type and data
        return None
    port = sshd.settings_of("root").get("port", "22")
    kind = words[0].partition("-cert-")[0]
    names = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}
    argv = ["ssh-keyscan", "-c", "-T", str(_KEYSCAN_S), "-p", port, "-t", names.get(kind, "ecdsa"), "127.0.0.1"]
    done = command.run(argv, 2 * _KEYSCAN_S)
    if words[1] in done.output:
        return True
    bare = command.run([word for word in argv if word != "-c"], 2 * _KEYSCAN_S)  # no certificate, or no answer?
    return False if done.output.strip() or bare.output.strip() else None


def make_sshd_show(certificate: str, *, wanted: bool) -> str:
    """Reload sshd and wait until it shows the certificate, or no longer does; returns a sentence where it stays so."""
    sshd.reload()
    end = time.monotonic() + _RELOAD_S
    while time.monotonic() < end:
        shown = shown_by_sshd(certificate)
        if shown is None:
            time.sleep(_UNASKED_S)
            return ""
        if shown is wanted:
            return ""
        time.sleep(0.2)
    word = "does not show" if wanted else "still shows"
    return f"sshd was reloaded and {word} the certificate of its host key; look at sshd's log on this node."


def remove(given: Dict[str, Any], entry: pwd.struct_passwd, module: file_stage.QuietModule) -> file_stage.Outcome:
    """Take the settings away, have sshd read that, and then remove the files that they named.

    Raises:
        StageError: a file cannot be changed, or sshd does not read its settings.
    """
    options = {"check_mode": module.check_mode, "want_diff": module._diff}  # noqa: SLF001 - as below
    certificate = mesh_certificates_look.text_of(mesh_ca.certificates.HOST_CERTIFICATE)
    first = file_stage.apply(wanted_files(given, entry), **options)
    if not module.check_mode:
        problem = make_sshd_show(certificate, wanted=False)
        if problem:
            raise file_transaction.StageError(problem)
        sshd.await_undecided_logins(_LOGIN_S)
    second = file_stage.apply(files_of_settings(), **options)
    return file_stage.Outcome(
        [*first.changes, *second.changes], [*first.watch, *second.watch], [*first.diff, *second.diff]
    )


def lay_out(given: Dict[str, Any], entry: pwd.struct_passwd, module: file_stage.QuietModule) -> file_stage.Outcome:
    """Write the files, and have sshd use them.

    Raises:
        StageError: a file cannot be changed, or sshd does not read its settings.
    """
    options = {"check_mode": module.check_mode, "want_diff": module._diff}  # noqa: SLF001 - as below
    outcome = file_stage.apply(wanted_files(given, entry), **options)
    sshd_files = (
        mesh_ca.certificates.HOST_CERTIFICATE,
        mesh_certificates_look.SSHD_CONFIG,
        mesh_certificates_look.SSHD_DROP_IN,
    )
    changed = any(path in phrase for phrase in outcome.changes for path in sshd_files)
    certificate = given["host_certificate"]
    if certificate and not module.check_mode and (changed or shown_by_sshd(certificate) is False):
        problem = make_sshd_show(certificate, wanted=True)
        if problem:
            raise file_transaction.StageError(problem)
    return outcome


def main() -> None:
    """Run the module."""
    module = file_stage.QuietModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "user": {"type": "str", "required": True},
            "user_path": {"type": "str", "required": True},
            "user_certificate": {"type": "str", "default": ""},
            "host_certificate": {"type": "str", "default": ""},
            "revoked": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        entry = pwd.getpwnam(given["user"])
        grp.getgrgid(entry.pw_gid)
    except KeyError:
        module.fail_json(msg=f"The user {given['user']} does not exist on this node.", changes=[], watch=[])
    act = lay_out if given["state"] == "present" else remove
    try:
        outcome = act(given, entry, module)
    except file_transaction.StageError as error:
        module.fail_json(msg=str(error), changes=[], watch=[])
    answer: Dict[str, Any] = {"changes": outcome.changes, "watch": outcome.watch}
    if module._diff:  # noqa: SLF001 - the documented way for a module to learn of --diff
        answer["diff"] = outcome.diff
    module.exit_json(changed=bool(outcome.changes), **answer)


if __name__ == "__main__":
    main()
