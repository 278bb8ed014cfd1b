"""Meets by an address that the program chose itself: tcp_init.py PORT"""

import os
import sys

import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=rank, world_size=world)
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {rank} of {world}: sum {total.item():.0f}", flush=True)
dist.barrier()
