"""Decoders of the LLaMA line in plain PyTorch, after their papers and transformers' parameter names.

A family is what it changes in LLAMA's traits:
    Mistral (Jiang et al. 2023): a query sees the last `sliding_window` positions, itself included.
    Qwen 2 (Yang et al. 2024): biases of queries, keys and values. Qwen 3 (2025): RMSNorm of every
      head's queries and keys before they are turned, instead.
    OLMo 2 (OLMo team 2024): RMSNorm behind attention and MLP and of all queries and keys, none before.
    Gemma 2 (Gemma team 2024): norms on both sides whose weights start from 0 (1 + w), GeGLU, scores
      and logits capped by cap * tanh(x / cap), embeddings times sqrt(hidden), a window in even layers.
    Phi-3 (Abdin et al. 2024): one matrix for queries, keys and values, one for gate and up.
Mixtures of experts, whose router is a softmax over all of them but for dots.llm1's:
    Mixtral (Jiang et al. 2024): the weights of a token's experts are divided by their sum.
    Qwen 2 MoE (Yang et al. 2024): beside them an expert for all tokens, weighted by a sigmoid; Qwen
      3 MoE (2025): Qwen 3's attention, weights divided by their sum, no such expert.
    OLMoE (Muennighoff et al. 2024): RMSNorm of all queries and keys.
    dots.llm1 (rednote 2025): Qwen 3's attention and DeepSeek's router: sigmoids, with a bias where
      experts are chosen; weights divided by their sum, then scaled; an expert for all tokens.
"""
import math

import torch
import torch.nn.functional as F

SIZES = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6, "rope_theta": 100.0, "tie_word_embeddings": False,
}
SILU = {**SIZES, "hidden_act": "silu"}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64,
    "hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 24, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
}
CONFIGS = {
    "llama": LLAMA,
    "llama_tied": {**LLAMA, "tie_word_embeddings": True, "num_key_value_heads": 1,
                   "rope_theta": 500.0},
    "llama3": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SILU,
               "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                "high_freq_factor": 4.0, "original_max_position_embeddings": 64}},
    "llama_linear": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SILU,
                     "rope_scaling": {"type": "linear", "factor": 2.0}},
    "llama_yarn": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SILU,
                   "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8.0,
                                    "beta_slow": 1.0, "original_max_position_embeddings": 64}},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", **SILU,
                "sliding_window": 5},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **SILU,
              "tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": 5,
              "max_window_layers": 1},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **SILU, "head_dim": 8,
              "attention_bias": False, "use_sliding_window": True, "sliding_window": 5,
              "max_window_layers": 1},
    "olmo2": {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", **SILU},
    "gemma2": {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", **SIZES,
               "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "head_dim": 8,
               "sliding_window": 5, "query_pre_attn_scalar": 12, "attn_logit_softcapping": 2.0,
               "final_logit_softcapping": 1.5},
    "phi3": {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", **SILU,
             "sliding_window": 12, "original_max_position_embeddings": 64,
             "pad_token_id": None},  # transformers' default is beyond so small a vocabulary
    "mixtral": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **SILU,
                "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 5,
                "router_aux_loss_coef": 0.02, "output_router_logits": False},
    "qwen2_moe": {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", **SILU,
                  "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 12,
                  "shared_expert_intermediate_size": 20, "norm_topk_prob": False,
                  "decoder_sparse_step": 1, "mlp_only_layers": [0], "use_sliding_window": False,
                  "router_aux_loss_coef": 0.2, "output_router_logits": True},
    "qwen3_moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", **SILU,
                  "head_dim": 8, "attention_bias": False, "use_sliding_window": False,
                  "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
                  "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
                  "router_aux_loss_coef": 0.001, "output_router_logits": False},
    "olmoe": {"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", **SILU,
              "attention_bias": False, "num_experts": 8, "num_experts_per_tok": 3,
              "norm_topk_prob": False, "router_aux_loss_coef": 0.1, "output_router_logits": True,
              "pad_token_id": 1},
    "dots1": {"architectures": ["Dots1ForCausalLM"], "model_type": "dots1", **SILU, "head_dim": 8,
              "attention_bias": False, "sliding_window": None, "n_routed_experts": 6,
              "num_experts_per_tok": 2, "n_shared_experts": 2, "moe_intermediate_size": 8,
              "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
              "n_group": 1, "topk_group": 1},
}
EXPERT_MATRICES = {"mixtral": ("block_sparse_moe.", "w1", "w3", "w2")}


