# SPDX-License-Identifier: Apache-2.0
"""The one gate for what a node says of itself: each field of its record has a form and a bound here.

Beyond it the record is inert: names, addresses, versions, keys and paths are of a pattern, texts for people are
printable, and everything is bounded. A record that does not fit is a problem of that node. Who adds a field to
``node_look`` adds it here; one without a form does not pass.

Both ways to the controller go through it: a bare ssh (``clusterctl.remote.facts``) and Ansible (``preflight_look``).
"""

from __future__ import annotations

import math
import re
from typing import Any, Callable, Dict, Mapping

from .ip_address import is_interface, network, parsed
from .node_look.existing_python import PLAIN
from .plain_text import inert, printable

Rule = Callable[[Any], Any]

_LARGEST = 1 << 64
_SHOWN = 60


class RecordError(ValueError):
    """A field does not fit; the text is a clause such as ``ssh.port is '0x', which is not a whole number``."""

    def __init__(self, value: Any, wanted: str, place: str = "") -> None:
        """Keep what was wanted of a value, and where it stands."""
        self.value, self.wanted, self.place = value, wanted, place
        super().__init__(f"{place or 'the record'} is {ascii(value)[:_SHOWN]}, which is not {wanted}")

    def inside(self, key: str) -> RecordError:
        """Return the same of the value that holds it."""
        place = f"{key}.{self.place}" if self.place else key
        return RecordError(self.value, self.wanted, place)


def _pattern(expression: str, wanted: str) -> Rule:
    compiled = re.compile(expression)

    def rule(value: Any) -> Any:
        if isinstance(value, str) and compiled.fullmatch(value):
            return value
        raise RecordError(value, wanted)

    return rule


def _text(most: int) -> Rule:
    """Take words for people: what a terminal would obey is replaced, and a newline is a space."""

    def rule(value: Any) -> Any:
        if not isinstance(value, str) or len(value) > most:
            raise RecordError(value, f"a text of at most {most} characters")
        return value if value.isprintable() else printable(" ".join(value.split()))

    return rule


def _number(lowest: float, highest: float, *, whole: bool = True) -> Rule:
    def rule(value: Any) -> Any:
        fits = isinstance(value, int) or (not whole and isinstance(value, float) and math.isfinite(value))
        if fits and not isinstance(value, bool) and lowest <= value <= highest:
            return value
        raise RecordError(value, f"a {'whole ' if whole else ''}number from {lowest} to {highest}")

    return rule


