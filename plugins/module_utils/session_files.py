# SPDX-License-Identifier: Apache-2.0
"""The files by which sessions find the cluster's programs: of shells, sshd, systemd, modules and Open MPI.

Texts only; nothing here touches a machine. The accounts that run jobs find the cluster's folders first. Every other
account, root too, finds MPI's programs behind the system's, and the rest by ``. /etc/clusterctl/activate``.
"""

from __future__ import annotations

import re
from typing import List, Mapping, NamedTuple, Sequence

from . import prefix_rules, text_edit
from .node_look import existing_python

FOLDER = "/etc/clusterctl"
ACTIVATE = f"{FOLDER}/activate"  # for sh, bash, dash, ksh and zsh; its twins for fish and csh have their ending
UNITS = f"{FOLDER}/environment"
HOSTFILE = f"{FOLDER}/hostfile"
PROFILE = "/etc/profile.d/zz-clusterctl"  # .sh, .csh
SSHD = "/etc/ssh/sshd_config.d/zz-clusterctl-sessions.conf"
_GENERATORS = "/etc/systemd/user-environment-generators"
GENERATOR = f"{_GENERATORS}/50-clusterctl"
MARKER = "environment"  # of blocks in files of others
_BY = "# Made by clusterctl"
_QUOTING = {'"', "\\"}  # what would end a word of sshd's file or of a unit's
# A name that is one word, and no pattern, for sshd, sh, csh and fish.
_ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")


class Sessions(NamedTuple):
    """What sessions get."""

    accounts: Sequence[str]  # those that run jobs; root is not among them
    path: Sequence[str]  # folders of MPI's programs
    first: Sequence[str]  # further folders that only the accounts get, and ``activate``
    library_path: Sequence[str]
    prefix: str  # of the software, whose Open MPI reads its parameters below it
    modulefile: str = ""  # its path; '' for none
    has_default_hostfile: bool = False


class SessionFile(NamedTuple):
    """A file, or a block in a file of others; without a text it is removed."""

    path: str
    text: str
    needs: str = ""  # a folder; without it, nothing on the node reads the file
    makes: Sequence[str] = ()  # folders, the outermost first
    is_block: bool = False
    mode: int = 0o644


def check(wanted: Sessions) -> None:
    """Refuse what a shell or sshd would not read as one word.

    Raises:
        EditError: a name of an account or a folder.
    """
    for name in wanted.accounts:
        if not _ACCOUNT.fullmatch(name):
            raise text_edit.EditError(
                f"environment_accounts has {name!r}, which sshd and shells do not take for a name; use letters, digits "
                "and . _ @ -"
            )
    for folder in (*wanted.path, *wanted.first, *wanted.library_path, *filter(None, [wanted.modulefile])):
        if not existing_python.PLAIN.fullmatch(folder):
            raise text_edit.EditError(
                f"{folder!r} is not an absolute path of letters, digits and . _ + -, which every shell takes as it is"
            )


