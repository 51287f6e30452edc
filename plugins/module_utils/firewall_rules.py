# SPDX-License-Identifier: Apache-2.0
"""Follow one new TCP connection through a ruleset of nftables, and name the rule that drops it.

The ruleset is the JSON of ``nft -j list ruleset``. It holds the rules of firewalld, of ufw and of iptables-nft, too. A
match that this module does not know counts as one that does not hold, so a rule is named only where all its matches are
known; a chain's policy may be named although an unknown rule before it accepts. ``Blocking.is_certain`` tells. A rule
that only counts or logs decides nothing, whatever it matches.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import subprocess
import sys
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

_DEEPEST = 32  # jumps; the kernel itself allows 16
_PORTS = range(32768, 61000)  # Linux hands these out; MPI and NCCL listen on them
_FINAL = ("drop", "reject")
_JUMPS = ("jump", "goto")
_VERDICTS = ("accept", "return", *_FINAL, *_JUMPS)
# By chain and match, whether it holds for a new packet to an address of the node.
_UFW_HIDES = {
    ("ufw-before-input", "conntrack"): False,  # established, or invalid
    ("ufw-not-local", "addrtype"): True,  # the first asks whether the address is local, and returns
    ("ufw-after-input", "addrtype"): False,  # broadcast
}
_SILENT = ("counter", "log", "comment")


class Packet(NamedTuple):
    """The first packet of a connection between two nodes, as the target sees it.

    ``port`` is the one that was tried. It stands for both ends' ports, because Linux mostly hands out both.
    """

    interface: str
    source: str
    target: str
    port: int = _PORTS[0]


class Blocking(NamedTuple):
    """The rule, or a chain's policy, that drops or rejects the packet.

    ``manager`` is firewalld, ufw or nftables, ``place`` the zone or the chain, ``rule`` the rule in words.
    ``is_certain`` is false where a rule with a match that is not known stands before.
    """

    manager: str
    place: str
    rule: str
    is_certain: bool


class _Chain(NamedTuple):
    family: str
    table: str
    name: str
    hook: str
    priority: int
    policy: str

    @property
    def key(self) -> Tuple[str, str, str]:
        return self.family, self.table, self.name


class _EndError(Exception):
    """The walk ends: ``blocked`` is the rule that ends it, None where a rule accepts."""

    def __init__(self, blocked: Optional[Tuple[_Chain, Mapping[str, Any]]]) -> None:
        super().__init__()
        self.blocked = blocked


def blocking(ruleset: Mapping[str, Any], packet: Packet) -> Optional[Blocking]:
    """Return what drops or rejects the packet on its way in; None if it comes through.

    Args:
        ruleset: the JSON of ``nft -j list ruleset``.
        packet: the connection.
    """
    chains: Dict[Tuple[str, str, str], _Chain] = {}
    rules: Dict[Tuple[str, str, str], List[Mapping[str, Any]]] = {}
    sets = _named_sets(ruleset)
    for entry in ruleset.get("nftables") or ():
        if "chain" in entry:
            found = _chain(entry["chain"])
            chains[found.key] = found
        elif "rule" in entry:
            rule = entry["rule"]
            its_sets = sets.get((rule["family"], rule["table"]), {})
            rule = {**rule, "expr": [_with_members(part, its_sets) for part in rule.get("expr") or ()]}
            rules.setdefault((rule["family"], rule["table"], rule["chain"]), []).append(rule)
    family = ipaddress.ip_address(packet.source).version
    wanted = ("inet", "ip" if family == 4 else "ip6")  # noqa: PLR2004 - IPv4
    bases = [one for one in chains.values() if one.hook == "input" and one.family in wanted]
    for base in sorted(bases, key=lambda one: one.priority):
        walk = _Walk(chains, rules, packet)
        found = walk.through(base)
        if found is not None:
            return found
    return None


def _named_sets(ruleset: Mapping[str, Any]) -> Dict[Tuple[str, str], Dict[str, List[Any]]]:
    """Return the members of the named sets of each table."""
    found: Dict[Tuple[str, str], Dict[str, List[Any]]] = {}
    for entry in ruleset.get("nftables") or ():
        its = entry.get("set")
        if its:
            members = [
                one["elem"]["val"] if isinstance(one, dict) and "elem" in one else one for one in its.get("elem", ())
            ]
            found.setdefault((its["family"], its["table"]), {})[f"@{its['name']}"] = members
    return found


def _with_members(part: Any, sets: Mapping[str, List[Any]]) -> Any:
    """Return an expression with the members of a named set in the place of its name."""
    if not (isinstance(part, dict) and "match" in part):
        return part
    right = part["match"].get("right")
    known = isinstance(right, str) and right in sets
    return {"match": {**part["match"], "right": {"set": sets[right]}}} if known else part


class _Walk:
    """The way of a packet through one base chain and those that it jumps to."""

    def __init__(
        self,
        chains: Mapping[Tuple[str, str, str], _Chain],
        rules: Mapping[Tuple[str, str, str], List[Mapping[str, Any]]],
        packet: Packet,
    ) -> None:
        self._chains, self._rules, self._packet = chains, rules, packet
        self._unknown = False

    def through(self, base: _Chain) -> Optional[Blocking]:
        """Return what stops the packet in this chain."""
        try:
            self._chain(base, 0)
        except _EndError as end:
            if end.blocked is None:
                return None
            chain, rule = end.blocked
            return self._named(chain, words(rule.get("expr") or ()))
        if base.policy == "drop":
            return self._named(base, "policy drop")
        return None

    def _named(self, chain: _Chain, rule: str) -> Blocking:
        manager, place = _manager(chain, self._chains)
        return Blocking(manager, place, rule, not self._unknown)

    def _chain(self, chain: _Chain, depth: int) -> None:
        """Walk a chain; a ``goto`` ends it, and the walk goes on where the chain was jumped to."""
        if depth > _DEEPEST:
            return
        for rule in self._rules.get(chain.key, ()):
            verdict = self._verdict(rule)
            if verdict is None:
                continue
            word, target = verdict
            if word == "accept":
                raise _EndError(None)
            if word in _FINAL:
                raise _EndError((chain, rule))
            if word == "return":
                return
            next_chain = self._chains.get((chain.family, chain.table, target))
            if next_chain is not None:
                self._chain(next_chain, depth + 1)
            if word == "goto":
                return

    def _verdict(self, rule: Mapping[str, Any]) -> Optional[Tuple[str, str]]:
        """Return the verdict of a rule whose matches all hold, with the chain that it names; None without one."""
        unknown = False
        for part in rule.get("expr") or ():
            (kind, value), *_rest = part.items() if isinstance(part, dict) else ((str(part), None),)
            if kind in (*_VERDICTS, "vmap"):
                self._unknown |= unknown
                if unknown or kind == "vmap":
                    return None if unknown else self._mapped(value)
                return kind, str(value["target"]) if kind in _JUMPS else ""
            if kind not in _SILENT:
                holds = _holds(value, self._packet) if kind == "match" else _hidden(rule, part)
                if holds is False:
                    return None
                unknown |= holds is None
        return None

    def _mapped(self, value: Mapping[str, Any]) -> Optional[Tuple[str, str]]:
        """Return the verdict of a map such as ``ct state vmap { established : accept }``."""
        data = value.get("data")
        for key, verdict in data.get("set", ()) if isinstance(data, dict) else ():
            if _holds({"op": "==", "left": value.get("key"), "right": key}, self._packet):
                (word, target), *_rest = verdict.items()
                return word, str(target["target"]) if target else ""
        self._unknown |= not (isinstance(data, dict) and "set" in data)
        return None


def _hidden(rule: Mapping[str, Any], part: Any) -> Optional[bool]:
    """Tell whether a match holds that iptables hides in nft's JSON, where ufw's own rules tell; None elsewhere."""
    its = part.get("xt") if isinstance(part, dict) else None
    name = its.get("name") if isinstance(its, dict) else None
    return _UFW_HIDES.get((str(rule.get("chain")).replace("ufw6-", "ufw-"), name))


def _chain(entry: Mapping[str, Any]) -> _Chain:
    priority = entry.get("prio")
    return _Chain(
        str(entry["family"]),
        str(entry["table"]),
        str(entry["name"]),
        str(entry.get("hook") or ""),
        priority if isinstance(priority, int) else 0,
        str(entry.get("policy") or ""),
    )


def _holds(match: Mapping[str, Any], packet: Packet) -> Optional[bool]:
    """Tell whether a match holds for the packet; None where it is not known."""
    value = _value(match.get("left"), packet)
    if value is None:
        return None
    inside = _among(value, match.get("right"))
    if inside is None:
        return None
    operator = match.get("op")
    if operator in ("==", "in"):
        return inside
    return not inside if operator == "!=" else None


def _value(left: Any, packet: Packet) -> Optional[str]:
    """Return the packet's value of an expression; None where it is not known."""
    kind, its = next(iter(left.items())) if isinstance(left, dict) else ("", None)
    its = its if isinstance(its, dict) else {}
    version = ipaddress.ip_address(packet.source).version
    if kind == "payload":
        protocol = str(its.get("protocol"))
        if protocol in ("ip", "ip6") and protocol != ("ip" if version == 4 else "ip6"):  # noqa: PLR2004 - IPv4
            return "of the other family"
        known = {"saddr": packet.source, "daddr": packet.target, "protocol": "tcp", "nexthdr": "tcp"}
        if protocol == "tcp" and its.get("field") in ("dport", "sport"):
            return str(packet.port)
        if protocol in ("udp", "icmp", "icmpv6", "sctp", "arp"):
            return "of another protocol"
        return known.get(str(its.get("field"))) if protocol in ("ip", "ip6") else None
    key = str(its.get("key"))
    if kind == "meta":
        family = "ipv4" if version == 4 else "ipv6"  # noqa: PLR2004 - IPv4
        return {"iifname": packet.interface, "iif": packet.interface, "l4proto": "tcp", "nfproto": family}.get(key)
    if kind == "fib" and its.get("result") == "type":
        key = str(its.get("flags")).strip("[']")
    # The nodes call each other's own addresses, so nothing is translated.
    known = {"ct": {"state": "new", "status": "untranslated"}, "fib": {"daddr": "local"}}
    return known.get(kind, {}).get(key)


