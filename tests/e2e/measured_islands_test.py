#!/usr/bin/python3
"""Islands of workers without a declared site, which differ from what was measured: sites found by
measuring, a slow device, two workers that do not reach each other."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "../net"))
from fixture import LIMIT_S, Again, Skip, case, check, main  # noqa: E402
from shaped import ShapedNetwork, Unavailable, Link  # noqa: E402

# Devices that emulate computation, and report the emulated times: however busy the machine is, only
# what a case changes, and the links, can make another plan the best.
EMULATED = {"model__layers": 6, "inner__micro_batch_sequences": 2, "outer__steps_per_round": 4,
            "outer__min_islands": 1, "schedule__train_tokens": 100_000_000}


def starts(fixture, net, hosts, block_ms):
    """Coordinator and server at the first host; w1, w2, ... at the hosts, without --site."""
    here = net.address(hosts[0])
    fixture.address = here + ":7070"
    fixture.cli, fixture.cli_flags = net.inside(hosts[0]), ["--insecure"]
    fixture.coordinator("--insecure", wrapper=net.inside(hosts[0]))
    fixture.server("ps1", "--insecure", memory="64MiB", listen=f"tcp://{here}:7071",
                   wrapper=net.inside(hosts[0]))
    for number, host in enumerate(hosts, 1):
        fixture.worker(f"w{number}", "--insecure", f"--peer-endpoint=tcp://{net.address(host)}:7080",
                       f"--emulate-block-ms={block_ms}", wrapper=net.inside(host))
    fixture.attached(1 + len(hosts))


def partners(fixture, job):
    return sorted(sorted(w["worker"] for w in island["workers"])
                  for island in fixture.job(job)["islands"])


def goes_on(fixture, job, rounds=2):
    return fixture.reaches(job, fixture.version(job) + rounds)


def get_plan(fixture, job):
    islands = fixture.job(job)["islands"]
    return {"number": 0, "reason": "", **(islands[0].get("plan", {}) if islands else {})}


def takes_part(fixture, job):
    return {w["worker"] for w in fixture.job(job)["islands"][0]["workers"] if w["in_plan"]}


def uses_the_link(fixture, job):
    if not takes_part(fixture, job) & {"w3", "w4"}:
        raise Again(f"the link was measured as much slower than it is: {get_plan(fixture, job)}")


def leaves_the_link(fixture, job, because):
    """Waits for a plan by w1 and w2 alone, and for a reason that `because` accepts on the way to it:
    another change may have caused a plan first."""
    def there():
        island = fixture.job(job)["islands"][0]
        reasons = [change["reason"] for change in island["plan_changes"] if because(change["reason"])]
        return reasons[0] if reasons and takes_part(fixture, job) == {"w1", "w2"} else None
    reason = fixture.wait_until("a plan without the slow link", there, 2 * LIMIT_S)
    check(reason in fixture.atoll("show", job)[1], f"the reason is not shown: {reason}")


@case
def sites_found_by_measuring(fixture):
    """Four workers without --site behind a link of 100 Mbit/s and 20 ms: two sites are found, each
    becomes an island, and says why"""
    try:
        with ShapedNetwork({"a": 2, "b": 2}, Link(rate_mbit=100, latency_ms=20)) as net:
            starts(fixture, net, ["a1", "b1", "a2", "b2"], block_ms=2)
            job = fixture.submits(layout__island="auto", **EMULATED)
            fixture.wait_until("two islands", lambda: len(partners(fixture, job)) == 2, 2 * LIMIT_S)
            sites = {m["name"]: m for m in fixture.status()["members"] if m["name"] != "ps1"}
            check(sites["w1"]["site"] == sites["w3"]["site"] != sites["w2"]["site"] ==
                  sites["w4"]["site"], f"sites: {sites}")
            check(sites["w1"]["site_source"].startswith("measured: "), f"from where: {sites['w1']}")
            check(partners(fixture, job) == [["w1", "w3"], ["w2", "w4"]],
                  f"islands: {partners(fixture, job)}")
            shown = fixture.atoll("show", job)[1]
            check("an island for each site: " in shown, f"no reason in: {shown}")
            goes_on(fixture, job)
            fixture.close()
    except Unavailable as why:
        raise Skip(str(why)) from None


@case
def slow_device(fixture):
    """One device of three trains three times slower than it was measured: the island takes a plan
    that gives it less to do, and says why"""
    fixture.coordinator()
    fixture.server("ps1", memory="64MiB")
    for number in (1, 2, 3):
        fixture.worker(f"w{number}", "--emulate-block-ms=2",
                       *(["--emulate-slowdown=3"] if number == 3 else []))
    fixture.attached(4)
    job = fixture.submits(layout__island="all", layout__workers_per_island=3, **EMULATED)
    fixture.wait_until("a plan that knows", lambda: "w3/0 is " in get_plan(fixture, job)["reason"],
                       2 * LIMIT_S)
    plan = get_plan(fixture, job)
    check("times slower than measured" in plan["reason"], f"plan: {plan['reason']}")
    shown = fixture.atoll("show", job)[1]
    for clause in plan["reason"].split("; "):
        check("slower than measured" not in clause or clause in shown,
              f"the reason is not shown: {clause} in {shown}")
    layers = {device: 0 for device in ("w1/0", "w2/0", "w3/0")}
    for replica in plan["replicas"]:
        for stage in replica["stages"]:
            share = stage["layers"] * replica["micro_batches"]
            layers[stage["devices"][0]] = layers.get(stage["devices"][0], 0) + share
    check(layers["w3/0"] < min(layers["w1/0"], layers["w2/0"]), f"work: {layers}")
    check("w3/0 is " in fixture.atoll("profile", job)[1], "atoll profile does not show it")
    goes_on(fixture, job)


@case
def pair_without_a_connection(fixture):
    """Of four workers two do not reach each other: one is left out of the plan, and it is said why;
    also when it happens while they train; a probe finds when they do again"""
    try:
        with ShapedNetwork({"a": 4}, Link(rate_mbit=1000, latency_ms=1)) as net:
            net.separate("a3", "a4")
            starts(fixture, net, ["a1", "a2", "a3", "a4"], block_ms=1)
            job = fixture.submits(layout__island="all", layout__workers_per_island=4, **EMULATED)
            fixture.wait_until("the island to train", lambda: fixture.version(job) >= 1, 2 * LIMIT_S)
            check(len({"w3", "w4"} & takes_part(fixture, job)) <= 1, "both take part")
            idle = next(w for w in fixture.job(job)["islands"][0]["workers"]
                        if w["worker"] in ("w3", "w4") and not w["in_plan"])
            check("w3 > w4: " in idle["activity"] or "w4 > w3: " in idle["activity"], f"why: {idle}")
            # Two that the plan does have; w1's host is also the coordinator's.
            before = get_plan(fixture, job)["number"]
            partner = "w3" if idle["worker"] == "w4" else "w4"
            fixture.wait_until("both to take part", lambda: {"w2", partner} <= takes_part(fixture, job),
                               2 * LIMIT_S)
            net.separate("a2", "a" + partner[1:])
            fixture.wait_until("a plan without one of them", lambda: get_plan(fixture, job)["number"] >
                               before and not {"w2", partner} <= takes_part(fixture, job), 2 * LIMIT_S)
            shown = fixture.atoll("show", job)[1]
            check("no connection within" in shown, f"the reason is not shown: {shown}")
            goes_on(fixture, job)
            fixture.wait_until("a probe without an answer", lambda: "a probe " in fixture.atoll("status")[1],
                               2 * LIMIT_S)
            net.reunite("a2", "a" + partner[1:])
            net.reunite("a3", "a4")
            fixture.wait_until("probes that are answered", lambda: "left out of plans" not in
                               fixture.atoll("status")[1], 2 * LIMIT_S)
            fixture.wait_until("the planner's log line", lambda: "a probe is answered" in
                               fixture.logs(job), 2 * LIMIT_S)
            goes_on(fixture, job)
            fixture.close()
    except Unavailable as why:
        raise Skip(str(why)) from None


@case
def link_that_changes_for_good(fixture):
    """While four workers at two sites train as one island, the link between them drops from 500 to
    5 Mbit/s: the island takes another plan, says why, and trains on without the line"""
    try:
        with ShapedNetwork({"a": 2, "b": 2}, Link(rate_mbit=500, latency_ms=2)) as net:
            # Four stages are the best even if a twelfth of the rate is measured, two if it is 5 Mbit/s.
            starts(fixture, net, ["a1", "a2", "b1", "b2"], block_ms=4)
            job = fixture.submits(layout__island="all", layout__workers_per_island=4,
                                  layout__replicas=1,
                                  **dict(EMULATED, model__hidden=64, data__sequence_length=256,
                                         inner__batch_sequences=16, inner__micro_batch_sequences=1))
            goes_on(fixture, job)
            uses_the_link(fixture, job)
            net.reshape("a", "b", rate_mbit=5)
            leaves_the_link(fixture, job, lambda reason: "link " in reason and (
                "slower than measured" in reason or "saturated" in reason))
            goes_on(fixture, job)
            fixture.close()
    except Unavailable as why:
        raise Skip(str(why)) from None


@case
def link_of_all_reduces_that_changes_for_good(fixture):
    """Only all-reduces cross the link between two sites, whose four workers are replicas. It
    drops from 500 to 20 Mbit/s: the island takes another plan, says why, and does without the line"""
    try:
        with ShapedNetwork({"a": 2, "b": 2}, Link(rate_mbit=500, latency_ms=2)) as net:
            starts(fixture, net, ["a1", "a2", "b1", "b2"], block_ms=4)
            job = fixture.submits(layout__island="all", layout__workers_per_island=4,
                                  layout__stages=1,
                                  **dict(EMULATED, model__hidden=64, inner__batch_sequences=16))
            goes_on(fixture, job)
            uses_the_link(fixture, job)
            net.reshape("a", "b", rate_mbit=20)
            leaves_the_link(fixture, job, lambda reason: "slower than measured, as gradient "
                            "all-reduces show" in reason)
            goes_on(fixture, job)
            fixture.close()
    except Unavailable as why:
        raise Skip(str(why)) from None


@case
def joins_over_a_slow_link(fixture):
    """A worker joins two that train, over a link of 20 Mbit/s: the lines to it are measured before
    the island's next plan, which does not use the slow line, and no step is interrupted for that"""
    try:
        with ShapedNetwork({"a": 2, "b": 1}, Link(rate_mbit=20, latency_ms=5)) as net:
            starts(fixture, net, ["a1", "a2"], block_ms=4)
            job = fixture.submits(layout__island="all", layout__stages=1,
                                  **dict(EMULATED, model__hidden=64, inner__batch_sequences=16))
            fixture.wait_until("both to train", lambda: fixture.job(job)["islands"] and
                               takes_part(fixture, job) == {"w1", "w2"}, 2 * LIMIT_S)
            goes_on(fixture, job)
            interrupted = fixture.job(job)["islands"][0]["steps_interrupted"]
            fixture.worker("w3", "--insecure", f"--peer-endpoint=tcp://{net.address('b1')}:7080",
                           "--emulate-block-ms=4", wrapper=net.inside("b1"))
            fixture.wait_until("a decision", lambda: "(worker w3 has joined)" in
                               fixture.logs(job), 2 * LIMIT_S)
            links = {(link["from"], link["to"]): link
                     for link in fixture.json("profile", job)["cluster"]["links"]}
            for ends in (("w1/0", "w3/0"), ("w2/0", "w3/0"), ("w3/0", "w1/0"), ("w3/0", "w2/0")):
                rate_mbit = links[ends]["edges"][0]["bandwidth_bytes_per_s"] * 8e-6
                check(rate_mbit < 60 and not links[ends]["live"], f"{ends}: {links[ends]}")
                if rate_mbit < 10:
                    raise Again(f"measured on a busy machine: {ends}: {links[ends]}")
            check(takes_part(fixture, job) == {"w1", "w2"},
                  f"over the link: {get_plan(fixture, job)['replicas']}")
            goes_on(fixture, job)
            after = fixture.job(job)["islands"][0]["steps_interrupted"]
            check(after == interrupted, f"{after} steps were interrupted, {interrupted} before")
            fixture.close()
    except Unavailable as why:
        raise Skip(str(why)) from None


if __name__ == "__main__":
    main("measured_islands")
