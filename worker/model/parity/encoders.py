"""BERT (Devlin et al. 2019) for masked tokens in plain PyTorch, with the parameter names of
transformers' BertForMaskedLM: norms of sums, learned positions and token types, GELU."""
import math

import torch
import torch.nn.functional as F

BERT = {
    "architectures": ["BertForMaskedLM"], "model_type": "bert", "vocab_size": 32, "hidden_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24, "hidden_act": "gelu",
    "max_position_embeddings": 20, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
    "mask_token_id": 3,
}
# Of each sequence of a batch, the tokens before its padding.
PADDED = {**BERT, "pad_token_id": 0}
LENGTHS = (16, 11, 6)


def shapes(c):
    d, f = c["hidden_size"], c["intermediate_size"]

    def linear(name, rows, cols):
        yield name + ".weight", (rows, cols)
        yield name + ".bias", (rows,)

    def norm(name):
        yield name + ".weight", (d,)
        yield name + ".bias", (d,)

    for table, rows in (("word", c["vocab_size"]), ("position", c["max_position_embeddings"]),
                        ("token_type", c["type_vocab_size"])):
        yield f"bert.embeddings.{table}_embeddings.weight", (rows, d)
    yield from norm("bert.embeddings.LayerNorm")
    for i in range(c["num_hidden_layers"]):
        h = f"bert.encoder.layer.{i}."
        for name in ("query", "key", "value"):
            yield from linear(h + f"attention.self.{name}", d, d)
        yield from linear(h + "attention.output.dense", d, d)
        yield from norm(h + "attention.output.LayerNorm")
        yield from linear(h + "intermediate.dense", f, d)
        yield from linear(h + "output.dense", d, f)
        yield from norm(h + "output.LayerNorm")
    yield from linear("cls.predictions.transform.dense", d, d)
    yield from norm("cls.predictions.transform.LayerNorm")
    yield "cls.predictions.bias", (c["vocab_size"],)


def forward(c, p, ids, types, lengths=None):
    heads = c["num_attention_heads"]

    def norm(x, name):
        return F.layer_norm(x, (x.shape[-1],), p[name + ".weight"], p[name + ".bias"],
                            c["layer_norm_eps"])

    def linear(x, name):
        return x @ p[name + ".weight"].T + p[name + ".bias"]

    def split(x):
        return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)

    e = "bert.embeddings."
    x = p[e + "word_embeddings.weight"][ids] + p[e + "token_type_embeddings.weight"][types]
    x = norm(x + p[e + "position_embeddings.weight"][:ids.shape[1]], e + "LayerNorm")
    for i in range(c["num_hidden_layers"]):
        h = f"bert.encoder.layer.{i}."
        q, k, v = (split(linear(x, h + f"attention.self.{name}"))
                   for name in ("query", "key", "value"))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if lengths is not None:
            padding = torch.arange(ids.shape[1]) >= torch.tensor(lengths)[:, None]
            scores = scores.masked_fill(padding[:, None, None, :], -math.inf)
        out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        x = norm(x + linear(out, h + "attention.output.dense"), h + "attention.output.LayerNorm")
        hidden = F.gelu(linear(x, h + "intermediate.dense"))
        x = norm(x + linear(hidden, h + "output.dense"), h + "output.LayerNorm")
    head = "cls.predictions."
    x = norm(F.gelu(linear(x, head + "transform.dense")), head + "transform.LayerNorm")
    return x @ p[e + "word_embeddings.weight"].T + p[head + "bias"]