def _flag(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    raise RecordError(value, "true or false")


def _or_none(rule: Rule) -> Rule:
    return lambda value: None if value is None else rule(value)


def _many(rule: Rule, most: int = 4096, least: int = 0) -> Rule:
    def each(value: Any) -> Any:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise RecordError(value, f"a list of at {f'least {least} and at ' if least else ''}most {most}")
        found = []
        for number, one in enumerate(value):
            try:
                found.append(rule(one))
            except RecordError as error:
                raise error.inside(str(number)) from None
        return found

    return each


def _mapping(key: Rule, its: Rule, most: int = 4096) -> Rule:
    def each(value: Any) -> Any:
        if not isinstance(value, dict) or len(value) > most:
            raise RecordError(value, f"a mapping of at most {most}")
        found = {}
        for name, one in value.items():
            key(name)
            try:
                found[name] = its(one)
            except RecordError as error:
                raise error.inside(name) from None
        return found

    return each


def _record(*needed: str, **rules: Rule) -> Rule:
    """Take a mapping with these keys; others, which a newer program may have, are left out.

    Args:
        needed: keys that it has to have, because the rules of roles take them as given.
        rules: what each key holds.
    """

    def fields(value: Any) -> Any:
        if not isinstance(value, dict):
            raise RecordError(value, "a mapping")
        for name in needed:
            if name not in value:
                raise RecordError(None, "there").inside(name)
        found = {}
        for name, rule in rules.items():
            if name in value:
                try:
                    found[name] = rule(value[name])
                except RecordError as error:
                    raise error.inside(name) from None
        return found

    return fields


def _software(**rules: Rule) -> Rule:
    """Take software of the user: without a problem, all keys are there, because the recipes take them as given."""
    rules = {"problem": _text(1024), "cure": _text(1024), **rules}
    some, whole = _record("path", "problem", "cure", **rules), _record(*rules, **rules)
    return lambda value: found if (found := some(value))["problem"] else whole(value)


def _address(value: Any) -> Any:
    try:
        return str(parsed(value, may_have_scope=True))
    except ValueError:
        raise RecordError(value, "an IP address") from None


def _network(value: Any) -> Any:
    try:
        network(value, strict=False)
    except ValueError:
        raise RecordError(value, "a network") from None
    return value


def _interface(value: Any) -> Any:
    if is_interface(value):
        return value
    raise RecordError(value, "the name of a network interface")


def _or_empty(rule: Rule) -> Rule:
    return lambda value: value if value == "" else rule(value)


def _plain(value: Any) -> Any:
    try:
        return inert(value)
    except ValueError as error:
        raise RecordError("…", f"plain data: it {error}") from None


_WORD = _pattern(r"[A-Za-z0-9_.:+~@,/ ()-]{0,128}", "a word of letters, digits and _.:+~@,/()-")
_HOST = _pattern(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252})|", "a host name")
_USER = _pattern(r"[A-Za-z0-9_](?:[A-Za-z0-9_.@\\ -]{0,254}[A-Za-z0-9_.$@-])?|", "the name of a user")
_VERSION = _pattern(r"[A-Za-z0-9_.+~:-]{0,64}", "a version")
_TOOLKIT = _pattern(r"(?:[0-9]{1,4}(?:\.[A-Za-z0-9_.+~-]{0,50})?)?", "a version that begins with a number")
# Its numbers are short, because the controller counts up to them where it lists the wheels that fit.
_PLATFORM = _pattern(
    r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,150}-glibc[0-9]{1,3}(?:\.[0-9]{1,3}){0,2}-py3\.[0-9]{1,3}(?:-cuda[0-9]{1,3})?",
    "the id of a platform",
)
_KEY = _pattern(r"[0-9A-Za-z_.-]{0,128}", "a key")
# It becomes an argument of configure, so it holds no sign that a shell or a make file knows.
_BUILD_PATH = _pattern(r"(?:/[A-Za-z0-9_.+,@:=~-]+)*/?", "an absolute path of plain characters")
# It becomes a word of a linker, of a script and of search paths.
_PLAIN_PATH = _pattern(PLAIN.pattern, "an absolute path of letters, digits and . _ + - alone")
_HOST_KEY = _pattern(r"(?:ssh|ecdsa|sk)-[a-z0-9@.-]{1,64} AAAA[A-Za-z0-9+/]{16,16384}={0,3}", "a public key of ssh")
_HEX = _pattern(r"[0-9a-fA-F:.x-]{0,64}", "a number in hexadecimal")
_DEVICE = _pattern(r"[A-Za-z0-9_.-]{1,64}", "the name of a device")
_UUID = _pattern(r"[A-Za-z0-9_./-]{0,128}", "the id of a GPU")
_VARIABLE = _pattern(r"[^=\x00-\x20\x7f-\x9f]{1,256}", "the name of a variable")
_SETTING = _pattern(r"[A-Za-z0-9_.*?:@/ +-]{1,256}", "the name of a setting")
_SENTENCE, _PATH, _VALUE = _text(20000), _text(4096), _text(1 << 17)
_COUNT = _number(0, _LARGEST)
_BYTES = _or_none(_COUNT)
_SIGNED = _number(-(1 << 31), _LARGEST)
_SECONDS = _number(0, 1e12, whole=False)
_PORT = _number(0, 65535)
_FAMILY = _number(4, 6)

