"""Sign and verify statements with OpenSSH's ssh-keygen: the site's key signs, a file of allowed signers decides."""

from __future__ import annotations

import math
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from clusterctl.model.shared_cache import NAMESPACE, Envelope
from clusterctl.state import paths
from clusterctl.support import held_files
from clusterctl.support.errors import ConfigError, RefusedContentError, UnreachableError

_LIMIT_S = 60
_TYPING_S = 600  # a passphrase or the touch of a token
_FINGERPRINT = re.compile(r"\bkey (SHA256:[A-Za-z0-9+/=]+)")


def signers_file(asked: str) -> Path:
    """Return the file of allowed signers.

    ``asked`` is the file that the user named; empty for the one in the configuration folder.

    Raises:
        ConfigError: it is missing, empty, or others can change it.
    """
    path = Path(asked).expanduser() if asked else paths.allowed_signers()
    try:
        state = path.stat()
        text = path.read_bytes().decode("utf-8", "replace")  # as text, a line would also end at \r
    except OSError as error:
        raise ConfigError(
            f"The file of allowed signers {path} cannot be read ({error.strerror}), so nothing tells whose packs to"
            " take; write a line 'NAME PUBLIC-KEY' for each site that you trust, or name the file with --signers."
        ) from None
    if state.st_uid not in {0, os.geteuid()} or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"Other users can change the file of allowed signers {path}; run 'chmod go-w {path}' as you.")
    if not any(line.strip() and not line.lstrip().startswith("#") for line in text.split("\n")):
        raise ConfigError(
            f"The file of allowed signers {path} names nobody; write 'NAME PUBLIC-KEY' of a site into it."
        )
    return path


class Signer:
    """The site's key."""

    def __init__(self, asked: str) -> None:
        """Use a key.

        ``asked`` is the private key, or a public key whose private half an agent holds; empty for the one in the
        configuration folder.

        Raises:
            ConfigError: there is no such key, others can read it, or ssh-keygen is missing.
        """
        self.key = Path(asked).expanduser() if asked else paths.signing_key()
        if not self.key.is_file():
            raise ConfigError(
                f"The signing key {self.key} does not exist; make it with"
                f" 'ssh-keygen -t ed25519 -f {paths.signing_key()}', or name another with --signing-key."
            )
        program()

    def sign(self, statements: Sequence[bytes]) -> list[Envelope]:
        """Return the statements with their signatures; a passphrase is asked for once.

        Raises:
            ConfigError: the key cannot sign.
        """
        if not statements:
            return []
        with held_files.folder() as folder:
            files = []
            for number, statement in enumerate(statements):
                files.append(folder / f"{number}")
                files[-1].write_bytes(statement)
            argv = ["-Y", "sign", "-f", str(self.key), "-n", NAMESPACE, *map(str, files)]
            # the terminal stays its own, because ssh-keygen asks there for a passphrase
            done = _run(argv, limit_s=_TYPING_S, stdin=None)
            signatures = [file.with_name(f"{file.name}.sig") for file in files]
            if done.returncode or not all(signature.is_file() for signature in signatures):
                raise ConfigError(
                    f"The key {self.key} could not sign ({_last_line(done.stderr)}); check its passphrase and mode, or"
                    " load it into ssh-agent and name its public half with --signing-key."
                )
            return [
                Envelope(statement, signature.read_text(encoding="ascii"))
                for statement, signature in zip(statements, signatures, strict=True)
            ]

    def public_key(self) -> str:
        """Return the public half as one line.

        Raises:
            ConfigError: it cannot be read.
        """
        beside = self.key if self.key.suffix == ".pub" else self.key.with_name(f"{self.key.name}.pub")
        if beside.is_file():
            return beside.read_text(encoding="utf-8").strip()
        done = _run(["-y", "-f", str(self.key)], limit_s=_TYPING_S, stdin=None)
        if done.returncode:
            raise ConfigError(f"The public half of {self.key} cannot be read ({_last_line(done.stderr)}).")
        return done.stdout.decode("ascii", "replace").strip()


class SignatureVerifier:
    """Says whether a signature is of an allowed signer."""

    def __init__(self, signers: Path | None, own: str = "", within_s: float = math.inf) -> None:
        """Trust the signers of a file, and a key of one's own.

        ``own`` is a public key that is trusted as well. ``within_s`` is the time for all signatures together.

        Raises:
            ConfigError: ssh-keygen is missing.
        """
        self.signers, self._end = signers, time.monotonic() + within_s
        self._lines = signers.read_bytes().decode("utf-8", "replace") if signers else ""
        self._lines += f'\nown namespaces="{NAMESPACE}" {own}\n' if own else ""
        program()

    def check(self, envelope: Envelope, what: str) -> str:
        """Return the name of the signer.

        Raises:
            RefusedContentError: it is unsigned, changed, or signed by somebody else.
            UnreachableError: the time is up.
        """
        if time.monotonic() > self._end:
            raise UnreachableError(f"There was no time to verify {what}, after so many others; look at that place.")
        if not envelope.signature:
            raise RefusedContentError(f"{what} carries no signature, so it is not taken; have its site push it again.")
        with held_files.folder() as folder:
            signers, signature = folder / "signers", folder / "signature"
            signers.write_bytes(self._lines.encode())
            signature.write_text(envelope.signature, encoding="utf-8", errors="replace")
            found = _run(["-Y", "find-principals", "-f", str(signers), "-s", str(signature)])
            for principal in found.stdout.decode("utf-8", "replace").split("\n"):
                argv = ["-Y", "verify", "-f", str(signers), "-I", principal, "-n", NAMESPACE, "-s", str(signature)]
                if principal and _run(argv, envelope.statement).returncode == 0:
                    return principal
            made = _run(["-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(signature)], envelope.statement)
        if made.returncode:
            raise RefusedContentError(
                f"The signature of {what} does not fit its content, so it is not taken; have its site push it again,"
                " and find out who changed it."
            )
        told = _FINGERPRINT.search(made.stdout.decode("utf-8", "replace"))
        raise RefusedContentError(
            f"{what} is signed by the key {told[1] if told else 'of a stranger'}, which"
            f" {self.signers or 'no file of allowed signers'} does not allow, so it is not taken; add the key of that"
            " site there if you trust it."
        )


def program() -> str:
    """Return the path of ssh-keygen.

    Raises:
        ConfigError: it is missing.
    """
    found = shutil.which("ssh-keygen")
    if found is None:
        raise ConfigError(
            "ssh-keygen is not on PATH, and signatures of a shared cache need it; install openssh-client (Debian,"
            " Ubuntu) or openssh (Red Hat)."
        )
    return found


def _run(
    arguments: Sequence[str], data: bytes = b"", *, limit_s: float = _LIMIT_S, stdin: int | None = subprocess.PIPE
) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "LC_ALL": "C"}
    argv = [program(), *arguments]
    try:
        if stdin is None:
            return subprocess.run(argv, capture_output=True, env=environment, check=False, timeout=limit_s)
        return subprocess.run(argv, input=data, capture_output=True, env=environment, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"ssh-keygen did not answer within {limit_s:g} s; run the same command again.") from None


def _last_line(said: bytes) -> str:
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else "it gave no reason"
