from __future__ import annotations

from clusterctl.launch import compose


def test_the_callers_nccl_variables_and_values_go_along() -> None:
    caller = {"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring", "SEED": "7", "OTHER": "x"}
    words = compose.of_job(("NCCL_DEBUG=INFO", "SEED", "HERE", "TEXT=a b;c"), caller)
    assert [variable.word for variable in words] == [
        *("PATH", "LD_LIBRARY_PATH", "NCCL_DEBUG=INFO", "NCCL_ALGO=Ring", "SEED=7", "HERE", "TEXT")
    ]
    assert compose.beside(words) == {"TEXT": "a b;c"}
