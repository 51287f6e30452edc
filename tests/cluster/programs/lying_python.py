"""Stand in for /usr/bin/python3 of a node that somebody else is root of: answers of modules and programs are edited.

The real interpreter does the work. ``LIES`` is a list of lies; without that file, nothing is edited. A lie has

- ``of``: the module (``mesh_key``), ``record`` for the node's record from a module or a bare ssh, or ``any``;
- ``at`` and ``value``: the place in the answer, and what stands there instead; ``extend`` adds to a list or a text;
- ``stdout`` or ``stderr``: text that is written before the answer.

Each lie that was told is one line of ``TOLD``, so that a test knows that its attack took place.
"""

import json
import os
import re
import subprocess
import sys
import threading

LIES, TOLD = "/var/lib/lies.json", "/var/lib/lies.told"
REAL = "/usr/bin/python3.REAL"
MODULE = re.compile(rb"plugins[./]modules[./]([a-z_]+)|ansible[./]modules[./]([a-z_]+)")


def main():
    words = sys.argv[1:]
    lies = read_lies()
    is_module, is_program = words in ([], ["-"]), words[:2] == ["-I", "-c"]
    if not lies or not (is_module or is_program) or sys.stdin.isatty():
        os.execv(REAL, [REAL, *words])
    name, data = "", None
    if is_module:
        data = sys.stdin.buffer.read()
        found = MODULE.search(data)
        name = next(filter(None, found.groups()), b"").decode() if found else ""
    pipe = subprocess.PIPE
    child = subprocess.Popen([REAL, *words], stdin=pipe if is_module else None, stdout=pipe, stderr=pipe)
    errors = threading.Thread(target=copy_errors, args=(child.stderr, lies, name))
    errors.start()
    if is_module:
        threading.Thread(target=feed, args=(child.stdin, data), daemon=True).start()
    for line in child.stdout:
        put(sys.stdout.buffer, edited(line, lies, name))
    errors.join()
    sys.exit(child.wait() & 0xFF)


def read_lies():
    try:
        with open(LIES, encoding="utf-8") as stream:
            return json.load(stream)
    except FileNotFoundError:
        return []


def feed(stream, data):
    try:
        stream.write(data)
        stream.close()
    except BrokenPipeError:
        pass


def copy_errors(stream, lies, name):
    for lie in lies:
        if "stderr" in lie and lie["of"] in (name, "any"):
            put(sys.stderr.buffer, lie["stderr"].encode())
            tell(lie, name)
    for line in stream:
        put(sys.stderr.buffer, line)


def put(stream, data):
    try:
        stream.write(data)
        stream.flush()
    except BrokenPipeError:
        pass


def edited(line, lies, name):
    try:
        answer = json.loads(line)
    except ValueError:
        return line
    if not isinstance(answer, dict):
        return line
    before = b""
    is_bare = line.startswith(b'{"schema_version"')
    record = answer if is_bare else answer.get("node")
    for lie in lies:
        if lie["of"] == "record":
            target = record
        else:
            target = answer if lie["of"] in (name, "any") else None
        if not isinstance(target, dict):
            continue
        if "stdout" in lie:
            before += lie["stdout"].encode()
        elif "stderr" in lie or not change(target, lie):
            continue
        tell(lie, name or "a program")
    return before + json.dumps(answer, separators=None if b'": ' in line else (",", ":")).encode() + b"\n"


def change(target, lie):
    *way, last = [int(step) if step.isdigit() else step for step in lie["at"].split(".")]
    try:
        for step in way:
            target = target[step]
        if "extend" in lie:
            target[last] = target.get(last, type(lie["extend"])()) + lie["extend"]
        else:
            target[last] = lie["value"]
    except (KeyError, IndexError, TypeError):
        return False
    return True


def tell(lie, name):
    with open(TOLD, "a", encoding="utf-8") as stream:
        stream.write(f"{lie['of']} {lie.get('at', 'text')} {name}\n")


main()
