#!/usr/bin/env python3
"""What PyTorch makes of the model that `gpt --precision bf16` trains: GPT-2's 124M shape, as samples/gpt has it (pre-norm, no biases but those of the norms, tied head), with
autocast to bf16, its fused attention and AdamW, and torch.compile. Random ids; the time of a step does not depend on them.

    torch_gpt.py [MICRO_BATCH [SLOTS [STEPS]]]        prints tokens per second of each step, and the median of those after the first three
"""
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

LAYERS, CHANNELS, HEADS, CONTEXT, VOCABULARY = 12, 768, 12, 1024, 50304


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(CHANNELS), nn.LayerNorm(CHANNELS)
        self.qkv = nn.Linear(CHANNELS, 3 * CHANNELS, bias=False)
        self.mix = nn.Linear(CHANNELS, CHANNELS, bias=False)
        self.expand = nn.Linear(CHANNELS, 4 * CHANNELS, bias=False)
        self.contract = nn.Linear(4 * CHANNELS, CHANNELS, bias=False)

    def forward(self, x):
        batch, context, _ = x.shape
        q, k, v = (part.view(batch, context, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(CHANNELS, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(y.transpose(1, 2).reshape(batch, context, CHANNELS))
        return x + self.contract(F.gelu(self.expand(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, CHANNELS), nn.Embedding(CONTEXT, CHANNELS)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(CHANNELS)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


def main():
    micro_batch, slots, steps = (int(a) for a in (sys.argv[1:] + ["16", "4", "12"][len(sys.argv) - 1:]))
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    model = Gpt().cuda()
    forward = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = torch.randint(0, 50257, (slots, micro_batch, CONTEXT + 1), device="cuda")
    rates = []
    for step in range(1, steps + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for slot in ids:
            with torch.autocast("cuda", torch.bfloat16):
                loss = forward(slot[:, :-1], slot[:, 1:]) / slots
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        rates.append(slots * micro_batch * CONTEXT / (time.perf_counter() - begin))
        print(f"step={step} tokens_per_s={rates[-1]:.0f}", flush=True)
    print(f"PyTorch {torch.__version__}, micro-batches of {micro_batch}, {slots} to a step: {statistics.median(rates[3:]):.0f} tokens per second, median of {len(rates) - 3}")


if __name__ == "__main__":
    main()
