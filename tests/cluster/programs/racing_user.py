"""Race against root as an ordinary user: names that root uses in shared folders and in the home become something else.

Names of clusterctl and of ssh are renamed away and baited: links to root's files, pipes, deep folders, sparse files. It
also takes abstract sockets, and kills processes of its own user that root started. Ends when ``STOP`` exists.
"""

import contextlib
import os
import random
import re
import signal
import socket
import sys
import time

STOP, ROUNDS = "/run/stop-racing", "/var/tmp/racing-rounds"
HOME = os.path.expanduser("~")
SHARED = ("/var/tmp", "/tmp", "/dev/shm")
FOLDERS = (*SHARED, HOME, f"{HOME}/.ssh")
AIMS = ("/etc/cron.d/canary", "/etc/canary.d", "/root", "/etc/canary.d/file", "/dev/zero")
NAMES = (
    "clusterctl-demo-racing",
    "clusterctl-push-racing-demo",
    "clusterctl-openmpi-racing",
    ".clusterctl-racing",
    "clusterctl-ssh-racing",
    "sm_segment.node1.9999.racing",
)
OF_HOME = (".ssh/authorized_keys", ".ssh/id_clusterctl", ".ssh/id_clusterctl.pub", ".ssh/config", ".ansible")
OURS = re.compile(r"clusterctl|authorized_keys|^\.ansible|sm_segment|^\.ssh$")
ASIDE = ".racing-aside"
DEPTH, SPARSE = 1500, 400 << 30


def main():
    random.seed(int(sys.argv[1]))
    sockets = [taken for number in range(700) if (taken := abstract(number))]
    deep = bait_deep(f"{SHARED[0]}/clusterctl-deep-racing")
    rounds = 0
    while not os.path.exists(STOP):
        folder = random.choice(FOLDERS)
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                if OURS.search(name) and not name.endswith(ASIDE):
                    swap(os.path.join(folder, name))
        swap(os.path.join(random.choice(SHARED), random.choice(NAMES)))
        swap(os.path.join(HOME, random.choice(OF_HOME)))
        if rounds % 20 == 0:
            kill_children_of_root()
        rounds += 1
        if rounds % 50 == 0:
            with contextlib.suppress(OSError), open(ROUNDS, "w") as stream:
                stream.write(str(rounds))
        time.sleep(0.005)
    del sockets, deep


def abstract(number):
    taken = socket.socket(socket.AF_UNIX)
    try:
        taken.bind(f"\0clusterctl-user-{61000 + number}")
    except OSError:
        return None
    return taken


def swap(path):
    """Put bait into the place of a name, or the former content back."""
    aside = path + ASIDE
    with contextlib.suppress(OSError):
        if os.path.lexists(aside):
            remove(path)
            os.rename(aside, path)
            return
        if os.path.lexists(path):
            os.rename(path, aside)
    with contextlib.suppress(OSError):
        random.choice((bait_link, bait_link, bait_pipe, bait_sparse, bait_folder))(path)


def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        for name in os.listdir(path):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)
    elif os.path.lexists(path):
        os.unlink(path)


def bait_link(path):
    os.symlink(random.choice(AIMS), path)


def bait_pipe(path):
    os.mkfifo(path)


def bait_sparse(path):
    made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.truncate(made, SPARSE)
    os.close(made)


def bait_folder(path):
    os.mkdir(path)
    os.symlink("/etc/canary.d/file", os.path.join(path, "authorized_keys"))


def bait_deep(path):
    with contextlib.suppress(OSError):
        os.mkdir(path)
        os.chdir(path)
        for _ in range(DEPTH):
            os.mkdir("d")
            os.chdir("d")
    os.chdir("/")
    return path


def kill_children_of_root():
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if os.stat(f"/proc/{entry}").st_uid != os.getuid():
                continue
            with open(f"/proc/{entry}/cmdline", "rb") as stream:
                if b"check_node" in stream.read():
                    os.kill(int(entry), signal.SIGKILL)


main()
