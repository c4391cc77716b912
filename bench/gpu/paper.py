#!/usr/bin/env python3
"""What a training step on one GPU should take, by arithmetic: bench/gpu/paper.py [MODEL T ROWS]

For every operation of gpu_step's models its launches, FLOP and bytes a token, and the time that a GPU
of these ceilings needs for it, as kernels/cuda runs it: bf16 activations and weights, fp32 gradients
of weights, what cuBLASLt fuses fused. bench/gpu/run prints the measured rate beside it.
"""
import sys
from dataclasses import dataclass

FLOPS, BYTES = 790e12, 4.3e12  # an H200's: a large bf16 product, a copy
# Shares of these ceilings that kernels reach: assumed, for a measurement to correct.
PRODUCT, THIN_PRODUCT = 0.85, 0.75  # thin: fewer than 1024 channels to sum over
ATTENTION, ATTENTION_BACK = 0.55, 0.40  # the latter without atomics
STREAM = 0.85
LAUNCH_GAP_S, HOST_LAUNCH_S = 1.0e-6, 4.0e-6

MODELS = {  # as in models.h
    "gpt2": dict(gpt2=True, v=50304, d=768, layers=12, heads=12, kv=12, f=3072),
    "gpt2-50257": dict(gpt2=True, v=50257, d=768, layers=12, heads=12, kv=12, f=3072),
    "llama": dict(gpt2=False, v=32000, d=2048, layers=22, heads=16, kv=8, f=5632),
    "tiny": dict(gpt2=False, v=1024, d=256, layers=2, heads=4, kv=2, f=704),
}


@dataclass
class Op:
    part: str      # F, B, W or step
    name: str
    flops: float   # a token
    bytes: float   # a token
    launches: int
    share: float   # of the FLOP ceiling
    times: int = 1  # layers that have it

    def seconds(self, tokens, flops, memory):
        busy = max(self.flops * tokens / (self.share * flops),
                   self.bytes * tokens / (STREAM * memory))
        return self.times * (busy + self.launches * LAUNCH_GAP_S)


def operations(model, seq_len, tokens):
    c = MODELS[model]
    d, f, v, layers, gpt2 = c["d"], c["f"], c["v"], c["layers"], c["gpt2"]
    qkv = d + 2 * d * c["kv"] // c["heads"]
    up = f if gpt2 else 2 * f
    ops = []

    def add(part, name, flops, byte_count, launches=1, share=1.0, times=layers):
        ops.append(Op(part, name, flops, byte_count, launches, share, times))

    def product(name, inner, outer, times=layers, more=0, back=0, weight_launches=1):
        """y = x W^T and its two gradients; `more`, `back`: further elements read or written."""
        share = THIN_PRODUCT if min(inner, outer) < 1024 else PRODUCT
        flops, io, weights = 2 * inner * outer, 2 * (inner + outer), inner * outer / tokens
        add("F", name, flops, io + 2 * more + 2 * weights, 1, share, times)
        add("B", name, flops, io + 2 * back + 2 * weights, 1, share, times)
        # Gradients of weights are read and written in fp32.
        add("W", name, flops, io + 8 * weights, weight_launches, share, times)

    bias = 2 if gpt2 else 1  # a bias's gradient is added by a launch of its own
    norm = "layer_norm" if gpt2 else "rms_norm"
    for which in ("1", "2"):
        add("F", norm + which, 0, 4 * d)
        add("B", norm + which, 0, 8 * d)  # with the residual branch's gradient
        add("W", norm + which, 0, 4 * d, 2)
    product("qkv", d, qkv, weight_launches=bias)
    product("out", d, d, more=d, weight_launches=bias)  # with the residual
    product("up", d, up, more=f if gpt2 else 0, weight_launches=bias)  # and GELU's argument
    product("down", f, d, more=d, back=f if gpt2 else 0, weight_launches=bias)
    if not gpt2:
        turned = d + (qkv - d) // 2
        add("F", "rope", 0, 4 * turned)
        add("B", "rope", 0, 4 * turned)
        add("F", "swiglu", 0, 6 * f)
        add("B", "swiglu", 0, 10 * f)
    # Causal: half of the scores.
    add("F", "attention", 2 * seq_len * d, 2 * (qkv + d), 1, ATTENTION)
    add("B", "attention", 5 * seq_len * d, 2 * (2 * qkv + 2 * d), 3, ATTENTION_BACK)
    product("head", d, v, times=1)
    add("F", "loss", 0, 4 * v, 2, times=1)  # reads logits, leaves their gradient there
    add("F", "embedding", 0, 4 * d, times=1)
    add("W", "embedding", 0, 10 * d, times=1)
    per_layer = qkv * d + d * d + d * up + f * d
    parameters = layers * per_layer + v * d * (1 if gpt2 else 2)
    # The norm of the gradient; AdamW with zeroed gradients and the bf16 copy. Once a step.
    add("step", "norm", 0, 4 * parameters / tokens, 4 * (layers + 2), times=1)
    add("step", "adamw", 0, 34 * parameters / tokens, 2 * (layers + 2), times=1)
    return ops


def predict(model, seq_len, rows, flops=FLOPS, memory=BYTES):
    """(tokens per second, share of the FLOP ceiling, seconds of the host's launches)"""
    tokens = rows * seq_len
    ops = operations(model, seq_len, tokens)
    gpu = sum(op.seconds(tokens, flops, memory) for op in ops)
    host = sum(op.times * op.launches for op in ops) * HOST_LAUNCH_S
    work = sum(op.times * op.flops for op in ops) * tokens
    step = max(gpu, host)
    return tokens / step, work / step / flops, host


def table(model, seq_len, rows):
    tokens = rows * seq_len
    print(f"{model}, T {seq_len}, {rows} sequences\n")
    print("| part | operation | times | launches | kFLOP a token | bytes a token | us each |")
    print("|---|---|---|---|---|---|---|")
    for op in operations(model, seq_len, tokens):
        each = op.seconds(tokens, FLOPS, BYTES) / op.times
        print(f"| {op.part} | {op.name} | {op.times} | {op.launches} | {op.flops / 1e3:.0f} | "
              f"{op.bytes:.0f} | {1e6 * each:.0f} |")
    rate, share, host = predict(model, seq_len, rows)
    launches = sum(op.times * op.launches for op in operations(model, seq_len, tokens))
    print(f"\n{rate:.0f} tokens/s, {share:.2f} of the FLOP ceiling; {1e3 * tokens / rate:.2f} ms a "
          f"step, for which the host makes {launches} launches in {1e3 * host:.2f} ms")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        table(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        for name, length, count in (("gpt2", 1024, 16), ("gpt2", 2048, 8), ("llama", 1024, 6),
                                    ("llama", 2048, 3), ("tiny", 128, 4)):
            tokens_per_s, of_ceiling, host_s = predict(name, length, count)
            step_ms = 1e3 * length * count / tokens_per_s
            print(f"{name:6s} T {length} rows {count:2d}: {tokens_per_s:10.0f} tokens/s, "
                  f"{of_ceiling:.2f} of the ceiling, {step_ms:6.2f} ms a step, "
                  f"{1e3 * host_s:.2f} ms of launches")
