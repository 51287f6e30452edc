"""The exceptions of clusterctl, each with the exit code that the command line ends with.

A message is one sentence (or two) that names the file, host or variable and says what to do; the command line prints
it as it is, so it carries no traceback and no secret.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process exits with; the meaning of each number is part of the public interface."""

    OK = 0
    """The command did what was asked; a validation passed."""
    BAD_CONFIG = 1
    """The inventory, a variable or an option is wrong, or no host matched."""
    HOST_FAILED = 2
    """A host answered, and something on it failed."""
    USAGE = 2
    """The command line is wrong: an unknown option, or an argument that is missing."""
    UNREACHABLE = 4
    """A host did not answer or refused the login, also where `--skip-unreachable` left it out."""
    VALIDATION_FAILED = 10
    """A validation failed, `doctor` has findings, `drift` found a difference, or a night is bad or was missed.
    A shared cache holds something damaged, unsigned, or signed by a stranger."""
    VALIDATION_ERROR = 11
    """The checks could not run, so there is no verdict."""
    INTERRUPTED = 130
    """Ctrl-C or a signal stopped the command."""


class ClusterctlError(Exception):
    """Base of everything that ends a command with a sentence instead of a traceback."""

    exit_code: ExitCode = ExitCode.BAD_CONFIG


class ConfigError(ClusterctlError):
    """The inventory, a variable or an option is wrong, or no host matched (exit 1)."""


class TooManyHostsError(ClusterctlError):
    """A word of the command line names more hosts than an inventory may have (exit 2)."""

    exit_code = ExitCode.USAGE


class LockedError(ConfigError):
    """Another run holds one of the nodes; the message says which run (exit 1)."""


class HostFailedError(ClusterctlError):
    """A host was reached and something on it failed (exit 2)."""

    exit_code = ExitCode.HOST_FAILED


class UnreachableError(ClusterctlError):
    """A host did not answer or refused the login (exit 4)."""

    exit_code = ExitCode.UNREACHABLE


class RefusedContentError(ClusterctlError):
    """Content of a cache is damaged, unsigned, or signed by a stranger; nothing of it was taken (exit 10)."""

    exit_code = ExitCode.VALIDATION_FAILED


class ValidationCouldNotRunError(ClusterctlError):
    """The validation job could not be started, so there is no verdict (exit 11)."""

    exit_code = ExitCode.VALIDATION_ERROR
