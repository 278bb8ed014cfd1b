"""Meets where its arguments say, as a program does that was given --init-method=tcp://HOST:PORT: rank 0 listens there, without
allowing the reuse of addresses, and the others tell it their rank. meet_at.py HOST PORT"""

import os
import socket
import sys
import time

host, port = sys.argv[1], int(sys.argv[2])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if rank == 0:
    with socket.socket() as door:
        door.bind(("", port))
        door.listen()
        guests = [door.accept()[0] for _ in range(1, world)]
        ranks = sorted(int(guest.recv(16)) for guest in guests)
    print(f"met ranks={','.join(map(str, ranks))} port={os.environ['MASTER_PORT']}", flush=True)
else:
    deadline = time.monotonic() + 100
    while True:
        try:
            line = socket.create_connection((host, port), timeout=5)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    line.sendall(str(rank).encode())
    print(f"told rank={rank} port={os.environ['MASTER_PORT']}", flush=True)
