"""Sessions of the login user see ours first, with a login shell and without; those of root see it last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import CompletedProcess

    from testinfra.host import Host

    Login = Callable[..., CompletedProcess[str]]

OURS = "/usr/local/openmpi/bin:/usr/local/horovod/bin:/opt/anaconda3/bin"
PATH = f"{OURS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PREPARED = f"{OURS}:/opt/site/bin:/usr/local/bin:/usr/bin:/bin"


@pytest.fixture
def session(host: Host, login: Login) -> dict[str, str]:
    """The variables of a fresh session of the login user on this node."""
    lines = login(host.check_output("hostname"), "env").stdout.splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def test_the_path_holds_ours_before_theirs(host: Host, session: dict[str, str]) -> None:
    assert session["PATH"] == (PREPARED if host.check_output("hostname") == "node2" else PATH)


def test_a_login_shell_finds_the_same_folders_first(host: Host, login: Login) -> None:
    found = login(host.check_output("hostname"), "bash", "-lc", "env").stdout.splitlines()
    assert next(line for line in found if line.startswith("PATH=")).startswith(f"PATH={OURS}:")
    assert "LD_LIBRARY_PATH=/usr/local/openmpi/lib" in found


def test_root_finds_mpi_last_and_nothing_else_of_ours(host: Host) -> None:
    found = host.check_output("su - -c env").splitlines()
    path = next(line for line in found if line.startswith("PATH="))
    assert path.endswith(":/usr/local/openmpi/bin:/usr/local/horovod/bin")
    assert "anaconda" not in path
    assert not [line for line in found if line.startswith("LD_LIBRARY_PATH=")]
    assert "LD_LIBRARY_PATH" not in host.file("/etc/environment").content_string


def test_the_library_path_is_set(session: dict[str, str]) -> None:
    assert session["LD_LIBRARY_PATH"] == "/usr/local/openmpi/lib"


def test_variables_arrive_unexpanded(session: dict[str, str]) -> None:
    assert session["OMP_NUM_THREADS"] == "1"
    assert session["CLUSTER_NOTE"] == "two words and $HOME"


def test_what_others_wrote_is_still_there(host: Host, session: dict[str, str]) -> None:
    if host.check_output("hostname") != "node2":
        pytest.skip("only node2 was prepared")
    assert session["SITE"] == "kept"
    lines = host.file("/etc/environment").content_string.splitlines()
    assert lines[0] == "# the site's own"
    assert 'SITE="kept"' in lines


def test_a_program_in_the_interpreter_prefix_goes_before_the_systems(host: Host, login: Login) -> None:
    host.check_output("mkdir -p /opt/anaconda3/bin")
    host.check_output("ln -sf /bin/true /opt/anaconda3/bin/python3")
    found = login(host.check_output("hostname"), "sh", "-c", "command -v python3").stdout.strip()
    host.check_output("rm /opt/anaconda3/bin/python3")
    assert found == "/opt/anaconda3/bin/python3"
