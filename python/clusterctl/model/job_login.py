"""The job's login: the user that jobs run as on a host, and how the controller becomes that user there.

Ansible and everything that needs root keep the login user of the inventory. Every job goes through this module. What
nodes hold as well is in the collection's ``plugins/module_utils/job_user_rules``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clusterctl.support import content

if TYPE_CHECKING:
    from collections.abc import Mapping

    from module_utils import job_user_rules as _rules  # mypy finds it by mypy_path

    from clusterctl.model.facts import JobUser, NodeFacts
    from clusterctl.model.hosts import Host
else:
    _rules = content.module_util("job_user_rules")

CLUSTER_USER = "cluster_user"  # an account that the role ssh_mesh makes for jobs, and to which ssh logs in
MESH_USER = "ssh_mesh_user"  # an account of the user's own making, which sudo becomes
KEYS = "cluster_user_keys"

root_reach = _rules.root_reach

# mpirun sends its daemon's command in the words of sh or of csh; these login shells take neither, or run no command.
_UNFIT_SHELLS = frozenset(
    ("fish", "nu", "xonsh", "elvish", "pwsh", "rbash", "rksh", "git-shell", "nologin", "false", "true", "sync")
)


def can_carry_a_launch(shell: str) -> bool:
    """Whether mpirun can start its daemon through a login shell; one that is not known here can."""
    return shell.rpartition("/")[2] not in _UNFIT_SHELLS


def is_csh(shell: str) -> bool:
    return shell.rpartition("/")[2] in {"csh", "tcsh", "bsd-csh"}


def without_home(user: JobUser) -> tuple[str, str]:
    """Return the problem and the cure of an account whose home is missing or hangs; two times '' where it is there."""
    found: tuple[str, str] = content.module_util("preflight_rules").without_home(user.model_dump())
    return found


def job_user(host: Host) -> str:
    """Return the user that jobs run as, '' for the login user."""
    return _name(host.variables, CLUSTER_USER) or _name(host.variables, MESH_USER)


def has_own_account(host: Host) -> bool:
    """Whether jobs have an account of their own on the host, to which ssh logs in."""
    return bool(_name(host.variables, CLUSTER_USER))


def job_host(host: Host) -> Host:
    """Return the host as a job's session reaches it: logged in as the cluster user, if there is one, without sudo."""
    return replace(host, become=False, user=_name(host.variables, CLUSTER_USER) or host.user)


def through_sudo(host: Host, node: NodeFacts) -> str | None:
    """Return the user that sudo has to become behind the login of :func:`job_host`; None for the login itself."""
    user = "" if _name(host.variables, CLUSTER_USER) else _name(host.variables, MESH_USER)
    return user if user and user != node.user.name else None


def problem(variables: Mapping[str, Any]) -> str:
    """Return what is wrong with the variables of the job's login, as a clause with its cure; '' if nothing is."""
    given = variables.get(CLUSTER_USER)
    if given in (None, ""):
        return ""
    if not isinstance(given, str) or not _rules.USER_NAME.fullmatch(given):
        return (
            f"{CLUSTER_USER} is {given!r}, which is not a valid user name; use at most 32 of a-z, 0-9, '_' and '-', "
            "beginning with a letter"
        )
    if given == "root":
        return f"{CLUSTER_USER} is 'root', but jobs are to run without privileges; name another user"
    other = _name(variables, MESH_USER)
    if other and other != given:
        return f"{CLUSTER_USER} is {given!r} and {MESH_USER} is {other!r}; remove one of them"
    return _keys_problem(variables.get(KEYS))


def _keys_problem(given: Any) -> str:
    lines = given if isinstance(given, list) else [given] if given else []
    wrong = [line for line in lines if not _rules.PUBLIC_KEY.fullmatch(str(line).strip())]
    if not wrong:
        return ""
    return f"{KEYS} has {str(wrong[0])[:60]!r}, which is not a public key; give lines as 'ssh-ed25519 AAAA…'"


def _name(variables: Mapping[str, Any], variable: str) -> str:
    given = variables.get(variable)
    return given if isinstance(given, str) else ""
