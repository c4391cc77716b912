#!/usr/bin/python3
"""`atoll evaluate` against lm-evaluation-harness's definitions, written here anew: tasks of the shapes of ARC, HellaSwag
and LAMBADA, and whole texts, of a GPT-2 on bytes whose block adds nothing, so that its logits are a few lines of Python."""
import json
import math
import os
import random
import re
import struct
import subprocess
import sys
import tempfile

HIDDEN, POSITIONS, VOCABULARY = 12, 24, 256
EPSILON, TOLERANCE = 1e-5, 2e-4


class Model:
    """Embedding, position, a final norm, the embedding again."""

    def __init__(self, seed):
        rng = random.Random(seed)
        self.tokens = [[rng.gauss(0, 1) for _ in range(HIDDEN)] for _ in range(VOCABULARY)]
        self.tokens[ord(" ")] = [1.5 * value for value in self.tokens[ord("e")]]  # is the likeliest after an e
        self.positions = [[rng.gauss(0, 0.5) for _ in range(HIDDEN)] for _ in range(POSITIONS)]
        self.scale = [1 + rng.gauss(0, 0.2) for _ in range(HIDDEN)]
        self.shift = [rng.gauss(0, 0.2) for _ in range(HIDDEN)]

    def log_probabilities(self, ids):
        """Of the token after each of `ids`, by token."""
        rows = []
        for at, token in enumerate(ids):
            x = [a + b for a, b in zip(self.tokens[token], self.positions[at])]
            mean = sum(x) / HIDDEN
            deviation = math.sqrt(sum((v - mean) ** 2 for v in x) / HIDDEN + EPSILON)
            x = [(v - mean) / deviation * g + b for v, g, b in zip(x, self.scale, self.shift)]
            logits = [sum(a * b for a, b in zip(x, row)) for row in self.tokens]
            largest = max(logits)
            total = largest + math.log(sum(math.exp(v - largest) for v in logits))
            rows.append([v - total for v in logits])
        return rows

    def write(self, folder):
        zeros = lambda *shape: (shape, [0.0] * math.prod(shape))  # noqa: E731
        ones = lambda n: ((n,), [1.0] * n)  # noqa: E731
        flat = lambda rows: ((len(rows), HIDDEN), [v for row in rows for v in row])  # noqa: E731
        block = "transformer.h.0."
        tensors = {"transformer.wte.weight": flat(self.tokens), "transformer.wpe.weight": flat(self.positions),
                   "transformer.ln_f.weight": ((HIDDEN,), self.scale), "transformer.ln_f.bias": ((HIDDEN,), self.shift)}
        for norm in ("ln_1", "ln_2"):
            tensors |= {f"{block}{norm}.weight": ones(HIDDEN), f"{block}{norm}.bias": zeros(HIDDEN)}
        for name, rows, columns in (("attn.c_attn", HIDDEN, 3 * HIDDEN), ("attn.c_proj", HIDDEN, HIDDEN),
                                    ("mlp.c_fc", HIDDEN, 4 * HIDDEN), ("mlp.c_proj", 4 * HIDDEN, HIDDEN)):
            tensors |= {f"{block}{name}.weight": zeros(rows, columns), f"{block}{name}.bias": zeros(columns)}
        header, data = {}, b""
        for name, (shape, values) in tensors.items():
            encoded = struct.pack(f"<{len(values)}f", *values)
            header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(encoded)]}
            data += encoded
        text = json.dumps(header).encode()
        with open(os.path.join(folder, "model.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + data)
        config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCABULARY,
                  "n_positions": POSITIONS, "n_embd": HIDDEN, "n_layer": 1, "n_head": 2,
                  "layer_norm_epsilon": EPSILON, "activation_function": "gelu_new"}
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)


def loglikelihood(model, context, continuation):
    """The harness's loglikelihood() of one pair, with bytes for tokens: the sum, and whether it is greedy."""
    spaces = len(context) - len(context.rstrip())
    if spaces:
        context, continuation = context[:-spaces], context[-spaces:] + continuation
    both, context = (context + continuation).encode(), context.encode()
    scored = both[len(context):]
    inputs = both[-(POSITIONS + 1):][:-1]
    scored = scored[-len(inputs):]
    rows = model.log_probabilities(inputs)[-len(scored):]
    greedy = all(max(range(VOCABULARY), key=row.__getitem__) == token for row, token in zip(rows, scored))
    return sum(row[token] for row, token in zip(rows, scored)), greedy


def rolling(model, text):
    """Its loglikelihood_rolling(), where the first byte stands for the prefix."""
    prefix, tokens = text.encode()[:1], text.encode()[1:]
    total, done = 0.0, 0
    while done < len(tokens):
        count = min(len(tokens) - done, POSITIONS)
        end = done + count
        known = (prefix + tokens)[max(0, end - POSITIONS):end] if done else prefix + tokens[:end - 1]
        rows = model.log_probabilities(known)[-count:]
        total += sum(row[token] for row, token in zip(rows, tokens[done:end]))
        done = end
    return total


