#!/usr/bin/python3
"""`atoll trace`: one step of a running island, recorded on all its workers, beside its prediction;
and every reason why there is none."""
import json
import os
import subprocess
import sys
import xml.etree.ElementTree

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, case, check, main  # noqa: E402
from cluster import binary  # noqa: E402, where fixture.py finds it

# One island of all workers; messages travel whole.
TOGETHER = {"layout__island": "all", "outer__min_islands": 1, "model__layers": 4,
            "inner__micro_batch_sequences": 2, "layout__chunks_max": 1,
            "schedule__train_tokens": 100_000_000}
MICRO_BATCHES = 4
LAYERS = 6  # with embedding and head


def trains(fixture, **changes):
    """A job whose island has made some rounds."""
    job = fixture.submits(**dict(TOGETHER, **changes))
    fixture.reaches(job, 1)
    return job


def refused(fixture, *arguments):
    """What `atoll trace` says on standard error when it fails."""
    code, out, errors = fixture.atoll("trace", *arguments, check=False)
    check(code == 1 and out == "", f"exit code {code}, {out}")
    check(errors.startswith("atoll: ") and errors.count("\n") == 1, f"not one message: {errors}")
    return errors


def list_ops(step):
    """(device, operation, stage, micro-batch, layer) of all F, B and W; W that B did, too, has no
    layer."""
    ops = []
    for device in step["devices"]:
        for span in device["spans"]:
            kind = span["kind"].removeprefix("TRACE_KIND_")
            if kind not in ("FORWARD", "INPUT_GRADIENT", "WEIGHT_GRADIENT"):
                continue
            key = (device["device"], span["stage"], span["micro_batch"])
            ops.append((kind, *key, span["layer"] if kind == "WEIGHT_GRADIENT" else -1))
            if span["with_weights"]:
                ops.append(("WEIGHT_GRADIENT", *key, -1))
    return ops


def compute_period(step):
    """From step to step: from a device's first operation to its end, and its own work at least."""
    periods = []
    for device in step["devices"]:
        commit, optimizer = device["spans"][-2:]
        begun = next(s["start_ns"] for s in device["spans"] if s["kind"] != "TRACE_KIND_WAIT")
        periods += [device["end_ns"] - begun,
                    commit["start_ns"] + optimizer["end_ns"] - optimizer["start_ns"]]
    return max(periods)


def check_complete(step):
    """Every operation of the plan is there once: W whole, or once for each of the stage's layers."""
    ops = list_ops(step)
    check(len(ops) == len(set(ops)), f"an operation is there twice: {sorted(ops)}")
    expected = set()
    for stage in step["stages"]:
        first, layers = stage["first_layer"], stage["layers"]
        for device in stage["devices"]:
            for m in range(MICRO_BATCHES):
                key = (device, stage["stage"], m)
                expected |= {("FORWARD", *key, -1), ("INPUT_GRADIENT", *key, -1)}
                whole = ("WEIGHT_GRADIENT", *key, -1)
                expected |= ({whole} if whole in ops else
                             {("WEIGHT_GRADIENT", *key, l) for l in range(first, first + layers)})
    check(set(ops) == expected, f"missing {expected - set(ops)}, too much {set(ops) - expected}")
    check(step["left_out"] == 0, "something is left out")


def list_spans(step, kind):
    return [span for device in step["devices"] for span in device["spans"]
            if span["kind"] == "TRACE_KIND_" + kind]


