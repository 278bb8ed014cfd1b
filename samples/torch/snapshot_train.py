"""Trains a small network with DistributedDataParallel over gloo, and goes on from its snapshot when it is started again.

Each step's batch follows from the step and the rank alone, so a run that is interrupted ends in the state of one that is not, as long as the
world has the same size. It prints a line per step, and at the end a hash of all parameters and of the optimizer's state: `elrun chaos` reads both.
"""

import argparse
import hashlib
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def save(path, **what):
    """Whole or not at all: a process may be killed at any time."""
    torch.save(what, path + ".tmp")
    os.replace(path + ".tmp", path)


def state_of(network, optimizer):
    digest = hashlib.sha256()
    moments = [value for state in optimizer.state_dict()["state"].values() for _, value in sorted(state.items())]
    for tensor in [*network.state_dict().values(), *moments]:
        digest.update(torch.as_tensor(tensor).contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def load(path):
    """What rank 0 has saved, on all ranks: another node may have no such file, or an older one."""
    saved = [torch.load(path) if dist.get_rank() == 0 and path and os.path.exists(path) else None]
    dist.broadcast_object_list(saved)
    return saved[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshot", help="file to save to and to go on from")
    parser.add_argument("--every", type=int, default=50, help="steps between two snapshots")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="per worker")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--step-ms", type=int, default=0, help="least milliseconds of a step, in place of a GPU's compute")
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    width = options.width
    network = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    first = 1
    saved = load(options.snapshot)
    if saved:
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"] + 1
    model = DistributedDataParallel(network)

    for step in range(first, options.steps + 1):
        until = time.monotonic() + options.step_ms / 1000
        chance = torch.Generator().manual_seed(step * 65536 + rank)
        inputs = torch.randn(options.batch, width, generator=chance)
        loss = torch.nn.functional.mse_loss(model(inputs)[:, 0], torch.sin(inputs.sum(1)))
        time.sleep(max(0, until - time.monotonic()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            if options.snapshot and step % options.every == 0:
                save(options.snapshot, network=network.state_dict(), optimizer=optimizer.state_dict(), step=step)
            print(f"step={step} loss={loss.item():.6f}", flush=True)

    dist.barrier()  # nobody goes while another may still need it
    if rank == 0:
        print(f"done step={options.steps} state={state_of(network, optimizer)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
