# SPDX-License-Identifier: Apache-2.0
"""Settings of Open MPI, PRRTE, PMIx, UCX, NCCL and Gloo, in their files, in a session, and in what starts it."""

from __future__ import annotations

import json
import os
import re
import shlex
from typing import TYPE_CHECKING, Callable

from . import libraries
from .artifacts import MARKER, MOST_MARKER
from .reading import Json, list_folder, read_environment_file, read_regular, read_text, read_text_of_user
from .ssh import read_sshd_config

if TYPE_CHECKING:
    import pwd


# The site's PMIx library, and what Slurm's srun does with PMIx: its default, its plugins and the library they open.
#
# Files are read, and nothing is started.

_SONAME = "libpmix.so.2"
_RELEASE = re.compile(rb"PMIx (\d+\.\d+\.\d+)")  # of PMIx_Get_version: "OpenPMIx 4.2.2rc2 (PMIx Standard: …"
_NUMBERS = re.compile(r"^#define\s+PMIX_VERSION_(MAJOR|MINOR|RELEASE)\s+(\d+)", re.MULTILINE)
_CONF_LINE = re.compile(r"^\s*(MpiDefault|PluginDir)\s*=\s*(\S+)", re.MULTILINE | re.IGNORECASE)
_CONFS = (
    "/etc/slurm/slurm.conf",
    "/run/slurm/conf/slurm.conf",  # of a node that gets its configuration from slurmctld
    "/var/spool/slurmd/conf-cache/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
)
_PLUGIN = re.compile(r"mpi_(pmix\w*)\.so")
_PATH_IN_PLUGIN = re.compile(rb"\0(/[A-Za-z0-9._+/-]{3,250})(?=\0)")
_MOST_BYTES = 1 << 24


def slurm_pmix(variables: dict, search_path: str, own: str) -> Json:
    """Return ``pmix`` (the site's library, and the one of the installed Open MPI) and ``slurm`` (None without it).

    Args:
        variables: of the session.
        search_path: its PATH.
        own: the link of the installed Open MPI.
    """
    slurm = _slurm(variables, search_path)
    opened = [plugin["opens"] for plugin in (slurm or {}).get("plugins", [])]
    ours = {"own": _release(f"{own}/lib/{_SONAME}"), "built_with": built_with(_marker(own))}
    return {"pmix": {"site": _site(opened, own), **ours}, "slurm": slurm}


def built_with(marker: Json) -> str:
    """Return where the PMIx of an Open MPI comes from, by its marker: internal, external, a prefix, '' if unknown."""
    inputs = marker.get("inputs")
    options = inputs.get("configure") if isinstance(inputs, dict) else None
    words = [word for word in options or [] if isinstance(word, str)] if isinstance(options, list) else []
    return next((word.partition("=")[2] for word in reversed(words) if word.startswith("--with-pmix=")), "")


def _marker(own: str) -> Json:
    try:
        marker = json.loads(read_regular(f"{own}/{MARKER}", MOST_MARKER))
    except (OSError, ValueError, RecursionError):  # the section "artifacts" tells of a damaged one
        return {}
    return marker if isinstance(marker, dict) else {}


def plugin_library(data: bytes) -> str:
    """Return the path of the PMIx library that Slurm's plugin opens, as it stands in the plugin's bytes.

    Slurm's configure compiles the folder in. Without one the loader searches, and the answer is a bare name.
    """
    name = _SONAME if _SONAME.encode() + b"\0" in data else "libpmix.so"
    paths = [match.decode() for match in _PATH_IN_PLUGIN.findall(data)]
    whole = [path for path in paths if os.path.basename(path).startswith("libpmix.so")]
    if whole:
        return whole[0]
    folders = [path.rstrip("/") for path in paths if re.search(r"/lib(64|32)?(/|$)", path)]
    likely = [folder for folder in folders if os.path.exists(f"{folder}/{_SONAME}")]
    likely += [folder for folder in folders if "pmix" in folder.lower()]
    return f"{likely[0]}/{name}" if likely else name


def conf_settings(text: str) -> dict:
    """Return ``mpidefault`` and ``plugindir`` of slurm.conf, each if it is set; the last line of a name counts."""
    return {match.group(1).lower(): match.group(2) for match in _CONF_LINE.finditer(text)}