def files(wanted: Sessions, theirs: Sequence[str], sshd_settings: Sequence[str] = ()) -> List[SessionFile]:
    """Return all files of a node.

    Args:
        wanted: see :func:`check`.
        theirs: the folders of the node's PATH that are not ours, for sessions that no shell prepares.
        sshd_settings: ``NAME=VALUE`` of the SetEnv that others gave to all accounts. A SetEnv for one replaces it.

    Raises:
        EditError: see :func:`check`.
    """
    check(wanted)
    theirs = [folder for folder in theirs if not set(folder) & _QUOTING]
    first = [*wanted.path, *wanted.first]
    lists = {"PATH": first, "LD_LIBRARY_PATH": list(wanted.library_path)}
    whole = {"PATH": ":".join([*first, *theirs]), "LD_LIBRARY_PATH": ":".join(wanted.library_path)}
    whole = {name: value for name, value in whole.items() if value}
    kept = [word for word in sshd_settings if word.partition("=")[0] not in whole and not set(word) & _QUOTING]
    setenv = " ".join(f'"{word}"' for word in [*(f"{name}={value}" for name, value in whole.items()), *kept])
    names = ",".join(wanted.accounts)
    about = "sessions of these accounts without a login shell, as of 'ssh NODE COMMAND'"
    sshd = f"{_BY}: {about}.\nMatch User {names}\n    SetEnv {setenv}\n" if names else ""
    units = f"{_BY}. In a unit with User=: EnvironmentFile={UNITS}\n"
    module_folder = wanted.modulefile.rpartition("/")[0]
    zsh, csh = f"emulate sh -c '. {PROFILE}.sh'\n", f"if (-r {PROFILE}.csh) source {PROFILE}.csh\n"
    found = [
        SessionFile(ACTIVATE, _activate_sh(lists), makes=[FOLDER]),
        SessionFile(f"{ACTIVATE}.fish", _activate_fish(lists)),
        SessionFile(f"{ACTIVATE}.csh", _activate_csh(lists)),
        SessionFile(UNITS, units + "".join(f"{name}={value}\n" for name, value in whole.items())),
        SessionFile(f"{PROFILE}.sh", _profile_sh(wanted, module_folder), "/etc/profile.d"),
        SessionFile(f"{PROFILE}.csh", _profile_csh(wanted), "/etc/profile.d"),
        # Debian's zsh and csh do not read /etc/profile.d.
        SessionFile("/etc/zsh/zprofile", zsh, "/etc/zsh", is_block=True),
        SessionFile("/etc/csh.login", csh, "/etc/csh", is_block=True),
        SessionFile("/etc/fish/conf.d/zz-clusterctl.fish", _profile_fish(wanted), "/etc/fish/conf.d"),
        SessionFile(SSHD, sshd, "/etc/ssh/sshd_config.d"),
        SessionFile(GENERATOR, _generator(), "/etc/systemd", [_GENERATORS], mode=0o755),
    ]
    if wanted.modulefile:
        below = wanted.modulefile.startswith(f"{wanted.prefix}/")
        makes = _folders_below(wanted.prefix, module_folder) if below else []
        found.append(SessionFile(wanted.modulefile, _modulefile(lists), "" if below else module_folder, makes))
    return [*found, *_parameters(wanted)]


def _folders_below(prefix: str, folder: str) -> List[str]:
    names = folder[len(prefix) :].strip("/").split("/")
    return [*prefix_rules.folders_to(prefix), *("/".join([prefix, *names[: count + 1]]) for count in range(len(names)))]


def _activate_sh(lists: Mapping[str, Sequence[str]]) -> str:
    """Return a script that works with 'set -eu', in any shell of the family, and as often as it is read."""
    text = f"{_BY}. The cluster's programs first, in sh, bash, dash, ksh and zsh:  . {ACTIVATE}\n"
    for name, folders in lists.items():
        if folders:
            text += f"""\
_others=":${{{name}:+${name}:}}"
for _ours in {" ".join(folders)}; do
    while :; do
        case $_others in
            *":$_ours:"*) _others="${{_others%%":$_ours:"*}}:${{_others#*":$_ours:"}}" ;;
            *) break ;;
        esac
    done
done
export {name}="{":".join(folders)}${{_others%:}}"
"""
    return f"{text}unset _others _ours\n"


def _activate_fish(lists: Mapping[str, Sequence[str]]) -> str:
    text = f"{_BY}. The cluster's programs first, in fish:  source {ACTIVATE}.fish\n"
    for name, folders in lists.items():
        for folder in reversed(folders):
            text += f"while set -l at (contains -i -- {folder} ${name})\n    set -e {name}[$at]\nend\n"
            text += f"set -gx {name} {folder} ${name}\n"
    return text


def _activate_csh(lists: Mapping[str, Sequence[str]]) -> str:
    text = f"{_BY}. The cluster's programs first, in csh and tcsh:  source {ACTIVATE}.csh\n"
    for name, folders in lists.items():
        ours = ":".join(folders)
        if ours:
            text += f"if (! $?{name}) setenv {name} {ours}\n"
            text += f'if ("${{{name}}}:" !~ {ours}:*) setenv {name} "{ours}:${{{name}}}"\n'
    return text


