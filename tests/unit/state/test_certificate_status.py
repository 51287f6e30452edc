"""What a run has to know of a cluster's certificates, and what doctor says of them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.facts import KnownHosts, NodeFacts
from clusterctl.model.hosts import Host, Inventory, InventorySources
from clusterctl.state import certificate_status, paths
from clusterctl.support import content
from clusterctl.support.errors import ConfigError

PASSPHRASE = "correct horse canary"  # noqa: S105 - the test's own
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIwwYGMGDwWPrygxQ4O3kv+UcH3baMHTl4kBu/CfhWR4"


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def cluster(tmp_path: Path, **variables: Any) -> Inventory:
    hosts = tuple(Host(name=f"node{n}", address=f"10.0.0.{n}", variables=dict(variables)) for n in (1, 2))
    sources = InventorySources((str(tmp_path / "inventory.ini"),))
    return Inventory(sources=sources, hosts=hosts, selected=("node1", "node2"), digest="d")


def with_authority(tmp_path: Path) -> tuple[Inventory, Any]:
    found = cluster(tmp_path, ssh_mesh_trust="ca")
    authority = content.module_util("mesh_ca").authority.Authority(
        str(paths.authority_dir(paths.cluster_id(found.sources)))
    )
    authority.create(PASSPHRASE, datetime.now(timezone.utc).timestamp())
    return found, authority


def issue(authority: Any, **ends: timedelta) -> None:
    now = datetime.now(timezone.utc)
    place = authority.folder / "authority.json"
    record = json.loads(place.read_text())
    for node, left in ends.items():
        entry = {"key": KEY, "serial": 1, "valid_after": int((now - timedelta(days=20)).timestamp())}
        entry["valid_before"] = int((now + left).timestamp())
        record.setdefault("issued", {})[node] = {"user": entry, "host": entry}
        record.setdefault("keys", {})[node] = {KEY: entry["valid_before"]}
    place.write_text(json.dumps(record))


def test_keys_know_nothing_of_an_authority(tmp_path: Path) -> None:
    found = certificate_status.Certificates(cluster(tmp_path, ssh_mesh_trust="keys"))
    found.refuse()
    assert (found.revoked, found.due(["node1"], datetime.now(timezone.utc))) == ("", {})
    with found.variables() as variables:
        assert variables == {}
    with pytest.raises(ConfigError, match="no host has ssh_mesh_trust: ca"):
        certificate_status.Certificates(cluster(tmp_path), PASSPHRASE).refuse()
    with pytest.raises(ConfigError, match="has no certificate authority; set ssh_mesh_trust: ca"):
        certificate_status.authority_of(cluster(tmp_path))
    with pytest.raises(ConfigError, match=r"certificate authority .*/ca is missing; restore it from a backup, or run"):
        certificate_status.authority_of(cluster(tmp_path, ssh_mesh_trust="ca"))


def test_a_passphrase_is_checked_before_anything_is_changed(tmp_path: Path) -> None:
    new = cluster(tmp_path, ssh_mesh_trust="ca")
    with pytest.raises(ConfigError, match="at least 8 characters"):
        certificate_status.Certificates(new, "short").refuse()
    certificate_status.Certificates(new, PASSPHRASE).refuse()
    found, authority = with_authority(tmp_path)
    certificate_status.Certificates(found, PASSPHRASE).refuse()
    certificate_status.Certificates(found).refuse()
    with pytest.raises(ConfigError, match="does not open"):
        certificate_status.Certificates(found, "another passphrase").refuse()
    (authority.folder / "host_ca").unlink()
    with pytest.raises(ConfigError, match=r"host_ca .* cannot be read"):
        certificate_status.Certificates(found).refuse()


def test_a_run_that_renews_certificates_makes_no_new_authority(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"/ca is missing; restore it from a backup, or run 'clusterctl provision"):
        certificate_status.Certificates(cluster(tmp_path, ssh_mesh_trust="ca"), PASSPHRASE).refuse_missing()
    certificate_status.Certificates(cluster(tmp_path, ssh_mesh_trust="keys")).refuse_missing()
    certificate_status.Certificates(with_authority(tmp_path)[0]).refuse_missing()


def test_a_lost_authority_is_not_replaced_while_nodes_trust_it(tmp_path: Path) -> None:
    def seen(*, trusts: bool) -> dict[str, NodeFacts]:
        return {"node1": NodeFacts.model_construct(known_hosts=KnownHosts(has_authority=trusts))}

    new = cluster(tmp_path, ssh_mesh_trust="ca")
    certificate_status.Certificates(new, PASSPHRASE).refuse_lost(seen(trusts=False))
    for given in (None, PASSPHRASE):
        with pytest.raises(ConfigError, match=r"/ca is missing, and node1 trusts it; restore it from a backup"):
            certificate_status.Certificates(new, given).refuse_lost(seen(trusts=True))
    certificate_status.Certificates(cluster(tmp_path, ssh_mesh_trust="keys")).refuse_lost(seen(trusts=True))
    certificate_status.Certificates(with_authority(tmp_path)[0]).refuse_lost(seen(trusts=True))


def test_the_role_gets_the_passphrase_as_a_path(tmp_path: Path) -> None:
    found, authority = with_authority(tmp_path)
    with certificate_status.Certificates(found, PASSPHRASE).variables() as variables:
        assert PASSPHRASE not in str(variables)
        assert variables["clusterctl_ca_folder"] == str(authority.folder)
        assert certificate_status.passphrase_of(variables["clusterctl_ca_passphrase_file"]) == PASSPHRASE
    with pytest.raises(ConfigError, match="cannot be read"):
        certificate_status.passphrase_of(variables["clusterctl_ca_passphrase_file"])


def test_provision_renews_what_doctor_warns_of(tmp_path: Path) -> None:
    found, authority = with_authority(tmp_path)
    issue(authority, node1=timedelta(days=5), node2=timedelta(hours=-1), gone=timedelta(days=1))
    now = datetime.now(timezone.utc)
    known = certificate_status.Certificates(found, PASSPHRASE)
    due = known.due(["node1", "node2"], now)
    assert sorted(due) == ["node1", "node2"]
    assert known.told(["node1", "node2"], now) == ()
    without = certificate_status.Certificates(found)  # what is still valid waits for the passphrase
    assert list(without.due(["node1", "node2"], now)) == ["node2"]
    (words,) = without.told(["node1", "node2"], now)
    assert words.startswith("Renew the certificates of node1 by ")
    assert "--ca-passphrase-file" in words
    with pytest.raises(ConfigError, match="certificates of node2 have to be signed"):
        without.refuse_unready(["node1", "node2"])
    without.refuse_unready(["node1"])
    assert due["node1"].startswith(f"its certificates expire on {now + timedelta(days=5):%Y-%m-%d}")
    expired, soon = known.findings(now)
    assert (expired.severity, expired.hosts) == ("error", ("node2",))
    assert "have expired" in expired.cause
    assert (soon.severity, soon.hosts) == ("warning", ("node1",))
    assert "clusterctl provision" in soon.cure
    issue(authority, node1=timedelta(days=29), node2=timedelta(days=29))
    assert known.due(["node1", "node2"], now) == {}
    assert known.findings(now) == ()


def test_renewal_and_revocation_are_seen_by_the_next_provision(tmp_path: Path) -> None:
    found, authority = with_authority(tmp_path)
    issue(authority, node1=timedelta(days=29), node2=timedelta(days=29))
    now = datetime.now(timezone.utc)
    known = certificate_status.Certificates(found, PASSPHRASE)
    certificate_status.mark_for_renewal(authority, ["node2"])
    assert known.due(["node1", "node2"], now) == {"node2": "its certificates are to be renewed"}
    before = known.revoked
    assert certificate_status.revoke(authority, ["node1"], now) == ["node2"], "both have one key here"
    assert known.revoked != before
    assert [(one.node, one.state) for one in certificate_status.entries(authority, now)] == [
        ("node1", "revoked"),
        ("node2", "due"),
    ]
    for act in (
        lambda: certificate_status.mark_for_renewal(authority, ["node9"]),
        lambda: certificate_status.revoke(authority, ["node9"], now),
    ):
        with pytest.raises(ConfigError, match="node9 has no certificate"):
            act()
