#!/usr/bin/python3
"""Daemons are killed, frozen, stopped and starved; nothing is lost and nothing counts twice."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from story import LIMIT_S, Skip, case, check, main  # noqa: E402

STEP_MS = 20


def text_after(daemon, offset):
    return daemon.log()[offset:]


@case
def a_worker_is_killed(story):
    """A worker is killed and started again: evicted with a reason, the others go on, it gets its
    island back, nothing is lost"""
    story.starts(step_ms=STEP_MS)
    job = story.submits(schedule__train_tokens=500_000, outer__grace_seconds=2)
    story.reaches(job, 3)
    before = story.island(job, "w2")
    story.daemons["w2"].kill()
    gone = story.meanwhile("the eviction of w2", job, lambda: (
        lambda island: None if island["attached"] else island)(story.island(job, "w2")))
    check(gone["evictions"] == 1 and "evicted: its connection is lost" in gone["reason"], f"{gone}")
    story.reaches(job, story.version(job) + 2)
    story.daemons["w2"].start()
    back = story.meanwhile("w2 to be ready again", job, lambda: (
        lambda island: island if island["ready"] else None)(story.island(job, "w2")))
    story.meanwhile("w2 to count again", job, lambda: story.island(job, "w2")["rounds_accepted"] >
                    back["rounds_accepted"])
    check(back["island"] == before["island"], "it got another island")
    check(back["generation"] > before["generation"], "no new generation")
    check(back["incarnation"] > before["incarnation"], "no new incarnation")
    done = story.finishes(job)
    w2 = next(i for i in done["islands"] if i["worker"] == "w2")
    log = story.logs(job)
    check("worker w2 is evicted: its connection is lost" in log, log)
    check(f"island {w2['island']}: worker w2 joined" in log, log)


@case
def a_parameter_server_is_killed(story):
    """A parameter server is killed and started again at another address: the job waits for it by
    name, then goes on from the same version"""
    story.starts(step_ms=STEP_MS)
    job = story.submits(schedule__train_tokens=250_000)
    story.reaches(job, 6)
    story.daemons["ps2"].kill()
    waits = story.meanwhile("the job to wait for ps2", job, lambda: (
        lambda seen: seen if "ps2" in seen["summary"]["waiting_for"] else None)(story.job(job)))
    check(waits["summary"]["state"] == "JOB_STATE_RUNNING", "it should run on")
    story.daemons["ps2"].start()
    story.reaches(job, waits["summary"]["version"] + 2)
    story.finishes(job, waits["decisions"])


@case
def the_coordinator_is_killed(story):
    """The coordinator is killed and started again: the workers train on meanwhile, its decisions
    stand, and the job ends as if nothing had been"""
    story.starts(step_ms=STEP_MS)
    job = story.submits(schedule__train_tokens=250_000)
    before = story.reaches(job, 4)
    offsets = {w: len(story.daemons[w].log()) for w in ("w1", "w2", "w3")}
    story.daemons["coordinator"].kill()
    for name, offset in offsets.items():
        # Each trains until it has carried on as far as it may, or has no data left.
        story.wait_until(f"{name} to train without a coordinator", lambda n=name, o=offset: (
            lambda lines: any("no connection to the coordinator" in line for line in lines) and
            "waiting for" in lines[-1])(text_after(story.daemons[n], o).splitlines() or [""]),
            LIMIT_S)
    story.daemons["coordinator"].start()
    after = story.wait_until("the workers' first words", lambda: (
        lambda seen: seen if all(i.get("progress") for i in seen["islands"]) else None)(
            story.job(job)), LIMIT_S, every_s=0.02)
    check(story.json("status")["epoch"] == 2, "a second start is a second epoch")
    for old, new in zip(before["islands"], after["islands"]):
        grown = new["progress"]["inner_step"] - old["progress"]["inner_step"]
        check(grown >= before["spec"]["outer"]["steps_per_round"],
              f"{new['worker']} made only {grown} steps while the coordinator was unavailable")
        check(new["evictions"] == 0 and new["generation"] == old["generation"],
              f"{new['worker']} was evicted for the coordinator's death")
    story.finishes(job, before["decisions"])


@case
def everything_is_killed_at_once(story):
    """Every daemon is killed at the same time and started again: the job resumes from the version
    that was committed"""
    story.starts(step_ms=STEP_MS)
    job = story.submits(schedule__train_tokens=250_000)
    before = story.reaches(job, 6)
    for daemon in story.daemons.values():
        daemon.process.kill()
    for daemon in story.daemons.values():
        daemon.process.wait()
    for daemon in story.daemons.values():
        daemon.start()
    after = story.reaches(job, before["summary"]["version"])
    check(after["decisions"][:len(before["decisions"])] == before["decisions"],
          "decisions have changed")
    story.finishes(job, before["decisions"])


@case
def everything_is_stopped_and_started(story):
    """SIGTERM ends every daemon with code 0 in the middle of a job; started again, they go on"""
    story.starts(step_ms=STEP_MS)
    job = story.submits(schedule__train_tokens=150_000)
    before = story.reaches(job, 4)
    for name in ("w1", "ps1", "w2", "coordinator", "w3", "ps2"):
        code = story.daemons[name].stop()
        check(code == 0, f"{name} ended with code {code}")
    check("w1 is unavailable: it leaves: SIGTERM" in story.daemons["coordinator"].log(), "no goodbye")
    for daemon in story.daemons.values():
        daemon.start()
    story.finishes(job, before["decisions"])


@case
def a_worker_is_frozen(story):
    """A frozen worker holds the others up by no more than the grace time, is evicted, and joins
    again when it thaws"""
    story.starts(step_ms=STEP_MS)
    job = story.submits(schedule__train_tokens=500_000, outer__grace_seconds=1)
    story.reaches(job, 3)
    before = story.island(job, "w3")
    story.daemons["w3"].freeze()
    gone = story.meanwhile("the eviction of w3", job, lambda: (
        lambda island: None if island["attached"] else island)(story.island(job, "w3")))
    check("no heartbeat for 6 s" in gone["reason"], gone["reason"])
    closed = [d["closed_because"] for d in story.job(job)["decisions"]]
    late = f"the grace time of 1 s is over without island {before['island']}"
    check(late in closed, f"the others did not go on without it: {closed}")
    story.reaches(job, story.version(job) + 2)
    story.daemons["w3"].thaw()
    back = story.meanwhile("w3 to be ready again", job, lambda: (
        lambda island: island if island["ready"] else None)(story.island(job, "w3")))
    check(back["generation"] > before["generation"] and
          back["incarnation"] == before["incarnation"] and back["evictions"] == 1, f"{back}")
    done = story.finishes(job)
    # Nothing from before the eviction counted after it.
    first = len(closed)
    stale = [p for d in done["decisions"][first:] for p in d["participants"]
             if p["accepted"] and p["worker"] == "w3" and p["generation"] <= gone["generation"] - 1]
    check(len(stale) <= 1, f"more than the push that was complete before counted: {stale}")


@case
def the_machine_stands_still(story):
    """All daemons stall for longer than the heartbeat limit: no member is evicted, and an island of three
    workers continues its step"""
    story.starts(workers=3, servers=1)
    job = story.submits(layout__island="all", layout__stages=3, outer__min_islands=1,
                        model__layers=4, inner__micro_batch_sequences=2,
                        schedule__train_tokens=100_000_000)
    story.reaches(job, 2)
    story.stands_still(8)
    story.reaches(job, story.version(job) + 2)
    # Heartbeats of all come before the check: a silent member would be evicted by then.
    story.wait_until("heartbeats of all", lambda: all(
        m["since_heartbeat_s"] < 6 for m in story.json("status")["members"]), LIMIT_S)
    island = story.job(job)["islands"][0]
    check(island["evictions"] == 0 and island["steps_interrupted"] == 0, f"{island}")
    check(not any("is unavailable" in change["reason"] for change in island["plan_changes"]),
          f"plans: {island['plan_changes']}")


@case
def two_workers_have_one_name(story):
    """A second worker of the same name takes over; the first one ends and says why"""
    story.starts(workers=2, servers=1, step_ms=STEP_MS)
    job = story.submits(schedule__train_tokens=150_000)
    story.reaches(job, 2)
    thief = subprocess.run([*story.daemons["w1"].command], capture_output=True, text=True,
                           timeout=LIMIT_S, check=False)
    check(thief.returncode == 1 and "runs on it; give every daemon" in thief.stderr, f"{thief}")
    story.worker("w1", f"--emulate-step-ms={STEP_MS}", process="w1-again")
    first = story.daemons["w1"]
    story.wait_until("the first w1 to end", lambda: not first.alive(), LIMIT_S)
    check(first.process.returncode == 1, f"it ended with {first.process.returncode}")
    check("replaced by a newer process" in first.log(), first.log())
    story.meanwhile("the job's log line", job, lambda: "replaced by a newer process" in
                    story.logs(job))
    story.finishes(job)


@case
def the_disk_of_a_server_is_full(story):
    """The disk of a parameter server is full: the job waits and says so, and goes on when there is
    room again"""
    state = os.path.join(story.folder, "ps1")
    os.makedirs(state)
    mount = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=32m tmpfs "$0" && exec "$@"',
             state]
    try:
        probe = subprocess.run([*mount, "true"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise Skip(f"no unshare: {error}") from None
    if probe.returncode != 0:
        raise Skip(f"no file system can be mounted here: {probe.stderr.strip()}")
    story.coordinator()
    server = story.server("ps1", memory="64MiB", wrapper=mount)
    for name in ("w1", "w2"):
        story.worker(name, f"--emulate-step-ms={STEP_MS}")
    story.attached(3)
    job = story.submits(schedule__train_tokens=150_000)
    story.reaches(job, 3)
    ballast = f"/proc/{server.process.pid}/root{state}/ballast"

    def fill():
        """Writes until nothing fits, and again, since the server frees what it replaces."""
        with open(ballast, "ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    pass
        return "No space left on device" in story.job(job)["summary"]["waiting_for"]

    story.meanwhile("the job to name the full disk", job, fill)
    held_up = story.job(job)
    check(held_up["summary"]["state"] == "JOB_STATE_RUNNING", f"{held_up['summary']}")
    check(server.alive(), "the server died of it")
    check("No space left on device" in story.logs(job), "the log does not say it")
    os.unlink(ballast)
    story.finishes(job, held_up["decisions"])


if __name__ == "__main__":
    main("failures")
