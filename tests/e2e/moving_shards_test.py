#!/usr/bin/python3
"""Shards move between parameter servers while a job trains, and a lost one is filled from an island, on
real daemons."""
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from story import LIMIT_S, Again, case, check, main  # noqa: E402

STEP_MS = 20


def holders(story, job):
    return {shard["server"] for shard in story.job(job)["shards"]}


@case
def a_server_is_drained_and_one_is_added(story):
    """A server is drained and another one added while a job trains: all shards leave the one, some go to
    the other, the drained one holds nothing and is stopped, and no version, token or pseudo-gradient is lost"""
    story.starts(workers=2, servers=2, step_ms=STEP_MS)
    job = story.submits(schedule__train_tokens=600_000)
    before = story.reaches(job, 3)
    check(holders(story, job) == {"ps1", "ps2"}, f"{before['shards']}")
    story.server("ps3", memory="64MiB")
    story.atoll("drain", "ps1")
    story.meanwhile("ps1 to be empty and ps3 to hold shards", job,
                    lambda: holders(story, job) == {"ps2", "ps3"})
    story.wait_until("ps1 to say so", lambda: "can be stopped" in story.member("ps1")["draining"], LIMIT_S)
    check(not os.path.exists(os.path.join(story.folder, "ps1", "jobs", job)), "ps1 keeps its part")
    story.daemons["ps1"].stop()
    story.reaches(job, story.version(job) + 2)
    story.finishes(job, before["decisions"])


def refilled(story, job, server, harm, problem):
    """Harms a server's folder while it is down, waits until the job names the problem, and refills. Returns the
    job when it has committed two more versions. Whether an island had the newest version, and whether a round was
    decided and not committed, is as it happens to be."""
    story.daemons[server].kill()
    harm(os.path.join(story.folder, server))
    story.daemons[server].start()
    waiting = story.wait_until("the job to wait", lambda: (
        lambda said: said if problem in said else None)(story.job(job)["summary"]["waiting_for"]), LIMIT_S)
    check("atoll refill" in waiting, waiting)
    version = story.version(job)
    story.atoll("refill", job, server)
    # A version without contributions may follow, and perhaps one that was decided before.
    return story.reaches(job, version + 4)


@case
def a_servers_folder_is_deleted(story):
    """A parameter server's folder is deleted: the job waits and names the remedy; after atoll refill it
    goes on and finishes, and the lost momentum is named"""
    story.starts(workers=2, servers=2, step_ms=STEP_MS)
    job = story.submits(schedule__train_tokens=400_000)
    before = story.reaches(job, 4)
    code, _, error = story.atoll("refill", job, "ps1", check=False)
    check(code == 1 and "nothing is lost" in error, f"{code}: {error}")
    after = refilled(story, job, "ps1", shutil.rmtree, "came back without the job")
    check("outer momentum began at zero" in after["moves"], f"{after['moves']}")
    story.finishes(job, before["decisions"])


def commits_while_islands_stand_still(story, job):
    """The next version is committed, of w1's contribution, while both workers are frozen. Returns it."""
    version = story.version(job)
    story.daemons["w2"].freeze()
    story.meanwhile("a window that is open for w2 alone", job, lambda: (
        lambda seen: seen["round"]["phase"] == "window open" and seen["summary"]["version"] > version)(story.job(job)))
    story.daemons["w1"].freeze()
    version = story.version(job) + 1
    story.wait_until("the grace time to be over", lambda: story.version(job) >= version, every_s=0.05)
    return version


@case
def a_servers_folder_is_deleted_before_an_island_has_its_version(story):
    """A parameter server's folder is deleted when a version is committed and no island has it yet: after atoll
    refill the shards go on from the version before, under a number of its own, and the job names the update
    that they lack, and finishes"""
    story.starts(workers=2, servers=2, step_ms=STEP_MS)
    job = story.submits(schedule__train_tokens=400_000, outer__grace_seconds=2, outer__adaptive_grace=False)
    before = story.reaches(job, 4)
    evictions = [island["evictions"] for island in before["islands"]]
    lost = commits_while_islands_stand_still(story, job)
    story.daemons["ps1"].kill()
    shutil.rmtree(os.path.join(story.folder, "ps1"))
    for worker in ("w1", "w2"):
        story.daemons[worker].thaw()
    story.daemons["ps1"].start()
    seen = story.wait_until("the job to wait", lambda: (
        lambda job: job if "came back without" in job["summary"]["waiting_for"] else None)(story.job(job)), LIMIT_S)
    if [island["evictions"] for island in seen["islands"]] != evictions:
        raise Again("the workers were evicted while they were frozen")
    story.atoll("refill", job, "ps1")
    after = story.reaches(job, lost + 3)
    decision = {d["version"]: d for d in after["decisions"]}
    check(not decision[lost + 1]["participants"], f"{decision[lost + 1]}")
    named = f"version {lost} (round {decision[lost]['round']}: island "
    for text in (after["moves"], decision[lost + 1]["closed_because"], story.logs(job)):
        check(named in text, text)
    story.finishes(job, before["decisions"])


