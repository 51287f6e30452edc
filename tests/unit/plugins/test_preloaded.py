"""What Ansible's main process has loaded before it forks a worker for each host."""

from __future__ import annotations

import json
import subprocess
import sys

from clusterctl.support import content

# As the strategy does for each task, in Ansible's main process.
PROGRAM = """
import json, sys
from ansible.plugins.loader import action_loader, init_plugin_loader
init_plugin_loader(sys.argv[1:])
assert action_loader.get("clusterctl.hpc.preflight_look", class_only=True)
print(json.dumps([name for name in sys.modules if ".plugins.filter." in name or ".plugins.test." in name]))
"""


def test_the_first_action_loads_the_filters_for_all_workers() -> None:
    asked = [sys.executable, "-c", PROGRAM, str(content.collections_path())]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    ours = {f"ansible_collections.clusterctl.hpc.plugins.filter.{name}" for name in ("artifact", "stack")}
    assert ours <= set(loaded)
    assert any(name.startswith("ansible.plugins.test.") for name in loaded)
