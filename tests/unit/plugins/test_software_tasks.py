"""The tasks that build, install and prove the software of a plan: played for real, and each decision alone."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import recipe_clusters
import role_plays
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.plugins.action import ActionBase
from ansible_collections.clusterctl.hpc.plugins.action import software_build, software_stage, software_switch
from ansible_collections.clusterctl.hpc.plugins.action.software_plan import RECIPES
from ansible_collections.clusterctl.hpc.plugins.callback import run_events
from ansible_collections.clusterctl.hpc.plugins.filter import software
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact_links import links_to_switch
from ansible_collections.clusterctl.hpc.plugins.modules import artifact_build, artifact_check, artifact_install
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import artifact_building, planned
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_action import ModuleFailedError
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_staging import users_of
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Artifact

played_for_real = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("gcc"), reason="only root builds as another user, and the test compiles"
)
# What modules keep on a node goes with the play.
ALONE = ["unshare", "--mount", "--propagation=private", "sh", "-c"]
ALONE += ['for place in cache lib log; do mount -t tmpfs none /var/$place; done; exec "$@"', "sh"]


def artifact(name: str, folder: Path, argv: list[str], **more: Any) -> dict[str, Any]:
    places = {"cache_dir": f"{folder}/cache", "work_dir": str(folder), "log_dir": f"{folder}/log"}
    build = {
        **places,
        "steps": [{"name": "make", "argv": ["sh", "-ec", *argv]}],
        "controller_log_dir": f"{folder}/logs",
    }
    given: dict[str, Any] = {"round": 1, "hosts": ["node1"], "builders": ["node9", "node1"], **more}
    made = Artifact(
        role=f"role_of_{name}",
        name=name,
        version="1",
        inputs={"made": argv},
        prefix=f"{folder}/root",
        build={**build, **given.pop("build", {})},
        **given,
    )
    return json.loads(json.dumps(made.as_dict()))  # type: ignore[no-any-return] # as a registered variable has it


def plan_in(folder: Path) -> list[dict[str, Any]]:
    """A library, a program that is linked with it through its link, and an artifact whose build fails."""
    link = f"{folder}/root/library"
    library = (
        "mkdir -p @TREE@/lib; echo 'int answer(void) { return 42; }' | gcc -shared -x c - -o @TREE@/lib/libanswer.so"
    )
    source = "int answer(void); int main(void) { return answer() != 42; }"
    program = f'mkdir -p @TREE@/bin; echo "{source}" | gcc -x c - -o @TREE@/bin/program -L{link}/lib -lanswer'
    return [
        artifact(
            "library",
            folder,
            [library],
            proof={"checks": [{"argv": ["test", "-e", "@LINK@/lib/libanswer.so"]}], "stands_on": [link]},
        ),
        artifact("broken", folder, ["echo no luck; exit 3"], proof={"checks": [{"argv": ["true"]}]}),
        artifact(
            "program",
            folder,
            [program],
            round=2,
            uses=["library"],
            install={"waiting_paths": [f"{link}/lib"]},
            proof={
                "checks": [{"argv": ["@LINK@/bin/program"]}],
                "stands_on": [link],
                "environment": {"LD_LIBRARY_PATH": f"{link}/lib"},
            },
        ),
        artifact("elsewhere", folder, ["exit 4"], builders=["node2", "node1"], hosts=["node2"]),
    ]


@pytest.mark.programs
@played_for_real
def test_a_plan_is_built_installed_switched_and_proved(reachable: Path) -> None:
    (reachable / "root").mkdir()
    given = plan_in(reachable)
    whole = [one for one in given if one["name"] != "broken"]

    def task(name: str, register: str, of: str = "whole", **options: Any) -> dict[str, Any]:
        return {f"clusterctl.hpc.{name}": {"plan": of, **options}, "register": register, "ignore_errors": True}

    saved = ["would", "one", "two", "staged", "again", "proved", "known", "failed", "lacking"]
    told = "{{ {" + ", ".join(f"'{name}': {name}" for name in saved) + "} | to_json }}"
    switch = {"links": {one["link"]: one["tree"] for one in whole[:2]}}
    play = {
        "hosts": "node1",
        "connection": "local",
        "gather_facts": False,
        "vars": {"whole": {"artifacts": whole}, "every": {"software_plan": {"artifacts": given}}},
        "tasks": [
            {**task("software_stage", "would"), "check_mode": True},
            task("software_build", "one", round=1),
            task("software_build", "two", round=2),
            task("software_stage", "staged"),
            {"clusterctl.hpc.artifact_switch": switch},
            task("software_stage", "again"),
            task("software_switch", "proved", phase="switch"),
            task("software_switch", "known", phase="switch"),
            task("software_build", "failed", of="every", round=1),
            task("software_stage", "lacking", of="every"),
            {"ansible.builtin.copy": {"content": told, "dest": f"{reachable}/told", "mode": "0644"}},
        ],
    }
    state = {"XDG_STATE_HOME": f"{reachable}/state"}
    under = [*ALONE, "env", *(f"{name}={value}" for name, value in state.items())]
    done = role_plays.play(json.dumps([play]), reachable, "-i", "node1,", under=under)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads((reachable / "told").read_text(encoding="utf-8"))
    library, _unused, program, _unused = given

    assert said["would"]["changes"] == [
        "installed library 1",
        f"{library['link']} -> {Path(library['tree']).name}",
        "installed program 1",
        f"{program['link']} -> {Path(program['tree']).name}",
    ]
    assert said["one"]["changes"] == ["built library 1"]
    assert said["one"]["artifacts"]["library"]["role"] == "role_of_library"
    assert said["two"]["changes"] == ["installed library 1", "built program 1"], "it is built with the library's folder"
    staged = said["staged"]
    assert staged["changes"] == ["installed program 1"]
    assert [entry["path"] for entry in staged["watch"] if entry["kind"] == "artifact"] == [
        library["tree"],
        program["tree"],
    ]
    assert links_to_switch(staged["artifacts"].values()) == switch["links"]
    assert (
        staged["artifacts"]["program"].items()
        >= {
            "role": "role_of_program",
            "key": program["key"],
            "tree": program["tree"],
            "link": program["link"],
            "before": "",
        }.items()
    )
    assert (said["again"]["changed"], said["again"]["changes"], said["again"]["watch"]) == (False, [], staged["watch"])
    assert said["proved"]["artifacts"]["program"]["outputs"] == [""]
    assert [one["proved_before"] for one in said["proved"]["artifacts"].values()] == [False, False]
    assert [one["proved_before"] for one in said["known"]["artifacts"].values()] == [True, True]

    assert said["failed"]["failed"]
    assert said["failed"]["msg"].startswith("node1: the step 'make' of building broken 1"), said["failed"]["msg"]
    assert "no luck" in said["failed"]["msg"]
    assert set(said["failed"]["artifacts"]) == {"library", "broken"}
    assert said["lacking"]["msg"].startswith("The cache has no broken 1 with key")
    assert said["lacking"]["artifacts"]["broken"]["role"] == "role_of_broken"
    assert said["lacking"]["watch"] == staged["watch"], "one that fails hides no other"


NUMPY = {"name": "numpy", "version": "2.0.2", "filename": "numpy-2.0.2-cp39.whl", "sha256": "1" * 64}
TORCH = {"name": "torch", "version": "2.8.0", "filename": "torch-2.8.0-cp39.whl", "sha256": "2" * 64}


@pytest.mark.parametrize("source", ["wheel", "packages"])
@pytest.mark.parametrize("python", ["managed", "system"])
def test_the_modules_know_every_option_that_a_recipe_gives(source: str, python: str) -> None:
    given = {"nccl_source": source, "nccl_version": "2.21.5" if source == "packages" else "", "nccl_install": "always"}
    given |= {
        "python_env_python": python,
        "nccl_align": "report",
        "openmpi_ucx": "always",
        "horovod_install": "always",
        "horovod_gpu_operations": "none",
    }
    wheel = {"name": "nvidia-nccl-cu13", "version": "2.32.3", "filename": "nvidia_nccl.whl", "sha256": "3" * 64}
    hosts = [recipe_clusters.host(name, given) for name in ("node1", "node2")]
    its = recipe_clusters.cluster(hosts, *RECIPES, controller=recipe_clusters.Shelf(NUMPY, TORCH, wheel))
    plans: dict[str, Any] = {}
    for role, (decide, _unused) in RECIPES.items():
        plans[role] = decide(its, plans)
        assert not plans[role].refusals
    found = [json.loads(json.dumps(one.as_dict())) for plan in plans.values() for one in plan.artifacts]
    assert {one["role"] for one in found} == set(RECIPES)
    names = [one["name"] for one in found]
    known = {"cpython"} if python == "system" else set()  # which no node has then
    assert all(set(one["uses"]) <= {*names, *known} for one in found)

    def validated(spec: dict[str, Any], options: dict[str, Any]) -> None:
        done = ArgumentSpecValidator(spec).validate(options)
        assert done.error_messages == []

    for one in found:
        asked = artifact_building._phase(planned.building(one), "node1", one["key"], "build")  # noqa: SLF001
        validated(artifact_build._SPEC, asked)  # noqa: SLF001
        asked = planned.installation(one)
        del asked["cache_dir"]  # for the controller
        validated(artifact_install._ARTIFACT, asked)  # noqa: SLF001
        if one["proof"]:
            asked = {"name": one["name"], "link": one["link"], **one["proof"]}
            validated(artifact_check._ARTIFACT, asked)  # noqa: SLF001


# --- decisions, with stand-ins for what is done on a host ---


class Task:
    """What an action reads of its task."""

    def __init__(self, check_mode: bool = False, **args: Any) -> None:
        self.check_mode, self.args = check_mode, {"plan": "plan", **args}


def action(of: Any, monkeypatch: pytest.MonkeyPatch, stand_ins: dict[str, Callable[..., Any]], **args: Any) -> Any:
    made = of.ActionModule.__new__(of.ActionModule)
    made._task = Task(**args)  # noqa: SLF001
    monkeypatch.setattr(ActionBase, "run", lambda *_: {})
    for name, stand_in in {"_note": lambda *_: None, **stand_ins}.items():
        monkeypatch.setattr(made, name, stand_in)
    return made


def variables(artifacts: list[dict[str, Any]], host: str, **more: Any) -> dict[str, Any]:
    return {
        "inventory_hostname": host,
        "plan": {"artifacts": artifacts},
        "ansible_play_hosts": ["a", "b", "c"],
    } | more


BUILT: dict[str, Any] = {"changed": True, "changes": ["built it"], "watch": []}


@pytest.mark.parametrize(("host", "built"), [("a", []), ("b", ["one", "three"]), ("c", ["two"])])
def test_the_first_living_builder_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, built: list[str]
) -> None:
    every = ["a", "b", "c"]
    of_hosts: dict[str, list[str]] = {"one": ["z", "b", "a"], "two": ["c", "b"], "three": ["b"], "four": ["z"]}
    plan = [artifact(name, tmp_path, [], builders=its, hosts=every) for name, its in of_hosts.items()]
    plan.append(artifact("later", tmp_path, [], builders=every, hosts=every, round=2))
    asked: list[str] = []
    made = action(
        software_build, monkeypatch, {"_made": lambda given, _: asked.append(given["name"]) or dict(BUILT)}, round=1
    )
    result = made.run(None, variables(plan, host))
    assert asked == built
    assert list(result["artifacts"]) == built
    assert result["changed"] is bool(built)


def test_what_uses_a_failed_build_is_left_out_and_the_rest_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = [artifact(name, tmp_path, [], builders=["a"], hosts=["a"]) for name in ("base", "user", "other")]
    plan[1]["uses"] = ["base"]
    fails = {
        "failed": True,
        "changed": False,
        "msg": "gcc is broken",
        "changes": [],
        "watch": [],
        "problems": [{"x": 1}],
    }
    made = action(
        software_build,
        monkeypatch,
        {"_made": lambda given, _: dict(fails) if given["name"] == "base" else dict(BUILT)},
        round=1,
    )
    result = made.run(None, variables(plan, "a"))
    assert result["failed"]
    assert result["msg"] == "gcc is broken (This is about base 1.)"
    assert result["problems"] == [{"x": 1}]
    assert result["artifacts"]["user"]["left_out"] == "base"
    assert result["changes"] == ["built it"]


def test_a_build_sees_what_it_uses_and_what_that_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = [artifact(name, tmp_path, [], builders=["a"], hosts=["a"]) for name in ("deep", "base", "other", "user")]
    plan[1]["uses"], plan[3]["uses"] = ["deep"], ["base", "nowhere"]
    installed: list[str] = []

    def stage(artifacts: list[dict[str, Any]], _variables: Any) -> dict[str, Any]:
        installed.extend(one["name"] for one in artifacts)
        return {
            one["name"]: {"changed": True, "changes": [], "watch": [], "link": one["link"], "tree": one["tree"]}
            for one in artifacts
        }

    made = action(software_build, monkeypatch, {"_installed": stage})
    made._plan, made._used = plan, {}  # noqa: SLF001
    links = made._links_of_uses({"name": "user"}, {})  # noqa: SLF001
    assert installed == ["deep", "base"]
    assert links == {plan[1]["link"]: plan[1]["tree"]}


def test_packages_come_before_what_stands_on_them_and_missing_libraries_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = {"nccl_system": {"headers": []}}
    nccl = artifact("nccl", tmp_path, [], before=room, install={"packages": ["libnccl2"], "package_options": {"x": 1}})
    library = {"libgfortran.so.5": ["libgfortran5"], "libthere.so": ["libthere"]}
    build = {"package_options": {"update_cache": True}}
    mpi = artifact("openmpi", tmp_path, [], install={"libraries": library}, build=build)
    calls: list[Any] = []

    def packages(names: list[str], options: dict[str, Any], _variables: Any) -> tuple[list[str], str]:
        calls.append((names, options))
        return names, ""

    def call(name: str, given: dict[str, Any], _variables: Any) -> dict[str, Any]:
        calls.append((name, given.get("phase", given)))
        if name == "nccl_system":
            return {"changed": True, "changes": ["removed /usr/include/nccl.h"], "watch": []}
        assert given["artifacts"][1]["libraries"] == list(library)
        assert not {"packages", "package_options"} & given["artifacts"][0].keys()
        whole: dict[str, Any] = {"needs_pack": False, "needs_link": False, "lost": [], "changes": [], "watch": []}
        return {"artifacts": {"nccl": {**whole, "lacking": []}, "openmpi": {**whole, "lacking": ["libgfortran.so.5"]}}}

    stand_ins = {"_packages": packages, "_call": call}
    result = action(software_stage, monkeypatch, stand_ins).run(None, variables([nccl, mpi], "node1"))
    assert calls == [
        ("nccl_system", {"headers": []}),
        (["libnccl2"], {"x": 1}),
        ("artifact_install", "inspect"),
        (["libgfortran5"], {"update_cache": True}),
    ]
    assert result["artifacts"]["openmpi"]["changes"] == ["installed the packages libgfortran5"]
    assert result["artifacts"]["nccl"]["changes"] == [
        "removed /usr/include/nccl.h",
        "installed the packages libnccl2",
    ]
    calls.clear()
    checked = action(software_stage, monkeypatch, stand_ins, check_mode=True)
    checked.run(None, variables([nccl, mpi], "node1"))
    assert calls == [("nccl_system", {"headers": []}), ("artifact_install", "inspect")], "a check installs no package"


def test_a_package_that_cannot_be_had_stops_only_what_stands_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = [artifact("nccl", tmp_path, [], install={"packages": ["libnccl2"]}), artifact("mpi", tmp_path, [])]
    plan.append(artifact("horovod", tmp_path, [], uses=["nccl", "mpi"]))
    staged: list[str] = []

    def stage(artifacts: list[dict[str, Any]], _variables: Any) -> dict[str, Any]:
        staged.extend(one["name"] for one in artifacts)
        return {one["name"]: {"changed": True, "changes": ["installed it"], "watch": []} for one in artifacts}

    stand_ins = {"_packages": lambda *_: ([], "no such package"), "_staged": stage}
    result = action(software_stage, monkeypatch, stand_ins).run(None, variables(plan, "node1"))
    assert staged == ["mpi"]
    assert result["msg"] == "no such package (This is about nccl 1.)"
    assert result["artifacts"]["horovod"]["left_out"] == "nccl"
    assert result["changes"] == ["installed it"]


@pytest.mark.parametrize(
    ("distrusted", "facts", "builder", "phases"),
    [
        ([], {}, "node2", ["inspect", "apply"]),
        ([], {"prefix": {"path": "ROOT", "trees": []}, "tools": {"zstd": True}}, "node2", ["apply"]),
        ([], {"prefix": {"path": "ROOT", "trees": []}, "tools": {"zstd": True}}, "node1", ["inspect", "apply"]),
        (["node1"], {}, "node2", ["inspect", "apply"]),
    ],
    ids=["without facts", "by facts", "facts older than a build", "distrusted"],
)
def test_all_artifacts_take_one_look_and_one_installation(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    distrusted: list[str],
    facts: dict[str, Any],
    builder: str,
    phases: list[str],
) -> None:
    plan = [artifact(name, tmp_path, [], builders=[builder]) for name in ("one", "two", "three")]
    plan[2]["uses"] = ["one"]
    node = json.loads(json.dumps(facts).replace("ROOT", f"{tmp_path}/root"))
    calls: list[str] = []

    def call(_name: str, given: dict[str, Any], _variables: Any) -> dict[str, Any]:
        calls.append(given["phase"])
        assert {one.get("content", False) for one in given["artifacts"]} == {bool(distrusted)}
        names = [one["name"] for one in given["artifacts"]]
        if given["phase"] == "apply":
            assert [one["pack"] for one in given["artifacts"]] == [{"path": "/push/own"}] * len(names)
            done = {"changed": True, "changes": ["installed it"], "watch": [], "lacking": []}
            return {"artifacts": dict.fromkeys(names, done)}
        seen = {"needs_pack": True, "needs_link": True, "lost": [], "needs_packages": [], "zstd": True}
        whole = {**seen, "needs_pack": False, "needs_link": False}
        about = {"changes": [], "watch": [], "lacking": []}
        return {"artifacts": {name: {**(whole if name == "two" else seen), **about} for name in names}}

    stand_ins = {"_call": call, "_bring": lambda *_: {"path": "/push/own"}, "_brought": lambda *_: None}
    made = action(software_stage, monkeypatch, {**stand_ins, "_restore": lambda *_: None, "_drop": lambda *_: None})
    known = {
        "preflight_distrusted": distrusted,
        "__preflight_look": {"node": node},
        "ansible_play_hosts": ["node1", "node2"],
    }
    result = made.run(None, variables(plan, "node1", **known))
    assert calls == phases
    assert list(result["artifacts"]) == ["one", "two", "three"]
    changed = [one["changed"] for one in result["artifacts"].values()]
    assert changed == ([True, False, True] if "inspect" in phases else [True] * 3)


def proved(
    monkeypatch: pytest.MonkeyPatch, plan: list[dict[str, Any]], answers: dict[str, Any], **given: Any
) -> tuple[dict[str, Any], list[Any]]:
    calls: list[Any] = []

    def call(name: str, options: dict[str, Any], _variables: Any) -> dict[str, Any]:
        calls.append((name, [one["name"] for one in options["artifacts"]] if name == "artifact_check" else options))
        if isinstance(answers[name], Exception):
            raise answers[name]
        if answers[name].get("failed"):
            raise ModuleFailedError(answers[name])
        return dict(answers[name])

    made = action(
        software_switch, monkeypatch, {"_call": call}, check_mode=given.pop("check_mode", False), phase="switch"
    )
    return made.run(None, variables(plan, "node1", **given)), calls


def proof_plan(folder: Path) -> list[dict[str, Any]]:
    nccl = artifact(
        "nccl",
        folder,
        [],
        proof={"checks": []},
        after={"nccl_system": {"link": "/x"}},
        reports={"nccl_report": {"version": "2"}},
    )
    return [artifact("mpi", folder, [], proof={"checks": []}), nccl, artifact("quiet", folder, [])]


QUIET: dict[str, Any] = {"changed": False, "changes": [], "watch": []}
ANSWERS: dict[str, Any] = {
    "nccl_system": {**QUIET, "changed": True, "changes": ["ldconfig"], "msg": "Left as it is."},
    "artifact_check": {"artifacts": {name: {"outputs": ["x"], "proved_before": False} for name in ("mpi", "nccl")}},
    "nccl_report": {**QUIET, "msg": "NCCL on this host: one."},
}


@pytest.mark.parametrize(
    ("staged", "installed"),
    [({}, False), ({"changed": True}, True), ({"before": "", "changed": False}, True), ({"before": "TREE"}, False)],
)
def test_loader_proofs_and_report_come_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staged: dict[str, Any], installed: bool
) -> None:
    plan = proof_plan(tmp_path)
    if staged.get("before"):
        staged = {"before": plan[1]["tree"]}
    known = {"software_staged": {"artifacts": {"nccl": staged}}}
    result, calls = proved(monkeypatch, plan, ANSWERS, **known)
    assert calls == [
        ("nccl_system", {"link": "/x", "installed": installed}),
        ("artifact_check", ["mpi", "nccl"]),
        ("nccl_report", {"version": "2"}),
    ]
    assert result["changes"] == ["ldconfig"]
    assert result["msg"] == "Left as it is. NCCL on this host: one."
    assert list(result["artifacts"]) == ["mpi", "nccl"]


def test_a_failed_proof_has_no_report_and_a_check_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {"mpi": {"outputs": [], "proved_before": True}, "nccl": {"failed": True, "msg": "nccl: 'x' ended with 1"}}
    answers = {**ANSWERS, "artifact_check": {"failed": True, "msg": "nccl: 'x' ended with 1", "artifacts": bad}}
    result, calls = proved(monkeypatch, proof_plan(tmp_path), answers)
    assert [name for name, _unused in calls] == ["nccl_system", "artifact_check"]
    assert (result["failed"], result["msg"]) == (True, "nccl: 'x' ended with 1")
    assert result["changes"] == ["ldconfig"]
    _unused, calls = proved(monkeypatch, proof_plan(tmp_path), ANSWERS, check_mode=True)
    assert [name for name, _unused in calls] == ["nccl_system"]


@pytest.mark.parametrize(
    ("said", "outcome", "message"),
    [
        ({"failed": True, "msg": "no Python"}, "failed", "no Python"),
        (OSError("the disk is full"), "failed", "the disk is full"),
        (AnsibleError("no"), "failed", "node1: the software could not be proved (AnsibleError: no); run again."),
        (MemoryError(), "failed", "node1: the software could not be proved (MemoryError); run again."),
        (AnsibleConnectionFailure("timed out"), "unreachable", "timed out"),
    ],
)
def test_what_was_switched_is_known_after_any_failure_of_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Any, outcome: str, message: str
) -> None:
    (one,) = plan = [artifact("mpi", tmp_path, [], proof={"checks": []})]
    link = one["link"]
    switch = {"changed": True, "changes": ["l"], "watch": [], "switched": [link], "before": {link: "/old"}}
    staged = {"artifacts": {"mpi": {"link": link, "tree": one["tree"], "before": "/old"}}}
    answers = {"artifact_switch": switch, "artifact_check": said}
    result, calls = proved(monkeypatch, plan, answers, software_staged=staged)
    assert [name for name, _unused in calls] == ["artifact_switch", "artifact_check"]
    assert result == {**switch, outcome: True, "msg": message}


def test_a_task_without_a_plan_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for plan in (None, {}, {"failed": True}, "text", []):
        made = action(software_stage, monkeypatch, {})
        result = made.run(None, {"inventory_hostname": "node1", "plan": plan})
        assert result["failed"]
        assert result["msg"].startswith("The variable 'plan' holds no plan of the software; run")


def test_of_the_artifacts_of_a_result_the_failed_ones_are_told() -> None:
    artifacts = {"mpi": {"role": "openmpi", "changes": ["x"]}, "nccl": {"role": "nccl", "failed": True, "msg": "no"}}
    kept = run_events._kept({"artifacts": artifacts, "changed": True, "ansible_facts": {}})  # noqa: SLF001
    assert kept == {"changed": True, "artifacts": {"nccl": {"role": "nccl", "failed": True}}}
    assert run_events._kept({"artifacts": [1]}) == {}  # noqa: SLF001


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"artifacts": ["mpi"]},
        {"artifacts": {"other": {}}},
        {"artifacts": {"mpi": "whole"}},
        {"artifacts": {"mpi": {"changes": "text"}}},
        {"artifacts": {"mpi": {"needs_packages": {"a": 1}}}},
    ],
)
def test_an_answer_of_a_node_in_another_form_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match=r"^n1: its answer about mpi has another form; "):
        planned.answers_of(said, [{"name": "mpi"}], "n1")


@pytest.mark.parametrize("warning", ["text", {"msg": "text"}])
def test_warnings_and_problems_of_a_node_may_be_anything(warning: object) -> None:
    said = [warning, ["x"], {}, {"msg": ["x"]}, [{"y": 1}], None]
    answer = planned.together(
        [{"name": "mpi", "version": "1"}, {"name": "nccl", "version": "2"}],
        {
            "mpi": {"failed": True, "warnings": said, "problems": 5, "msg": ["x"]},
            "nccl": {"failed": True, "warnings": [warning], "problems": [{"problem": "p"}]},
        },
    )
    assert answer["warnings"] == ["text", "['x']"]
    assert answer["problems"] == [{"problem": "p"}]


def test_a_node_chooses_neither_the_role_nor_the_places_of_an_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lies = {"role": "preflight", "tree": "/etc", "link": "/root", "lacking": ["/evil"], "before": ""}
    whole = {"needs_pack": False, "needs_link": False, "lost": [], "changes": [], "watch": [], **lies}
    answer = {"mpi": whole, "other": {"failed": True}}
    plan = [artifact("mpi", tmp_path, [], install={"libraries": {"libx.so": ["x"]}})]
    result = action(software_stage, monkeypatch, {"_call": lambda *_: {"artifacts": answer}}).run(
        None, variables(plan, "node1")
    )
    assert list(result["artifacts"]) == ["mpi"]
    places = {name: plan[0][name] for name in ("role", "tree", "link")}
    assert result["artifacts"]["mpi"].items() >= places.items()


def test_the_cause_is_named_through_all_that_uses_it() -> None:
    artifacts = [{"name": "b", "uses": ["a"]}, {"name": "c", "uses": ["b"]}, {"name": "d", "uses": []}]
    assert {name: one["left_out"] for name, one in users_of(["a"], artifacts).items()} == {"b": "a", "c": "a"}


def test_results_of_several_steps_add_up() -> None:
    first = {"changed": True, "changes": ["a"], "watch": [{"path": "/a"}], "diff": {"before": "1"}, "key": "k"}
    second = {"changed": False, "changes": ["b"], "watch": [], "diff": [{"before": "2"}, {}], "tree": "t"}
    assert planned.sum_of(first, {}, second) == {
        "changed": True,
        "changes": ["a", "b"],
        "watch": [{"path": "/a"}],
        "diff": [{"before": "1"}, {"before": "2"}],
        "key": "k",
        "tree": "t",
    }


def test_the_first_living_builder_of_each_artifact_builds_it() -> None:
    artifacts = [{"builders": ["node1", "node2"]}, {"builders": ["node3", "node1"]}, {"builders": []}]
    assert software.builders(artifacts, ["node1", "node2", "node3"]) == ["node1", "node3"]
    assert software.builders(artifacts, ["node2"]) == ["node2"]
    living = {"ansible_play_hosts": ["node2", "node3"]}
    assert [planned.builds("node2", one, living) for one in artifacts] == [True, False, False]
