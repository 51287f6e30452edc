"""What a login finds, with real shells on planted files of /etc and of a home, in a namespace of its own."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import node_record_gate
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import login_session
from clusterctl.support import content

# The process has the number 1000 inside, so that bash takes its trace's prompt from the environment.
INSIDE = "for at in etc run local; do mount --bind $0/$at $(cat $0/$at.at); done"
INSIDE += '; exec unshare --user --map-user=1000 --map-group=1000 "$@"'
AS_ROOT = ["unshare", "--map-root-user", "--mount", "sh", "-euc", INSIDE]
pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(bool(subprocess.call([*AS_ROOT[:3], "true"], stderr=-3)), reason="no namespaces here"),
]
PROFILE = """\
PATH="/usr/local/bin:/usr/bin:/bin"
export PATH
for i in /etc/profile.d/*.sh; do
  . $i
done
"""
OF_ACCOUNT = 'case "$USER" in\n    {names}) if [ -r {activate} ]; then . {activate}; fi ;;\nesac\n'
CONDA = """\
# >>> conda initialize >>>
__conda_setup="$('{conda}/bin/conda' 'shell.bash' 'hook' 2> /dev/null)"
if [ $? -eq 0 ]; then
    eval "$__conda_setup"
fi
unset __conda_setup
# <<< conda initialize <<<
"""
HOOK = """#!/bin/sh
cat <<'X'
__conda_activate() {{
    \\export PATH='{conda}/bin':"$PATH"
}}
__conda_activate


X
"""
LOOK = """
import json, os, pwd, sys
sys.path.insert(0, sys.argv[1])
from node_look import login_session
login_session._LOGIN_S = float(sys.argv[2])
user = pwd.getpwuid(os.geteuid())
print(json.dumps(login_session.sessions(dict(os.environ), user.pw_dir, user, lambda paths: set())["sessions"]))
"""


@dataclass
class Node:
    """A planted node: folders that stand for /etc, /run and /usr/local/bin, a home, and programs."""

    root: Path
    home: Path = field(init=False)

    def __post_init__(self) -> None:
        self.home = self.root / "home"
        self.home.mkdir()
        for name, at in (("etc", "/etc"), ("run", "/run"), ("local", "/usr/local/bin")):
            (self.root / name).mkdir()
            (self.root / f"{name}.at").write_text(at)
        for name in ("ours/mpi/bin/mpirun", "ours/py/bin/python3", "site/mpirun", "conda/bin/python3", "site/python3"):
            self.program(name, "#!/bin/sh\n")
        self.program("conda/bin/conda", HOOK.format(conda=self.root / "conda"))
        ours = f"{self.root}/ours/mpi/bin:{self.root}/ours/py/bin"
        self.path = f"{ours}:/usr/local/bin:/usr/bin:/bin"
        self.etc("clusterctl/activate", f'export PATH="{ours}:$PATH"\n')
        self.etc("clusterctl/environment", f"# Made by clusterctl.\nPATH={self.path}\n")
        self.etc("profile", PROFILE)
        self.accounts("me | you")
        self.shell("/bin/bash")

    def program(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def etc(self, name: str, text: str) -> None:
        path = self.root / "etc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def accounts(self, names: str) -> None:
        self.etc("profile.d/zz-clusterctl.sh", OF_ACCOUNT.format(names=names, activate=login_session.ACTIVATE))

    def shell(self, path: str) -> None:
        self.etc("passwd", f"me:x:1000:1000::{self.home}:{path}\n")
        self.etc("group", "me:x:1000:\n")

    def run(self, *argv: str) -> str:
        variables = {"PATH": self.path, "HOME": str(self.home), "USER": "me", "SECRET": "s3cret", "PYTHONPATH": ""}
        argv = (*AS_ROOT, str(self.root), sys.executable, *argv)
        return subprocess.run(argv, env=variables, capture_output=True, text=True, check=True, cwd="/").stdout

    def look(self, limit_s: float = 6) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(
            self.run("-c", LOOK, str(content.root() / "plugins/module_utils"), str(limit_s))
        )
        gate = node_record_gate.FORMS["sessions"]
        assert gate(found) == found, "what leaves the node passes the gate"
        assert "s3cret" not in json.dumps(found)
        return found

    def lost(self) -> dict[str, str]:
        """Return the place that takes each program away, by the program."""
        return {one["name"]: one["place"].replace(f"{self.home}/", "~/") for one in self.look() if not one["own"]}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_login_that_finds_what_the_account_was_given_is_sound(node: Node) -> None:
    found = [(one["kind"], one["name"], one["path"], one["own"]) for one in node.look()]
    assert found == [
        ("login", "mpirun", f"{node.root}/ours/mpi/bin/mpirun", True),
        ("login", "python3", f"{node.root}/ours/py/bin/python3", True),
    ]
    assert list(node.home.iterdir()) == []


def both(place: str) -> dict[str, str]:
    return dict.fromkeys(("mpirun", "python3"), place)


@pytest.mark.parametrize(
    ("file", "text", "lost"),
    [
        ("etc/profile", PROFILE + "\nPATH={root}/site:/usr/bin:/bin\n", both("/etc/profile line 7")),
        (
            "etc/profile.d/zzz-site.sh",
            "# site\nexport PATH={root}/site:$PATH\n",
            both("/etc/profile.d/zzz-site.sh line 2"),
        ),
        ("home/.bash_profile", "# mine\n\nPATH=/usr/bin:/bin\n", both("~/.bash_profile line 3")),
        ("home/.bash_profile", "p() {{\n PATH=$1:$PATH\n}}\np {root}/site\n", both("~/.bash_profile line 4")),
        ("home/.bash_profile", ". ~/.more\n:\n", both("~/.more line 2")),
        ("home/.bash_profile", "\n. {root}/venv/activate\n", both("~/.bash_profile line 2")),
        ("home/.bash_profile", "PATH={root}/links:$PATH\n", {"python3": "~/.bash_profile line 1"}),
        ("home/.bash_profile", f"\n{CONDA}", {"python3": "~/.bash_profile line 5"}),
        ("home/.bash_profile", "(PATH=/none; :)\nPATH=/none ls\nPATH=$PATH:{root}/site\n", {}),
        ("home/.bash_profile", "if [ -t 0 ]; then exec tmux; fi\nread answer\n", {}),
    ],
)
def test_the_line_that_takes_a_program_away_is_named(node: Node, file: str, text: str, lost: dict[str, str]) -> None:
    node.home.joinpath(".more").write_text(f"\nPATH={node.root}/site:$PATH\n")
    node.program("venv/activate", f"PATH={node.root}/site:$PATH\n")
    node.root.joinpath("links").mkdir()
    for name in ("mpi/bin/mpirun", "py/bin/python3"):  # a Python is that of its folder
        node.root.joinpath("links", Path(name).name).symlink_to(node.root / "ours" / name)
    node.root.joinpath(file).write_text(text.format(root=node.root, conda=node.root / "conda"))
    assert node.lost() == lost


def test_a_start_up_file_is_named_that_becomes_another_shell(node: Node) -> None:
    """The other shell's own files decide then; here it is bash by another way, as not every machine has zsh."""
    node.etc("passwd", f"me:x:1000:1000::{node.home}:/bin/dash\n")
    node.home.joinpath(".profile").write_text("exec bash\n")
    node.home.joinpath(".bashrc").write_text(f"#\nPATH={node.root}/site:$PATH\n")
    assert node.lost() == both("~/.bashrc line 2")


@pytest.mark.parametrize(
    ("shell", "file", "text", "line"),
    [
        ("dash", ".profile", "\nPATH=$HOME/bin:$PATH\nPATH={root}/site:$PATH\nPATH=$PATH:/x\n", 0),
        ("zsh", ".zshrc", "p() {{\npath=($1 $path)\n}}\np {root}/site\n", 4),
        ("tcsh", ".login", "\nset path = ({root}/site $path)\n", 0),
        ("fish", ".config/fish/config.fish", "\n\nset -gx PATH {root}/site $PATH\n", 0),
    ],
)
def test_other_shells_are_looked_at_too(node: Node, shell: str, file: str, text: str, line: int) -> None:
    path = shutil.which(shell, path="/usr/bin:/bin")
    if path is None:
        pytest.skip(f"{shell} is not installed")
    node.shell(path)
    node.etc("clusterctl/activate.csh", "")
    node.etc("clusterctl/activate.fish", "")
    node.home.joinpath(file).parent.mkdir(parents=True, exist_ok=True)
    node.home.joinpath(file).write_text(text.format(root=node.root))
    assert node.lost() == both(f"~/{file} line {line}" if line else "")  # only bash and zsh have a trace


@pytest.mark.parametrize(
    ("text", "problem", "line"),
    [
        ("#\nexit 3\n", "ended", 2),
        ("\nexec /bin/true\n", "ended", 2),
        ("\n\nsleep 60\n", "silent", 3),
    ],
)
def test_a_login_that_runs_no_command_is_over_in_time(node: Node, text: str, problem: str, line: int) -> None:
    node.home.joinpath(".bash_profile").write_text(text)
    began = time.monotonic()
    (found,) = node.look(limit_s=1)
    assert time.monotonic() - began < 10
    assert (found["problem"], found["name"]) == (problem, "")
    assert found["place"] == f"{node.home}/.bash_profile line {line}"


def test_a_login_that_writes_without_an_end_is_over_when_that_is_too_much(node: Node) -> None:
    node.home.joinpath(".bash_profile").write_text("yes 0123456789012345678901234567890123456789\n")
    began = time.monotonic()
    (found,) = node.look()
    assert time.monotonic() - began < 5
    assert (found["problem"], found["place"]) == ("silent", f"{node.home}/.bash_profile line 1")


def test_nothing_is_left_of_a_login(node: Node) -> None:
    """Neither a process, though it is a daemon with its own session, nor a line of a history."""
    token = f"{uuid.uuid4().int % 10**6 + 10**6}"
    start = f"sleep {token} & (setsid sleep {token} &)\nHISTFILE=~/.history HISTCONTROL= PROMPT_COMMAND='history -a'\n"
    node.home.joinpath(".bash_profile").write_text(start)
    assert node.lost() == {}
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [one for one in commands if token.encode() in one]
    assert [path.name for path in node.home.iterdir()] == [".bash_profile"]


def test_a_file_that_the_account_cannot_read_is_named(node: Node) -> None:
    node.root.joinpath("etc/clusterctl/activate").chmod(0)
    (found,) = node.look()
    assert (found["problem"], found["place"]) == ("unreadable", "/etc/clusterctl/activate")


def test_an_account_that_was_given_nothing_has_only_to_find_something(node: Node) -> None:
    node.accounts("you | root")
    node.etc("profile", f"PATH={node.root}/site:/usr/bin:/bin\n")
    assert [(one["name"], one["own"]) for one in node.look()] == [("mpirun", True), ("python3", True)]
    node.etc("profile", "PATH=/usr/local/bin:/usr/bin:/bin\n")
    assert "mpirun" in node.lost() or shutil.which("mpirun", path="/usr/bin:/bin")
    node.root.joinpath("etc/clusterctl/activate").unlink()
    assert node.look() == []


def test_a_manager_of_systemd_that_is_older_than_the_files_is_seen(node: Node) -> None:
    node.root.joinpath("run/user/1000/systemd").mkdir(parents=True)
    node.root.joinpath("run/user/1000/systemd/private").touch()
    script = '#!/bin/sh\ntest "$*" = "--user show-environment" -a "$XDG_RUNTIME_DIR" = /run/user/1000 || exit 1\n'
    node.program("local/systemctl", f"{script}echo HOME=/x\necho PATH={node.root}/site:/usr/bin:/bin\n")
    found = [(one["kind"], one["own"], one["place"]) for one in node.look()]
    assert found == [("login", True, "")] * 2 + [("systemd", False, "")] * 2
    node.program("local/systemctl", f"{script}echo PATH={node.path}\n")
    assert node.lost() == {}


def test_what_a_hostile_home_says_stays_within_its_bounds(node: Node) -> None:
    odd = node.home / ".o'dd;\tfile"
    odd.write_text(f"PATH={node.root}/site\n")
    forged = (
        "+clusterctl\x1f0\x1f/etc/shadow; rm -rf\x1f1\x1f/none\x1f. \n+clusterctl\x1f9\x1f../x\x1f99\x1f\x1b[2J\x1f"
    )
    node.home.joinpath(".bash_profile").write_text(f"printf '%s\\n' '{forged}'\n. ~/.o\\'dd*\nPS4=+\n:\n")
    assert node.lost() == both("")
    node.home.joinpath(".bash_profile").write_text(
        f"mkdir -p $'{node.home}/a\\e[31mb'\nPATH=$'{node.home}/a\\e[31mb'\n"
    )
    assert node.lost() == both("~/.bash_profile line 2")


def test_the_record_has_it_only_where_it_is_asked_for(node: Node) -> None:
    node.home.joinpath(".bash_profile").write_text("PATH=/usr/bin:/bin\n")
    code = "import sys; sys.path.insert(0, sys.argv[1]); from node_look import record; record.main(sys.argv[2:])"
    folder = str(content.root() / "plugins/module_utils")
    for request, count in (({}, 0), ({"sessions": True}, 2), ({"sessions": True, "job_user": "another"}, 0)):
        told = json.loads(node.run("-c", code, folder, json.dumps(request)))
        assert (len(told["sessions"]), [one for one in told["problems"] if "sessions" in one]) == (count, [])
        assert node_record_gate.FORMS["sessions"](told["sessions"]) == told["sessions"]


def test_the_account_of_another_process_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_session, "ACTIVATE", __file__)
    monkeypatch.setattr(login_session, "_login", None)
    other = next(one for one in pwd.getpwall() if one.pw_uid != os.geteuid())
    assert login_session.sessions({}, other.pw_dir, other, set) == {"sessions": []}
