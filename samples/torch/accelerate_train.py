"""A training loop with Hugging Face accelerate, on the processor: it fits a line."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    x = torch.rand(512, 1)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = DataLoader(TensorDataset(x, 3 * x + 1), batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(20):
        for inputs, wanted in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), wanted)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
    losses = accelerator.gather(loss.detach().reshape(1))
    assert losses.max() < 1e-3, losses
    print(f"rank {accelerator.process_index} of {accelerator.num_processes}: fitted", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
