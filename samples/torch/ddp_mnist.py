"""Trains a small network on handwritten digits with DistributedDataParallel over gloo.

With --data it reads the idx files of MNIST (t10k-images-idx3-ubyte and its labels, gzipped or not); without, it makes a
set of ten noisy patterns in place. After each epoch rank 0 saves a checkpoint, from which every start goes on.
"""

import argparse
import gzip
import os
import struct
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def read_idx(folder, name):
    for path, opener in ((os.path.join(folder, name), open), (os.path.join(folder, name + ".gz"), gzip.open)):
        if os.path.exists(path):
            with opener(path, "rb") as file:
                zero, kind, dimensions = struct.unpack(">HBB", file.read(4))
                if zero != 0 or kind != 8:
                    raise ValueError(f"{path} is no idx file of bytes")
                shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
                return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).reshape(shape)
    raise FileNotFoundError(f"neither {name} nor {name}.gz in {folder}")


def real_set(folder):
    images = read_idx(folder, "t10k-images-idx3-ubyte").float().div(255).flatten(1)
    return TensorDataset(images, read_idx(folder, "t10k-labels-idx1-ubyte").long())


def synthetic_set(count):
    chance = torch.Generator().manual_seed(1)
    patterns = torch.rand(10, 28 * 28, generator=chance)
    labels = torch.randint(10, (count,), generator=chance)
    return TensorDataset(patterns[labels] + 0.5 * torch.randn(count, 28 * 28, generator=chance), labels)


def save(path, **what):
    """Whole or not at all: a process may be killed at any time."""
    torch.save(what, path + ".tmp")
    os.replace(path + ".tmp", path)


def load(path):
    """What rank 0 has saved, on all ranks: another node may have no such file, or an older one."""
    saved = [torch.load(path) if dist.get_rank() == 0 and path and os.path.exists(path) else None]
    dist.broadcast_object_list(saved)
    return saved[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with the idx files")
    parser.add_argument("--samples", type=int, default=1000, help="of the set that is made in place")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=50, help="per worker")
    parser.add_argument("--checkpoint", help="file to save to and to go on from")
    parser.add_argument("--pause", type=float, default=0, help="seconds after each epoch, to watch or disturb it")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(28 * 28, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    first = 0
    saved = load(options.checkpoint)
    if saved:
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epochs"]
    model = DistributedDataParallel(network)

    data = real_set(options.data) if options.data else synthetic_set(options.samples)
    sampler = DistributedSampler(data, seed=2)
    loader = DataLoader(data, batch_size=options.batch, sampler=sampler)
    print(f"rank {rank} of {world}: begins with epoch {first}", flush=True)

    for epoch in range(first, options.epochs):
        sampler.set_epoch(epoch)
        sums = torch.zeros(3)  # loss, right ones, all
        for images, labels in loader:
            output = model(images)
            loss = torch.nn.functional.cross_entropy(output, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right = (output.argmax(1) == labels).sum()
            sums += torch.tensor([loss.item() * len(labels), right.item(), len(labels)])
        dist.all_reduce(sums)
        if rank == 0:
            if options.checkpoint:
                save(options.checkpoint, network=network.state_dict(), optimizer=optimizer.state_dict(), epochs=epoch + 1)
            loss, right = sums[0] / sums[2], 100 * sums[1] / sums[2]
            print(f"epoch {epoch}: loss {loss:.4f}, {right:.1f} % right, world {world}", flush=True)
        time.sleep(options.pause)

    dist.barrier()  # nobody goes while another may still need it
    if rank == 0:
        print(f"done after {options.epochs} epochs", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
