"""From the nodes' facts and the user's wishes to the launch line; nothing here touches a machine."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from clusterctl.launch import affinity, launchers, mig_worker, mpirun, mpirun_job, torchrun
from clusterctl.launch.launchers import TRAITS, Launcher
from clusterctl.launch.mpirun import NO_PATH_OPTIONS, Affinity, PathOptions, Transport
from clusterctl.model.fabric import INCLUSION_OF, plain
from clusterctl.model.rank_slots import gpu_devices
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.launch.accelerate import AccelerateConfig
    from clusterctl.launch.mpirun_job import Member
    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.layout import Layout


# --- The horovodrun line of Horovod 0.28, which composes an mpirun line of its own ------------------------------------

# What horovodrun gives mpirun by itself (0.28.1: -mca pml ob1 -mca btl ^openib); mpirun 5.0 takes nothing twice.
_ITS_OWN = ("pml", "btl")


def argv(launch: mpirun.MpirunLaunch, horovodrun: str, interfaces: Sequence[str] = ()) -> list[str]:
    """Return the tokens of the horovodrun line.

    horovodrun gives the ranks every variable of its own environment, so nothing is exported. Without ``interfaces`` it
    looks for some that all nodes can be reached by, which takes it seconds.

    Raises:
        ConfigError: as :func:`mpirun.argv`, or for a parameter that horovodrun sets by itself.
    """
    own = next((name for name in launch.mca if name in _ITS_OWN), None)
    if own is not None:
        raise ConfigError(
            f"horovodrun sets {own} by itself (pml ob1, btl ^openib), and mpirun takes it once only; "
            "use --launcher mpirun for another choice."
        )
    mpirun.argv(launch)  # refuses what no mpirun takes
    speech = mpirun.dialect(launch.version)
    line = [horovodrun, "-np", str(mpirun.count(launch)), "-H", mpirun.words(launch.slots)]
    line += ["--network-interfaces", ",".join(interfaces)] if interfaces else []
    more = mpirun.parameters(speech, launch.mca, launch.job)
    more += ["--wdir", launch.directory] if launch.directory else []
    chosen = (launch.bind, launch.map_by) != (mpirun.Bind.NONE, mpirun.MapBy.SLOT)
    if chosen or (launch.oversubscribe and speech is mpirun.Dialect.PRRTE):
        line += [f"--binding-args={shlex.join(mpirun.placed(launch))}"]
    if launch.oversubscribe and speech is mpirun.Dialect.ORTE:
        more += ["--oversubscribe"]
    # It puts these into a line for a shell as they are.
    line += [f"--mpi-args={shlex.join(more)}"] if more else []
    return [*line, *launch.program]


# PRRTE 3.0 (Open MPI 5.0.7) loses the end of a rank that comes before its node has reported the launch, and then waits
# for ever: seen in 3 % of all starts of `hostname` on four nodes, and never in 200 with half of this wait.
# The role fabric has daemons start ranks without threads, and then no end is lost: never in 610 starts.
_IN_TURN = "odls_base_max_threads"
_SETTLED = ("/bin/sh", "-c", 'sleep 0.2; exec "$0" "$@"')
# The text is constant; the folder comes to it as $0. A node's own session may have a PYTHONPATH, which stays first.
_PACED = ("/bin/sh", "-c", 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$0"; export PYTHONPATH; exec "$@"')
_PACE = "CLUSTERCTL_PACE=1"
_HARVESTED = "PMIX_MCA_pmdl_ompi_include_envars"  # whose default is OMPI_*
_TEMPORARY = "/tmp"  # noqa: S108 - the name that every node knows


@dataclass(frozen=True)
class JobOptions:
    """What the user asked for.

    ``exported`` are values of ``-x``, ``caller`` the environment in which they were typed. ``processes`` are those that
    a launcher starts on each node. ``directory`` is where the program starts on the nodes, by default the home.
    ``pace``: ranks report their steps. ``config`` is the user's file for accelerate.
    """

    program: tuple[str, ...]
    launcher: Launcher = Launcher.MPIRUN
    ranks: int | None = None
    processes: int | None = None
    exported: tuple[str, ...] = ()
    caller: Mapping[str, str] = field(default_factory=dict)
    mca: Mapping[str, str] = field(default_factory=dict)
    path: PathOptions = NO_PATH_OPTIONS
    oversubscribe: bool = False
    directory: str = ""
    tagged: bool = False
    pace: bool = False
    config: AccelerateConfig | None = None


@dataclass(frozen=True)
class LaunchPlan:
    """A launch line.

    ``environment`` is what the launcher's own has to hold. ``hosts`` has the node of each of mpirun's ranks. The last
    ``literal`` tokens are the user's. ``port`` asks for a free one in place of ``{port}``. ``tags``: lines of output
    begin with mpirun's tag. ``notes`` say what of the wish was changed.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    hosts: tuple[str, ...]
    literal: int
    port: bool = False
    tags: bool = False
    notes: tuple[str, ...] = ()

    def shown(self) -> str:
        """Return the line as it can be pasted into a shell on the launch node."""
        words = [word.replace("{port}", str(torchrun.DEFAULT_PORT)) for word in self._ours()]
        given = [f"{name}={value}" for name, value in self.environment.items()]
        return shlex.join([*(["env", *given] if given else []), *words, *self._theirs()])

    def _ours(self) -> tuple[str, ...]:
        return self.argv[: len(self.argv) - self.literal]

    def _theirs(self) -> tuple[str, ...]:
        return self.argv[len(self.argv) - self.literal :]