def _slurm(variables: dict, search_path: str) -> Json | None:
    folders = [folder.rstrip("/") for folder in search_path.split(":") if folder.startswith("/")]
    srun = next((f"{folder}/srun" for folder in folders if os.access(f"{folder}/srun", os.X_OK)), "")
    conf = next((path for path in (variables.get("SLURM_CONF", ""), *_CONFS) if path and os.path.isfile(path)), "")
    if not srun and not conf:
        return None
    try:
        settings = conf_settings(read_text(conf, "")) if conf else {}
    except OSError:  # a site may hide it from users
        settings = {}
    asked = variables.get("SLURM_MPI_TYPE", "")
    return {
        "srun": srun,
        "conf": conf,
        "mpi_default": asked or settings.get("mpidefault", "none"),
        "mpi_default_by": "SLURM_MPI_TYPE" if asked else "MpiDefault",
        "plugins": _plugins(_plugin_folders(settings.get("plugindir", ""), srun)),
    }


def _plugin_folders(named: str, srun: str) -> list[str]:
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(srun))) if srun else "/usr"
    libraries = [f"{root}/{lib}" for root in (prefix, "/usr") for lib in ("lib64", f"lib/{_multiarch()}", "lib")]
    return [*filter(None, named.split(":")), *(f"{lib}/{end}" for lib in libraries for end in ("slurm", "slurm-wlm"))]


def _plugins(folders: list[str]) -> list[Json]:
    """Return the PMIx plugins of the first folder that has plugins for MPI; srun loads them from there."""
    for folder in folders:
        names = [name for name in list_folder(folder) if name.startswith("mpi_")]
        files = {os.path.realpath(f"{folder}/{name}") for name in names if _PLUGIN.fullmatch(name)}
        if names:
            return [_plugin(path) for path in sorted(files)]
    return []


def _plugin(path: str) -> Json:
    opens = plugin_library(_head(path))
    found = opens if opens.startswith("/") else next(iter(_by_loader(opens)), "")
    there = bool(found) and os.path.isfile(found)
    match = _PLUGIN.fullmatch(os.path.basename(path))
    return {
        "name": match.group(1) if match else os.path.basename(path),
        "opens": opens,
        "found": there,
        "version": _release(found) if there else "",
    }


def _site(opened: list[str], own: str) -> Json | None:
    """Return the PMIx of the site: the one that Slurm opens, else the loader's, else the distribution's."""
    beside = [f"{os.path.dirname(path)}/{_SONAME}" for path in opened if path.startswith("/")]
    packaged = f"/usr/lib/{_multiarch()}/pmix2/lib/{_SONAME}"
    for path in (*beside, *_by_loader(_SONAME), packaged, f"/usr/lib64/{_SONAME}"):
        real = os.path.realpath(path)
        release = "" if real.startswith(own) else _release(real)
        if release:
            prefix = _prefix(real)
            return {"prefix": prefix, "library": real, "version": release, "headers": _headers(prefix)}
    return None


def _by_loader(soname: str) -> list[str]:
    return libraries.read_library_cache(libraries.content(), soname)


def _prefix(library: str) -> str:
    folder = os.path.dirname(library)
    if folder in {f"/usr/lib/{_multiarch()}", f"/lib/{_multiarch()}", "/usr/lib64", "/lib64", "/usr/lib", "/lib"}:
        return "/usr"
    return os.path.dirname(folder)


def _headers(prefix: str) -> str:
    """Return the release of the headers if a build can use them, '' if something is missing.

    Open MPI's runtime needs headers of PMIx's inside. An external PMIx also needs hwloc and libevent from outside.
    """
    roots = (f"{prefix}/include", "/usr/include", f"/usr/include/{_multiarch()}")
    for name in ("pmix.h", "pmix/src/util/pmix_argv.h", "hwloc.h", "event2/event.h"):
        if not any(os.path.isfile(f"{root}/{name}") for root in roots):
            return ""
    found = dict(_NUMBERS.findall(read_text(f"{prefix}/include/pmix_version.h", "")))
    release = ".".join(found.get(part, "") for part in ("MAJOR", "MINOR", "RELEASE"))
    return release if len(found) == 3 else ""  # noqa: PLR2004 - the parts of a release