def _profile_sh(wanted: Sessions, module_folder: str) -> str:
    text = f'{_BY}: what login shells find.\ncase "$(id -un 2>/dev/null)" in\n'
    if wanted.accounts:
        text += f"    {' | '.join(wanted.accounts)}) if [ -r {ACTIVATE} ]; then . {ACTIVATE}; fi ;;\n"
    return f"""{text}\
    *)
        for _ours in {" ".join(wanted.path)}; do
            case ":$PATH:" in *":$_ours:"*) ;; *) PATH="$PATH:$_ours" ;; esac
        done
        export PATH
        unset _ours ;;
esac
""" + (
        f"""\
case ":${{MODULEPATH-}}:" in
    "::" | *":{module_folder}:"*) ;;
    *) export MODULEPATH="$MODULEPATH:{module_folder}" ;;
esac
"""
        if module_folder
        else ""
    )


def _profile_csh(wanted: Sessions) -> str:
    text = f'{_BY}: what login shells find.\nswitch ("`id -un`")\n'
    text += "".join(f"case {name}:\n" for name in wanted.accounts)
    if wanted.accounts:
        text += f"    if (-r {ACTIVATE}.csh) source {ACTIVATE}.csh\n    breaksw\n"
    text += "default:\n"
    for folder in wanted.path:
        text += f'    if (":${{PATH}}:" !~ *:{folder}:*) setenv PATH "${{PATH}}:{folder}"\n'
    return f"{text}endsw\n"


def _profile_fish(wanted: Sessions) -> str:
    text = f"{_BY}: what login shells find.\nif status is-login\n    switch (id -un)\n"
    if wanted.accounts:
        text += f"        case {' '.join(wanted.accounts)}\n"
        text += f"            test -r {ACTIVATE}.fish; and source {ACTIVATE}.fish\n"
    text += "        case '*'\n"
    for folder in wanted.path:
        text += f"            contains -- {folder} $PATH; or set -gx PATH $PATH {folder}\n"
    return f"{text}    end\nend\n"


def _generator() -> str:
    return f"""\
#!/bin/sh
{_BY}: what user units of systemd find.
. {PROFILE}.sh
echo "PATH=$PATH"
if [ "${{LD_LIBRARY_PATH-}}" ]; then echo "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"; fi
"""


def _modulefile(lists: Mapping[str, Sequence[str]]) -> str:
    lines = [f"prepend-path {name} {folder}" for name, folders in lists.items() for folder in reversed(folders)]
    about = 'module-whatis "Open MPI, Python and the training stack of this cluster"'
    return "\n".join(["#%Module1.0", f"{_BY}.", about, *lines, ""])


def _parameters(wanted: Sessions) -> List[SessionFile]:
    """Return the parameters by which ranks on other nodes get the PATH that mpirun has.

    Open MPI 4.1 takes ``-x`` in its file, and ``-x`` of the command line overrides it. ``mca_base_env_list`` would
    forbid any ``-x`` (opal/util/keyval_parse.c, orte/mca/schizo/ompi). For 5.0, PMIx compares the beginning of
    ``NAME=VALUE`` with each word (pmix_util_harvest_envars).
    """
    folder = f"{wanted.prefix}/etc/openmpi"
    makes = _folders_below(wanted.prefix, folder)
    hostfile = HOSTFILE if wanted.has_default_hostfile else ""
    texts = {
        "openmpi-mca-params.conf": "-x PATH\n" + (f"orte_default_hostfile = {hostfile}\n" if hostfile else ""),
        "pmix-mca-params.conf": "pmdl_ompi_include_envars = OMPI_*,PATH=\n",
        "prte-mca-params.conf": f"prte_default_hostfile = {hostfile}\n" if hostfile else "",
    }
    return [SessionFile(f"{folder}/{name}", text, makes=makes, is_block=True) for name, text in texts.items()]
