#!/usr/bin/python3
"""Islands of several workers: they train as one, and survive workers that die, freeze, join and leave."""
import os
import re
import sys
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, case, check, main, same_losses  # noqa: E402
from cluster import free_port  # noqa: E402

# One island of all workers, with a round every 8 steps and no sleep.
TOGETHER = {"layout__island": "all", "outer__min_islands": 1, "model__layers": 4,
            "inner__micro_batch_sequences": 2}
LONG = dict(TOGETHER, schedule__train_tokens=100_000_000)


def goes_on(fixture, job, rounds=2):
    return fixture.reaches(job, fixture.version(job) + rounds)


@case
def trains_as_one(fixture):
    """Islands of one, two and three workers have the same losses in every round of the
    same job"""
    fixture.starts(workers=1, servers=1)
    ended = {}
    for workers in (1, 2, 3):
        if workers > 1:
            fixture.worker(f"w{workers}")
            fixture.attached(workers + 1)
        job = fixture.submits(f"job{workers}", **dict(
            TOGETHER, schedule__train_tokens=40_000, layout__workers_per_island=workers,
            layout__stages=workers, outer__max_islands=1, outer__overlap="none"))
        ended[workers] = fixture.finishes(job)
        check(len(ended[workers]["islands"]) == 1, f"islands: {ended[workers]['islands']}")
    for workers in (2, 3):
        same_losses(ended[1], ended[workers])


def sent_by_edge(port):
    """What a worker has sent to others over each of its edges, by its metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as page:
        lines = page.read().decode().splitlines()
    return {int(m[1]): float(m[2]) for m in (re.match(
        r'atoll_worker_peer_sent_bytes_total\{.*edge="(\d)".*\} (\S+)$', line) for line in lines) if m}


def sends_over_both(fixture, what, port, before):
    fixture.wait_until(f"{what}: bytes over both edges", lambda: all(
        sent_by_edge(port).get(edge, 0) > before.get(edge, 0) + 500_000 for edge in (0, 1)), LIMIT_S)


@case
def two_networks(fixture):
    """Two workers with an endpoint in each of two networks send activations, gradients and all-reduces
    over both, with the losses of one worker"""
    fixture.coordinator()
    fixture.server("ps1", memory="64MiB")
    ports = {"w1": free_port(), "w2": free_port()}
    for name, port in ports.items():
        fixture.worker(name, "--peer-endpoint=tcp://127.0.0.1:*", "--peer-endpoint=tcp://127.0.0.2:*",
                       f"--metrics-listen=127.0.0.1:{port}")
    fixture.attached(3)
    members = {m["name"]: m for m in fixture.status()["members"]}
    for name in ports:
        check(members[name]["more_peer_endpoints"][0].startswith("tcp://127.0.0.2:"), members[name])
    # Activations of a micro-batch and gradients of a layer are larger than a chunk.
    wide = dict(TOGETHER, outer__max_islands=1, outer__overlap="none", model__hidden=128,
                model__layers=2, inner__batch_sequences=32, inner__micro_batch_sequences=16,
                data__sequence_length=64, outer__steps_per_round=2, schedule__train_tokens=16_000)
    ended = {}
    for what, layout in (("alone", {"layout__workers_per_island": 1}),
                         ("stages", {"layout__workers_per_island": 2, "layout__stages": 2}),
                         ("replicas", {"layout__workers_per_island": 2, "layout__replicas": 2})):
        before = {name: sent_by_edge(port) for name, port in ports.items()}
        ended[what] = fixture.finishes(fixture.submits(what, **dict(wide, **layout)))
        if what == "alone":
            continue
        same_losses(ended["alone"], ended[what])
        for name, port in ports.items():
            sends_over_both(fixture, f"{what}, {name}", port, before[name])


@case
def any_follower_killed_or_frozen(fixture):
    """Of an island whose layout is the planner's, a follower is killed and another freezes: who is
    left goes on with every layer"""
    fixture.starts(workers=4, servers=1)
    job = fixture.submits(**LONG, layout__replicas=1)
    fixture.wait_until("the island to train", lambda: fixture.version(job) >= 2, LIMIT_S)
    island = fixture.job(job)["islands"][0]
    followers = [w["worker"] for w in island["workers"] if not w["leads"]]
    fixture.daemons[followers[0]].kill()
    goes_on(fixture, job)
    fixture.daemons[followers[1]].freeze()  # its connections stay; only its silence shows
    fixture.wait_until("the island to miss it", lambda: followers[1] not in {
        w["worker"] for w in fixture.job(job)["islands"][0]["workers"]}, LIMIT_S)
    goes_on(fixture, job)


@case
def leader_killed(fixture):
    """The leader is killed: another worker leads, from the committed version"""
    fixture.starts(workers=3, servers=1)
    job = fixture.submits(**LONG)
    fixture.reaches(job, 2)
    leader = fixture.job(job)["islands"][0]["worker"]
    generation = fixture.job(job)["islands"][0]["generation"]
    fixture.daemons[leader].kill()
    fixture.wait_until("another leader", lambda: fixture.job(job)["islands"][0]["worker"] not in
                       ("", leader), LIMIT_S)
    check(fixture.job(job)["islands"][0]["generation"] > generation, "the generation stayed")
    goes_on(fixture, job)


@case
def follower_leaves(fixture):
    """A follower ends on SIGTERM: exit code 0, and the others go on"""
    fixture.starts(workers=3, servers=1)
    job = fixture.submits(**LONG)
    fixture.reaches(job, 2)
    follower = next(w["worker"] for w in fixture.job(job)["islands"][0]["workers"]
                    if not w["leads"])
    check(fixture.daemons[follower].stop() == 0, f"{follower}'s exit code")
    goes_on(fixture, job)


if __name__ == "__main__":
    main("islands")
