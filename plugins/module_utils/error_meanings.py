# SPDX-License-Identifier: Apache-2.0
"""What messages of other programs mean: one table of them, and the engine that reads it.

A row says what a program writes, what that means and what to do. Of the rows of a program, the first one that fits
counts, so a message of the cause stands before those of its consequences. The controller alone uses this module: the
collection's plugins and clusterctl share it. A new row needs an example in ``tests/data/error_meanings.json``, or a
captured log that the test of this module reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from .disk_files import REFUSALS

_MOST_TEXT = 1 << 16  # characters that are searched
_MOST_LINE = 4096  # characters of a line; some patterns take long on long lines

_PROVISION = "run 'clusterctl provision'"
_ON_ALL_NODES = "put your code at the same path on all nodes (docs/how-to/work-on-a-node.md)"
_OF_CLUSTER = f"; for a program of the cluster {_PROVISION}"
_LOOK = "look at the node's kernel log and at what ended its daemon"
_OTHER_ACCOUNT = (
    "name another account with -A or a partition with -p; 'sacctmgr show associations' lists what is allowed"
)
_NO_CONTROLLER = (
    r"Unable to contact slurm controller|Unable to establish (?:control|config)"
    r"|controller (?:in standby|not responding)"
)
_NODES_OF_SINFO = "see 'sinfo --Node', and ask for nodes that it has"
_NAME_PARTITION = "name one of 'sinfo' with -p"
_SHOW_JOB = "see 'scontrol show job {job}'"
_SETUP = "give another --kubeconfig or --context"
# A pattern with several gaps of any length takes long on a text that repeats its words.
_GAP = r".{0,800}?"
_LOCAL_HOST = rf"{_GAP}Local host:\s*(?P<node>\S+)"
_LIMITS = "in /etc/security/limits.d"
_OPEN_PORTS = (
    "see that no firewall on the two or between them closes the ports that jobs listen on, and that both have "
    "addresses in one network ('clusterctl doctor' tries them)"
)
_COMPLETION = r"NCCL WARN NET/\w+ ?: Got completion from peer (?P<node>[^\s<]+)<\d+> with status=(?P<status>[^\s,]+)"
_PEER = "look first for a rank that died, then at the network cards and links of the nodes ('clusterctl doctor')"


class Row(NamedTuple):
    """A message.

    Attributes:
        program: who says it, and to whom: ``mpirun`` to the user, ``ssh`` to clusterctl, ``Ansible`` at a first look.
        pattern: of a line, without regard to case; one that begins with ``(?s)`` fits across lines.
        kind: of the failure, in the words of the module that asks: a kind of probe failure, a check of the preflight,
            or what a cause of mpirun is about. ``lost`` often is the consequence of another message, and ``peer`` of
            the end of another rank: who says it only saw it.
        cause: what it means. It may name groups of the pattern and values of the module that asks.
        cure: what to do, with the same names.
        whom: where the node stands that has the fault: in the group ``node``; in the tag of the line (``speaker``);
            the node whose daemon mpirun lost (``daemon``); the way from the launch node to ``node`` (``way``); or the
            way (``one_way``) or the two (``pair``) from the group ``near``, else from the tag, to ``node``. Empty where
            it is the one that was asked, or where no words tell it. ``{speaker}`` names the tag.
        source: where the words are from.
    """

    program: str
    pattern: str
    kind: str
    cause: str
    cure: str
    whom: str
    source: str


class Message(NamedTuple):
    """A known message that was found: its row, what the groups of the pattern hold, and its line."""

    row: Row
    words: dict[str, str]
    line: str

    def meaning(self, **values: object) -> tuple[str, str]:
        """Return cause and cure; ``values`` are those that the row may name beside the groups."""
        known = {**self.words, **values}
        return self.row.cause.format(**known), self.row.cure.format(**known)


def find(program: str, text: str) -> Message | None:
    """Return the first row of a program that fits a text, which may be of any length."""
    if len(text) > _MOST_TEXT:
        text = f"{text[: _MOST_TEXT // 2]}\n{text[-_MOST_TEXT // 2 :]}"
    if len(text) > _MOST_LINE:
        text = "\n".join(line[:_MOST_LINE] for line in text.split("\n"))
    for row, pattern in _rows(program):
        found = pattern.search(text)
        if found is not None:
            words = {name: " ".join((group or "").split()) for name, group in found.groupdict().items()}
            start, end = text.rfind("\n", 0, found.start()) + 1, text.find("\n", found.end())
            return Message(row, words, text[start : len(text) if end < 0 else end].strip())
    return None


@lru_cache(maxsize=None)
def _rows(program: str) -> tuple[tuple[Row, re.Pattern[str]], ...]:
    return tuple((row, re.compile(row.pattern, re.IGNORECASE)) for row in ROWS if row.program == program)


def _said(program: str, source: str, *rows: tuple[str, ...]) -> Iterator[Row]:
    """Yield rows of one program and one source: kind, pattern, cause, cure, and whom the groups name, if anybody."""
    for kind, pattern, cause, cure, *whom in rows:
        yield Row(program, pattern, kind, cause, cure, "".join(whom), source)


# fmt: off
ROWS: tuple[Row, ...] = (
    # --- what mpirun's ssh, its daemons and its ranks say: Open MPI 4.1 (ORTE) and 5.0 (PRRTE) ---
    *_said("mpirun", "captured with OpenSSH 9.2 (tests/data/launcher, tests/data/error_meanings.json)",
        ("ssh", r"ssh: connect to host (?P<node>\S+) port (?P<port>\d+): (?P<why>Connection refused)",
         "its sshd refuses connections at port {port}",
         "start sshd there, or look for a firewall that rejects the port", "node"),
        ("ssh", r"ssh: connect to host (?P<node>\S+) port (?P<port>\d+): (?P<why>[^\r\n]+)",
         "ssh does not get through to port {port} ({why})",
         "look at the network and at firewalls between the two", "way"),
        ("ssh", r"ssh: Could not resolve hostname (?P<node>[^\s:]+): (?P<why>[^\r\n]+)",
         "the launch node does not know the name ({why})",
         f"{_PROVISION} (role hosts)", "way"),
        ("ssh", r"No \S+ host key is known for (?P<node>\S+)",
         "the launch node knows no host key of the other",
         f"{_PROVISION} (role ssh_mesh)", "way"),
        ("ssh", r"Host key for (?P<node>\S+) has changed and you have requested strict checking",
         "the host key has changed since the launch node learned it",
         f"{_PROVISION} if the node was installed anew; else find out who answers at its address", "way"),
        ("ssh", r"^\S+@(?P<node>[^\s@]+): Permission denied \((?P<why>[^)]*)\)",
         "it refuses the login of mpirun ({why})",
         f"{_PROVISION} (role ssh_mesh)", "node"),
        ("ssh", (r"(?:Connection (?:closed|reset) by|banner exchange: Connection to) (?:remote host )?"
                 r"(?P<node>[\w.:-]+) port \d+"),
         "its sshd ends the connection before the login",
         "look at the log of sshd there, and at MaxStartups in sshd_config", "node"),
        ("ssh", r"(?P<why>(?:exec|shell) request failed on channel \d+|This account is currently not available)",
         "its sshd starts no program for the user ({why})",
         "look at the user's shell and limits there, and at the log of sshd", "daemon")),
    *_said("mpirun", "the shell and ld.so of Debian 12 and glibc's strerror (tests/data/launcher)",
        ("launch", r"(?<!\S)(?P<path>/\S*/(?P<name>prted|orted|mpirun|prterun)): Permission denied",
         "{path} is not executable", f"{_PROVISION}, or 'chmod 755 {{path}}'", "daemon"),
        ("launch", r"(?<!\S)(?P<path>/\S*/(?P<name>prted|orted|mpirun|prterun)): No such file or directory",
         "{path} is missing", _PROVISION, "daemon"),
        ("launch", (r"(?<!\S)(?P<path>/\S*/(?P<name>prted|orted|mpirun|prterun)): (?:cannot execute[\w ]*: ?)?"
                    r"(?P<why>Exec format error)"),
         "{path} is a program of another kind of machine", _PROVISION, "daemon"),
        ("launch", r"sudo: (?P<name>mpi\w+|prte\w*|orte\w*|ompi_info|horovodrun): command not found",
         "sudo does not find {name}, because secure_path of sudoers has system folders alone",
         "run {name} without sudo as the account that runs jobs, or by its full path", "speaker"),
        ("launch", r"(?P<name>prted|orted|prterun): (?:command )?not found",
         "{name} is missing in PATH", _PROVISION, "daemon"),
        ("launch", (r"(?<!\S)(?P<name>\S+): error while loading shared libraries: (?P<library>[^\s:]+): "
                    r"(?P<why>[^\r\n]+)"),
         "{name} does not find {library} ({why})", _PROVISION, "daemon"),
        # The words of tcsh and fish for a command of sh, and those of sh for one of csh.
        ("launch", (r"^(?P<why>(?:(?:PRTE_PREFIX|PATH|LD_LIBRARY_PATH)=\S*|export): Command not found|"
                    r"Bad : modifier in \$|fish: Unsupported use of '='|fish: command substitutions not allowed|"
                    r"\S+: -c: line \d+: syntax error near unexpected token `set')"),
         "its login shell does not understand the command that mpirun sends ({why})",
         "give the user one shell on all nodes, sh or bash ('chsh -s /bin/bash'); 'clusterctl doctor' names it",
         "daemon"),
        ("", r"(?:fork|exec)\w*: (?:retry: )?(?P<why>Resource temporarily unavailable|Cannot allocate memory)",
         "no further process can be started ({why})",
         f"raise nproc {_LIMITS}, or end what fills the memory", "daemon")),
    *_said("mpirun", "help texts and sources of Open MPI 4.1 and 5.0, PRRTE and PMIx (tests/data/launcher)",
        ("", (r"(?s)(?:could not access\s+or|lacked\s+permissions\s+to)\s+execute\s+an\s+executable:"
              rf"{_GAP}Executable:\s*(?P<path>\S+){_GAP}Node:\s*(?P<node>\S+)"),
         "{path} cannot be executed, or is missing there", f"{_ON_ALL_NODES}{_OF_CLUSTER}", "node"),
        ("", (r"(?s)(?:find|found|locate)[^\n]{0,80} executable.{0,600}?Node:\s*(?P<node>\S+)\s+"
              r"Executable:\s*(?P<path>\S+)"),
         "{path} is missing", f"{_ON_ALL_NODES}{_OF_CLUSTER}", "node"),
        ("", (r"(?s)could\s+not\s+(?:change\s+to|find|access)\s+the\s+specified\s+working\s+directory:\s*"
              r"Working directory:\s*(?P<path>\S+)\s+Node:\s*(?P<node>\S+)"),
         "the working directory {path} is missing or closed to the account", _ON_ALL_NODES, "node"),
        ("", r"(?s)system limit exceeded on number of files that can be open\s+Node:\s*(?P<node>\S+)",
         "the working directory is missing, or its limit of open files is reached (PRRTE 3.0 says the same of both)",
         f"{_ON_ALL_NODES}, or raise nofile {_LIMITS}", "node"),
        # ORTE's own folder has the host's name in it.
        ("files", (rf"(?s)create the desired directory:{_GAP}Directory:\s*"
                   r"(?P<path>/[^\s]{1,255}?/ompi\.(?P<node>[^\s/]{1,253})\.\d+(?:/\S*)?)\s"
                   rf"{_GAP}Error:\s*(?P<why>[^\r\n]+)"),
         "{path} cannot be made ({why})", "make its folder writable, and free space there", "node"),
        ("files", (rf"(?s)create the desired directory:{_GAP}Directory:\s*(?P<path>\S+)\s{_GAP}"
                   r"Error:\s*(?P<why>[^\r\n]+)"),
         "{path} cannot be made ({why})", "make its folder writable, and free space there", "daemon"),
        ("temporary files", r"ORTE_ERROR_LOG: \w+ in file util/session_dir\.c",
         "its daemon cannot make its folder in /tmp", "make /tmp writable, and free space there", "speaker"),
        ("temporary files", r"PMIX ERROR: (?:PMIX_ERR_)?OUT[-_]OF[-_]RESOURCE\S* in file dstore_\w+\.c",
         "PMIx has no room for its files in /tmp", "free space in /tmp", "speaker"),
        ("shared memory", rf"(?s)not enough space for (?P<path>/\S+)\s{_GAP}shared-memory backing{_LOCAL_HOST}",
         "no space is left for shared memory ({path})",
         "remove files that earlier jobs left in /dev/shm, or mount it larger", "node"),
        ("shared memory", (rf"(?s)system call failed during shared memory initialization{_LOCAL_HOST}"
                           r"\s+System call:\s*(?P<call>[^\r\n]{1,99}?)\s+Error:\s*(?P<why>[^\r\n]+)"),
         "shared memory cannot be set up ({call}: {why})", "make /dev/shm writable, and free space there", "node"),
        ("files", r"(?<![^\s:])(?P<what>[^\s:]+): (?P<why>No space left on device|Read-only file system)",
         "{what}: {why}", "free space there, and see whether the file system is read-only", "speaker"),
        ("open files", rf"(?s)accept\(\d\) system call failed{_LOCAL_HOST}{_GAP}Errno:\s*(?P<why>[^\r\n]+)",
         "its daemon can accept no further connections ({why})", f"raise nofile {_LIMITS}", "node"),
        ("open files", (r"system limit on number of (?P<what>[\w ]+?)(?: a process can open)? was reached"
                        r"|(?P<why>Too many open files)|ORTE_ERROR_LOG: Out of resource in file oob_tcp_\w+\.c"),
         "its limit of open files is reached", f"raise nofile {_LIMITS}", "speaker"),
        ("memlock", rf"(?s)(?:allocate|register) (?:some |enough )?(?:locked |registered )?memory{_LOCAL_HOST}",
         "the limit of locked memory is too low", f"set memlock to unlimited {_LIMITS}", "node"),
        ("lost", (rf"(?s)lost communication with a remote daemon{_GAP}Remote daemon\s*:\s*\[\S+\]\s+on node\s+"
                  r"(?P<node>\S+)"),
         "mpirun lost the daemon on this node", _LOOK, "node"),
        ("lost", r"(?s)daemon has unexpectedly failed after launch and before.*?on node:?\s+(?P<node>\S+)",
         "its daemon ended before it was connected to mpirun", _LOOK, "node"),
        ("lost", r"Connection to (?P<node>\S+) closed by remote host",
         "its connection to the launch node was closed", _LOOK, "node"),
        ("lost", (r"unable to reliably start one or more daemons"
                  r"|daemon has unexpectedly failed after launch and before"),
         "a daemon did not start", "look at the nodes one by one: 'clusterctl doctor'", "daemon")),

    # --- what ranks, daemons, UCX, NCCL and kubectl wrote in public threads ---
    *_said("mpirun", "help-plm-base.txt of PRRTE 3.0",
        # The shell adds 128 to the number of the signal.
        ("lost", (r"(?s)daemon failed to report back after being spawned.{0,400}?Remote host:\s*(?P<node>\S+)\s+"
                  r"Daemon exit status:\s*(?P<status>137|143|129|130|134|135|139)\b"),
         "a signal ended mpirun's daemon there (exit status {status})", _LOOK, "node")),
    *_said("mpirun", "open-mpi/ompi issues 12103 and 13113 (help-oob-tcp.txt)",
        ("ports", (r"(?s)unable to complete a TCP connection.{0,80}?Local host:\s*(?P<near>\S+)\s+"
                   r"Remote host:\s*(?P<node>\S+)"),
         "no TCP connection to {node} comes up", _OPEN_PORTS, "one_way")),
    *_said("mpirun", "open-mpi/ompi issues 4963, 2168 and 10734 (help-mpi-btl-tcp.txt, btl_tcp_endpoint.c)",
        # Nobody listens any more where a rank has died.
        ("peer", (r"(?s)failed to TCP connect to a peer.{0,200}?Local host:\s*(?P<near>\S+).{0,80}?"
                  r"connect\(\) to (?P<node>\S+):\d+ failed\s+Error:\s*(?P<why>Connection refused)"),
         "a rank at {node} takes no connections ({why})", _PEER, "pair"),
        ("peer", (r"btl_tcp_endpoint\.c\S*\] connect\(\) to (?P<node>[\d.]+|\S+)(?::\d+)? failed: "
                  r"(?P<why>Connection refused)"),
         "a rank at {node} takes no connections ({why})", _PEER, "pair"),
        ("ports", (r"(?s)failed to TCP connect to a peer.{0,200}?Local host:\s*(?P<near>\S+).{0,80}?"
                   r"connect\(\) to (?P<node>\S+):\d+ failed\s+Error:\s*(?P<why>[^\r\n]+)"),
         "no TCP connection to {node} comes up ({why})", _OPEN_PORTS, "one_way"),
        ("ports", (r"btl_tcp_endpoint\.c\S*\] connect\(\) to (?P<node>[\d.]+|\S+)(?::\d+)? failed: "
                   r"(?P<why>[^\r\n]+)"),
         "no TCP connection to {node} comes up ({why})", _OPEN_PORTS, "one_way")),
    *_said("mpirun", "open-mpi/ompi issues 12918 and 12232 (help-mpi-btl-tcp.txt)",
        ("peer", (r"(?s)inbound MPI TCP connection request.{0,700}?Peer hostname:\s*(?P<node>\S+).{0,80}?"
                  r"Source IP of socket:\s*(?P<address>\S+)"),
         "its ranks connect from {address}, an address that they had not announced",
         "set btl_tcp_if_include to the cluster's network, and see by 'ip route get' which address the node takes",
         "node")),
    *_said("mpirun", "open-mpi/ompi issues 1501 and 10955 (help-mca-bml-r2.txt)",
        ("network", (r"(?s)pair of MPI processes are unable to reach each other.{0,500}?is on host:\s*(?P<near>\S+)"
                     r".{0,80}?is on host:\s*(?P<node>\S+)\s+BTLs attempted:\s*(?P<tried>[^\r\n]{1,99})"),
         "Open MPI knows no way between their ranks (it tried {tried})",
         "allow tcp in OMPI_MCA_btl and in openmpi-mca-params.conf, and see that both have addresses in one network",
         "pair")),
    *_said("mpirun", "open-mpi/ompi issues 81, 4131, 9218 and 6618; openucx/ucx issue 6705",
        ("peer", (r"(?:btl_tcp\w*\.c\S*\].{0,80}?(?:readv|recv\(\d+\)) failed|tcp_ep .{0,80}?recv\(\d+\) failed): "
                  r"(?P<why>[^\r\n]+)"),
         "a connection of {speaker} to another node broke off ({why})", _PEER),
        ("peer", r"btl_tcp\w*\.c\S*\] remote peer (?P<why>unexpectedly closed connection)",
         "another node ended a connection of {speaker} ({why})", _PEER)),
    *_said("mpirun", "openucx/ucx issues 5199, 9590 and 2973",
        ("peer", (r"(?:Error on (?P<port>\S+) .{0,80}?)?(?P<what>Transport|RNR) retry count exceeded"
                  r"(?: on (?P<device>\S+))?"),
         "packets of {speaker} over its RDMA port {device}{port} got no answer", _PEER)),
    *_said("mpirun", "NVIDIA/nccl issues 1405 and 1814, src/transport/net_ib",
        ("peer", rf"{_COMPLETION}.{{0,300}}?\bhca (?P<device>\S+)",
         "NCCL's RDMA operations with {node} failed (status {status}, by {device} of {speaker})", _PEER, "pair"),
        ("peer", _COMPLETION, "NCCL's RDMA operations with {node} failed (status {status})", _PEER, "pair")),
    *_said("mpirun", "openucx/ucx issues 8229 and 8746; open-mpi/ompi issue 12345; ofiwg/libfabric issue 7324",
        ("memlock", (r"(?P<device>\w+): ibv_create_cq\([^)]{0,40}\) failed: Cannot allocate memory"
                     r"|ibv_create_cq\([^)]{0,40}\) failed: Cannot allocate memory"
                     r"|Unable to (?:alloc send buffer MR|create \w+ CQ of size \d+) on \w+: Cannot allocate memory"),
         "the limit of locked memory is too low", f"set memlock to unlimited {_LIMITS}", "speaker")),
    *_said("mpirun", "open-mpi/ompi issue 6618; kubectl exec, which mpi-operator launches by",
        ("", r"command terminated with exit code (?P<code>137)",
         "its daemon was killed (exit code {code}), mostly for lack of memory",
         "see 'kubectl describe pod' and the node's kernel log for an OOM kill, and give the pod more memory",
         "daemon")),
    *_said("mpirun", "open-mpi/ompi issues 10641 and 7719 (help-prte-rmaps-base.txt, help-orte-rmaps-base.txt)",
        ("", r"(?s)not enough slots available in the\s+system to satisfy the (?P<count>\d+)\s*slots",
         "{count} ranks are more than the nodes have slots", "ask for fewer ranks, or raise slots= of the hosts")),
    *_said("mpirun", "horovod/horovod issues 110 and 467; openpmix/prrte issue 1493",
        ("ssh", r"^Permission denied(?: \((?P<why>[\w,-]+)\)|, please try again)",
         "it refuses the login of mpirun", f"{_PROVISION} (role ssh_mesh)", "daemon"),
        ("ssh", r"^Host key verification failed",
         "the launch node does not know its host key", f"{_PROVISION} (role ssh_mesh)", "daemon"),
        ("ssh", r"^(?:ssh|kex)_exchange_identification: (?P<why>[^\r\n]+)",
         "its sshd ends the connection before the login ({why})",
         "look at the log of sshd there, and at MaxStartups in sshd_config", "daemon")),
    *_said("mpirun", "Python, Python/pylifecycle.c and Python/initconfig.c",
        ("", r"Fatal Python error: (?P<what>\w*init\w*(?: \w+)?): (?P<why>[^\r\n]{1,200})",
         "Python does not start ({why})", "take PYTHONHOME and PYTHONPATH out of the environment there", "daemon")),

    # --- what ssh says to clusterctl; kinds of probe failures. Of {bastion}, where a way leads through one ---
    *_said("bastion", "captured with OpenSSH 9.2 (tests/data/node_probe/bastion-failures.json)",
        ("unreachable", r"administratively prohibited",
         "goes through {bastion}, which forwards no connection", "set 'AllowTcpForwarding yes' in its sshd_config"),
        ("unreachable", r"open failed",
         "does not answer {bastion}", "see that it is up and that ansible_host and ansible_port are right from there"),
        ("host_key", r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed|No matching host key",
         "goes through {bastion}, whose host key is unknown or has changed", "verify it, then put it in known_hosts"),
        ("refused", r"Permission denied|Too many authentication failures|no mutual signature|account is locked",
         "goes through {bastion}, which refuses the login",
         "add your key there, or name user and key in ~/.ssh/config"),
        ("unreachable", r"connect to host|Could not resolve hostname",
         "goes through {bastion}, which does not answer",
         "see that it is up and that ProxyJump or ProxyCommand is right")),
    # What sshd and PAM say of the account stands before the end of the connection that follows.
    *_said("ssh", "Slurm's pam_slurm and pam_slurm_adopt; vsoch/forward issue 29, fgci-org/fgci-ansible issue 123",
        ("refused", r"Access denied\b.{0,80}?no active jobs on this node",
         "lets in only users that have a Slurm job there, and {login} has none",
         "take '--via slurm', or start inside an allocation of these nodes")),
    *_said("ssh", "Linux-PAM 1.5 (pam_nologin, pam_unix, pam_limits) and OpenSSH 9.2 (auth-pam.c, session.c)",
        ("refused", r"System is (?:booting up|going down)|pam_nologin",
         "lets in nobody but root while it starts or stops", "wait, or remove /run/nologin and /etc/nologin there"),
        ("refused", r"your account has expired",
         "has an expired account of {login}", "renew it there ('chage --expiredate')"),
        ("refused", r"Password change required|required to change your password|password has expired",
         "wants {login} to change the password first", "change it there once, or renew it ('chage --lastday')"),
        ("refused", r"too many logins for",
         "has as many logins of {login} as it allows",
         f"raise maxlogins {_LIMITS} there, or end logins that are left over"),
        ("error", r"(?:exec|shell) request failed on channel \d+",
         "starts no program for {login}", "look at the user's shell and limits there, and at the log of sshd")),
    *_said("ssh", "captured with OpenSSH 9.2 (tests/data/node_probe/ssh-failures.json)",
        ("host_key", r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed|No matching host key",
         "shows a host key that this machine does not know or that has changed",
         "verify it with the node's owner, then put it in known_hosts"),
        ("refused", r"Permission denied|Too many authentication failures|no mutual signature|account is locked",
         "refuses the login of {login}", "{let_in}"),
        ("unreachable", r"Could not resolve hostname",
         "has a name that this machine cannot resolve", "set ansible_host to its address, or correct the name"),
        ("unreachable", r"Connection timed out|Operation timed out|No route to host|Network is unreachable",
         "does not answer", "see that it is up and that ansible_host and ansible_port are right"),
        ("unreachable", r"Connection refused", "refuses connections at this port",
         "start sshd there, and see that ansible_port is right and that no firewall rejects it"),
        ("unreachable", r"Connection (?:closed|reset)|(?:kex|ssh)_exchange_identification|banner exchange",
         "ends the connection before the login",
         "look at /etc/nologin and the log of sshd there, at MaxStartups in sshd_config, and at bans, as by fail2ban")),
    # What the shell and the loader of a node say when the program of clusterctl does not run there.
    *_said("session", "bash 5.2, ld.so of glibc 2.36 and Python 3.11 of Debian 12 (tests/data/error_meanings.json)",
        ("refused", r"This account is (?:currently )?not available",
         "gives {login} no shell", "set the user's login shell there ('usermod -s')"),
        ("no_python", r"Fatal Python error: (?P<what>\w*init\w*(?: \w+)?): (?P<why>[^\r\n]{1,200})",
         "cannot start {python} ({why})", "take PYTHONHOME and PYTHONPATH out of the user's environment there"),
        ("no_python", (r"(?<!\S)(?P<name>\S+): error while loading shared libraries: (?P<library>[^\s:]+): "
                       r"(?P<why>[^\r\n]+)"),
         "cannot start {name}, which does not find {library} ({why})",
         "install that library, or take LD_LIBRARY_PATH and LD_PRELOAD out of the user's environment there"),
        ("error", (r"(?:fork|exec)\w*: (?:retry: )?(?P<why>Resource temporarily unavailable|Cannot allocate memory)"
                   r"|(?P<what>can't start new thread)"),
         "can start no further process for {login}", f"raise nproc {_LIMITS} there, or end what fills the memory"),
        # Our program comes by stdin; its text without a begin runs into the zip behind it.
        ("error", r"Error: (?:source code string cannot contain null bytes|\(unicode error\)|Non-UTF-8 code)",
         "gets our program without its begin, which a start-up file of the shell of {login} has read",
         "look for 'read', and for ssh without -n, in ~/.bashrc, /etc/bash.bashrc and /etc/profile.d there"),
        # The look at a node is of Python 3.9; openSUSE Leap 15 has 3.6.
        ("no_python", r"\nSyntaxError: ", "has a {python} that is older than Python 3.9",
         ("install a newer one of the distribution there, and set ansible_python_interpreter to it, such as "
          "/usr/bin/python3.11")),
        ("error", r"Too many open files", "has no open files left for {login}", f"raise nofile {_LIMITS} there")),

    # --- Ansible's words for a node that could not be looked at; kinds are checks of the preflight ---
    *_said("Ansible", "ansible-core 2.19, OpenSSH 9.2 and sudo 1.9 (tests/data/error_meanings.json)",
        # How ssh calls the other end of a way through a bastion (ProxyJump, ProxyCommand), when that way ends.
        ("unreachable", r"UNKNOWN port 65535",
         "it is not reached through its bastion",
         "log in by hand with the same ssh options to see its words, which a shared connection hides"),
        ("unknown_host_key", r"Host key verification failed|Host key for \S+ has changed",
         "its ssh host key is not the one that this machine knows",
         ("compare 'ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub' on its console, then put the key into "
          "known_hosts")),
        ("refused", r"Permission denied \(|Too many authentication failures|Invalid/incorrect password",
         "it refuses the login",
         ("check ansible_user and ansible_ssh_private_key_file, and that the public key is in the user's "
          "authorized_keys")),
        ("unreachable", r"Could not resolve hostname",
         "its name cannot be resolved on this machine", "set ansible_host to its address, or correct the name"),
        ("sudo", (r"(?:Missing|Incorrect) \S+ password|password is required|not in the sudoers file|may not run sudo"
                  r"|Sorry, user"),
         "the login user may not become root without a password",
         "allow it passwordless sudo, or give the password with -K"),
        ("sudo", r"sudo: unknown user|sudo: .*no such user",
         "the user to become does not exist", "correct ansible_become_user, or remove it to become root"),
        ("sudo", r"sudo: (?:command )?not found|No such file or directory: b?'?sudo|sudo: No such file",
         "sudo is not installed", "install sudo, or log in as root with ansible_user=root and ansible_become=false"),
        ("python", r"Fatal Python error: \w*init",
         "its Python does not start",
         "take PYTHONHOME and PYTHONPATH out of the user's environment ('clusterctl doctor' names the place)"),
        ("python", (r"python[0-9.]*: (?:command )?not found|python[0-9.]*: No such file"
                    r"|module interpreter .* was not found"),
         "Python was not found at the interpreter that Ansible uses",
         "install python3, or set ansible_python_interpreter to where it is"),
        ("unreachable", r"Connection refused",
         "it refuses connections at that port", "start sshd there, and see that ansible_port is right"),
        ("unreachable", (r"No route to host|unreachable|timed? ?out|Connection (?:closed|reset)"
                         r"|Failed to connect"),
         "it does not answer", "check that it is up and that ansible_host and ansible_port are right"),
        ("disk", r"No space left on device", "its disk is full", "free some space on / and /tmp"),
        ("disk", r"Read-only file system",
         "its file system is read-only", "make it writable; 'dmesg' on the host tells of disk errors"),
        ("disk", r"No usable temporary directory|Failed to create temporary directory",
         "a temporary folder cannot be made, because its disk is full or read-only",
         "make room on / and /tmp, or make them writable; 'df' and 'dmesg' on the host tell which"),
        ("unreachable", r"Data could not be sent to remote host|Broken pipe",
         "its connection ended", "check that it is up, and that the network between it and this machine works")),
    # A module that a disk kept from starting; one that started names the path itself.
    *_said("module", "strerror of glibc, tempfile of Python 3.11 and the shell plugin of ansible-core 2.19",
        *(("disk", re.escape(words), *meaning) for words, meaning in REFUSALS.items()),
        ("disk", r"No usable temporary directory|Failed to create temporary directory",
         "a temporary folder cannot be made, because the disk is full or read-only",
         "make room, or make it writable, and run again ('df' and 'dmesg' tell which)")),
    *_said("package", "captured with ansible-core 2.19 and apt of Debian 12 (tests/data/error_meanings.json)",
        ("", r"Could not find a matching action for the \"(?P<manager>\S+)\" package manager",
         "Ansible on the controller has no module for {manager}",
         "run 'ansible-galaxy collection install community.general' there, then run again"),
        # apt's words for a list that is a page of HTML, and for a package of another size than its list says.
        ("", (r"Failed to fetch (?P<url>\S+)\s+"
              r"(?P<why>Clearsigned file isn't valid|File has unexpected size|Hash Sum mismatch)"),
         ("the package mirror {mirror} sent another file in place of {file}, such as a login or an error page in HTML "
          "({why})"),
         "correct the mirror in /etc/apt/sources.list* or apt's proxy, then run again")),

    # --- what srun and slurmstepd say of a step; kinds of probe failures, about {node} of job {job} ---
    *_said("srun", "src/common/slurm_errno.c and slurmstepd of Slurm 22.05 to 24.05 (tests/data/slurm)",
        # The end of a whole job comes first: other words of the same output are its consequences.
        ("unreachable", r"DUE TO TIME LIMIT|exceeded its time limit",
         "the time limit ended Slurm job {job}", "give a longer --time"),
        ("unreachable", r"DUE TO PREEMPTION", "a job of higher priority took the nodes of Slurm job {job}",
         "choose another partition with -p, or try again later"),
        ("unreachable", r"DUE TO NODE FAILURE|Node failure on", "Slurm counts a node of job {job} as failed",
         "see 'sinfo -R', and look at slurmd on {node}"),
        ("error", _NO_CONTROLLER, "Slurm's controller does not answer", "see 'scontrol ping', and start slurmctld"),
        ("unreachable", (r"Invalid job id|Expired or invalid job|job \d+ has expired|already completing or completed"
                         r"|Job is not running|has already finished|no longer pending"),
         "Slurm job {job} has ended", _SHOW_JOB),
        ("unreachable", r"CANCELLED AT|Force Terminated|allocation \d+ has been revoked",
         "Slurm job {job} or its step was cancelled", _SHOW_JOB),
        ("timeout", r"Requested nodes are busy|step creation temporarily disabled",
         "other steps of job {job} hold the node", "see 'squeue --steps --jobs={job}', and end them with scancel"),
        ("error", (r"(?:Couldn't find|cannot find|Unable to load).*(?:plugin|mpi/)|Invalid MPI (?:type|plugin)"
                   r"|MPI: (?:Unable|Cannot)"),
         "this Slurm lacks the MPI plugin that srun was asked for",
         "see 'srun --mpi=list', and install Slurm's PMIx plugin"),
        ("unreachable", r"node configuration is not available",
         "Slurm starts nothing on {node}, which is down or not a node of job {job}",
         "see 'sinfo -R', and look at slurmd on {node}"),
        ("error", r"Invalid node name|nodes? not in|Invalid hostname",
         "{node} is not a node of Slurm job {job}", f"{_SHOW_JOB} for its nodes"),
        ("error", r"More processors requested|Memory required by task|Invalid generic resource|Task count",
         "Slurm does not start a step beside the others of job {job}", "see what limits steps in slurm.conf"),
        ("refused", r"munge|authentication error|credential", "Slurm's authentication fails",
         "see that munged runs there with the same key, and that the clocks agree"),
        ("refused", r"Access/permission denied|Invalid user id|pam_slurm", "Slurm refuses this user",
         "use the user that submitted job {job}, whom each node knows"),
        ("error", r"Incompatible versions|version number error", "srun and slurmd have different versions of Slurm",
         "install one version of Slurm on all nodes"),
        ("no_python", r"execve\(\)?: .*(?:No such file|Permission denied)|execve: .*No such file",
         "the node has no {python}", "install python3 there, or set ansible_python_interpreter"),
        ("unreachable", (r"node not available|connection failure|Unable to communicate|Communication|timed? ?out"
                         r"|No route to host|Connection refused|(?:Message )?receive failure|send failure|Zero Bytes"
                         r"|Can't find an address|Unable to resolve|Failed to invoke task|Task launch .*failed"),
         "slurmd does not answer", "see 'sinfo -R', and start slurmd on {node}")),

    # --- how Slurm refuses an allocation, for {account} and {partition} ---
    *_said("salloc", "src/common/slurm_errno.c of Slurm (tests/data/error_meanings.json)",
        ("", rf"{_NO_CONTROLLER}|DNS SRV|Could not establish a configuration source",
         "Slurm's controller does not answer", "see 'scontrol ping', and start slurmctld"),
        ("", r"munge|authentication error", "Slurm's authentication fails",
         "see that munged runs with the cluster's key, and that the clocks agree"),
        ("", r"Invalid account|account/partition combination",
         "{account} may not submit jobs to {partition}", _OTHER_ACCOUNT),
        ("", r"Invalid partition name", "Slurm has no {partition}", _NAME_PARTITION),
        ("", r"No partition specified", "Slurm has no default partition", _NAME_PARTITION),
        ("", r"group not permitted|permission denied|Invalid user id|Invalid qos",
         "this user may not submit jobs to {partition}",
         "name another account with -A or a partition with -p, or ask Slurm's administrator"),
        ("", r"Only batch jobs", "{partition} takes no jobs of salloc", "name a partition with -p that does"),
        ("", r"time limit is invalid|exceeds some limit",
         "{partition} does not allow a job of that length", "give a shorter --time"),
        ("", r"violates accounting|QOS|job submit limit|MaxJobCount", "a limit of Slurm's accounting refuses the job",
         "ask for fewer --nodes or a shorter --time, or name another account with -A"),
        ("", r"Partition in DOWN|partition not available|partition configuration not available",
         "{partition} is down, or too small for the job", "name another partition with -p, or ask for fewer --nodes"),
        ("", (r"Node count|node configuration is not available|nodes not in this partition|Invalid node name"
              r"|More processors|generic resource"),
         "{partition} has no such nodes", _NODES_OF_SINFO),
        ("", r"submissions disabled",
         "Slurm takes no jobs at present", "try again later, or ask Slurm's administrator")),
    # Slurm's reasons for which a job waits for ever, as words or as sentences of Slurm's partition policies.
    *_said("queue", "src/common/job_state_reason.c and src/slurmctld/acct_policy.c of Slurm",
        ("", r"^(?:(?:AccountNotAllowed|InvalidAccount)$|Job's account .*not (?:known|permitted))",
         "{account} may not submit jobs to {partition}", _OTHER_ACCOUNT),
        ("", r"^(?:(?:QOSNotAllowed|InvalidQOS)$|Job's QOS .*not (?:known|permitted))",
         "this user may not submit jobs to {partition}", _OTHER_ACCOUNT),
        ("", r"^Partition(?:Down|Inactive)$", "{partition} is down", "name another partition with -p"),
        ("", r"^PartitionTimeLimit$|WallDurationPerJobLimit$",
         "{partition} does not allow a job of that length", "give a shorter --time"),
        ("", r"^PartitionNodeLimit$|Max(?:Node|Cpu|GRES|TRES)\w*PerJob\w*$",
         "{partition} does not allow a job of that size",
         "ask for fewer --nodes, or name another partition with -p"),
        ("", r"^BadConstraints$", "{partition} has no such nodes", _NODES_OF_SINFO),
        ("", r"^JobHeld(?:Admin|User)$", "Slurm holds the job", "ask Slurm's administrator")),
    *_said("job state", "job_state_string of src/common/slurm_protocol_defs.c of Slurm",
        ("", r"^TIMEOUT\b", "its time limit of {minutes} min ended it", "give a longer --time"),
        ("", r"^CANCELLED\b", "it was cancelled", f"{_SHOW_JOB} for who did"),
        ("", r"^PREEMPTED\b", "a job of higher priority took its nodes",
         "choose another partition with -p, or try again later"),
        ("", r"^NODE_FAIL\b", "Slurm counts one of its nodes as failed", "see 'sinfo -R'"),
        ("", r"^FAILED\b", "Slurm counts it as failed", _SHOW_JOB)),

    # --- what kubectl says; the kind is what refuses. {of} is the API group, {place} the namespace or the cluster ---
    *_said("kubectl", "kubectl 1.20 and 1.32, and words of the API server (tests/data/error_meanings.json)",
        ("rights", (r"is forbidden: User \"(?P<user>[^\"]*)\" cannot (?P<verb>\S+) resource \"(?P<resource>[^\"]*)\""
                    r"(?: in API group \"(?P<group>[^\"]*)\")?(?: in the namespace \"(?P<namespace>[^\"]*)\")?"),
         "The user '{user}' may not {verb} {resource}{of} {place}",
         ("have a role with the rights of docs/how-to/pods.md bound to it, or choose another --namespace or "
          "--context")),
        ("configuration", r"error: stat .*: no such file", "The kubeconfig does not exist", _SETUP),
        ("configuration", r"error loading config file|invalid configuration|illegal base64|unable to read",
         "The kubeconfig cannot be read", f"mend it, or {_SETUP}"),
        ("configuration", (r"context was not found|current-context must exist|locate context"
                           r"|(?:context|cluster) .* does not exist"),
         "The kubeconfig has no such context", "name one of 'kubectl config get-contexts' with --context"),
        ("configuration", r"namespaces \"[^\"]*\" not found",
         "The namespace does not exist", "name another with --namespace, or create it"),
        ("cluster", r"must be logged in|Unauthorized|provide credentials|getting credentials|exec plugin",
         "The cluster does not accept the login of the kubeconfig", "log in anew, or give another --context"),
        ("cluster", r"no matches for kind|doesn't have a resource type|could not find the requested resource",
         "The cluster does not know this kind of job",
         "install its operator (mpi-operator for MPIJob, training-operator for PyTorchJob), or choose another kind"),
        ("cluster", r"certificate|x509|tls:",
         "The certificate of the API server is not accepted", "mend the kubeconfig's certificate-authority"),
        ("cluster", (r"was refused|no such host|timeout|no route|is unreachable|Unable to connect|reset by|\bEOF\b"
                     r"|deadline exceeded"),
         "The API server does not answer", "see 'kubectl cluster-info', and the cluster's address in the kubeconfig"),
        ("cluster", r"exceeded quota", "A quota of the namespace refuses the job",
         "ask for fewer --nodes, --gpus-per-node, --cpus or --memory"),
        ("cluster", r"admission webhook|denied the request|violates PodSecurity",
         "A policy of the cluster refuses the job", "ask its administrator, or choose another --namespace"),
        ("cluster", r"is invalid|ValidationError|strict decoding|unknown field|must be of type|Invalid value",
         "The API server does not accept the manifest", "see it with --render-only")),
)
# fmt: on
