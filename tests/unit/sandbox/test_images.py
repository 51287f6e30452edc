"""Where the image of a node comes from, and what is said where nothing gives it."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from clusterctl.sandbox import apt, container_engine, images, lifecycle, model
from clusterctl.sandbox.model import IMAGES, LEAP, ROCKY, RpmVendor, SandboxSpec, Vendor
from clusterctl.support.errors import ConfigError, HostFailedError

# Files of repositories as Rocky Linux 9 and mock's configuration for Leap have them, the mirrors' names replaced.
ROCKY_REPO = """\
[baseos]
name=Rocky Linux $releasever - BaseOS
#mirrorlist=https://mirror.example/mirrorlist?arch=$basearch&repo=BaseOS-$releasever$rltype
baseurl=https://me:canary@mirror.example/rocky/$releasever/BaseOS/$basearch/os/
username=canary
password=canary
gpgcheck=1
enabled=1
countme=1
gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-9

[baseos-debug]
name=Rocky Linux $releasever - BaseOS - Debug
baseurl=https://mirror.example/rocky/$releasever/BaseOS/$basearch/debug/tree/
enabled=0
"""
LEAP_REPO = """\
[opensuse-leap-oss]
name=openSUSE Leap $releasever - x86_64 - OSS
baseurl=http://mirror.example/distribution/leap/$releasever/repo/oss/
enabled=1
gpgkey=file:///usr/share/distribution-gpg-keys/opensuse/RPM-GPG-KEY-openSUSE
        file:///usr/share/distribution-gpg-keys/suse/RPM-GPG-KEY-SuSE-SLE-15
