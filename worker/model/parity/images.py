#!/usr/bin/python3
"""Writes the fixtures of image_parity_test.cc beside itself, with Debian's python3-torch:

    /usr/bin/python3 worker/model/parity/images.py

ResNet (He et al. 2016) and EfficientNet (Tan and Le 2019) in plain PyTorch with torchvision's parameter
names, in float64 from float32 weights. Files: config.json and model.safetensors of the model, and
expected.safetensors with

    labels          [batches, rows]; pixel i of all batches is i * 40503 // 64 % 256
    logits          [rows, classes] of the first batch by the running statistics
    grad.<name>     gradient of the first batch's mean loss, for every trained parameter
    losses          [steps] mean losses of SGD's steps over the batches in turn, before each step
    final.<name>    running statistics after these steps
"""
import json
import math
import pathlib

import torch
import torch.nn.functional as F

from make_fixtures import write_safetensors

ROWS, BATCHES, STEPS = 6, 3, 20
LR, MOMENTUM, DECAY, CLIP = 0.01, 0.9, 0.1, 1.0
SIZES = {"num_labels": 5, "batch_norm_eps": 1e-5}
CONFIGS = {
    "resnet": {"model_type": "resnet", "image_size": 17, "num_channels": 3, **SIZES,
               "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.25, 0.3], "depths": [1, 2],
               "hidden_sizes": [16, 24], "embedding_size": 8, "layer_type": "bottleneck",
               "hidden_act": "relu"},
    "resnet_basic": {"model_type": "resnet", "image_size": 12, "num_channels": 1, **SIZES,
                     "image_mean": [0.5], "image_std": [0.5], "depths": [1, 1],
                     "hidden_sizes": [8, 16], "embedding_size": 8, "layer_type": "basic",
                     "small_stem": True},
    "efficientnet": {"model_type": "efficientnet", "image_size": 64, "num_channels": 3, **SIZES,
                     "image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25],
                     "label_smoothing": 0.1, "width_coefficient": 0.1, "depth_coefficient": 0.4},
}


