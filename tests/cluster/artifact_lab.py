"""Nodes with a controller's cache of their own, a C project so small that a build takes a second, and plays on them."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import playing
from clusterctl.sandbox import Sandbox

PROGRAM = '#include <stdio.h>\nint answer(void);\nint main(void) { printf("%d\\n", answer()); return 0; }\n'
LIBRARY = "int answer(void) { return 42; }\n"
PACKAGES = {
    "packages": ["gcc", "libc6-dev", "make"],
    "package_options": {"update_cache": True, "cache_valid_time": 86400},
}
LINK = "/usr/local/demo"
SMALL = "/dev/small"
WORK = "/var/tmp"  # noqa: S108 - where the module makes its folders


def makefile(*, libraries: str = "", before: str = "") -> str:
    return (
        f"all:\n\t{before or 'true'}\n\tgcc -shared -fPIC -o libdemo.so library.c {libraries}\n"
        "\tgcc -o demo program.c -L. -ldemo -Wl,-rpath,/usr/local/demo/lib -Wl,--allow-shlib-undefined\n"
        "install:\n\tmkdir -p $(DESTDIR)/usr/local/demo/lib $(DESTDIR)/usr/local/demo/bin\n"
        "\tcp libdemo.so $(DESTDIR)/usr/local/demo/lib\n\tcp demo $(DESTDIR)/usr/local/demo/bin\n"
        "\tln -s libdemo.so $(DESTDIR)/usr/local/demo/lib/libdemo.so.1\n"
    )


def tarball(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as bundle:
        for name, text in files.items():
            member = tarfile.TarInfo(f"demo-1.0/{name}")
            member.size, member.mtime = len(text), 1_000_000_000
            bundle.addfile(member, io.BytesIO(text.encode()))
    return path


@dataclass
class Played:
    """What one run of a playbook said."""

    rc: int
    text: str
    results: list[tuple[str, dict[str, Any]]]

    def of(self, host: str) -> list[dict[str, Any]]:
        return [result for name, result in self.results if name == host]

    @property
    def messages(self) -> str:
        return " ".join(str(result.get("msg", "")) for _, result in self.results)


_RESULT = re.compile(r"^(\S+) \| \S+(?: \([^)]*\))? => (?=\{)", re.MULTILINE)


def parse(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Return each host's results out of what the 'minimal' callback prints."""
    decoder = json.JSONDecoder(strict=False)
    return [(match.group(1), decoder.raw_decode(text, match.end())[0]) for match in _RESULT.finditer(text)]


class Lab:
    """Nodes, a controller's cache of their own, and playbooks run against them."""

    def __init__(self, box: Sandbox, folder: Path) -> None:
        self.box, self.folder, self.cache = box, folder, folder / "cache"
        self.source = tarball(folder / "demo.tar.gz", self.files())

    @staticmethod
    def files(**changed: str) -> dict[str, str]:
        return {"program.c": PROGRAM, "library.c": LIBRARY, "Makefile": makefile(), **changed}

    def build(self, *, source: Path | None = None, on: str = "node1", **changed: Any) -> dict[str, Any]:
        """Return the task that builds the demo on a node."""
        arguments = {
            "name": "demo",
            "version": "1.0",
            "inputs": {"variant": "plain"},
            "cache_dir": str(self.cache),
            "files": [{"path": str(source or self.source), "dest": "src", "unpack": True}],
            "steps": [
                {"name": "make", "argv": ["make", "-j@JOBS@"], "chdir": "src"},
                {"name": "install", "argv": ["make", "install", "DESTDIR=@STAGE@"], "chdir": "src"},
            ],
            **PACKAGES,
            **changed,
        }
        return {"lab_build": arguments, "when": f"inventory_hostname == '{on}'"}

    def install(self, **changed: Any) -> dict[str, Any]:
        arguments = {"name": "demo", "version": "1.0", "inputs": {"variant": "plain"}, "cache_dir": str(self.cache)}
        return {"lab_install": {"artifacts": [{**arguments, **changed}]}}

    def plan(self, *artifacts: dict[str, Any]) -> Played:
        """Play the first round of a plan; each artifact is built ``on`` a node by ``steps``."""
        places = {"cache_dir": str(self.cache), "work_dir": WORK}
        planned = [
            {
                "role": "demo",
                "version": "1.0",
                "prefix": "/usr/local",
                "round": 1,
                "install": {},
                "uses": [],
                "inputs": {"variant": "plain"},
                "name": one["name"],
                "before": {},
                **one,
                "link": f"/usr/local/{one['name']}",
                "hosts": ["node1", "node2"],
                "builders": [one["on"]],
                "build": {**places, "steps": one["steps"]},
            }
            for one in artifacts
        ]
        task = {"clusterctl.hpc.software_build": {"plan": "planned", "round": 1}}
        play = {"hosts": "all", "gather_facts": False, "vars": {"planned": {"artifacts": planned}}, "tasks": [task]}
        return self.ended(self.argv_of([play]))

    def argv(self, tasks: list[dict[str, Any]], *options: str) -> list[str]:
        return self.argv_of([{"hosts": "all", "gather_facts": False, "tasks": tasks}], *options)

    def argv_of(self, plays: list[dict[str, Any]], *options: str) -> list[str]:
        book = self.folder / "play.json"
        book.write_text(json.dumps(plays), encoding="utf-8")
        return [playing.PLAYBOOK, "-i", str(self.box.inventory), str(book), *options]

    @property
    def environment(self) -> dict[str, str]:
        results = {"ANSIBLE_STDOUT_CALLBACK": "minimal", "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
        actions = str(Path(__file__).with_name("lab_actions"))
        return playing.environment(**results, XDG_STATE_HOME=str(self.folder / "state"), ANSIBLE_ACTION_PLUGINS=actions)

    def play(self, *tasks: dict[str, Any], check: bool = False) -> Played:
        return self.ended(self.argv(list(tasks), *(["--check"] if check else [])))

    def ended(self, argv: list[str], timeout_s: float = 300) -> Played:
        done = playing.ran(argv, self.environment, timeout_s)
        return Played(done.returncode, done.stdout + done.stderr, parse(done.stdout))

    def ssh(self, node: str, *argv: str) -> subprocess.CompletedProcess[str]:
        return playing.ssh(self.box, node, "sudo", *argv)

    def said(self, node: str, *argv: str) -> str:
        return playing.said(self.box, node, "sudo", *argv)

    def forget(self) -> None:
        """Take the demo off every node and out of the cache."""
        shutil.rmtree(self.cache, ignore_errors=True)
        for node in self.box.nodes:
            self.said(node.name, "sh", "-c", "rm -rf /usr/local/demo* /usr/local/.demo* /var/cache/clusterctl")
