#!/usr/bin/python3
"""The models of models.json in eager PyTorch, as worker/model/parity writes them, at the command of
bench/train/run.

    torch_models.py --threads N --model NAME [--grouped]

Attention of packed documents is masked, or with --grouped that of one document after another.

Images are in PyTorch's channels_last form, which its oneDNN convolutions are fastest with, and the
optimizer in its foreach form. Speaks train_step's protocol.
"""
import argparse
import json
import pathlib
import sys
import time

import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent.parent / "worker/model/parity"))
sys.dont_write_bytecode = True

import decoders  # noqa: E402
import encoders  # noqa: E402
import images  # noqa: E402
import make_fixtures  # noqa: E402


def image_model(config, rows):
    net = images.Net(config, torch.float32)
    side = config["image_size"]
    pixels = torch.randint(256, (rows, side * side * config["num_channels"]))
    labels = torch.randint(config["num_labels"], (rows,))
    net.forward(pixels)  # makes all parameters
    return net.params, lambda: F.cross_entropy(net.forward(pixels), labels)


def decoder(config, tokens):
    """The fixtures' decoder, with its rotary table made once and in fp32."""
    table = [part.float() for part in decoders.rope(config, tokens)]
    decoders.rope = lambda *_: table
    return decoders.forward


def run_grouped(x, chosen, weights, count, expert):
    """decoders.run_experts with the rows sorted by expert once, and one sum at the end."""
    order = chosen.flatten().argsort(stable=True)
    rows = order // chosen.shape[1]
    sizes = torch.bincount(chosen.flatten(), minlength=count).tolist()
    outputs = [expert(e, part) for e, part in enumerate(x[rows].split(sizes)) if len(part) > 0]
    return torch.zeros_like(x).index_add(
        0, rows, torch.cat(outputs) * weights.flatten()[order, None])


def begin_documents(count, tokens):
    """As train_step.cc has it: where each document of a sequence begins."""
    return [0] + [d * tokens // count + d * 37 % 61 for d in range(1, count)]


def use_documents(config, begins, tokens, grouped):
    """The fixtures' decoder, whose attention crosses no border and whose positions begin anew."""
    lengths = [end - begin for begin, end in zip(begins, [*begins[1:], tokens])]
    whole = decoders.rope(config, max(lengths))
    table = [torch.cat([part[:n] for n in lengths]).float() for part in whole]
    decoders.rope = lambda *_: table
    of = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    hidden = torch.zeros(tokens, tokens).masked_fill(
        (of[:, None] != of[None, :]) | torch.ones(tokens, tokens, dtype=torch.bool).triu(1), float("-inf"))

    def masked(q, k, v, mask):
        return ((q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5 + mask).softmax(-1) @ v

    def attention(_, q, k, v, __):
        if not grouped:
            return masked(q, k, v, hidden)
        parts = zip(*(x.split(lengths, -2) for x in (q, k, v)))
        return torch.cat([masked(*part, hidden[:n, :n].triu(1)) for part, n in zip(parts, lengths)], -2)

    decoders.attention = attention


def add_adapter(config, params, adapter):
    """PEFT's LoRA beside every matrix of the blocks; all else is frozen."""
    config["lora_scale"] = adapter["alpha"] / adapter["rank"]
    for name in [name for name in params if "_proj" in name]:
        rows, cols = params[name].shape
        stem = name.removesuffix(".weight")
        params[stem + ".lora_A.weight"] = torch.randn(adapter["rank"], cols) * cols ** -0.5
        params[stem + ".lora_B.weight"] = torch.zeros(rows, adapter["rank"])
    for name, param in params.items():
        param.requires_grad_(".lora_" in name)


def text_model(model, grouped):
    config, rows, tokens = model["config"], model["rows"], model["tokens"]
    kind = config["model_type"]
    bert = kind == "bert"
    shapes_of = {"bert": encoders.shapes, "gpt2": make_fixtures.gpt2_shapes}
    shapes = shapes_of.get(kind, decoders.shapes)(config)
    params = {name: (torch.randn(shape) * 0.02 + (len(shape) == 1 and name.endswith("weight")))
              .requires_grad_() for name, shape in shapes}
    ids = torch.randint(config["vocab_size"], (rows, tokens + 1))
    if "adapter" in model:
        add_adapter(config, params, model["adapter"])
    if "documents" in model:
        begins = begin_documents(model["documents"], tokens)
        use_documents(config, begins, tokens, grouped)
        targets = ids[:, 1:].clone()
        targets[:, [begin - 1 for begin in begins[1:]]] = -100
        return params, lambda: F.cross_entropy(
            decoders.forward(config, params, ids[:, :-1]).flatten(0, 1), targets.flatten())
    if not bert:
        forward = make_fixtures.gpt2 if kind == "gpt2" else decoder(config, tokens)
        return params, lambda: F.cross_entropy(
            forward(config, params, ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    ids, types = ids[:, :-1], torch.zeros(tokens, dtype=torch.long)
    targets = torch.full_like(ids, -100)
    targets[:, ::7] = ids[:, ::7]
    return params, lambda: F.cross_entropy(
        encoders.forward(config, params, ids, types).flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--grouped", action="store_true", help="sort rows by expert, or documents one by one")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    if arguments.grouped:
        decoders.run_experts = run_grouped
    with open(HERE / "models.json", encoding="utf-8") as file:
        model = json.load(file)[arguments.model]
    if "image_size" in model["config"]:
        params, loss_of = image_model(model["config"], model["rows"])
    else:
        params, loss_of = text_model(model, arguments.grouped)
    params = [p for p in params.values() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in params if p.dim() >= 2], "weight_decay": 0.1},
         {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}],
        lr=1e-3, betas=(0.9, 0.95), foreach=True)
    print("parameters", sum(p.numel() for p in params), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            optimizer.step()
            value = loss.item()
        print(f"{time.perf_counter() - start:.6f} {value:.5f}", flush=True)


if __name__ == "__main__":
    main()
