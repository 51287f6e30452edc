"""Cures that quote a command have a command in --fix-script, or a reason why none cures it; the commands do it."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from clusterctl.diagnosis import rules
from clusterctl.diagnosis.rules import logins, rdma, storage
from clusterctl.support import content

QUOTED = re.compile(r"'([a-z][a-z0-9_.-]*(?: [^']+)?)'")
SHARED = "fabric_rules"  # of the collection; preflight says the same
# By module: the first word of a quoted command, and the reason why it has no fix; '' where it has one.
LOOK, OTHER, RISK, MANY = "it only looks", "another machine runs it", "it ends jobs", "what to give it is not known"
SESSION = "it is for a session of the user"
COMMANDS = {
    "changes_since_last_look": {"clusterctl": OTHER},
    "engines": {"lspci": LOOK},
    SHARED: {"modprobe": "who kept the driver away knows why"},
    "gpus": {
        "clusterctl": OTHER,
        "journalctl": LOOK,
        "kill": "",
        "modprobe": "",
        "nvidia-modprobe": MANY,
        "nvidia-smi": f"{RISK}, or {MANY}",
        "setpci": MANY,
        "systemctl": "",
    },
    "kernel_log": {
        "cat": LOOK,
        "ipmitool": LOOK,
        "nvidia-smi": RISK,
        "nvme": LOOK,
        "ras-mc-ctl": LOOK,
        "smartctl": LOOK,
    },
    "launchable": {
        "mknod": MANY,
        "chmod": "",
        "chown": "a user could have put a link there",
        "chsh": "the shell is the user's choice",
        "clusterctl": OTHER,
        "ip": "",
        "ln": "Slurm has to be restarted after it",
        "ls": LOOK,
        "source": SESSION,
        "srun": "it is how a job is started",
    },
    "logins": {"clusterctl": OTHER, "hostnamectl": MANY, "ssh": LOOK},
    "machine": {
        "chmod": "",
        "ipmitool": LOOK,
        "kill": "",
        "mcelog": LOOK,
        "mv": "provision has to follow",
        "ras-mc-ctl": LOOK,
        "source": SESSION,
        "swapoff": RISK,
        "systemctl": SESSION,
        "taskset": LOOK,
    },
    "network": {"clusterctl": OTHER, "ip": LOOK, "ping": LOOK},
    "parameters": {"show_gids": LOOK},
    "rdma": {
        "dcb": "",
        "flint": MANY,
        "ibportstate": "",
        "ip": "",
        "lspci": LOOK,
        "mlnx_qos": "",
        "mlxfwmanager": MANY,
        "perfquery": "it is a note",
        "sminfo": LOOK,
    },
    "storage": {"mount": "", "rm": "", "umount": ""},
    "table": {
        "cpupower": "",
        "hugeadm": MANY,
        "mdadm": LOOK,
        "mlxconfig": RISK,
        "nvidia-smi": "",
        "tuned-adm": MANY,
    },
}
NO_COMMAND = {"s"}  # of an apostrophe, as in NVIDIA's


def sources() -> dict[str, str]:
    shared = content.root() / "plugins" / "module_utils" / SHARED / "__init__.py"
    paths = {SHARED: shared, **{path.stem: path for path in sorted(Path(rules.__path__[0]).glob("*.py"))}}
    return {name: path.read_text(encoding="utf-8") for name, path in paths.items()}


def quoted(text: str) -> set[str]:
    """Return the first words of what a module's strings quote, docstrings left out."""
    tree = ast.parse(text)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)]
    skipped = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    skipped |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = {match for node in ast.walk(tree) if id(node) not in skipped for match in QUOTED.findall(words(node))}
    return {match.partition(" ")[0] for match in found} - NO_COMMAND


