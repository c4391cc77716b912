#!/usr/bin/python3
"""Copies of an island's state with other workers, on real daemons: of a pipeline without replicas any
worker may be killed, its leader too, and the losses are those of an undisturbed run."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, case, check, main, same_losses  # noqa: E402

EVERY = 3
# A worker is killed after 7 to 12 steps of a round. The copies have to be of the round's version by then, so a
# round has steps to spare at both ends.
PIPELINE = {"model__layers": 2, "outer__min_islands": 1, "outer__max_islands": 1, "outer__steps_per_round": 24,
            "outer__overlap": "none", "schedule__train_tokens": 60_000,
            "schedule__checkpoint_every_steps": 0, "schedule__validate_every_rounds": 0,
            "layout__island": "all", "layout__stages": 2, "layout__replicas": 1,
            "layout__workers_per_island": 2, "layout__chunks_max": 1,
            "checkpoint__peer_every_steps": EVERY}


def island(fixture, job):
    islands = fixture.job(job)["islands"]
    return islands[0] if islands else {}


def pipelined(fixture, job):
    """Waits until two workers train it, a stage each, and returns the island."""
    def there():
        seen = island(fixture, job)
        plan = seen.get("plan", {})
        set_up = plan.get("number", 0) > 0 and \
            seen.get("progress", {}).get("plan_number", 0) == plan["number"]
        two = len({w["worker"] for w in seen.get("workers", []) if w["in_plan"]}) == 2
        return seen if set_up and two else None
    return fixture.meanwhile("both workers to train", job, there, every_s=0.05)


def trains(fixture, job, steps):
    """Waits until the leader has made so many steps more."""
    def made():
        return island(fixture, job).get("progress", {}).get("inner_step", 0)
    begun = made()
    fixture.meanwhile(f"{steps} more steps", job, lambda: made() >= begun + steps, every_s=0.05)


@case
def any_worker_killed(fixture):
    """Both workers of a pipeline are killed in turn, the leader last: all steps since the newest copies are
    replayed, and the losses of every round are those of an undisturbed run"""
    fixture.starts(workers=2, servers=1, step_ms=60)
    calm = fixture.finishes(fixture.submits("calm", **PIPELINE))
    job = fixture.submits("struck", **PIPELINE)
    for role in ("follower", "leader"):
        fixture.reaches(job, fixture.version(job) + 1)
        seen = pipelined(fixture, job)
        leader = seen["worker"]
        victim = leader if role == "leader" else ({"w1", "w2"} - {leader}).pop()
        trains(fixture, job, 2 * EVERY + 1)
        fixture.daemons[victim].kill()
        fixture.wait_until("it to be missed", lambda: not fixture.member(victim)["attached"], LIMIT_S)
        trains(fixture, job, 2)
        fixture.daemons[victim].start()
    pipelined(fixture, job)
    struck = fixture.finishes(job)
    logs = fixture.logs(job)
    check(logs.count("from copies of step") >= 2, "of one of the two no state came from copies")
    check("the state of " not in logs, "state was lost")
    same_losses(calm, struck)


if __name__ == "__main__":
    main("copies_test")
