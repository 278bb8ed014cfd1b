"""A training with Lightning, on the processor: it fits a line. Lightning takes its processes as the launcher made them."""

import os

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        self.last = None

    def training_step(self, batch, _):
        inputs, wanted = batch
        self.last = torch.nn.functional.mse_loss(self.line(inputs), wanted)
        return self.last

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def main():
    lightning.seed_everything(0)
    x = torch.rand(512, 1)
    trainer = lightning.Trainer(
        accelerator="cpu", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        max_epochs=20, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    model = Line()
    trainer.fit(model, DataLoader(TensorDataset(x, 3 * x + 1), batch_size=16))
    assert model.last < 1e-3, model.last
    print(f"rank {trainer.global_rank} of {trainer.world_size}: fitted", flush=True)


if __name__ == "__main__":
    main()
