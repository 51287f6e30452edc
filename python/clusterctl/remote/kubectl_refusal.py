"""Turn what kubectl says of a request that fails into one sentence: cause and cure."""

from __future__ import annotations

import re

from clusterctl.support.errors import ClusterctlError, ConfigError, ValidationCouldNotRunError

_SETUP = "give another --kubeconfig or --context"
_MOST_SAID = 300
_MOST_READ = 4096  # characters; a search takes the square of it
# klog's lines come before the sentence: "E1123 10:03:32.406805   25758 memcache.go:265] ...".
_LOG_LINE = re.compile(r"[EWI]\d{4} \d\d:\d\d:\d\d")
# kubectl's own words around the cause, and its advice to look away.
_AROUND = re.compile(
    r"error (?:validating|when creating) \"STDIN\": |error validating data: |failed to download openapi: "
    r"|; if you choose to.*"
)
_FORBIDDEN = re.compile(
    r"(?P<what>\S+) is forbidden: User \"(?P<user>[^\"]*)\" cannot (?P<verb>\S+) resource \"(?P<resource>[^\"]*)\""
    r"(?: in API group \"(?P<group>[^\"]*)\")?(?: in the namespace \"(?P<namespace>[^\"]*)\")?"
)
# Words of kubectl 1.20 to 1.32 and of the API server; the first that match give the sentence.
_CONFIGURATION: tuple[tuple[str, str, str], ...] = (
    (r"error: stat .*: no such file", "The kubeconfig does not exist", _SETUP),
    (
        r"error loading config file|invalid configuration|illegal base64|unable to read",
        "The kubeconfig cannot be read",
        f"mend it, or {_SETUP}",
    ),
    (
        r"context was not found|current-context must exist|locate context|(?:context|cluster) .* does not exist",
        "The kubeconfig has no such context",
        "name one of 'kubectl config get-contexts' with --context",
    ),
    (
        r"namespaces \"[^\"]*\" not found",
        "The namespace does not exist",
        "name another with --namespace, or create it",
    ),
)
_CLUSTER: tuple[tuple[str, str, str], ...] = (
    (
        r"must be logged in|Unauthorized|provide credentials|getting credentials|exec plugin",
        "The cluster does not accept the login of the kubeconfig",
        "log in anew, or give another --context",
    ),
    (
        r"no matches for kind|doesn't have a resource type|could not find the requested resource",
        "The cluster does not know this kind of job",
        "install its operator (mpi-operator for MPIJob, training-operator for PyTorchJob), or choose another kind",
    ),
    (
        r"certificate|x509|tls:",
        "The certificate of the API server is not accepted",
        "mend the kubeconfig's certificate-authority",
    ),
    (
        r"was refused|no such host|timeout|no route|is unreachable|Unable to connect|reset by|EOF|deadline exceeded",
        "The API server does not answer",
        "see 'kubectl cluster-info', and the cluster's address in the kubeconfig",
    ),
    (
        r"exceeded quota",
        "A quota of the namespace refuses the job",
        "ask for fewer --nodes, --gpus-per-node, --cpus or --memory",
    ),
    (
        r"admission webhook|denied the request|violates PodSecurity",
        "A policy of the cluster refuses the job",
        "ask its administrator, or choose another --namespace",
    ),
    (
        r"is invalid|ValidationError|strict decoding|unknown field|must be of type|Invalid value",
        "The API server does not accept the manifest",
        "see it with --render-only",
    ),
)


def error(said: str) -> ClusterctlError:
    """Return the error for what kubectl said on stderr: of the configuration (exit 1), or of the cluster (exit 11)."""
    text = meaningful(said)[:_MOST_READ]
    forbidden = _FORBIDDEN.search(text)
    if forbidden is not None:
        return ValidationCouldNotRunError(_without_rights(forbidden))
    for kind, known in ((ConfigError, _CONFIGURATION), (ValidationCouldNotRunError, _CLUSTER)):
        for words, cause, cure in known:
            if re.search(words, text):
                return kind(f"{cause}; {cure} ({_shortened(text)}).")
    return ValidationCouldNotRunError(f"kubectl failed ({_shortened(text) or 'without a word'}); try it by hand.")


def is_missing(said: str) -> bool:
    """Tell whether the resource that was asked for does not exist."""
    return "(NotFound)" in said


def meaningful(said: str) -> str:
    """Return what kubectl said, without the lines of its log and its warnings."""
    lines = [line.strip() for line in said.splitlines()]
    kept = [line for line in lines if line and not _LOG_LINE.match(line) and not line.startswith("Warning: ")]
    return "\n".join(kept) or said.strip()


def no_right(verb: str, resource: str, namespace: str) -> str:
    """Return the sentence for a right that this user lacks."""
    return (
        f"This user may not {verb} {resource} in the namespace '{namespace}'; have a role with the rights of "
        "docs/how-to/pods.md bound to it, or choose another --namespace or --context."
    )


def _without_rights(match: re.Match[str]) -> str:
    where = f"in the namespace '{match['namespace']}'" if match["namespace"] else "in the cluster"
    group = f".{match['group']}" if match["group"] else ""
    return (
        f"The user '{match['user']}' may not {match['verb']} {match['resource']}{group} {where}; have a role with the "
        "rights of docs/how-to/pods.md bound to it, or choose another --namespace or --context."
    )


def _shortened(text: str) -> str:
    line = " ".join(text.splitlines()[0].split()) if text else ""
    line = _AROUND.sub("", line).removeprefix("error: ").removeprefix("Error: ").rstrip(".")
    return line if len(line) <= _MOST_SAID else f"{line[: _MOST_SAID - 3]}..."
