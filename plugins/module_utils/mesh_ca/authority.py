# SPDX-License-Identifier: Apache-2.0
"""The certificate authority of one cluster: two encrypted keys in a folder of the controller, and what they signed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .. import config_line, disk_files
from . import certificates
from . import passphrase as passphrases

KINDS = ("user", "host")
# Keys that OpenSSH of every supported system reads, the preferred one first.
KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp521", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp256", "ssh-rsa")
GIVE = "give it by --ca-passphrase-file or --ask-ca-passphrase, or keep ssh_mesh_ca_passphrase in an Ansible vault"
_DAY_S = 86400
_LIFE_DAYS = 3650
_EARLY_S = 3600  # clocks of nodes may be behind
_AGENT_S = 900  # an agent forgets the keys after this, whatever became of the run


class AuthorityError(Exception):
    """The authority cannot do what was asked, and nothing was changed; the message names the cause and the cure."""


class Request(NamedTuple):
    """A certificate to be signed, and the nodes that will have it: several nodes may share a user's key."""

    nodes: Tuple[str, ...]
    wanted: certificates.Wanted


class Authority:
    """The authority in a folder, which may still be missing."""

    def __init__(self, folder: str, note: Callable[[str], None] = disk_files.on_stderr) -> None:
        """Take the folder, which is below the cluster's state folder, and what hears of a wait for another process."""
        self.folder = Path(folder).expanduser()
        self._note = note

    # --- what is there ------------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there is an authority, sound or not."""
        return self.folder.is_dir()

    def key_file(self, kind: str) -> Path:
        """Return the encrypted private key that signs users or hosts."""
        return self.folder / f"{kind}_ca"

    @property
    def _record_file(self) -> Path:
        return self.folder / "authority.json"

    def public(self, kind: str) -> str:
        """Return type and key of the authority.

        Raises:
            AuthorityError: the file cannot be read.
        """
        return " ".join(self._read(self.key_file(kind).with_suffix(".pub")).decode("ascii", "replace").split()[:2])

    def revoked(self) -> str:
        """Return the revoked keys, one a line, which every node gets.

        sshd refuses every login where it cannot read one of the lines, so a key of another type is left out.

        Raises:
            AuthorityError: the record cannot be read.
        """
        readable = [key for key in revoked_keys(self.record()) if key.partition(" ")[0] in KEY_TYPES]
        return "".join(f"{_line(key)}\n" for key in readable)

    def record(self) -> Dict[str, Any]:
        """Return what was signed and revoked.

        Raises:
            AuthorityError: the file cannot be read.
        """
        try:
            found = json.loads(self._read(self._record_file))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise AuthorityError(f"{self._record_file} is damaged; restore it from a backup of {self.folder}.")
        return found

    def _read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise AuthorityError(
                f"{path} of the cluster's certificate authority cannot be read: {error.strerror}; restore it from a "
                f"backup. Without one, set ssh_mesh_trust to keys, provision, and remove {self.folder}."
            ) from None

    def check(self, now: float) -> None:
        """Refuse an authority that lacks a file or has expired.

        Raises:
            AuthorityError: it cannot sign.
        """
        for kind in KINDS:
            self._read(self.key_file(kind))
            self.public(kind)
        expires = int(self.record().get("expires", 0))
        if now >= expires:
            when = time.strftime("%Y-%m-%d", time.gmtime(expires))
            raise AuthorityError(
                f"The certificate authority in {self.folder} expired on {when}; set ssh_mesh_trust to keys, provision, "
                "and remove the folder. Then ssh_mesh_trust: ca makes a new one."
            )

    def check_passphrase(self, passphrase: str) -> None:
        """Refuse a passphrase that does not open both keys.

        Raises:
            AuthorityError: it is wrong.
        """
        with self._asked(passphrase) as asked:
            self._open(asked)

    def _open(self, asked: passphrases.Asked) -> None:
        for kind in KINDS:
            path = self.key_file(kind)
            if asked.run(["ssh-keygen", "-y", "-f", str(path)]).returncode != 0:
                raise AuthorityError(
                    f"The passphrase does not open {path}; give the passphrase with which the authority was made."
                )

    # --- changes ------------------------------------------------------------------------------------------------------

    def create(self, passphrase: str, now: float) -> None:
        """Make both keys and the record: all or none.

        Raises:
            AuthorityError: the folder cannot be written.
            PassphraseError: the passphrase is too short.
        """
        passphrases.check_new(passphrase)
        place = self.folder.parent
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            for left in place.glob(f".{self.folder.name}-new-*"):
                shutil.rmtree(left, ignore_errors=True)
            scratch = Path(tempfile.mkdtemp(prefix=f".{self.folder.name}-new-", dir=place))
        except OSError as error:
            raise AuthorityError(f"{place} cannot be written: {error.strerror}.") from None
        try:
            new = Authority(str(scratch))
            with passphrases.asked(scratch, passphrase) as asked:
                for kind in KINDS:
                    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-C", f"clusterctl {kind} authority"]
                    _check(asked.run([*argv, "-f", str(new.key_file(kind))]))
            start = int(now)
            new._write({"created": start, "expires": start + _LIFE_DAYS * _DAY_S, "serial": 0})
            for path in scratch.iterdir():
                path.chmod(0o600)
            scratch.rename(self.folder)
        except OSError as error:
            raise AuthorityError(f"{self.folder} cannot be made: {error.strerror}.") from None
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def sign(self, requests: Sequence[Request], passphrase: str, now: float, days: int) -> List[str]:
        """Sign certificates and write down what was signed.

        Returns:
            The certificates, in the order of the requests.

        Raises:
            AuthorityError: the passphrase is wrong, or a node or a key is revoked.
        """
        with self._locked() as record:
            back = [node for request in requests for node in request.nodes if _returns(record, node)]
            for node in dict.fromkeys(back):
                del record["revoked"][node]
            self._refuse_revoked(requests, record)
            after, before = int(now) - _EARLY_S, int(now) + days * _DAY_S
            with self._asked(passphrase) as asked:
                self._open(asked)
                with self._agent(asked) as socket, tempfile.TemporaryDirectory(dir=self.folder) as scratch:
                    signed = []
                    for request in requests:
                        record["serial"] += 1
                        signed.append(self._sign(request, record["serial"], (after, before), Path(scratch), socket))
            first = record["serial"] - len(requests) + 1
            for serial, request in enumerate(requests, first):
                _note(record, request, {"serial": serial, "valid_after": after, "valid_before": before}, now)
            done = {node for request in requests for node in request.nodes}
            record["renew"] = [node for node in record.get("renew", []) if node not in done]
            self._write(record)
        return signed

    def revoke(self, nodes: Sequence[str], now: float, *, returns: bool = False) -> None:
        """Put all keys for which the nodes have had certificates into the revocation list.

        Args:
            nodes: their names.
            now: seconds since 1970.
            returns: whether a node may come back with its keys, because it only left the inventory.

        Raises:
            AuthorityError: a node never had a certificate.
        """
        with self._locked() as record:
            unknown = [node for node in nodes if not record.get("keys", {}).get(node)]
            if unknown:
                raise AuthorityError(
                    f"{', '.join(unknown)} has no certificate of this cluster; 'clusterctl ca show' names the nodes."
                )
            for node in nodes:
                entry = record.setdefault("revoked", {}).setdefault(node, {"at": int(now), "keys": []})
                entry["keys"] = sorted({*entry["keys"], *record["keys"][node]})
                entry.update(barred=not returns, returns=returns)
            self._write(record)

    def sharing(self, nodes: Sequence[str]) -> List[str]:
        """Return the other nodes whose present keys are also keys of these nodes, and are revoked with them.

        Raises:
            AuthorityError: the record cannot be read.
        """
        record = self.record()
        theirs = {key for node in nodes for key in record.get("keys", {}).get(node, ())}
        issued = record.get("issued", {}).items()
        return [node for node, its in issued if node not in nodes and any(one["key"] in theirs for one in its.values())]

    def leave(self, inventory: Sequence[str], now: float) -> List[str]:
        """Revoke the nodes that are no longer in the inventory; returns their names."""
        record = self.record()
        gone = [node for node in record.get("keys", {}) if node not in inventory]
        gone = [node for node in gone if record["keys"][node] and node not in record.get("revoked", {})]
        if gone:
            self.revoke(gone, now, returns=True)
        return gone

    def forget(self, nodes: Sequence[str]) -> None:
        """Mark the certificates of these nodes as due, and let revoked ones in again with new keys.

        Raises:
            AuthorityError: the record cannot be written.
        """
        with self._locked() as record:
            record["renew"] = sorted({*record.get("renew", []), *nodes})
            for node in nodes:
                if node in record.get("revoked", {}):
                    record["revoked"][node].update(barred=False, returns=False)
            self._write(record)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _sign(self, request: Request, serial: int, life: Tuple[int, int], scratch: Path, socket: str) -> str:
        wanted = request.wanted
        public = scratch / f"{serial}.pub"
        public.write_text(f"{_line(wanted.key)}\n")
        argv = ["ssh-keygen", "-q", "-U", "-s", str(self.key_file(wanted.kind).with_suffix(".pub"))]
        argv += ["-I", wanted.key_id, "-n", ",".join(wanted.principals), "-z", str(serial)]
        argv += ["-V", ":".join(time.strftime("%Y%m%d%H%M%S", time.gmtime(moment)) for moment in life)]
        if wanted.kind == "host":
            argv.append("-h")
        else:
            argv += ["-O", "clear", *(word for name in wanted.permits for word in ("-O", name))]
            if wanted.source_addresses:
                argv += ["-O", f"source-address={','.join(wanted.source_addresses)}"]
        done = passphrases.run([*argv, str(public)], {"SSH_AUTH_SOCK": socket})
        if done.returncode != 0:
            raise AuthorityError(
                f"The {wanted.kind} key of {', '.join(request.nodes)} cannot be signed ({_last_line(done)}); look at "
                "the key there, or leave the node out of the inventory."
            )
        return (scratch / f"{serial}-cert.pub").read_text()

    @contextlib.contextmanager
    def _agent(self, asked: passphrases.Asked) -> Iterator[str]:
        """Return the socket of an agent of this block's own that has both keys; it ends with this process."""
        with tempfile.TemporaryDirectory(prefix="clusterctl-") as place:  # short: a socket's path has 107 bytes
            socket = f"{place}/agent"
            # The agent ends when its child does, and the child when the pipe closes, also after a kill -9 of this one.
            argv = ["ssh-agent", "-t", str(_AGENT_S), "-a", socket, "sh", "-c", 'echo "$SSH_AGENT_PID"; exec cat']
            try:
                child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            except OSError as error:
                raise AuthorityError(f"ssh-agent cannot be started on the controller: {error.strerror}.") from None
            with child:
                said = child.stdout.readline().strip() if child.stdout else ""
                try:
                    for kind in KINDS:
                        _check(asked.run(["ssh-add", "-q", str(self.key_file(kind))], SSH_AUTH_SOCK=socket))
                    yield socket
                finally:
                    if said.isdecimal():
                        with contextlib.suppress(OSError):
                            os.kill(int(said), signal.SIGTERM)
                    if child.stdin:
                        child.stdin.close()
                    child.wait()

    @contextlib.contextmanager
    def _asked(self, passphrase: str) -> Iterator[passphrases.Asked]:
        with passphrases.asked(self.folder, passphrase) as asked:
            yield asked

    def _refuse_revoked(self, requests: Sequence[Request], record: Mapping[str, Any]) -> None:
        refuse_barred([node for request in requests for node in request.nodes], record)
        keys = set(revoked_keys(record))
        for request in requests:
            if request.wanted.key in keys:
                names = ", ".join(request.nodes)
                raise AuthorityError(
                    f"The {request.wanted.kind} key of {names} is revoked; make a new one on {names} (remove the old "
                    "file), then provision again."
                )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Dict[str, Any]]:
        """Return the record while other processes wait."""
        with contextlib.ExitStack() as lock:
            waiting = f"waiting for another process that uses the certificate authority {self.folder}"
            try:
                lock.enter_context(disk_files.held(self.folder / "lock", waiting, self._note, mode=0o600))
            except OSError as error:
                raise AuthorityError(f"{self.folder} cannot be written: {error.strerror}.") from None
            yield self.record()

    def _write(self, record: Mapping[str, Any]) -> None:
        try:
            disk_files.write(self._record_file, json.dumps(record, indent=1, sort_keys=True), mode=0o600)
        except OSError as error:
            raise AuthorityError(f"{self._record_file} cannot be written: {error.strerror}.") from None


