"""Jobs that outlive the controller: ``run --detach`` starts one, and the verb ``jobs`` lists, shows and ends them.

A keeper on the launch node takes the controller's place; see ``detached_job.py`` of the role ``validation``. Any
controller with the same inventory finds the job: all nodes are asked for the jobs that were started on them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.analysis import rank_deaths
from clusterctl.jobs import first_look, run
from clusterctl.jobs import team as team_of_job
from clusterctl.jobs.output_lines import NoiseFilter, Prefixer
from clusterctl.model.nodeset import folded
from clusterctl.remote import detached_job, supervised_job, supervisor_files
from clusterctl.support.errors import ClusterctlError, ConfigError, ExitCode, HostFailedError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from clusterctl.jobs.first_look import FirstLook
    from clusterctl.jobs.output_lines import Take
    from clusterctl.jobs.run import RunOptions
    from clusterctl.model.hosts import AnyInventory, Inventory, InventoryOptions
    from clusterctl.remote.detached_job import DetachedJob
    from clusterctl.remote.supervised_job import JobLogin

_PROGRAMS = (supervisor_files.DETACHED, supervisor_files.SUPERVISOR, *supervisor_files.IMPORTED)
_MOST_NAMED = 6
_NOT_OUR_END = 2  # what a job is worth that was stopped or lost: as ``run``, HOST_FAILED


def detach(
    inventory: AnyInventory,
    options: RunOptions,
    take: Take,
    tell: Callable[[str], None],
    started: Callable[[str], None],
) -> int:
    """Start the user's program and leave it to its launch node.

    Nothing watches the job. ``take`` gets the log of a job that failed at once, ``started`` the id of the job.

    Returns:
        0 where it runs. The job's own code where it has ended already.

    Raises:
        ConfigError: something asked for cannot be, and nothing was started.
        GateError: the nodes differ.
        UnreachableError: a node does not answer.
        HostFailedError: the code could not be copied, or the job could not be started.
    """
    with team_of_job.gathered(inventory, run.of_team(options), tell) as team:
        job_id = run.new_id()
        ready = run.prepared(team, options, run.started_in(team, options), tell, job_id)
        hosts = ready.plan.hosts if options.prefix != "none" else ()
        about = {
            "command": options.wish.program,
            "nodes": list(team.hosts),
            "prefix": options.prefix if ready.plan.tags else "none",
            "hosts": hosts if ready.plan.tags else (),
        }
        login = team.login(team.launch_node)
        try:
            answer = detached_job.start(login, ready.spec, team.peers, about)
        except BaseException:  # an interrupt: the user does not know the job's id
            detached_job.stop(login, job_id)
            raise
        words = team.cluster.sources.shown
        if answer.silent:
            raise UnreachableError(
                f"The connection to the launch node {team.launch_node} was lost: {answer.problem}. "
                f"'clusterctl jobs {words}' tells whether job {job_id} runs."
            )
        if answer.job is None or answer.job.word == "not started":
            problem = answer.problem if answer.job is None else answer.job.problem
            raise run.not_started(team.launch_node, problem)
        started(job_id)
        if not answer.job.runs:
            return _ended_at_once(login, answer.job, words, take, tell)
        place = f"{team.launch_node}:{answer.job.folder}"
        late = "" if answer.up else " None of its ranks is up yet."
        tell(f"Job {job_id} runs on {folded(team.hosts)} without this terminal.{late} Its log is in {place}.")
        tell(f"Follow it: clusterctl jobs logs -f {words} {job_id}")
        tell(f"End it: clusterctl jobs stop {words} {job_id}")
        return ExitCode.OK


def _ended_at_once(login: JobLogin, job: DetachedJob, words: str, take: Take, tell: Callable[[str], None]) -> int:
    code = code_of(job)
    if code == 0:
        tell(f"Job {job.job} has ended with exit code 0. Its log: clusterctl jobs logs {words} {job.job}")
        return ExitCode.OK
    _show_log(login, job, take)
    tell(ended_words(job))
    return _NOT_OUR_END if code is None else code


# --- The jobs of a cluster --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FoundJob:
    """A job, and the launch node by its name in the inventory."""

    host: str
    job: DetachedJob


@dataclass(frozen=True)
class ClusterJobs:
    """The detached jobs of a cluster's user, the newest first; ``problems`` are nodes that could not be asked."""

    cluster: Inventory
    logins: Mapping[str, JobLogin]
    users: frozenset[str]
    jobs: tuple[FoundJob, ...] = ()
    problems: tuple[ClusterctlError, ...] = field(default=())

    def find(self, word: str | None) -> FoundJob:
        """Return the job of an id or of the only one that begins so; by default the newest.

        Raises:
            ConfigError: there is none, or there are several.
            UnreachableError: there is none on the nodes that answered.
        """
        found = [one for one in self.jobs if word is None or one.job.job == word]
        found = found or [one for one in self.jobs if word and one.job.job.startswith(word)]
        if word is not None and len(found) > 1:
            hosts = [one.host for one in found]
            if len({one.job.job for one in found}) == 1:
                raise ConfigError(f"{folded(hosts)} each tell of a job '{word}'; name its launch node with --limit.")
            names = ", ".join(one.job.job for one in found[:_MOST_NAMED])
            raise ConfigError(f"'{word}' begins several jobs ({names}); give more of the id.")
        if found:
            return found[0]
        words = self.cluster.sources.shown
        what = "There is no detached job" if word is None else f"There is no detached job '{word}'"
        where = f" of the user {'/'.join(sorted(self.users))} on {folded(self.logins)}" if self.logins else ""
        if self.problems:
            whys = " ".join(str(problem) for problem in self.problems[:_MOST_NAMED])
            raise type(self.problems[0])(f"{what}{where}. {whys}")
        cure = f"start one with 'clusterctl run --detach {words}'" if word is None else f"see 'clusterctl jobs {words}'"
        raise ConfigError(f"{what}{where}; {cure}.")


