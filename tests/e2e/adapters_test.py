#!/usr/bin/python3
"""Jobs that train an adapter beside a model that an earlier job has exported, by text or by preferences."""
import json
import math
import os
import random
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import WORDS, case, check, main, same_losses  # noqa: E402

HIDDEN, FEED_FORWARD, LAYERS, RANK = 32, 96, 2, 4
# A and B of q, k, v, o, gate, up and down of every block.
TRAINED = LAYERS * RANK * (4 * 2 * HIDDEN + 3 * (HIDDEN + FEED_FORWARD))
SHAPE = dict.fromkeys(("model__hidden", "model__layers", "model__heads"))


def base_model(fixture):
    """The folder of a model that was trained for a while."""
    job = fixture.submits("base", schedule__train_tokens=60_000, model__feed_forward=FEED_FORWARD)
    fixture.finishes(job)
    folder = os.path.join(fixture.folder, "base")
    fixture.atoll("export", job, "--to", folder)
    return folder


def submits_adapter(fixture, name, base, **changes):
    fields = {"data__path": fixture.other, "model__initial_weights_path": base, "adapter__kind": "lora",
              "adapter__rank": RANK, "adapter__alpha": 8, "adapter__targets": ["all-linear"],
              "inner__learning_rate": 1e-2, "schedule__train_tokens": 60_000, **SHAPE, **changes}
    return fixture.submits(name, **fields)


def write_other_text(fixture):
    """A text that the base was not trained on."""
    fixture.other = os.path.join(fixture.folder, "other.txt")
    with open(fixture.text, encoding="utf-8") as file, open(fixture.other, "w", encoding="utf-8") as out:
        out.write(file.read().upper())


def bits(fixture, folder, *flags):
    task = os.path.join(fixture.folder, "task.jsonl")
    with open(fixture.other, encoding="utf-8") as file, open(task, "w", encoding="utf-8") as out:
        out.write(json.dumps({"text": file.read(400)}) + "\n")
    return fixture.json("evaluate", folder, "--task", task, *flags)["bits_per_byte"]


@case
def two_islands_train_an_adapter_through_a_death(fixture):
    """Servers hold the adapter alone, a worker that died comes back to it, and model and adapter, the
    merged model and the job agree on what was learnt"""
    fixture.starts(workers=2, servers=1, step_ms=20)
    write_other_text(fixture)
    base = base_model(fixture)
    job = submits_adapter(fixture, "tune", base)
    fixture.reaches(job, 2)
    fixture.daemons["w2"].kill()
    fixture.meanwhile("w2 to be missed", job, lambda: not fixture.member("w2")["attached"])
    fixture.daemons["w2"].start()
    done = fixture.finishes(job)
    check(sum(shard["elements"] for shard in done["shards"]) == TRAINED, f"shards: {done['shards']}")
    first, last = (done["summary"][k] for k in ("first_validation_loss", "validation_loss"))
    check(last < 0.9 * first, f"the validation loss went from {first} only to {last}")

    adapter, merged = (os.path.join(fixture.folder, name) for name in ("adapter", "merged"))
    fixture.atoll("export", job, "--to", adapter)
    files = set(os.listdir(adapter))
    check({"adapter_config.json", "adapter_model.safetensors"} <= files and "config.json" not in files,
          f"the adapter's folder has {files}")
    fixture.atoll("export", job, "--to", merged, "--merge")
    check("adapter_config.json" not in os.listdir(merged), "a merged model has an adapter beside it")
    plain, with_adapter, whole = bits(fixture, base), bits(fixture, base, "--adapter", adapter), bits(fixture, merged)
    check(abs(with_adapter / whole - 1) < 1e-4, f"{with_adapter} bits with the adapter, {whole} merged")
    check(with_adapter < 0.9 * plain, f"{with_adapter} bits with the adapter, {plain} without")
    texts = [fixture.atoll("generate", folder, "--prompt", "THE", "--tokens", "8", "--temperature", "0", *flags)[1]
             for folder, flags in ((base, ("--adapter", adapter)), (merged, ()))]
    check(texts[0] == texts[1], f"texts: {texts}")

    on = submits_adapter(fixture, "on", base, adapter__path=adapter)
    begun = fixture.finishes(on)["summary"]["first_validation_loss"]
    check(abs(begun / last - 1) < 1e-4, f"a job from the adapter begins at {begun}, which ended at {last}")


@case
def an_island_of_two_workers_trains_an_adapter_as_one_does(fixture):
    """The stages of a pipeline on two workers, of which each reads the frozen weights of its own layers"""
    fixture.starts(workers=2, servers=1)
    write_other_text(fixture)
    base = base_model(fixture)
    rounds = {"outer__min_islands": 1, "outer__max_islands": 1, "outer__overlap": "none", "schedule__train_tokens": 10_000,
              "inner__learning_rate": 1e-3}  # larger ones amplify rounding
    alone = fixture.finishes(submits_adapter(fixture, "alone", base, layout__exclude=["w2"], **rounds))
    both = fixture.finishes(submits_adapter(fixture, "both", base, layout__island="all", layout__stages=2,
                                            layout__replicas=1, **rounds))
    same_losses(alone, both)


@case
def a_base_that_is_not_there_is_refused_by_name(fixture):
    """Weights of the wrong shape, and a target that the model has not"""
    fixture.starts(workers=1, servers=1)
    write_other_text(fixture)
    path = fixture.job_file("none", adapter__kind="lora", adapter__targets=["all-linear"])
    code, _, error = fixture.atoll("validate", path, check=False)
    check(code != 0 and "model.initial_weights_path" in error, f"without a base: {error}")
    base = os.path.join(fixture.folder, "empty")
    os.makedirs(base, exist_ok=True)
    shutil.copy(fixture.text, base)
    path = fixture.job_file("bad", adapter__kind="lora", adapter__targets=["query"], model__initial_weights_path=base)
    code, _, error = fixture.atoll("validate", path, check=False)
    check(code != 0 and "adapter.targets" in error and "self_attn.q_proj" in error, f"a bad target: {error}")


