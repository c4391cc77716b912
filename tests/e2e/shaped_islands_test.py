#!/usr/bin/python3
"""An island over a slow line: two sites of two workers, in network namespaces joined by a shaped
wire."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "../net"))
from story import LIMIT_S, Skip, case, check, main  # noqa: E402
from shaped import ShapedNetwork, Unavailable, Wire  # noqa: E402


def starts(story, net):
    """Coordinator and server at a1; w1, w2 at site a, w3, w4 at site b."""
    here = net.address("a1")
    story.address = here + ":7070"
    story.cli, story.cli_flags = net.inside("a1"), ["--insecure"]
    story.coordinator("--insecure", wrapper=net.inside("a1"))
    story.server("ps1", "--insecure", memory="64MiB", listen=f"tcp://{here}:7071",
                 wrapper=net.inside("a1"))
    for number, host in enumerate(("a1", "a2", "b1", "b2"), 1):
        story.worker(f"w{number}", "--insecure", f"--peer-endpoint=tcp://{net.address(host)}:7080",
                     f"--site={host[0]}", wrapper=net.inside(host))
    story.attached(5)


def goes_on(story, job, rounds=2):
    return story.reaches(job, story.version(job) + rounds)


@case
def trains_over_a_slow_line(story):
    """Two sites of two workers over 100 Mbit/s with 20 ms are one island: it trains, loses the line
    and goes on, and trains with all of them when the line is back"""
    try:
        with ShapedNetwork({"a": 2, "b": 2}, Wire(rate_mbit=100, latency_ms=20)) as net:
            starts(story, net)
            job = story.submits(layout__island="all", layout__stages=4, outer__min_islands=1,
                                model__layers=4, inner__micro_batch_sequences=2,
                                outer__steps_per_round=4,
                                schedule__train_tokens=100_000_000)
            goes_on(story, job)
            island = story.job(job)["islands"][0]
            check({w["worker"] for w in island["workers"] if w["in_plan"]} ==
                  {"w1", "w2", "w3", "w4"}, f"who takes part: {island['workers']}")
            net.cut("a", "b")
            story.wait_until("the island to miss site b", lambda: {"w3", "w4"}.isdisjoint(
                w["worker"] for w in story.job(job)["islands"][0]["workers"]), LIMIT_S)
            net.mend("a", "b")
            story.attached(5)
            goes_on(story, job)
            story.close()
    except Unavailable as why:
        raise Skip(str(why)) from None


if __name__ == "__main__":
    main("shaped_islands")
