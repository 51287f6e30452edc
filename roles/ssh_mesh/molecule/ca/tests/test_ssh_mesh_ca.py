"""With an authority, each node lets the cluster's user in from each node, by one line of trust in each file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from testinfra.host import Host

NODES = ("node1", "node2")
# testinfra takes status 255 for a broken connection of its own.
REFUSED = 9
SSH = "ssh -n -o BatchMode=yes -o ConnectTimeout=10"


@pytest.mark.parametrize("target", NODES)
def test_a_shell_without_a_prompt(host: Host, target: str) -> None:
    done = host.run(f"sudo -u cluster {SSH} {target} hostname")
    assert (done.stdout, done.stderr) == (f"{target}\n", "")


@pytest.mark.parametrize("target", NODES)
def test_the_bare_key_without_its_certificate_opens_nothing(host: Host, target: str) -> None:
    copy = "key=$(mktemp) && cat ~/.ssh/id_clusterctl > $key"
    login = f"{SSH} -F /dev/null -i $key -o IdentitiesOnly=yes {target} true"
    done = host.run(f"sudo -H -u cluster sh -c '{copy}; {login}; code=$?; rm $key; test $code = 0 || exit {REFUSED}'")
    assert done.rc == REFUSED, done.stderr
    assert "Permission denied" in done.stderr


def test_one_line_of_trust_in_each_file(host: Host) -> None:
    known = host.file("/etc/ssh/ssh_known_hosts").content_string
    assert known.count("@cert-authority ") == 1
    assert "ssh_mesh" in known
    authorized = host.run("sudo cat /home/cluster/.ssh/authorized_keys").stdout
    assert authorized.count("cert-authority,restrict,pty,principals=") == 1
    assert "clusterctl:node" not in authorized


def test_sshd_shows_a_certificate_and_refuses_revoked_keys(host: Host) -> None:
    settings = host.run("sudo /usr/sbin/sshd -T -C user=cluster,host=x,addr=127.0.0.1").stdout.splitlines()
    assert "hostcertificate /etc/ssh/clusterctl-host-cert.pub" in settings
    assert "revokedkeys /etc/ssh/clusterctl.krl" in settings
