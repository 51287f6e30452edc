# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Let the loader (ldconfig) and the compilers of this host find the cluster's NCCL."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nccl_system
short_description: Let loader and compilers find the cluster's NCCL
version_added: "0.1.0"
author: The clusterctl authors (!UNKNOWN)
description:
  - Keeps the folder C(lib/clusterctl) beside O(link) with one link, C(libnccl.so.2), and names it in a file that
    C(ldconfig) reads. Everything else in that folder is removed, so the loader's cache gets no other library.
  - Refuses a library whose SONAME is not C(libnccl.so.2), because C(ldconfig) would cache it by its SONAME.
  - Runs C(ldconfig) only after a change or where the loader's cache lacks the library.
  - Links NCCL's headers into a folder that compilers search. A header of a package or of another hand stays as it is
    and is named in RV(kept).
options:
  link:
    description: Path of the artifact's link.
    type: str
    default: /usr/local/nccl
  conf:
    description: File that C(ldconfig) reads.
    type: str
    default: /etc/ld.so.conf.d/nccl.conf
  include_dir:
    description: Folder that compilers search.
    type: str
    default: /usr/include
  headers:
    description: Names in C(LINK/include) to link. Our links to other names are removed.
    type: list
    elements: str
    default: [nccl.h, nccl_device.h, nccl_device]
  installed:
    description: Whether the library was just installed or switched, so C(ldconfig) must run.
    type: bool
    default: false
attributes:
  check_mode: {support: full, description: Looks and changes nothing.}
  diff_mode: {support: full, description: Before and after of every path that changes.}
"""

EXAMPLES = """
---
# It is internal: the tasks and action plugins of this collection show its options.
"""

RETURN = r"""
changes: {description: What changed in short phrases., type: list, returned: success}
watch: {description: States of paths that hold from now on., type: list, returned: success}
kept:
  description: The headers left as they are, each with V(path) and V(owner), the package (empty without a package).
  type: list
  returned: success
msg: {description: A sentence about the headers left as they are., type: str, returned: success}
"""

import os
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    command,
    file_stage,
    file_transaction,
    library_closure,
    prefix_rules,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import path_state

_HEADERS = ("nccl.h", "nccl_device.h", "nccl_device")
_LIBRARY = "libnccl.so.2"
_PROBE = "libprobe.so.0"
_ANSWER_S = 60
_FOLDERS = "/usr/sbin:/sbin:/usr/bin:/bin"


def said(argv: Sequence[str]) -> str:
    """Return a command's output; '' where it fails or is missing."""
    done = command.run(argv, _ANSWER_S, {"PATH": _FOLDERS, "LC_ALL": "C"})
    return done.output if done.ok else ""


def sort_out(
    link: str, include_dir: str, headers: Sequence[str]
) -> Tuple[List[file_transaction.Entry], List[Dict[str, str]]]:
    """Return the links to make or remove, and the headers left as they are."""
    source = Path(link, "include")
    entries, kept = [], []
    places = {name: str(Path(include_dir, name)) for name in dict.fromkeys([*headers, *_HEADERS])}
    led = {place for place in places.values() if os.path.islink(place) and os.readlink(place).startswith(f"{link}/")}  # noqa: PTH114, PTH115
    owners = library_closure.packages_of([one for one in places.values() if os.path.lexists(one) and one not in led])
    for name, place in places.items():
        target = str(source / name)
        # without an installed NCCL (check mode), every name counts as coming
        wanted = name in headers and (os.path.lexists(target) or not source.is_dir())
        foreign = place in owners and (bool(owners[place]) or not os.path.islink(place))  # noqa: PTH114
        if foreign and wanted:
            kept.append({"path": place, "owner": owners[place]})
        elif wanted:
            entries.append(file_transaction.Entry(path=place, state="link", target=target))
        elif place in led:
            entries.append(file_transaction.Entry(path=place, state="absent"))
    return entries, kept


