"""A few collectives over gloo. Everything it needs to find the others is in its environment."""

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)

    ranks = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(ranks, torch.tensor([float(rank)]))

    word = [f"from rank {rank}"]
    dist.broadcast_object_list(word, src=world - 1)

    assert total.item() == world * (world + 1) / 2, total
    assert [r.item() for r in ranks] == list(range(world)), ranks
    assert word == [f"from rank {world - 1}"], word
    print(f"rank {rank} of {world}: sum {total.item():.0f}, all collectives right", flush=True)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