def compose(members: Mapping[str, Member], launch_node: str, wish: JobOptions, job: str = "") -> LaunchPlan:
    """Return the line that starts the job on the launch node.

    ``job`` is the id by which what is left of it can be found; without one the line is to be shown.

    Raises:
        ConfigError: it cannot be done; the sentence says what to do.
    """
    if not wish.program or not wish.program[0]:
        raise ConfigError("There is no program to start; name it behind '--', as in: -- ./program --its-option.")
    first = members[launch_node]
    slots = mpirun.ordered({name: member.slots for name, member in members.items()}, launch_node)
    session = first.facts.environment
    exported = (*wish.exported, _PACE) if wish.pace else wish.exported
    variables = of_job(exported, wish.caller, session)
    if first.facts.layout.by_path and any(one.name == "PATH" and one.value is not None for one in variables):
        raise ConfigError(
            "-x PATH hides the environment of the project, which nodes of several platforms find by PATH. Leave "
            "it out, or choose the nodes of one platform with --limit."
        )
    mca, variables, notes = _without_collisions(members, first.version, wish.mca, variables)
    wish = replace(wish, mca=mca)
    if wish.launcher is Launcher.HOROVODRUN:
        plan = _horovodrun(members, slots, wish, job, variables)
        return replace(plan, notes=(*notes, *plan.notes))
    slots, counts = _counts(members, slots, wish)
    start = _start(members, slots, counts, launch_node, wish, job)
    per_node = TRAITS[wish.launcher].per_node
    line = mpirun_job.line(
        members,
        slots,
        mpirun_job.MpirunJob(
            program=(*_paced(wish, first.facts.layout), *start.tokens),
            job=job,
            ranks=wish.ranks,
            per_node=per_node,
            exported=(*(variable.word for variable in variables), *_others(start.exported, variables)),
            mca=wish.mca,
            path=wish.path,
            workers=counts if per_node else None,
            oversubscribe=wish.oversubscribe and not per_node,
            tagged=wish.tagged,
            directory=wish.directory,
        ),
        launch_node,
    )
    # The role environment has ranks get mpirun's PATH. Open MPI 5.0 does that last, after what -x says.
    has_own = any(one.name == "PATH" and one.value is not None for one in variables)
    harvested = {_HARVESTED: "OMPI_*"} if has_own and mpirun.dialect(first.version) is mpirun.Dialect.PRRTE else {}
    # The line is also pasted, and there -x PATH takes that of the user's own session.
    by_path = {"PATH": session["PATH"]} if first.facts.layout.by_path else {}
    return LaunchPlan(
        argv=line.argv,
        environment={**line.environment, **by_path, **harvested, **beside(variables)},
        hosts=line.path.hosts,
        literal=start.literal,
        port=start.port,
        tags=wish.tagged,
        notes=(*notes, *start.notes, *line.path.notes),
    )


def _others(names: Sequence[str], variables: Sequence[Variable]) -> tuple[str, ...]:
    """Return the names that the user does not set; mpirun takes each once."""
    return tuple(name for name in names if name not in {variable.name for variable in variables})


