"""Validate nodes inside one allocation of Slurm: choose them, hold the allocation, and run the same checks in it.

mpirun runs as a step of the job and starts its daemons by srun. No ssh goes to a node or between nodes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from clusterctl.inventory import ansible_inventory
from clusterctl.model import job_login, nodeset
from clusterctl.model.facts import srun_without_pmix
from clusterctl.model.hosts import OF_SLURM, Host, Inventory, InventorySources, SlurmStep
from clusterctl.model.results import CheckProgress
from clusterctl.remote import slurm_text
from clusterctl.remote.slurm import Allocation, Slurm
from clusterctl.state import paths, proofs
from clusterctl.state.proofs import oldest_first
from clusterctl.support.errors import ConfigError, ValidationCouldNotRunError
from clusterctl.support.words import and_more
from clusterctl.validation import idle_part, run
from clusterctl.validation.checks import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from clusterctl.inventory.ansible_inventory import Cluster
    from clusterctl.model.hosts import AnyInventory
    from clusterctl.model.results import ValidationEvent, ValidationRecord
    from clusterctl.model.scheduler_options import SlurmOptions
    from clusterctl.remote.slurm import Grant
    from clusterctl.remote.slurm_text import SlurmNode, SlurmRequest
    from clusterctl.validation.options import ValidationOptions

ALLOCATION = "allocation"  # what a progress is about before the first check
_MOST_NAMED = 6
_OTHER_USERS = (job_login.CLUSTER_USER, job_login.MESH_USER)


@dataclass(frozen=True)
class Choice:
    """The nodes that may take part by NodeName, their hosts in the inventory, and what to ask Slurm for.

    ``left_out`` has the reason of each host that takes no part because it is busy, or not in its turn.
    """

    nodes: Mapping[str, SlurmNode]
    hosts: Mapping[str, Host]
    request: SlurmRequest
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of the hosts that may take part, as the record has them."""
        return [_name(node, self.hosts) for node in self.nodes]


def validate(
    inventory: AnyInventory | Cluster | None,
    options: ValidationOptions,
    wish: SlurmOptions,
    on_event: Callable[[ValidationEvent], None] | None = None,
) -> ValidationRecord:
    """Validate nodes inside one allocation, which is given back whatever happens.

    Without an inventory, all nodes of the partition take part, narrowed by the option ``--limit``.

    Returns:
        The record, as :func:`clusterctl.validation.run.validate` does.

    Raises:
        ConfigError: the inventory or an option is wrong, or Slurm does not know a host.
        ValidationCouldNotRunError: Slurm does not answer, refuses, or does not start the job in time.
    """
    registry.select(options.checks, options.suite)  # a wrong name is told before anything waits in the queue
    known = None if inventory is None else ansible_inventory.load(inventory, options.inventory)
    submit = idle_part.named(wish.submit_host, known, options.inventory)
    slurm = Slurm(submit, sudo=idle_part.may_sudo(wish.submit_host, known))
    if wish.by_srun:
        refuse_without_pmix(wish.mpi, slurm.mpi_types(), slurm.place)
    sources = known.sources if known is not None else _sources(slurm.cluster_name(), wish.partition)
    turns = proofs.turns(paths.cluster_id(sources)) if options.skip_busy else None
    chosen = choose(slurm.nodes(wish.partition), known, wish, options.inventory.limit, turns)
    moved: tuple[str, ...] = ()
    if options.skip_busy:
        moved = proofs.take_turns(paths.cluster_id(sources), chosen.names, datetime.now(timezone.utc))
    options = replace(options, left_out=chosen.left_out)

    def tell(words: str) -> None:
        if on_event is not None:
            on_event(CheckProgress(ALLOCATION, words))

    with Allocation(slurm, chosen.request, wish.start_within_s, tell) as allocation:
        cluster = allocated(allocation.wait(), chosen, submit, sources, options.inventory.limit)
        record = run.of_cluster(cluster, options, on_event, allocation.ended, slurm)
    notes = (*moved, *([allocation.left] if allocation.left else []))
    return record.model_copy(update={"notes": (*record.notes, *notes)}) if notes else record


