"""The environment computes, by its link and by its versioned folder, for a user who is not root."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from testinfra.host import Host

LINK = "/usr/local/python_env"


@pytest.fixture(params=["link", "folder"])
def prefix(request: pytest.FixtureRequest, host: Host) -> str:
    return LINK if request.param == "link" else host.check_output("realpath %s", LINK)


def test_numpy_gives_right_numbers_from_this_very_environment(host: Host, prefix: str) -> None:
    program = "import json, sys, numpy as n; print(json.dumps([sys.prefix, n.__file__, (n.eye(3) * 7).sum()]))"
    found_prefix, path, total = json.loads(host.check_output(f"{prefix}/bin/python -c %s", program))
    assert found_prefix == prefix
    assert path.startswith(f"{prefix}/lib/")
    assert total == 21


def test_a_login_user_reads_byte_code_that_is_there_already(host: Host) -> None:
    program = "import numpy, os; print(os.path.exists(numpy.__cached__), os.access(numpy.__cached__, os.W_OK))"
    assert host.check_output("sudo -u cluster %s -c %s", f"{LINK}/bin/python", program) == "True False"


def test_the_system_has_no_pip_and_no_compiler(host: Host) -> None:
    assert not host.exists("pip")
    assert not host.exists("gcc")
    assert host.run("/usr/bin/python3 -c 'import ensurepip'").rc != 0


def test_the_marker_names_every_wheel(host: Host) -> None:
    marker = json.loads(host.file(f"{LINK}/.clusterctl.json").content_string)
    names = {filename.split("-")[0] for filename in marker["inputs"]["wheels"]}
    if marker["inputs"]["framework"]["name"]:
        assert names > {"numpy", "torch", "cloudpickle", "packaging", "psutil", "pyyaml"}
    else:
        assert names == {"numpy", "tabulate"}
    assert all(len(sha256) == 64 for sha256 in marker["inputs"]["wheels"].values())


def test_nobody_but_root_may_write(host: Host) -> None:
    folder = host.check_output("realpath %s", LINK)
    assert host.check_output("find %s ! -type l -perm /022 -o ! -user root", folder) == ""