@case
def a_servers_folder_is_deleted_and_no_worker_is_there(story):
    """A parameter server's folder is deleted, and no worker is there that has parameters: atoll refill refuses at once,
    names the remedy, and changes nothing. With the folder back the job finishes, and nothing is lost."""
    story.starts(workers=2, servers=2, step_ms=STEP_MS)
    job = story.submits(schedule__train_tokens=400_000)
    before = story.reaches(job, 4)
    for daemon in ("w1", "w2", "ps1"):
        story.daemons[daemon].kill()
    folder, kept = os.path.join(story.folder, "ps1"), os.path.join(story.folder, "kept")
    os.rename(folder, kept)
    story.daemons["ps1"].start()
    story.wait_until("the job to wait", lambda: "came back without" in story.job(job)["summary"]["waiting_for"],
                     LIMIT_S)
    code, _, error = story.atoll("refill", job, "ps1", check=False)
    check(code == 1 and "theta_base" in error and "atoll recover" in error, f"{code}: {error}")
    story.daemons["ps1"].kill()
    shutil.rmtree(folder)
    os.rename(kept, folder)
    for daemon in ("ps1", "w1", "w2"):
        story.daemons[daemon].start()
    nothing_is_lost(story, job, before)


@case
def a_servers_folder_is_damaged(story):
    """One byte changes in each file that a parameter server has of a job: the job waits and names the
    damage; atoll refill puts the damaged folder aside, and the job goes on and finishes"""
    story.starts(workers=2, servers=2, step_ms=STEP_MS)
    job = story.submits(schedule__train_tokens=400_000)
    before = story.reaches(job, 4)

    def damage(folder):
        part = os.path.join(folder, "jobs", job)
        for name in os.listdir(part):
            with open(os.path.join(part, name), "r+b") as file:
                file.seek(40)
                byte = file.read(1)
                file.seek(40)
                file.write(bytes([byte[0] ^ 1]))

    after = refilled(story, job, "ps1", damage, "damaged")
    check("outer momentum began at zero" in after["moves"], f"{after['moves']}")
    check(os.path.exists(os.path.join(story.folder, "ps1", "damaged", job + "-1")), "nothing is kept")
    story.finishes(job, before["decisions"])


def slots(story, job):
    """Every server of a shard or a copy, in order; \"\" where there is no copy now."""
    seen = story.job(job)
    return [part.get("server", "") for part in seen["shards"] + seen["copies"]]


def nothing_is_lost(story, job, before):
    seen = story.finishes(job, before["decisions"])
    check("outer momentum" not in seen["moves"], f"{seen['moves']}")


@case
def a_servers_folder_is_deleted_and_there_are_copies(story):
    """A server's folder is deleted, and another one has copies of its shards: the job goes on without a
    user's action and with nothing lost, and the server, which begins anew, gets copies again"""
    story.starts(workers=2, servers=2, step_ms=STEP_MS)
    job = story.submits(schedule__train_tokens=600_000, outer__shard_copies=2)
    before = story.reaches(job, 4)
    check(sorted(set(slots(story, job))) == ["ps1", "ps2"], f"{slots(story, job)}")
    story.daemons["ps1"].kill()
    shutil.rmtree(os.path.join(story.folder, "ps1"))
    story.daemons["ps1"].start()
    story.meanwhile("a later version", job, lambda: story.version(job) >= before["summary"]["version"] + 3)
    story.meanwhile("copies on ps1 again", job,
                    lambda: "ps1" in slots(story, job) and "" not in slots(story, job))
    check("failover from parameter server ps1" in story.logs(job), story.logs(job))
    nothing_is_lost(story, job, before)


@case
def a_server_is_gone_for_good_and_there_are_copies(story):
    """A server is killed and does not come back: after the grace time the job goes on with what others
    have, a third server gets the copies that are missing, and nothing is lost"""
    story.starts(workers=2, servers=3, step_ms=STEP_MS)
    job = story.submits(schedule__train_tokens=600_000, outer__shard_copies=2)
    before = story.reaches(job, 4)
    story.daemons["ps2"].kill()
    story.meanwhile("ps2 to be done without", job,
                    lambda: "ps2" not in slots(story, job) and "" not in slots(story, job))
    version = story.version(job)
    story.meanwhile("a later version", job, lambda: story.version(job) >= version + 2)
    nothing_is_lost(story, job, before)


if __name__ == "__main__":
    main("moving_shards_test")
