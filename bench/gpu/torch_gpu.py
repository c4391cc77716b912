#!/usr/bin/env python3
"""The models and steps of gpu_step.cc in PyTorch, at the command of bench/gpu/run.

    torch_gpu.py MODEL ROWS SEQ_LEN eager|compile [weights=FILE]
    torch_gpu.py ceilings

What one would write today: fp32 parameters, autocast to bf16, scaled_dot_product_attention (its
flash kernels), fused AdamW, gradient clipping. Speaks gpu_step's protocol, and begins with the
parameters and the tokens of FILE, if gpu_step has written one. `ceilings` prints bytes
per second of a copy on the device and FLOP per second of a large bf16 product.
"""
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

MODELS = {  # as in models.h
    "gpt2": dict(gpt2=True, vocab=50304, d=768, layers=12, heads=12, kv=12, ffn=3072),
    "gpt2-50257": dict(gpt2=True, vocab=50257, d=768, layers=12, heads=12, kv=12, ffn=3072),
    "llama": dict(gpt2=False, vocab=32000, d=2048, layers=22, heads=16, kv=8, ffn=5632),
    "tiny": dict(gpt2=False, vocab=1024, d=256, layers=2, heads=4, kv=2, ffn=704),
}


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        d, head = c["d"], c["d"] // c["heads"]
        bias = c["gpt2"]
        norm = nn.LayerNorm if c["gpt2"] else nn.RMSNorm
        self.norm1, self.norm2 = norm(d, eps=1e-5), norm(d, eps=1e-5)
        self.qkv = nn.Linear(d, d + 2 * c["kv"] * head, bias=bias)
        self.out = nn.Linear(d, d, bias=bias)
        self.up = nn.Linear(d, c["ffn"] * (1 if c["gpt2"] else 2), bias=bias)
        self.down = nn.Linear(c["ffn"], d, bias=bias)

    def forward(self, x, cos, sin):
        c, (rows, length, d) = self.c, x.shape
        head = d // c["heads"]
        q, k, v = self.qkv(self.norm1(x)).split([d, c["kv"] * head, c["kv"] * head], -1)
        q = q.view(rows, length, c["heads"], head).transpose(1, 2)
        k, v = (y.view(rows, length, c["kv"], head).transpose(1, 2) for y in (k, v))
        if not c["gpt2"]:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=c["kv"] != c["heads"])
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, d))
        y = self.up(self.norm2(x))
        if c["gpt2"]:
            return x + self.down(F.gelu(y, approximate="tanh"))
        gate, up = y.chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, c, seq_len):
        super().__init__()
        self.c = c
        self.embedding = nn.Embedding(c["vocab"], c["d"])
        self.positions = nn.Embedding(seq_len, c["d"]) if c["gpt2"] else None
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.norm = (nn.LayerNorm if c["gpt2"] else nn.RMSNorm)(c["d"], eps=1e-5)
        self.head = nn.Linear(c["d"], c["vocab"], bias=False)
        if c["gpt2"]:
            self.head.weight = self.embedding.weight
        half = c["d"] // c["heads"] // 2
        angles = torch.outer(torch.arange(seq_len), 10000.0 ** -(torch.arange(half) / half))
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos().bfloat16())
        self.register_buffer("sin", angles.sin().bfloat16())
        for p in self.parameters():
            if p.dim() >= 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions.weight
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def in_order(model):
    """As worker/model/layout.h has them in memory: of each layer the matrices, then the vectors."""
    yield model.embedding.weight
    if model.positions is not None:
        yield model.positions.weight
    for b in model.blocks:
        yield from (b.qkv.weight, b.out.weight, b.up.weight, b.down.weight)
        if model.c["gpt2"]:
            yield from (b.norm1.weight, b.norm1.bias, b.qkv.bias, b.out.bias,
                        b.norm2.weight, b.norm2.bias, b.up.bias, b.down.bias)
        else:
            yield from (b.norm1.weight, b.norm2.weight)
    if not model.c["gpt2"]:
        yield model.head.weight  # GPT-2's is the embedding
    yield model.norm.weight
    if model.c["gpt2"]:
        yield model.norm.bias


def load(path, model, shape):
    """The file's parameters into the model; its tokens."""
    with open(path, "rb") as file:
        for p in in_order(model):
            values = torch.frombuffer(bytearray(file.read(4 * p.numel())), dtype=torch.float32)
            p.data.copy_(values.view(p.shape))
        tokens = torch.frombuffer(bytearray(file.read(4 * shape[0] * shape[1])), dtype=torch.int32)
        if file.read(1):
            raise ValueError(f"{path} has more parameters than the model")
    return tokens.view(shape).long().cuda()


def ceilings():
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn_like(a)

    def seconds(work):
        best = float("inf")
        for _ in range(4):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(10):
                work()
            torch.cuda.synchronize()
            best = min(best, (time.perf_counter() - start) / 10)
        return best
    print(f"bytes_per_s {2 * x.numel() / seconds(lambda: y.copy_(x)):.6g} "
          f"flops_per_s {2 * 8192**3 / seconds(lambda: a @ b):.6g}")


def main():
    if sys.argv[1:] == ["ceilings"]:
        return ceilings()
    name, rows, seq_len, mode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    with torch.device("cuda"):  # 1.2e9 normal numbers take a CPU half a minute
        model = Model(MODELS[name], seq_len)
    parameters = sum(p.numel() for p in model.parameters())
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                                   {"params": others, "weight_decay": 0.0}],
                                  lr=1e-4, betas=(0.9, 0.95), fused=True)
    run = torch.compile(model) if mode == "compile" else model
    weights = [word[8:] for word in sys.argv[5:] if word.startswith("weights=")]
    if weights:
        tokens = load(weights[0], model, (rows, seq_len + 1))
    else:
        tokens = torch.randint(MODELS[name]["vocab"], (rows, seq_len + 1), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = run(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss
    losses = ",".join(f"{step().item():.6f}" for _ in range(3))
    print("parameters", parameters, "flops_per_token 0 bytes", torch.cuda.max_memory_allocated(),
          "losses", losses, flush=True)
    for line in sys.stdin:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(int(line)):
            loss = step()
        value = loss.item()
        torch.cuda.synchronize()
        print(f"{time.perf_counter() - start:.6f} {value:.5f}", flush=True)


if __name__ == "__main__":
    main()
