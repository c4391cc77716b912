#!/usr/bin/python3
"""Shards move between parameter servers while a job trains, and a lost one is filled from an island, on
real daemons."""
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, Again, case, check, main  # noqa: E402

STEP_MS = 50


def holders(fixture, job):
    return {shard["server"] for shard in fixture.job(job)["shards"]}


@case
def a_server_is_drained_and_one_is_added(fixture):
    """A server is drained and another one added while a job trains: all shards leave the one, some go to
    the other, the drained one holds nothing and is stopped, and no version, token or pseudo-gradient is lost"""
    fixture.starts(workers=2, servers=2, step_ms=STEP_MS)
    job = fixture.submits(schedule__train_tokens=300_000)
    before = fixture.reaches(job, 3)
    check(holders(fixture, job) == {"ps1", "ps2"}, f"{before['shards']}")
    fixture.server("ps3", memory="64MiB")
    fixture.atoll("drain", "ps1")
    fixture.meanwhile("ps1 to be empty and ps3 to hold shards", job,
                      lambda: holders(fixture, job) == {"ps2", "ps3"})
    fixture.wait_until("ps1 to say so", lambda: "can be stopped" in fixture.member("ps1")["draining"], LIMIT_S)
    check(not os.path.exists(os.path.join(fixture.folder, "ps1", "jobs", job)), "ps1 keeps its part")
    fixture.daemons["ps1"].stop()
    fixture.reaches(job, fixture.version(job) + 2)
    fixture.finishes(job, before["decisions"])


def refilled(fixture, job, server, harm, problem):
    """Harms a server's folder while it is down, waits until the job names the problem, and refills. Returns the
    job when it has committed two more versions. Whether an island had the newest version, and whether a round was
    decided and not committed, is as it happens to be."""
    fixture.daemons[server].kill()
    harm(os.path.join(fixture.folder, server))
    fixture.daemons[server].start()
    waiting = fixture.wait_until("the job to wait", lambda: (
        lambda said: said if problem in said else None)(fixture.job(job)["summary"]["waiting_for"]), LIMIT_S)
    check("atoll refill" in waiting, waiting)
    version = fixture.version(job)
    fixture.atoll("refill", job, server)
    # A version without contributions may follow, and perhaps one that was decided before.
    return fixture.reaches(job, version + 4)


@case
def a_servers_folder_is_deleted(fixture):
    """A parameter server's folder is deleted: the job waits and names the remedy; after atoll refill it
    goes on and finishes, and the lost momentum is named"""
    fixture.starts(workers=2, servers=2, step_ms=STEP_MS)
    job = fixture.submits(schedule__train_tokens=200_000)
    before = fixture.reaches(job, 4)
    code, _, error = fixture.atoll("refill", job, "ps1", check=False)
    check(code == 1 and "nothing is lost" in error, f"{code}: {error}")
    after = refilled(fixture, job, "ps1", shutil.rmtree, "came back without the job")
    check("outer momentum began at zero" in after["moves"], f"{after['moves']}")
    fixture.finishes(job, before["decisions"])


def commits_while_islands_stand_still(fixture, job):
    """The next version is committed, of w1's contribution, while both workers are frozen. Returns it."""
    version = fixture.version(job)
    fixture.daemons["w2"].freeze()
    fixture.meanwhile("a window that is open for w2 alone", job, lambda: (
        lambda seen: seen["round"]["phase"] == "window open" and seen["summary"]["version"] > version)(
            fixture.job(job)))
    fixture.daemons["w1"].freeze()
    version = fixture.version(job) + 1
    fixture.wait_until("the grace time to be over", lambda: fixture.version(job) >= version, every_s=0.05)
    return version


@case
def a_servers_folder_is_deleted_before_an_island_has_its_version(fixture):
    """A parameter server's folder is deleted when a version is committed and no island has it yet: after atoll
    refill the shards go on from the version before, under a number of its own, and the job names the update
    that they lack, and finishes"""
    fixture.starts(workers=2, servers=2, step_ms=STEP_MS)
    job = fixture.submits(schedule__train_tokens=200_000, outer__grace_seconds=2, outer__adaptive_grace=False)
    before = fixture.reaches(job, 4)
    evictions = [island["evictions"] for island in before["islands"]]
    lost = commits_while_islands_stand_still(fixture, job)
    fixture.daemons["ps1"].kill()
    shutil.rmtree(os.path.join(fixture.folder, "ps1"))
    for worker in ("w1", "w2"):
        fixture.daemons[worker].thaw()
    fixture.daemons["ps1"].start()
    seen = fixture.wait_until("the job to wait", lambda: (
        lambda job: job if "came back without" in job["summary"]["waiting_for"] else None)(fixture.job(job)), LIMIT_S)
    if [island["evictions"] for island in seen["islands"]] != evictions:
        raise Again("the workers were evicted while they were frozen")
    fixture.atoll("refill", job, "ps1")
    after = fixture.reaches(job, lost + 3)
    decision = {d["version"]: d for d in after["decisions"]}
    check(not decision[lost + 1]["participants"], f"{decision[lost + 1]}")
    named = f"version {lost} (round {decision[lost]['round']}: island "
    for text in (after["moves"], decision[lost + 1]["closed_because"], fixture.logs(job)):
        check(named in text, text)
    fixture.finishes(job, before["decisions"])


