# SPDX-License-Identifier: Apache-2.0
"""Build the collection from the files that git knows, install it, and run ansible-test sanity on what was installed.

``antsibull-changelog`` makes a changelog of the unreleased entries, in a copy, so that a release will find them valid.

``ansible-test`` makes its environments with a bootstrap of pip, which it fetches from a server of the Ansible project.
Here pip comes from the package index, by the pip that Python carries (ensurepip), so that the index alone is needed.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import ansible_test
import changelog_fragments
import yaml

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "collection"
INSTALLED = Path("ansible_collections") / "clusterctl" / "hpc"
# What pip and git read below the home; ansible-test has a home of its own here.
_KEPT = (".netrc", ".gitconfig")
_PIP = re.compile(r"^\s+pip='([0-9.]+)',$", re.MULTILINE)
_BOOTSTRAP = '''\
"""Install pip from the package index, beginning with the one that ensurepip has."""

import subprocess
import sys

for argv in (["ensurepip"], ["pip", "install", "--quiet", "pip==@VERSION@"]):
    done = subprocess.run([sys.executable, "-m", *argv], check=False)
    if done.returncode:
        sys.exit(done.returncode)
'''


class PackError(Exception):
    """The collection cannot be built or tested; the message says what to do."""


def pip_version(source: str) -> str:
    """Return the pip that this ansible-test asks for.

    Args:
        source: text of ``ansible_test._internal.python_requirements``.

    Raises:
        PackError: the text has another form.
    """
    found = _PIP.search(source)
    if not found:
        raise PackError("This ansible-test names its pip in an unknown way; correct _PIP in tools/collection.py.")
    return found.group(1)


def bootstrap(version: str) -> tuple[str, str]:
    """Return the name and the text of the file that ansible-test takes for its bootstrap of pip."""
    return f"get_pip_{version.replace('.', '_')}.py", _BOOTSTRAP.replace("@VERSION@", version)


def sanity_argv(tests: Sequence[str], skipped: Sequence[str], python: str) -> list[str]:
    """Return the command that runs sanity tests, all of them where none is named.

    Args:
        tests: names of tests.
        skipped: names of tests to leave out.
        python: the version whose environments are made.
    """
    named = [word for test in tests for word in ("--test", test)]
    left_out = [word for test in skipped for word in ("--skip-test", test)]
    return ["ansible-test", "sanity", "--venv", "--color", "no", "--python", python, *named, *left_out]


def _copied(source: Path, target: Path) -> None:
    """Copy the files that git knows or would take, so that nothing else of a checkout is packed."""
    argv = ["git", "-C", str(source), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    for name in filter(None, done.stdout.split("\0")):
        if (source / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)


def build(out: Path, source: Path = WORK / "source") -> Path:
    """Build the collection, and return its archive.

    Args:
        out: folder of the archive.
        source: folder that holds what is packed, for as long as that takes.
    """
    shutil.rmtree(source, ignore_errors=True)
    _copied(ROOT, source)
    changelog_fragments.write(source)
    galaxy = str(Path(sys.executable).with_name("ansible-galaxy"))
    argv = [galaxy, "collection", "build", "--force", "--output-path", str(out), str(source)]
    said = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout
    shutil.rmtree(source)
    return Path(said.strip().rpartition(" ")[2])


def changelog(folder: Path = WORK / "changelog") -> str:
    """Check the fragments of CHANGELOG.md, and return the changelog that a release would make of them.

    Args:
        folder: folder for a copy of the checkout, since antsibull-changelog writes into it.

    Raises:
        PackError: an entry of CHANGELOG.md is not valid, or is missing in the changelog.
    """
    shutil.rmtree(folder, ignore_errors=True)
    _copied(ROOT, folder)
    fragment = changelog_fragments.write(folder)
    entries = yaml.safe_load(fragment.read_text(encoding="utf-8"))
    version = yaml.safe_load((folder / "galaxy.yml").read_text(encoding="utf-8"))["version"]
    if said := changelog_faults(folder):
        raise PackError(f"antsibull-changelog refuses entries of CHANGELOG.md: {said}")
    _antsibull(folder, "release", "--version", version, check=True)
    made = yaml.safe_load((folder / "changelogs" / "changelog.yaml").read_text(encoding="utf-8"))
    listed = made["releases"][version]["changes"]
    for section, texts in entries.items():
        missing = [text for text in texts if text not in listed.get(section, ())]
        if missing:
            raise PackError(f"The changelog lacks an entry of CHANGELOG.md in {section}: {missing[0]}")
    return (folder / "changelogs" / "changelog.rst").read_text(encoding="utf-8")


def changelog_faults(folder: Path) -> str:
    """Return what ``antsibull-changelog lint`` says against the fragments of a collection, '' where they are valid."""
    done = _antsibull(folder, "lint")
    return " ".join((done.stdout + done.stderr).split()) if done.returncode else ""


def _antsibull(folder: Path, *words: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    beside = Path(sys.executable).parent  # it starts ansible-doc, from PATH
    environment = {**os.environ, "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}"}
    argv = [str(beside / "antsibull-changelog"), *words]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise PackError(f"antsibull-changelog {words[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return done


def install(archive: Path, folder: Path = WORK) -> Path:
    """Install the archive below a folder of collections, and return the folder of the installed collection."""
    shutil.rmtree(folder / INSTALLED, ignore_errors=True)
    galaxy = str(Path(sys.executable).with_name("ansible-galaxy"))
    argv = [galaxy, "collection", "install", "--no-deps", "--force", "--collections-path", str(folder), str(archive)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return folder / INSTALLED


def _known_to_git(folder: Path) -> None:
    # ansible-test looks at the files that git knows. The checkout's own git ignores this folder.
    for words in (["init", "--quiet"], ["add", "--all", "--force"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    (folder / ".git" / "info" / "exclude").write_text("tests/output/\n", encoding="utf-8")


def pip_settings(listed: str, proxy: str = "") -> str:
    """Return a configuration file of pip with what its files and variables say here: ansible-test drops variables.

    Args:
        listed: what ``pip config list`` printed.
        proxy: the proxy that a variable names; a setting of pip's own counts more.
    """
    sections: dict[str, dict[str, str]] = {"global": {"proxy": proxy} if proxy else {}}
    for line in listed.splitlines():
        name, _unused, value = line.partition("=")
        section, _unused, option = name.rpartition(".")
        wanted = "global" if section == ":env:" else section
        sections.setdefault(wanted, {})[option] = str(ast.literal_eval(value)).replace("\n", "\n  ")
    return "".join(
        f"[{section}]\n" + "".join(f"{option} = {value}\n" for option, value in options.items())
        for section, options in sections.items()
    )


def _use_pip_as_here(home: Path) -> None:
    argv = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    place = home / ".config" / "pip" / "pip.conf"
    place.parent.mkdir(parents=True, exist_ok=True)
    proxy = os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY") or ""
    place.write_text(pip_settings(listed, proxy), encoding="utf-8")


def sanity(folder: Path, argv: Sequence[str]) -> int:
    """Run sanity tests in the folder of an installed collection, and return their exit status."""
    _known_to_git(folder)
    home = WORK / "home"
    cache = home / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    internal = Path(ansible_test.__file__).parent / "_internal" / "python_requirements.py"
    name, text = bootstrap(pip_version(internal.read_text(encoding="utf-8")))
    (cache / name).write_text(text, encoding="utf-8")
    for kept in _KEPT:
        if (Path.home() / kept).exists() and not (home / kept).exists():
            (home / kept).symlink_to(Path.home() / kept)
    _use_pip_as_here(home)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(argv, cwd=folder, check=False, env={**os.environ, "HOME": str(home), "PATH": path}).returncode


def main() -> int:
    """Build, install and test the collection."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the archive")
    parser.add_argument("--build-only", action="store_true", help="build and install without the sanity tests")
    parser.add_argument("--test", action="append", default=[], help="a sanity test; all where none is named")
    parser.add_argument("--skip-test", action="append", default=[], help="a sanity test to leave out")
    parser.add_argument("--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}", help="Python of the tests")
    given = parser.parse_args()
    try:
        archive = build(given.out)
        folder = install(archive)
        print(f"{archive} is built, and installed in {folder}.", file=sys.stderr, flush=True)
        if not given.test:
            lines = changelog().count("\n")
            print(f"The entries of CHANGELOG.md make a changelog of {lines} lines.", file=sys.stderr, flush=True)
        return 0 if given.build_only else sanity(folder, sanity_argv(given.test, given.skip_test, given.python))
    except (PackError, changelog_fragments.HeadingError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
