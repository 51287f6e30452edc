# SPDX-License-Identifier: Apache-2.0
"""Compute the text of authorized_keys, known_hosts and the ssh client's drop-in from the members of a mesh.

Reads and writes nothing. The controller uses it for the plan and nodes for the message of a failed login, so it needs
only Python 3.9 and the standard library.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

from . import config_line, ip_address

MARKER = "ssh_mesh"
SSH_PORT = 22
_TAG = "clusterctl:"
# Each value that goes into a line of a configuration file must be one word of these characters.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\$?")
_KEY = re.compile(r"(?:ssh|ecdsa|sk)-[a-z0-9@.-]{1,60} [A-Za-z0-9+/]{1,16000}={0,3}")
_KEY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_OPTION = re.compile(r'[A-Za-z0-9-]+(?:="[^"\\\x00-\x1f\x7f-\x9f]*")?')
_AUTHORIZED = re.compile(rf"(?:^|\s)({_KEY.pattern}) {_TAG}({_NAME.pattern})$")
_FROM = re.compile(r'(?:^|,)from="([0-9A-Fa-f.:,]*)"')
# A mesh key opens a session with or without a terminal. It forwards no port, no agent and no X11.
_RESTRICTED = ("restrict", "pty")

Member = Dict[str, Any]


class MeshError(Exception):
    """The mesh cannot be planned; the message is one sentence that names the cause.

    ``hosts`` are the nodes whose own answers are the cause; it is empty where that is not known.
    """

    def __init__(self, message: str, hosts: Sequence[str] = ()) -> None:
        """Keep the hosts beside the message."""
        super().__init__(message)
        self.hosts = tuple(hosts)


class Options(NamedTuple):
    """The choices of the role's variables."""

    key_name: str = "id_clusterctl"
    key_options: Sequence[str] = ()
    from_members_only: bool = True
    strict_host_keys: bool = True
    client_options: Mapping[str, str] = {}
    verify: str = "ring"
    trust: str = "keys"


# --- checks of the input ---------------------------------------------------------------------------------------------


def check_members(members: Sequence[Mapping[str, Any]]) -> None:
    """Refuse members that the files could not hold correctly.

    Raises:
        MeshError: the list is empty, a name is repeated, or a name, address, port or key is invalid.
    """
    if not members:
        raise MeshError("ssh_mesh_members is empty; set it to the list that preflight makes (preflight_members).")
    for name, count in Counter(str(member.get("name")) for member in members).items():
        if count > 1:
            raise MeshError(f"ssh_mesh_members has {name} {count} times; list each node once.")
    for member in members:
        for problem in _malformed(member):
            name = member.get("name")
            raise MeshError(f"In ssh_mesh_members, {_shown(name)} has {problem}.", [str(name)])


def _malformed(member: Mapping[str, Any]) -> Iterable[str]:
    for word in (member.get("name"), *member.get("aliases", ())):
        if not _NAME.fullmatch(str(word)):
            yield f"the invalid host name {_shown(word)}"
    for address in (member.get("address"), *member.get("addresses", ())):
        if not ip_address.is_address(address):
            yield f"the invalid address {_shown(address)}"
    port = member.get("port", SSH_PORT)
    if not isinstance(port, int) or not 0 < port < 65536:  # noqa: PLR2004 - ports have 16 bits
        yield f"the invalid port {_shown(port)}"
    for key in (*member.get("host_keys", ()), *filter(None, [member.get("user_key")])):
        if not _KEY.fullmatch(str(key)):
            yield f"the invalid public key {_shown(key)}"


def _shown(value: object) -> str:
    return config_line.shown(str(value))


def check_options(user: str, options: Options) -> None:
    """Refuse choices that would break the files that hold them.

    Raises:
        MeshError: the user, the key's file name or a key option is malformed.
    """
    if not _USER.fullmatch(user):
        raise MeshError(f"ssh_mesh_user is {user!r}, which is not a valid user name.")
    if not _KEY_NAME.fullmatch(options.key_name):
        raise MeshError(f"ssh_mesh_key_name is {options.key_name!r}; give the bare name of a file in ~/.ssh.")
    for option in options.key_options:
        if not _OPTION.fullmatch(option):
            raise MeshError(f"ssh_mesh_key_options has {option!r}; see AUTHORIZED_KEYS FILE FORMAT in sshd(8).")
    for name, value in options.client_options.items():
        if not re.fullmatch(r"[A-Za-z0-9]+", name):
            raise MeshError(f"ssh_mesh_client_options has {name!r}; see ssh_config(5) for the names.")
        _field(value, f"{name} of ssh_mesh_client_options", refused="")


