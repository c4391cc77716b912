#!/usr/bin/python3
"""A worker that reaches the coordinator but not the parameter server: three sites, in network
namespaces joined by links, one of which is cut."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "../net"))
from fixture import LIMIT_S, Skip, case, check, main  # noqa: E402
from shaped import ShapedNetwork, Unavailable, Link  # noqa: E402

GRACE_S = 6
ROUNDS = 40  # twice as many as LIMIT_S has grace times
JOB = {"outer__min_islands": 1, "outer__grace_seconds": GRACE_S, "outer__steps_per_round": 8,
       "schedule__train_tokens": 10_000_000}


def starts(fixture, net):
    """The coordinator and w1 at site c, the server at site s, w2 at site b."""
    coordinator, server = net.address("c1"), net.address("s1")
    fixture.address = coordinator + ":7070"
    fixture.cli, fixture.cli_flags = net.inside("c1"), ["--insecure"]
    fixture.coordinator("--insecure", wrapper=net.inside("c1"))
    fixture.server("ps1", "--insecure", memory="64MiB", listen=f"tcp://{server}:7071",
                   wrapper=net.inside("s1"))
    for name, host in (("w1", "c2"), ("w2", "b1")):
        fixture.worker(name, "--insecure", f"--peer-endpoint=tcp://{net.address(host)}:7080",
                       "--emulate-step-ms=50", wrapper=net.inside(host))
    fixture.attached(3)


@case
def cut_off_from_the_server(fixture):
    """A worker is cut off from the parameter server only: it stays a member, one grace time later it
    is named with the reason and no round waits for it; when the line is back it counts again"""
    try:
        with ShapedNetwork({"c": 2, "s": 1, "b": 1}, Link(rate_mbit=1000, latency_ms=1)) as net:
            starts(fixture, net)
            job = fixture.submits(**JOB)
            fixture.reaches(job, 3)
            fixture.meanwhile("w2 to count", job, lambda: fixture.island(job, "w2")["rounds_accepted"])
            net.cut("b", "s")
            named = fixture.meanwhile("w2 to be named", job, lambda: (
                lambda island: island if island["activity"].startswith("not waited for") else None)(
                    fixture.island(job, "w2")))
            check(named["attached"] and named["evictions"] == 0, f"it is a member: {named}")
            fixture.reaches(job, fixture.version(job) + ROUNDS)
            fixture.daemons["w2"].kill()
            fixture.meanwhile("the eviction of w2", job, lambda: not fixture.island(job, "w2")["attached"])
            fixture.daemons["w2"].start()
            net.mend("b", "s")
            before = fixture.island(job, "w2")["rounds_accepted"]
            fixture.meanwhile("w2 to count again", job, lambda: fixture.island(job, "w2")[
                "rounds_accepted"] > before, limit_s=2 * LIMIT_S)
    except Unavailable as why:
        raise Skip(str(why)) from None


if __name__ == "__main__":
    main("cut_off")
