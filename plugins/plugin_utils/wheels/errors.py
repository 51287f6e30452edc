# SPDX-License-Identifier: Apache-2.0
"""Errors of the search for wheels."""

from __future__ import annotations

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError


class WheelError(ArtifactError):
    """A wheel or a source archive is not available; the message names it and the cure."""


class NothingFitsError(WheelError):
    """No version of a package fits.

    ``package`` is its canonical name. ``certain`` is false if an index did not answer, because that index may have it.
    """

    def __init__(self, message: str, package: str, *, certain: bool) -> None:
        """Keep the facts beside the message."""
        super().__init__(message)
        self.package, self.certain = package, certain


class NoAnswerError(WheelError):
    """The index did not answer."""


class OtherFileError(WheelError):
    """A file has another sha256 than the pinned one. ``filename`` is its name, ``package`` its canonical name."""

    def __init__(self, message: str, package: str, filename: str) -> None:
        """Keep the facts beside the message."""
        super().__init__(message)
        self.package, self.filename = package, filename


class PipFailedError(Exception):
    """pip ended with an error."""

    def __init__(self, output: str) -> None:
        """Keep what pip wrote."""
        super().__init__(output)
        self.output = output