# --- what a node remembers -------------------------------------------------------------------------------------------


def remembered_lines(block: Iterable[str], names: Iterable[str]) -> List[str]:
    """Return the lines of a managed block (authorized_keys or known_hosts) that are about these hosts."""
    wanted = set(names)
    return [line for line in block if _owner(line) in wanted]


def key_lines(block: Iterable[str]) -> List[str]:
    """Return the lines of a block that are keys of nodes: authorized_keys is its user's, who tells no host keys."""
    return [line for line in block if _AUTHORIZED.search(line)]


def _owner(line: str) -> str:
    """Return the member that a line is about; '' for a line without a member."""
    words = line.split()
    if not words or words[0].startswith("#"):
        return ""
    found = _AUTHORIZED.search(line)
    if found:
        return found.group(2)
    return _place(words[0].split(",")[0])[0]


def _place(word: str) -> Tuple[str, int]:
    """Split ``[name]:port`` of a known_hosts line."""
    found = re.fullmatch(r"\[([^\]]+)\]:(\d+)", word)
    return (found.group(1), int(found.group(2))) if found else (word, SSH_PORT)


def recall(lines: Iterable[str], names: Mapping[str, Sequence[str]]) -> Dict[str, Member]:
    """Rebuild hosts from the lines that one node has about them; they are for that node's own files alone.

    A node may remember anything. So what it says of other machines reaches no third one, and is never counted.

    Args:
        lines: of both its blocks.
        names: by host of the inventory the aliases that it may have; other hosts are forgotten.

    Returns:
        By name: name, address, port, aliases, host_keys and user_key, as far as the lines hold them. A host with a
        malformed value is left out.
    """
    per_host: Dict[str, List[str]] = {}
    for line in lines:
        per_host.setdefault(_owner(line), []).append(line)
    found = {name: _rebuilt(name, its, names[name]) for name, its in per_host.items() if name in names}
    # Without lines of known_hosts a host has no address; it may still have a key.
    return {name: one for name, one in found.items() if not any(_malformed({**one, "address": one["address"] or "::"}))}


def _rebuilt(name: str, lines: Sequence[str], names: Sequence[str]) -> Member:
    member: Member = {"name": name, "address": "", "port": SSH_PORT, "aliases": [], "host_keys": []}
    for line in lines:
        found = _AUTHORIZED.search(line)
        if found:
            member["user_key"] = found.group(1)
            sources = _FROM.search(line)
            member["addresses"] = (
                [word for word in sources.group(1).split(",") if ip_address.is_address(word)] if sources else []
            )
            continue
        words = line.split()
        member["host_keys"].append(" ".join(words[1:3]))
        for word, port in map(_place, words[0].split(",")):
            member["port"] = port
            if ip_address.is_address(word):
                member["address"] = word
            elif word != name and word in names and word not in member["aliases"]:
                member["aliases"].append(word)
    return member


def complete(
    members: Sequence[Mapping[str, Any]],
    fresh: Mapping[str, str],
    recalled: Mapping[str, Member],
    inventory: Iterable[str],
) -> List[Member]:
    """Return every host that files name: the members with their known keys, and the hosts that a node remembers.

    Args:
        members: the list of preflight; it may hold a ``user_key`` of an earlier run.
        fresh: public keys of the nodes of this run, by name.
        recalled: the hosts that one node remembers, for its own files; {} for the files of all.
        inventory: names of all hosts of the inventory; only they may be remembered.
    """
    found: List[Member] = []
    for member in members:
        name = str(member["name"])
        key = fresh.get(name) or member.get("user_key") or recalled.get(name, {}).get("user_key")
        entry = {key_: value for key_, value in member.items() if key_ != "user_key"}
        entry.setdefault("addresses", recalled.get(name, {}).get("addresses", []))
        found.append({**entry, "user_key": key} if key else entry)
    named = {str(member["name"]) for member in members}
    # A remembered host without an address has lost its known_hosts lines, so its block cannot be written.
    found += [
        recalled[name] for name in inventory if name not in named and name in recalled and recalled[name]["address"]
    ]
    return found


