from __future__ import annotations

import os
from pathlib import Path

import pytest
from clusterctl.cli.main import main
from clusterctl.report import files, run_resolver
from clusterctl.state import paths
from clusterctl.support.errors import ConfigError
from report_records import CHECKS, record


@pytest.fixture
def state() -> Path:
    """Return the folder of a cluster's runs with two records in it."""
    runs = paths.runs_dir("lab-1")
    for run_id in ("20260301T020000Z-validate-1", "20260302T020000Z-validate-2"):
        folder = runs / run_id
        (folder / "logs").mkdir(parents=True)
        (folder / "logs" / "allreduce.log").write_text("what ranks said\n")
        made = record().model_copy(update={"run_id": run_id, "folder": str(folder)})
        made = made.model_copy(
            update={"checks": (CHECKS[0], CHECKS[1].model_copy(update={"reason": "", "evidence": ()}))}
        )
        (folder / "validation.json").write_text(made.model_dump_json())
    (runs / "latest").symlink_to("20260302T020000Z-validate-2")
    return runs


@pytest.mark.usefixtures("state")
def test_every_report_is_written_whole_and_readable_for_others(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        names = ("html", "junit", "prometheus", "jsonl")
        places = files.Places(**{name: tmp_path / f"out.{name}" for name in names})
        made = run_resolver.resolve("last").record
        assert files.write(made, places) == tuple(tmp_path / f"out.{name}" for name in names)
    finally:
        os.umask(before)
    assert {oct((tmp_path / f"out.{name}").stat().st_mode & 0o777) for name in names} == {"0o644"}
    assert "what ranks said" in (tmp_path / "out.html").read_text()
    assert sorted(path.name for path in tmp_path.glob(".out*")) == []


@pytest.mark.usefixtures("state")
def test_a_report_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.prom"
    out.write_text("old")
    monkeypatch.setattr(os, "fsync", lambda _number: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(ConfigError, match="cannot be written: No space left on device"):
        files.write(run_resolver.resolve("last").record, files.Places(prometheus=out))
    assert out.read_text() == "old"
    assert list(tmp_path.glob(".out*")) == []


def test_impossible_places_are_refused_beforehand(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist; create it"):
        files.Places(html=tmp_path / "none" / "x.html").refuse_impossible()
    with pytest.raises(ConfigError, match="is not a regular file; choose another path for --jsonl"):
        files.Places(jsonl=Path("/dev/null")).refuse_impossible()


@pytest.mark.usefixtures("state")
def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "real.jsonl").write_text("old")
    (tmp_path / "link.jsonl").symlink_to("real.jsonl")
    files.write(run_resolver.resolve("last").record, files.Places(jsonl=tmp_path / "link.jsonl"))
    assert (tmp_path / "link.jsonl").is_symlink()
    assert (tmp_path / "real.jsonl").read_text().startswith('{"type":"run"')


@pytest.mark.usefixtures("state")
def test_a_long_log_is_cut_in_its_middle() -> None:
    folder = run_resolver.resolve("last").folder
    assert folder is not None
    (folder / "logs" / "allreduce.log").write_text("begin\n" + "x" * 100_000 + "\nend\n")
    text = files.logs(run_resolver.load(folder / "validation.json"))["allreduce"]
    assert text.startswith("begin\n")
    assert text.endswith("\nend\n")
    assert len(text) < 50_000
    assert "bytes are left out here" in text


@pytest.mark.usefixtures("state")
def test_a_record_does_not_choose_which_of_our_files_are_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    made = run_resolver.resolve("last").record
    evil = tuple(
        check.model_copy(update={"log": os.path.relpath(tmp_path / "secret", made.folder)}) for check in made.checks
    )
    assert files.logs(made.model_copy(update={"checks": evil})) == {}


@pytest.mark.usefixtures("state")
def test_the_verb_shows_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "last", "--jsonl", str(tmp_path / "a.jsonl")]) == 0
    assert (tmp_path / "a.jsonl").exists()
    assert main(["report", "--schema"]) == 0
    assert '"urn:clusterctl:validation-2"' in capsys.readouterr().out
    assert main(["report"]) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is damaged: it is no JSON"),
        ("[]", "is not a record of a validation"),
        ('{"schema_version": 9}', "has schema 9"),
        ('{"schema_version": 2}', "is damaged"),
        ("\x00\xff", "is damaged"),
        ("[" * 100_000, "is nested too deeply"),
    ],
    ids=["half", "a list", "a newer one", "empty", "no text", "deep"],
)
def test_bad_records_end_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_bytes(text.encode("latin-1"))
    assert main(["report", str(bad), "--html", str(tmp_path / "x.html")]) == 1
    words = capsys.readouterr().err
    assert said in words
    assert words.count("\n") == 1
    assert not (tmp_path / "x.html").exists()


def test_a_record_from_elsewhere_chooses_no_folder_of_ours(tmp_path: Path) -> None:
    """Its reader gives it alone, without logs beside it."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "key").write_text("secret")
    evil = tuple(check.model_copy(update={"log": "logs/key"}) for check in record().checks)
    made = record().model_copy(update={"folder": str(tmp_path), "checks": evil})
    assert files.logs(made) == {}
    (tmp_path / "validation.json").write_text("{}")
    assert "secret" in files.logs(made).values(), "a run of ours"
    other = tuple(check.model_copy(update={"log": "validation.json"}) for check in record().checks)
    assert files.logs(made.model_copy(update={"checks": other})) == {}


def test_what_is_no_file_or_has_no_end_is_no_record(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate((1 << 30) + 1)
    for name, words in (("pipe", "is not a file"), ("large", "more than 1024 MiB")):
        with pytest.raises(ConfigError, match=words):
            run_resolver.load(tmp_path / f"{name}.json")
