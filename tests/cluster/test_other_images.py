"""Images of other distributions: what dnf makes of a mirror of RPM packages, and what is said where none answers.

The mirror is made on a node: it has a package of each name that the image of Rocky Linux is made of, signed. The
package ``rpm`` holds the rpm of that node, so that the root file system has one of its own, as a distribution's has.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from clusterctl.sandbox import apt, images, model
from validated import Cluster

if TYPE_CHECKING:
    from conftest import Start

pytestmark = [pytest.mark.cluster, pytest.mark.long]

VENDOR = model.ROCKY
NAMES = (*VENDOR.first, *model.IMAGES["rocky9"].packages)
TOOLS = ("dnf", "rpm", "createrepo-c", "gpg", "gpg-agent", "file")
INSTALL = 'apt-get -qq update; apt-get -qq install --yes --no-install-recommends "$@"'
# Its arguments: names of packages.
MIRROR = r"""
export HOME=/root DEBIAN_FRONTEND=noninteractive
gpg --batch --quiet --passphrase '' --quick-generate-key 'Vendor <vendor@example.org>' rsa2048 sign never
gpg --armor --export >/srv/RPM-GPG-KEY-Rocky-9
mkdir -p /srv/mirror /root/tree /root/tree/etc /root/tree/dev /root/tree/proc
echo ID=rocky >/root/tree/etc/os-release
{
  for program in /usr/bin/rpmdb /usr/bin/rpm /bin/sh /bin/bash; do
    echo $program; ldd $program | grep -o '/[^ )]*'
  done
  find /usr/lib/rpm -maxdepth 1 -type f
} | sort -u | tar --create --dereference --files-from=- | tar --extract --directory=/root/tree
{
  echo 'Name: filesystem
Version: 9
Release: 1
Summary: all files
License: none
BuildArch: noarch
AutoReqProv: no
%define _build_id_links none
%define _binaries_in_noarch_packages_terminate_build 0
%define __os_install_post %{nil}
%description
none
%package -n weak
Summary: none
%description -n weak
none
%files -n weak'
  for name in "$@"; do
    printf '%%package -n %s\nSummary: none\nRequires: filesystem\nRecommends: weak\n' "$name"
    printf '%%description -n %s\nnone\n%%files -n %s\n' "$name" "$name"
  done
  echo '%install
cp -a /root/tree/. %{buildroot}/
%files
/*'
} >/root/vendor.spec
rpmbuild --quiet --define '_rpmdir /srv/mirror' -bb /root/vendor.spec
rpmsign --define '__gpg /usr/bin/gpg' --define '_gpg_name Vendor' --addsign /srv/mirror/noarch/*.rpm
createrepo_c --quiet /srv/mirror
"""
REPOSITORIES = """\
[rocky-everything]
name=Rocky Linux $releasever
baseurl=file:///srv/mirror
gpgkey=file:///srv/RPM-GPG-KEY-Rocky-9

[another]
name=Tools of a vendor
baseurl=file:///srv/nothing
"""


@pytest.fixture(scope="module")
def machine(sandbox: Start) -> Cluster:
    """Return one node with dnf, a mirror, and the program that the controller runs."""
    cluster = Cluster(sandbox("dnf", nodes=1))
    cluster.on("node1", "sh", "-ec", INSTALL, "sh", *TOOLS)
    cluster.on("node1", "sh", "-ec", MIRROR, "sh", *NAMES)
    script = Path(images.__file__).with_name("image") / "dnf-root"
    put(cluster, "/root/dnf-root", script.read_text(encoding="utf-8"))
    return cluster


def put(cluster: Cluster, path: str, text: str) -> None:
    cluster.on("node1", "sh", "-ec", 'mkdir -p "$(dirname "$1")"; printf %s "$2" >"$1"', "sh", path, text)


def made(cluster: Cluster, folder: str, repositories: str) -> subprocess.CompletedProcess[bytes]:
    """Have the node make a root file system, as the controller would have this machine do."""
    found = [one for one in apt.parse(repositories, "rocky.repo") if one.is_of(VENDOR)]
    put(cluster, f"{folder}/repositories/sandbox.repo", apt.text_of(found))
    prefix = [*cluster.engine.prefix, "nsenter", "--target", cluster.first_process("node1"), "--mount", "--pid", "--"]
    argv = images.dnf_root_argv((), Path(folder), Path(folder, "repositories"), VENDOR.release, NAMES)
    script = next(word for word in argv if word.endswith("/dnf-root"))
    argv[argv.index(script)] = "/root/dnf-root"
    return subprocess.run([*prefix, *argv], stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=300)


def test_dnf_makes_a_root_file_system_with_the_rpm_database_of_the_distribution(machine: Cluster) -> None:
    done = made(machine, "/root/run", REPOSITORIES)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        names = {name.removeprefix("./") for name in archive.getnames()}
        release = archive.extractfile("./etc/os-release")
        assert release.read() == b"ID=rocky\n"
    assert not [name for name in names if name.startswith(("dev/", "proc/", "var/cache/dnf/", "var/lib/dnf-root"))]
    own = machine.on("node1", "chroot", "/root/run/root", "rpm", "--query", "--all", "--queryformat", "%{NAME}\n")
    assert {*own.split()} - {"gpg-pubkey"} == {"filesystem", *NAMES}, "no package that is only recommended"
    assert "/root/run" not in machine.on("node1", "cat", "/proc/1/mounts"), "the mounts end with it"


def test_a_package_without_the_vendors_signature_is_refused(machine: Cluster) -> None:
    unsigned = REPOSITORIES.replace("gpgkey=file:///srv/RPM-GPG-KEY-Rocky-9\n", "")
    done = made(machine, "/root/unsigned", unsigned)
    assert done.returncode != 0
    assert b"You have enabled checking of packages via GPG keys" in done.stderr
    assert done.stdout == b""
