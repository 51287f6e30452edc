# SPDX-License-Identifier: Apache-2.0
"""Edit the text of shared configuration files: managed blocks, /etc/hosts and /etc/environment.

The functions take and return text. All other text stays as it is, byte for byte. Files are therefore decoded with
``surrogateescape``, and each line keeps its ending.
"""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import config_line

_MARKER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# pam_env reads lines of at most this many bytes and cuts longer ones in two (Linux-PAM 1.3).
_LONGEST_LINE = 1023


class EditError(Exception):
    """The text cannot be edited; the message is one sentence without the file's name, which the caller adds."""


# --- managed blocks --------------------------------------------------------------------------------------------------


def begin_of(marker: str) -> str:
    """Return the line that opens a block."""
    return f"# BEGIN clusterctl {marker}"


def end_of(marker: str) -> str:
    """Return the line that closes a block."""
    return f"# END clusterctl {marker}"


def check_marker(marker: str) -> None:
    """Refuse a name that could not be found again in a file.

    Raises:
        EditError: the name is empty or holds more than letters, digits, '.', '_' and '-'.
    """
    if not _MARKER_NAME.fullmatch(marker):
        raise EditError(f"the marker {marker!r} is not a name of letters, digits, '.', '_' and '-'")


def _find_block(lines: Sequence[str], marker: str) -> Optional[Tuple[int, int]]:
    """Return the indices of the block's first and last line.

    Raises:
        EditError: a marker is repeated or its partner is missing.
    """
    begins = [number for number, line in enumerate(lines) if line.strip() == begin_of(marker)]
    ends = [number for number, line in enumerate(lines) if line.strip() == end_of(marker)]
    for name, found in (("BEGIN", begins), ("END", ends)):
        if len(found) > 1:
            raise EditError(
                f"line {found[1] + 1} repeats '# {name} clusterctl {marker}' of line {found[0] + 1}; remove one of the "
                "two blocks"
            )
    if not begins and not ends:
        return None
    if not ends:
        raise EditError(f"line {begins[0] + 1} opens block '{marker}', but nothing closes it; add '{end_of(marker)}'")
    if not begins:
        raise EditError(f"line {ends[0] + 1} closes block '{marker}', but nothing opens it; remove the line")
    if ends[0] < begins[0]:
        raise EditError(
            f"line {ends[0] + 1} closes block '{marker}' before line {begins[0] + 1} opens it; mend the two"
        )
    return begins[0], ends[0]


def set_block(text: str, marker: str, content: str) -> str:
    """Return the text with exactly this content in the block; an empty content removes the block.

    A present block keeps its place; a new one goes to the end. Its lines end in a newline alone, since many readers
    count a carriage return to the value. A file whose last line has no newline stays so when the block is removed.

    Raises:
        EditError: see :func:`check_marker`; or the block's markers are doubled or unbalanced; or the content holds one,
            or a control character.
    """
    check_marker(marker)
    body = _lines_of(content, marker)
    if any(line.strip() in {begin_of(marker), end_of(marker)} for line in body):
        raise EditError(f"the content of block '{marker}' holds the block's own marker")
    lines = _split(text)
    place = _find_block(lines, marker)
    block = [f"{line}\n" for line in (begin_of(marker), *body, end_of(marker))] if content else []
    if place is None:
        return _append(text, block)
    before, after = lines[: place[0]], lines[place[1] + 1 :]
    if not after and not lines[place[1]].endswith("\n") and block:
        block[-1] = block[-1][:-1]  # the file ended within our block without a newline: keep that
    return "".join([*before, *block, *after])


def lines_of(text: str) -> List[str]:
    """Return the lines as sshd, ssh and glibc read them; str.splitlines also ends them at other characters."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def _lines_of(content: str, marker: str) -> List[str]:
    """Return the lines of a block's content, which ends in a newline or not.

    Raises:
        EditError: a line has a control character; a tab is none.
    """
    lines = lines_of(content)
    if config_line.control_in("\n".join(lines)):
        for number, line in enumerate(lines, start=1):
            _checked(line.replace("\t", " "), f"line {number} of block '{marker}'")
    return lines


def _checked(value: str, field: str) -> None:
    try:
        config_line.checked(value, field)
    except config_line.LineError as error:
        raise EditError(str(error)) from None


def _append(text: str, block: List[str]) -> str:
    if not block:
        return text
    if not text or text.endswith("\n"):
        return text + "".join(block)
    return f"{text}\n{''.join(block)}"


def _split(text: str) -> List[str]:
    """Split only at newlines and keep them; str.splitlines also splits at form feeds, which are content."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


# --- /etc/hosts ------------------------------------------------------------------------------------------------------

_DISPLACED = "# clusterctl {} took names from: "


def host_names(content: str) -> Dict[str, str]:
    """Return the address of every name in lines of hosts(5), in lower case: glibc compares names without case.

    Raises:
        EditError: a name has two addresses.
    """
    found: Dict[str, str] = {}
    for line in lines_of(content):
        words = line.partition("#")[0].split()
        for name in words[1:]:
            if found.setdefault(name.lower(), words[0]) != words[0]:
                raise EditError(f"the name '{name}' has two addresses, {found[name.lower()]} and {words[0]}")
    return found


