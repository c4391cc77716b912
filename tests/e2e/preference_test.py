#!/usr/bin/python3
"""Jobs that tune an adapter by pairs of answers."""
import json
import math
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from adapters_test import base_model  # noqa: E402
from fixture import WORDS, case, check, main, random, same_losses  # noqa: E402


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
              "inner__learning_rate": 5e-3, "schedule__train_tokens": 60_000,
              **dict.fromkeys(("model__hidden", "model__layers", "model__heads")), **changes}
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
def what_is_no_preference_is_refused_by_name(fixture):
    """A job without an adapter, and a line without a second answer"""
    fixture.starts(workers=1, servers=1)
    write_pairs(fixture)
    path = fixture.job_file("whole", data__path=fixture.pairs, data__format="chat", objective__kind="dpo")
    code, _, error = fixture.atoll("validate", path, check=False)
    check(code == 2 and "objective.kind" in error and "adapter.kind" in error, f"without an adapter: {error}")
    path = fixture.job_file("pairs", data__documents="pairs", data__format="chat")
    code, _, error = fixture.atoll("validate", path, check=False)
    check(code != 0 and "data.documents" in error and "dpo" in error, f"pairs of no objective: {error}")


if __name__ == "__main__":
    main("preference")
