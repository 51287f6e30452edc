"""Names, addresses and texts of a sandbox."""

from __future__ import annotations

import sqlite3
import tarfile
from io import BytesIO
from ipaddress import IPv4Network, IPv6Network
from itertools import islice
from pathlib import Path

import pytest
from clusterctl.inventory import ansible_inventory
from clusterctl.model.hosts import Host, InventorySources
from clusterctl.sandbox import apt, container_engine, images, lifecycle, model
from clusterctl.sandbox.model import Sandbox, SandboxNode, SandboxSpec
from clusterctl.state import clusters, paths
from clusterctl.support.errors import ConfigError, ExitCode

# /proc/net/route of a machine with podman's default network and a default route.
ROUTES = """\
Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	010200C0	0003	0	0	0	00000000	0	0	0
podman0	0000580A	00000000	0001	0	0	0	0000FFFF	0	0	0
eth0	000200C0	00000000	0001	0	0	0	00FFFFFF	0	0	0
"""

# /proc/net/ipv6_route of a machine with an IPv6 network of podman's and a default route.
IPV6_ROUTES = """\
fd9c51a7d3e000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000002 00000000 00000001     podman2
fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000000000000000000000000000001 00000400 00000003 00000000 00000003     eth0
00000000000000000000000000000001 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000002 00000000 80200001       lo
"""  # noqa: E501 - as the kernel writes it


def sandbox(folder: Path, spec: SandboxSpec | None = None) -> Sandbox:
    spec = spec or SandboxSpec(nodes=3, images=("debian12", "debian13"))
    subnet = IPv6Network("fd00:7::/64") if spec.ipv6 else IPv4Network("10.90.7.0/24")
    return Sandbox(
        name=spec.name,
        network=model.network_name(spec.name),
        subnet=str(subnet),
        images=spec.images,
        nodes=model.plan_nodes(spec, subnet),
        inventory=folder / "inventory.ini",
        private_key=folder / "id_ed25519",
        known_hosts=folder / "known_hosts",
    )


@pytest.mark.parametrize("name", ["", "-a", "A", "a b", "a;b", "a\nb", "a_b", "../a", "a" * 41])
def test_names_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is no sandbox name"):
        SandboxSpec(name=name)


@pytest.mark.parametrize("nodes", [-1, 0, 65])
def test_a_sandbox_has_one_to_64_nodes(nodes: int) -> None:
    with pytest.raises(ConfigError, match=f"1 to 64 nodes, not {nodes}"):
        SandboxSpec(nodes=nodes)


@pytest.mark.parametrize("images", [(), ("debian10",), ("debian12", "--privileged")])
def test_unknown_images_are_refused(images: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="choose from debian11, debian12, debian12-arm64, debian13, testing, "):
        SandboxSpec(images=images)


def test_images_are_dealt_in_turn_and_addresses_counted_up(tmp_path: Path) -> None:
    nodes = sandbox(tmp_path).nodes
    assert [(node.name, node.container, node.address, node.image) for node in nodes] == [
        ("node1", "clusterctl-sandbox-node1", "10.90.7.11", "debian12"),
        ("node2", "clusterctl-sandbox-node2", "10.90.7.12", "debian13"),
        ("node3", "clusterctl-sandbox-node3", "10.90.7.13", "debian12"),
    ]


def test_the_largest_sandbox_fits_its_subnet() -> None:
    nodes = model.plan_nodes(SandboxSpec(name="x" * 40, nodes=model.MAX_NODES), IPv4Network("10.90.7.0/24"))
    assert nodes[-1].address == "10.90.7.74"
    assert len(nodes[-1].container) <= 63  # the longest label of a host name