gpgcheck=1
"""
RPM_IMAGES = ("leap15", "rocky9")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return dnf's folder of repositories on a machine with dnf and no registry."""
    folder = tmp_path / "yum.repos.d"
    folder.mkdir()
    find = apt.machine_repositories
    monkeypatch.setattr(apt, "machine_repositories", lambda vendor: find(vendor, folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("podman", "dnf", "rpmdb"):
        (programs / name).symlink_to("/bin/false")
    # It says what it was given, in place of the root file system.
    (programs / "unshare").write_text('#!/bin/sh\nprintf "%s\\n" "$@" "$(cat "$5/sandbox.repo")"\n', encoding="utf-8")
    (programs / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return folder


def mixed(folder: Path) -> model.Sandbox:
    spec = SandboxSpec(nodes=2, images=("leap15", "debian12"))
    return model.Sandbox(
        name="mixed",
        network="clusterctl-mixed",
        subnet="10.90.1.0/24",
        images=spec.images,
        nodes=model.plan_nodes(spec, IPv4Network("10.90.1.0/24")),
        inventory=folder / "inventory.ini",
        private_key=folder / "id",
        known_hosts=folder / "known_hosts",
    )


def refused(image: str) -> str:
    with pytest.raises(ConfigError) as caught:
        images.ensure(container_engine.Podman(()), image, lambda _text: None)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "told"), [("debian:12", ["debian:12 was taken by its tag"]), (f"debian@sha256:{'1' * 64}", [])]
)
def test_an_image_by_its_tag_alone_is_named_with_its_digest(
    name: str, told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "podman"
    tool.write_text(
        '#!/bin/sh\ncase "$*" in *exists*) exit 1 ;; *inspect*) echo sha256:abc ;; esac\n', encoding="utf-8"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(images.IMAGES, "debian12", replace(IMAGES["debian12"], registry=name))
    lines: list[str] = []
    images.ensure(container_engine.Podman(()), "debian12", lines.append)
    assert [line.partition(",")[0] for line in lines if "by its tag" in line] == told
    assert [line for line in lines if "by its tag" in line and "this one is sha256:abc" not in line] == []


def test_the_repositories_of_a_vendor_are_found_by_its_word() -> None:
    both = [*apt.parse(ROCKY_REPO, "a"), *apt.parse(LEAP_REPO, "b")]
    assert [one.section for one in both if one.is_of(ROCKY)] == ["baseos"]
    (leap,) = (one for one in both if one.is_of(LEAP))
    keys = Path("/usr/share/distribution-gpg-keys")
    assert leap.key_files() == (keys / "opensuse/RPM-GPG-KEY-openSUSE", keys / "suse/RPM-GPG-KEY-SuSE-SLE-15")


def test_a_text_of_repositories_says_the_same() -> None:
    found = apt.parse(ROCKY_REPO + "\n" + LEAP_REPO, "a")
    assert apt.parse(apt.text_of(found), "b") == found


def test_a_file_that_has_no_sections_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^/etc/x\.repo cannot be read as a file of repositories: .*\."):
        apt.parse("<html>\n", "/etc/x.repo")


@pytest.mark.parametrize("image", RPM_IMAGES)
def test_without_a_registry_and_a_mirror_one_sentence_names_both_ways(machine: Path, image: str) -> None:
    assert not list(machine.iterdir())
    said = refused(image)
    assert said.startswith("No registry gave the base image and /etc/yum.repos.d names no ")
    assert f"'podman pull {IMAGES[image].registry}'" in said
    assert said.count(". ") == 0


@pytest.mark.parametrize("image", ["ubuntu22.04", "ubuntu24.04"])
def test_ubuntu_without_a_registry_and_a_mirror_is_refused_in_the_same_way(
    machine: Path, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apt, "_APT", machine)
    monkeypatch.setattr(apt, "machine_mirror", lambda _vendor: None)
    assert "/etc/apt names no Ubuntu mirror" in refused(image)


def test_a_mirror_without_dnf_is_told_with_the_packages(machine: Path) -> None:
    (machine / "rocky.repo").write_text(ROCKY_REPO, encoding="utf-8")
    (machine.parent / "bin" / "rpmdb").unlink()
    assert refused("rocky9").endswith("install them with 'sudo apt-get install --no-install-recommends dnf rpm'.")


def test_dnf_gets_the_vendors_repositories_and_the_packages_of_a_node(machine: Path) -> None:
    (machine / "all.repo").write_text(ROCKY_REPO + LEAP_REPO, encoding="utf-8")
    with pytest.raises(HostFailedError, match="podman import"):
        images.ensure(container_engine.Podman(()), "rocky9", lambda _text: None)
    (archive,) = (machine.parent / "clusterctl" / "images").glob("rocky9-*.tar")
    mount, shell, script, folder, repositories, release, *rest = archive.read_text(encoding="utf-8").splitlines()
    assert (mount, shell, Path(script).name, release) == ("--mount", "sh", "dnf-root", "9")
    assert Path(script).is_file()
    assert Path(repositories).parent == Path(folder)
    assert not Path(folder).exists()
    packages = rest[: rest.index("[baseos]")]
    assert packages == [*ROCKY.first, *IMAGES["rocky9"].packages]
    assert "[opensuse-leap-oss]" not in rest
    assert "password=canary" in rest


def test_an_rpm_node_gets_the_repositories_and_their_keys_without_a_login(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = machine / "KEY"
    key.write_text("public", encoding="utf-8")
    text = ROCKY_REPO.replace("file:///etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-9", key.as_uri())
    (machine / "rocky.repo").write_text(text, encoding="utf-8")
    monkeypatch.setattr(images, "trust", lambda *_: b"")
    box = mixed(tmp_path)
    box.private_key.with_suffix(".pub").write_bytes(b"ssh-ed25519 AAAA\n")
    outfit = lifecycle.outfit_of(container_engine.Podman(()), box, "rocky9", "reference", lambda _text: None)
    with tarfile.open(fileobj=io.BytesIO(outfit)) as archive:
        found = {one.name: archive.extractfile(one) for one in archive if one.isfile()}
        text_of = {name: file.read().decode() for name, file in found.items() if file}
    assert text_of[str(key).lstrip("/")] == "public"
    assert text_of["etc/yum.repos.d/rocky.repo"] == ""
    (node,) = apt.parse(text_of["etc/yum.repos.d/sandbox.repo"], "node")
    assert node.options["baseurl"].startswith("https://mirror.example/")
    assert b"canary" not in outfit


def test_every_image_has_its_recipe_and_a_python_that_the_roles_take(tmp_path: Path) -> None:
    recipes = Path(images.__file__).with_name("image")
    for image in IMAGES.values():
        assert (recipes / image.recipe).is_file()
        assert isinstance(image.vendor, (Vendor, RpmVendor))
    text = model.inventory_text(mixed(tmp_path))
    assert "node1 ansible_host=10.90.1.11 slots=2 ansible_python_interpreter=/usr/bin/python3.11\n" in text
    assert "node2 ansible_host=10.90.1.12 slots=2\n" in text


def test_no_mirror_and_no_registry_is_named_in_the_catalog() -> None:
    names = json.dumps([image.registry for image in IMAGES.values()])
    assert "." not in names.replace("22.04", "").replace("24.04", "").replace("15.6", "")
    assert "://" not in repr(IMAGES)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a podman that has no image and of what writes a root file system; their logs lie beside."""
    tool = tmp_path / "podman"
    tool.write_text('#!/bin/sh\necho "$@" >>"$0.log"\ncase "$*" in *exists*) exit 1 ;; esac\n', encoding="utf-8")
    (tmp_path / "unshare").write_text('#!/bin/sh\necho "$@" >>"$0.log"\n', encoding="utf-8")
    (tmp_path / "mmdebstrap").touch()
    for name in ("podman", "unshare", "mmdebstrap"):
        (tmp_path / name).chmod(0o755)
    (tmp_path / "qemu-aarch64").write_text("enabled\nflags: POCF\n", encoding="ascii")
    monkeypatch.setattr(images, "_EMULATORS", tmp_path)
    monkeypatch.setattr(images.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(apt, "machine_mirror", lambda _vendor: apt.Mirror("http://mirror.example/debian"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("machine_name", "emulator", "refused"),
    [
        ("x86_64", "", True),
        ("x86_64", "enabled\nflags: POCF\n", False),
        ("x86_64", "enabled\nflags: PF\n", True),  # sudo would not work on the nodes
        ("x86_64", "enabled\nflags: POC\n", True),  # each container would need the emulator's file
        ("aarch64", "", False),
    ],
)
def test_an_image_of_another_processor_needs_an_emulator(
    programs: Path, monkeypatch: pytest.MonkeyPatch, machine_name: str, emulator: str, refused: bool
) -> None:
    (programs / "qemu-aarch64").write_text(emulator, encoding="ascii")
    monkeypatch.setattr(images.platform, "machine", lambda: machine_name)
    if refused:
        with pytest.raises(images.NoImageError, match=r"does not run the arm64 programs .* the flags F and C"):
            images.ensure(container_engine.Podman(()), "debian12-arm64", lambda _: None)
        return
    images.ensure(container_engine.Podman(()), "debian12-arm64", lambda _: None)
    asked = (programs / "podman.log").read_text(encoding="utf-8").splitlines()
    assert "pull --quiet --platform linux/arm64 debian:12" in asked
    assert any(line.startswith("build --platform linux/arm64 ") for line in asked)


def test_an_emulated_image_gets_the_cross_compiler_and_the_shell_of_its_archive(programs: Path) -> None:
    images.ensure(container_engine.Podman(()), "debian12-arm64", lambda _: None)
    (fetched,) = (programs / "unshare.log").read_text(encoding="utf-8").splitlines()
    packages = "gcc-12-aarch64-linux-gnu,g++-12-aarch64-linux-gnu"
    packages += ",bash,coreutils,dash,diffutils,findutils,grep,make,mawk,sed"
    words = f"--variant=extract --architectures=amd64 --include={packages}"
    assert f"mmdebstrap {words} --format=tar bookworm - " in fetched
    builds = [line for line in (programs / "podman.log").read_text(encoding="utf-8").splitlines() if "build" in line]
    native, node = builds
    assert "--no-cache --network none" in native, "podman's cache does not see what is mounted"
    assert "BASE=localhost/clusterctl-base:debian12-arm64-" in native
    assert "GCC=12" in native
    assert "-native --build-arg PACKAGES" in node, "the node's image stands on the base with these programs"
    assert not list((programs / "clusterctl" / "images").glob("root-*")), "the fetched packages are removed"


def test_an_emulated_image_without_a_mirror_says_that_it_compiles_slowly(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apt, "machine_mirror", lambda _vendor: None)
    said: list[str] = []
    images.ensure(container_engine.Podman(()), "debian12-arm64", said.append)
    assert any("compiles with emulated programs" in line for line in said)
    assert "-native" not in (programs / "podman.log").read_text(encoding="utf-8")


def test_an_image_of_this_processor_keeps_its_compiler(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images.platform, "machine", lambda: "aarch64")
    images.ensure(container_engine.Podman(()), "debian12-arm64", lambda _: None)
    assert not (programs / "unshare.log").exists()
