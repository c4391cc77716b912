#!/usr/bin/python3
"""Several coordinators with their records in a real etcd: the leader is killed or frozen while a job
trains, and another one takes over."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from story import LIMIT_S, case, check, main  # noqa: E402

STEP_MS = 20


def starts(story, **changes):
    """A job under way, with three coordinators: (job, the leader's daemon)."""
    store = "etcd://" + ",".join(story.etcd())
    story.coordinators([store] * 3)
    for name in ("ps1", "ps2"):
        story.server(name, memory="64MiB")
    for name in ("w1", "w2"):
        story.worker(name, f"--emulate-step-ms={STEP_MS}")
    story.attached(4)
    job = story.submits(**changes)
    story.reaches(job, 3)
    leader = story.daemons[story.wait_until("a leader", story.leader, LIMIT_S)]
    return job, leader


def taken_over(story, leader):
    return story.wait_until("another leader", lambda: story.leader() not in (None, leader.name),
                            LIMIT_S)


@case
def the_leader_is_killed(story):
    """leader killed while training: a standby goes on, nothing is lost or counted twice"""
    job, leader = starts(story)
    before = story.job(job)
    epoch = story.json("status")["epoch"]
    leader.kill()
    taken_over(story, leader)
    check(story.json("status")["epoch"] > epoch, "the epoch has not grown")
    story.reaches(job, before["summary"]["version"] + 2)
    leader.start()  # stands by
    done = story.finishes(job, [d for d in before["decisions"]])
    check(sum(i["evictions"] for i in done["islands"]) == 0, "an island was evicted")
    check(story.leader() != leader.name, "the restarted coordinator leads")
    story.check_alive_but()


@case
def the_leader_is_frozen(story):
    """leader frozen until another one leads: it ends by itself when it goes on, and decides nothing"""
    job, leader = starts(story)
    before = story.job(job)
    leader.freeze()
    taken_over(story, leader)
    story.reaches(job, before["summary"]["version"] + 2)
    leader.thaw()
    story.wait_until("the frozen one to end", lambda: not leader.alive(), LIMIT_S)
    check(leader.process.returncode == 1, f"it ended with {leader.process.returncode}")
    story.finishes(job, before["decisions"])


@case
def the_leader_is_stopped(story):
    """leader stopped with SIGTERM: another one leads at once"""
    job, leader = starts(story)
    before = story.job(job)
    check(leader.stop() == 0, "it did not end well")
    taken_over(story, leader)
    story.finishes(job, before["decisions"])


main("coordinators")
