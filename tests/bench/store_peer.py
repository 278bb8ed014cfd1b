"""The questions of store_bench.cpp, asked of torch.distributed.TCPStore: prints NAME=VALUE lines, microseconds or
thousand calls per second. REPEATS CALLS CLIENTS CALLS_EACH SIZE:ROUNDS..."""

import datetime
import os
import statistics
import subprocess
import sys
import threading
import time

try:
    from torch.distributed import TCPStore
except ImportError as error:
    print(f"torch is not there ({error}): TCPStore is not measured")
    sys.exit(0)

PATIENCE = datetime.timedelta(seconds=300)

if sys.argv[1] == "serve":
    store = TCPStore("127.0.0.1", 0, None, True, timeout=PATIENCE, wait_for_workers=False)
    print(store.port, flush=True)
    sys.stdin.read()
    os._exit(0)

sys.setswitchinterval(1e-4)  # or threads wait 5 ms for the interpreter's lock
repeats, calls, clients, calls_each = map(int, sys.argv[1:5])
sizes = [tuple(map(int, text.split(":"))) for text in sys.argv[5:]]
server = subprocess.Popen([sys.executable, __file__, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
port = int(server.stdout.readline())


def connected():
    return TCPStore("127.0.0.1", port, None, False, timeout=PATIENCE, wait_for_workers=False)


def together(count, each):
    """Microseconds that `each(i)` takes on `count` threads at once, the threads' own start not counted."""
    begins, go = threading.Semaphore(0), threading.Event()

    def run(i):
        begins.release()
        go.wait()
        each(i)

    threading.stack_size(512 << 10)
    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for _ in threads:
        begins.acquire()
    begin = time.perf_counter()
    go.set()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - begin) * 1e6


value = "x" * 64
store = connected()
store.set("k", value)
operations = {"set": lambda s: s.set("k", value), "get": lambda s: s.get("k"), "add": lambda s: s.add("n", 1)}
for name, operation in operations.items():
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        operation(store)
        times.append((time.perf_counter() - begin) * 1e6)
    print(f"{name} latency={statistics.median(times)}", flush=True)

several = [connected() for _ in range(clients)]
for name, operation in operations.items():
    rates = []
    for _ in range(repeats):
        # One thread to a client: its calls exclude one another, so that more threads only wait.
        def many(i):
            for _ in range(calls_each):
                operation(several[i])
        rates.append(clients * calls_each / together(clients, many) * 1e3)
    print(f"{name} rate={statistics.median(rates)}", flush=True)

for count, rounds in sizes:
    everybody = [connected() for _ in range(count)]
    turn = 0
    barriers, gathers = [], []
    # A million gets of a thousand clients take minutes: there it is done once, each client gets 20 of the values, and the
    # time is multiplied, for a get costs the same whatever the key.
    times_over, gather_rounds = (1, 1) if count >= 1000 else (repeats, rounds if count < 100 else max(1, rounds // 10))
    gets = count if count < 1000 else 20
    for _ in range(times_over):
        turn += 1

        def barrier(i):
            for n in range(rounds):
                name = f"b{count}/{turn}/{n}"
                if everybody[i].add(name, 1) == count:
                    everybody[i].set(name + "/done", "")
                everybody[i].wait([name + "/done"])

        def all_gather(i):
            for n in range(gather_rounds):
                name = f"g{count}/{turn}/{n}/"
                everybody[i].set(name + str(i), value)
                for rank in range(i, i + gets):
                    everybody[i].get(name + str(rank % count))

        barriers.append(together(count, barrier) / rounds)
        gathers.append(together(count, all_gather) / gather_rounds * count / gets)
    print(f"barrier {count}={statistics.median(barriers)}", flush=True)
    print(f"all_gather {count}={statistics.median(gathers)}", flush=True)
server.stdin.close()
os._exit(0)
