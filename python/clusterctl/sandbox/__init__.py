"""A cluster of containers on this machine, reached by ssh exactly as real machines are."""

from clusterctl.sandbox.lifecycle import advice, down, load, status, up
from clusterctl.sandbox.model import Sandbox, SandboxNode, SandboxSpec, ssh_command

__all__ = ["Sandbox", "SandboxNode", "SandboxSpec", "advice", "down", "load", "ssh_command", "status", "up"]
