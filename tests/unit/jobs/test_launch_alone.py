"""``clusterctl launch`` by itself: a distribution without dependencies, from the sources of the whole clusterctl."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import import_graph as graph
import pytest
import tomllib
from clusterctl.cli import launch, launch_alone
from clusterctl.launch import local_facts
from clusterctl.model.facts import NodeFacts
from clusterctl.remote import python as remote_python
from clusterctl.support import content
from clusterctl.support.errors import ExitCode
from typer.models import OptionInfo

PLACE = content.root() / "distributions" / "launch"
LIB = "clusterctl_launch/lib/clusterctl/"
MOST_BYTES = 1_000_000  # of the installed modules; the demand is 15 MB
# imported inside a function that launch does not call
ELSEWHERE = {("support.content", "yaml")}


def carried() -> dict[str, str]:
    document = tomllib.loads((PLACE / "pyproject.toml").read_text(encoding="utf-8"))
    assert document["project"]["dependencies"] == []
    included: dict[str, str] = document["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    return included


def reached() -> set[str]:
    """Return every module of clusterctl that the command imports, directly or not, and the packages around them."""
    found: set[str] = set()
    waiting = ["cli.launch_alone"]
    while waiting:
        name = waiting.pop()
        if name in found or name not in graph.modules():
            continue
        found.add(name)
        for imported in graph.own(name, types_too=False) | {name}:
            parts = imported.split(".")
            waiting += [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return found | {"__init__"}


def test_the_distribution_carries_what_launch_imports_and_nothing_else() -> None:
    modules = {source: target for source, target in carried().items() if "/python/clusterctl/" in source}
    wanted = {str(graph.modules()[name].relative_to(graph.PACKAGE)) for name in reached()}
    assert {target.removeprefix(LIB) for target in modules.values()} == wanted
    for source, target in carried().items():
        assert (PLACE / source).exists(), source
        assert source.removeprefix("../../python/clusterctl/") == target.removeprefix(LIB) or source not in modules


def test_what_launch_imports_is_the_standard_library() -> None:
    assert len(reached()) > 15
    for name in reached():
        outside = {full.partition(".")[0] for full in graph.imports(name, types_too=False)}
        outside -= set(sys.stdlib_module_names) | {"clusterctl"}
        assert {(name, package) for package in outside} <= ELSEWHERE, name


def test_both_command_lines_have_the_same_options() -> None:
    here = {
        option: (action.metavar, action.help, action.default)
        for action in launch_alone.parser()._actions  # noqa: SLF001 - argparse has no other way to list them
        for option in action.option_strings
        if option not in {"-h", "--help"}
    }
    there = {}
    for parameter in inspect.signature(launch.launch, eval_str=True).parameters.values():
        told = parameter.annotation.__metadata__[0]
        # typer takes the first name for a default, and puts it right later
        for option in (told.default, *(told.param_decls or ())) if isinstance(told, OptionInfo) else ():
            there[option] = (told.metavar, told.help, parameter.default)
    assert here == there
    assert set(here) | {launch_alone.PROGRAM} == set(launch_alone.HELP)
    assert launch.launch.__doc__ == launch_alone.SUMMARY == launch_alone.parser().description


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--nproc-per-node", "0", "--", "a"), 2, "0 is not a number from 1"),
        (("--master-port", "65536", "--", "a"), 2, "65536 is not a number from 0 to 65535"),
        (("--master-port", "x", "--", "a"), 2, "invalid"),
        (("--wait", "nan", "--", "a"), 2, "nan is not a number of seconds"),
        (("--wait=-1", "--", "a"), 2, "-1 is not a number of seconds"),
        (("--nonsense", "--", "a"), 2, "--nonsense"),
    ],
)
def test_a_wrong_option_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, words: str
) -> None:
    try:
        ended = launch_alone.main(["launch", *arguments])
    except SystemExit as error:
        ended = int(error.code or 0)
    assert (ended, words in capsys.readouterr().err) == (code, True)


def test_another_command_is_named_with_its_cure(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch_alone.main(["provision", "x.ini"]) == ExitCode.USAGE
    assert "provision is not here." in (said := capsys.readouterr().err)
    assert "'pip install clusterctl' brings the other commands" in said
    assert launch_alone.main(["--help"]) == ExitCode.OK
    assert launch_alone.main([]) == ExitCode.USAGE


# --- the facts without pydantic --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    """What the probe says of this machine."""
    program = remote_python.program(remote_python.NODE_PROBE)
    request = json.dumps({"resolve": ["localhost"], "artifacts": []}).encode()
    reply = remote_python.ask(program.argv(sys.executable), program.data + request, 60, {"schema_version"})
    assert reply.answer is not None, reply.problem
    return reply.answer


def fields(read: Any, pattern: Any) -> Any:
    """Return of one reading what the other type has."""
    if isinstance(pattern, tuple):
        return tuple(fields(one, other) for one, other in zip(read, pattern, strict=True))
    if hasattr(pattern, "__dataclass_fields__"):
        return {name: fields(getattr(read, name), getattr(pattern, name)) for name in pattern.__dataclass_fields__}
    return read


def test_both_readers_see_the_same_machine(record: dict[str, Any]) -> None:
    record = {
        **record,
        "fabric": {"cidrs": ["10.0.0.0/24"], "interface": "eth0", "address": "10.0.0.1", "proven": []},
        "limits": {"memlock": {"soft": None, "hard": None}, "nofile": {"soft": 1024, "hard": 4096}},
    }
    narrow, whole = local_facts.LocalFacts.of(record), NodeFacts.model_validate(record)
    assert narrow.interfaces
    for name in ("cores", "shm_bytes", "interfaces", "routes", "fabric", "names"):
        found, pattern = getattr(whole, name), getattr(narrow, name)
        assert fields(found, pattern) == fields(pattern, pattern), name
    assert {name: limit.soft for name, limit in whole.limits.items()} == {
        name: limit.soft for name, limit in narrow.limits.items()
    }
    assert narrow.rdma == tuple(record["rdma"])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"cores": "4"}, "cores is not of the kind int"),
        ({"cores": True}, "cores is not of the kind int"),
        ({"interfaces": [1]}, "interfaces holds something else than objects"),
        ({"interfaces": [{"kind": "veth"}]}, "name is missing"),
        ({"names": [{"name": "a", "addresses": [1]}]}, "addresses holds something else than texts"),
        ({"fabric": []}, "fabric is not of the kind dict"),
    ],
)
def test_a_record_of_another_form_is_named(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        local_facts.LocalFacts.of({"cores": 4, **changed})


# --- the wheel itself ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of an empty virtual environment that got the wheel by pip, which may ask no index."""
    folder = tmp_path_factory.mktemp("launch")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "dist")]
    subprocess.run(build, cwd=PLACE, check=True, capture_output=True)
    (wheel,) = (folder / "dist").glob("clusterctl_launch-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "empty")], check=True)
    python = str(folder / "empty" / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "--python", python]
    done = subprocess.run(
        [*pip, "install", "--quiet", "--no-index", "--no-compile", str(wheel)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "empty" / "bin" / "clusterctl"


def alone(program: Path, *arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), *arguments],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.programs
def test_the_wheel_works_in_an_environment_without_any_other_package(installed: Path, tmp_path: Path) -> None:
    (site,) = (installed.parents[1] / "lib").glob("python3*/site-packages")
    assert [path.name.partition("-")[0] for path in site.glob("*.dist-info")] == ["clusterctl_launch"]
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < MOST_BYTES
    (tmp_path / "train.py").touch()
    place = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    done = alone(installed, "launch", "--print", "--python", "/py", "--", "train.py", cwd=tmp_path, **place)
    assert done.returncode == 0, done.stderr
    assert "--node-rank=1 --master-addr=127.0.0.1 --master-port=29500 -- train.py" in done.stdout
    refused = alone(installed, "doctor", "x", cwd=tmp_path)
    assert (refused.returncode, "doctor is not here" in refused.stderr) == (2, True), refused.stderr
