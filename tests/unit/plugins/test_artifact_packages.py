"""A host that has the packages of a build needs neither a mirror nor a package manager."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from ansible.playbook.task import Task
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import ArtifactActionBase


class Asked(Exception):  # noqa: N818 - the test waits for it
    """The package manager was asked."""


class Loader:
    """What Ansible gives an action plugin."""

    @property
    def action_loader(self) -> Any:
        raise Asked


class Templar:
    """Values without templates."""

    def template(self, value: Any) -> Any:
        return value


class Host(ArtifactActionBase):
    """A host with some packages."""

    def __init__(self, *installed: str) -> None:
        self.said = {"installed": list(installed), "held_by": "", "changes": []}
        self._task, self._templar, self._shared_loader_obj = Task(), Templar(), Loader()

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        raise NotImplementedError

    def _call(self, name: str, arguments: Mapping[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - as its base
        return self.said

    def asks(self, *packages: str) -> bool:
        """Whether the package manager is asked for these; where it is not, there is no complaint."""
        try:
            return bool(self._install_packages(list(packages), {}, {"inventory_hostname": "node1"}))
        except Asked:
            return True


@pytest.mark.parametrize(
    ("packages", "asks"),
    [
        ((), False),
        (("gcc", "zlib1g-dev"), False),  # dpkg names some with their architecture
        (("gcc", "zstd"), True),
        (("gcc=12.*",), True),
    ],
)
def test_a_package_manager_is_asked_where_a_package_is_missing(packages: tuple[str, ...], asks: bool) -> None:
    assert Host("gcc", "zlib1g-dev:amd64").asks(*packages) is asks
