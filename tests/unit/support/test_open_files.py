from __future__ import annotations

import subprocess
import sys

ASK = """
import resource, sys
from clusterctl.support import memory_room
from clusterctl.support.errors import ConfigError
soft, hard, hosts = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    memory_room.allow_open_files(hosts)
except ConfigError as error:
    print(error)
else:
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def asked(soft: int, hard: int, hosts: int) -> str:
    argv = [sys.executable, "-c", ASK, str(soft), str(hard), str(hosts)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def test_many_hosts_get_as_many_open_files_as_they_need_and_few_change_nothing() -> None:
    assert asked(1024, 4096, 100) == "1024"
    assert asked(1024, 4096, 256) == "1536"
    assert asked(1024, 4096, 900) == "4096"


def test_too_many_hosts_are_refused_with_the_number_that_is_needed() -> None:
    said = asked(1024, 1024, 10000)
    for words in ("10000 hosts need 40128 open files, and this process may have 1024", "'ulimit -n 40128'", "--limit"):
        assert words in said
