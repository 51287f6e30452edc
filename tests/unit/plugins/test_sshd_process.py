"""Which processes of sshd serve a login that is not decided yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ansible_collections.clusterctl.hpc.plugins.module_utils import sshd

if TYPE_CHECKING:
    from pathlib import Path

TITLES = {
    1: b"sshd: /usr/sbin/sshd -D [listener] 1 of 10-100 startups\0",
    2: b"sshd: [accepted]\0",
    3: b"sshd: cluster [priv]\0",
    4: b"sshd: cluster [net]\0",
    5: b"/usr/sbin/sshd\0-D\0-R\0",
    6: b"sshd-session: unknown [net]\0",
    7: b"sshd: cluster@notty\0",
    8: b"/usr/bin/python3\0-R\0",
}


def test_logins_without_a_decision_are_told_by_the_titles_of_openssh(tmp_path: Path) -> None:
    for pid, title in TITLES.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes(title)
    (tmp_path / "9").mkdir()  # it ended meanwhile
    assert sshd.undecided_logins(str(tmp_path)) == {2, 4, 5, 6}
