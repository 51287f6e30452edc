# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Gather in one trip all facts that clusterctl needs about a node."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_facts
short_description: Gather all facts that clusterctl needs about a node, in one trip
version_added: 0.1.0
description:
  - Looks at the node and changes nothing.
  - Returns the platform, hardware, disks, network interfaces and routes, GPUs, limits, host keys, installed artifacts,
    the environment of a non-interactive ssh session, and the present state of given paths.
  - Sections fail independently. A section without an answer has an empty value and a sentence in C(problems).
  - With C(become) by sudo, the environment and the limits are those of the ssh session that called sudo. A connection
    that stays open (ControlPersist) shows the environment of the moment when it was opened.
options:
  watch:
    description:
      - Paths whose present state is returned. The C(watch) entries of other modules can be given unchanged. Only
        C(path), C(kind) and C(marker) of each are read.
    type: list
    elements: dict
    default: []
  artifacts:
    description:
      - Installed artifacts to verify against their markers and manifests, each with C(name) and C(link). C(inputs)
        names the inputs of the artifact to return as well.
      - Left out, every folder with a marker directly under O(prefix) is verified.
    type: list
    elements: dict
  libraries:
    description:
      - Libraries to look for as the loader of a non-interactive session does, each with C(soname). C(also) holds
        patterns of further files to report.
      - The RPATH of programs is not read. Where neither the path nor a file beside it tells an NCCL's version, a
        separate process asks the library.
    type: list
    elements: dict
    default: []
  prefix:
    description: Folder of the cluster's software.
    type: path
    default: /usr/local
  existing_python:
    description:
      - Folder of a Python environment of the user, or its python, to look at. Nothing of it runs. Left out, none is
        looked at.
    type: str
  existing_openmpi:
    description:
      - Folder of an Open MPI of the user or a vendor to look at. Its C(ompi_info) runs as nobody. Left out, none is
        looked at.
    type: str
  check_sudo:
    description:
      - Whether to find out if the login user may use sudo without a password. This starts one process on the node. A
        refusal appears in the node's log.
    type: bool
    default: false
  job_user:
    description:
      - Name of the account that jobs run as. The answer tells whether it exists, and whether it may use sudo without a
        password. This starts one process on the node. Left out, no account is looked at.
    type: str
author:
  - The clusterctl authors (!UNKNOWN)
attributes:
  check_mode: {support: full, description: Changes nothing in any mode.}
  diff_mode: {support: none, description: The module changes nothing.}
"""

EXAMPLES = r"""
- name: Look at the node
  clusterctl.hpc.node_facts:
  register: __example_facts

- name: Find out whether a file has changed
  clusterctl.hpc.node_facts:
    watch:
      - path: /etc/hosts
        kind: file
  register: __example_facts

- name: Find out which NCCL a session loads
  clusterctl.hpc.node_facts:
    artifacts: []
    libraries:
      - soname: libnccl.so.2
        also: [/usr/local/python_env/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2]
  register: __example_facts
