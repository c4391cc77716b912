#!/usr/bin/python3
"""Layouts of an island on real daemons: devices that share layers, replicas with unequal shares. They
train as one worker with one device does."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, case, check, main, same_losses  # noqa: E402

# All workers make one island, and each of its rounds waits for the one before: all runs make
# the same steps. Messages travel whole, so that nothing is summed in another order.
TINY = {"model__hidden": 48, "model__heads": 6, "model__layers": 4,
        "inner__micro_batch_sequences": 1, "outer__min_islands": 1, "outer__max_islands": 1,
        "outer__overlap": "none", "schedule__train_tokens": 40_000, "layout__island": "all",
        "layout__chunks_max": 1}
LAYERS = 6  # with embedding and head


def get_plan(fixture, job):
    islands = fixture.job(job)["islands"]
    return {"number": 0, "reason": "", "replicas": [],
            **(islands[0].get("plan", {}) if islands else {})}


@case
def shared_layers(fixture):
    """A worker with three devices, each with a third of the heads, has the losses of one device at
    every version, and `atoll trace` shows all three at every layer; and so have two of them, one
    with twice the heads of the other"""
    fixture.starts(workers=1, servers=1)
    alone = fixture.finishes(fixture.submits("alone", **TINY))
    check(fixture.daemons["w1"].stop() == 0, "w1's exit code")
    fixture.worker("w2", "--devices=3", threads=3)
    fixture.wait_until("w2", lambda: any(m["name"] == "w2" and m["attached"]
                                         for m in fixture.status()["members"]), LIMIT_S)
    job = fixture.submits("thirds", **dict(TINY, layout__tensor_parallel=3))
    fixture.reaches(job, 1)
    devices = ["w2/0", "w2/1", "w2/2"]
    stages = get_plan(fixture, job)["replicas"][0]["stages"]
    check([sorted(stage["devices"]) for stage in stages] == [devices], f"stages: {stages}")
    measured = fixture.json("trace", job)["measured"]
    check([sorted(stage["devices"]) for stage in measured["stages"]] == [devices],
          "the trace's stages")
    check(sorted(d["device"] for d in measured["devices"]) == devices, "the trace's devices")
    for device in measured["devices"]:
        kinds = [span["kind"].removeprefix("TRACE_KIND_") for span in device["spans"]]
        check(kinds.count("FORWARD") == kinds.count("INPUT_GRADIENT") == 8 and
              kinds.count("OPTIMIZER") == 1, f"{device['device']}: {kinds}")
    same_losses(alone, fixture.finishes(job))
    job = fixture.submits("unlike", **dict(TINY, layout__tensor_parallel=2, layout__stages=1,
                                           layout__replicas=1, layout__tensor_split_ratios=[2, 1],
                                           layout__recompute="all"))
    fixture.reaches(job, 1)
    plan = get_plan(fixture, job)
    check(plan["tensor_split_ratios"] == [2, 1], f"plan: {plan}")
    check(plan["replicas"][0]["stages"][0]["recomputed_layers"] == [1, 2, 3, 4], f"plan: {plan}")
    same_losses(alone, fixture.finishes(job))


@case
def unequal_replicas(fixture):
    """Of two replicas one is on a worker that turns out to be five times slower: it gets fewer
    sequences, and the island has the losses of one device at every version"""
    fixture.starts(workers=1, servers=1)
    alone = fixture.finishes(fixture.submits("alone", **TINY))
    fixture.worker("w2", "--emulate-slowdown=5")
    fixture.attached(3)
    both = dict(TINY, layout__replicas=2)
    # Until it is known that w2 is slow.
    job = fixture.submits("learns", **dict(both, schedule__train_tokens=100_000_000))

    def unequal(job):
        shares = {replica["stages"][0]["devices"][0]: replica["micro_batches"]
                  for replica in get_plan(fixture, job)["replicas"]}
        return len(shares) == 2 and shares["w1/0"] > shares["w2/0"]
    fixture.wait_until("a plan with unequal shares", lambda: unequal(job), 2 * LIMIT_S)
    fixture.atoll("cancel", job)
    fixture.state(job, "cancelled")
    # Each keeps half of the optimizer's state.
    job = fixture.submits("shares", **dict(both, layout__optimizer_copies=1))
    fixture.reaches(job, 1)
    plan = get_plan(fixture, job)
    check(unequal(job) and plan["optimizer_copies"] == 1, f"plan: {plan}")
    same_losses(alone, fixture.finishes(job))


@case
def lone_device(fixture):
    """A worker of one device on which the job fits by recomputation alone has the losses of a larger
    one, and `atoll show` says which blocks and why; one on which it does not fit at all says so"""
    # Activations weigh more than the model, and none of a batch can be spared.
    tiny = dict(TINY, layout__island="worker", inner__micro_batch_sequences=8,
                data__sequence_length=128, schedule__train_tokens=80_000)
    fixture.starts(workers=1, servers=1)
    alone = fixture.finishes(fixture.submits("ample", **tiny))
    check("plan 1 " not in fixture.logs(alone["summary"]["job"]), "an ample device has a plan")
    check(fixture.daemons["w1"].stop() == 0, "w1's exit code")
    parameters = sum(int(layer["elements"]) for layer in alone["facts"]["layers"])
    copies = 7 * 4 * parameters  # that the leader keeps
    needs = 16 * parameters + 4 * 8 * 128 * (256 + 2400)  # with some of the blocks' activations
    fixture.worker("w2", f"--memory-bytes={copies + needs}")
    fixture.attached(2)
    job = fixture.submits("tight", **tiny)

    def planned():
        shown = fixture.atoll("show", job)[1]
        return shown if "stage 0 recomputes " in shown else None
    shown = fixture.wait_until("a plan that recomputes", planned, LIMIT_S)
    check("w2/0 would take " in shown and "without recomputation" in shown, f"shown: {shown}")
    same_losses(alone, fixture.finishes(job))
    check(fixture.daemons["w2"].stop() == 0, "w2's exit code")
    fixture.worker("w3", f"--memory-bytes={copies + 20 * parameters}")
    fixture.attached(2)
    job = fixture.submits("none", **tiny)
    fixture.wait_until("its reason", lambda: "inner.micro_batch_sequences" in
                       fixture.job(job)["summary"]["waiting_for"], LIMIT_S)
    check("no layout fits" in fixture.job(job)["summary"]["waiting_for"], fixture.job(job)["summary"])


if __name__ == "__main__":
    main("layouts")
