"""Effective settings of Ansible, of ansible.cfg and its environment variables, as ansible-config tells them."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.inventory import ansible_call, templates
from clusterctl.inventory.ansible_call import ansible_program

_BASE = {
    "ANY_ERRORS_FATAL": "any_errors_fatal",
    "DEFAULT_ASK_PASS": "ask_pass",
    "DEFAULT_ASK_VAULT_PASS": "ask_vault_pass",
    "DEFAULT_BECOME": "become",
    "DEFAULT_BECOME_ASK_PASS": "become_ask_pass",
    "DEFAULT_BECOME_METHOD": "become_method",
    "DEFAULT_FORCE_HANDLERS": "force_handlers",
    "DEFAULT_NO_LOG": "no_log",
    "DEFAULT_STRATEGY": "strategy",
    "DEFAULT_TRANSPORT": "connection",
    "ENABLE_TASK_DEBUGGER": "enable_task_debugger",
    "INTERPRETER_PYTHON": "python_interpreter",
    "TAGS_RUN": "run",
    "TAGS_SKIP": "skip",
    "TASK_TIMEOUT": "task_timeout",
}
# By the kind of a plugin, its name, and those of its options that are read: none of them is a secret.
_PLUGINS = {
    "CONNECTION_PLUGINS": (
        "ssh",
        {
            "control_path",
            "host_key_checking",
            "port",
            "private_key_file",
            "remote_user",
            "ssh_args",
            "ssh_common_args",
            "ssh_executable",
            "ssh_extra_args",
        },
    ),
    "BECOME_PLUGINS": ("sudo", {"become_exe", "become_user"}),
}
# An environment variable of another kind changes nothing here.
_VARIABLE = re.compile(
    r"ANSIBLE_(?:(?:ANY_|ASK_|BECOME|ENABLE_TASK|FORCE_HAND|HOST_KEY|NO_LOG|PRIVATE_KEY|PYTHON_INTERP|REMOTE_"
    r"|RUN_TAGS|SKIP_TAGS|SSH_|STRATEGY|SUDO_|TASK_TIME|TRANSPORT)\w*)"
)
_SECRET = re.compile(r"(?<!ASK)_PASS(?:WORD)?$")
_ENVIRONMENT = "env: "
# The keys of ansible.cfg that set an option under another name.
_KEYS = {
    "become_exe": ("become_exe", "executable"),
    "become_flags": ("become_flags", "flags"),
    "become_user": ("become_user", "user"),
    "connection": ("transport",),
    "port": ("remote_port", "port"),
    "python_interpreter": ("interpreter_python",),
}
_DISCOVERED = frozenset({"auto", "auto_legacy", "auto_silent", "auto_legacy_silent"})
_TIMEOUT_S = 60


@dataclass(frozen=True)
class Setting:
    """A setting that somebody gave: its value, and where, as a message names it."""

    value: Any
    place: str


@dataclass(frozen=True)
class Settings:
    """The settings that are not Ansible's defaults, by their names in the ssh and sudo plugins."""

    given: Mapping[str, Setting] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """Return a value; None where nobody gave one."""
        setting = self.given.get(name)
        return None if setting is None else setting.value

    @property
    def interpreter(self) -> str:
        """The Python of nodes whose variables name none."""
        return interpreter(str(self.get("python_interpreter") or "auto"))


def interpreter(given: str) -> str:
    """Return the Python of a node; where Ansible is to look for one, the one that it takes by default."""
    return "/usr/bin/python3" if given in _DISCOVERED else given


def effective() -> Settings:
    """Return what ansible.cfg and the environment say, by ansible-config; nothing is asked where neither says anything.

    Where ansible-config cannot read them, ansible-inventory tells why.
    """
    files = list(templates.settings_files(os.environ))
    variables = {name: value for name, value in os.environ.items() if _VARIABLE.fullmatch(name)}
    variables = {name: value for name, value in variables.items() if not _SECRET.search(name)}
    if not files and not variables:
        return Settings()
    command = [ansible_program("ansible-config"), "dump", "--type", "all", "--only-changed", "--format", "json"]
    total = hashlib.sha256(json.dumps([command, variables, str(Path.cwd()), ansible_call.stamp(command[0])]).encode())
    for path in files:
        try:
            total.update(f"{path}\0{path.stat().st_mode}\0".encode() + path.read_bytes())
        except OSError:
            continue
    # A change of the working folder's mode changes whether Ansible believes its ansible.cfg.
    total.update(str(Path.cwd().stat().st_mode).encode())
    return _asked(total.hexdigest(), tuple(command))


@functools.lru_cache(maxsize=4)
def _asked(key: str, command: tuple[str, ...]) -> Settings:
    known = templates.recall(key)
    if known is None:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=ansible_call.environment(),
                check=False,
                timeout=_TIMEOUT_S,
            )
            known = {"settings": [list(one) for one in _changed(json.loads(done.stdout))]}
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return Settings()
        templates.keep(key, known)
    return Settings({name: Setting(value, _place(name, origin)) for name, value, origin in known["settings"]})


def _changed(dump: list[dict[str, Any]]) -> Iterator[tuple[str, Any, str]]:
    """Yield name, value and origin of each setting of the dump that is used here."""
    for entry in dump:
        if entry.get("name") in _BASE and entry["origin"] != "default":
            yield _BASE[entry["name"]], entry["value"], entry["origin"]
        for kind, (plugin, names) in _PLUGINS.items():
            for one in (options for plugins in entry.get(kind, []) for options in plugins.get(plugin, [])):
                if one["name"] in names and one["origin"] != "default":
                    yield one["name"], one["value"], one["origin"]


def _place(name: str, origin: str) -> str:
    """Return the variable, or the file with the line of its first key of that name."""
    if origin.startswith(_ENVIRONMENT):
        return f"the environment variable {origin.removeprefix(_ENVIRONMENT)}"
    keys = "|".join(_KEYS.get(name, (name,)))
    try:
        lines = Path(origin).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return origin
    found = next((number for number, line in enumerate(lines, 1) if re.match(rf"\s*(?:{keys})\s*[=:]", line)), None)
    return origin if found is None else f"{origin} line {found}"
