"""Rules about the user that jobs run as: the account on each node, its uid, and whether a job can become root."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.model import job_login, nodeset
from clusterctl.model.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.diagnosis.rules.evidence import View
    from clusterctl.model.facts import JobUser

ORDER = 12


def findings(view: View) -> Iterator[Finding]:
    """Return the nodes that refuse the account, and the provisioned nodes that lack it."""
    for name, failure in view.closed_to_jobs.items():
        cause, _, cure = failure.message.rstrip(".").partition("; ")
        yield Finding("job_user", "error", (name,), cause, cure or "see that it answers to ssh")
    users = _users(view)
    without = tuple(name for name in view.provisioned if name in users and not users[name].exists)
    if without:
        cause = f"the user {users[without[0]].name}, which jobs run as, is missing"
        yield Finding("job_user", "error", without, cause, "run 'clusterctl provision' (role ssh_mesh)")
    for name, user in users.items():
        cause, cure = job_login.without_home(user)
        if cause:
            yield Finding("job_user", "error", (name,), cause, cure)


def notes(view: View) -> Iterator[str]:
    """Return a sentence where jobs can become root, and one where the account's uid differs."""
    users = {name: user for name, user in _users(view).items() if user.exists}
    reaching = {name: "root" if user.uid == 0 else "sudo" for name, user in users.items() if user.sudo}
    if reaching:
        yield job_login.root_reach(users[next(iter(reaching))].name, reaching, len(users))
    uids: dict[int, list[str]] = {}
    for name, user in users.items():
        uids.setdefault(user.uid, []).append(name)
    if len(uids) > 1:
        shown = ", ".join(f"{uid} on {nodeset.folded(hosts)}" for uid, hosts in sorted(uids.items()))
        name = next(iter(users.values())).name
        yield (
            f"The uid of user {name} differs: {shown}. Files in a folder that the nodes share then "
            "belong to different users; give the user one uid with usermod."
        )


def _users(view: View) -> dict[str, JobUser]:
    return {name: node.job_user for name, node in view.nodes.items() if node.job_user is not None}
