"""Putting a node back: what each path becomes, which packages stay, and that no role writes what is unknown to it."""

from __future__ import annotations

import ast
import base64
import errno
import os
import pwd
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import recipe_clusters
import yaml
from ansible_collections.clusterctl.hpc.plugins.action import fabric_configure, validation_install
from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    brought,
    file_restore,
    file_stage,
    file_transaction,
    origins,
    packages_installed,
    text_edit,
    tree_removal,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.file_restore import Present, Wanted
from ansible_collections.clusterctl.hpc.plugins.modules import artifact_collect, nccl_system, uninstall

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import RunModule

ROOT = Path(__file__).parents[3]
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
BLOCK = "# BEGIN clusterctl m\nours\n# END clusterctl m\n"


def origin(kind: str, **given: Any) -> dict[str, Any]:
    content = given.pop("content", None)
    kept = None if content is None else base64.b64encode(content).decode()
    return {"kind": kind, "user": "", "mode": "0644", "uid": 0, "gid": 0, "content": kept, **given}


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1 localhost\n127.0.1.1 node1 extra\n",
        "127.0.0.1 localhost\n\n\n",
        "",
    ],
)
def test_the_names_of_the_cluster_leave_a_hosts_file(text: str) -> None:
    written = text_edit.set_hosts(text, "hosts", "10.0.0.1 node1\n10.0.0.2 node2\n")
    assert written != text
    assert file_restore.without_ours(written) == text


def test_variables_and_every_block_leave_a_text() -> None:
    wanted = text_edit.Environment({"PATH": ["/usr/local/openmpi/bin"]}, {"OMP": "1"}, {"PATH": "/usr/bin"})
    assert file_restore.without_ours(text_edit.set_environment('LANG="C"\n', wanted)) == 'LANG="C"\n'
    text = text_edit.set_block(text_edit.set_block("mine\n", "a", "x"), "b", "y") + "later\n"
    assert file_restore.without_ours(text) == "mine\nlater\n"
    assert file_restore.without_ours("# clusterctl is a word here\n") == "# clusterctl is a word here\n"


FIRST = b"first"  # no newline at its end, which an edit back alone would not tell
LEFT = f"first\n{BLOCK}".encode()
FOREIGN = f"first\n{BLOCK}by another\n".encode()


@pytest.mark.parametrize(
    ("known", "present", "wanted"),
    [
        (origin("absent"), Present("file", b"ours"), Wanted("absent")),
        (origin("absent"), Present("absent"), Wanted("")),
        (origin("absent"), Present("directory"), Wanted("folder")),
        (origin("absent", left=origins.digest(b"t")), Present("link", b"t"), Wanted("absent")),
        (origin("absent", left=origins.digest(b"t")), Present("link", b"of another"), Wanted("")),
        (origin("absent", edited=True), Present("file", BLOCK.encode()), Wanted("absent")),
        (origin("absent", edited=True), Present("file", b"later\n" + BLOCK.encode()), Wanted("file", b"later\n")),
        (origin("absent", edited=True), Present("file", b"by another\n"), Wanted("")),
        (
            origin("file", content=FIRST, edited=True, left=origins.digest(LEFT)),
            Present("file", LEFT),
            Wanted("file", FIRST),
        ),
        (
            origin("file", content=FIRST, edited=True, left=origins.digest(LEFT)),
            Present("file", FOREIGN),
            Wanted("file", b"first\nby another\n"),
        ),
        (
            origin("file", content=FIRST, edited=True, left=origins.digest(FOREIGN), shared=True),
            Present("file", FOREIGN),
            Wanted("file", b"first\nby another\n"),
        ),
        (origin("file", content=FIRST), Present("file", b"replaced"), Wanted("file", FIRST)),
        (origin("file", content=FIRST), Present("file", FIRST), Wanted("attributes")),
        (origin("file", content=FIRST), Present("absent"), Wanted("file", FIRST)),
        (origin("file", content=FIRST, left="x"), Present("absent"), Wanted("")),
        (origin("file"), Present("file", b"a private key"), Wanted("attributes")),
        (origin("link", target="a"), Present("link", b"a"), Wanted("")),
        (origin("link", target="a"), Present("link", b"b"), Wanted("link", b"a")),
        (origin("link", target="a"), Present("file", b"x"), Wanted("link", b"a")),
        (origin("directory"), Present("directory"), Wanted("attributes")),
        (None, Present("file", BLOCK.encode()), Wanted("absent")),
        (None, Present("file", b"theirs\n" + BLOCK.encode()), Wanted("file", b"theirs\n")),
        (None, Present("file", b"theirs\n"), Wanted("")),
        (None, Present("link", b"t"), Wanted("")),
    ],
)
def test_what_a_path_becomes(known: dict[str, Any] | None, present: Present, wanted: Wanted) -> None:
    assert file_restore.wanted_of("/etc/some", known, present) == wanted