def set_hosts(text: str, marker: str, content: str) -> str:
    """Return a hosts file's text with the block, and with the block's names removed from all other lines.

    glibc answers with the addresses of all lines that hold a name and prefers a loopback. Debian's ``127.0.1.1 node1``
    would therefore win over the block. So the names of the block are removed from every other line with another
    address. The original line stays before the rest of it as a comment, and comes back when the block no longer needs
    the name.

    Raises:
        EditError: see :func:`set_block` and :func:`host_names`.
    """
    check_marker(marker)
    prefix = _DISPLACED.format(marker)
    addresses = host_names(content)
    lines = _split(text)
    place = _find_block(lines, marker)
    inside = range(place[0], place[1] + 1) if place else range(0)
    result: List[str] = []
    remainder: Optional[str] = None
    for number, line in enumerate(lines):
        if number in inside:
            result.append(line)
            remainder = None
            continue
        if line.startswith(prefix):
            original = line[len(prefix) :]
            result += _displace(original, prefix, addresses)
            remainder = _remainder(original, None)
            continue
        if remainder is not None and _is_remainder(line, remainder):
            remainder = None  # the rest that an earlier run left of this line
            continue
        remainder = None
        result += _displace(line, prefix, addresses)
    return set_block("".join(result), marker, content)


def block_hosts(text: str, marker: str) -> Dict[str, str]:
    """Return the address of every name that the block in a hosts file's text holds.

    Raises:
        EditError: see :func:`set_block`.
    """
    lines = _split(text)
    place = _find_block(lines, marker)
    return host_names("".join(lines[place[0] : place[1]])) if place else {}


def _displace(line: str, prefix: str, addresses: Mapping[str, str]) -> List[str]:
    """Return the line unchanged, or the comment that keeps it and the rest of it."""
    words = line.partition("#")[0].split()
    taken = {name for name in words[1:] if addresses.get(name.lower(), words[0]) != words[0]}
    if not taken:
        return [line]
    left = _remainder(line, taken)
    if not left:
        return [prefix + line]
    return [prefix + line if line.endswith("\n") else f"{prefix}{line}\n", left]


def _remainder(line: str, taken: "Optional[set[str]]") -> str:
    """Return the line without the names taken ('' when no name is left); None takes no name."""
    words = line.partition("#")[0].split()
    names = [name for name in words[1:] if name not in (taken or set())]
    if not names:
        return ""
    return f"{words[0]}\t{' '.join(names)}\n"


def _is_remainder(line: str, full: str) -> bool:
    """Tell whether a line is the rest that an earlier displacement left of the full one."""
    words, whole = line.split(), full.split()
    return len(words) > 1 and words[0] == whole[0] and set(words[1:]) < set(whole[1:]) and line.count("#") == 0


# --- /etc/environment ------------------------------------------------------------------------------------------------

_NOTE = "# clusterctl: "
# A carriage return, and blanks behind a value: Linux-PAM 1.5 keeps them, and the quote before them.
_TAIL = re.compile(r"\r|[ \t]+(?:#|$)")


class Environment(NamedTuple):
    """The wanted folders and values of a file of variables."""

    paths: Mapping[str, Sequence[str]]  # by variable: folders that stand behind the folders of others
    variables: Mapping[str, str]
    bases: Mapping[str, str]  # by variable: the initial list, for a file without one


def check_environment(wanted: Environment) -> None:
    """Refuse values that pam_env would not read back unchanged.

    Raises:
        EditError: a name that is no variable's, or a value that no line of the file can hold.
    """
    for name in [*wanted.paths, *wanted.variables, *wanted.bases]:
        if not _VARIABLE_NAME.fullmatch(name):
            raise EditError(f"{name!r} is not a valid name of a variable")
    both = sorted(set(wanted.paths) & set(wanted.variables))
    if both:
        raise EditError(f"{both[0]} is given both as a list of folders and as a variable")
    for name, folders in wanted.paths.items():
        for folder in folders:
            if not folder.startswith("/") or ":" in folder:
                raise EditError(f"{name}: {folder!r} is not an absolute path without ':'")
            _check_value(name, folder)
    for name, value in [*wanted.variables.items(), *wanted.bases.items()]:
        _check_value(name, value)


def _check_value(name: str, value: str) -> None:
    _checked(value, f"the value of {name}")
    if "#" in value:
        raise EditError(f"the value of {name} holds a '#', which pam_env takes for a comment even within quotes")
    if value != value.strip() or value[:1] in {'"', "'"} or value[-1:] in {'"', "'", "\\"}:
        raise EditError(f"the value of {name} begins or ends with a blank, a quote or a backslash, which pam_env drops")


