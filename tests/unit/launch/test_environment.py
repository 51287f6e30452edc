from __future__ import annotations

from clusterctl.launch import environment
from clusterctl.model.layout import Layout


def test_the_callers_nccl_variables_and_values_go_along() -> None:
    caller = {"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring", "SEED": "7", "OTHER": "x"}
    words = environment.of_job(("NCCL_DEBUG=INFO", "SEED", "HERE", "TEXT=a b;c"), caller)
    assert [variable.word for variable in words] == [
        *("PATH", "LD_LIBRARY_PATH", "NCCL_DEBUG=INFO", "NCCL_ALGO=Ring", "SEED=7", "HERE", "TEXT")
    ]
    assert environment.beside(words) == {"TEXT": "a b;c"}


def test_the_folder_of_pace_goes_behind_the_callers_own_python_path() -> None:
    layout = Layout("/opt/hpc")
    folder = "/opt/hpc/libexec/clusterctl/pace"
    for asked, caller, path in (
        ((), {"PYTHONPATH": "/mine"}, folder),
        (("A=b", "PYTHONPATH=/a:/b"), {}, f"/a:/b:{folder}"),
        (("PYTHONPATH",), {"PYTHONPATH": "/mine"}, f"/mine:{folder}"),
        (("PYTHONPATH",), {}, folder),
    ):
        words = [one.word for one in environment.of_job(environment.with_pace(asked, caller, layout), caller, ())]
        assert [word for word in words if word.startswith("PYTHONPATH")] == [f"PYTHONPATH={path}"]
        assert words[-1] == "CLUSTERCTL_PACE=1"
