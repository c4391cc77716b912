#!/usr/bin/python3
"""Shards move between parameter servers while a job trains, and a lost one is filled from an island, on
real daemons."""
import os
import shutil
import sys
import time

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


NO_SOURCE_S = 15  # longer than a progress report takes to arrive


def is_filled(story, job, version):
    """Whether the job commits another version after a refill; False: no island has the parameters of this one."""
    lacking_since = None

    def known():
        nonlocal lacking_since
        seen = story.job(job)
        if seen["summary"]["version"] > version:
            return "filled"
        lacks = "no island holds theta_base" in seen["moves"] + seen["summary"]["waiting_for"]
        lacking_since = (lacking_since or time.monotonic()) if lacks else None
        return "not filled" if lacks and time.monotonic() - lacking_since > NO_SOURCE_S else None

    return story.wait_until("the shards to be filled", known, LIMIT_S) == "filled"


def refilled(story, job, server, harm, problem):
    """Harms a server's folder while it is down, waits until the job names the problem, and refills: the version
    from which it goes on. Where the server died between a decision and its commit, or before an island had the version,
    only its folder has what that version is made of: it gets the folder back and dies again later."""
    folder, kept = os.path.join(story.folder, server), os.path.join(story.folder, "kept")
    for _ in range(6):
        story.daemons[server].kill()
        shutil.copytree(folder, kept)
        harm(folder)
        story.daemons[server].start()
        waiting = story.wait_until("the job to wait", lambda: (
            lambda said: said if problem in said else None)(story.job(job)["summary"]["waiting_for"]), LIMIT_S)
        check("atoll refill" in waiting, waiting)
        version = story.version(job)
        code, _, error = story.atoll("refill", job, server, check=False)
        if code == 0 and is_filled(story, job, version):
            shutil.rmtree(kept)
            return version
        check(code == 0 or f"is decided, and only server {server}" in error, f"{code}: {error}")
        story.daemons[server].kill()
        shutil.rmtree(folder)
        os.rename(kept, folder)
        story.daemons[server].start()
        story.reaches(job, version + 2)
    raise Again("at each death a version was decided and not committed")


@case
def a_servers_folder_is_deleted(story):
    """A parameter server's folder is deleted: the job waits and names the remedy; after atoll refill it
    goes on from the same version and finishes, and the lost momentum is named"""
    story.starts(workers=2, servers=2, step_ms=STEP_MS)
    job = story.submits(schedule__train_tokens=400_000)
    before = story.reaches(job, 4)
    code, _, error = story.atoll("refill", job, "ps1", check=False)
    check(code == 1 and "nothing is lost" in error, f"{code}: {error}")
    version = refilled(story, job, "ps1", shutil.rmtree, "came back without the job")
    after = story.reaches(job, version + 2)
    check("outer momentum began at zero" in after["moves"], f"{after['moves']}")
    story.finishes(job, before["decisions"])


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

    version = refilled(story, job, "ps1", damage, "damaged")
    after = story.reaches(job, version + 2)
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