def _release(path: str) -> str:
    match = _RELEASE.search(_head(path))
    return match.group(1).decode() if match else ""


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read(_MOST_BYTES)
    except OSError:
        return b""


def _multiarch() -> str:
    return f"{os.uname().machine}-linux-gnu"


# --- shell files -----------------------------------------------------------------------------------------------------
# Only names that the caller asks for are returned, since such files hold passwords and tokens as well. See bash(1),
# "INVOCATION", zsh(1), "STARTUP/SHUTDOWN FILES", and tcsh(1), "Startup and shutdown".

_PROFILE_D = "/etc/profile.d"
_SYSTEM = ("/etc/profile", "/etc/bash.bashrc", "/etc/bashrc")
_HOME = (".profile", ".bash_profile", ".bash_login", ".bashrc")
_ZSH = ("/etc/zsh/zshenv", "/etc/zshenv"), (".zshenv", ".zprofile", ".zshrc")
_CSH = ("/etc/csh.cshrc", "/etc/csh.login"), (".cshrc", ".tcshrc", ".login")
_MOST_FILES = 200
_EXPORTS = ("export", "declare", "typeset")
_EXPANDS = ("$", "`")
_BEGIN, _END = "# BEGIN clusterctl ", "# END clusterctl "


def shell_files(
    home: str, user: pwd.struct_passwd | None, wanted: Callable[[str], bool], root: str = ""
) -> dict[str, tuple[dict[str, str], dict[str, set[str]]]]:
    """Return what :func:`exports` finds in the start-up files that set something, by path.

    Args:
        home: the home of the login user, '' to leave it out.
        user: the login user, with whose identity root reads below the home.
        wanted: whether a variable is asked for.
        root: a folder that stands for ``/``.
    """
    shell = user.pw_shell if user else ""
    system, own = (_CSH[0], _CSH[1]) if shell.endswith("csh") else (_SYSTEM, _HOME)
    if shell.endswith("zsh"):
        system, own = (*system, *_ZSH[0]), (*own, *_ZSH[1])
    suffix = ".csh" if shell.endswith("csh") else ".sh"
    scripts = [f"{_PROFILE_D}/{name}" for name in list_folder(root + _PROFILE_D) if name.endswith(suffix)]
    texts = {path: read_text(root + path, "") for path in (*system, *scripts[:_MOST_FILES])}
    texts.update({f"{home}/{name}": read_text_of_user(f"{home}/{name}", user) for name in own if home})
    found = {path: exports(text, wanted) for path, text in texts.items()}
    return {path: entry for path, entry in found.items() if entry[1]}