def refuse_without_pmix(wanted: str, types: Sequence[str], place: str) -> None:
    """Refuse a type of srun that does not bring ranks together.

    Raises:
        ValidationCouldNotRunError: it is not a type of PMIx, or srun lacks it.
    """
    pmix = [name for name in types if name.startswith("pmix")]
    shown = ", ".join(types) or "none"
    if not pmix:
        raise ValidationCouldNotRunError(
            f"{place}: Slurm has no PMIx plugin ('srun --mpi=list' has {shown}), and without one srun "
            f"{srun_without_pmix()}; install Slurm's plugin for PMIx, or leave --launcher srun out."
        )
    if not wanted.startswith("pmix"):
        raise ValidationCouldNotRunError(
            f"'srun --mpi={wanted}' {srun_without_pmix()}; give --mpi {' or '.join(pmix)}, or leave --launcher srun "
            "out."
        )
    if wanted not in pmix:
        raise ValidationCouldNotRunError(
            f"{place}: Slurm has no type '{wanted}'; give --mpi {' or '.join(pmix)}, as 'srun --mpi=list' has them."
        )


def choose(
    found: Sequence[SlurmNode],
    known: Inventory | None,
    wish: SlurmOptions,
    limit: str | None = None,
    turns: Mapping[str, datetime] | None = None,
) -> Choice:
    """Choose the nodes that may take part, and say what to ask Slurm for.

    Without an inventory, the nodes are those that Slurm names, narrowed by ``limit``. ``turns`` says when each host had
    its last turn, where busy nodes are left out; None leaves out none.

    Raises:
        ConfigError: Slurm does not know a host, or the limit leaves none.
        ValidationCouldNotRunError: nodes are unusable, too few, or of different hardware.
    """
    hosts: dict[str, Host] = {}
    if known is None:
        candidates = limited(found, limit)
    else:
        nodes = slurm_text.of_hosts(known.selected_hosts, found)
        if unknown := [host.name for host in known.selected_hosts if host.name not in nodes]:
            raise ConfigError(
                f"{nodeset.folded(unknown)} of the inventory: not in Slurm's {_where(wish)}; name the right partition "
                "with -p, or leave them out with --limit."
            )
        candidates = list(nodes.values())
        hosts = {nodes[host.name].name: host for host in known.selected_hosts}
    if turns is not None:
        return _asked(*_taking_turns(candidates, hosts, wish, turns), hosts, found, wish)
    usable = [node for node in candidates if node.is_usable]
    unusable = [node for node in candidates if not node.is_usable]
    if unusable and (not usable if known is None else wish.nodes is None):
        raise ValidationCouldNotRunError(_unusable(unusable))
    return _asked(usable, {}, hosts, found, wish)


def _where(wish: SlurmOptions) -> str:
    return f"partition '{wish.partition}'" if wish.partition else "default partition"


def _taking_turns(
    candidates: Sequence[SlurmNode], hosts: Mapping[str, Host], wish: SlurmOptions, turns: Mapping[str, datetime]
) -> tuple[list[SlurmNode], dict[str, str]]:
    """Return the idle nodes, of more than are wanted those whose turn is the oldest, and why other hosts stay out."""
    by_host = {_name(node.name, hosts): node for node in candidates}
    left_out = {name: node.at_work for name, node in by_host.items() if node.at_work}
    idle = [name for name in by_host if name not in left_out]
    if not idle:
        raise idle_part.all_busy(left_out)
    in_turn = set(oldest_first(idle, turns)[: wish.nodes])
    left_out.update({name: "idle; its turn comes later" for name in idle if name not in in_turn})
    return [by_host[name] for name in idle if name in in_turn], left_out


def _name(node: str, hosts: Mapping[str, Host]) -> str:
    """Return the name that a record has for a node of Slurm: that of its host, where an inventory names it."""
    return hosts[node].name if node in hosts else node