def test_a_sandbox_keeps_the_inventory_of_the_checkout_that_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(container_engine, "find", lambda: None)  # nothing may be asked before the refusal
    spec, other = SandboxSpec(name="shared"), tmp_path / "other" / "inventory.ini"
    mine = sandbox(tmp_path, spec)
    for path in (mine.private_key, mine.inventory):
        path.write_text(model.INVENTORY_MARK)
    folder = paths.sandbox_dir("shared")
    folder.mkdir(parents=True)
    paths.sandbox_record(folder).write_text(mine.model_dump_json(exclude={"nodes": {"__all__": {"state"}}}))
    with pytest.raises(ConfigError, match=rf"is in use with the inventory {mine.inventory}; use that one without"):
        lifecycle.up(SandboxSpec(name="shared", inventory=other))
    assert mine.inventory.is_file()
    assert not other.exists()
    for given in (None, mine.inventory):
        assert lifecycle._inventory_path(SandboxSpec(name="shared", inventory=given), mine) == mine.inventory  # noqa: SLF001
    mine.inventory.unlink()
    assert lifecycle._inventory_path(SandboxSpec(name="shared", inventory=other), mine) == other  # noqa: SLF001


@pytest.mark.parametrize("damage", ["history", "index"])
def test_a_sandbox_goes_though_what_is_kept_of_its_runs_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(container_engine, "find", lambda: None)
    monkeypatch.setattr(lifecycle, "_remove", lambda *_: True)
    box = sandbox(tmp_path, SandboxSpec(name="old", nodes=1))
    box.inventory.write_text("node1\n", encoding="utf-8")
    box.known_hosts.write_text("10.90.7.11 ssh-ed25519 AAAAKey\n", encoding="utf-8")
    ssh_args = ("-o", f"UserKnownHostsFile={box.known_hosts}")
    clusters.settle(InventorySources.of(box.inventory), [Host("node1", "10.90.7.11", ssh_args=ssh_args)])
    if damage == "history":
        connection = sqlite3.connect(paths.history_file())
        connection.execute("PRAGMA user_version = 99")
        connection.close()
    else:
        paths.inventories_file().write_text(
            paths.inventories_file().read_text(encoding="utf-8").replace('"schema_version": 1', '"schema_version": 2')
        )
    folder = paths.sandbox_dir("old")
    folder.mkdir(parents=True)
    paths.sandbox_record(folder).write_text(box.model_dump_json(exclude={"nodes": {"__all__": {"state"}}}))
    with pytest.raises(ConfigError, match="newer clusterctl"):
        lifecycle.down("old")
    assert not box.inventory.exists()
    assert not folder.exists()


def test_growing_is_possible_and_everything_else_is_not(tmp_path: Path) -> None:
    recorded = sandbox(tmp_path)
    mixed = ("debian12", "debian13")
    assert model.why_not(recorded, SandboxSpec(nodes=3, images=mixed)) is None
    assert model.why_not(recorded, SandboxSpec(nodes=9, images=mixed)) is None
    assert model.why_not(recorded, SandboxSpec(nodes=2, images=mixed)) == "has 3 nodes, not 2"
    assert model.why_not(recorded, SandboxSpec(nodes=3)) == "is made of debian12 + debian13, not of debian12"


def test_routes_are_read_and_the_default_route_is_no_network() -> None:
    assert model.used_networks(ROUTES) == [IPv4Network("10.88.0.0/16"), IPv4Network("192.0.2.0/24")]


def test_ipv6_routes_are_read_and_the_default_route_is_no_network() -> None:
    found = model.used_ipv6_networks(IPV6_ROUTES)
    assert [str(network) for network in found] == ["fd9c:51a7:d3e0::/64", "fe80::/64", "::1/128"]
    first = next(iter(model.free_subnets([*found, *model.used_networks(ROUTES)], ipv6=True)))
    assert str(first) == "fd9c:51a7:d3e0:1::/64"


def test_a_free_subnet_overlaps_with_nothing_in_use() -> None:
    used = [IPv4Network("10.90.0.0/24"), IPv4Network("10.90.2.0/23")]
    assert [str(subnet) for subnet in islice(model.free_subnets(used), 2)] == ["10.90.1.0/24", "10.90.4.0/24"]
    assert list(model.free_subnets([IPv4Network("10.0.0.0/8")])) == []