# --- the files -------------------------------------------------------------------------------------------------------


def authorized_keys(members: Sequence[Mapping[str, Any]], options: Options) -> str:
    """Return the managed block of authorized_keys, one line per member whose key is known.

    A line accepts a key from its own node alone. Nodes with a common home share a key, which sshd finds in its first
    line, so that line accepts the key from all of them.
    """
    sources = source_addresses(members)
    lines = []
    told = set()
    for member in members:
        key = member.get("user_key")
        if not key:
            continue
        words = list(dict.fromkeys([*_RESTRICTED, *options.key_options]))
        if options.from_members_only:
            owners = [member] if key in told else [one for one in members if one.get("user_key") == key]
            accepted = dict.fromkeys(word for owner in owners for word in sources[str(owner["name"])])
            words.append(f'from="{",".join(accepted)}"')
        told.add(key)
        owner = _field(member["name"], "The name of a node in authorized_keys")
        lines.append(f"{','.join(words)} {_field(key, f'The key of {owner} in authorized_keys')} {_TAG}{owner}\n")
    return "".join(lines)


def source_addresses(members: Sequence[Mapping[str, Any]]) -> Dict[str, List[str]]:
    """Return by name the addresses that a member's connections may come from: the cluster address, then the others.

    An address that several members have, such as that of Docker's bridge, never reaches another node.
    """
    own = {str(member["name"]): _own_addresses(member) for member in members}
    owners = Counter(word for its in own.values() for word in its)
    return {name: [word for word in its if owners[word] == 1 or word == its[0]] for name, its in own.items()}


def _own_addresses(member: Mapping[str, Any]) -> List[str]:
    """Return the cluster address, which the inventory decides, and then what the node says that it has besides.

    Of the latter, an address counts only if a connection of another node may come from it.
    """
    own = [ip_address.parsed(one) for one in member.get("addresses", ()) if ip_address.is_address(one)]
    return list(dict.fromkeys([_address(member), *(str(one) for one in own if ip_address.is_source(one))]))


def _address(member: Mapping[str, Any]) -> str:
    """Return a member's cluster address in its one spelling.

    Raises:
        MeshError: it is not an address.
    """
    try:
        return ip_address.canonical(member["address"])
    except ValueError as error:
        raise MeshError(f"The address of {_shown(member['name'])}: {error}; run preflight again.") from None


def known_hosts(members: Sequence[Mapping[str, Any]]) -> str:
    """Return the managed block of ssh_known_hosts: every name, alias and address of a member for each of its keys.

    A key is valid for the port on which it was seen. A port other than 22 is written ``[name]:port``.
    """
    lines = []
    for member in members:
        port = _port(member)
        words = [word if port == str(SSH_PORT) else f"[{word}]:{port}" for word in _words(member)]
        field = f"A host key of {words[0]} in ssh_known_hosts"
        lines += [f"{','.join(words)} {_field(key, field)}\n" for key in member.get("host_keys", ())]
    return "".join(lines)


def client_config(members: Sequence[Mapping[str, Any]], user: str, options: Options) -> str:
    """Return the ssh client's drop-in: each member's address, the trusted host keys, and the key to offer.

    Every part holds for the cluster's user alone. Other users of the node keep their ssh as it is.
    """
    everybody = [word for member in members for word in _words(member)]
    lines = [
        "# Written by clusterctl (role ssh_mesh); changes are overwritten.",
        f"# Only user {user} is affected.",
        "",
    ]
    for member in members:
        lines.append(_match(user, _words(member)))
        lines.append(f"    HostName {_address(member)}")
        if _port(member) != str(SSH_PORT):
            lines.append(f"    Port {_port(member)}")
    lines += [
        "",
        _match(user, everybody),
        *(f"    {setting}" for setting in client_settings(options)),
    ]
    return "\n".join(lines) + "\n"