def _asked(
    candidates: Sequence[SlurmNode],
    left_out: Mapping[str, str],
    hosts: Mapping[str, Host],
    found: Sequence[SlurmNode],
    wish: SlurmOptions,
) -> Choice:
    """Return what to ask Slurm for, of the nodes that may take part."""
    is_idle_part = bool(left_out)
    count = len(candidates) if wish.nodes is None or is_idle_part else wish.nodes
    if not candidates or count > len(candidates):
        raise ValidationCouldNotRunError(
            f"{max(1, count)} nodes are asked for, and Slurm's {_where(wish)} has {len(candidates)} that can take "
            "part; ask for fewer --nodes, or see 'sinfo -R' for the others."
        )
    if kinds := slurm_text.mixed(candidates):
        raise ValidationCouldNotRunError(
            f"The nodes of Slurm's {_where(wish)} have different hardware ({kinds}); choose nodes of one kind with "
            "--limit, or a partition of one kind with -p."
        )
    names = {node.name for node in candidates}
    everyone = count == len(candidates)
    request = slurm_text.SlurmRequest(
        nodes=count,
        time_s=wish.time_s,
        partition=wish.partition,
        account=wish.account,
        nodelist=tuple(node.name for node in candidates) if everyone else (),
        exclude=() if everyone else tuple(node.name for node in found if node.name not in names),
        gpus=min(node.gpus for node in candidates),
    )
    return Choice({node.name: node for node in candidates}, hosts, request, left_out)


def limited(found: Iterable[SlurmNode], limit: str | None) -> list[SlurmNode]:
    """Return the nodes that a limit leaves: names such as node[1-3],node7, with a leading '!' those to leave out."""
    nodes = list(found)
    if limit is None:
        return nodes
    words = [word.strip() for word in re.split(r",(?![^\[]*\])", limit) if word.strip()]
    wanted = {name for word in words if not word.startswith("!") for name in nodeset.expanded(word) or [word]}
    unwanted = {name for word in words if word.startswith("!") for name in nodeset.expanded(word[1:]) or [word[1:]]}
    left = [node for node in nodes if (node.name in wanted or not wanted) and node.name not in unwanted]
    if not left:
        shown = nodeset.folded(node.name for node in nodes)
        raise ConfigError(f"--limit '{limit}' leaves none of Slurm's nodes {shown}; name some of them.")
    return left


def allocated(
    grant: Grant, chosen: Choice, submit: Host | None, sources: InventorySources, limit: str | None = None
) -> Inventory:
    """Return the hosts of an allocation, each reached by a step of its job.

    ``submit`` is the host that runs srun, None for this machine.
    """
    cpus = dict(zip(grant.names, grant.cpus, strict=True)) if grant.cpus else {}
    plain = [_host(name, chosen, cpus.get(name)) for name in grant.names]
    variables = slurm_text.launch_variables(grant.job, grant.names, [host.slots or 1 for host in plain])
    hosts = tuple(
        replace(host, step=SlurmStep(grant.job, name, submit, variables))
        for name, host in zip(grant.names, plain, strict=True)
    )
    return Inventory(sources, hosts, tuple(host.name for host in hosts), f"slurm-{grant.job}", limit)


def _host(name: str, chosen: Choice, cpus: int | None) -> Host:
    """Return the host of a node: that of the inventory, without what concerns ssh and sudo alone."""
    node = chosen.nodes.get(name)
    known = chosen.hosts.get(name) or Host(name, node.address if node is not None else name)
    slots = known.slots or (node.gpus or min(node.cores, cpus or node.cores) if node is not None else cpus)
    variables = {key: value for key, value in known.variables.items() if key not in _OTHER_USERS}
    return replace(
        known, user=None, become=False, login_password="", sudo_password=None, slots=slots, variables=variables
    )


def _unusable(nodes: Sequence[SlurmNode]) -> str:
    told = [f"{node.name} is {node.state}{f' ({node.reason})' if node.reason else ''}" for node in nodes]
    first = nodes[0].name
    return (
        f"Slurm starts no job on some of the nodes: {and_more(told, _MOST_NAMED, '; ')}. Leave them out with --limit, "
        f"or mend them and run 'scontrol update nodename={first} state=resume'."
    )


def _sources(cluster: str, partition: str) -> InventorySources:
    return InventorySources((f"{OF_SLURM}{cluster}{f'/{partition}' if partition else ''}",))
