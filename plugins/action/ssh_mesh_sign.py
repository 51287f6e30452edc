# SPDX-License-Identifier: GPL-3.0-or-later
"""Sign the certificates of the mesh once for all nodes, on the controller, with the cluster's own authority."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail  # type: ignore[import-untyped]
from ansible.module_utils.common.validation import check_type_dict, check_type_list  # type: ignore[import-untyped]
from ansible.module_utils.parsing.convert_bool import boolean  # type: ignore[import-untyped]
from ansible.plugins.action import ActionBase  # type: ignore[import-untyped]
from ansible_collections.clusterctl.hpc.plugins.module_utils import config_line, mesh_ca
from ansible_collections.clusterctl.hpc.plugins.module_utils import mesh_rules as rules
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import plain
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import mesh_look, run_events

_PASSPHRASE = "ssh_mesh_ca_passphrase"  # noqa: S105 - the name of the variable
_GIVE = mesh_ca.authority.GIVE
_ERRORS = (
    rules.MeshError,
    config_line.LineError,
    mesh_ca.authority.AuthorityError,
    mesh_ca.passphrase.PassphraseError,
)
_NEW = "ssh-ed25519 AAAA"  # stands for an authority that check mode does not make


class ActionModule(ActionBase):  # type: ignore[misc]
    """Returns the certificates of each node, and the text of every file that is the same on all nodes.

    Without an authority, there is nothing to sign, and nothing is returned.
    """

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``certificates``, ``revoked``, and the text of the files."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        given = self._task.args
        if str(given["trust"]) != "ca":
            return {**result, "changed": False}
        hosts = [str(host) for host in variables["ansible_play_hosts"]]
        if boolean(given.get("only_check", False)):
            return {**result, **self._checked(hosts, variables)}
        try:
            passphrase = self._passphrase(variables)
            authority = _authority(str(given["folder"]), variables)
            looks = mesh_look.of_hosts(variables, hosts, str(given["looks"]))
            result.update(self._signed(authority, looks, variables[str(given["plan"])], passphrase))
        except rules.MeshError as error:
            result.update(mesh_look.failed(error))
        except _ERRORS as error:
            raise AnsibleActionFail(f"{str(error).rstrip('.')}.") from None
        return result

    def _checked(self, hosts: list[str], variables: dict[str, Any]) -> dict[str, Any]:
        """Return nothing, or a problem of what was asked for, which ends the run as a bad configuration."""
        try:
            authority = _authority(str(self._task.args["folder"]), variables)
            passphrase = self._passphrase(variables)
            if passphrase or not self._task.check_mode:  # check mode signs nothing
                mesh_ca.authority.refuse_unready(authority, hosts, passphrase, time.time())
        except _ERRORS as error:
            said, _unused, cure = str(error).rstrip(".").partition("; ")
            problem = {"host": hosts[0], "check": "ssh_mesh", "problem": said, "cure": cure, "kind": "configuration"}
            return {"failed": True, "msg": str(error), "problems": [problem]}
        return {"changed": False}

    def _passphrase(self, variables: dict[str, Any]) -> str:
        """Return the passphrase; it is no argument of the task, because arguments may be logged."""
        # clusterctl passes what it has asked for or read as a path in memory.
        for name in ("clusterctl_ca_passphrase_file", f"{_PASSPHRASE}_file"):
            path = str(self._templar.template(variables.get(name, "")) or "")
            if path:
                return mesh_ca.passphrase.read(path)
        return str(self._templar.template(variables.get(_PASSPHRASE, "")) or "")

    def _signed(
        self,
        authority: mesh_ca.authority.Authority,
        looks: dict[str, dict[str, Any]],
        planned: Mapping[str, Any],
        passphrase: str,
    ) -> dict[str, Any]:
        given = self._task.args
        plan = plain(planned)
        options = rules.Options(
            key_name=str(given["key_name"]),
            key_options=[str(one) for one in check_type_list(given["key_options"])],
            from_members_only=boolean(given["from_members_only"]),
            strict_host_keys=boolean(given["strict_host_keys"]),
            client_options={str(name): _word(value) for name, value in _client_options(given).items()},
        )
        patterns = [str(one) for one in check_type_list(given["patterns"])]
        for word in patterns:
            if not mesh_ca.certificates.is_pattern(word):
                raise rules.MeshError(f"ssh_mesh_ca_patterns has {word!r}, which is not a name or address with * or ?.")
        present = {host: look["trust"] for host, look in looks.items() if look.get("trust")}
        members = list(plan["members"])
        names = [str(one) for one in check_type_list(given["inventory"])]
        check_mode = self._task.check_mode
        if not authority.exists and not check_mode:
            if not passphrase:
                raise rules.MeshError(f"The passphrase of the new certificate authority is missing; {_GIVE}.")
            authority.create(passphrase, time.time())
        record = authority.record() if authority.exists else {}
        if not boolean(given["common_home"]):
            refuse_claims({host: str(looks[host]["public_key"]) for host in present}, names, record, options.key_name)
        keys = (
            {kind: authority.public(kind) for kind in mesh_ca.authority.KINDS}
            if record
            else dict.fromkeys(mesh_ca.authority.KINDS, _NEW)
        )
        found = certificates(present, looks, members, str(plan["user"]), keys, options)
        gone = authority.leave(names, time.time()) if authority.exists and not check_mode else []
        requests = wanting(found, present, keys, authority.record() if authority.exists else {})
        texts = {}
        warnings = []
        if requests and not check_mode and not passphrase:
            warnings = [postponed(requests, present, keys)]
        elif requests and not check_mode:
            signed = authority.sign(requests, passphrase, time.time(), int(given["days"]))
            texts = {
                (node, request.wanted.kind): text
                for request, text in zip(requests, signed, strict=True)
                for node in request.nodes
            }
        found_files = all_files(plan, patterns, names, keys, options)
        if boolean(given.get("accept_keys", False)):
            for its in (found_files, *found_files["own"].values()):
                its.update(its["both"])
        return {
            "changed": bool(requests) and check_mode,
            "certificates": {
                host: {kind: texts.get((host, kind), trust[kind]) for kind in mesh_ca.authority.KINDS}
                for host, trust in present.items()
            },
            "revoked": authority.revoked() if authority.exists else "",
            "gone": gone,
            "warnings": warnings,
            **found_files,
        }


def _client_options(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the ssh client."""
    options: dict[str, Any] = check_type_dict(given["client_options"])
    return options