def _without_collisions(
    members: Mapping[str, Member], version: str, mca: Mapping[str, str], variables: tuple[Variable, ...]
) -> tuple[dict[str, str], tuple[Variable, ...], tuple[str, ...]]:
    """Leave out exclusions of networks, and note each; the cluster's own choice of a network makes them needless.

    Open MPI refuses an exclusion beside its inclusion, and the role ``fabric`` writes the inclusions into files.
    """
    speech = mpirun.dialect(version)
    files = [file for member in members.values() for file in member.facts.parameter_files]
    by_role = {name for file in files for name in file.own}
    given = [(f"--mca {name}", name, value) for name, value in mca.items()]
    given += [(f"-x {one.name}", one.name, one.value or "") for one in variables]
    names = {shown: mpirun.present_name(speech, plain(name)) for shown, name, _value in given}
    here = (by_role & set(INCLUSION_OF.values())) - set(names.values())
    notes = {}
    for shown, _name, value in given:
        included = INCLUSION_OF.get(names[shown], "")
        if included not in here:
            continue
        _refuse_own_network(members, shown, value, included)
        notes[shown] = (
            f"{shown} is left out: Open MPI takes {included} or {names[shown]}, and the role fabric has set "
            f"{included}, which leaves out all other networks."
        )
    kept = {name: value for name, value in mca.items() if f"--mca {name}" not in notes}
    return kept, tuple(one for one in variables if f"-x {one.name}" not in notes), tuple(notes.values())


def _refuse_own_network(members: Mapping[str, Member], shown: str, value: str, included: str) -> None:
    excluded = {word.strip() for word in value.split(",")}
    for name, member in members.items():
        known = member.facts.fabric
        own = {known.interface, *known.cidrs} & excluded if known else set()
        if own:
            raise ConfigError(
                f"{shown} leaves out {', '.join(sorted(own))}, the cluster's network of {name}; name the "
                f"network that you want with --mca {included}, or with fabric_interfaces for the whole cluster."
            )


def _paced(wish: JobOptions, layout: Layout) -> tuple[str, ...]:
    """Return what stands before the program so that its Python finds ``clusterctl.pace``."""
    return (*_PACED, layout.pace) if wish.pace else ()


@dataclass(frozen=True)
class NeededFiles:
    """What every node needs of a program: ``names``, as they are looked for.

    ``program`` is what starts; empty where the launcher brings the Python that starts a script or a module.
    """

    names: tuple[str, ...]
    program: str = ""


def needed_files(wish: JobOptions, layout: Layout) -> NeededFiles:
    """Return the files that every node needs: the program and its script.

    Raises:
        ConfigError: the words of the launcher are not valid.
    """
    _options, words = launchers.parted(wish.launcher, wish.program)
    program = with_python(words, layout)
    script = torchrun.script(program)
    by_launcher = TRAITS[wish.launcher].runs_scripts and program[0] in {"-m", script}
    here = [script if "/" in script else f"./{script}"] if script else []  # Python does not look into PATH
    names = [*([] if by_launcher else [program[0]]), *here]
    return NeededFiles(tuple(dict.fromkeys(names)), "" if by_launcher else program[0])


def with_python(program: tuple[str, ...], layout: Layout) -> tuple[str, ...]:
    """Return the program with the cluster's own Python where it begins with a bare ``python`` or ``python3``."""
    if program and program[0] in {"python", "python3"}:
        return (layout.python, *program[1:])
    return program


def _counts(
    members: Mapping[str, Member], slots: dict[str, int], wish: JobOptions
) -> tuple[dict[str, int], dict[str, int]]:
    """Return mpirun's slots, and the processes of each node, which a launcher of nodes starts itself."""
    name, per_node = wish.launcher.value, TRAITS[wish.launcher].per_node
    if wish.launcher is Launcher.MPIRUN:
        if wish.processes is not None:
            raise ConfigError("--nproc-per-node is torchrun's; mpirun and horovodrun take -np, the ranks on all nodes.")
        return slots, slots
    if wish.launcher is Launcher.JAX and None not in {wish.ranks, wish.processes}:
        raise ConfigError("-np and --nproc-per-node both say how many processes JAX gets; give one of them.")
    if per_node and wish.ranks is not None:
        raise ConfigError(
            f"-np is mpirun's and horovodrun's; {name} takes --nproc-per-node, the processes on each node."
        )
    if per_node and (wish.path.bind, wish.path.map_by) != (mpirun.Bind.NONE, mpirun.MapBy.SLOT):
        raise ConfigError(
            f"--bind-to and --map-by place mpirun's ranks; {name} starts its processes by itself, so leave them out."
        )
    counts = dict.fromkeys(slots, wish.processes) if wish.processes is not None else slots
    crowded = [host for host in slots if counts[host] > slots[host]]
    if crowded and not wish.oversubscribe:
        raise ConfigError(
            f"{wish.processes} processes do not fit into the {slots[crowded[0]]} slots of {crowded[0]}; raise slots= "
            "on the hosts, or take --oversubscribe to have processes share them."
        )
    if wish.launcher is Launcher.JAX and wish.ranks is None:
        slots = launchers.jax_counts({host: members[host].facts for host in slots}, slots, wish.processes)
    return slots, counts


