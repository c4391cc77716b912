#!/usr/bin/python3
"""Writes the fixtures of parity_test.cc beside itself, with Debian's python3-torch:

    /usr/bin/python3 worker/model/parity/make_fixtures.py

GPT-2 is written here, what came after LLaMA in decoders.py, in plain PyTorch with transformers'
parameter names. Everything is computed in float64 from float32 weights,
so that the fixtures carry no rounding of their own. Files: config.json and model.safetensors of the
model, and expected.safetensors with

    tokens        [batches, rows, T + 1]; of an encoder instead inputs, targets and types,
                  [batches, rows, T] each
    lengths       [rows], in all batches, where sequences have padding
    alone         [rows], with them: summed losses of the first batch's sequences, each of them
                  computed alone without its padding
    logits        [rows, T, vocab] of the first batch
    grad.<name>   gradient of the first batch's mean loss, for every parameter
    balance       the mean of the routers' losses of the first batch, where training adds them
    losses        [steps] mean losses of AdamW steps over the batches in turn, before each step
"""
import json
import math
import pathlib
import struct

import torch
import torch.nn.functional as F

import decoders
import encoders
import optimizers

ROWS, T, BATCHES, STEPS = 3, 16, 4, 20
LR, BETAS, EPS, DECAY, CLIP = 1e-2, (0.9, 0.95), 1e-8, 0.1, 1.0

GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 64, "n_embd": 32,
    "n_layer": 2, "n_head": 4, "n_inner": None, "n_positions": 24, "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
}


def gpt2_shapes(c):
    d, f = c["n_embd"], 4 * c["n_embd"]
    yield "transformer.wte.weight", (c["vocab_size"], d)
    yield "transformer.wpe.weight", (c["n_positions"], d)
    for i in range(c["n_layer"]):
        h = f"transformer.h.{i}."
        for norm in ("ln_1", "ln_2"):
            yield h + norm + ".weight", (d,)
            yield h + norm + ".bias", (d,)
        for linear, rows, cols in (("attn.c_attn", d, 3 * d), ("attn.c_proj", d, d),
                                   ("mlp.c_fc", d, f), ("mlp.c_proj", f, d)):
            yield h + linear + ".weight", (rows, cols)
            yield h + linear + ".bias", (cols,)
    yield "transformer.ln_f.weight", (d,)
    yield "transformer.ln_f.bias", (d,)


def causal_attention(q, k, v):  # each [B, heads, T, head_dim]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
    return scores.masked_fill(~mask, -math.inf).softmax(-1) @ v


