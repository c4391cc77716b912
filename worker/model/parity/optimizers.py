"""Inner optimizers on a model's parameters: PyTorch's own where it has one; LAMB (You et al. 2020) and
Muon (Jordan et al. 2024, coefficients of You Jiacheng 2025) written after their descriptions. Weight
decay and LAMB's trust ratio are for matrices."""
import math

import torch

RATES = {"sgd": 0.05, "rmsprop": 1e-3, "lamb": 1e-2, "muon": 0.02}
MOMENTUM, BETAS, EPS = 0.9, (0.9, 0.95), 1e-8
ADAMW_RATE = 0.1  # of Muon's
COEFFICIENTS = ((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037),
                (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012))


class Lamb(torch.optim.Optimizer):
    def __init__(self, groups, lr):
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state.setdefault(p, {"step": 0, "m": torch.zeros_like(p),
                                                  "v": torch.zeros_like(p)})
                state["step"] += 1
                state["m"].mul_(BETAS[0]).add_(p.grad, alpha=1 - BETAS[0])
                state["v"].mul_(BETAS[1]).addcmul_(p.grad, p.grad, value=1 - BETAS[1])
                m = state["m"] / (1 - BETAS[0] ** state["step"])
                v = state["v"] / (1 - BETAS[1] ** state["step"])
                direction = m / (v.sqrt() + EPS) + group["weight_decay"] * p
                trust = p.norm() / direction.norm() if p.dim() >= 2 else 1.0
                p.sub_(group["lr"] * trust * direction)


class Muon(torch.optim.Optimizer):
    """Of matrices that are stored [out, in], or transposed."""

    def __init__(self, params, lr, weight_decay, transposed):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.transposed = transposed

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state.setdefault(p, {"m": torch.zeros_like(p)})["m"]
                m.mul_(MOMENTUM).add_(p.grad)
                x = m / (m.norm() + 1e-7)
                tall = x.shape[0] > x.shape[1]
                x = x.T if tall else x
                for a, b, c in COEFFICIENTS:
                    square = x @ x.T
                    x = a * x + (b * square + c * square @ square) @ x
                x = x.T if tall else x
                out, inner = reversed(p.shape) if self.transposed else p.shape
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * math.sqrt(out / inner) * x)


def make(name, params, decay, transposed):
    """Optimizers to step in turn."""
    lr = RATES[name]
    matrices = [p for p in params.values() if p.dim() >= 2]
    others = [p for p in params.values() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    if name == "sgd":
        return [torch.optim.SGD(groups, lr=lr, momentum=MOMENTUM)]
    if name == "rmsprop":
        return [torch.optim.RMSprop(groups, lr=lr, alpha=BETAS[1], eps=EPS, momentum=MOMENTUM)]
    if name == "lamb":
        return [Lamb(groups, lr)]
    in_block = [p for key, p in params.items() if p.dim() == 2 and (".h." in key or ".layers." in key)]
    rest = [p for p in matrices if not any(p is q for q in in_block)]
    groups[0]["params"] = rest
    return [Muon(in_block, lr, decay, transposed),
            torch.optim.AdamW(groups, lr=ADAMW_RATE * lr, betas=BETAS, eps=EPS)]
