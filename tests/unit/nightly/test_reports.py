from __future__ import annotations

import time as clock
from datetime import timedelta
from pathlib import Path

from clusterctl.model.results import Verdict
from clusterctl.nightly import run as night
from clusterctl.nightly import storage
from clusterctl.nightly.records import Drift, HostDrift
from nights import (
    World,
    a_job,
    a_night,
    a_record,
    utc,
)
from prometheus_client.parser import text_string_to_metric_families


def test_reports_elsewhere_and_what_is_pruned_there(world: World, tmp_path: Path) -> None:
    place = tmp_path / "reports"
    place.mkdir(mode=0o755)
    textfile = tmp_path / "node.prom"
    job = a_job(reports=str(place), prometheus=str(textfile), keep_days=1)
    old = night.run(job, timing=world.timing())
    (place / "mine.txt").write_text("mine")
    (place / old.night / "notes.txt").write_text("mine")
    assert Path(old.reports["junit"]).parent == place / old.night
    assert textfile.stat().st_mode & 0o777 == 0o644
    assert "clusterctl_night_missed" in textfile.read_text()
    storage.write_night(old.model_copy(update={"started": old.started - timedelta(days=9)}))
    clock.sleep(1.1)  # nights are named by the second
    new = night.run(job, timing=world.timing())
    assert not Path(old.folder).exists()
    assert {path.name for path in place.iterdir()} == {"mine.txt", old.night, new.night}
    assert [path.name for path in (place / old.night).iterdir()] == ["notes.txt"]
    assert Path(new.reports["junit"]).exists()


def test_reports_that_cannot_be_written_cost_a_sentence(world: World, tmp_path: Path) -> None:
    came = night.run(a_job(reports=str(tmp_path / "gone")), timing=world.timing())
    assert came.verdict is Verdict.PASS
    assert came.reports == {}
    assert "gone cannot be written: No such file" in came.problems[0]


def test_metrics_of_a_night_are_read_back_whatever_the_inventory_is_called() -> None:
    hostile = 'in "v\\ \n\r\ud800.ini'
    drift = Drift(hosts=(HostDrift(host="n1"), HostDrift(host="n2")))
    one = a_night(verdict=Verdict.FAIL, drift=drift, missed=(utc("2026-05-01T02:00"),))
    text = night.metrics(one, a_record(Verdict.FAIL).model_copy(update={"inventory": hostile}))
    found = {family.name: family.samples for family in text_string_to_metric_families(text)}
    (missed,) = found["clusterctl_night_missed"]
    assert (missed.value, missed.labels) == (1.0, {"inventory": 'in "v\\ \n ?.ini'})
    assert found["clusterctl_night_drifted_nodes"][0].value == 2.0
    verdicts = {sample.labels["verdict"]: sample.value for sample in found["clusterctl_night_verdict"]}
    assert verdicts == {"PASS": 0.0, "FAIL": 1.0, "ERROR": 0.0, "SKIP": 0.0}
    assert found["clusterctl_night_start_timestamp_seconds"][0].value == one.started.timestamp()
    assert "clusterctl_validation_verdict" in found