def test_ansible_reads_the_inventory_as_it_is_meant(tmp_path: Path) -> None:
    box = sandbox(tmp_path)
    box.inventory.write_text(model.inventory_text(box))
    hosts = ansible_inventory.load(box.inventory).hosts
    assert [(host.name, host.address, host.slots) for host in hosts] == [
        ("node1", "10.90.7.11", 2),
        ("node2", "10.90.7.12", 2),
        ("node3", "10.90.7.13", 2),
    ]
    assert {(host.user, host.become, host.private_key) for host in hosts} == {("cluster", True, str(box.private_key))}
    assert hosts[0].ssh_args == model.ssh_options(box)


def test_nodes_of_ipv6_alone_are_reached_by_its_addresses(tmp_path: Path) -> None:
    box = sandbox(tmp_path, SandboxSpec(nodes=2, ipv6=True))
    assert [(node.address, node.hardware_address) for node in box.nodes] == [
        ("fd00:7::b", "02:63:00:00:00:0b"),
        ("fd00:7::c", "02:63:00:00:00:0c"),
    ]
    box.inventory.write_text(model.inventory_text(box))
    assert [host.address for host in ansible_inventory.load(box.inventory).hosts] == ["fd00:7::b", "fd00:7::c"]
    assert model.ssh_command(box, box.node("node2"), [])[-2:] == ["--", "fd00:7::c"]


def test_a_sandbox_keeps_its_family_of_addresses(tmp_path: Path) -> None:
    old, new = sandbox(tmp_path, SandboxSpec(nodes=2)), sandbox(tmp_path, SandboxSpec(nodes=2, ipv6=True))
    assert model.why_not(new, SandboxSpec(nodes=2, ipv6=True)) is None
    assert model.why_not(old, SandboxSpec(nodes=2, ipv6=True)) == "has IPv4 addresses, not IPv6"
    assert model.why_not(new, SandboxSpec(nodes=2)) == "has IPv6 addresses, not IPv4"


def test_slurm_needs_the_packages_that_ipv6_alone_cannot_fetch() -> None:
    with pytest.raises(ConfigError, match="leave out --ipv6 or --with"):
        SandboxSpec(extras=("slurm",), ipv6=True)


@pytest.mark.parametrize("path", ["/home/a b", "/home/a'b", "/home/%d", "/home/a\nb"])
def test_paths_that_ssh_options_cannot_carry_are_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="XDG_STATE_HOME"):
        model.check_plain_path(Path(path))
    model.check_plain_path(Path("/home/Some.User-1/.local/state/clusterctl"))


def test_known_hosts_has_addresses_and_keys_without_comments() -> None:
    assert model.known_hosts_text({"10.90.7.11": "ssh-ed25519 AAAAC3Nz node1"}) == "10.90.7.11 ssh-ed25519 AAAAC3Nz\n"


def test_remote_tokens_arrive_as_they_were_given(tmp_path: Path) -> None:
    box = sandbox(tmp_path)
    argv = model.ssh_command(box, box.node("node2"), ["echo", "a  b", "$HOME"])
    assert argv[-3:] == ["--", "10.90.7.12", "echo 'a  b' '$HOME'"]
    assert model.ssh_command(box, box.node("node2"), [])[-2:] == ["--", "10.90.7.12"]


@pytest.mark.parametrize("name", ["node4", "-oProxyCommand=x", ""])
def test_a_node_that_is_none_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="it has node1 to node3"):
        sandbox(tmp_path).node(name)


