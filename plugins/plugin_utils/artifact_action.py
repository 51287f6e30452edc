# SPDX-License-Identifier: GPL-3.0-or-later
"""Base of the action plugins for artifacts: notes, calls of the module, and copies over the connection."""

from __future__ import annotations

import copy
import resource
import secrets
import shlex
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.clusterctl.hpc.plugins.module_utils import error_meanings
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError
from ansible_collections.clusterctl.hpc.plugins.module_utils.plain_text import one_line
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import run_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

_NOTE_PERIOD_S = 2.0
_PACKAGE_LOCK_S = 600.0  # unattended upgrades take minutes
_LOCK_POLL_S = 3.0
_MOST_PROGRESS = 4096  # bytes
_LONGEST_NOTE = 1000  # characters
SHARED = "/var/tmp"  # noqa: S108 - only random names are used in it


def pushed_name(local: Path) -> str:
    """Return a new name for a copy on a host; leftovers of such names are removed."""
    return f"clusterctl-push-{secrets.token_hex(8)}-{local.name}"


def package_complaint(said: str) -> str:
    """Return the sentence for what a package manager, or Ansible's module for it, said of a failure.

    The text itself is returned where its cause is not known.
    """
    found = error_meanings.find("package", said)
    if found is None:
        return said
    url = urlsplit(found.words.get("url", ""))  # it may hold a password
    cause, cure = found.meaning(mirror=url.hostname or "of this host", file=url.path.rpartition("/")[2])
    return f"{cause}; {cure}."


class ModuleFailedError(Exception):
    """The module on the host failed; its result becomes the result of the task."""

    def __init__(self, result: dict[str, Any]) -> None:
        """Keep the module's result."""
        super().__init__(str(result.get("msg", "")))
        self.result = result