def expert_matrices(c):
    """What stands before a mixture's names, and the names of an expert's gate, up and down."""
    return EXPERT_MATRICES.get(c["model_type"], ("mlp.", "gate_proj", "up_proj", "down_proj"))


def experts_of(c, layer):
    if layer in c.get("mlp_only_layers", []) or layer < c.get("first_k_dense_replace", 0):
        return 0
    return c.get("num_local_experts", c.get("num_experts", c.get("n_routed_experts", 0)))


def head_dim(c):
    return c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])


def shapes(c):
    kind, d, f = c["model_type"], c["hidden_size"], c["intermediate_size"]
    q, kv = head_dim(c) * c["num_attention_heads"], head_dim(c) * c["num_key_value_heads"]
    yield "model.embed_tokens.weight", (c["vocab_size"], d)
    for i in range(c["num_hidden_layers"]):
        h = f"model.layers.{i}."
        if kind == "phi3":
            yield h + "self_attn.qkv_proj.weight", (q + 2 * kv, d)
        else:
            for name, rows in (("q", q), ("k", kv), ("v", kv)):
                yield h + f"self_attn.{name}_proj.weight", (rows, d)
                if kind in ("qwen2", "qwen2_moe"):
                    yield h + f"self_attn.{name}_proj.bias", (rows,)
        yield h + "self_attn.o_proj.weight", (d, q)
        if kind == "phi3":
            yield h + "mlp.gate_up_proj.weight", (2 * f, d)
        elif not experts_of(c, i):
            yield h + "mlp.gate_proj.weight", (f, d)
            yield h + "mlp.up_proj.weight", (f, d)
        if experts_of(c, i):
            yield from mixture_shapes(c, h, i)
        else:
            yield h + "mlp.down_proj.weight", (d, f)
        if kind in ("qwen3", "qwen3_moe", "dots1", "olmo2", "olmoe"):
            of_all = kind in ("olmo2", "olmoe")
            yield h + "self_attn.q_norm.weight", (q if of_all else head_dim(c),)
            yield h + "self_attn.k_norm.weight", (kv if of_all else head_dim(c),)
        if kind != "olmo2":
            yield h + "input_layernorm.weight", (d,)
        yield h + "post_attention_layernorm.weight", (d,)
        if kind == "gemma2":
            yield h + "pre_feedforward_layernorm.weight", (d,)
        if kind in ("gemma2", "olmo2"):
            yield h + "post_feedforward_layernorm.weight", (d,)
    yield "model.norm.weight", (d,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], d)


def mixture_shapes(c, h, layer):
    prefix, gate, up, down = expert_matrices(c)
    d, f = c["hidden_size"], c.get("moe_intermediate_size", c["intermediate_size"])
    yield h + prefix + "gate.weight", (experts_of(c, layer), d)
    for e in range(experts_of(c, layer)):
        yield h + f"{prefix}experts.{e}.{gate}.weight", (f, d)
        yield h + f"{prefix}experts.{e}.{up}.weight", (f, d)
        yield h + f"{prefix}experts.{e}.{down}.weight", (d, f)
    if c["model_type"] == "qwen2_moe":
        yield from gated_shapes(h + "mlp.shared_expert.", d, c["shared_expert_intermediate_size"])
        yield h + "mlp.shared_expert_gate.weight", (1, d)
    if c["model_type"] == "dots1":
        yield from gated_shapes(h + "mlp.shared_experts.", d, f * c["n_shared_experts"])
        yield h + "mlp.gate.e_score_correction_bias", (experts_of(c, layer),)


def gated_shapes(h, d, f):
    yield h + "gate_proj.weight", (f, d)
    yield h + "up_proj.weight", (f, d)
    yield h + "down_proj.weight", (d, f)