def split_heads(x, heads):
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def merge_heads(x):
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def gelu_new(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def gpt2(c, p, ids):
    def norm(x, name):
        return F.layer_norm(x, (x.shape[-1],), p[name + ".weight"], p[name + ".bias"],
                            c["layer_norm_epsilon"])

    def conv1d(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    x = p["transformer.wte.weight"][ids] + p["transformer.wpe.weight"][:ids.shape[1]]
    for i in range(c["n_layer"]):
        h = f"transformer.h.{i}."
        q, k, v = conv1d(norm(x, h + "ln_1"), h + "attn.c_attn").chunk(3, -1)
        heads = [split_heads(part, c["n_head"]) for part in (q, k, v)]
        x = x + conv1d(merge_heads(causal_attention(*heads)), h + "attn.c_proj")
        x = x + conv1d(gelu_new(conv1d(norm(x, h + "ln_2"), h + "mlp.c_fc")), h + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ p["transformer.wte.weight"].T


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.detach().to(torch.float32).contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def initial(shapes, generator, from_zero=False):
    """Large enough that every part of the model matters, rounded to float32."""
    params = {}
    for name, shape in shapes:
        if from_zero and len(shape) == 1:
            params[name] = (torch.randn(shape, generator=generator) * 0.1).double().requires_grad_()
            continue
        noise = torch.randn(shape, generator=generator) * (0.15 if len(shape) == 2 else 0.1)
        is_norm_weight = len(shape) == 1 and name.endswith("weight")
        params[name] = (noise + 1 if is_norm_weight else noise).double().requires_grad_()
    return params


def zero_or(grad, param):
    """A bias of the choice alone has no gradient."""
    return torch.zeros_like(param) if grad is None else grad.clone()


def make(folder, config, shapes, forward):
    generator = torch.Generator().manual_seed(20261121)
    params = initial(shapes(config), generator, config["model_type"] == "gemma2")
    tokens = torch.randint(config["vocab_size"], (BATCHES, ROWS, T + 1), generator=generator)
    inputs, targets, extra = tokens[:, :, :-1], tokens[:, :, 1:], {}
    if config["model_type"] == "bert":  # two segments; every fifth token masked
        inputs, targets = inputs.clone(), torch.full_like(inputs, -100)
        targets[:, :, 2::5] = inputs[:, :, 2::5]
        inputs[:, :, 2::5] = config["mask_token_id"]
        types = (torch.arange(T) >= T // 2).long().expand_as(inputs)
        extra = {"inputs": inputs, "targets": targets, "types": types}
        lengths = encoders.LENGTHS if "pad_token_id" in config else None
        if lengths:
            padding = (torch.arange(T) >= torch.tensor(lengths)[:, None]).expand_as(inputs)
            inputs[padding], targets[padding] = config["pad_token_id"], -100
            extra["lengths"] = torch.tensor(lengths)
            with torch.no_grad():
                extra["alone"] = torch.stack([
                    F.cross_entropy(forward(config, params, inputs[0, r:r + 1, :n],
                                            types[0, r:r + 1, :n])[0],
                                    targets[0, r, :n], reduction="sum")
                    for r, n in enumerate(lengths)])
        decoder, forward = forward, lambda c, p, ids: decoder(c, p, ids, types[0], lengths)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_safetensors(folder / "model.safetensors", params)

    def compute_loss(batch):
        logits = forward(config, params, inputs[batch])
        return F.cross_entropy(logits.flatten(0, 1), targets[batch].flatten()), logits

    def compute_balance(batch):
        """The routers' loss that training adds; the published mean loss is without it."""
        if not config.get("output_router_logits"):
            return 0
        balances = []
        forward(config, params, inputs[batch], balances)
        return config["router_aux_loss_coef"] * sum(balances) / len(balances)

    start = {name: p.detach().clone() for name, p in params.items()}
    loss, logits = compute_loss(0)
    start_balance = float(compute_balance(0))
    (loss + compute_balance(0)).backward()
    expected = {"tokens": tokens, "logits": logits, **extra}
    if config.get("output_router_logits"):
        expected["balance"] = torch.tensor([start_balance / config["router_aux_loss_coef"]])
    expected.update({"grad." + name: zero_or(p.grad, p) for name, p in params.items()})

    decayed = [p for p in params.values() if p.dim() >= 2]
    others = [p for p in params.values() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY},
                                   {"params": others, "weight_decay": 0.0}],
                                  lr=LR, betas=BETAS, eps=EPS)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, _ = compute_loss(step % BATCHES)
        (loss + compute_balance(step % BATCHES)).backward()
        torch.nn.utils.clip_grad_norm_(list(params.values()), CLIP)
        optimizer.step()
        losses.append(loss.item())
    expected["losses"] = torch.tensor(losses, dtype=torch.float64)
    write_safetensors(folder / "expected.safetensors", expected)
    if folder.name in ("gpt2", "llama"):
        write_optimizers(folder, config, start, params, compute_loss)
    print(folder.name, "losses", " ".join(f"{x:.4f}" for x in losses))


def write_optimizers(folder, config, start, params, compute_loss):
    """optimizers.safetensors: losses of the same steps with every other optimizer."""
    expected = {}
    for name in optimizers.RATES:
        with torch.no_grad():
            for key, p in params.items():
                p.copy_(start[key])
        stepped = optimizers.make(name, params, DECAY, config["model_type"] == "gpt2")
        losses = []
        for step in range(STEPS):
            for p in params.values():
                p.grad = None
            loss, _ = compute_loss(step % BATCHES)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(list(params.values()), CLIP)
            for optimizer in stepped:
                optimizer.step()
            losses.append(loss.item())
        expected[name] = torch.tensor(losses, dtype=torch.float64)
        print(folder.name, name, " ".join(f"{x:.4f}" for x in losses))
    write_safetensors(folder / "optimizers.safetensors", expected)


def main():
    here = pathlib.Path(__file__).parent
    make(here / "gpt2", GPT2, gpt2_shapes, gpt2)
    for name, config in decoders.CONFIGS.items():
        make(here / name, config, decoders.shapes, decoders.forward)
    make(here / "bert", encoders.BERT, encoders.shapes, encoders.forward)
    make(here / "bert_padded", encoders.PADDED, encoders.shapes, encoders.forward)


if __name__ == "__main__":
    main()