def words(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(words(part) or "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_each_quoted_command_has_a_fix_or_a_reason() -> None:
    assert {name: quoted(text) for name, text in sources().items() if quoted(text)} == {
        name: set(commands) for name, commands in COMMANDS.items()
    }


def test_a_command_with_a_fix_stands_as_a_word_in_its_module() -> None:
    for name, commands in COMMANDS.items():
        module = ast.parse(sources()[name])
        whole = {node.value for node in ast.walk(module) if isinstance(node, ast.Constant)}
        lacking = [command for command, reason in commands.items() if not reason and command not in whole]
        allowed = ["rm"] if name == "storage" else []  # find runs it
        assert lacking == allowed, name
        if name != SHARED:
            importlib.import_module(f"{rules.__name__}.{name}")


def test_the_command_removes_the_names_that_the_look_counts() -> None:
    source = (content.root() / "plugins" / "module_utils" / "node_look" / "hardware" / "machine.py").read_text("utf-8")
    begins = re.search(r'r"\^\((.+)\)"', source)
    assert begins is not None
    looked_for = {word.replace("\\", "") for word in begins[1].split("|")}
    assert {name.removesuffix("*") for name in storage.SEGMENTS_OF_JOBS} == looked_for


@pytest.mark.skipif(shutil.which("fuser") is None, reason="psmisc is not installed")
def test_only_old_segments_that_nobody_uses_are_removed(tmp_path: Path) -> None:
    names = ("nccl-used", "nccl-old", "torch_1_2", "sm_segment.node1.1", "other", "nccl-new")
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 4096)
        if name != "nccl-new":
            os.utime(tmp_path / name, (time.time() - 7200,) * 2)
    with (tmp_path / "nccl-used").open("rb"):
        for command in storage.removal_of_segments(str(tmp_path)):
            subprocess.run(command, check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nccl-new", "nccl-used", "other"]


def test_without_fuser_nothing_is_removed(tmp_path: Path) -> None:
    (tmp_path / "nccl-old").write_bytes(b"x")
    os.utime(tmp_path / "nccl-old", (0, 0))
    (command,) = storage.removal_of_segments(str(tmp_path))
    at = command.index("sh")
    script = [*command[:at], "/bin/sh", *command[at + 1 :]]
    ended = subprocess.run(["/usr/bin/find", *script[1:]], env={"PATH": "/nowhere"}, check=False)
    assert ended.returncode != 0
    assert (tmp_path / "nccl-old").exists()


@pytest.mark.parametrize("accepts", [True, False])
def test_sshd_gets_the_line_or_its_old_file(tmp_path: Path, accepts: bool) -> None:
    before = "Port 22\nMaxStartups 2:30:4\nMatch all\n"
    (tmp_path / "sshd_config").write_text(before, encoding="utf-8")
    for name, code in (("sshd", 0 if accepts else 255), ("systemctl", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    ((shell, option, script, value),) = logins.start_limit("40:30:100")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = [shell, option, script.replace("/etc/ssh", str(tmp_path)), value]
    assert (subprocess.run(words, env=environment, check=False).returncode == 0) is accepts
    wanted = f"MaxStartups 40:30:100\n{before}" if accepts else before
    assert (tmp_path / "sshd_config").read_text(encoding="utf-8") == wanted


def test_lossless_settings_are_set_with_the_tool_that_read_them() -> None:
    commands = rdma.lossless_commands
    states = ("0:off", "1:off", "2:off", "3:on", "4:off", "5:off", "6:off", "7:off")
    assert commands("pfc", "eth1", "dcb", "3") == (("dcb", "pfc", "set", "dev", "eth1", "prio-pfc", *states),)
    assert commands("pfc", "eth1", "mlnx_qos", "3") == (("mlnx_qos", "-i", "eth1", "--pfc", "0,0,0,1,0,0,0,0"),)
    assert commands("trust", "eth1", "mlnx_qos", "dscp") == (("mlnx_qos", "-i", "eth1", "--trust", "dscp"),)
    assert commands("pfc", "eth1", "dcb", "garbage") == ()
    enabled = commands("ecn_roce_np", "eth1", "mlnx_qos", "off")
    assert enabled[3] == ("sh", "-c", 'echo "$0" > "$1"', "0", "/sys/class/net/eth1/ecn/roce_np/enable/3")