def write_pairs(fixture, count=400):
    """In the chosen answers the words of the prompt come in upper case."""
    rng = random.Random(3)
    fixture.pairs = os.path.join(fixture.folder, "pairs.jsonl")
    with open(fixture.pairs, "w", encoding="utf-8") as out:
        for _ in range(count):
            words = rng.choices(WORDS, k=2)
            out.write(json.dumps({"prompt": words[0] + " ", "chosen": words[1].upper(), "rejected": words[1]}) + "\n")


def submits_pairs(fixture, name, base, **changes):
    fields = {"data__path": fixture.pairs, "data__format": "chat", "data__sequence_length": 31,
              "data__validation_fraction": 0.1, "model__initial_weights_path": base, "objective__kind": "dpo",
              "objective__beta": 0.5, "adapter__kind": "lora", "adapter__rank": 4, "adapter__targets": ["all-linear"],
              "inner__learning_rate": 5e-3, "schedule__train_tokens": 60_000, **SHAPE, **changes}
    return fixture.submits(name, **fields)


@case
def two_islands_learn_what_is_preferred_through_a_death(fixture):
    """The loss begins at log 2, a worker that died finds its references anew, and the exported adapter gives
    the chosen answers more likelihood than its base does"""
    fixture.starts(workers=2, servers=1, step_ms=20)
    write_pairs(fixture)
    base = base_model(fixture)
    job = submits_pairs(fixture, "prefer", base)
    fixture.reaches(job, 2)
    fixture.daemons["w2"].kill()
    fixture.meanwhile("w2 to be missed", job, lambda: not fixture.member("w2")["attached"])
    fixture.daemons["w2"].start()
    summary = fixture.finishes(job)["summary"]
    first, last = summary["first_validation_loss"], summary["validation_loss"]
    check(abs(first - math.log(2)) < 1e-3, f"the loss of a new adapter is {first}")
    check(last < 0.5 * first, f"the validation loss went from {first} only to {last}")
    check(summary["validation_accuracy"] > 0.9, f"accuracy: {summary['validation_accuracy']}")

    adapter = os.path.join(fixture.folder, "preferred")
    fixture.atoll("export", job, "--to", adapter)
    task = os.path.join(fixture.folder, "task.jsonl")
    with open(fixture.pairs, encoding="utf-8") as pairs, open(task, "w", encoding="utf-8") as out:
        for line in list(pairs)[:100]:
            pair = json.loads(line)
            out.write(json.dumps({"prompt": pair["prompt"], "choices": [pair["chosen"], pair["rejected"]],
                                  "answer": 0}) + "\n")
    before, after = (fixture.json("evaluate", base, "--task", task, *flags)["accuracy"]
                     for flags in ((), ("--adapter", adapter)))
    check(before < 0.3 and after > 0.9, f"accuracy went from {before} to {after}")


@case
def an_island_of_two_workers_prefers_as_one_does(fixture):
    """The stages of a pipeline on two workers, which share references"""
    fixture.starts(workers=2, servers=1)
    write_pairs(fixture)
    base = base_model(fixture)
    rounds = {"outer__min_islands": 1, "outer__max_islands": 1, "outer__overlap": "none", "schedule__train_tokens": 10_000,
              "inner__learning_rate": 1e-3}
    alone = fixture.finishes(submits_pairs(fixture, "alone", base, layout__exclude=["w2"], **rounds))
    both = fixture.finishes(submits_pairs(fixture, "both", base, layout__island="all", layout__stages=2,
                                          layout__replicas=1, **rounds))
    same_losses(alone, both)


@case
def a_whole_model_is_tuned_against_a_folder(fixture):
    """Two islands, whose pairs are compared with the base that they began with, through a death"""
    fixture.starts(workers=2, servers=1, step_ms=20)
    write_pairs(fixture)
    base = base_model(fixture)
    job = submits_pairs(fixture, "whole", base, adapter__kind=None, adapter__rank=None, adapter__targets=None,
                        objective__reference=base, inner__learning_rate=1e-3)
    fixture.reaches(job, 1)
    fixture.daemons["w2"].kill()
    fixture.meanwhile("w2 to be missed", job, lambda: not fixture.member("w2")["attached"])
    fixture.daemons["w2"].start()
    summary = fixture.finishes(job)["summary"]
    first, last = summary["first_validation_loss"], summary["validation_loss"]
    check(abs(first - math.log(2)) < 1e-3, f"the loss of the reference itself is {first}")
    check(last < 0.8 * first, f"the validation loss went from {first} only to {last}")


@case
def what_is_no_preference_is_refused_by_name(fixture):
    """A job without a reference, and pairs without their objective"""
    fixture.starts(workers=1, servers=1)
    write_pairs(fixture)
    path = fixture.job_file("whole", data__path=fixture.pairs, data__format="chat", objective__kind="dpo")
    code, _, error = fixture.atoll("validate", path, check=False)
    check(code != 0 and "objective.reference" in error, f"without a reference: {error}")
    path = fixture.job_file("pairs", data__documents="pairs", data__format="chat")
    code, _, error = fixture.atoll("validate", path, check=False)
    check(code != 0 and "data.documents" in error and "dpo" in error, f"pairs of no objective: {error}")


if __name__ == "__main__":
    main("adapters")