def refuse_claims(shown: Mapping[str, str], inventory: list[str], record: Mapping[str, Any], key_name: str) -> None:
    """Refuse a node that shows the user key of another one: with its certificate, the other's would be revoked.

    A proof that a node has the private half would not help. Root of one node is the jobs' user on all, and reads it.

    Args:
        shown: the public key of each visited node.
        inventory: the names of all nodes.
        record: what the authority signed; it decides whose a key is.
        key_name: of the key's file, for the message.

    Raises:
        MeshError: a key is that of another node, or nobody knows which one of several nodes has it.
    """
    gone = record.get("revoked", {})
    issued = {
        node: its.get("user", {}).get("key")
        for node, its in record.get("issued", {}).items()
        if node in inventory and node not in gone
    }
    refused: dict[str, list[str]] = {}
    for host, key in shown.items():
        known = {node for node, its in issued.items() if its == key}
        others = (known | {node for node, its in shown.items() if its == key}) - {host}
        if key and others and known != {host}:
            refused[host] = sorted(others)
    if refused:
        pairs = ", ".join(f"{host} shows that of {' and '.join(its)}" for host, its in refused.items())
        raise rules.MeshError(
            f"A node's ssh key for the mesh is also that of another one: {pairs}. If they share a home, set "
            f"ssh_mesh_ca_common_home to true. Otherwise remove ~/.ssh/{key_name} and ~/.ssh/{key_name}.pub of "
            f"{', '.join(refused)}, and provision again.",
            list(refused),
        )


def certificates(
    present: dict[str, dict[str, Any]],
    looks: dict[str, dict[str, Any]],
    members: list[dict[str, Any]],
    user: str,
    keys: dict[str, str],
    options: rules.Options,
) -> list[mesh_ca.authority.Request]:
    """Return the certificates that the visited nodes should have.

    Raises:
        MeshError: sshd of a node has no host key that the controller has verified, or refuses other revoked keys; or a
            user's key is of a type that some OpenSSH cannot read, so that it could not be revoked.
    """
    named = {str(member["name"]): member for member in members}
    sources = rules.source_addresses(members)
    permits = () if "no-pty" in options.key_options else ("permit-pty",)
    found = []
    owners: dict[str, list[str]] = {}
    for host in present:
        owners.setdefault(str(looks[host]["public_key"]), []).append(host)
    for key, hosts in owners.items():
        if not key:  # check mode makes none
            continue
        if key.partition(" ")[0] not in mesh_ca.authority.KEY_TYPES:
            raise rules.MeshError(
                f"The user's key of {' and '.join(hosts)} for the mesh is of type {key.partition(' ')[0]}, which not "
                f"every OpenSSH can revoke; use one of {', '.join(mesh_ca.authority.KEY_TYPES)}.",
                hosts,
            )
        accepted = dict.fromkeys(word for host in hosts for word in sources[host])
        wanted = mesh_ca.certificates.Wanted(
            kind="user",
            key=key,
            key_id=",".join(hosts),
            principals=(user, mesh_ca.certificates.principal(keys["user"])),
            source_addresses=tuple(accepted) if options.from_members_only else (),
            permits=permits,
        )
        found.append(mesh_ca.authority.Request(tuple(hosts), wanted))
    for host, trust in present.items():
        if trust["revoked_keys"]:
            raise rules.MeshError(
                f"sshd on {host} has RevokedKeys {trust['revoked_keys']}, and reads one such file only; remove the "
                "setting there, or set ssh_mesh_trust to keys.",
                [host],
            )
        verified = set(named[host].get("host_keys", ()))
        own = {one["key"].split()[0]: one["key"] for one in trust["host_keys"] if one["key"] in verified}
        key = next((own[kind] for kind in mesh_ca.authority.KEY_TYPES if kind in own), "")
        if not key:
            raise rules.MeshError(
                f"sshd on {host} has no host key that the controller has verified; check HostKey in its sshd_config.",
                [host],
            )
        principals = tuple(mesh_ca.certificates.names_of(named[host]))
        wanted = mesh_ca.certificates.Wanted(kind="host", key=key, key_id=host, principals=principals)
        found.append(mesh_ca.authority.Request((host,), wanted))
    return found


