"""The files by which sessions find the cluster's programs, read by real shells where the machine has them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import session_files
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import login_session
from ansible_collections.clusterctl.hpc.plugins.module_utils.session_files import Sessions
from ansible_collections.clusterctl.hpc.plugins.module_utils.text_edit import EditError
from ansible_collections.clusterctl.hpc.plugins.modules import session_settings

if TYPE_CHECKING:
    from ansible_collections.clusterctl.hpc.plugins.module_utils.file_transaction import Entry

pytestmark = pytest.mark.programs

MPI, HOROVOD, PYTHON, LIBRARY = (
    "/opt/c/openmpi/bin",
    "/opt/c/horovod/bin",
    "/opt/c/python_env/bin",
    "/opt/c/openmpi/lib",
)
OURS = f"{MPI}:{HOROVOD}:{PYTHON}"
THEIRS = ["/usr/local/bin", "/usr/bin", "/bin"]
SYSTEM = ":".join(THEIRS)


def wanted(**given: Any) -> Sessions:
    usual = {
        "accounts": ["trainer"],
        "path": [MPI, HOROVOD],
        "first": [PYTHON],
        "library_path": [LIBRARY],
        "prefix": "/opt/c",
    }
    return Sessions(**{**usual, **given})


def texts(sessions: Sessions, *sshd_settings: str) -> dict[str, str]:
    return {one.path: one.text for one in session_files.files(sessions, THEIRS, sshd_settings)}


def shown(tmp_path: Path, script: str, shell: str, before: dict[str, str], times: int = 1) -> dict[str, str]:
    """Read a script in a shell, strictly, and return the environment that its programs get."""
    path = tmp_path / "script"
    path.write_text(script)
    argv = [shell, "-euc", f". {path}; " * times + "exec /usr/bin/env"]
    done = subprocess.run(argv, env=before, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
@pytest.mark.parametrize(
    ("path", "rest"),
    [
        (SYSTEM, f":{SYSTEM}"),
        (f"/opt/own:{SYSTEM}:{MPI}:{HOROVOD}", f":/opt/own:{SYSTEM}"),
        (f"{PYTHON}:{PYTHON}:{SYSTEM}:{PYTHON}", f":{SYSTEM}"),
        (f"{MPI}/more:{SYSTEM}", f":{MPI}/more:{SYSTEM}"),
    ],
)
def test_activate_puts_ours_first_once_and_keeps_the_rest(tmp_path: Path, shell: str, path: str, rest: str) -> None:
    script = texts(wanted())[session_files.ACTIVATE]
    for times in (1, 2):
        found = shown(tmp_path, script, shell, {"PATH": path}, times)
        assert found["PATH"] == OURS + rest
        assert found["LD_LIBRARY_PATH"] == LIBRARY
        assert not {"_others", "_ours"} & set(found)
    own = shown(tmp_path, script, shell, {"PATH": path, "LD_LIBRARY_PATH": "/opt/own"})
    assert own["LD_LIBRARY_PATH"] == f"{LIBRARY}:/opt/own"


@pytest.mark.parametrize("name", ["trainer", "other", "root"])
def test_a_login_shell_of_another_account_finds_mpi_last(tmp_path: Path, name: str) -> None:
    """The account is asked of ``id``, which a stand-in answers."""
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "id").write_text(f"#!/bin/sh\necho {name}\n")
    (fake / "id").chmod(0o755)
    script = texts(wanted(modulefile="/opt/c/share/modulefiles/clusterctl"))[f"{session_files.PROFILE}.sh"]
    activate = tmp_path / "activate"
    activate.write_text("export ACTIVATED=1\n")
    script = script.replace(session_files.ACTIVATE, str(activate))
    before = {"PATH": f"{fake}:{SYSTEM}", "MODULEPATH": "/usr/share/modules"}
    found = shown(tmp_path, script, "/bin/sh", before, times=2)
    assert found.get("ACTIVATED") == ("1" if name == "trainer" else None)
    if name != "trainer":
        assert found["PATH"] == f"{fake}:{SYSTEM}:{MPI}:{HOROVOD}"
    assert found["MODULEPATH"] == "/usr/share/modules:/opt/c/share/modulefiles"
    assert "MODULEPATH" not in shown(tmp_path, script, "/bin/sh", {"PATH": f"{fake}:{SYSTEM}"})
    activate.unlink()  # a login goes on without it
    assert "ACTIVATED" not in shown(tmp_path, script, "/bin/sh", before)


def test_sshd_gives_the_accounts_a_whole_path_and_keeps_what_others_set() -> None:
    text = texts(wanted(accounts=["trainer", "b.ob@site"]), "SITE=two words", "PATH=/x", 'BAD="', "BAD=\\")[
        session_files.SSHD
    ]
    lines = text.splitlines()
    assert lines[1] == "Match User trainer,b.ob@site"
    assert lines[2] == f'    SetEnv "PATH={OURS}:{SYSTEM}" "LD_LIBRARY_PATH={LIBRARY}" "SITE=two words"'
    assert texts(wanted(accounts=[]))[session_files.SSHD] == ""


def test_without_accounts_nobody_gets_ours_first() -> None:
    found = texts(wanted(accounts=[]))
    assert session_files.ACTIVATE not in found[f"{session_files.PROFILE}.sh"]
    assert session_files.ACTIVATE not in found[f"{session_files.PROFILE}.csh"]
    assert "case '*'" in found["/etc/fish/conf.d/zz-clusterctl.fish"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        *(
            ({"accounts": [name]}, "which sshd and shells do not take for a name")
            for name in ("a,b", "*", "a b", "$(id)", "a\nb", "")
        ),
        *(
            ({kind: [folder]}, "is not an absolute path of letters")
            for kind in ("path", "first", "library_path")
            for folder in ("/a b", "/$(id)", "/a:b", "/`x`", "bin", "/a\nb", '/"', "/..")
        ),
        ({"modulefile": "/a b/clusterctl"}, "is not an absolute path of letters"),
    ],
)
def test_what_a_shell_or_sshd_would_read_otherwise_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(EditError, match=words):
        texts(wanted(**given))


def test_a_default_hostfile_is_a_parameter_of_both_series() -> None:
    folder = "/opt/c/etc/openmpi"
    without, with_it = texts(wanted()), texts(wanted(has_default_hostfile=True))
    assert without[f"{folder}/openmpi-mca-params.conf"] == "-x PATH\n"
    assert without[f"{folder}/prte-mca-params.conf"] == ""
    assert f"orte_default_hostfile = {session_files.HOSTFILE}" in with_it[f"{folder}/openmpi-mca-params.conf"]
    assert with_it[f"{folder}/prte-mca-params.conf"] == f"prte_default_hostfile = {session_files.HOSTFILE}\n"


def entries(tmp_path: Path, environment: str, **given: Any) -> dict[str, Entry]:
    path = tmp_path / "environment"
    path.write_text(environment)
    usual = {"accounts": [""], "first": [PYTHON], "library_path": [LIBRARY], "prefix": "/opt/c", "modulefile": ""}
    variables = {"path": str(path), "lists": {"PATH": [MPI]}, "bases": {"PATH": SYSTEM}, "variables": {}}
    settings = {**usual, "default_hostfile": False, **given}
    return {one.path: one for one in session_settings.session_entries(settings, variables, "trainer")}


@pytest.mark.parametrize(
    "line", [f'PATH="{SYSTEM}"', f"PATH={SYSTEM}", f'PATH="{SYSTEM}" # by the site', f"PATH=/old\nPATH={SYSTEM}", "A=1"]
)
def test_units_and_sshd_get_the_folders_of_a_line_of_any_form(tmp_path: Path, line: str) -> None:
    found = entries(tmp_path, f"{line}\n")
    assert f"PATH={MPI}:{PYTHON}:{SYSTEM}\n" in found[session_files.UNITS].content.decode()


def test_the_empty_name_is_the_user_of_jobs_and_root_is_left_out(tmp_path: Path) -> None:
    profile = f"{session_files.PROFILE}.sh"
    assert "    trainer) if" in entries(tmp_path, "")[profile].content.decode()
    assert "    trainer | bob) if" in entries(tmp_path, "", accounts=["", "root", "bob"])[profile].content.decode()


def test_doctor_reads_the_files_that_the_role_writes(tmp_path: Path) -> None:
    """The program of doctor travels alone, so that it names them itself."""
    written = set(entries(tmp_path, ""))
    assert {login_session.ACTIVATE, login_session.GIVEN, login_session.PROFILE} <= written
    assert (login_session.ACTIVATE, login_session.GIVEN) == (session_files.ACTIVATE, session_files.UNITS)


def test_what_nothing_reads_is_left_out_and_folders_are_made_once(tmp_path: Path) -> None:
    found = entries(tmp_path, "", modulefile="/opt/c/share/modulefiles/clusterctl")
    assert ("/etc/zsh/zprofile" in found) is Path("/etc/zsh").is_dir()
    assert (session_files.GENERATOR in found) is Path("/etc/systemd").is_dir()
    folders = [path for path, entry in found.items() if entry.state == "directory" and path.startswith("/opt")]
    assert folders == ["/opt", "/opt/c", "/opt/c/share", "/opt/c/share/modulefiles", "/opt/c/etc", "/opt/c/etc/openmpi"]
    elsewhere = entries(tmp_path, "", modulefile=f"{tmp_path}/clusterctl")
    assert f"{tmp_path}/clusterctl" in elsewhere
    assert "/no-such/clusterctl" not in entries(tmp_path, "", modulefile="/no-such/clusterctl")