@contextlib.contextmanager
def gathered(inventory: AnyInventory, options: InventoryOptions) -> Iterator[ClusterJobs]:
    """Yield the jobs of all selected nodes; a node that does not answer is a problem and stops nothing.

    Raises:
        ConfigError: the inventory is not valid, or a node is not reached by plain ssh.
    """
    with first_look.begun(inventory, options) as look:
        yield _asked(look)


def _asked(look: FirstLook) -> ClusterJobs:
    there = team_of_job.asked(look, _PROGRAMS)
    problems = list(there.problems)
    found: list[FoundJob] = []
    for name, answer in detached_job.listed(list(there.logins.values())).items():
        found += [FoundJob(name, job) for job in answer.jobs]
        if answer.problem:
            kind = UnreachableError if answer.silent else HostFailedError
            problems.append(kind(f"{name}: {answer.problem}."))
    found.sort(key=lambda one: one.job.since, reverse=True)
    return ClusterJobs(look.cluster, there.logins, there.users, tuple(found), tuple(problems))


def code_of(job: DetachedJob) -> int | None:
    """Return the exit code of a job as ``run`` tells it, None without one."""
    return 1 if job.code == 0 and rank_deaths.lost_a_daemon(job.tail) else job.code


def ended_words(job: DetachedJob) -> str:
    code = code_of(job)
    if job.word == "lost":
        why = f": {job.problem}" if job.problem else ", which is so after a restart of its node"
        return f"Job {job.job} has lost its keeper{why}."
    if job.word == "timed out":
        return f"Job {job.job} had not ended at its --timeout and was ended."
    if code is None:
        return f"Job {job.job} was {job.word}."
    return f"Job {job.job} has ended with exit code {code}."


def follow(jobs: ClusterJobs, one: FoundJob, take: Take, tell: Callable[[str], None], lines: int | None) -> int:
    """Pass on the log of a job until it has ended, and return its exit code; 2 where it was stopped or lost.

    Raises:
        UnreachableError: the launch node does not answer any more.
    """
    _show_log(jobs.logins[one.host], one.job, take, lines, follow=True)
    now = detached_job.listed([jobs.logins[one.host]])[one.host]
    job = next((job for job in now.jobs if job.job == one.job.job), None)
    if job is None:
        raise UnreachableError(
            f"How job {one.job.job} ended is not known: {now.problem or 'its node has forgotten it'}."
        )
    _tell_of_log(job, tell)
    tell(ended_words(job))
    code = code_of(job)
    return _NOT_OUR_END if code is None else code


def show_log(jobs: ClusterJobs, one: FoundJob, take: Take, tell: Callable[[str], None], lines: int | None) -> int:
    """Pass on the log of a job as far as it is written.

    Raises:
        UnreachableError: the launch node does not answer any more.
    """
    _show_log(jobs.logins[one.host], one.job, take, lines)
    _tell_of_log(one.job, tell)
    return ExitCode.OK


def _show_log(login: JobLogin, job: DetachedJob, take: Take, lines: int | None = None, *, follow: bool = False) -> None:
    """Pass on a log through the filters of ``run``."""
    prefixer = Prefixer(job.hosts, job.prefix, take) if job.prefix != "none" else None
    quiet = NoiseFilter(lambda _stream, data: (prefixer or take)("stdout", data))
    problem = detached_job.show_log(login, job.job, lambda data: quiet("stderr", data), follow=follow, lines=lines)
    quiet.end()
    if prefixer is not None:
        prefixer.end()
    if problem:
        raise UnreachableError(f"The log of job {job.job} broke off: {login.host.name}: {problem}.")


def _tell_of_log(job: DetachedJob, tell: Callable[[str], None]) -> None:
    if job.log_from:
        tell(f"The first {job.log_from >> 20} MiB of the log are gone; its node keeps the last 128 to 256 MiB.")
    if job.log_lost:
        tell(f"The log lacks {job.log_lost} bytes that could not be written: {job.log_problem}.")


def stop(jobs: ClusterJobs, one: FoundJob, tell: Callable[[str], None]) -> int:
    """End a job on all nodes, and see that nothing of it is left; one that has ended stays as it is.

    Raises:
        UnreachableError: the launch node does not answer any more.
        HostFailedError: something of the job may still run.
    """
    name, was = one.job.job, one.job
    job = was
    if was.runs:
        answer = detached_job.stop(jobs.logins[one.host], name)
        if answer.job is None:
            kind = UnreachableError if answer.silent else HostFailedError
            raise kind(f"Job {name} could not be stopped on {one.host}: {answer.problem}.")
        job = answer.job
    elif was.word != "lost":
        tell(f"{ended_words(was)} There is nothing to stop.")
        return ExitCode.OK
    swept = supervised_job.sweep(list(jobs.logins.values()), name)
    there = {login.host.name for login in jobs.logins.values()}
    unasked = [node for node in job.nodes if node not in there and was.word == "lost"]
    left = [f"{sweep.host}: {words}" for sweep in swept for words in (*sweep.left, sweep.problem) if words]
    left += [words for words in job.remains if words.partition(":")[0] not in there]
    left += [f"{node} could not be asked" for node in unasked]
    if job.runs:
        left.append(f"{one.host}: its keeper does not end")
    if left:
        raise HostFailedError(f"Of job {name} something may still run: {'; '.join(left[:_MOST_NAMED])}.")
    tell(f"Job {name} is ended on {folded(job.nodes)}.")
    return ExitCode.OK