class Net:
    """Parameters by name: made when they are first used, read afterwards."""

    def __init__(self, config, dtype=torch.float64):
        self.dtype = dtype
        self.c, self.params, self.stats, self.train = config, {}, {}, True
        self.generator = torch.Generator().manual_seed(20261122)

    def param(self, name, *shape):
        if name not in self.params:
            scale = math.sqrt(1.5 / math.prod(shape[1:])) if len(shape) > 1 else 0.2
            value = torch.randn(shape, generator=self.generator) * scale
            if len(shape) == 1 and name.endswith("weight"):
                value += 1
            self.params[name] = value.to(self.dtype).requires_grad_()
        return self.params[name]

    def conv(self, x, name, out, kernel, stride=1, groups=1):
        w = self.param(name + ".weight", out, x.shape[1] // groups, kernel, kernel)
        return F.conv2d(x, w, stride=stride, padding=kernel // 2, groups=groups)

    def norm(self, x, name):
        c = x.shape[1]
        for stat, make in ((".running_mean", torch.randn), (".running_var", torch.rand)):
            if name + stat not in self.stats:
                self.stats[name + stat] = (make(c, generator=self.generator) * 0.5 +
                                           (0.5 if stat == ".running_var" else 0)).to(self.dtype)
        return F.batch_norm(x, self.stats[name + ".running_mean"], self.stats[name + ".running_var"],
                            self.param(name + ".weight", c), self.param(name + ".bias", c),
                            self.train, 0.1, self.c["batch_norm_eps"])

    def linear(self, x, name):
        return F.linear(x, self.param(name + ".weight", self.c["num_labels"], x.shape[1]),
                        self.param(name + ".bias", self.c["num_labels"]))

    def resnet(self, x):
        c, small = self.c, self.c.get("small_stem", False)
        x = self.norm(self.conv(x, "conv1", c["embedding_size"], 3 if small else 7, 1 if small else 2),
                      "bn1").relu()
        if not small:
            x = F.max_pool2d(x, 3, 2, 1)
        for stage, (depth, width) in enumerate(zip(c["depths"], c["hidden_sizes"])):
            for i in range(depth):
                x = self.resnet_block(x, f"layer{stage + 1}.{i}.", width,
                                      2 if stage > 0 and i == 0 else 1)
        return self.linear(x.mean((2, 3)), "fc")

    def resnet_block(self, x, p, width, stride):
        if self.c["layer_type"] == "bottleneck":
            y = self.norm(self.conv(x, p + "conv1", width // 4, 1), p + "bn1").relu()
            y = self.norm(self.conv(y, p + "conv2", width // 4, 3, stride), p + "bn2").relu()
            y = self.norm(self.conv(y, p + "conv3", width, 1), p + "bn3")
        else:
            y = self.norm(self.conv(x, p + "conv1", width, 3, stride), p + "bn1").relu()
            y = self.norm(self.conv(y, p + "conv2", width, 3), p + "bn2")
        if stride != 1 or x.shape[1] != width:
            x = self.norm(self.conv(x, p + "downsample.0", width, 1, stride), p + "downsample.1")
        return (x + y).relu()

    def efficientnet(self, x):
        def scaled(channels):
            wanted = channels * self.c["width_coefficient"]
            near = max(8, int(wanted + 4) // 8 * 8)
            return near + 8 if near < 0.9 * wanted else near

        x = F.silu(self.norm(self.conv(x, "features.0.0", scaled(32), 3, 2), "features.0.1"))
        stages = ((1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3),
                  (6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1))
        for number, (expand, kernel, stride, channels, blocks) in enumerate(stages, 1):
            for i in range(math.ceil(blocks * self.c["depth_coefficient"])):
                x = self.inverted(x, f"features.{number}.{i}.block.", expand, kernel,
                                  stride if i == 0 else 1, scaled(channels))
        x = F.silu(self.norm(self.conv(x, "features.8.0", 4 * x.shape[1], 1), "features.8.1"))
        return self.linear(x.mean((2, 3)), "classifier.1")

    def inverted(self, x, p, expand, kernel, stride, out):
        y, part, wide = x, 0, x.shape[1] * expand
        if expand != 1:
            y = F.silu(self.norm(self.conv(y, p + "0.0", wide, 1), p + "0.1"))
            part = 1
        y = F.silu(self.norm(self.conv(y, f"{p}{part}.0", wide, kernel, stride, wide),
                             f"{p}{part}.1"))
        s, inner = y.mean((2, 3), keepdim=True), max(1, x.shape[1] // 4)
        fc = f"{p}{part + 1}."
        s = F.silu(F.conv2d(s, self.param(fc + "fc1.weight", inner, wide, 1, 1),
                            self.param(fc + "fc1.bias", inner)))
        s = F.conv2d(s, self.param(fc + "fc2.weight", wide, inner, 1, 1),
                     self.param(fc + "fc2.bias", wide))
        y = y * s.sigmoid()
        y = self.norm(self.conv(y, f"{p}{part + 2}.0", out, 1), f"{p}{part + 2}.1")
        return x + y if stride == 1 and x.shape[1] == out else y

    def forward(self, pixels):
        c = self.c
        side, channels = c["image_size"], c["num_channels"]
        x = pixels.to(self.dtype).reshape(-1, side, side, channels) / 255
        x = (x - torch.tensor(c["image_mean"])) / torch.tensor(c["image_std"])
        return getattr(self, c["model_type"])(x.permute(0, 3, 1, 2))


def make(folder, config):
    net = Net(config)
    size = config["image_size"] ** 2 * config["num_channels"]
    pixels = (torch.arange(BATCHES * ROWS * size) * 40503 // 64 % 256).reshape(BATCHES, ROWS, size)
    labels = torch.randint(config["num_labels"], (BATCHES, ROWS), generator=net.generator)
    net.forward(pixels[0])  # makes all parameters
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for stat in net.stats:  # as float32 has them
        net.stats[stat] = net.stats[stat].float().double()
    write_safetensors(folder / "model.safetensors", {**net.params, **net.stats})
    net.train = False
    expected = {"labels": labels.to(torch.float32), "logits": net.forward(pixels[0])}
    net.train = True
    kept = {name: stat.clone() for name, stat in net.stats.items()}

    def compute_loss(batch):
        return F.cross_entropy(net.forward(pixels[batch]), labels[batch],
                               label_smoothing=config.get("label_smoothing", 0.0))

    compute_loss(0).backward()
    expected.update({"grad." + name: p.grad.clone() for name, p in net.params.items()})
    net.stats = kept
    params = net.params.values()
    # AdamW would make steps out of the rounding of gradients that are zero: those of biases that the
    # next batch normalisation takes out again.
    optimizer = torch.optim.SGD(
        [{"params": [p for p in params if p.dim() >= 2], "weight_decay": DECAY},
         {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}],
        lr=LR, momentum=MOMENTUM)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = compute_loss(step % BATCHES)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(params), CLIP)
        optimizer.step()
        losses.append(loss.item())
    expected["losses"] = torch.tensor(losses, dtype=torch.float64)
    expected.update({"final." + name: stat for name, stat in net.stats.items()})
    write_safetensors(folder / "expected.safetensors", expected)
    print(folder.name, "losses", " ".join(f"{x:.4f}" for x in losses))


def main():
    here = pathlib.Path(__file__).parent
    for name, config in CONFIGS.items():
        make(here / name, config)


if __name__ == "__main__":
    main()