def client_settings(options: Options) -> List[str]:
    """Return the settings of the ssh client for logins to the cluster's hosts."""
    return [
        f"StrictHostKeyChecking {'yes' if options.strict_host_keys else 'no'}",
        "GlobalKnownHostsFile /etc/ssh/ssh_known_hosts",
        # A key that a user accepted by hand is not one that the controller has verified.
        "UserKnownHostsFile /dev/null",
        "UpdateHostKeys no",
        *[
            _field(f"{name} {value}", "A line of ssh_mesh_client_options", refused="")
            for name, value in options.client_options.items()
        ],
        f"IdentityFile ~/.ssh/{options.key_name}",
        "IdentitiesOnly yes",
        "PreferredAuthentications publickey",
    ]


def _match(user: str, words: Iterable[str]) -> str:
    return f"Match localuser {user} originalhost {','.join(words)}"


def _words(member: Mapping[str, Any]) -> List[str]:
    names = [str(member["name"]), *map(str, member.get("aliases", ()))]
    return list(
        dict.fromkeys(
            [*(_field(one, "A name of a node in a file of ssh", refused='"\\ ,') for one in names), _address(member)]
        )
    )


def _port(member: Mapping[str, Any]) -> str:
    return _field(member.get("port", SSH_PORT), "A port of a node in a file of ssh", refused='"\\ ')


def _field(value: object, field: str, *, refused: str = '"\\') -> str:
    """Return a value that goes into a line of a file of ssh.

    Raises:
        MeshError: it would leave its line, or has one of the refused characters.
    """
    try:
        return config_line.checked(str(value), field, refused=refused)
    except config_line.LineError as error:
        raise MeshError(f"{error}.") from None


# --- the proof -------------------------------------------------------------------------------------------------------


def logins(visited: Sequence[str], mode: str) -> Dict[str, List[str]]:
    """Return the targets of each node's logins: ``ring`` the next visited node, ``all`` every one, ``none`` no node."""
    if mode == "none":
        return {name: [] for name in visited}
    if mode == "all":
        return {name: list(visited) for name in visited}
    return {name: [visited[(index + 1) % len(visited)]] for index, name in enumerate(visited)}


_LOGIN_FAILURES = (
    (
        r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED|No \S+ host key is known",
        "it shows a host key that the controller has not verified; find out which machine answers there",
    ),
    (
        r"Permission denied",
        "its sshd refuses the key of user {user}; check its sshd_config, the modes of the home, and its log",
    ),
    (
        r"again and again|\(through Proxy",
        "remove that setting of ssh, or limit it to other machines with a Host line",
    ),
    (r"Could not resolve hostname", "its name cannot be resolved; check the client's drop-in in /etc/ssh/ssh_config.d"),
    (
        r"refused|No route to host|unreachable|timed? ?out|Connection (?:closed|reset)",
        "look for a firewall between the two, or set cluster_address or cluster_port to where they reach each other",
    ),
    (r"not available|nologin", "user {user} has no login shell there; set one with usermod"),
)


def overruled_warning(origin: str, user: str, what: str) -> str:
    """Return a sentence about a setting that wins over those of the mesh."""
    return (
        f"On {origin}, {what} wins over the ssh mesh for user {user}; limit it to other machines with a Host line, or "
        "remove it."
    )


def login_failure(origin: str, target: Mapping[str, Any], user: str, said: str) -> str:
    """Return a sentence about a failed login that names both ends and the cure.

    Args:
        origin: the node that tried.
        target: name, address and port, and ``obstacles``, the settings of the target that may refuse a login.
        user: the user who logs in.
        said: what ssh wrote to stderr, or how it ended.
    """
    telling = next(
        (cure for pattern, cure in _LOGIN_FAILURES if re.search(pattern, said, re.IGNORECASE)),
        "ssh gives no other reason",
    )
    last = (said.strip().splitlines() or ["no answer"])[-1].strip().rstrip(".")
    where = f"{target['name']} ({target['address']} port {target.get('port', SSH_PORT)})"
    found = "".join(f" On {target['name']}: {one}." for one in target.get("obstacles", ()))
    return f"{origin} cannot open a shell on {where}: {last}; {telling.format(user=user)}.{found}"
