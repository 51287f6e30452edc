# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the ssh mesh once for all nodes, on the controller, from the public keys that mesh_key returned."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.common.validation import check_type_dict, check_type_list  # type: ignore[import-untyped]
from ansible.module_utils.parsing.convert_bool import boolean  # type: ignore[import-untyped]
from ansible.plugins.action import ActionBase  # type: ignore[import-untyped]
from ansible_collections.clusterctl.hpc.plugins.module_utils import job_user_rules, preflight_rules
from ansible_collections.clusterctl.hpc.plugins.module_utils import mesh_rules as rules
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import mesh_look

_NARROWED = (
    "it accepts each node's key from that node's own addresses only; where a network between the nodes translates "
    "addresses, set ssh_mesh_from_members_only to false"
)


_NOT_MADE = "ssh-ed25519 made/by/the/run"  # in the place of a key; each node's is another


class ActionModule(ActionBase):  # type: ignore[misc]
    """Returns the text of every file that is the same on all nodes, and those of nodes that know more hosts."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the texts, ``own``, ``inventory``, ``logins`` and ``members``."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        given = self._task.args
        options = rules.Options(
            key_name=str(given["key_name"]),
            key_options=[str(one) for one in check_type_list(given["key_options"])],
            from_members_only=boolean(given["from_members_only"]),
            strict_host_keys=boolean(given["strict_host_keys"]),
            client_options={
                str(name): _word(value) for name, value in check_type_dict(given["client_options"]).items()
            },
            verify=str(given["verify"]),
            trust=str(given.get("trust", "keys")),
        )
        try:
            looks = mesh_look.of_hosts(variables, map(str, variables["ansible_play_hosts"]), str(given["looks"]))
            inventory = {str(host): _names(str(host), variables) for host in given["inventory"]}
            members = [with_more_keys(member, given.get("more_host_keys"), variables) for member in given["members"]]
            result.update(plan(members, looks, inventory, options, check=bool(self._task.check_mode)))
        except rules.MeshError as error:
            result.update(mesh_look.failed(error))
        return result


def plan(
    members: list[dict[str, Any]],
    looks: dict[str, dict[str, Any]],
    inventory: dict[str, list[str]],
    options: rules.Options,
    *,
    check: bool = False,
) -> dict[str, Any]:
    """Return the plan; ``inventory`` has the names that the inventory gives each of its hosts.

    With ``check``, a key that no node has made yet has its line in the texts, so that a preview shows the change.
    """
    rules.check_members(members)
    users: dict[str, list[str]] = {}
    for host, look in looks.items():
        users.setdefault(str(look["user"]), []).append(host)
    if len(users) != 1:
        words = (f"{user} on {preflight_rules.shortened(hosts)}" for user, hosts in sorted(users.items()))
        most = max(users.values(), key=len, default=[])
        raise rules.MeshError(
            f"The nodes would use different users ({', '.join(words) or 'none'}); set cluster_user to one name for all "
            "of them.",
            [host for host in looks if host not in most] if len(most) * 2 > len(looks) else (),
        )
    user = next(iter(users))
    rules.check_options(user, options)
    names = [str(member["name"]) for member in members]
    strangers = sorted(set(looks) - set(names))
    if strangers:
        raise rules.MeshError(f"{', '.join(strangers)} is not in ssh_mesh_members; run preflight first.")
    fresh = {host: str(look["public_key"]) for host, look in looks.items() if look["public_key"]}
    everybody = rules.complete(members, fresh, {}, inventory)
    rules.check_members(everybody)
    shown = {
        host: f"{_NOT_MADE}/{number}"
        for number, (host, look) in enumerate(looks.items())
        if check and not look["public_key"]
    }
    visited = [name for name in names if name in looks]
    # In a rotation, a node's next key is accepted before the node uses it.
    successors = [
        {**member, "user_key": key}
        for member in everybody
        if (key := looks.get(str(member["name"]), {}).get("successor_key"))
    ]
    rules.check_members(successors or everybody)
    narrowed = [_NARROWED] if options.from_members_only else []
    targets = {
        str(member["name"]): {
            "name": str(member["name"]),
            "address": str(member["address"]),
            "port": member.get("port", rules.SSH_PORT),
            "obstacles": [*looks[str(member["name"])]["obstacles"], *narrowed],
        }
        for member in members
        if member["name"] in looks
    }
    memories = {host: rules.recall(look["remembered"], inventory) for host, look in looks.items()}

    def texts(known: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "authorized_keys": rules.authorized_keys(known, options) + rules.authorized_keys(successors, options),
            "known_hosts": rules.known_hosts(known),
            "client_config": rules.client_config(known, user, options),
        }

    wanted = lacking(members, everybody, inventory)
    if options.trust == "ca":  # a node goes on to know the single keys of hosts that may have no certificate yet
        wanted |= inventory.keys() - looks.keys()
    own = {}
    for host, memory in memories.items():
        if memory.keys() & wanted:
            known = rules.complete(members, {**fresh, **shown}, memory, inventory)
            outside = [one for one in known if one["name"] not in looks and one["name"] in memory]
            own[host] = {**texts(known), "outside": outside}
    return {
        "changed": False,
        **texts(rules.complete(members, {**fresh, **shown}, {}, inventory)),
        "own": own,
        "inventory": list(inventory),
        "logins": {
            host: [targets[target] for target in its] for host, its in rules.logins(visited, options.verify).items()
        },
        "members": everybody,
        "user": user,
        "warnings": _warnings(everybody, looks, memories, options),
    }


def lacking(
    members: list[dict[str, Any]], everybody: list[dict[str, Any]], inventory: dict[str, list[str]]
) -> set[str]:
    """Return the hosts of which neither this run nor the controller's record knows all that the files hold."""
    bare = {str(member["name"]) for member in members if "addresses" not in member}
    keyless = {str(member["name"]) for member in everybody if not member.get("user_key")}
    return bare | keyless | (inventory.keys() - {str(member["name"]) for member in members})


