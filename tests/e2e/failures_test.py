#!/usr/bin/python3
"""Daemons are killed, frozen, stopped and starved; nothing is lost and nothing counts twice."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, Skip, case, check, main  # noqa: E402

STEP_MS = 50


def text_after(daemon, offset):
    return daemon.log()[offset:]


def evicted(fixture, job, worker):
    """Its island, when the worker has been evicted."""
    return fixture.meanwhile(f"the eviction of {worker}", job, lambda: (
        lambda island: None if island["attached"] else island)(fixture.island(job, worker)))


@case
def a_worker_is_killed(fixture):
    """A worker is killed and started again: evicted with a reason, the others go on, it gets its
    island back, nothing is lost"""
    fixture.starts(step_ms=STEP_MS)
    job = fixture.submits(schedule__train_tokens=250_000, outer__grace_seconds=2)
    fixture.reaches(job, 3)
    before = fixture.island(job, "w2")
    fixture.daemons["w2"].kill()
    eviction = evicted(fixture, job, "w2")
    check(eviction["evictions"] == 1 and "evicted: its connection is lost" in eviction["reason"], f"{eviction}")
    fixture.reaches(job, fixture.version(job) + 2)
    fixture.daemons["w2"].start()
    back = fixture.meanwhile("w2 to be ready again", job, lambda: (
        lambda island: island if island["ready"] else None)(fixture.island(job, "w2")))
    fixture.meanwhile("w2 to count again", job, lambda: fixture.island(job, "w2")["rounds_accepted"] >
                      back["rounds_accepted"])
    check(back["island"] == before["island"], "it got another island")
    check(back["generation"] > before["generation"], "no new generation")
    check(back["incarnation"] > before["incarnation"], "no new incarnation")
    done = fixture.finishes(job)
    w2 = next(i for i in done["islands"] if i["worker"] == "w2")
    log = fixture.logs(job)
    check("worker w2 is evicted: its connection is lost" in log, log)
    check(f"island {w2['island']}: worker w2 joined" in log, log)


@case
def a_parameter_server_is_killed(fixture):
    """A parameter server is killed and started again at another address: the job waits for it by
    name, then goes on from the same version"""
    fixture.starts(step_ms=STEP_MS)
    job = fixture.submits(schedule__train_tokens=125_000)
    fixture.reaches(job, 6)
    fixture.daemons["ps2"].kill()
    waits = fixture.meanwhile("the job to wait for ps2", job, lambda: (
        lambda seen: seen if "ps2" in seen["summary"]["waiting_for"] else None)(fixture.job(job)))
    check(waits["summary"]["state"] == "JOB_STATE_RUNNING", "it should run on")
    fixture.daemons["ps2"].start()
    fixture.reaches(job, waits["summary"]["version"] + 2)
    fixture.finishes(job, waits["decisions"])


@case
def the_coordinator_is_killed(fixture):
    """The coordinator is killed and started again: the workers train on meanwhile, its decisions
    stand, and the job ends as if nothing had been"""
    fixture.starts(step_ms=STEP_MS)
    job = fixture.submits(schedule__train_tokens=125_000)
    before = fixture.reaches(job, 4)
    offsets = {w: len(fixture.daemons[w].log()) for w in ("w1", "w2", "w3")}
    fixture.daemons["coordinator"].kill()
    for name, offset in offsets.items():
        # Each trains until it has carried on as far as it may, or has no data left.
        fixture.wait_until(f"{name} to train without a coordinator", lambda n=name, o=offset: (
            lambda lines: any("no connection to the coordinator" in line for line in lines) and
            "waiting for" in lines[-1])(text_after(fixture.daemons[n], o).splitlines() or [""]),
            LIMIT_S)
    fixture.daemons["coordinator"].start()
    after = fixture.wait_until("the workers' first words", lambda: (
        lambda seen: seen if all(i.get("progress") for i in seen["islands"]) else None)(
            fixture.job(job)), LIMIT_S, every_s=0.02)
    check(fixture.status()["epoch"] == 2, "a second start is a second epoch")
    for old, new in zip(before["islands"], after["islands"]):
        grown = new["progress"]["inner_step"] - old["progress"]["inner_step"]
        check(grown >= before["spec"]["outer"]["steps_per_round"],
              f"{new['worker']} made only {grown} steps while the coordinator was unavailable")
        check(new["evictions"] == 0 and new["generation"] == old["generation"],
              f"{new['worker']} was evicted for the coordinator's death")
    fixture.finishes(job, before["decisions"])


@case
def a_recording_is_replayed(fixture):
    """A worker and the coordinator are killed while it records: a replay decides what they decided,
    shows the job as it was, and names a file that is damaged"""
    recording = os.path.join(fixture.folder, "recording")
    fixture.coordinator("--record=" + recording)
    fixture.server("ps1", memory="64MiB")
    for name in ("w1", "w2"):
        fixture.worker(name, f"--emulate-step-ms={STEP_MS}")
    fixture.attached(3)
    job = fixture.submits(schedule__train_tokens=100_000, outer__grace_seconds=2)
    fixture.reaches(job, 3)
    fixture.daemons["w2"].kill()
    evicted(fixture, job, "w2")
    fixture.daemons["w2"].start()
    fixture.daemons["coordinator"].kill()
    fixture.daemons["coordinator"].start()
    done = fixture.finishes(job)
    fixture.daemons["coordinator"].stop()
    replayed = fixture.json("replay", recording)
    check(replayed["segments"] == 2 and replayed["torn"] == 0 and not replayed["differs"], f"{replayed}")
    check(replayed["unrecorded"] <= 1 and replayed["alike"] + replayed["unrecorded"] == replayed["events"],
          f"{replayed}")
    shown = fixture.json("replay", recording, "--show", job)
    check(shown["summary"]["version"] == done["summary"]["version"], "the job is another one than it was")
    first = fixture.json("replay", recording, "--until", "1:1")
    check(first["events"] == 1 and first["last"]["place"] == "1:1", f"{first}")
    damaged = os.path.join(recording, "000001.recording")
    with open(damaged, "r+b") as file:
        file.seek(os.path.getsize(damaged) // 2)
        file.write(b"atoll")
    code, _, errors = fixture.atoll("replay", recording, check=False)
    check(code == 1 and damaged in errors, f"{code}: {errors}")


@case
def everything_is_killed_at_once(fixture):
    """Every daemon is killed at the same time and started again: the job resumes from the version
    that was committed"""
    fixture.starts(step_ms=STEP_MS)
    job = fixture.submits(schedule__train_tokens=125_000)
    before = fixture.reaches(job, 6)
    for daemon in fixture.daemons.values():
        daemon.process.kill()
    for daemon in fixture.daemons.values():
        daemon.process.wait()
    for daemon in fixture.daemons.values():
        daemon.start()
    after = fixture.reaches(job, before["summary"]["version"])
    check(after["decisions"][:len(before["decisions"])] == before["decisions"],
          "decisions have changed")
    fixture.finishes(job, before["decisions"])


@case
def everything_is_stopped_and_started(fixture):
    """SIGTERM ends every daemon with code 0 in the middle of a job; started again, they go on"""
    fixture.starts(step_ms=STEP_MS)
    job = fixture.submits(schedule__train_tokens=75_000)
    before = fixture.reaches(job, 4)
    for name in ("w1", "ps1", "w2", "coordinator", "w3", "ps2"):
        code = fixture.daemons[name].stop()
        check(code == 0, f"{name} ended with code {code}")
    check("w1 left: SIGTERM" in fixture.daemons["coordinator"].log(), "no goodbye")
    for daemon in fixture.daemons.values():
        daemon.start()
    fixture.finishes(job, before["decisions"])


@case
def a_worker_is_frozen(fixture):
    """A frozen worker holds the others up by no more than the grace time, is evicted, and joins
    again when it thaws"""
    fixture.starts(step_ms=STEP_MS)
    job = fixture.submits(schedule__train_tokens=250_000, outer__grace_seconds=1)
    fixture.reaches(job, 3)
    before = fixture.island(job, "w3")
    fixture.daemons["w3"].freeze()
    eviction = evicted(fixture, job, "w3")
    check("no heartbeat for 6 s" in eviction["reason"], eviction["reason"])
    closed = [d["closed_because"] for d in fixture.job(job)["decisions"]]
    late = f"the grace time of 1 s is over without island {before['island']}"
    check(late in closed, f"the others did not go on without it: {closed}")
    fixture.reaches(job, fixture.version(job) + 2)
    fixture.daemons["w3"].thaw()
    back = fixture.meanwhile("w3 to be ready again", job, lambda: (
        lambda island: island if island["ready"] else None)(fixture.island(job, "w3")))
    check(back["generation"] > before["generation"] and
          back["incarnation"] == before["incarnation"] and back["evictions"] == 1, f"{back}")
    done = fixture.finishes(job)
    # Nothing from before the eviction counted after it.
    first = len(closed)
    stale = [p for d in done["decisions"][first:] for p in d["participants"]
             if p["accepted"] and p["worker"] == "w3" and p["generation"] <= eviction["generation"] - 1]
    check(len(stale) <= 1, f"more than the push that was complete before counted: {stale}")


@case
def the_machine_stands_still(fixture):
    """All daemons stall for longer than the heartbeat limit: no member is evicted, and an island of three
    workers continues its step"""
    fixture.starts(workers=3, servers=1)
    job = fixture.submits(layout__island="all", layout__stages=3, outer__min_islands=1,
                          model__layers=4, inner__micro_batch_sequences=2,
                          schedule__train_tokens=100_000_000)
    fixture.reaches(job, 2)
    fixture.stands_still(8)
    fixture.reaches(job, fixture.version(job) + 2)
    # Heartbeats of all come before the check: a silent member would be evicted by then.
    fixture.wait_until("heartbeats of all", lambda: all(
        m["since_heartbeat_s"] < 6 for m in fixture.status()["members"]), LIMIT_S)
    island = fixture.job(job)["islands"][0]
    check(island["evictions"] == 0 and island["steps_interrupted"] == 0, f"{island}")
    check(not any("is unavailable" in change["reason"] for change in island["plan_changes"]),
          f"plans: {island['plan_changes']}")


@case
def two_workers_have_one_name(fixture):
    """A second worker of the same name is refused while the first one sends heartbeats, and takes its place when
    that one has ended"""
    fixture.starts(workers=2, servers=1, step_ms=STEP_MS)
    job = fixture.submits(schedule__train_tokens=75_000)
    fixture.reaches(job, 2)
    thief = subprocess.run([*fixture.daemons["w1"].command], capture_output=True, text=True,
                           timeout=LIMIT_S, check=False)
    check(thief.returncode == 1 and "runs on it; give every process" in thief.stderr, f"{thief}")
    first, before = fixture.daemons["w1"], fixture.member("w1")["incarnation"]
    again = fixture.worker("w1", f"--emulate-step-ms={STEP_MS}", process="w1-again")
    fixture.wait_until("the second w1 to be refused", lambda: "another worker of the name w1" in again.log(),
                       LIMIT_S)
    fixture.reaches(job, fixture.version(job) + 1)
    check(first.alive() and again.alive(), "one of them has ended")
    check(fixture.member("w1")["incarnation"] == before, "the second one has the name")
    first.kill()
    fixture.meanwhile("the second w1 to attach", job, lambda: fixture.member("w1")["incarnation"] != before
                      and fixture.member("w1")["attached"])
    fixture.finishes(job)


@case
def the_disk_of_a_server_is_full(fixture):
    """The disk of a parameter server is full: the job waits and says so, and goes on when there is
    room again"""
    state = os.path.join(fixture.folder, "ps1")
    os.makedirs(state)
    mount = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=32m tmpfs "$0" && exec "$@"',
             state]
    try:
        probe = subprocess.run([*mount, "true"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise Skip(f"no unshare: {error}") from None
    if probe.returncode != 0:
        raise Skip(f"no file system can be mounted here: {probe.stderr.strip()}")
    fixture.coordinator()
    server = fixture.server("ps1", memory="64MiB", wrapper=mount)
    for name in ("w1", "w2"):
        fixture.worker(name, f"--emulate-step-ms={STEP_MS}")
    fixture.attached(3)
    job = fixture.submits(schedule__train_tokens=75_000)
    fixture.reaches(job, 3)
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
        return "No space left on device" in fixture.job(job)["summary"]["waiting_for"]

    fixture.meanwhile("the job to name the full disk", job, fill)
    held_up = fixture.job(job)
    check(held_up["summary"]["state"] == "JOB_STATE_RUNNING", f"{held_up['summary']}")
    check(server.alive(), "the server died of it")
    check("No space left on device" in fixture.logs(job), "the log does not say it")
    os.unlink(ballast)
    fixture.finishes(job, held_up["decisions"])


if __name__ == "__main__":
    main("failures")
