"""What real kubectls said of requests that failed becomes one sentence with a cure and the documented exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clusterctl.remote import kubectl_refusal
from clusterctl.support.errors import ExitCode

CAPTURED = json.loads(
    (Path(__file__).resolve().parents[2] / "data" / "kubectl" / "refusals.json").read_text(encoding="utf-8")
)["refusals"]
WANTED = {
    "kubeconfig missing": (1, "The kubeconfig does not exist; give another --kubeconfig"),
    "kubeconfig broken": (1, "The kubeconfig cannot be read; mend it, or"),
    "kubeconfig empty": (1, "The kubeconfig has no such context; name one of"),
    "context missing": (1, "The kubeconfig has no such context; name one of"),
    "context missing, read locally": (1, "The kubeconfig has no such context; name one of"),
    "server down": (11, "The API server does not answer; see 'kubectl cluster-info'"),
    "server down, create": (11, "The API server does not answer; see 'kubectl cluster-info'"),
    "name of the server unknown": (11, "The API server does not answer; see 'kubectl cluster-info'"),
    "login refused": (11, "The cluster does not accept the login of the kubeconfig; log in anew"),
    "login refused, create": (11, "The cluster does not accept the login of the kubeconfig; log in anew"),
    "certificate unknown": (11, "The certificate of the API server is not accepted; mend"),
    "no right to list pods": (
        11,
        "The user 'nobody-in-particular' may not list pods in the namespace 'ml'; have a role",
    ),
    "no right to create": (11, "The user 'nobody-in-particular' may not create configmaps in the namespace 'ml'; have"),
    "namespace missing": (1, "The namespace does not exist; name another with --namespace"),
    "kind unknown": (11, "The cluster does not know this kind of job; install its operator"),
    "not found": (11, "kubectl failed ("),
}


@pytest.mark.parametrize("entry", CAPTURED, ids=lambda entry: f"{entry['case']}, {entry['kubectl']}")
def test_what_kubectl_said_becomes_one_sentence(entry: dict[str, str]) -> None:
    code, words = WANTED[entry["case"]]
    error = kubectl_refusal.error(entry["stderr"])
    assert str(error).startswith(words)
    assert error.exit_code == ExitCode(code)
    assert "\n" not in str(error)
    assert "memcache.go" not in str(error)
    assert "turn validation off" not in str(error)
    assert str(error).endswith(".")
    assert kubectl_refusal.is_missing(entry["stderr"]) == (entry["case"] in {"not found", "namespace missing"})


def test_words_that_nobody_knows_are_shown_as_they_are() -> None:
    assert (
        str(kubectl_refusal.error("error: the moon is wrong")) == "kubectl failed (the moon is wrong); try it by hand."
    )
    assert str(kubectl_refusal.error("")) == "kubectl failed (without a word); try it by hand."