def test_a_node_without_a_record_keeps_the_files_that_every_system_has() -> None:
    assert file_restore.wanted_of("/etc/hosts", None, Present("file", BLOCK.encode())) == Wanted("file", b"")
    assert file_restore.wanted_of("/etc/ssh/ssh_config.d/00-clusterctl.conf", None, Present("file", b"x")) == Wanted(
        "absent"
    )


@ROOT_ONLY
def test_files_get_their_first_content_mode_and_owner_back(tmp_path: Path, run_module: RunModule) -> None:
    config, other, folder = tmp_path / "config", tmp_path / "whole", tmp_path / "made"
    config.write_bytes(FIRST)
    config.chmod(0o640)
    os.chown(config, 1, 1)
    other.write_text("theirs\n")
    before = {path: (path.read_bytes(), path.stat().st_mode, path.stat().st_uid) for path in (config, other)}
    files = [
        {"path": str(config), "state": "block", "marker": "m", "content": "ours", "mode": "0644", "owner": "root"},
        {"path": str(other), "content": "ours\n", "mode": "0600"},
        {"path": str(folder), "state": "directory"},
        {"path": f"{folder}/x", "content": "ours\n"},
        {"path": f"{tmp_path}/link", "state": "link", "target": "whole"},
    ]
    run_module("file_set", check=True, files=files)
    assert not Path(origins.place()).exists()
    run_module("file_set", files=files)
    files[0]["content"] = "another"
    run_module("file_set", files=files)
    assert oct(Path(origins.place()).stat().st_mode)[-3:] == "600"
    entries, folders, kept = file_restore.survey(origins.load(), [])
    entries = [entry for entry in entries if entry.path.startswith(str(tmp_path))]
    file_stage.apply(entries, is_noted=False)
    assert {path: (path.read_bytes(), path.stat().st_mode, path.stat().st_uid) for path in before} == before
    assert ([path for path, _ in folders], kept) == ([str(folder)], [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config", "made", "whole"]
    assert list(folder.iterdir()) == []


@ROOT_ONLY
def test_a_file_that_others_changed_keeps_their_lines(tmp_path: Path, run_module: RunModule) -> None:
    config = tmp_path / "config"
    config.write_bytes(FIRST)
    entry = {"path": str(config), "state": "block", "marker": "m", "content": "ours"}
    run_module("file_set", files=[entry])
    with config.open("a") as stream:
        stream.write("by another\n")
    run_module("file_set", files=[{**entry, "content": "ours, later"}])
    entries, _, _ = file_restore.survey(origins.load(), [])
    file_stage.apply([one for one in entries if one.path == str(config)], is_noted=False)
    assert config.read_text() == "first\nby another\n"


@ROOT_ONLY
def test_a_path_through_the_link_of_a_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    os.chown(tmp_path / "link", 1, 1, follow_symlinks=False)
    tmp_path.chmod(0o777)
    with pytest.raises(file_transaction.StageError, match="is reached through the link"):
        file_restore.survey({"paths": {f"{tmp_path}/link/x": origin("absent")}}, [])


@ROOT_ONLY
def test_a_home_of_a_user_whom_no_list_has_is_read_as_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory service such as sssd answers for a name, and lists no users by default."""
    home = tmp_path / "home"
    home.mkdir()
    nobody = pwd.getpwnam("nobody")
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    monkeypatch.setattr(pwd, "getpwall", list)
    assert file_restore.user_of(f"{home}/.ssh/authorized_keys", None) == nobody
    assert file_restore.user_of(f"{home}-gone/.ssh/authorized_keys", None) is None
    assert file_restore.user_of("/etc/hosts", None) is None


def test_artifacts_and_their_links_are_found_and_nothing_else(tmp_path: Path) -> None:
    tree = tmp_path / "openmpi-5.0.7-0123456789abcdef"
    tree.mkdir()
    (tree / brought.MARKER).write_text("{}")
    (tmp_path / ".mpi4py-4.1.2-0123456789abcdef.x1").mkdir()
    (tmp_path / "mine-1.0-0123456789abcdef").mkdir()
    (tmp_path / "openmpi").symlink_to(tree.name)
    (tmp_path / "mine").symlink_to("mine-1.0")
    trees, links = brought.trees_and_links(str(tmp_path))
    assert [Path(path).name for path in trees] == [".mpi4py-4.1.2-0123456789abcdef.x1", tree.name]
    assert [Path(path).name for path in links] == ["openmpi"]


def test_what_dpkg_refuses_is_read_with_the_reason() -> None:
    said = (
        "dpkg: dependency problems prevent removal of libfoo1:amd64:\n"
        " bar depends on libfoo1 (>= 2).\n baz pre-depends on libfoo1.\n\n"
        "dpkg: error processing package libfoo1:amd64 (--purge):\n dependency problems - not removing\n"
        "dpkg: error processing package core (--purge):\n this is an essential package; it should not be removed\n"
    )
    found = packages_installed.needed_by_others(said)
    assert found == {"libfoo1": "bar needs it", "core": "this is an essential package; it should not be removed"}


def test_packages_that_others_need_stay_with_what_they_stand_on(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {"app": {"libfoo"}, "libfoo": {"libbar"}, "compiler": {"libgcc"}}  # app is the administrator's
    monkeypatch.setattr(
        packages_installed, "installed", lambda: ["app", "compiler", "libbar", "libfoo:amd64", "libgcc"]
    )

    def trial(names: list[str]) -> dict[str, str]:
        staying = {"app", "compiler", "libbar", "libfoo", "libgcc"} - {name.partition(":")[0] for name in names}
        plain = [name.partition(":")[0] for name in names]
        return {name: f"{who} needs it" for who in staying for name in needs.get(who, ()) if name in plain}

    monkeypatch.setattr(packages_installed, "_trial", trial)
    going, kept = packages_installed.removable(["libfoo", "libbar", "compiler", "libgcc", "gone"])
    assert going == ["compiler", "libgcc"]
    assert kept == {"libfoo": "app needs it", "libbar": "libfoo needs it"}


@ROOT_ONLY
def test_packages_that_came_with_an_installation_are_recorded(run_module: RunModule) -> None:
    present = run_module("package_install", name=["x"], phase="before")["installed"]
    if len(present) < 3:
        pytest.skip("this machine has no package manager that is known")
    found = run_module("package_install", name=["x"], phase="after", before=present[2:])
    assert (found["came"], origins.load()["packages"]) == (present[:2], present[:2])
    run_module("package_install", name=["x"], phase="after", before=present)
    assert origins.load()["packages"] == present[:2]


def test_an_account_that_was_not_made_is_not_recorded() -> None:
    if not origins.may_write():
        pytest.skip("needs root")
    origins.note_account("mpi")
    origins.note_account("other")
    origins.forget_account("other")
    assert origins.load()["accounts"] == {"mpi": {}}


# --- nothing that a role writes is unknown to uninstall --------------------------------------------------------------

# Modules of Ansible's own that change nothing on a node, and command, whose tasks say changed_when: false.
READING = {
    "assert",
    "command",
    "fail",
    "import_tasks",
    "include_tasks",
    "include_vars",
    "set_fact",
    "stat",
    "meta",
    "ping",
}


def tasks_of(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for item in items:
        inner = [task for key in ("block", "rescue", "always") for task in item.get(key) or []]
        found += tasks_of(inner) if inner else [item]
    return found


def role_tasks() -> list[tuple[str, dict[str, Any]]]:
    return [
        (str(path.relative_to(ROOT)), task)
        for path in sorted(ROOT.glob("roles/*/tasks/*.yml"))
        for task in tasks_of(yaml.safe_load(path.read_text()))
    ]


def test_roles_change_nodes_by_modules_of_the_collection_alone() -> None:
    for path, task in role_tasks():
        for name in task:
            if name in {
                "ansible.builtin.include_role",
                "ansible.builtin.import_role",
            }:  # its tasks are looked at as well
                assert task[name]["name"].startswith("clusterctl.hpc."), path
            elif name.startswith("ansible."):
                module = name.rpartition(".")[2]
                assert module in READING, f"{path}: {name} writes what uninstall does not hear of"
                assert module != "command" or task.get("changed_when") is False, path


def test_the_paths_in_roles_are_known() -> None:
    """The record of origins tells of each; this holds for a node whose record is missing or begins later."""
    files = [
        *ROOT.glob("roles/*/tasks/*.yml"),
        *ROOT.glob("roles/*/vars/main.yml"),
        *ROOT.glob("roles/*/defaults/main.yml"),
    ]
    prefix = re.compile(r"\{\{ __\w+_prefix \}\}")
    texts = [prefix.sub("/opt/cluster", file.read_text()) for file in files]
    found = {
        path
        for text in texts
        for pattern in (
            r"\bpath: *\"?(/[\w./-]+)",
            r"^__\w+_(?:link|folder): *\"?(/[\w./-]+)",
            r"^\w+_log_dir: *(/[\w./-]+)",
        )
        for path in re.findall(pattern, text, re.MULTILINE)
    }
    managed = recipe_clusters.host("node1", {"python_env_python": "managed"})
    found |= {one.link for one in recipe_clusters.all_of(managed, "/opt/cluster")}
    texts_of = dict.fromkeys(("openmpi", "prrte", "nccl", "record"), "x")
    files_of = fabric_configure.files_of("/opt/cluster", texts_of)
    given = {"prefix": "/opt/cluster", "python": "python3", "programs": ["measure.py"], "shared": [], "gpus": []}
    files_of += validation_install.arguments_of(given)["files"]
    found |= {one["path"] for one in files_of if one.get("state") != "directory"}
    of_loader = nccl_system.loader_entries("/etc/ld.so.conf.d/nccl.conf", "/opt/cluster/nccl", is_coming=True)
    found |= {one.path for one in of_loader} - {"/opt", "/opt/cluster"}
    assert {"/etc/nccl.conf", "/opt/cluster/openmpi", "/opt/cluster/libexec/clusterctl/measure.py"} <= found
    assert "/var/log/clusterctl" in found
    assert [path for path in sorted(found) if not brought.covers(path, "/opt/cluster")] == []
    assert not [path for path in found if path.startswith("/usr/local") and "cuda" not in path]  # all have the prefix


def options_of(path: Path) -> dict[str, Any]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "DOCUMENTATION":
            loaded = yaml.safe_load(ast.literal_eval(node.value))
            return dict(loaded.get("options") or {})
    return {}


def test_the_default_paths_of_modules_are_known() -> None:
    found = set()
    for path in (ROOT / "plugins/modules").glob("*.py"):
        if not re.search(r"\bfile_stage\b", path.read_text()):
            continue
        options = options_of(path)
        for given in [
            *options.values(),
            *(one for of in options.values() for one in of.get("suboptions", {}).values()),
        ]:
            default = given.get("default")
            values = default if isinstance(default, list) else [default]
            found |= {value for value in values if isinstance(value, str) and value.startswith("/")}
    found -= {"/usr/include", brought.ROOT}  # a folder of the distribution, in which HEADERS are links
    assert {"/etc/hosts", "/etc/environment", "/etc/ld.so.conf.d/nccl.conf"} <= found
    assert [path for path in sorted(found) if not brought.covers(path)] == []


# What writes to a node without file_stage, which keeps the origin of each path by itself, and why uninstall knows it.
WRITES = {
    "artifact_build": "logs and packs below FOLDERS; a build folder that left_in finds",
    "artifact_check": "proofs below STATE",
    "artifact_install": "trees and links that trees_and_links finds; the origin of a link is noted",
    "artifact_collect": "removes",
    "artifact_pack": "packs below FOLDERS",
    "artifact_spread": "a line of progress below FOLDERS, which its run removes",
    "pack_extract": "a tree that artifact_install makes, or an unpacked pack on the controller",
    "audit_file": "the audit file below FOLDERS",
    "authority": "the folder of the authority on the controller",
    "passphrase": "a script on the controller, which answers ssh-keygen",
    "tree_removal": "removes",
    "artifact_links": "links that trees_and_links finds; a record below STATE",
    "disk_files": "called by the others",
    "build_files": "the build folder",
    "build_user": "a log and a build folder that left_in finds; a lock in /run that goes with its last holder",
    "file_transaction": "called by file_stage",
    "library_closure": "records below STATE",
    "host_key": "the key that waits for a rotation, whose origin is noted; the host keys are the node's own",
    "mesh_key": "notes the origins of the key and of ~/.ssh",
    "job_account": "the key, its successor and ~/.ssh, whose origins are noted",
    "origins": "the record itself",
    "mark_and_lock": "the mark of the cluster below STATE; the lock lies in /run, and its run removes it",
    "uninstall": "removes",
    "nccl_system": "a link for ldconfig in a temporary folder, which goes after its answer",
    "artifact": "removes leftovers of builds",
}
_WRITING = re.compile(
    r"\.(?:write_text|write_bytes|mkdir|symlink_to|hardlink_to|rename|replace|touch|chmod)\(|os\.(?:mkdir|link|symlink|"
    r"rename|replace)\(|mkdtemp\(|mkstemp\(|disk_files\.write|open\(\"[wax]"
)


def test_every_writer_on_a_node_is_known() -> None:
    text = re.compile(r"\btext\.replace\(|\.replace\((?:\"|'|f\"|staged, step)")  # of a text, not of a file
    writers = set()
    for path in [*(ROOT / "plugins/modules").glob("*.py"), *(ROOT / "plugins/module_utils").rglob("*.py")]:
        lines = [line for line in path.read_text().splitlines() if _WRITING.search(line) and not text.search(line)]
        if lines:
            writers.add(path.stem)
    assert writers - set(WRITES) == set(), "uninstall does not hear of what these write"


# --- overlayfs renames no folder of a container's image: what would be put aside is then removed at its place ---


@pytest.mark.parametrize("remove", [artifact_collect.remove, lambda path: uninstall.remove_tree(str(path))])
def test_a_tree_of_an_image_goes_at_its_place(
    remove: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_paths: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    tree = tmp_path / "openmpi-5.0.7-0123456789abcdef"
    (tree / "lib").mkdir(parents=True)
    (tree / "lib" / "libmpi.so").write_bytes(b"a library")
    (tree / ".clusterctl.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr(tree_removal.Path, "replace", refuse)

    remove(tree)

    assert list(tmp_path.iterdir()) == []