def set_environment(text: str, wanted: Environment) -> str:
    r"""Return a file of variables with ours merged in and all others kept.

    Comments of one line each remember our additions, so that they can be removed without a change to other lines::

        # clusterctl: added PATH /usr/local/openmpi/bin
        # clusterctl: set OMP_NUM_THREADS
        # clusterctl: replaced LANG="de_DE.UTF-8"

    A line that needs no change stays as it is, byte for byte. Lines of ours end in a newline right behind the value:
    pam_env counts a carriage return or a blank there to the value, and the quote before it.

    Raises:
        EditError: see :func:`check_environment`; or a line would be longer than pam_env reads.
    """
    check_environment(wanted)
    notes, lines = _read_notes(_split(text))
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n" if notes or wanted.paths or wanted.variables else ""
    out: List[str] = []
    names = [*notes.added, *(name for name in wanted.paths if name not in notes.added)]
    for name in names:
        lines = _merge_list(lines, name, wanted, notes, out)
    for name in [*notes.plain, *(name for name in wanted.variables if name not in notes.plain)]:
        lines = _merge_variable(lines, name, wanted, notes, out)
    for line in lines:
        if len(line.encode("utf-8", "surrogateescape")) > _LONGEST_LINE and line not in _split(text):
            raise EditError(
                f"the line of {_name_of(line)} would be longer than the {_LONGEST_LINE} bytes pam_env reads"
            )
    remembered = [f"{_NOTE}{note}\n" for note in out]
    return "".join([*lines, *remembered])


class _Notes(NamedTuple):
    added: Dict[str, List[str]]
    created: Dict[str, str]  # lists that we created, with their initial list
    plain: Dict[str, Optional[str]]  # variables that we set, with the replaced line


def _read_notes(lines: List[str]) -> Tuple[_Notes, List[str]]:
    notes = _Notes({}, {}, {})
    rest = []
    for line in lines:
        if not line.startswith(_NOTE):
            rest.append(line)
            continue
        verb, _unused, value = line[len(_NOTE) :].rstrip("\r\n").partition(" ")
        name, _unused, folder = value.partition(" ")
        if verb == "added":
            notes.added.setdefault(name, []).append(folder)
        elif verb == "created":
            notes.created[name] = folder
            notes.added.setdefault(name, [])
        elif verb == "set":
            notes.plain.setdefault(name, None)
        elif verb == "replaced":
            notes.plain[_name_of(value)] = value
    return notes, rest


def _name_of(line: str) -> str:
    """Return the variable that a line sets, or ''."""
    words = line.strip()
    if words.startswith("export "):
        words = words[7:].lstrip()
    name, separator, _unused = words.partition("=")
    return name if separator and _VARIABLE_NAME.fullmatch(name) else ""


def _value_of(line: str) -> str:
    value = line.strip().partition("=")[2].partition("#")[0].rstrip()
    if value[:1] in {'"', "'"}:
        value = value[1:]
        value = value[:-1] if value[-1:] in {'"', "'"} else value
    return value


def _position(lines: Sequence[str], name: str) -> Optional[int]:
    """Return where a variable is set; of several lines the last one counts, as it does for pam_env."""
    found = [number for number, line in enumerate(lines) if _name_of(line) == name]
    return found[-1] if found else None


def _merge_list(lines: List[str], name: str, wanted: Environment, notes: _Notes, out: List[str]) -> List[str]:
    ours = list(dict.fromkeys(wanted.paths.get(name, ())))
    before = notes.added.get(name, [])
    place = _position(lines, name)
    if place is None:
        base = wanted.bases.get(name, "")
        if not ours:
            return lines
        theirs = [folder for folder in base.split(":") if folder]
        out.append(f"created {name} {base}".rstrip())
    else:
        present = _value_of(lines[place])
        theirs = [folder for folder in present.split(":") if folder not in before] if present else []
        if name in notes.created and not ours and ":".join(theirs) == notes.created[name]:
            return [*lines[:place], *lines[place + 1 :]]
        if name in notes.created and ours:
            out.append(f"created {name} {notes.created[name]}".rstrip())
    new = [folder for folder in ours if folder not in theirs]
    out += [f"added {name} {folder}" for folder in new]
    value = ":".join([*theirs, *new])
    return _with_value(lines, place, name, value)


def _merge_variable(lines: List[str], name: str, wanted: Environment, notes: _Notes, out: List[str]) -> List[str]:
    place = _position(lines, name)
    original = notes.plain.get(name)
    if name not in wanted.variables:  # no longer wanted: the replaced line comes back
        if place is None:
            return lines
        back = [f"{original}\n"] if original is not None else []
        return [*lines[:place], *back, *lines[place + 1 :]]
    if place is not None and name not in notes.plain:
        original = lines[place].rstrip("\r\n")
    out.append(f"set {name}" if original is None else f"replaced {original}")
    return _with_value(lines, place, name, wanted.variables[name])


def _with_value(lines: List[str], place: Optional[int], name: str, value: str) -> List[str]:
    line = f'{name}="{value}"\n'
    if place is None:
        return [*lines, line]
    if _value_of(lines[place]) == value and not _TAIL.search(lines[place]):
        return lines
    return [*lines[:place], line, *lines[place + 1 :]]
