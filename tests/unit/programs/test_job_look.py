"""Where a node looks for the files of a job."""

from __future__ import annotations

import codecs
import os
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from clusterctl.support import content

sys.path.insert(0, str(content.role_files("validation")))
import job_look


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_folder_of_path_that_may_not_be_searched_is_passed_over(tmp_path: Path) -> None:
    tmp_path.chmod(0)
    codecs.lookup("ascii")  # that user may not read the files of this Python
    os.seteuid(65534)
    try:
        found = job_look.look(["sh", "missing"], f"{tmp_path}:/bin", "/")
        inside = job_look.look(["./run.sh"], "", str(tmp_path / "inner"))
    finally:
        os.seteuid(0)
    assert found["found"] == {"sh": "/bin/sh", "missing": ""}
    assert (inside["found"], inside["is"]) == ({"./run.sh": ""}, False)


def test_a_job_in_a_folder_of_its_own_does_not_touch_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def home() -> NoReturn:
        raise AssertionError("it may not answer")

    monkeypatch.setattr(job_look, "home", home)
    assert job_look.look([], "", str(tmp_path))["folder"] == str(tmp_path)
