#!/usr/bin/python3
"""Plans that are printed are plans that run: `atoll plan JOB` prints one of the running job's devices,
`atoll plan FILE --live` that of a job not submitted yet, and a job that pins what it printed runs
just that."""
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, case, check, main, same_losses  # noqa: E402

TINY = {"model__hidden": 48, "model__heads": 6, "model__layers": 4,
        "inner__micro_batch_sequences": 1, "outer__min_islands": 1, "outer__max_islands": 1,
        "outer__overlap": "none", "schedule__train_tokens": 40_000, "layout__island": "all",
        "layout__chunks_max": 1}


def get_layout(island):
    """What a pinned plan fixes: devices, layers and micro-batches of all stages."""
    return [{"micro_batches": int(replica["micro_batches"]),
             "micro_batch_sequences": int(replica["micro_batch_sequences"]),
             "stages": [(int(stage.get("first_layer", 0)), int(stage["layers"]), stage["devices"])
                        for stage in replica["stages"]]}
            for replica in island["replicas"]]


def runs_as_printed(fixture, job):
    """Submits the job whose plan was printed; returns it once it trains."""
    printed = fixture.json("plan", fixture.job_file("soon", **job), "--live")["islands"][0]
    submitted = fixture.submits("soon", **job)
    fixture.reaches(submitted, 1)
    runs = fixture.job(submitted)["islands"][0]["plan"]
    check(get_layout(runs) == get_layout(printed), f"runs {runs}, printed {get_layout(printed)}")
    for field in ("step_ns", "bound_ns"):
        check(runs[field] == printed[field], f"{field}: {runs[field]}, printed {printed[field]}")
    # A plan that runs also names what it was made for.
    check(runs["reason"].endswith(printed["reason"]), f"runs: {runs['reason']}; printed: {printed['reason']}")
    return submitted


@case
def preview_over_two_networks(fixture):
    """The links that `atoll plan FILE --live` counts on are those of all networks that two workers share"""
    fixture.coordinator()
    fixture.server("ps1")
    for name in ("w1", "w2"):
        fixture.worker(name, "--peer-endpoint=tcp://127.0.0.1:*", "--peer-endpoint=tcp://127.0.0.2:*")
    fixture.attached(3)
    job = dict(TINY, layout__workers_per_island=2, layout__stages=2)
    before = fixture.submits("before", **dict(job, schedule__train_tokens=100_000_000))
    fixture.reaches(before, 1)
    fixture.atoll("cancel", before)
    fixture.state(before, "cancelled")
    submitted = runs_as_printed(fixture, job)
    stages = fixture.job(submitted)["islands"][0]["plan"]["replicas"][0]["stages"]
    check({stage["devices"][0].split("/")[0] for stage in stages} == {"w1", "w2"}, f"{stages}")
    fixture.finishes(submitted)


@case
def preview_and_pinned(fixture):
    """What `atoll plan JOB --json` prints can be pinned, edited or not, and runs with one device's losses"""
    fixture.starts(workers=1, servers=1)
    alone = fixture.finishes(fixture.submits("alone", **TINY))
    check(fixture.daemons["w1"].stop() == 0, "w1's exit code")
    fixture.worker("w2", "--devices=2", threads=2)
    fixture.attached(2)
    running = fixture.submits("running", **dict(TINY, layout__stages=2,
                                                schedule__train_tokens=100_000_000))
    fixture.reaches(running, 1)
    preview = fixture.json("plan", running)
    check(len(get_layout(preview["islands"][0])[0]["stages"]) >= 2, f"preview: {preview['islands'][0]}")
    fixture.atoll("cancel", running)
    fixture.state(running, "cancelled")

    # Workers have measured this model: what is printed now is what runs when the job is submitted.
    fixture.finishes(runs_as_printed(fixture, dict(TINY, layout__stages=2)))

    # Moves one layer of the stage that has most to a neighbour.
    stages = preview["islands"][0]["replicas"][0]["stages"]
    for stage in stages:
        stage.pop("recomputed_layers", None)
    most = max(range(len(stages)), key=lambda i: stages[i]["layers"])
    stages[most]["layers"] -= 1
    if most > 0:
        stages[most]["first_layer"] += 1
        stages[most - 1]["layers"] += 1
    else:
        stages[1]["first_layer"] -= 1
        stages[1]["layers"] += 1
    path = os.path.join(fixture.folder, "pinned.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(preview, file)
    pinned = fixture.submits("pinned", **dict(TINY, layout__plan=path))
    fixture.reaches(pinned, 1)
    plan = fixture.job(pinned)["islands"][0]["plan"]
    check(get_layout(plan) == get_layout(preview["islands"][0]),
          f"runs {get_layout(plan)}, pinned {get_layout(preview['islands'][0])}")
    same_losses(alone, fixture.finishes(pinned))

    # An order of operations that no schedule has: every other micro-batch first, all forwards
    # before the gradients, which keep the order in which they are summed.
    island = preview["islands"][0]
    count = int(island["replicas"][0]["micro_batches"])
    forwards = [m ^ 1 if m ^ 1 < count else m for m in range(count)]
    orders = {}
    for number, stage in enumerate(island["replicas"][0]["stages"]):
        for device in stage["devices"]:
            orders.setdefault(device, []).append(number)
    island["programs"] = [
        {"device": device, "operations":
         [{"kind": "OPERATION_KIND_FORWARD", "stage": stage, "micro_batch": m}
          for stage in stages for m in forwards] +
         [{"kind": "OPERATION_KIND_INPUT_GRADIENT", "stage": stage, "micro_batch": m}
          for stage in reversed(stages) for m in range(count)]}
        for device, stages in orders.items()]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(preview, file)
    ordered = fixture.submits("ordered", **dict(TINY, layout__plan=path))
    fixture.reaches(ordered, 1)
    for device in fixture.json("trace", ordered)["measured"]["devices"]:
        ran = [(int(span.get("stage", 0)), int(span.get("micro_batch", 0)))
               for span in device["spans"] if span["kind"] == "TRACE_KIND_FORWARD"]
        check(ran == [(stage, m) for stage in orders[device["device"]] for m in forwards],
              f"{device['device']} ran {ran}")
    same_losses(alone, fixture.finishes(ordered))

    # One that waits for itself.
    program = island["programs"][-1]["operations"]
    program.insert(0, program.pop())
    with open(path, "w", encoding="utf-8") as file:
        json.dump(preview, file)
    refused = fixture.submits("refused", **dict(TINY, layout__plan=path))
    fixture.wait_until("its reason", lambda: "before its FORWARD" in
                       fixture.job(refused)["summary"]["waiting_for"], LIMIT_S)
    fixture.atoll("cancel", refused)
    island.pop("programs")

    # A device that is not there: the job says so and runs nothing else.
    stages[1]["devices"] = ["w9/0"]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(preview, file)
    lost = fixture.submits("lost", **dict(TINY, layout__plan=path))
    fixture.wait_until("its reason", lambda: "w9/0" in fixture.job(lost)["summary"]["waiting_for"], LIMIT_S)


if __name__ == "__main__":
    main("plans")