def rope(c, positions):
    """Cosines and sines [positions, head_dim]."""
    dim, theta, scaling = head_dim(c), c["rope_theta"], c.get("rope_scaling") or {}
    angles = theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    kind, length = scaling.get("rope_type", scaling.get("type")), 1.0
    if kind == "linear":
        angles = angles / scaling["factor"]
    elif kind == "llama3":
        context = scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        new = []
        for angle in angles.tolist():
            wavelength = 2 * math.pi / angle
            if wavelength < context / high:
                new.append(angle)
            elif wavelength > context / low:
                new.append(angle / scaling["factor"])
            else:
                smooth = (context / wavelength - low) / (high - low)
                new.append((1 - smooth) * angle / scaling["factor"] + smooth * angle)
        angles = torch.tensor(new, dtype=torch.float64)
    elif kind == "yarn":
        def dimension(rotations):
            context = scaling["original_max_position_embeddings"]
            return dim * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(theta))
        low = max(math.floor(dimension(scaling["beta_fast"])), 0)
        high = min(math.ceil(dimension(scaling["beta_slow"])), dim - 1)
        ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
        angles = angles / scaling["factor"] * ramp + angles * (1 - ramp)
        length = 0.1 * math.log(scaling["factor"]) + 1
    table = torch.outer(torch.arange(positions, dtype=torch.float64), angles)
    table = torch.cat((table, table), -1)
    return table.cos() * length, table.sin() * length


def window(c, layer):
    kind = c["model_type"]
    if kind in ("qwen2", "qwen3"):
        windowed = c["use_sliding_window"] and layer >= c["max_window_layers"]
    elif kind in ("qwen2_moe", "qwen3_moe"):
        windowed = False
    elif kind == "gemma2":
        windowed = layer % 2 == 0
    else:
        windowed = True
    return c.get("sliding_window") if windowed else None


def capped(x, cap):
    return cap * torch.tanh(x / cap) if cap else x


def attention(c, q, k, v, layer):  # each [B, heads, T, head_dim]
    scale = 1 / math.sqrt(c.get("query_pre_attn_scalar", q.shape[-1]))
    scores = capped(q @ k.transpose(-1, -2) * scale, c.get("attn_logit_softcapping"))
    length = q.shape[-2]
    distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    seen = distance >= 0
    if window(c, layer):
        seen = seen & (distance < window(c, layer))
    return scores.masked_fill(~seen, -math.inf).softmax(-1) @ v


def balance(scores, chosen):
    """transformers' load_balancing_loss_func, of each sequence and layer by itself."""
    experts = scores.shape[-1]
    tokens_per_expert = F.one_hot(chosen, experts).double().mean(1)  # [B, k, experts]
    return (tokens_per_expert * scores.mean(1)[:, None]).sum((1, 2)).mean() * experts


def run_experts(x, chosen, weights, count, expert):
    """Sums over the experts of each row of x [N, d], as transformers does: one expert after another."""
    y = torch.zeros_like(x)
    for e in range(count):
        rows, j = (chosen == e).nonzero(as_tuple=True)
        y = y.index_add(0, rows, weights[rows, j, None] * expert(e, x[rows]))
    return y