def refuse_barred(nodes: Sequence[str], record: Mapping[str, Any]) -> None:
    """Refuse nodes that were revoked and not let in again.

    Raises:
        AuthorityError: one of them is revoked.
    """
    barred = [node for node in nodes if record.get("revoked", {}).get(node, {}).get("barred")]
    if barred:
        names = ", ".join(dict.fromkeys(barred))
        raise AuthorityError(
            f"{names} is revoked; take it out of the inventory. After it was installed again with new keys, "
            f"'clusterctl ca renew INVENTORY {' '.join(dict.fromkeys(barred))}' lets it in."
        )


def refuse_unready(
    authority: Authority,
    hosts: Sequence[str],
    passphrase: str,
    now: float,
    *,
    anew: bool = False,
    barred: bool = False,
) -> None:
    """Refuse what would end a run later, before anything is changed.

    Args:
        authority: it may be missing, and is made later.
        hosts: those that the run visits.
        passphrase: '' where it is not given.
        now: seconds since 1970.
        anew: whether the hosts get new certificates in any case.
        barred: whether revoked hosts are let in again.

    Raises:
        AuthorityError: the authority is damaged or expired, the passphrase is wrong or missing, or a host is revoked.
        PassphraseError: the passphrase is too short for a new authority.
    """
    if not authority.exists:
        if not passphrase:
            raise AuthorityError(f"The passphrase of the new certificate authority is missing; {GIVE}.")
        passphrases.check_new(passphrase)
        return
    authority.check(now)
    record = authority.record()
    if not barred:
        refuse_barred(hosts, record)
    if passphrase:
        authority.check_passphrase(passphrase)
        return
    without = hosts if anew else needing(record, hosts, now)
    if without:
        who = ", ".join(without)
        raise AuthorityError(
            f"The certificates of {who} have to be signed, and the authority's passphrase is missing; {GIVE}."
        )


