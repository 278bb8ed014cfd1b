"""beside_torch.py LIBRARY: a Job in a process of PyTorch, which brings its own protobuf, fmt and more; loaded after it, and before it."""

import ctypes
import importlib.util
import os
import subprocess
import sys

library = sys.argv[1]
if len(sys.argv) == 2:
    if importlib.util.find_spec("torch") is None:
        print("SKIPPED: this Python has no torch (tests/run.sh --torch installs it)")
        sys.exit(77)
    for order in ("torch first", "libelrun first"):
        subprocess.run([sys.executable, "-B", __file__, library, order], check=True, timeout=300)
    sys.exit(0)


def train():
    import torch

    torch.manual_seed(1)
    w = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        x = torch.randn(8)
        ((w * x - 3 * x) ** 2).mean().backward()
        optimizer.step()
    assert abs(w.item() - 3) < 0.1, w.item()


if sys.argv[2] == "torch first":
    import torch  # noqa: F401

loaded = ctypes.CDLL(library, mode=os.RTLD_GLOBAL | os.RTLD_NOW)  # global: whoever looks for a name finds libelrun's, if it exports any
loaded.elrun_neighbour_learn.restype = ctypes.c_double
train()
learnt = loaded.elrun_neighbour_learn()
assert 2.9 < learnt < 3.1, learnt
train()
print(f"{sys.argv[2]}: w = {learnt:.2f}")
