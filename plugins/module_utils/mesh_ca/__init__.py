# SPDX-License-Identifier: Apache-2.0
"""The certificate authority of a mesh: its keys on the controller, its certificates, and the lines that trust it."""

from __future__ import annotations

from . import authority, certificates, passphrase

__all__ = ["authority", "certificates", "lines", "passphrase"]