def _start(
    members: Mapping[str, Member],
    slots: Mapping[str, int],
    counts: Mapping[str, int],
    launch_node: str,
    wish: JobOptions,
    job: str,
) -> launchers.StartWords:
    """Return what mpirun starts."""
    facts = {name: members[name].facts for name in slots}
    layout, known = facts[launch_node].layout, facts[launch_node].fabric
    address = known.address if known and known.address else launch_node
    early = job and len(slots) > 1 and mpirun.dialect(members[launch_node].version) is mpirun.Dialect.PRRTE
    early = early and not all(_in_turn(members[name], wish) for name in slots)
    settled = _SETTLED if early else ()
    if not TRAITS[wish.launcher].per_node:
        program = with_python(wish.program, layout)
        before: tuple[str, ...] = ()
        if wish.launcher is Launcher.JAX:
            hosts = mpirun_job.placement(slots, wish.path.map_by)
            before = launchers.before_jax(facts, hosts, address)
        return launchers.StartWords((*settled, *before, *program), len(program), port=bool(before))
    options, program = launchers.parted(wish.launcher, wish.program)
    start = launchers.on_nodes(
        wish.launcher,
        launchers.NodesJob(
            program=_of_workers(wish, program, list(facts.values()), layout),
            options=options,
            counts=counts,
            address=address,
            python=layout.python,
            has_gpus=any(gpu_devices(node) for node in facts.values()),
            rdzv_id=job,
            config=wish.config,
            addresses=_addresses(facts.values()),
            given=wish.processes is not None,
            programs=layout.programs,
        ),
    )
    quick = wish.launcher in {Launcher.NONE, Launcher.RAY}
    return replace(start, tokens=(*settled, *start.tokens)) if quick else start


def _addresses(nodes: Iterable[NodeFacts]) -> tuple[str, ...]:
    """Return the address of each node in the cluster's network; empty where one is not known."""
    found = tuple(node.fabric.address if node.fabric else "" for node in nodes)
    return found if all(found) else ()


def _of_workers(
    wish: JobOptions, program: tuple[str, ...], nodes: Sequence[NodeFacts], layout: Layout
) -> tuple[str, ...]:
    """Return the program such that each worker of a launcher takes its cores and its MIG instance."""
    if wish.launcher is Launcher.NONE:
        if wish.path.affinity is Affinity.AUTO:
            raise ConfigError("--affinity auto places ranks, and the launcher none starts one process a node; drop it.")
        return with_python(program, layout)
    instances, placed = affinity.has_instances(nodes), wish.path.affinity is Affinity.AUTO
    if not TRAITS[wish.launcher].places_workers and (instances or placed):
        what = "MIG instances" if instances else "--affinity auto"
        raise ConfigError(f"{wish.launcher.value} does not go with {what}; use torchrun, or accelerate.")
    if instances:
        program = mig_worker.of_workers(program, layout.python)
    if placed:
        program = affinity.of_workers(program, layout.python)
    return with_python(program, layout) if wish.launcher is Launcher.RAY else program


def _in_turn(member: Member, wish: JobOptions) -> bool:
    """Whether a node's daemon starts ranks one after the other, and none in a thread."""
    return _IN_TURN not in wish.mca and any(file.own.get(_IN_TURN) == "0" for file in member.facts.parameter_files)