def _among(value: str, right: Any) -> Optional[bool]:
    """Tell whether a value is the right side of a match, or within it; None where that is not known."""
    if isinstance(right, dict):
        (kind, its), *_rest = right.items()
        if kind == "prefix":
            return _in_network(value, f"{its['addr']}/{its['len']}")
        if kind == "range":
            low, high = its
            numbers = all(str(one).isdigit() for one in (value, low, high))
            return int(low) <= int(value) <= int(high) if numbers else _in_addresses(value, str(low), str(high))
        return _any(_among(value, one) for one in its) if kind == "set" else None
    if isinstance(right, list):
        return _any(_among(value, one) for one in right)
    text = str(right)
    if text.startswith("@"):
        return None  # a named set that the ruleset does not hold
    return value.startswith(text[:-1]) if text.endswith("*") else value == text


def _any(answers: Iterable[Optional[bool]]) -> Optional[bool]:
    found = list(answers)
    return True if True in found else None if None in found else False


def _in_network(value: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(value) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _in_addresses(value: str, low: str, high: str) -> bool:
    try:
        first, one, last = (ipaddress.ip_address(text) for text in (low, value, high))
    except ValueError:
        return False
    return first.version == one.version == last.version and int(first) <= int(one) <= int(last)


def _manager(chain: _Chain, chains: Mapping[Tuple[str, str, str], _Chain]) -> Tuple[str, str]:
    """Return who keeps a chain, and the place in that manager's words."""
    place = f"chain {chain.family} {chain.table} {chain.name}"
    if chain.table == "firewalld":
        for start in ("filter_IN_", "filter_FWDI_"):
            if chain.name.startswith(start):
                zone = chain.name[len(start) :]
                for end in ("_deny", "_allow", "_pre", "_post", "_log"):
                    zone = zone.removesuffix(end)
                return "firewalld", f"zone {zone}"
        return "firewalld", place
    table = [one.name for one in chains.values() if (one.family, one.table) == (chain.family, chain.table)]
    return ("ufw" if any(name.startswith(("ufw-", "ufw6-")) for name in table) else "nftables"), place


def words(expressions: Iterable[Any]) -> str:
    """Return a rule in nft's own words, as far as they are known."""
    return " ".join(filter(None, map(_word, expressions)))


def _word(part: Any) -> str:
    (kind, value), *_rest = part.items() if isinstance(part, dict) else ((str(part), None),)
    if kind == "match":
        operator = "" if value.get("op") in ("==", "in") else f"{value.get('op')} "
        return f"{_side(value.get('left'))} {operator}{_side(value.get('right'))}"
    if kind in ("jump", "goto"):
        return f"{kind} {value['target']}"
    if kind in _SILENT:
        return ""
    return kind


def _side(value: Any) -> str:
    if isinstance(value, list):
        return "{ " + ", ".join(map(_side, value)) + " }"
    if not isinstance(value, dict):
        return str(value)
    (kind, its), *_rest = value.items()
    shown = {
        "prefix": lambda: f"{its['addr']}/{its['len']}",
        "range": lambda: "-".join(map(str, its)),
        "set": lambda: _side(its),
        "payload": lambda: f"{its.get('protocol')} {its.get('field')}",
        "ct": lambda: f"ct {its.get('key')}",
        "meta": lambda: str(its.get("key")),
    }
    return shown[kind]() if kind in shown else kind


# The program: packets as JSON on stdin, one line of JSON as the answer.
#
# The rules are read by ``nft``, as root or through sudo without a password; otherwise ``problem`` says so.

_PLACES = "/usr/sbin:/sbin:/usr/bin:/bin"
_TIMEOUT_S = 10


def ruleset() -> "Tuple[Dict[str, Any], str]":
    """Return the ruleset, or {} and why it cannot be read."""
    program = shutil.which("nft", path=_PLACES)
    if program is None:
        return {}, "nft is not installed"
    argv = [program, "-j", "list", "ruleset"]
    try:
        done = subprocess.run(
            argv if os.geteuid() == 0 else ["sudo", "-n", *argv],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
        )
        return (json.loads(done.stdout), "") if done.returncode == 0 else ({}, "root alone may read the rules")
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return {}, f"the rules cannot be read ({type(error).__name__})"


def main(_arguments: List[str]) -> int:
    """Print the answer, and return 0."""
    request = json.loads(sys.stdin.buffer.read().decode("utf-8"))
    rules, problem = ruleset()
    found = [blocking(rules, Packet(**packet)) for packet in request["packets"]]
    answer = {"blocked": [one and one._asdict() for one in found], "problem": problem}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0