def needing(record: Mapping[str, Any], nodes: Sequence[str], now: float) -> List[str]:
    """Return the nodes that others refuse until they have new certificates."""

    def has_valid(node: str) -> bool:
        entries = record.get("issued", {}).get(node, {})
        return len(entries) == len(KINDS) and all(one["valid_before"] > now for one in entries.values())

    return [node for node in nodes if _returns(record, node) or not has_valid(node)]


def expiring(record: Mapping[str, Any], nodes: Sequence[str], now: float) -> Dict[str, Optional[int]]:
    """Return the nodes whose certificates have to be signed anew, with the time when the first expires; None: asked."""
    found: Dict[str, Optional[int]] = {}
    for node in nodes:
        entries = list(record.get("issued", {}).get(node, {}).values())
        spans = [(one["valid_after"], one["valid_before"]) for one in entries]
        due = [before for after, before in spans if certificates.is_due(after, before, int(now))]
        if due:
            found[node] = min(due)
        elif node in record.get("renew", ()) or _returns(record, node):
            found[node] = None
    return found


def _note(record: Dict[str, Any], request: Request, entry: Dict[str, Any], now: float) -> None:
    """Write a new certificate into the record, and forget keys whose certificates have all expired."""
    wanted = request.wanted
    superseded = {key: end for key, end in record.get("superseded", {}).items() if end >= now}
    for node in request.nodes:
        before = record.setdefault("issued", {}).setdefault(node, {}).get(wanted.kind, {})
        if before.get("key", wanted.key) != wanted.key:
            superseded[before["key"]] = before["valid_before"]
        record["issued"][node][wanted.kind] = {"key": wanted.key, **entry}
        keys = record.setdefault("keys", {}).setdefault(node, {})
        keys[wanted.key] = entry["valid_before"]
        for key in [key for key, end in keys.items() if end < now]:
            del keys[key]
    record["superseded"] = superseded


def revoked_keys(record: Mapping[str, Any]) -> List[str]:
    """Return the keys that no node accepts: those of revoked nodes, and those that a node has replaced.

    A replaced key that another node has is not among them: a node may claim any key to be its own.
    """
    of_nodes = {key for entry in record.get("revoked", {}).values() for key in entry["keys"]}
    in_use = {one["key"] for its in record.get("issued", {}).values() for one in its.values()}
    return sorted(of_nodes | (set(record.get("superseded", {})) - in_use))


def _returns(record: Mapping[str, Any], node: str) -> bool:
    return bool(record.get("revoked", {}).get(node, {}).get("returns"))


def _line(key: str) -> str:
    try:
        return config_line.checked(key, "A key of a node")
    except config_line.LineError as error:
        raise AuthorityError(f"{error}.") from None


def _check(done: "subprocess.CompletedProcess[str]") -> None:
    if done.returncode != 0:
        raise AuthorityError(f"{done.args[0]} failed on the controller: {_last_line(done)}.")


def _last_line(done: "subprocess.CompletedProcess[str]") -> str:
    return (done.stderr.strip().splitlines() or ["no reason given"])[-1]
