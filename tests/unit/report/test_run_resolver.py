from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from clusterctl.model.hosts import InventorySources
from clusterctl.report import baseline, run_comparison, run_overview, run_resolver
from clusterctl.state import paths
from clusterctl.support.errors import ConfigError
from factory import run_record
from past_runs import record, remember, run

pytestmark = pytest.mark.programs


def test_runs_are_named_by_id_place_and_path(inventory: Path, tmp_path: Path) -> None:
    first, second = record(1), record(2)
    remember(inventory, first, second)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "validation.json").write_text(record(9).model_dump_json(), encoding="utf-8")
    found = run_comparison.compare(first.run_id[:8], str(folder))
    assert (found.first.run_id, found.second.run_id) == (first.run_id, record(9).run_id)
    assert run_comparison.compare("last", first.run_id, inventory).second.run_id == first.run_id


def test_data_for_programs(nights: Path) -> None:
    answers = {
        name: run(*words, "--format", "json")
        for name, words in {
            "history": ("history", nights),
            "compare": ("compare", "last-1", "last"),
            "show": ("baseline", "show", nights),
            "accept": ("baseline", "accept", nights, "last-1"),
            "reset": ("baseline", "reset", nights),
        }.items()
    }
    assert {done.stderr for done in answers.values()} == {""}
    data = {name: json.loads(done.stdout) for name, done in answers.items()}
    assert len(data["history"]["runs"]) == 7
    assert data["compare"]["figures"][0]["beyond_noise"] is True
    assert data["show"]["entries"][0]["in_force"] is True
    assert data["accept"]["run_id"] == "20260306T020000Z-validate-7"
    assert data["reset"] == {"kept": 7}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("history", "{nowhere}"), 1, "does not exist"),
        (("history", "{inventory}"), 1, "The history of"),
        (("history", "{inventory}", "--last", "0"), 2, "--last"),
        (("compare", "last", "last-1"), 1, "The history is empty"),
        (("compare", "last"), 1, "The history is empty"),
        (("compare",), 2, "give an inventory, or a run's id"),
        (("report", "last", "last-1"), 2, "'last-1' is one run too many"),
        (("baseline", "show", "{inventory}"), 1, "The history of"),
        (("baseline",), 2, "Usage"),
    ],
    ids=["inventory", "empty", "last", "nothing", "one", "none", "two", "show", "alone"],
)
def test_bad_input_is_one_sentence(
    inventory: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    places = {"inventory": str(inventory), "nowhere": str(tmp_path / "nix.ini")}
    done = run(*(word.format(**places) for word in arguments))
    assert done.returncode == code, done.stderr
    assert says in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.fixture
def named(nights: Path, tmp_path: Path) -> dict[str, str]:
    """Return every form in which the run before the last can be named."""
    (folder,) = (
        paths.runs_dir(paths.cluster_id(nights)) / one.run_id
        for one in run_overview.overview(nights).runs
        if one.run_id.startswith("20260306")
    )
    folder.mkdir(parents=True)
    paths.validation_record(folder).write_text(record(5).model_dump_json(), encoding="utf-8")
    copied = tmp_path / "copied.json"
    copied.write_text(record(5).model_dump_json(), encoding="utf-8")
    return {
        "place": "last-1",
        "id": folder.name,
        "beginning": "20260306",
        "record": str(paths.validation_record(folder)),
        "folder": str(folder),
        "copy": str(copied),
    }


FORMS = ["place", "id", "beginning", "record", "folder", "copy"]


@pytest.mark.parametrize("form", FORMS)
def test_report_takes_a_run_in_every_form(named: dict[str, str], tmp_path: Path, form: str) -> None:
    done = run("report", named[form], "--jsonl", tmp_path / "out.jsonl")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["run_id"] == named["id"]


@pytest.mark.parametrize("form", FORMS)
def test_compare_takes_a_run_in_every_form(named: dict[str, str], form: str) -> None:
    done = run("compare", named[form], "last", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["first"]["run_id"], found["second"]["run_id"][:8]) == (named["id"], "20260307")


@pytest.mark.parametrize("form", FORMS)
def test_baseline_accept_takes_a_run_in_every_form(nights: Path, named: dict[str, str], form: str) -> None:
    done = run("baseline", "accept", nights, named[form], "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run_id"] == named["id"]
    history = run("history", nights, "--format", "json")
    assert json.loads(history.stdout)["baseline"]["run_id"] == named["id"]


@pytest.mark.parametrize("form", [*FORMS, "inventory"])
def test_history_and_report_begin_with_inventory_run_and_date(nights: Path, named: dict[str, str], form: str) -> None:
    words = {**named, "inventory": str(nights)}
    for command in ("report", "history"):
        done = run(command, words[form])
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        last = command == "history" or form == "inventory"
        run_id, day = ("20260307T020000Z-validate-7", "2026-03-07") if last else (named["id"], "2026-03-06")
        assert re.match(rf".*inventory\.ini  {run_id}  {day} \d\d:\d\d\n", done.stdout), done.stdout
    assert "pairs  " in run("report", words[form]).stdout


@pytest.mark.parametrize("words", [("{inventory}",), ("last",), ("{inventory}", "last"), ("-i", "{inventory}")])
def test_one_run_is_compared_with_the_one_before(nights: Path, words: tuple[str, ...]) -> None:
    done = run("compare", *(word.format(inventory=nights) for word in words), "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [found[side]["run_id"][:8] for side in ("first", "second")] == ["20260306", "20260307"]
    first = run("compare", "20260301")
    assert (first.returncode, "is the first run of its cluster" in first.stderr) == (1, True)


@pytest.mark.parametrize("command", ["history", "report", "compare"])
@pytest.mark.parametrize(
    "words",
    [
        ("{folder}",),
        ("{json}",),
        ("{yaml}",),
        ("{first}", "{second}"),
        ("{first}", "-i", "{second}"),
        ("-i", "{first}", "-i", "{second}"),
    ],
    ids=["folder", "json", "yaml", "two", "two ways", "by -i"],
)
def test_history_report_and_compare_take_every_form_of_inventory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    group = {"hosts": {"node1": {}, "node2": {}}}
    texts = {
        "folder": "node1\nnode2\n",
        "json": json.dumps({"all": group}),
        "yaml": "{all: {hosts: {node1: , node2: }}}\n",
        "first": "node1\n",
        "second": "node2\n",
    }
    names = {"folder": "folder", "json": "a.json", "yaml": "a.yml", "first": "first.ini", "second": "second.ini"}
    (tmp_path / "folder").mkdir()
    for key, text in texts.items():
        place = tmp_path / names[key]
        (place / "hosts" if place.is_dir() else place).write_text(text, encoding="utf-8")
    given = [word.format(**names) for word in words]
    remember(InventorySources(tuple(word for word in given if word != "-i")), record(1), record(2))
    done = run(command, *given)
    assert (done.returncode, done.stderr) == (0, "")
    assert record(2).run_id in done.stdout


@pytest.mark.parametrize(
    "command", [("compare", "last", "-i", "{inventory}"), ("compare", "last"), ("baseline", "accept", "{inventory}")]
)
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("2026", ("'2026' is the beginning of 7 runs", "give more of the id")),
        ("1999", ("'1999' is not in the history", "'clusterctl history INVENTORY'")),
        ("last-99", ("'last-99' is not in the history", "choose a newer one")),
        ("nowhere/validation.json", ("nowhere/validation.json does not exist", "'last-1'")),
        ("nowhere.json", ("nowhere.json does not exist", "'last-1'")),
        (" ", ("The name of a run is empty", "'last-1'")),
        ("{inventory}", ("is not the record of a run", "Where it is an inventory, name it with -i: 'last -i")),
        ("{inventory}.json", ("is not the record of a run", "Where it is an inventory, name it with -i: 'last -i")),
    ],
    ids=["several", "unknown", "too old", "path", "file", "empty", "inventory", "json"],
)
def test_every_command_refuses_a_name_with_the_same_words(
    nights: Path, command: tuple[str, ...], name: str, says: tuple[str, ...]
) -> None:
    Path(f"{nights}.json").write_text('{"all": {}}', encoding="utf-8")
    done = run(*(word.format(inventory=nights) for word in (*command, name)))
    assert done.returncode == 1, done.stderr
    for words in says:
        assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_run_whose_folder_is_gone_comes_from_the_history(named: dict[str, str]) -> None:
    with_folder = run_resolver.resolve("last-1")
    assert with_folder.folder == Path(named["folder"])
    assert with_folder.log_folder is None
    paths.logs_dir(Path(named["folder"])).mkdir()
    assert run_resolver.resolve("last-1").log_folder == Path(named["folder"])
    last = run_resolver.resolve("last")
    assert (last.record.run_id[:8], last.folder, last.log_folder) == ("20260307", None, None)


