"""Two nodes have PyTorch that computes and could talk to others over gloo; the third was told to do without."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["ansible://node1", "ansible://node2"]

PYTHON = "/usr/local/python_env/bin/python"
# one step of descent on x * x from 3 at a rate of 0.25, which ends at 1.5
PROGRAM = """
import json, torch, torch.distributed as d
x = torch.nn.Parameter(torch.tensor(3.0))
step = torch.optim.SGD([x], lr=0.25)
(x * x).backward()
step.step()
print(json.dumps([torch.__file__, x.item(), d.is_available() and d.is_gloo_available(), torch.version.cuda]))
"""


def test_torch_trains_and_has_gloo(host: Host) -> None:
    path, value, gloo, cuda = json.loads(host.check_output("sudo -u cluster %s -c %s", PYTHON, PROGRAM))
    assert path.startswith("/usr/local/python_env/lib/")
    assert (value, gloo, cuda) == (1.5, True, None)


def test_two_processes_sum_over_gloo(host: Host) -> None:
    program = (
        "import os, torch, torch.distributed as d; d.init_process_group('gloo');"
        " t = torch.tensor([d.get_rank() + 1.0]); d.all_reduce(t); print('sum', t.item());"
        " d.destroy_process_group()"  # without it gloo's threads may outlive the interpreter, which then aborts
    )
    command = "sudo -u cluster env OMP_NUM_THREADS=1 /usr/local/python_env/bin/torchrun --nproc-per-node=2 --no-python"
    said = host.check_output(f"{command} --standalone %s -c %s", PYTHON, program)
    assert said.count("sum 3.0") == 2


@pytest.mark.parametrize("package", ["cloudpickle", "psutil", "yaml", "packaging"])
def test_what_horovod_needs_at_run_time_is_there(host: Host, package: str) -> None:
    assert host.run("%s -c %s", PYTHON, f"import {package}").rc == 0


def test_the_environment_looks_for_horovod_where_it_will_be(host: Host) -> None:
    folders = host.check_output("cat /usr/local/python_env/lib/python3.11/site-packages/clusterctl.pth").split()
    assert "/usr/local/horovod/site-packages" in folders