def mean_and_error(values):
    n, mean = len(values), sum(values) / len(values)
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1)) / math.sqrt(n)


def choices(model, items):
    hits, normalised = [], []
    for item in items:
        found = [loglikelihood(model, item["prompt"], " " + choice)[0] for choice in item["choices"]]
        right = item["answer"] if isinstance(item["answer"], int) else item["choices"].index(item["answer"])
        best = max(range(len(found)), key=found.__getitem__)
        lengths = [len(choice) for choice in item["choices"]]
        best_normalised = max(range(len(found)), key=lambda i: found[i] / lengths[i])
        hits.append(float(best == right))
        normalised.append(float(best_normalised == right))
    names = ("accuracy", "accuracy_standard_error", "normalised_accuracy", "normalised_accuracy_standard_error")
    return dict(zip(names, mean_and_error(hits) + mean_and_error(normalised)))


def exact(model, items):
    found = [loglikelihood(model, item["prompt"], item["answer"]) for item in items]
    accuracy, error = mean_and_error([float(greedy) for _, greedy in found])
    return {"accuracy": accuracy, "accuracy_standard_error": error,
            "perplexity": math.exp(-sum(value for value, _ in found) / len(found))}


def perplexity(model, items):
    total = sum(rolling(model, item["text"]) for item in items)
    words = sum(len(re.split(r"\s+", item["text"])) for item in items)
    size = sum(len(item["text"].encode()) for item in items)
    return {"word_perplexity": math.exp(-total / words), "byte_perplexity": math.exp(-total / size),
            "bits_per_byte": -total / size / math.log(2)}


def sentence(rng, words):
    return " ".join("".join(rng.choice("abcdeé") for _ in range(rng.randint(1, 6))) for _ in range(words))


def greedy_answer(model, prompt, length):
    """What the model itself would write."""
    answer = b""
    for _ in range(length):
        row = model.log_probabilities((prompt.encode() + answer)[-POSITIONS:])[-1]
        answer += bytes([max(range(VOCABULARY), key=row.__getitem__)])
    return answer.decode(errors="replace")


def tasks(model):
    rng = random.Random(7)
    arc = [{"prompt": f"Question: {sentence(rng, 5)}\nAnswer:", "choices": [sentence(rng, rng.randint(1, 3)) for _ in range(4)],
            "answer": rng.randrange(4), "id": f"q{i}"} for i in range(30)]
    hellaswag = [{"prompt": sentence(rng, 2), "choices": [sentence(rng, 2) for _ in range(4)]} for _ in range(20)]
    for item in hellaswag:
        item["answer"] = rng.choice(item["choices"])
    lambada = [{"prompt": sentence(rng, rng.randint(1, 8)), "answer": " " + sentence(rng, 1)} for _ in range(15)]
    own = [(prompt, greedy_answer(model, prompt, 2)) for prompt in (sentence(rng, 2) + "e" for _ in range(40))]
    own = [{"prompt": prompt, "answer": answer} for prompt, answer in own if answer.startswith(" ")]
    check(len(own) >= 5, f"{len(own)} answers are the model's own")
    lambada += own[:5]
    texts = [{"text": sentence(rng, rng.randint(1, 40))} for _ in range(8)]
    return {"arc": (choices, arc), "hellaswag": (choices, hellaswag), "lambada": (exact, lambada),
            "texts": (perplexity, texts)}


def run(*arguments):
    return subprocess.run(["cli/atoll", "--json", "evaluate", *arguments], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def main():
    model = Model(3)
    with tempfile.TemporaryDirectory() as folder:
        model.write(folder)
        for name, (definition, items) in tasks(model).items():
            path = os.path.join(folder, name + ".jsonl")
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(item) + "\n" for item in items)
            done = run(folder, "--task", path)
            check(done.returncode == 0, f"{name}: {done.stderr}")
            found = json.loads(done.stdout)
            check(found["items"] == len(items), f"{name}: {found}")
            for field, value in definition(model, items).items():
                check(abs(found[field] - value) <= TOLERANCE * max(1, abs(value)),
                      f"{name}: {field} is {found[field]}, and by the definition {value}")
            check(json.loads(run(folder, "--task", path, "--limit", "3").stdout)["items"] == 3, f"{name}: --limit")
        for text in ('{"prompt": "a", "choices": ["b"], "answer": 0}', '{"prompt": "a", "choices": ["b", "c"], "answer": 2}',
                     '{"answer": "a"}', '{"text": ""}', '{"other": 1}', "[1]", ""):
            path = os.path.join(folder, "wrong.jsonl")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            refused = run(folder, "--task", path)
            check(refused.returncode == 1 and "wrong.jsonl" in refused.stderr, f"{text}: {refused}")
    print("PASSED")


if __name__ == "__main__":
    main()
