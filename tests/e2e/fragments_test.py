#!/usr/bin/python3
"""Rounds that exchange a part of the model each: a fragment, or the experts that tokens went through. Nothing is lost,
and the loss falls as without."""
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, LOSS_LIMIT, case, check, main, list_rounds  # noqa: E402

# Of the model's four layers, with embedding and head, each is one.
FRAGMENTS = {"outer__fragments": 4, "outer__steps_per_round": 16}


@case
def a_worker_is_killed(fixture):
    """Two islands train a job of four fragments; a worker is killed and started again: the loss falls,
    each token counts once, the exported model writes text"""
    fixture.starts(workers=2, servers=2, step_ms=10)
    job = fixture.submits(schedule__train_tokens=400_000, outer__grace_seconds=2, **FRAGMENTS)
    fixture.reaches(job, 6)
    fixture.daemons["w2"].kill()
    fixture.meanwhile("the eviction of w2", job, lambda: not fixture.island(job, "w2")["attached"])
    fixture.daemons["w2"].start()
    back = fixture.meanwhile("w2 to be ready again", job, lambda: (
        lambda island: island if island["ready"] else None)(fixture.island(job, "w2")))
    fixture.meanwhile("w2 to count again", job, lambda: fixture.island(job, "w2")["rounds_accepted"] >
                      back["rounds_accepted"])
    done = fixture.finishes(job)
    for decision in done["decisions"]:
        for p in decision["participants"]:
            missed = decision["version"] - 1 - p["base_version"]
            check(decision["version"] <= 0 or missed % 4 == 0, f"another fragment: {decision}")
    first, last = (done["summary"][k] for k in ("first_validation_loss", "validation_loss"))
    check(last < 0.5 * first, f"the validation loss went from {first} only to {last}")
    folder = os.path.join(fixture.folder, "model")
    fixture.atoll("export", job, "--to", folder)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        check(json.load(file)["num_hidden_layers"] == 2, "another model")
    check(fixture.atoll("generate", folder, "--prompt", "The ", "--tokens", "50")[1], "it writes nothing")


@case
def one_island_trains_as_without(fixture):
    """One island that is averaged with itself makes the same steps with four fragments as with one"""
    fixture.starts(workers=1, servers=1)
    same = {"outer__min_islands": 1, "outer__overlap": "none", "outer__optimizer": "sgd",
            "outer__learning_rate": 1.0, "outer__momentum": 0.0, "outer__clip_norm": 0.0,
            "outer__reject_outliers": False, "schedule__train_tokens": 40_000}
    one = list_rounds(fixture.finishes(fixture.submits("whole", **same, outer__steps_per_round=4)))
    four = list_rounds(fixture.finishes(fixture.submits("dealt", **same, **FRAGMENTS)))
    check([r[:2] for r in one] == [r[:2] for r in four], f"other rounds: {one} and {four}")
    worst = max(abs(a[2] - b[2]) / a[2] for a, b in zip(one, four))
    check(worst <= LOSS_LIMIT, f"losses differ by {worst:.1e} of {LOSS_LIMIT:.0e}")


@case
def delayed_and_blended(fixture):
    """Two islands that adopt half of each version two steps after its push: the loss falls, and an
    exchange has a fraction of the model's bytes"""
    fixture.starts(workers=2, servers=1)
    job = fixture.submits(schedule__train_tokens=300_000, outer__fragment_delay_steps=2,
                          outer__fragment_blend=0.5, **FRAGMENTS)
    whole = sum(4 * shard["elements"] for shard in fixture.reaches(job, 2)["shards"])

    def traffic():
        """Bytes that an island has pushed, and in how many rounds at least; none yet: None."""
        island = fixture.job(job)["islands"][0]
        pushed = int(island.get("progress", {}).get("pushed_bytes", 0))
        return (pushed, island["rounds_accepted"]) if pushed > 0 and island["rounds_accepted"] >= 8 else None
    pushed, rounds = fixture.meanwhile("an island to say what it pushed", job, traffic, LIMIT_S)
    done = fixture.finishes(job)
    check(pushed < 0.5 * whole * (rounds + 2), f"{pushed} bytes in {rounds} rounds of {whole}")
    first, last = (done["summary"][k] for k in ("first_validation_loss", "validation_loss"))
    check(last < 0.5 * first, f"the validation loss went from {first} only to {last}")


