"""Which Debian mirror a machine's apt sources name."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusterctl.sandbox import apt
from clusterctl.sandbox.apt import Mirror, Source
from clusterctl.sandbox.model import DEBIAN, IMAGES
from clusterctl.sandbox.model import UBUNTU as UBUNTU_VENDOR

KEY = "/usr/share/keyrings/debian-archive-keyring.gpg"

# debian.sources of a Debian 12 machine, the mirror's name replaced.
DEB822 = f"""\
Types: deb
# http://snapshot.mirror.example/archive/debian/20250520T000000Z
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: {KEY}

Types: deb deb-src
URIs: http://mirror.example/debian-security/
Suites: bookworm-security
Components: main
Signed-By: {KEY}
"""

# sources.list as the installer of Debian 12 leaves it, the mirror's name replaced.
ONE_LINE = """\
#deb cdrom:[Debian GNU/Linux 12.5.0 _Bookworm_ - Official amd64 NETINST]/ bookworm contrib main non-free-firmware

deb http://mirror.example/debian/ bookworm main non-free-firmware
deb-src http://mirror.example/debian/ bookworm main non-free-firmware

deb http://security.mirror.example/debian-security bookworm-security main non-free-firmware # security
"""

# ubuntu.sources of Ubuntu 24.04, the mirror's name replaced.
UBUNTU = """\
Types: deb
URIs: http://mirror.example/ubuntu/
Suites: noble noble-updates noble-backports
Components: main universe restricted multiverse
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg
"""

# Vendors that name their suites after Debian's.
VENDORS = """\
deb [arch=amd64 signed-by=/usr/share/keyrings/vendor.gpg] https://apt.vendor.example bookworm main
deb [signed-by=/etc/apt/keyrings/tool.asc] https://tool.example/linux/debian bookworm stable
deb https://packages.vendor.example/apt cloud-sdk-bookworm main
"""


def test_deb822_sources_are_read_stanza_by_stanza() -> None:
    assert apt.parse_deb822(DEB822) == [
        Source("http://mirror.example/debian", "bookworm", ("main",), KEY),
        Source("http://mirror.example/debian", "bookworm-updates", ("main",), KEY),
        Source("http://mirror.example/debian-security/", "bookworm-security", ("main",), KEY),
    ]


def test_disabled_stanzas_are_passed_over() -> None:
    assert apt.parse_deb822("Enabled: no\n" + DEB822)[0].suite == "bookworm-security"


def test_source_packages_are_passed_over() -> None:
    sources = apt.parse_deb822(DEB822.replace("deb deb-src", "deb-src"))
    assert [source.suite for source in sources] == ["bookworm", "bookworm-updates"]


def test_an_inline_key_is_one_field_over_many_lines() -> None:
    key = "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mDMEY865UxYJ"
    first = apt.parse_deb822(DEB822.replace(f"Signed-By: {KEY}", key, 1))[0]
    assert first.signed_by == "-----BEGIN PGP PUBLIC KEY BLOCK----- . mDMEY865UxYJ"


def test_one_line_sources_are_read_with_their_options() -> None:
    assert apt.parse_one_line(VENDORS)[0] == Source(
        "https://apt.vendor.example", "bookworm", ("main",), "/usr/share/keyrings/vendor.gpg"
    )


@pytest.mark.parametrize("sources", [apt.parse_deb822(DEB822), apt.parse_one_line(VENDORS) + apt.parse_deb822(DEB822)])
def test_debians_mirror_is_found_and_a_vendors_is_not(sources: list[Source]) -> None:
    assert apt.find_mirror(sources) == Mirror("http://mirror.example/debian", "http://mirror.example/debian-security")


def test_the_installers_sources_list_is_understood() -> None:
    found = apt.find_mirror(apt.parse_one_line(ONE_LINE))
    assert found == Mirror("http://mirror.example/debian", "http://security.mirror.example/debian-security")


@pytest.mark.parametrize("sources", [[], apt.parse_deb822(UBUNTU), apt.parse_one_line(VENDORS)])
def test_machines_without_a_debian_mirror_have_none(sources: list[Source]) -> None:
    assert apt.find_mirror(sources) is None


def test_a_release_gets_its_own_suites() -> None:
    assert Mirror("http://m/debian", "http://m/security").lines(IMAGES["debian13"]) == (
        f"deb [signed-by={KEY}] http://m/debian trixie main",
        f"deb [signed-by={KEY}] http://m/debian trixie-updates main",
        f"deb [signed-by={KEY}] http://m/security trixie-security main",
    )
    assert len(Mirror("http://m/debian").lines(IMAGES["debian13"])) == 2


def test_a_mirror_of_testing_may_be_older_than_a_week() -> None:
    lines = Mirror("http://m/debian").lines(IMAGES["testing"])
    assert lines[0] == f"deb [signed-by={KEY} check-valid-until=no] http://m/debian testing main"


def test_ubuntus_mirror_is_found_by_its_key_and_its_releases() -> None:
    found = apt.find_mirror(apt.parse_deb822(UBUNTU), UBUNTU_VENDOR)
    assert found == Mirror("http://mirror.example/ubuntu")
    ring = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"
    assert found.lines(IMAGES["ubuntu22.04"])[0] == (
        f"deb [signed-by={ring}] http://mirror.example/ubuntu jammy main universe"
    )
    assert apt.find_mirror(apt.parse_deb822(DEB822), UBUNTU_VENDOR) is None


def test_the_mirror_list_of_a_cloud_image_is_followed(tmp_path: Path) -> None:
    mirrors = tmp_path / "mirrors" / "debian.list"
    mirrors.parent.mkdir()
    mirrors.write_text("http://first.example/debian/\nhttp://second.example/debian\n")
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("# See /etc/apt/sources.list.d/debian.sources\n")
    cloud = DEB822.replace("http://mirror.example/debian\n", f"mirror+file:{mirrors}\n")
    (tmp_path / "sources.list.d" / "debian.sources").write_text(cloud)
    assert apt.machine_mirror(DEBIAN, tmp_path) == Mirror(
        "http://first.example/debian", "http://mirror.example/debian-security"
    )


def test_a_machine_without_apt_has_no_mirror(tmp_path: Path) -> None:
    assert apt.machine_mirror(DEBIAN, tmp_path) is None
