# SPDX-License-Identifier: Apache-2.0
"""Act on files with a user's identity for a while, so that the kernel refuses what this user may not touch."""

from __future__ import annotations

import os
import pwd  # noqa: TC003 - typing takes longer to import than this module


class ActingAs:
    """Give root's process the identity of a user in every access to a file, within a ``with`` block.

    The process stays root's: the user can neither signal nor trace it. Start no program within the block, because it
    would still have root's real user id.
    """

    def __init__(self, user: pwd.struct_passwd) -> None:
        """Take the user; the identity changes at the begin of the block."""
        self._user = user
        self._groups: list[int] = []
        self._group = 0

    def __enter__(self) -> None:
        """Become the user; where that fails half-way, the process is root again.

        Raises:
            OSError: the process is not root's.
        """
        self._groups, self._group = os.getgroups(), os.getegid()
        try:
            os.setgroups(os.getgrouplist(self._user.pw_name, self._user.pw_gid))
            os.setegid(self._user.pw_gid)
            os.seteuid(self._user.pw_uid)
        except BaseException:
            self._restore()
            raise

    def __exit__(self, *_error: object) -> None:
        """Become root again."""
        self._restore()

    def _restore(self) -> None:
        os.seteuid(0)
        os.setegid(self._group)
        os.setgroups(self._groups)
