"""A program that explains its failure: `record` writes what it raised to the file that the launcher named."""

import argparse
import os
import time

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fail-rank", type=int, default=-1, help="this rank raises (default: none)")
    parser.add_argument("--failures", type=int, default=1, help="as often as this, over restarts")
    parser.add_argument("--others-wait", action="store_true", help="the others wait until they are ended")
    options = parser.parse_args()

    rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if options.fail_rank >= 0 and restarts < options.failures:
        if rank == options.fail_rank:
            raise ValueError(f"rank {rank} was asked to fail, time {restarts + 1}")
        while options.others_wait:
            time.sleep(1)
    print(f"rank {rank}: done after {restarts} restarts", flush=True)


if __name__ == "__main__":
    main()
