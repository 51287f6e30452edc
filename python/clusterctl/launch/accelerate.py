"""The words of ``accelerate launch`` on each node, and the user's configuration file of accelerate."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.launch.own_options import OwnOptions
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_OURS = ("num_machines", "machine_rank", "num_processes", "main_process_ip", "main_process_port")
OPTIONS = OwnOptions("accelerate", frozenset(_OURS))
MOST_BYTES = 1 << 16
_TEXT = re.compile(r"[A-Za-z0-9_.:%-]{1,253}")
_BY_CALLER = -1  # num_processes of a file that leaves the number to the caller
# What chooses how accelerate starts the processes; without one it starts a single process a node.
_CHOICES = frozenset({"multi_gpu", "cpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm"})
_SINGLE = frozenset({"", "NO", "MULTI_CPU"})
_DEEPSPEED = "DEEPSPEED"


@dataclass(frozen=True)
class AccelerateConfig:
    """What a configuration file says that the run knows itself; None where the file says nothing."""

    path: str
    distributed_type: str = ""
    num_machines: int | None = None
    machine_rank: int | None = None
    num_processes: int | None = None
    main_process_ip: str | None = None
    main_process_port: int | None = None


@dataclass(frozen=True)
class RunFacts:
    """What the run knows: the processes of each node, and where the nodes meet."""

    counts: tuple[int, ...]
    address: str
    port: str


def config_file(program: Sequence[str]) -> str:
    """Return the configuration file that the words before the program name, empty without one."""
    return OPTIONS.value(OPTIONS.parted(program)[0], "config_file")


def parse(path: str, text: str) -> AccelerateConfig:
    """Read a configuration file.

    Raises:
        ConfigError: the file or a value in it is malformed, or it is for SageMaker.
    """
    found = _loaded(text)
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is not a configuration of accelerate; 'accelerate config' writes one.")
    if found.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        raise ConfigError(f"compute_environment of {path} is not LOCAL_MACHINE; make a file for your own machines.")
    return AccelerateConfig(
        path,
        distributed_type=_text(path, found, "distributed_type") or "",
        num_machines=_number(path, found, "num_machines"),
        machine_rank=_number(path, found, "machine_rank"),
        num_processes=_number(path, found, "num_processes"),
        main_process_ip=_text(path, found, "main_process_ip"),
        main_process_port=_number(path, found, "main_process_port"),
    )


def _loaded(text: str) -> Any:
    """Return what a text in YAML says; None where it is malformed, or has an alias, which makes a short text huge."""
    import yaml  # noqa: PLC0415 - of all jobs, only those with such a file need it

    class WithoutAliases(yaml.SafeLoader):
        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("an alias")
            return super().compose_node(parent, index)

    try:
        return yaml.load(text, WithoutAliases)  # noqa: S506 - it is a safe loader
    except (yaml.YAMLError, RecursionError, ValueError):
        return None


def words(facts: RunFacts, options: Sequence[str], config: AccelerateConfig | None) -> list[str]:
    """Return the options of ``accelerate launch`` that the run sets, without the rank of the node.

    Raises:
        ConfigError: the nodes differ in their processes, which accelerate cannot express.
    """
    if len(set(facts.counts)) > 1:
        raise ConfigError(
            "accelerate starts the same number of processes on each node, and the nodes' slots differ; give "
            "--nproc-per-node."
        )
    line = [
        f"--num_machines={len(facts.counts)}",
        f"--num_processes={sum(facts.counts)}",
        f"--main_process_ip={facts.address}",
        f"--main_process_port={facts.port}",
        "--same_network",
    ]
    given = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in options}
    kind = config.distributed_type if config else ""
    if not given & _CHOICES and kind in _SINGLE and sum(facts.counts) > 1:
        line.append("--multi_gpu")  # torchrun's way, on CPUs too
    if "use_deepspeed" in given or kind == _DEEPSPEED:
        line.append("--deepspeed_multinode_launcher=standard")  # without it, every node would start all nodes by pdsh
    return line


def notes(facts: RunFacts, config: AccelerateConfig | None) -> tuple[str, ...]:
    """Return one sentence that names what the file says and the run has otherwise; none where they agree."""
    if config is None:
        return ()
    nodes, ranks = len(facts.counts), sum(facts.counts)
    said: list[tuple[str, str]] = []
    if config.num_machines not in {None, nodes}:
        said.append((f"num_machines {config.num_machines}", f"num_machines {nodes}"))
    if config.machine_rank:
        said.append((f"machine_rank {config.machine_rank}", "machine_rank by node"))
    if config.num_processes not in {None, _BY_CALLER, ranks}:
        said.append((f"num_processes {config.num_processes}", f"num_processes {ranks}"))
    if config.main_process_ip not in {None, facts.address}:
        said.append((f"main_process_ip {config.main_process_ip}", f"main_process_ip {facts.address}"))
    if config.main_process_port is not None:
        said.append((f"main_process_port {config.main_process_port}", "a free main_process_port"))
    if not said:
        return ()
    theirs, ours = (", ".join(pair[side] for pair in said) for side in (0, 1))
    return (f"{config.path} has {theirs}; this run uses {ours}.",)


def _number(path: str, found: dict[object, object], name: str) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    if type(value) is not int or not _BY_CALLER <= value < 1 << 31:  # True would count as 1
        raise ConfigError(f"{name} of {path} is not a whole number; correct it or leave it out.")
    return value


def _text(path: str, found: dict[object, object], name: str) -> str | None:
    value = found.get(name)
    if value is None:
        return None
    text = {False: "NO", True: "YES"}.get(value, "") if isinstance(value, bool) else value  # YAML reads NO as false
    if not isinstance(text, str) or not _TEXT.fullmatch(text):
        raise ConfigError(f"{name} of {path} is not a name or an address; correct it or leave it out.")
    return text
