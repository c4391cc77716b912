#!/usr/bin/python3
"""An island over a slow line: two sites of two workers, in network namespaces joined by a shaped
link."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "../net"))
from fixture import LIMIT_S, Skip, case, check, main, same_losses  # noqa: E402
from shaped import ShapedNetwork, Unavailable, Link  # noqa: E402


# Four stages, one on each worker. Every round waits for the one before and every step lasts a while,
# so that the job is still at it when all has happened, and all runs make the same steps.
TINY = {"layout__island": "all", "layout__stages": 4, "outer__min_islands": 1,
        "outer__max_islands": 1, "outer__overlap": "none", "outer__steps_per_round": 4,
        "model__layers": 4, "inner__micro_batch_sequences": 2,
        "schedule__train_tokens": 10_000_000}


def starts(fixture, net):
    """Coordinator and server at a1; w1, w2 at site a, w3, w4 at site b."""
    here = net.address("a1")
    fixture.address = here + ":7070"
    fixture.cli, fixture.cli_flags = net.inside("a1"), ["--insecure"]
    fixture.coordinator("--insecure", wrapper=net.inside("a1"))
    fixture.server("ps1", "--insecure", memory="64MiB", listen=f"tcp://{here}:7071",
                   wrapper=net.inside("a1"))
    for number, host in enumerate(("a1", "a2", "b1", "b2"), 1):
        starts_worker(fixture, net, f"w{number}", host, "--emulate-step-ms=50")
    fixture.attached(5)


def starts_worker(fixture, net, name, host, *flags):
    fixture.worker(name, "--insecure", f"--peer-endpoint=tcp://{net.address(host)}:7080",
                   f"--site={host[0]}", *flags, wrapper=net.inside(host))


def goes_on(fixture, job, rounds=2):
    return fixture.reaches(job, fixture.version(job) + rounds)


def takes_part(fixture, job):
    islands = fixture.job(job)["islands"]
    return {w["worker"] for w in islands[0]["workers"] if w["in_plan"]} if islands else set()


@case
def trains_over_a_slow_link(fixture):
    """Two sites of two workers over 100 Mbit/s with 20 ms are one island of four stages: it loses the
    line and goes on at one site, trains with all of them when the line is back, and has had the
    losses of one worker in every round"""
    try:
        with ShapedNetwork({"a": 2, "b": 2}, Link(rate_mbit=100, latency_ms=20)) as net:
            starts(fixture, net)
            everybody = {"w1", "w2", "w3", "w4"}
            job = fixture.submits(**TINY)
            goes_on(fixture, job)
            check(takes_part(fixture, job) == everybody, f"who takes part: {fixture.job(job)}")
            net.cut("a", "b")
            fixture.wait_until("a plan without site b", lambda: takes_part(fixture, job) == {
                "w1", "w2"}, 2 * LIMIT_S)
            goes_on(fixture, job)
            shown = fixture.atoll("show", job)[1]
            check("not what the job requests" in shown, f"no reason in: {shown}")
            net.mend("a", "b")
            fixture.wait_until("a plan with all", lambda: takes_part(fixture, job) == everybody,
                               2 * LIMIT_S)
            goes_on(fixture, job)
            fixture.atoll("cancel", job)
            ended = fixture.state(job, "cancelled")
            for name in sorted(everybody):
                check(fixture.daemons[name].stop() == 0, f"{name}'s exit code")
            starts_worker(fixture, net, "w5", "a1")
            alone = fixture.submits("alone", **dict(TINY, layout__island="worker",
                                                    layout__stages=0))
            fixture.reaches(alone, ended["summary"]["version"])
            same_losses(ended, fixture.job(alone))
            fixture.close()
    except Unavailable as why:
        raise Skip(str(why)) from None


@case
def shards_leave_a_server_behind_a_slow_link(fixture):
    """A parameter server without a declared site turns out to be behind a line of 40 Mbit/s: the pulls of
    the first rounds show it, its shards go to the one at the worker's site, and the job's
    placement says why"""
    try:
        with ShapedNetwork({"a": 1, "b": 1}, Link(rate_mbit=40, latency_ms=5)) as net:
            here, there = net.address("a1"), net.address("b1")
            fixture.address = here + ":7070"
            fixture.cli, fixture.cli_flags = net.inside("a1"), ["--insecure"]
            fixture.coordinator("--insecure", wrapper=net.inside("a1"))
            for name, address, host in (("near", here, "a1"), ("far", there, "b1")):
                fixture.server(name, "--insecure", memory="256MiB", listen=f"tcp://{address}:7071",
                               wrapper=net.inside(host))
            starts_worker(fixture, net, "w1", "a1", "--emulate-step-ms=20")
            fixture.attached(3)
            job = fixture.submits(model__hidden=192, model__heads=4, model__layers=4,
                                  outer__min_islands=1, outer__max_islands=1,
                                  schedule__train_tokens=10_000_000)
            first = fixture.reaches(job, 0)
            check({shard["server"] for shard in first["shards"]} == {"near", "far"}, f"{first['shards']}")

            def share_of_far():
                shards = fixture.job(job)["shards"]
                far = sum(int(s["elements"]) for s in shards if s["server"] == "far")
                return far / sum(int(s["elements"]) for s in shards)
            fixture.meanwhile("shards to leave the far server", job, lambda: share_of_far() < 0.2)
            goes_on(fixture, job)
            fixture.atoll("cancel", job)
            fixture.state(job, "cancelled")
            fixture.close()
    except Unavailable as why:
        raise Skip(str(why)) from None


if __name__ == "__main__":
    main("shaped_islands")