def loader_entries(conf: str, link: str, *, is_coming: bool) -> List[file_transaction.Entry]:
    """Return the folder of one link, what else is in it, and the file that tells the loader the folder.

    Args:
        conf: the file.
        link: of the artifact.
        is_coming: lay the link although its library is missing, as a check does before the first installation.

    Raises:
        file_transaction.StageError: the loader would read another folder.
    """
    prefix, library = Path(link).parent, f"{link}/lib/{_LIBRARY}"
    folder = prefix / "lib" / "clusterctl"
    line = file_transaction.one_line(conf, "the folder", str(folder), refused=" :,#=")
    above = [path for path in (*prefix_rules.folders_to(str(prefix)), str(folder.parent)) if not Path(path).is_dir()]
    others = sorted(path for path in folder.iterdir() if path.name != _LIBRARY) if folder.is_dir() else []
    return [
        *(file_transaction.Entry(path=path, state="directory", mode=0o755, is_watched=False) for path in above),
        file_transaction.Entry(path=str(folder), state="directory", mode=0o755, uid=0, gid=0),
        *(file_transaction.Entry(path=str(path), state="absent", is_watched=False) for path in others),
        file_transaction.Entry(  # the watch of the loader's cache covers it
            path=f"{folder}/{_LIBRARY}",
            state="link" if is_coming or Path(library).exists() else "absent",
            target=library,
            is_watched=False,
        ),
        file_transaction.Entry(
            path=conf,
            state="file",
            content=f"# clusterctl: the cluster's NCCL\n{line}\n".encode(),
            mode=0o644,
            uid=0,
            gid=0,
        ),
    ]


def soname_problem(link: str) -> str:
    """Return what is wrong with the name by which ldconfig would cache the installed library, or ''.

    ldconfig itself is asked: a file can be made so that another reader of ELF sees another name.
    """
    library = Path(link, "lib", _LIBRARY)
    if not library.exists():
        return ""
    with tempfile.TemporaryDirectory(prefix="clusterctl-") as folder:
        Path(folder, _PROBE).symlink_to(library)
        told = said(["ldconfig", "-nXv", folder]).partition("\n")[2]  # the first line names the folder
    name = told.strip().rpartition(f" -> {_PROBE}")[0]
    if name == _LIBRARY:
        return ""
    return (
        f"{library} has the SONAME {name[:100]!r} instead of {_LIBRARY}, and the loader would give it to programs by"
        f" that name; remove {os.path.realpath(link)} and its pack in the controller's cache, then run 'clusterctl"
        " provision'."
    )


def in_cache(library: str) -> bool:
    """Tell whether the loader's cache names a path."""
    return any(line.strip().endswith(f"=> {library}") for line in said(["ldconfig", "-p"]).splitlines())


def words(kept: Sequence[Dict[str, str]], link: str) -> str:
    """Return a sentence about the headers left as they are, or ''."""
    named = [f"{item['path']} ({'of the package ' + item['owner'] if item['owner'] else 'no link'})" for item in kept]
    if not named:
        return ""
    return f"Left as it is: {', '.join(named)}; compilers find the cluster's NCCL by -I{link}/include or pkg-config."


def main() -> None:
    """Run the module."""
    module = file_stage.QuietModule(
        argument_spec={
            "link": {"type": "str", "default": "/usr/local/nccl"},
            "conf": {"type": "str", "default": "/etc/ld.so.conf.d/nccl.conf"},
            "include_dir": {"type": "str", "default": "/usr/include"},
            "headers": {"type": "list", "elements": "str", "default": list(_HEADERS)},
            "installed": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given: Dict[str, Any] = module.params
    link = given["link"]
    program = module.get_bin_path("ldconfig", required=True, opt_dirs=["/sbin", "/usr/sbin"])
    problem = soname_problem(link)
    if problem:
        module.fail_json(msg=problem, changes=[], watch=[])
    links, kept = sort_out(link, given["include_dir"], given["headers"])
    try:
        loader_files = loader_entries(given["conf"], link, is_coming=module.check_mode)
        entries = [*loader_files, *links]
        outcome = file_stage.apply(entries, check_mode=module.check_mode, want_diff=module._diff)  # noqa: SLF001
    except file_transaction.StageError as error:
        module.fail_json(msg=str(error), changes=[], watch=[])
    changes = list(outcome.changes)
    library = str(Path(link).parent / "lib" / "clusterctl" / _LIBRARY)
    is_changed = any(entry.path in phrase for entry in loader_files for phrase in changes)
    if is_changed or given["installed"] or not in_cache(library):
        changes.append("ldconfig")
        if not module.check_mode:
            code, _unused, complaint = module.run_command([program])
            if code:
                module.fail_json(msg=f"ldconfig ended with {code}: {complaint.strip()}", changes=changes, watch=[])
    # The first replaces an entry of earlier releases, which looked for this path in the loader's cache.
    states = path_state.watch_state(f"{link}/lib/{_LIBRARY}", "library"), path_state.watch_state(library, "loader")
    watch = [*outcome.watch, *(state for state in states if state["kind"] != "absent")]
    answer: Dict[str, Any] = {"changed": bool(changes), "changes": changes, "watch": watch, "kept": kept}
    if kept:
        answer["msg"] = words(kept, link)
    if module._diff:  # noqa: SLF001 - the documented way for a module to learn of --diff
        answer["diff"] = outcome.diff
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
