from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.hosts import InventorySources
from clusterctl.nightly import install, scheduler, storage
from clusterctl.state import runs
from clusterctl.support.errors import ConfigError

pytestmark = pytest.mark.programs


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "my hosts 100%.ini"
    path.write_text("[nodes]\nn1 ansible_host=192.0.2.1\n")
    return path


@pytest.fixture
def cron(state: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand in for the user's crontab, and for a machine without systemd."""
    assert state
    table = ["0 1 * * * mine\n"]
    monkeypatch.setattr(scheduler, "no_systemd", lambda _scope: "systemctl is not installed")
    monkeypatch.setattr(scheduler, "_crontab", lambda: table[0])
    monkeypatch.setattr(scheduler, "_write_crontab", lambda text: table.__setitem__(0, text))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return table


def test_enable_twice_and_disable(cron: list[str], inventory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(inventory.parent)
    password = inventory.with_name("pw")
    password.write_text("secret")
    inventory.with_name("vars.yml").write_text("a: 1\n")
    relative = Path(inventory.name)
    options = install.InventoryOptions(vault_password_files=("pw",), vault_ids=("lab@pw",), extra_vars=("@vars.yml",))
    one = install.enable(install.EnableRequest(relative, "02:00", options=options))
    two = install.enable(install.EnableRequest(relative, "03:30", on_fail="/bin/true --token SECRET", suite="smoke"))
    other = inventory.with_name("other.ini")
    other.write_text("n9\n")
    third = install.enable(install.EnableRequest(other, "04:00"))
    assert one.job.job == two.job.job != third.job.job
    assert one.job.vault_ids == (f"lab@{password}",)
    assert one.job.vault_password_files == (str(password),)
    assert one.job.extra_vars == (f"@{inventory.parent}/vars.yml",)
    assert one.job.inventory == str(inventory)
    assert "systemd is not used" in one.notes[0]
    lines = [line for line in cron[0].splitlines() if not line.startswith("#")]
    assert [line[:5] for line in lines] == ["0 1 *", "30 3 ", "0 4 *"]
    assert "SECRET" not in cron[0]
    assert str(storage.job_file(two.job.job)) in lines[1].replace("\\%", "%")
    assert storage.read_job(storage.job_file(two.job.job)) == two.job
    install.disable(two.job.job)
    install.disable(third.job.job)
    assert cron[0] == "0 1 * * * mine\n"
    with pytest.raises(ConfigError, match="does not exist; 'clusterctl nightly enable"):
        install.disable(two.job.job)


@pytest.mark.usefixtures("cron")
def test_a_night_logs_in_by_the_variables_of_ansible_that_its_user_has(
    inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANSIBLE_REMOTE_USER", "mpi")
    monkeypatch.setenv("ANSIBLE_BECOME_PASS", "a secret")
    job = install.enable(install.EnableRequest(inventory, "02:00")).job
    assert job.environment["ANSIBLE_REMOTE_USER"] == "mpi"
    assert "a secret" not in job.environment.values()


@pytest.mark.usefixtures("cron")
def test_a_suite_beside_the_inventory_is_taken_unless_another_is_asked_for(inventory: Path) -> None:
    assert install.enable(install.EnableRequest(inventory, "02:00")).job.suite == "nightly"
    inventory.with_name("validation.yml").write_text("name: mine\nextends: full\n")
    assert install.enable(install.EnableRequest(inventory, "02:00")).job.suite == "mine"
    assert install.enable(install.EnableRequest(inventory, "02:00", suite="smoke")).job.suite == "smoke"
    inventory.with_name("validation.yml").write_text("checks: {pear: true}\n")
    with pytest.raises(ConfigError, match="unknown check 'pear'"):
        install.enable(install.EnableRequest(inventory, "02:00"))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"at": "25:00"}, "--at"),
        ({"suite": "nigthly"}, "nightly"),
        ({"on_fail": "ftp://x/y"}, "--on-fail"),
        ({"options": install.InventoryOptions(vault_ids=("lab@prompt",))}, "cannot ask for a vault password"),
        ({"options": install.InventoryOptions(extra_vars=("token=1",))}, "files alone"),
        ({"options": install.InventoryOptions(vault_password_files=("/no/pw",))}, "/no/pw"),
        ({"options": install.InventoryOptions(private_key="/no/key")}, "--private-key"),
        ({"reports": Path("/no/reports")}, "/no/reports"),
        ({"prometheus": Path("/no/where/x.prom")}, "/no/where"),
        ({"inventory": Path("/no/inventory.ini")}, "does not exist"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_said_while_somebody_listens(
    cron: list[str], inventory: Path, fields: dict[str, Any], says: str
) -> None:
    given: dict[str, Any] = {"inventory": inventory, "at": "02:00", **fields}
    with pytest.raises(ConfigError, match=says):
        install.enable(install.EnableRequest(**given))
    assert cron[0] == "0 1 * * * mine\n"
    assert storage.jobs() == []


@pytest.mark.usefixtures("cron")
def test_the_job_of_an_inventory_that_was_moved_is_told_and_can_be_removed(inventory: Path) -> None:
    assert install.enable(install.EnableRequest(inventory, "02:00")).job
    runs.start("validate", inventory, ["clusterctl"], {}).close()
    moved = inventory.rename(inventory.with_name("moved.ini"))
    enabled = install.enable(install.EnableRequest(moved, "02:00"))
    (told,) = [note for note in enabled.notes if "still starts each night" in note]
    assert f"'clusterctl nightly disable {InventorySources.of(inventory).shown}'" in told
    install.disable(storage.job_name(inventory))
    assert [job.inventory for job in storage.jobs()] == [str(moved)]
    again = install.enable(install.EnableRequest(moved, "02:00"))
    assert not [note for note in again.notes if "still starts each night" in note]


@pytest.mark.parametrize("text", ["{", '{"schema_version": 99}'])
def test_a_damaged_file_of_another_job_hinders_no_schedule(cron: list[str], inventory: Path, text: str) -> None:
    damaged = storage.job_file("a-damaged-job")
    damaged.parent.mkdir(parents=True)
    damaged.write_text(text, encoding="utf-8")
    enabled = install.enable(install.EnableRequest(inventory, "02:00"))
    assert str(storage.job_file(enabled.job.job)) in cron[0].replace("\\%", "%")
    with pytest.raises(ConfigError, match=str(damaged)):
        storage.jobs()


def test_a_schedule_that_cannot_be_written_leaves_what_was_before(
    cron: list[str], inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = install.enable(install.EnableRequest(inventory, "02:00")).job

    def refuse(_text: str) -> None:
        raise ConfigError("The crontab cannot be written: full")

    monkeypatch.setattr(scheduler, "_write_crontab", refuse)
    with pytest.raises(ConfigError, match="full"):
        install.enable(install.EnableRequest(inventory, "03:00"))
    assert storage.jobs() == [before]
    assert cron[0].count("0 2 * * *") == 1