def check_picture(fixture, name, views):
    with open(os.path.join(fixture.folder, name + ".json"), encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    check(names == views, f"processes: {names}")
    slices = [e for e in events if e["ph"] == "X"]
    check(all(e["dur"] >= 0 for e in slices), "a slice ends before it begins")
    for pid in range(len(views)):
        check(any(e["pid"] == pid and e["cat"] == "work" for e in slices), f"{views[pid]} is empty")
    xml.etree.ElementTree.parse(os.path.join(fixture.folder, name + ".svg"))
    return events


@case
def a_pipeline(fixture):
    """A step of a pipeline of three workers: every operation once, predicted beside measured, with
    the messages between them"""
    fixture.starts(workers=3, servers=1)
    job = trains(fixture, layout__stages=3, layout__schedule="1f1b")
    base = os.path.join(fixture.folder, "step")
    reply = fixture.json("trace", job, "--out", base + ".json", "--svg", base + ".svg")
    check((reply["job"], reply["island"]) == (job, 0), f"whose step: {reply['job']}")
    measured, predicted = reply["measured"], reply["predicted"]
    for step in (measured, predicted):
        check(len(step["devices"]) == len(step["stages"]) == 3, "not three stages")
        check_complete(step)
        check(len(list_spans(step, "OPTIMIZER")) == 3, "optimizer steps")
        check(len(step["messages"]) == 2 * 2 * MICRO_BATCHES, f"{len(step['messages'])} messages")
        for message in step["messages"]:
            check(message["ready_ns"] <= message["start_ns"] <= message["arrive_ns"], f"{message}")
    plan = fixture.job(job)["islands"][0]["plan"]
    # A machine that is busier now than when it was measured may have another one already.
    check(plan["number"] > predicted["plan_number"] or
          abs(compute_period(predicted) - plan["step_ns"]) <= 0.05 * plan["step_ns"],
          f"not the plan's own prediction: {compute_period(predicted)}, not {plan['step_ns']} ns")
    check({c["worker"] for c in measured["clocks"]} ==
          {"w1", "w2", "w3"} - {reply["leader"]}, f"clocks: {measured['clocks']}")
    check(len(list_spans(measured, "COMMIT")) == 3, "every device commits the step")
    # One machine has one clock: a message is there before the operation that needs it begins,
    # but for what the alignment may be off.
    slack = 2 * max(c["uncertainty_ns"] for c in measured["clocks"])
    starts = {(d["device"], s["kind"], s["micro_batch"]): s["start_ns"]
              for d in measured["devices"] for s in d["spans"]}
    for m in measured["messages"]:
        kind = "TRACE_KIND_INPUT_GRADIENT" if m["gradient"] else "TRACE_KIND_FORWARD"
        check(m["start_ns"] <= starts[(m["to"], kind, m["micro_batch"])] + slack,
              f"{m} leaves after it was used")
    events = check_picture(fixture, "step", ["predicted", "measured"])
    threads = {e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 1}
    # Messages go both ways between neighbours in the plan's order, whichever workers these are.
    devices = [stage["devices"][0] for stage in measured["stages"]]
    links = {f"{a} > {b}" for one, other in zip(devices, devices[1:])
             for a, b in ((one, other), (other, one))}
    check({t for t in threads if " > " in t} == links and len(links) == 4,
          f"links: {threads}, not {links}")
    text = fixture.atoll("trace", job)[1]
    for part in ("predicted", "measured", "difference", "bubble", "clocks, aligned", "plan "):
        check(part in text, f"no {part} in:\n{text}")


@case
def replicas_and_a_worker_alone(fixture):
    """A step of two replicas shows their all-reduces; one of a worker alone is measured, and says
    why nothing is predicted"""
    fixture.starts(workers=2, servers=1)
    job = trains(fixture, layout__replicas=2)
    reply = fixture.json("trace", job)
    measured = reply["measured"]
    check(len(measured["devices"]) == len(reply["predicted"]["devices"]) == 2, "two replicas")
    all_reduces = [(s["layer"]) for s in list_spans(measured, "SYNC")]
    check(sorted(all_reduces) == sorted(2 * list(range(LAYERS))), f"all-reduces: {all_reduces}")
    check(len(list_spans(reply["predicted"], "SYNC_WAIT")) == 2, "no all-reduces predicted")
    fixture.atoll("cancel", job)
    fixture.state(job, "cancelled")
    job = trains(fixture, layout__island="worker", outer__max_islands=1)
    base = os.path.join(fixture.folder, "alone")
    reply = fixture.json("trace", job, "--out", base + ".json", "--svg", base + ".svg")
    check("predicted" not in reply, "a prediction without a plan")
    check("has no plan" in reply["no_prediction"], reply["no_prediction"])
    check_complete(reply["measured"])
    check_picture(fixture, "alone", ["measured"])
    check("no prediction: the island has no plan" in fixture.atoll("trace", job)[1], "the text")


@case
def no_step(fixture):
    """A wrong name, an island that is not there, a job that does not run, an island that makes no
    step: one message each"""
    fixture.starts(workers=2, servers=1)
    check("there is no job see-1" in refused(fixture, "see-1"), "a wrong name")
    job = trains(fixture, layout__stages=2)
    check("has no island 7; it has 0" in refused(fixture, job, "--island", "7"), "a wrong island")
    code, _, errors = fixture.atoll("trace", job, "--timeout", "0", check=False)
    check(code == 2 and "--timeout 0: must be" in errors, errors)
    nowhere = os.path.join(fixture.folder, "nowhere", "t.json")
    code, out, errors = fixture.atoll("trace", job, "--out", nowhere, check=False)
    check(code == 1 and nowhere in errors, f"a path: {errors}")
    check("largest differences" in out, "a step that was recorded is shown all the same")
    fixture.atoll("pause", job)
    errors = refused(fixture, job)
    check("is paused" in errors and f"atoll resume {job}" in errors, errors)
    fixture.atoll("resume", job)
    fixture.reaches(job, fixture.version(job) + 1)
    follower = next(w["worker"] for w in fixture.job(job)["islands"][0]["workers"] if not w["leads"])
    fixture.daemons[follower].freeze()
    errors = refused(fixture, job, "--timeout", "1")
    check("island 0 of" in errors and "within 1 s: it is" in errors, errors)
    fixture.daemons[follower].thaw()
    fixture.atoll("cancel", job)
    fixture.state(job, "cancelled")
    check("is cancelled" in refused(fixture, job), "an ended job")


def killed(fixture, job, who):
    """Kills `who` of the island while its step is traced; what `atoll trace` says, and who it was. If the
    step has ended before, which cannot be prevented, they are started again and another is traced."""
    for _ in range(5):
        code, out, errors, worker = kills(fixture, job, who)
        if code != 0:
            check(code == 1 and out == "", f"exit code {code}: {out}")
            return errors, worker
        fixture.daemons[worker].start()
        fixture.wait_until(f"{worker} to take part again", lambda w=worker: any(
            member["worker"] == w and member["in_plan"]
            for member in fixture.job(job)["islands"][0]["workers"]), LIMIT_S)
    raise AssertionError("every step that was traced had ended before the kill")


def kills(fixture, job, who):
    """Exit code, output and errors of `atoll trace`, and who was killed."""
    island = fixture.job(job)["islands"][0]
    leader = fixture.daemons[island["worker"]]
    worker = leader if who == "leader" else next(
        fixture.daemons[w["worker"]] for w in island["workers"] if w["in_plan"] and not w["leads"])
    recorded_before = leader.log().count("is recorded")
    trace = subprocess.Popen([binary("atoll"), "trace", job], text=True, stdin=subprocess.DEVNULL,
                             env=dict(os.environ, ATOLL_COORDINATOR=fixture.address),
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    fixture.wait_until("the request at the leader",
                       lambda: leader.log().count("is recorded") > recorded_before, LIMIT_S, every_s=0.01)
    worker.kill()
    out, errors = trace.communicate(timeout=LIMIT_S)
    return trace.returncode, out, errors, worker.name


@case
def a_worker_killed_meanwhile(fixture):
    """A follower, then the leader is killed while a step is traced: it says so and ends, and the
    island's next steps can be traced"""
    # A step takes about a second, so that there is time to kill a worker in it.
    fixture.starts(workers=3, servers=1, flags=["--emulate-block-ms=20"])
    job = trains(fixture, layout__replicas=1)
    errors, follower = killed(fixture, job, "follower")
    check("the island abandoned a step" in errors and follower in errors, errors)
    fixture.wait_until("the others to go on", lambda: fixture.atoll(
        "trace", job, check=False)[0] == 0, LIMIT_S)
    errors, leader = killed(fixture, job, "leader")
    check(f"{leader}, which led island 0, is unavailable" in errors, errors)
    fixture.wait_until("the last one to go on", lambda: fixture.atoll(
        "trace", job, check=False)[0] == 0, LIMIT_S)


if __name__ == "__main__":
    main("trace")