def forward(c, p, ids, balances=None):
    """Logits; where `balances` is a list, each mixture appends its balance loss."""
    kind, groups = c["model_type"], c["num_attention_heads"] // c["num_key_value_heads"]
    q_size = head_dim(c) * c["num_attention_heads"]
    kv_size = head_dim(c) * c["num_key_value_heads"]
    cosine, sine = rope(c, ids.shape[1])

    def norm(x, name):
        w = p[name + ".weight"] + (1 if kind == "gemma2" else 0)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + c["rms_norm_eps"]) * w

    def linear(x, name):
        y = x @ p[name + ".weight"].T
        if name + ".lora_A.weight" in p:
            y = y + c["lora_scale"] * (x @ p[name + ".lora_A.weight"].T) @ p[name + ".lora_B.weight"].T
        return y + p[name + ".bias"] if name + ".bias" in p else y

    def heads(x):
        return x.view(x.shape[0], x.shape[1], -1, head_dim(c)).transpose(1, 2)

    def rotate(x):
        first, second = x.chunk(2, -1)
        return x * cosine + torch.cat((-second, first), -1) * sine

    def attend(n, h, layer):
        if kind == "phi3":
            q, k, v = linear(n, h + "qkv_proj").split((q_size, kv_size, kv_size), -1)
        else:
            q, k, v = (linear(n, h + f"{name}_proj") for name in "qkv")
        if kind in ("olmo2", "olmoe"):
            q, k = norm(q, h + "q_norm"), norm(k, h + "k_norm")
        q, k, v = heads(q), heads(k), heads(v)
        if kind in ("qwen3", "qwen3_moe", "dots1"):
            q, k = norm(q, h + "q_norm"), norm(k, h + "k_norm")
        q, k = rotate(q), rotate(k)
        k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
        out = attention(c, q, k, v, layer)
        return linear(out.transpose(1, 2).reshape(n.shape[0], n.shape[1], -1), h + "o_proj")

    def mlp(n, h):
        if kind == "phi3":
            gate, up = linear(n, h + "gate_up_proj").chunk(2, -1)
        else:
            gate, up = linear(n, h + "gate_proj"), linear(n, h + "up_proj")
        act = F.gelu(gate, approximate="tanh") if kind == "gemma2" else F.silu(gate)
        return linear(act * up, h + "down_proj")

    def mixture(n, h):
        prefix, gate, up, down = expert_matrices(c)
        scores = linear(n, h + prefix + "gate")
        scores = scores.sigmoid() if kind == "dots1" else scores.softmax(-1)
        bias = p.get(h + prefix + "gate.e_score_correction_bias", 0)
        chosen = (scores + bias).topk(c["num_experts_per_tok"], -1).indices
        weights = scores.gather(-1, chosen)
        if kind == "mixtral" or c.get("norm_topk_prob"):
            weights = weights / weights.sum(-1, keepdim=True)
        weights = weights * c.get("routed_scaling_factor", 1)

        def expert(e, x):
            matrices = h + f"{prefix}experts.{e}."
            return linear(F.silu(linear(x, matrices + gate)) * linear(x, matrices + up),
                          matrices + down)

        y = run_experts(n.flatten(0, 1), chosen.flatten(0, 1), weights.flatten(0, 1),
                        scores.shape[-1], expert).view_as(n)
        if kind == "qwen2_moe":
            weight = linear(n, h + "mlp.shared_expert_gate").sigmoid()
            y = y + weight * mlp(n, h + "mlp.shared_expert.")
        if kind == "dots1":
            y = y + mlp(n, h + "mlp.shared_experts.")
        if balances is not None:
            balances.append(balance(scores, chosen))
        return y

    x = p["model.embed_tokens.weight"][ids]
    if kind == "gemma2":
        x = x * math.sqrt(c["hidden_size"])
    for i in range(c["num_hidden_layers"]):
        h = f"model.layers.{i}."
        if kind == "olmo2":
            x = x + norm(attend(x, h + "self_attn.", i), h + "post_attention_layernorm")
            x = x + norm(mlp(x, h + "mlp."), h + "post_feedforward_layernorm")
        elif kind == "gemma2":
            n = norm(x, h + "input_layernorm")
            x = x + norm(attend(n, h + "self_attn.", i), h + "post_attention_layernorm")
            n = norm(x, h + "pre_feedforward_layernorm")
            x = x + norm(mlp(n, h + "mlp."), h + "post_feedforward_layernorm")
        else:
            x = x + attend(norm(x, h + "input_layernorm"), h + "self_attn.", i)
            n = norm(x, h + "post_attention_layernorm")
            x = x + (mixture(n, h) if experts_of(c, i) else mlp(n, h + "mlp."))
    head = "model.embed_tokens" if c["tie_word_embeddings"] else "lm_head"
    logits = linear(norm(x, "model.norm"), head)
    return capped(logits, c.get("final_logit_softcapping"))