def test_a_packed_tree_keeps_owners_modes_and_the_links_of_other_archives() -> None:
    other = BytesIO()
    with tarfile.open(fileobj=other, mode="w") as archive:
        link = tarfile.TarInfo("etc/ssl/certs/a.0")
        link.type, link.linkname = tarfile.SYMTYPE, "a.pem"
        archive.addfile(link)
    files = {
        "home/x/.ssh": container_engine.File(None, 0o700, 1000),
        "home/x/.ssh/key": container_engine.File(b"secret", 0o600, 1000),
    }
    with tarfile.open(fileobj=BytesIO(container_engine.pack(files, other.getvalue()))) as packed:
        found = {member.name: (member.isdir(), member.mode, member.uid, member.linkname) for member in packed}
        assert packed.extractfile("home/x/.ssh/key").read() == b"secret"  # type: ignore[union-attr]
    assert found["home/x/.ssh"] == (True, 0o700, 1000, "")
    assert found["home/x/.ssh/key"] == (False, 0o600, 1000, "")
    assert found["etc/ssl/certs/a.0"][3] == "a.pem"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("index-url = https://me:canary@mirror.example/simple\n", "index-url = https://mirror.example/simple\n"),
        ("    https://token-canary@a.example/x https://b.example/y\n", "    https://a.example/x https://b.example/y\n"),
        ("proxy = http://me:p@canary@proxy.example:3128", "proxy = http://proxy.example:3128"),
        ("deb http://u:canary@mirror.example/debian bookworm main", "deb http://mirror.example/debian bookworm main"),
        ("find-links = file:///srv/a@b\ncert = /etc/c.pem\n", "find-links = file:///srv/a@b\ncert = /etc/c.pem\n"),
        ("https://a.example/x?mail=a@b\n", "https://a.example/x?mail=a@b\n"),
    ],
)
def test_urls_lose_their_credentials_and_nothing_else(text: str, left: str) -> None:
    assert model.without_credentials(text) == left


def test_a_node_gets_no_credentials_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file that is copied into a node is looked through."""
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://me:canary@mirror.example/simple\n", encoding="utf-8")
    monkeypatch.setattr(lifecycle, "_PIP_CONF", config)
    mirror = apt.Mirror("http://me:canary@mirror.example/debian", "http://canary@mirror.example/security")
    monkeypatch.setattr(apt, "machine_mirror", lambda _vendor: mirror)
    monkeypatch.setattr(images, "trust", lambda *_: b"")
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:canary@mirror.example/simple")
    box = sandbox(tmp_path)
    box.private_key.with_suffix(".pub").write_bytes(b"ssh-ed25519 AAAA\n")
    outfit = lifecycle.outfit_of(container_engine.Podman(()), box, "debian12", "reference", lambda _: None)
    assert b"https://mirror.example/simple" in outfit
    assert b"http://mirror.example/debian bookworm main" in outfit
    assert b"canary" not in outfit


# What podman 4.3.1 said when it imported an image into a full file system.
FULL = """\
Getting image source signatures
Copying blob sha256:7bc2c07b16e2ff3cc401ab44657040b9955e54efdbeaa18f22e2cda839baf23c
Error: writing blob: storing blob to file "/mnt/storage23131/1": write /mnt/storage23131/1: no space left on device
"""
# What podman 4.3.1 said to 'create' with a name that was taken.
TAKEN = (
    'Error: creating container storage: the container name "x" is already in use by c59cd807700b. You have to remove '
    "that container to be able to reuse that name: that name is already in use\n"
)


def test_a_full_disk_is_called_one() -> None:
    error = container_engine.failure("podman import", FULL)
    assert str(error).startswith("The disk is full: podman import found no space left")
    assert error.exit_code is ExitCode.HOST_FAILED


def test_podmans_last_words_are_passed_on_without_its_prefix() -> None:
    assert str(container_engine.failure("podman create", TAKEN)).startswith(
        "podman create failed: creating container storage: "
    )
    assert str(container_engine.failure("podman create", "")) == "podman create failed: it gave no reason"


def test_missing_programs_are_named_with_the_packages_that_bring_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"needs podman, ssh, ssh-keygen, ip; install.*apt-get install .*podman runc crun"
    ):
        container_engine.find()


def test_a_node_keeps_its_hardware_address() -> None:
    node = SandboxNode(name="node1", container="c", address="10.90.2.11", image="debian12")
    assert node.hardware_address == "02:63:0a:5a:02:0b"


def test_a_table_of_neighbours_that_is_too_small_is_told_with_what_to_set() -> None:
    assert model.neighbour_advice(8, 1024) == ""
    assert model.neighbour_advice(29, 1024) == ""
    words = model.neighbour_advice(32, 1024)
    assert "keeps 1024 neighbours" in words
    assert words.endswith("sysctl -w net.ipv4.neigh.default.gc_thresh2=2048 net.ipv4.neigh.default.gc_thresh3=4096")
    assert "net.ipv6.neigh" in model.neighbour_advice(64, 1024, ipv6=True)
    assert model.neighbour_advice(64, 8192) == ""