def wanting(
    found: list[mesh_ca.authority.Request],
    present: dict[str, dict[str, Any]],
    keys: dict[str, str],
    record: dict[str, Any],
) -> list[mesh_ca.authority.Request]:
    """Return the certificates that a node lacks, that say something else, or that are about to expire."""
    asked = {*record.get("renew", ())}
    asked |= {node for node, entry in record.get("revoked", {}).items() if entry["returns"]}  # in the inventory again
    now = int(time.time())

    def is_wanting(request: mesh_ca.authority.Request) -> bool:
        wanted = request.wanted
        return any(
            host in asked or mesh_ca.certificates.why_anew(present[host][wanted.kind], wanted, keys[wanted.kind], now)
            for host in request.nodes
        )

    return [request for request in found if is_wanting(request)]


def postponed(
    requests: list[mesh_ca.authority.Request], present: dict[str, dict[str, Any]], keys: dict[str, str]
) -> str:
    """Return a warning about certificates that can wait for the passphrase.

    Raises:
        MeshError: a certificate cannot wait.
    """
    now = int(time.time())

    def cannot_wait(host: str, wanted: mesh_ca.certificates.Wanted) -> bool:
        why = mesh_ca.certificates.why_anew(present[host][wanted.kind], wanted, keys[wanted.kind], now)
        return why not in {"", mesh_ca.certificates.ABOUT_TO_EXPIRE}

    needed = [host for request in requests for host in request.nodes if cannot_wait(host, request.wanted)]
    if needed:
        raise rules.MeshError(
            f"The certificates of {', '.join(dict.fromkeys(needed))} have to be signed, and the authority's passphrase "
            f"is missing; {_GIVE}."
        )
    who = ", ".join(dict.fromkeys(host for request in requests for host in request.nodes))
    return f"The certificates of {who} are to be renewed, and the authority's passphrase is missing; {_GIVE}."


def all_files(
    plan: dict[str, Any], patterns: list[str], names: list[str], keys: dict[str, str], options: rules.Options
) -> dict[str, Any]:
    """Return the text of the files, and under ``own`` those of the nodes that go on to know keys of single hosts.

    Args:
        plan: of :mod:`ssh_mesh_plan`.
        patterns: of the user; empty derives them.
        names: of all hosts of the inventory.
        keys: the authority's public keys by kind.
        options: the choices of the role's variables.
    """

    def of(its: dict[str, Any], outside: list[dict[str, Any]]) -> dict[str, Any]:
        listed = {str(one["name"]) for one in plan["members"]}
        members = [*plan["members"], *(one for one in outside if one["name"] not in listed)]
        return files(
            {**its, "user": plan["user"]},
            members,
            outside,
            patterns or mesh_ca.certificates.patterns(members, names),
            keys,
            options,
        )

    return {**of(plan, []), "own": {host: of(its, its["outside"]) for host, its in plan["own"].items()}}


def files(
    plan: dict[str, Any],
    members: list[dict[str, Any]],
    outside: list[dict[str, Any]],
    patterns: list[str],
    keys: dict[str, str],
    options: rules.Options,
) -> dict[str, Any]:
    """Return the text of the files: those that trust the authority, and those that accept keys and certificates."""
    authorized = mesh_ca.certificates.authorized(keys["user"], options.key_options)
    known = mesh_ca.certificates.known(
        keys["host"], patterns, [int(member.get("port", rules.SSH_PORT)) for member in members]
    )
    settings = rules.client_settings(options)
    return {
        "authorized_keys": authorized + rules.authorized_keys(outside, options),
        "known_hosts": known + rules.known_hosts(outside),
        "client_config": mesh_ca.certificates.client_config(members, str(plan["user"]), patterns, settings),
        "both": {
            "authorized_keys": authorized + str(plan["authorized_keys"]),
            "known_hosts": known + str(plan["known_hosts"]),
        },
    }


def _authority(folder: str, variables: Mapping[str, Any]) -> mesh_ca.authority.Authority:
    if not folder:
        raise rules.MeshError(
            "ssh_mesh_trust is ca, and ssh_mesh_ca_folder is empty; name a folder of the controller, or run "
            "'clusterctl provision', which has one for each cluster."
        )
    host = str(variables["inventory_hostname"])
    return mesh_ca.authority.Authority(folder, lambda text: run_events.note(host, text))


def _word(value: object) -> str:
    """Return a value as ssh writes it: YAML's booleans become yes and no."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
