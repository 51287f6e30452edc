"""One process a node that knows its place by variables alone: each sends its number to the first, which adds them up.

`--launcher none` starts the same command once on each node. This one needs Python's standard library and nothing else.

    clusterctl run inventory.ini --launcher none --sync examples -- python none/sum.py
"""

import os
import socket
import sys
import time

node, nodes = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

if node == 0:
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    total = 0
    with socket.create_server(place, family=family) as server:
        server.settimeout(60)
        for _unused in range(nodes - 1):
            connection, _address = server.accept()
            with connection, connection.makefile("r") as lines:
                total += int(lines.readline())
    right = total == sum(range(nodes))
    print(f"sum {total} of {nodes} nodes: {'right' if right else 'WRONG'}", flush=True)
    sys.exit(0 if right else 1)

for left in range(600, -1, -1):  # the first node may not listen yet
    try:
        with socket.create_connection(place, timeout=60) as connection:
            connection.sendall(b"%d\n" % node)
        break
    except ConnectionRefusedError:
        if not left:
            raise
        time.sleep(0.1)