@case
def a_servers_folder_is_deleted_and_no_worker_is_there(fixture):
    """A parameter server's folder is deleted, and no worker is there that has parameters: atoll refill refuses at once,
    names the remedy, and changes nothing. With the folder back the job finishes, and nothing is lost."""
    fixture.starts(workers=2, servers=2, step_ms=STEP_MS)
    job = fixture.submits(schedule__train_tokens=200_000)
    before = fixture.reaches(job, 4)
    for daemon in ("w1", "w2", "ps1"):
        fixture.daemons[daemon].kill()
    folder, kept = os.path.join(fixture.folder, "ps1"), os.path.join(fixture.folder, "kept")
    os.rename(folder, kept)
    fixture.daemons["ps1"].start()
    fixture.wait_until("the job to wait", lambda: "came back without" in fixture.job(job)["summary"]["waiting_for"],
                       LIMIT_S)
    code, _, error = fixture.atoll("refill", job, "ps1", check=False)
    check(code == 1 and "theta_base" in error and "atoll recover" in error, f"{code}: {error}")
    fixture.daemons["ps1"].kill()
    shutil.rmtree(folder)
    os.rename(kept, folder)
    for daemon in ("ps1", "w1", "w2"):
        fixture.daemons[daemon].start()
    nothing_is_lost(fixture, job, before)


@case
def a_servers_folder_is_damaged(fixture):
    """One byte changes in each file that a parameter server has of a job: the job waits and names the
    damage; atoll refill puts the damaged folder aside, and the job goes on and finishes"""
    fixture.starts(workers=2, servers=2, step_ms=STEP_MS)
    job = fixture.submits(schedule__train_tokens=200_000)
    before = fixture.reaches(job, 4)

    def damage(folder):
        part = os.path.join(folder, "jobs", job)
        for name in os.listdir(part):
            with open(os.path.join(part, name), "r+b") as file:
                file.seek(40)
                byte = file.read(1)
                file.seek(40)
                file.write(bytes([byte[0] ^ 1]))

    after = refilled(fixture, job, "ps1", damage, "damaged")
    check("outer momentum began at zero" in after["moves"], f"{after['moves']}")
    check(os.path.exists(os.path.join(fixture.folder, "ps1", "damaged", job + "-1")), "nothing is kept")
    fixture.finishes(job, before["decisions"])


def slots(fixture, job):
    """Every server of a shard or a copy, in order; \"\" where there is no copy now."""
    seen = fixture.job(job)
    return [part.get("server", "") for part in seen["shards"] + seen["copies"]]


def nothing_is_lost(fixture, job, before):
    seen = fixture.finishes(job, before["decisions"])
    check("outer momentum" not in seen["moves"], f"{seen['moves']}")


@case
def a_servers_folder_is_deleted_and_there_are_copies(fixture):
    """A server's folder is deleted, and another one has copies of its shards: the job goes on without a
    user's action and with nothing lost, and the server, which begins anew, gets copies again"""
    fixture.starts(workers=2, servers=2, step_ms=STEP_MS)
    job = fixture.submits(schedule__train_tokens=300_000, outer__shard_copies=2)
    before = fixture.reaches(job, 4)
    check(sorted(set(slots(fixture, job))) == ["ps1", "ps2"], f"{slots(fixture, job)}")
    fixture.daemons["ps1"].kill()
    shutil.rmtree(os.path.join(fixture.folder, "ps1"))
    fixture.daemons["ps1"].start()
    fixture.meanwhile("a later version", job, lambda: fixture.version(job) >= before["summary"]["version"] + 3)
    fixture.meanwhile("copies on ps1 again", job,
                      lambda: "ps1" in slots(fixture, job) and "" not in slots(fixture, job))
    check("failover from parameter server ps1" in fixture.logs(job), fixture.logs(job))
    nothing_is_lost(fixture, job, before)


@case
def a_server_is_lost_for_good_and_there_are_copies(fixture):
    """A server is killed and does not come back: after the grace time the job goes on with what others
    have, a third server gets the copies that are missing, and nothing is lost"""
    fixture.starts(workers=2, servers=3, step_ms=STEP_MS)
    job = fixture.submits(schedule__train_tokens=300_000, outer__shard_copies=2)
    before = fixture.reaches(job, 4)
    fixture.daemons["ps2"].kill()
    fixture.meanwhile("ps2 to be done without", job,
                      lambda: "ps2" not in slots(fixture, job) and "" not in slots(fixture, job))
    version = fixture.version(job)
    fixture.meanwhile("a later version", job, lambda: fixture.version(job) >= version + 2)
    nothing_is_lost(fixture, job, before)


if __name__ == "__main__":
    main("moving_shards_test")