@case
def in_few_bits(fixture):
    """Two islands with fragments in 4 bits both ways: the loss falls, and versions come in few bytes"""
    fixture.starts(workers=2, servers=1)
    job = fixture.submits(schedule__train_tokens=400_000, outer__fragment_delay_steps=2,
                          outer__push_encoding="int4", outer__pull_encoding="int4", **FRAGMENTS)
    whole = sum(4 * shard["elements"] for shard in fixture.reaches(job, 2)["shards"])

    def traffic():
        """Bytes that an island has pulled, and in how many rounds at least; too early: None."""
        island = fixture.job(job)["islands"][0]
        pulled = int(island.get("progress", {}).get("pulled_bytes", 0))
        return (pulled, island["rounds_accepted"]) if pulled > 0 and island["rounds_accepted"] >= 24 else None
    pulled, rounds = fixture.meanwhile("an island to say what it pulled", job, traffic, LIMIT_S)
    done = fixture.finishes(job)
    # In full it would be a quarter of the model a round.
    check(pulled < whole * (2 + 0.1 * (rounds + 2)), f"{pulled} bytes in {rounds} rounds of {whole}")
    first, last = (done["summary"][k] for k in ("first_validation_loss", "validation_loss"))
    check(last < 0.5 * first, f"the validation loss went from {first} only to {last}")


@case
def experts_without_tokens_are_not_pushed(fixture):
    """Two islands train a mixture whose steps have fewer tokens than it has experts: what no token went through is
    not pushed, a worker that died and came back counts again, and nothing is lost"""
    length, layers = 32, 2
    fixture.starts(workers=2, servers=2, step_ms=20)
    job = fixture.submits(model__family="mixtral", model__experts=64, model__experts_per_token=1,
                          model__feed_forward=64, data__sequence_length=length, inner__batch_sequences=1,
                          outer__steps_per_round=1, outer__overlap="none", outer__balance_steps=False,
                          outer__grace_seconds=2, outer__push_encoding="float32",
                          schedule__train_tokens=8_000)
    whole = sum(4 * shard["elements"] for shard in fixture.reaches(job, 2)["shards"])

    def traffic():
        """What an island has pushed, in how many rounds at least, and its experts' tokens; too early: None."""
        island = fixture.job(job)["islands"][0]
        progress = island.get("progress", {})
        pushed, tokens = int(progress.get("pushed_bytes", 0)), progress.get("expert_tokens")
        return (pushed, island["rounds_accepted"], tokens) if tokens and island["rounds_accepted"] >= 12 else None
    pushed, rounds, tokens = fixture.meanwhile("an island to say what it pushed", job, traffic, LIMIT_S)
    by_mixture = [sum(tokens[:64]), sum(tokens[64:])]
    check(len(tokens) == layers * 64 and by_mixture[0] == by_mixture[1] > 0 and by_mixture[0] % length == 0,
          f"experts' tokens: {tokens}")
    check(0 in tokens, f"all experts have tokens: {tokens}")
    # Without, it would be the whole model a round.
    check(pushed < whole * (2 + 0.7 * rounds), f"{pushed} bytes in {rounds} rounds of {whole}")
    fixture.daemons["w2"].kill()
    fixture.meanwhile("the eviction of w2", job, lambda: not fixture.island(job, "w2")["attached"])
    fixture.daemons["w2"].start()
    done = fixture.finishes(job)
    first, last = (done["summary"][k] for k in ("first_validation_loss", "validation_loss"))
    check(last < first, f"the validation loss went from {first} to {last}")


if __name__ == "__main__":
    main("fragments")