class ArtifactActionBase(ActionBase):  # type: ignore[misc] # ansible-core carries no types
    """An action plugin that handles artifacts on the controller."""

    TRANSFERS_FILES = False  # files are pushed to a place of their own; Ansible's folder would outlive a kill
    _supports_check_mode = True

    def _host(self, task_vars: Mapping[str, Any]) -> str:
        return str(task_vars["inventory_hostname"])

    def _note(self, host: str, text: str) -> None:
        """Tell what the task is at."""
        run_events.note(host, one_line(text, _LONGEST_NOTE))

    @staticmethod
    def _attempted(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what ``work`` returns; a failure is a result as well."""
        try:
            return work()
        except ModuleFailedError as error:
            return {"changes": [], "watch": [], **error.result, "changed": False}
        except (ArtifactError, OSError) as error:
            return {"failed": True, "changed": False, "msg": str(error), "changes": [], "watch": []}

    def _call(self, name: str, arguments: Mapping[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Run a module on the host and return its result.

        Raises:
            ModuleFailedError: the module failed.
        """
        result: dict[str, Any] = self._execute_module(
            module_name=f"clusterctl.hpc.{name}", module_args=dict(arguments), task_vars=task_vars
        )
        if result.get("failed") or result.get("unreachable"):
            raise ModuleFailedError(result)
        return result

    def _install_packages(self, packages: list[str], options: Mapping[str, Any], task_vars: dict[str, Any]) -> str:
        """Have the host install packages of its distribution; returns a complaint, or ''."""
        return self._packages(packages, options, task_vars)[1] if packages else ""

    def _packages(
        self, packages: list[str], options: Mapping[str, Any], task_vars: dict[str, Any]
    ) -> tuple[list[str], str]:
        """Have the host install packages, and record those that came; returns these, and a complaint or ''.

        Raises:
            ModuleFailedError: the host could not record them.
        """
        before = self._when_packages_are_free(packages, task_vars)
        if {*packages} <= {name.partition(":")[0] for name in before}:  # a host without a mirror needs none then
            return [], ""
        self._note(self._host(task_vars), f"installing packages: {' '.join(packages)}")
        task = self._task.copy()
        task.action = "ansible.builtin.package"
        task.args = {"name": packages, "state": "present", **options}
        action = self._shared_loader_obj.action_loader.get(
            "ansible.builtin.package",
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        result = action.run(task_vars=task_vars)
        # also after a failure, in which some may have come
        after = self._call("package_install", {"name": packages, "phase": "after", "before": before}, task_vars)
        said = str(result.get("msg") or "no reason was given") if result.get("failed") else ""
        return list(after["came"]), package_complaint(said)

    def _when_packages_are_free(self, packages: list[str], task_vars: dict[str, Any]) -> list[str]:
        """Wait until nobody else holds the package manager's locks, and return the installed packages.

        Raises:
            ModuleFailedError: it is held for too long, or an installation was cut off and cannot be finished.
        """
        host, began = self._host(task_vars), time.monotonic()
        patience_s = float(self._templar.template(task_vars.get("preflight_package_lock_s", _PACKAGE_LOCK_S)))
        while True:
            seen = self._call("package_install", {"name": packages, "phase": "before"}, task_vars)
            if not seen["held_by"]:
                for change in seen["changes"]:
                    self._note(host, change)
                return list(seen["installed"])
            waited_s = time.monotonic() - began
            if waited_s > patience_s:
                held = f"{seen['held_by']} has held the package manager's lock for {waited_s:.0f} s"
                cure = "wait until it has ended, or stop it, and run again"
                raise ModuleFailedError({"failed": True, "msg": f"{host}: {held}; {cure}."})
            self._note(host, f"waiting for {seen['held_by']}, which holds the package manager's lock")
            time.sleep(_LOCK_POLL_S)

    def _push(self, local: Path, folder: str) -> str:
        """Copy a file of the controller to a new name on the host and return that name.

        Args:
            local: the file.
            folder: where it should go; one that the login user may not write to is passed over for /var/tmp.
        """
        reasons = []
        for place in dict.fromkeys([folder, SHARED]):
            remote = f"{place}/{pushed_name(local)}"
            try:
                self._connection.put_file(str(local), remote)
            except AnsibleConnectionFailure:
                raise
            except AnsibleError as error:
                self._drop([remote])  # a partial copy would fill the disk further
                reasons.append(f"{place}: {' '.join(str(error).split())}")
            else:
                return remote
        raise ArtifactError(
            f"{local.name} ({local.stat().st_size} bytes) could not be copied to the host ({'; '.join(reasons)});"
            " make room, or name a folder that the login user may write to."
        )

    def _fetch(self, host: str, remote: str, local: Path, most: int) -> None:
        """Copy a file of the host to the controller; the copy ends at a size.

        The kernel ends it, whatever the host sends. The method 'piped' of ssh would take it into the memory, so only
        who sets it has it.

        Args:
            host: the host's name.
            remote: the file.
            local: the copy.
            most: bytes that it may have.

        Raises:
            AnsibleError: it cannot be copied.
            ArtifactError: it is larger.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        limit = most + 1 if hard == resource.RLIM_INFINITY else min(most + 1, hard)
        try:
            asked = self._connection.get_option("ssh_transfer_method")
        except (KeyError, AttributeError):  # not a connection by ssh
            asked = ""
        methods = ["sftp", "scp"] if asked == "smart" else [asked]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            for method in methods:
                if asked == "smart":
                    self._connection.set_option("ssh_transfer_method", method)
                try:
                    self._connection.fetch_file(remote, str(local))
                    break
                except AnsibleConnectionFailure:
                    raise
                except (AnsibleError, OSError):
                    if method == methods[-1] or local.stat().st_size > most:
                        raise
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            if asked == "smart":
                self._connection.set_option("ssh_transfer_method", asked)
            if local.exists() and local.stat().st_size > most:
                local.unlink()
                raise ArtifactError(
                    f"{host}: {remote} has more than the {most} bytes that were expected; look who changed it."
                )

    def _drop(self, remotes: list[str]) -> None:
        """Remove files that were pushed, as the login user who owns them."""
        if remotes:
            with suppress(AnsibleError):
                self._connection.exec_command(shlex.join(["rm", "-f", "--", *remotes]), sudoable=False)

    @contextmanager
    def _notes_from(self, host: str, remote: str, about: str = "") -> Iterator[None]:
        """While the block runs, print what the module writes to ``remote``, a file that root alone can replace.

        A second session reads it, because the first one waits for the module's result.
        """
        stop = threading.Event()
        connection = copy.copy(self._connection)
        command = shlex.join(["head", "-c", str(_MOST_PROGRESS), "--", remote])

        def follow() -> None:
            said = ""
            while not stop.wait(_NOTE_PERIOD_S):
                try:
                    code, text, _unused = connection.exec_command(command, sudoable=False)
                except Exception as error:  # noqa: BLE001 - progress is not worth a failure
                    Display().vvv(f"no progress: {error}", host=host)
                    continue
                line = one_line(text[:_MOST_PROGRESS].decode(errors="replace"), _LONGEST_NOTE)
                if code == 0 and line and line != said:
                    said = line
                    self._note(host, f"{about}{line}")

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(_NOTE_PERIOD_S * 2)
