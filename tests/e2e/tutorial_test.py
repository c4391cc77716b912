#!/usr/bin/env python3
"""The commands of docs/tutorial-fine-tuning.md, as they stand there, on a small model."""
import contextlib
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from fixture import LIMIT_S, case, check, main  # noqa: E402
from cluster import binary  # noqa: E402

PAGE = os.path.join(HERE, "../../docs/tutorial-fine-tuning.md")
TOKENIZER = os.path.join(HERE, "../tokenizer/small/gpt2/tokenizer.json")
HIDDEN, FFN, LAYERS, HEADS = 64, 128, 2, 4
# What a Hugging Face folder has beside its model and tokenizer; it stays with the model.
BESIDE = {"generation_config.json": '{"do_sample": false, "eos_token_id": 2}\n',
          "chat_template.jinja": "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
                                 "{{ message.content + '<|im_end|>\\n' }}{% endfor %}"
                                 "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"}
ANSWERS = {"What is the first word?": "The first word is one.", "And the other?": "That is two of them."}


def block(page, language):
    found = re.search(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)
    check(found, f"the page has no block of {language}")
    return found[1]


def write_tokenizer(folder):
    """A tokenizer with ChatML's tokens; returns its vocabulary's size."""
    with open(TOKENIZER, encoding="utf-8") as file:
        tokenizer = json.load(file)
    number = 1 + max([*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])])
    for token in ("<|im_start|>", "<|im_end|>"):
        tokenizer["added_tokens"].append(dict(tokenizer["added_tokens"][0], id=number, content=token))
        number += 1
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)
    return number


def write_model(folder, vocabulary):
    """A folder as Hugging Face has it, with random weights."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary,
              "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
              "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "max_position_embeddings": 512,
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    shapes = {"model.embed_tokens.weight": (vocabulary, HIDDEN), "model.norm.weight": (HIDDEN,),
              "lm_head.weight": (vocabulary, HIDDEN)}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        shapes.update({name + f"self_attn.{part}_proj.weight": (HIDDEN, HIDDEN) for part in "qkvo"})
        shapes.update({name + "mlp.gate_proj.weight": (FFN, HIDDEN), name + "mlp.up_proj.weight": (FFN, HIDDEN),
                       name + "mlp.down_proj.weight": (HIDDEN, FFN), name + "input_layernorm.weight": (HIDDEN,),
                       name + "post_attention_layernorm.weight": (HIDDEN,)})
    rng, header, body = random.Random(1), {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = [1.0] * count if len(shape) == 1 else [rng.gauss(0, 0.05) for _ in range(count)]
        data = struct.pack(f"<{count}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


def write_chats(path):
    with open(path, "w", encoding="utf-8") as file:
        for i in range(150):
            question, answer = list(ANSWERS.items())[i % 2]
            chat = {"prompt": question, "answer": answer} if i % 3 else \
                {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
            file.write(json.dumps(chat) + "\n")


@case
def the_tutorial_fine_tunes_a_model(fixture):
    """docs/tutorial-fine-tuning.md: one command makes a model that answers as its chats do"""
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    folder, base = fixture.folder, os.path.join(fixture.folder, "base")
    os.makedirs(base)
    write_model(base, write_tokenizer(base))
    for name, text in BESIDE.items():
        with open(os.path.join(base, name), "w", encoding="utf-8") as file:
            file.write(text)
    write_chats(os.path.join(folder, "chat.jsonl"))
    job = block(page, "toml")
    check("learning_rate = 5e-5" in job, "the page's job has another learning rate")
    with open(os.path.join(folder, "tune.toml"), "w", encoding="utf-8") as file:
        # An untrained model has more to learn than one that is fine-tuned.
        file.write(job.replace("learning_rate = 5e-5", "learning_rate = 5e-3"))
    programs = os.path.join(folder, "bin")
    os.makedirs(programs)
    for name in ("atoll", "atoll-coordinator", "atoll-paramserver", "atoll-worker"):
        os.symlink(binary(name), os.path.join(programs, name))
    environment = dict(os.environ, PATH=programs + ":" + os.environ["PATH"],
                       ATOLL_DATA_CACHE=os.path.join(folder, "cache"))
    commands = block(page, "sh")
    check(len(commands.splitlines()) == 1, "the page has more than one command")
    with open(os.path.join(folder, "log"), "w", encoding="utf-8") as log:
        shell = subprocess.Popen(["bash", "-ec", commands], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                 stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        code = shell.wait(LIMIT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)  # daemons that are left
    with open(os.path.join(folder, "log"), encoding="utf-8", errors="replace") as log:
        check(code == 0, f"the commands ended with {code}:\n{log.read()[-3000:]}")
    for name, text in BESIDE.items():
        with open(os.path.join(folder, "tuned", name), encoding="utf-8") as file:
            check(file.read() == text, f"the export's {name} is another one")
    for question, answer in ANSWERS.items():
        prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        made = subprocess.run([binary("atoll"), "--json", "generate", "tuned", "--prompt", prompt, "--temperature",
                               "0", "--stop", "<|im_end|>", "--tokens", "40"], cwd=folder, env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        check(made.returncode == 0, made.stderr)
        text = json.loads(made.stdout)["text"]
        check(text.startswith(answer), f"{question} is answered with {text!r}")


if __name__ == "__main__":
    main("tutorial")