def exports(text: str, wanted: Callable[[str], bool]) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Return the variables that a script sets in any case, and all values that each may get.

    An indented line depends on a condition or belongs to a function. So does a name with two values. What the shell has
    to expand is unknown. Blocks of clusterctl are left out.
    """
    always: dict[str, str] = {}
    values: dict[str, set[str]] = {}
    inside = False
    for line in text.split("\n"):
        if line.startswith((_BEGIN, _END)):
            inside = line.startswith(_BEGIN)
        if inside:
            continue
        for name, value in _assignments(line):
            if wanted(name):
                values.setdefault(name, set()).add(value)
                if not line[:1].isspace():
                    always[name] = value
    return {name: value for name, value in always.items() if values[name] == {value}}, values


def words_of(line: str) -> list[str]:
    """Return the words of a line as a shell splits it, without its comment; none where a quote does not end on it."""
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return []


def _assignments(line: str) -> list[tuple[str, str]]:
    """Return what a line exports; a line that is more than one simple command is left out."""
    words = words_of(line)
    if words[:1] == ["setenv"] and len(words) == 3:  # noqa: PLR2004 - csh: a name and a value
        value = words[2].rstrip(";")
        return [] if any(sign in value for sign in _EXPANDS) else [(words[1], value)]
    if not words or words[0] not in _EXPORTS or any(word.rstrip(";") != word and word != words[-1] for word in words):
        return []
    if any(sign in words for sign in ("&&", "||", "|", ";")):
        return []
    words[-1] = words[-1].rstrip(";")
    pairs = [word.partition("=") for word in words[1:] if "=" in word and not word.startswith("-")]
    return [(name, value) for name, _sign, value in pairs if not any(sign in value for sign in _EXPANDS)]


# --- login files -----------------------------------------------------------------------------------------------------
# Only names that the caller asks for are returned. See pam_env.conf(5), and SetEnv and PermitUserEnvironment in
# sshd_config(5).

_PAM, _PAM_OF_USER = "/etc/security/pam_env.conf", ".pam_environment"
_SSHD, _SSH_OF_USER = "/etc/ssh/sshd_config", ".ssh/environment"
_PAM_EXPANDS = ("${", "@{")


def login_files(
    home: str, user: pwd.struct_passwd | None, wanted: Callable[[str], bool], root: str = ""
) -> dict[str, tuple[dict[str, str], dict[str, set[str]]]]:
    """Return, for each file that sets something, the variables that it sets in any case, and all values of each.

    Args:
        home: the home of the login user, '' to leave it out.
        user: the login user, with whose identity root reads below the home.
        wanted: whether a variable is asked for.
        root: a folder that stands for ``/``.
    """
    config = read_sshd_config(root + _SSHD)
    first, *others = [_pairs(line) for line in config.get("setenv", [])] or [[]]  # sshd takes the first line alone
    pairs = {_PAM: pam_settings(read_text(root + _PAM, "")), _SSHD: first}
    if home:
        pairs[f"{home}/{_PAM_OF_USER}"] = pam_settings(read_text_of_user(f"{home}/{_PAM_OF_USER}", user))
    if home and config.get("permituserenvironment", ["no"])[0].lower() != "no":
        lines = read_text_of_user(f"{home}/{_SSH_OF_USER}", user).split("\n")
        pairs[f"{home}/{_SSH_OF_USER}"] = [_pair(line.strip()) for line in lines if not line.startswith("#")]
    found = {}
    for path, given in pairs.items():
        always = {name: value for name, value in given if wanted(name)}
        values: dict[str, set[str]] = {}
        for name, value in [*given, *(pair for line in others for pair in line if path == _SSHD)]:
            if wanted(name):
                values.setdefault(name, set()).add(value)
        if values:
            found[path] = (always, values)
    return found


def pam_settings(text: str) -> list[tuple[str, str]]:
    """Return the variables in a text in the form of pam_env.conf; what PAM has to expand is unknown."""
    found = []
    for line in text.replace("\\\n", " ").split("\n"):
        words = words_of(line)
        options = dict(map(_pair, words[1:]))
        value = options.get("OVERRIDE") or options.get("DEFAULT", "")
        if value and not any(sign in value for sign in _PAM_EXPANDS):
            found.append((words[0], value))
    return found


def _pairs(line: str) -> list[tuple[str, str]]:
    return [_pair(word) for word in words_of(line)]


def _pair(word: str) -> tuple[str, str]:
    name, _sign, value = word.partition("=")
    return name, value


# --- parameters ------------------------------------------------------------------------------------------------------

SITE = "etc/openmpi"  # below the prefix
NCCL = "/etc/nccl.conf"
FABRIC = "/etc/clusterctl/fabric.json"
_FABRIC_FILES = ("openmpi-mca-params.conf", "prte-mca-params.conf")
_OTHER_FILES = ("pmix-mca-params.conf", "openmpi-mca-params-override.conf")
_OWN_NCCL = ".nccl.conf"
_HOME_FILES = (".openmpi/mca-params.conf", ".prte/mca-params.conf", ".pmix/mca-params.conf", _OWN_NCCL)
_PREFIXES = ("OMPI_", "PRTE_MCA_", "PMIX_MCA_", "NCCL_", "UCX_")
_ENVIRONMENT = "/etc/environment"
_UCX, _UCX_FILE = "/etc/ucx", "ucx.conf"
_VARIABLES = ("GLOO_SOCKET_IFNAME", "OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX", "LD_PRELOAD")


def parameters(variables: dict[str, str], home: str, user: pwd.struct_passwd | None, root: str) -> Json:
    """Return the settings outside the blocks of clusterctl, one for each place, and the files of the role ``fabric``.

    Only settings of the families above are told: files and variables hold secrets as well. ``in_session`` is false for
    what a start-up file sets and the session does not have.

    Args:
        variables: the variables of the session.
        home: the home of the login user.
        user: the login user, with whose identity root reads below the home.
        root: the prefix of the software.
    """
    found = []
    files = [{"path": FABRIC, "exists": os.path.exists(FABRIC), "own": {}}]
    of_fabric = [*(f"{root}/{SITE}/{name}" for name in _FABRIC_FILES), NCCL]
    others_of_site = [f"{root}/{SITE}/{name}" for name in _OTHER_FILES]
    texts = {path: read_text(path, "") for path in (*of_fabric, *others_of_site)}
    own_nccl = variables.get("NCCL_CONF_FILE", "")  # taken in the place of that of the home
    paths = [f"{home}/{name}" for name in _HOME_FILES if home and not (own_nccl and name == _OWN_NCCL)]
    texts.update({path: read_text_of_user(path, user) for path in paths})
    for path, text in texts.items():
        own, others = read_settings(text)
        found += [{"name": name, "value": value, "source": path} for name, value in others]
        if path in of_fabric:
            files.append({"path": path, "exists": bool(text) or os.path.exists(path), "own": own})
    if own_nccl.startswith("/"):
        found += _of_family(own_nccl, read_text_of_user(own_nccl, user), "NCCL_")
    for path in _ucx_files(variables, home, root):
        below_home = bool(home) and path.startswith(f"{home}/")
        text = read_text_of_user(path, user) if below_home else read_text(path, "")
        found += _of_family(path, text.partition("\n[")[0], "UCX_")  # a section holds for some processors alone
    return {"parameters": [*found, *_variables(variables, home, user)], "parameter_files": files}


def _of_family(path: str, text: str, prefix: str) -> list[Json]:
    settings = read_settings(text)[1]
    return [{"name": name, "value": value, "source": path} for name, value in settings if name.startswith(prefix)]


def _ucx_files(variables: dict[str, str], home: str, root: str) -> list[str]:
    """Return where UCX looks for its file (UCX documentation, "Setting UCX options"), each place once."""
    folders = [_UCX, f"{root}/etc/ucx", home, variables.get("UCX_CONFIG_DIR", "")]
    return [f"{folder}/{_UCX_FILE}" for folder in dict.fromkeys(folders) if folder.startswith("/")]


def _variables(variables: dict[str, str], home: str, user: pwd.struct_passwd | None) -> list[Json]:
    """Return the variables of the session with the place that sets them, and those of places that it did not take."""
    of_file = {
        name: value for name, value in read_environment_file(read_text(_ENVIRONMENT, "")).items() if _known(name)
    }
    places = {_ENVIRONMENT: (of_file, {name: {value} for name, value in of_file.items()})}
    places.update(login_files(home, user, _known))
    places.update(shell_files(home, user, _known))
    found = []
    for name in sorted(name for name in variables if _known(name)):
        value = variables[name]
        source = next((path for path, given in places.items() if value in given[1].get(name, ())), "environment")
        found.append({"name": name, "value": value, "source": source})
    for path, given in places.items():
        for name, value in sorted(given[0].items()):
            if variables.get(name) != value:
                found.append({"name": name, "value": value, "source": path, "in_session": False})
    return found


def _known(name: str) -> bool:
    return name.startswith(_PREFIXES) or name in _VARIABLES


def read_settings(text: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return the settings inside the blocks of clusterctl, and those outside: lines of ``name = value``."""
    own: dict[str, str] = {}
    others: list[tuple[str, str]] = []
    inside = False
    for line in text.split("\n"):
        words = line.strip()
        if words.startswith((_BEGIN, _END)):
            inside = words.startswith(_BEGIN)
        name, separator, value = (part.strip() for part in words.partition("="))
        if not separator or words.startswith("#"):
            continue
        if inside:
            own[name] = value
        else:
            others.append((name, value))
    return own, others
