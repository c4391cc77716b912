#!/usr/bin/python3
"""The models of models.json in eager PyTorch, as worker/model/parity writes them, at the command of
bench/train/run.

    torch_models.py --threads N --model NAME [--grouped]

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


def text_model(config, rows, tokens):
    kind = config["model_type"]
    bert = kind == "bert"
    shapes_of = {"bert": encoders.shapes, "gpt2": make_fixtures.gpt2_shapes}
    shapes = shapes_of.get(kind, decoders.shapes)(config)
    params = {name: (torch.randn(shape) * 0.02 + (len(shape) == 1 and name.endswith("weight")))
              .requires_grad_() for name, shape in shapes}
    ids = torch.randint(config["vocab_size"], (rows, tokens + 1))
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
    parser.add_argument("--grouped", action="store_true", help="sort rows by expert")
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
        params, loss_of = text_model(model["config"], model["rows"], model["tokens"])
    params = list(params.values())
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