_SCRATCH = _record(
    path=_PATH,
    exists=_flag,
    free_bytes=_COUNT,
    total_bytes=_COUNT,
    free_inodes=_BYTES,
    read_only=_flag,
    writable=_flag,
    blocked=_many(_PATH),
)
_LINK = _record(
    "name",
    "kind",
    name=_interface,
    kind=_WORD,
    mac=_HEX,
    mtu=_BYTES,
    up=_flag,
    carrier=_flag,
    speed_mbps=_BYTES,
    driver=_WORD,
    master=_or_empty(_interface),
    is_function=_flag,
    has_both_ends=_flag,
    addresses=_many(
        _record(
            "address", "prefix", family=_FAMILY, address=_address, prefix=_number(0, 128), scope=_WORD, temporary=_flag
        ),
        65536,
    ),
    rx_bytes=_BYTES,
    tx_bytes=_BYTES,
)
_ROUTE = _record(
    *("family", "destination", "interface", "metric"),
    family=_FAMILY,
    destination=_network,
    gateway=_or_none(_address),
    interface=_interface,
    metric=_COUNT,
)
_RDMA_PORT = _record(
    "number",
    number=_COUNT,
    state=_WORD,
    physical_state=_WORD,
    link_layer=_WORD,
    rate_gbps=_or_none(_SECONDS),
    netdev=_or_empty(_interface),
    gids=_many(_record("index", "gid", index=_COUNT, gid=_HEX, type=_WORD, netdev=_or_empty(_interface)), 65536),
    rx_bytes=_BYTES,
    tx_bytes=_BYTES,
)
_RDMA = _record(
    "name",
    "ports",
    name=_DEVICE,
    driver=_WORD,
    node_guid=_HEX,
    numa=_SIGNED,
    pci_path=_many(_WORD),
    ports=_many(_RDMA_PORT),
)
_GPU = _record(
    bus=_HEX,
    name=_text(128),
    uuid=_UUID,
    minor=_WORD,
    driver=_WORD,
    display=_flag,
    unusable=_WORD,
    problem=_SENTENCE,
    instances=_many(_UUID),
    nvlink=_flag,
    nvlink_down=_flag,
    numa=_SIGNED,
    pci_path=_many(_WORD),
)
_SWITCH_PORT = _record(
    interface=_WORD, above=_many(_interface), switch=_text(256), id=_text(256), port=_text(256), source=_WORD
)
_OF_HOME = {"unsafe": _many(_SENTENCE, 64), "home_refuses": _WORD}
_JOB_USER = _record(
    name=_USER,
    uid=_SIGNED,
    home=_PATH,
    shell=_PATH,
    has_home=_flag,
    home_answers=_flag,
    sudo=_or_none(_flag),
    **_OF_HOME,
)
_LOGIN = _record(
    shell=_PATH,
    traps=_many(_record(name=_VARIABLE, what=_WORD, program=_PATH, said=_SENTENCE, source=_PATH), 64),
    **_OF_HOME,
)
_SESSION = _record(
    kind=_WORD,
    name=_WORD,
    path=_PATH,
    own=_flag,
    problem=_WORD,
    place=_or_empty(_pattern(r"/[A-Za-z0-9_.+@/-]{1,200}(?: line [0-9]{1,6})?", "a line of a file")),
)
_SITE_PMIX = _record(prefix=_BUILD_PATH, library=_BUILD_PATH, version=_VERSION, headers=_VERSION)
_SLURM = _record(
    srun=_PATH,
    conf=_PATH,
    mpi_default=_WORD,
    mpi_default_by=_WORD,
    plugins=_many(_record(name=_WORD, opens=_PATH, found=_flag, version=_VERSION)),
)
_ARTIFACT = _record(
    name=_KEY,
    link=_PATH,
    target=_PATH,
    version=_VERSION,
    key=_KEY,
    ok=_flag,
    linked=_flag,
    problem=_SENTENCE,
    inputs=_mapping(_KEY, _plain, 256),
)
_PACKAGE = _pattern(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,127}", "the name of a package")
_PACKAGE_VERSION = _pattern(r"[A-Za-z0-9_.+!~=]{0,160}", "the version of a package")
_LIBRARY = _or_empty(_pattern(r"/?[A-Za-z0-9_.+-]{1,255}(?:/[A-Za-z0-9_.+-]{1,255}){0,64}", "a library"))
_EXISTING_PYTHON = _software(
    path=_PLAIN_PATH,
    folder=_PLAIN_PATH,
    kind=_WORD,
    interpreter=_PLAIN_PATH,
    real=_PLAIN_PATH,
    version=_pattern(r"3(?:\.[0-9]{1,4}){1,2}[A-Za-z0-9+]{0,32}", "a version of Python"),
    machine=_KEY,
    base=_PLAIN_PATH,
    headers=_flag,
    shares=_flag,
    folders=_many(_PLAIN_PATH, 64),
    packages=_mapping(_PACKAGE, _PACKAGE_VERSION, 8192),
    cuda=_mapping(_KEY, _VERSION, 8),
    nccl=_record("path", "version", path=_or_empty(_PLAIN_PATH), version=_VERSION),
    mpi=_mapping(
        _KEY,
        _record(
            *("folder", "library", "nccl", "framework"),
            folder=_PLAIN_PATH,
            library=_LIBRARY,
            nccl=_LIBRARY,
            framework=_PACKAGE_VERSION,
        ),
        8,
    ),
)
_EXISTING_OPENMPI = _software(
    path=_PLAIN_PATH,
    version=_pattern(r"[0-9]{1,4}(?:\.[0-9]{1,4}){2}[A-Za-z0-9]{0,16}", "a version of Open MPI"),
    machine=_KEY,
    library=_PLAIN_PATH,
    folders=_many(_PLAIN_PATH, 16, least=1),
    options=_many(_pattern(r"--[A-Za-z0-9_./+=-]{0,250}", "an option of configure"), 16),
    components=_mapping(_pattern(r"[a-z0-9_]{1,32}/[a-z0-9_]{1,32}", "a component"), _VERSION, 256),
    cuda=_flag,
    fortran=_flag,
    files=_KEY,
)
_JOB_LOOK = _record(
    *("found", "runs", "folder", "has_folder", "memory"),
    found=_many(_flag),
    runs=_many(_flag),
    folder=_PATH,
    has_folder=_flag,
    memory=_record(
        all=_SIGNED,
        own=_SIGNED,
        log=_or_none(_many(_record(number=_COUNT, pid=_SIGNED, uid=_SIGNED, name=_text(64)), 256)),
        uid=_SIGNED,
    ),
)
_LIBRARY_FILE = {"path": _PATH, "real": _PATH, "version": _VERSION, "via": _PATH}
_LAUNCH = _record(name=_KEY, path=_PATH, real=_PATH, own=_PATH, own_real=_PATH, own_state=_WORD)