def _horovodrun(
    members: Mapping[str, Member],
    slots: Mapping[str, int],
    wish: JobOptions,
    job: str,
    variables: tuple[Variable, ...],
) -> LaunchPlan:
    if wish.path.network is Transport.UCX:
        raise ConfigError("horovodrun always has MPI go over TCP (pml ob1); use --launcher mpirun for UCX.")
    if wish.processes is not None:
        raise ConfigError("--nproc-per-node is torchrun's; mpirun and horovodrun take -np, the ranks on all nodes.")
    first = members[next(iter(slots))]
    called = mpirun_job.node_names({name: members[name] for name in slots}, next(iter(slots)))
    fabrics = [member.facts.fabric for member in members.values()]
    names = {known.interface for known in fabrics if known and known.interface}
    program = with_python(wish.program, first.facts.layout)
    path = mpirun_job.decide(members, slots, replace(wish.path, network=Transport.TCP))
    line = argv(
        mpirun.MpirunLaunch(
            version=first.version,
            slots={called[name]: count for name, count in slots.items()},
            program=(*_paced(wish, first.facts.layout), *path.before, *program),
            job=job,
            ranks=wish.ranks,
            mca={**mpirun_job.name_parameters(called), **wish.mca},
            oversubscribe=wish.oversubscribe,
            bind=path.bind,
            map_by=path.map_by,
            directory=wish.directory,
        ),
        first.facts.layout.horovodrun,
        tuple(names) if len(names) == 1 and all(fabrics) and len(slots) > 1 else (),
    )
    given = {variable.name: variable.value for variable in variables if variable.value is not None}
    # It hands its whole environment to all ranks; the job's own folder for temporary files is on the launch node alone.
    temporary = {"TMPDIR": _TEMPORARY} if job else {}
    return LaunchPlan(
        argv=tuple(line),
        environment={**mpirun.environment(first.version, first.job_user), **temporary, **given},
        hosts=path.hosts,
        notes=path.notes,
        literal=len(program),
        tags=True,  # it asks mpirun for them itself
    )


# --- The variables that a job gets: those that it cannot do without, NCCL's, and what the user asks for ---------------

ALWAYS = ("PATH", "LD_LIBRARY_PATH")
NCCL_PREFIX = "NCCL_"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Words that mpirun of both series, horovodrun and a shell hand on as they are; 4.1 takes a list of variables apart at
# semicolons.
_PLAIN = re.compile(r"[A-Za-z0-9_./:,=+@%^-]*")


@dataclass(frozen=True)
class Variable:
    """A variable of the job; without a value it is the launcher's own."""

    name: str
    value: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether ``NAME=VALUE`` may stand on a command line; another value travels in the launcher's environment."""
        return self.value is None or bool(_PLAIN.fullmatch(self.value))

    @property
    def word(self) -> str:
        """What stands behind ``-x``."""
        return self.name if self.value is None or not self.is_plain else f"{self.name}={self.value}"


def check_name(name: str) -> str:
    """Return the name of a variable."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not the name of an environment variable; it has letters, digits and '_', as in -x NAME or "
            "-x NAME=VALUE."
        )
    return name


def parse(text: str) -> Variable:
    """Read the value of ``-x``: ``NAME`` or ``NAME=VALUE``."""
    name, sign, value = text.partition("=")
    check_name(name)
    if "\n" in value or "\0" in value:
        raise ConfigError(f"The value of {name} has a newline in it, which no launcher hands on.")
    return Variable(name, value if sign else None)


def of_job(
    asked: Sequence[str], caller: Mapping[str, str] | None = None, session: Iterable[str] = ALWAYS
) -> tuple[Variable, ...]:
    """Return the variables of a job, each once.

    Args:
        asked: the user's values of ``-x``. One without a value takes the caller's, else the launch node's own.
        caller: the environment in which the user called us. NCCL's variables in it go along.
        session: names among :data:`ALWAYS` that the launch node's session has; mpirun warns of others.
    """
    given = caller or {}
    found = {name: Variable(name) for name in ALWAYS if name in set(session)}
    for name, value in given.items():
        if name.startswith(NCCL_PREFIX) and _NAME.fullmatch(name) and "\n" not in value:
            found[name] = Variable(name, value)
    for text in asked:
        variable = parse(text)
        if variable.value is None and variable.name not in ALWAYS and variable.name in given:
            variable = parse(f"{variable.name}={given[variable.name]}")
        found[variable.name] = variable
    return tuple(found.values())


def beside(variables: Iterable[Variable]) -> dict[str, str]:
    """Return what the launcher's own environment has to hold, since it may not stand on the command line."""
    return {variable.name: str(variable.value) for variable in variables if not variable.is_plain}