def with_more_keys(member: dict[str, Any], registered: str | None, variables: dict[str, Any]) -> dict[str, Any]:
    """Return a member with the host keys that it shows after a rotation; ``registered`` names where they are.

    Raises:
        MeshError: the node's answer has another form.
    """
    name = str(member.get("name"))
    more = mesh_look.host_keys_of(name, variables["hostvars"].get(name, {}).get(registered or ""))
    return {**member, "host_keys": list(dict.fromkeys([*member.get("host_keys", ()), *more]))}


def _names(host: str, variables: dict[str, Any]) -> list[str]:
    """Return the names that the inventory gives a host; a remembered host may have no others."""
    its = variables["hostvars"].get(host)
    given = [] if its is None else preflight_rules.inventory_names(preflight_rules.settings(host, its, ())[0])
    return [*given, *(name.partition(".")[0] for name in given)]


def _warnings(
    everybody: list[dict[str, Any]],
    looks: dict[str, dict[str, Any]],
    memories: dict[str, dict[str, dict[str, Any]]],
    options: rules.Options,
) -> list[str]:
    warnings = []
    if not options.strict_host_keys:
        warnings.append(
            "ssh_mesh_strict_host_keys is false: the nodes log in to any machine that answers at a node's address."
        )
    reaching = {host: str(look["reaches_root"]) for host, look in looks.items() if look["reaches_root"]}
    if reaching:
        warnings.append(job_user_rules.root_reach(str(next(iter(looks.values()))["user"]), reaching, len(looks)))
    if options.trust == "ca":  # nodes know no keys of single nodes
        return warnings
    outside = {str(member["name"]) for member in everybody if member["name"] not in looks}
    outside |= {name for memory in memories.values() for name in memory if name not in looks}
    told = {(name, one.get("user_key")) for memory in memories.values() for name, one in memory.items()}
    new = [
        str(member["name"])
        for member in everybody
        if member["name"] in looks and (member["name"], member.get("user_key")) not in told
    ]
    if outside and new:
        warnings.append(
            f"{', '.join(new)}: new or changed. {', '.join(sorted(outside))}, which this run did not visit, will "
            "refuse their logins until a run without --limit."
        )
    keyless = [
        str(member["name"]) for member in everybody if member["name"] not in looks and not member.get("user_key")
    ]
    if keyless:
        warnings.append(f"The public key of {', '.join(keyless)} is not known; run without --limit to get it.")
    return warnings


def _word(value: object) -> str:
    """Return a value as ssh writes it: YAML's booleans become yes and no."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