# By the top-level key of the record: one row a field.
FORMS: Mapping[str, Rule] = {
    "schema_version": _COUNT,
    "hostname": _HOST,
    "fqdn": _HOST,
    "time": _SECONDS,
    "kernel": _WORD,
    "machine": _KEY,
    "distribution": _record(
        *("id", "family", "major"), id=_KEY, version_id=_VERSION, name=_text(256), family=_KEY, major=_VERSION
    ),
    "glibc": _VERSION,
    "python": _record(version=_VERSION, executable=_PATH, has_packaging=_flag),
    "platform": _PLATFORM,
    "prefix": _record(
        path=_PATH, problem=_SENTENCE, read_only=_flag, others=_many(_PATH), trees=_or_none(_many(_PATH, 65536))
    ),
    "cuda": _record(
        major=_or_none(_number(0, 1000)),
        driver_version=_VERSION,
        toolkit_version=_TOOLKIT,
        libcuda=_flag,
        first_branches=_mapping(_KEY, _COUNT, 64),
    ),
    "cores": _number(0, 1 << 16),  # a job has as many ranks
    "threads": _COUNT,
    "threads_online": _COUNT,
    "numa": _many(_record(number=_COUNT, cores=_many(_WORD, 65536))),
    "boot_id": _KEY,
    "session_start_s": _SECONDS,
    "memory_bytes": _COUNT,
    "swap_bytes": _COUNT,
    "swap_used_bytes": _COUNT,
    "disk": _many(_record("path", "free_bytes", path=_PATH, free_bytes=_COUNT, total_bytes=_COUNT)),
    "shm_bytes": _COUNT,
    "scratch": _many(_SCRATCH),
    "cpu_quota": _record(group=_PATH, cores=_or_none(_SECONDS), throttled_periods=_COUNT, throttled_s=_SECONDS),
    "interfaces": _many(_LINK),
    "routes": _many(_ROUTE, 1 << 20),
    "rdma": _many(_RDMA),
    "fabric": _or_none(
        _record(
            "cidrs",
            cidrs=_many(_network),
            interface=_or_empty(_interface),
            address=_or_empty(_address),
            proven=_many(_HOST, 65536),
            opened=_flag,
            carriers=_many(
                _record("cidr", "interface", "address", cidr=_network, interface=_interface, address=_address)
            ),
        )
    ),
    "driverless_cards": _many(_HEX, 256),
    "switch_ports": _many(_SWITCH_PORT),
    "names": _many(_record(name=_text(256), addresses=_many(_address), problem=_SENTENCE), 65536),
    "leftovers": _many(_record(pid=_COUNT, user=_USER, command=_VALUE, age_s=_SECONDS, why=_SENTENCE), 65536),
    "busy": _many(_record(pid=_COUNT, user=_USER, command=_VALUE, rank=_flag, gpu=_flag, trees=_many(_PATH)), 65536),
    "gpus": _many(_GPU),
    "limits": _mapping(_KEY, _record(soft=_BYTES, hard=_BYTES), 64),
    "process_room": _or_none(_record("left", "by", left=_COUNT, by=_PATH)),
    "memory_kills": _COUNT,
    "limit_settings": _mapping(_text(512), _text(512)),
    "environment": _mapping(_VARIABLE, _VALUE),
    "environment_source": _WORD,
    "user": _record(name=_USER, uid=_SIGNED, home=_PATH, sudo=_or_none(_flag)),
    "login": _LOGIN,
    "sessions": _many(_SESSION, 16),
    "job_user": _or_none(_JOB_USER),
    "ssh": _record(host_keys=_many(_HOST_KEY, 64), port=_PORT, settings=_mapping(_SETTING, _SENTENCE)),
    "known_hosts": _or_none(_record(has_mesh=_flag, has_authority=_flag, own_names=_many(_text(256), 65536))),
    "parameters": _many(_record(name=_SETTING, value=_VALUE, source=_PATH, in_session=_flag), 65536),
    "parameter_files": _many(_record(path=_PATH, exists=_flag, own=_mapping(_SETTING, _VALUE))),
    "launch": _many(_LAUNCH),
    "pmix": _record(site=_or_none(_SITE_PMIX), own=_VERSION, built_with=_PATH),
    "slurm": _or_none(_SLURM),
    "tools": _mapping(_KEY, _plain, 256),
    "artifacts": _many(_ARTIFACT),
    "existing_python": _or_none(_EXISTING_PYTHON),
    "existing_openmpi": _or_none(_EXISTING_OPENMPI),
    "vendor_openmpis": _many(_record("path", "version", path=_PLAIN_PATH, version=_VERSION), 64),
    "libraries": _many(_record(soname=_PATH, others=_many(_record(**_LIBRARY_FILE)), **_LIBRARY_FILE)),
    "watch": _many(_plain, 65536),
    "job_look": _or_none(_JOB_LOOK),
    "problems": _many(_SENTENCE),
}
_WHOLE = _record("hostname", "platform", "time", **FORMS)
_MEMBER = _record(
    name=_text(253),
    address=_or_empty(_address),
    addresses=_many(_address),
    port=_PORT,
    host_keys=_many(_HOST_KEY, 64),
    user_key=_HOST_KEY,
    aliases=_many(_HOST),
    platform=_or_empty(_PLATFORM),
    slots=_COUNT,
    provides=_many(_WORD),
    gpus=_COUNT,
    idle_gpus=_SENTENCE,
    cuda=_record(driver_major=_COUNT, driver_version=_VERSION, toolkit_version=_TOOLKIT),
    pmix=_SITE_PMIX,
    builds=_flag,
    trees=_many(_KEY),
)


def passed(record: Any) -> Dict[str, Any]:
    """Return a record of a node in which every field is of its form; fields without a form are left out.

    Raises:
        RecordError: a field is not.
    """
    found: Dict[str, Any] = _WHOLE(record)
    return found


def member(entry: Any) -> Dict[str, Any]:
    """Return a member of a cluster, as preflight describes it, likewise.

    Raises:
        RecordError: a field is not of its form.
    """
    found: Dict[str, Any] = _MEMBER(entry)
    return found