@pytest.mark.parametrize("validated", [True, False])
def test_a_run_without_figures_is_refused_as_such_and_stands_for_its_cluster(
    inventory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, validated: bool
) -> None:
    if validated:
        remember(inventory, record(1), record(2))
    cluster = paths.cluster_id(inventory)
    run_id = "20260305T030000Z-provision-26585"
    about = run_record(verb="provision", run_id=run_id, cluster_id=cluster, inventory=str(inventory))
    folders = [paths.runs_dir(cluster) / run_id, tmp_path / "copy"]
    for folder in folders:
        folder.mkdir(parents=True)
        paths.run_record(folder).write_text(about.model_dump_json(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name in (run_id, "20260305", *map(str, folders), paths.run_record(folders[0]), "copy", "copy/run.json"):
        for words in (("report", name), ("compare", name), ("compare", name, name), ("report", name, "-i", inventory)):
            done = run(*words)
            assert done.returncode == 1, words
            says = f"{run_id} is a run of 'clusterctl provision', without figures; name a validation"
            assert says in done.stderr, (words, done.stderr)
        done = run("history", name)
        assert (done.returncode, done.stderr) == (0, ""), name
        assert run_id in done.stdout
    for folder in folders:
        paths.run_record(folder).write_text("{", encoding="utf-8")
    assert "is not in the history" in run("report", run_id).stderr or not validated
    assert "does not exist" in run("report", "copy/").stderr


@pytest.mark.parametrize("words", [("report",), ("compare",), ("history",), ("compare", "last-1", "last", "-i")])
def test_an_empty_history_is_named_by_its_inventory_with_the_past(inventory: Path, words: tuple[str, ...]) -> None:
    command = (*words, inventory)
    says = f"The history of {inventory} is empty; 'clusterctl validate {inventory}' begins it"
    assert run(*command).stderr == f"clusterctl: {says}.\n"
    former = paths.runs_dir("former-1")
    (former / "latest").mkdir(parents=True)
    about = run_record(verb="validate", cluster_id="former-1", inventory=str(inventory))
    paths.run_record(former / "latest").write_text(about.model_dump_json(), encoding="utf-8")
    done = run(*command)
    assert done.returncode == 1
    assert f"{says}; 'clusterctl history --past former-1 {inventory}' goes on" in done.stderr


def test_past_is_refused_where_something_of_it_would_be_dropped(nights: Path) -> None:
    before = paths.cluster_id(nights)
    paths.private_folder(paths.cluster_dir(before))
    for words in (
        ("last", "--past", "new"),
        ("--past", "new", "--check", "pairs"),
        ("--past", "new", "--keep-runs", "1"),
        ("--past", "new", "--keep-days", "1"),
    ):
        done = run("history", nights, *words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert "--past" in done.stderr
    assert paths.cluster_id(nights) == before
    done = run("history", nights, "--past", "new", "--format", "json")
    assert done.returncode == 0
    data = json.loads(done.stdout)
    assert (data["runs"], data["total"], data["cluster"]) == ([], 0, paths.cluster_id(nights))
    assert data["cluster"] != before


def test_a_record_of_another_cluster_is_no_baseline(nights: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.json"
    foreign.write_text(record(99).model_dump_json(), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"'20260608T020000Z-validate-7' is not in the history of inventory-"):
        baseline.accept(nights, str(foreign))


def test_report_compare_and_accept_take_inventories_in_the_same_way(nights: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.ini"
    other.write_text("node9\n", encoding="utf-8")
    remember(other, record(20))
    for command in (("report", "last"), ("compare", "last-1", "last")):
        unclear = run(*command)
        assert unclear.returncode == 1
        assert "may be a run of inventory-" in unclear.stderr
        assert "name the inventory with -i" in unclear.stderr
    both = ("-i", nights, "-i", other)
    for name, words in {"last-1": ("-i", nights), "last": ("--inventory", other)}.items():
        done = run("report", name, *words, "--jsonl", tmp_path / "out.jsonl")
        assert done.returncode == 0, done.stderr
        shown = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["run_id"]
        assert shown[:8] == ("20260306" if name == "last-1" else record(20).run_id[:8])
    assert run("compare", "last-1", "last", "-i", nights).returncode == 0
    assert run("baseline", "accept", "-i", nights, "last-1", "--format", "json").returncode == 0
    refused = run("report", "last", *both)
    assert refused.returncode == 1, "two inventories are a cluster of their own, which has not run"