"""

RETURN = r"""
node:
  description: The record of the node.
  returned: always
  type: dict
  contains:
    schema_version: {description: Schema version of this record., type: int, sample: 1}
    hostname: {description: The kernel's host name., type: str, sample: node1}
    fqdn: {description: The full name that /etc/hosts gives; no resolver is asked., type: str}
    time: {description: Seconds since the epoch by the node's clock., type: float}
    kernel: {description: The kernel's release., type: str, sample: 6.1.0-18-amd64}
    machine: {description: The architecture., type: str, sample: x86_64}
    distribution: {description: "id, version_id, name, family (Debian, RedHat, Suse or Linux) and major.", type: dict}
    glibc: {description: Version of the GNU C library., type: str, sample: '2.36'}
    python: {description: "version, executable, has_packaging.", type: dict}
    platform:
      description: Nodes of equal id run each other's binaries.
      type: str
      sample: debian-12-x86_64-glibc2.36-py3.11
    cuda:
      description: >-
        major, driver_version, toolkit_version, libcuda, and first_branches: the first driver branch that runs each CUDA
        major.
      type: dict
    prefix:
      description: >-
        path, problem (why root must not install there), read_only, others (further folders with artifacts), and trees
        (names of the folders of artifacts; null where they could not be read).
      type: dict
    cores: {description: Physical cores this process may use., type: int}
    threads: {description: Hardware threads this process may use., type: int}
    memory_bytes: {description: Memory of the machine., type: int}
    disk: {description: "path, free_bytes and total_bytes of O(prefix) and /var/tmp.", type: list}
    shm_bytes: {description: Size of /dev/shm., type: int}
    scratch:
      description: >-
        The session's folder for temporary files, /tmp and /dev/shm: path, exists, free_bytes, total_bytes, free_inodes,
        read_only, writable and blocked.
      type: list
    cpu_quota: {description: "group, cores (null is unlimited), throttled_periods and throttled_s.", type: dict}
    interfaces: {description: "name, kind, mac, mtu, up, carrier, speed_mbps, driver, master, addresses.", type: list}
    routes: {description: "family, destination, gateway, interface, metric.", type: list}
    switch_ports:
      description: >-
        The switch that an interface or an InfiniBand port hangs on, where lldpd, systemd-networkd, lldpad or the subnet
        tells: interface, above (interfaces that lie on it), switch, id, port and source.
      type: list
    gpus:
      description: >-
        bus, name, uuid, driver, display, unusable and problem (why jobs cannot use it, as a word and as a clause),
        instances (names of its MIG instances), nvlink (it joins the GPU to others), and nvlink_down (all its links are
        down, or it lacks a bridge, or nvidia-smi does not tell).
      type: list
    limits: {description: "memlock and nofile with soft and hard; null is unlimited.", type: dict}
    environment: {description: "PATH and LD_LIBRARY_PATH of a non-interactive session, where set.", type: dict}
    environment_source: {description: "ssh session, process or after sudo.", type: str}
    user: {description: "name, uid, home and sudo of the login user; sudo is null when it was not asked.", type: dict}
    job_user:
      description: >-
        name, uid (-1 if missing), home, shell, has_home, home_answers (its file system does not hang) and sudo of the
        jobs' account.
      type: dict
    ssh: {description: "host_keys (type and key, ed25519 first) and port of the ssh daemon.", type: dict}
    known_hosts: {description: "has_mesh, has_authority, and own_names: the names of the node's own lines.", type: dict}
    parameters: {description: "Settings of Open MPI, UCX and NCCL by others: name, value, source.", type: list}
    parameter_files: {description: "Files of the role fabric: path, exists, own (settings in its block).", type: list}
    launch: {description: "name, path, real, own, own_real, own_state of mpirun, prterun, prted, orted.", type: list}
    tools: {description: "Which of gcc, make, zstd, libzstd, nvcc, ucx, gdrcopy and ssh are there.", type: dict}
    artifacts: {description: "name, link, target, version, key, linked, ok, problem, inputs.", type: list}
    existing_python:
      description: >-
        path, folder, problem and cure of the environment asked for (null where none is). Where it can be used, also
        kind, interpreter, real, version, machine, base, headers, shares, folders, packages, cuda and nccl.
      type: dict
    existing_openmpi:
      description: >-
        path, problem and cure of the Open MPI asked for (null where none is). Where it can be used, also version,
        machine, library, folders, options, components, cuda, fortran and files.
      type: dict
    driverless_cards: {description: "PCI addresses of RDMA cards that no driver has taken.", type: list}
    vendor_openmpis: {description: "path and version of each Open MPI where vendors put theirs.", type: list}
    libraries:
      description: >-
        soname, path (empty where it is missing), real (links resolved), version (empty where it is unknown), via
        (LD_LIBRARY_PATH, /etc/ld.so.cache or default folders) and others (files that the loader does not take, and
        those of C(also) with V(asked for) in via), each with path, real, version and via.
      type: list
    watch: {description: The present states of the paths asked for., type: list}
    problems: {description: A sentence for each section without an answer., type: list}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import record


def main() -> None:
    """Run the probe as a module."""
    module = AnsibleModule(
        argument_spec={
            "watch": {"type": "list", "elements": "dict", "default": []},
            "artifacts": {"type": "list", "elements": "dict"},
            "libraries": {"type": "list", "elements": "dict", "default": []},
            "prefix": {"type": "path", "default": "/usr/local"},
            "existing_python": {"type": "str"},
            "existing_openmpi": {"type": "str"},
            "check_sudo": {"type": "bool", "default": False},
            "job_user": {"type": "str"},
        },
        supports_check_mode=True,
    )
    for key, needed in (("watch", "path"), ("artifacts", "link")):
        for entry in module.params[key] or []:
            if not str(entry.get(needed, "")).startswith("/"):
                module.fail_json(msg=f"An entry of '{key}' has no absolute '{needed}': {entry}.")
    for entry in module.params["libraries"]:
        name = str(entry.get("soname", ""))
        if ".so" not in name or "/" in name:
            module.fail_json(msg=f"An entry of 'libraries' has no 'soname' such as libnccl.so.2: {entry}.")
    module.exit_json(changed=False, changes=[], watch=[], node=record.collect({**module.params, "nvlink": True}))


if __name__ == "__main__":
    main()
