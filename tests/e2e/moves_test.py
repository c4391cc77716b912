#!/usr/bin/python3
"""Workers of a running island join and leave: a worker that leaves costs no step, one that dies few."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, Again, case, check, main  # noqa: E402

# One island of all workers; layers that are worth sharing without a layout that says so.
TOGETHER = {"layout__island": "all", "outer__min_islands": 1, "model__layers": 4,
            "model__hidden": 128, "model__heads": 4, "data__sequence_length": 64,
            "inner__micro_batch_sequences": 2, "schedule__train_tokens": 100_000_000}
# Where the layout is given, a smaller model does: most of these tests' processor time is training.
GIVEN = dict(TOGETHER, model__hidden=64, layout__replicas=1)


def island(fixture, job):
    return fixture.job(job)["islands"][0]


def with_part(seen):
    return {w["worker"] for w in seen["workers"] if w["in_plan"]}


def trains_with(fixture, job, wanted, what):
    """Waits until the island is set up for a plan of which `wanted` says yes, and returns it."""
    def there():
        fixture.still_trains(job)
        seen = island(fixture, job)
        number = seen.get("plan", {}).get("number", 0)
        set_up = number > 0 and seen.get("progress", {}).get("plan_number", 0) == number
        return seen if set_up and wanted(seen) else None
    return fixture.wait_until(what, there, LIMIT_S, every_s=0.05)


def goes_on(fixture, job, rounds=2):
    return fixture.reaches(job, fixture.version(job) + rounds)


def cost_nothing(fixture, job):
    seen = island(fixture, job)
    check(seen["steps_interrupted"] == 0, f"{seen['steps_interrupted']} steps were interrupted")
    check(seen["steps_redone"] == 0, f"{seen['steps_redone']} steps were replayed")
    return seen


@case
def joins(fixture):
    """A worker joins a running island: the plan grows at a step's end, and no step is replayed"""
    fixture.starts(workers=1, servers=1)
    job = fixture.submits(**TOGETHER)
    fixture.reaches(job, 2)
    generation = island(fixture, job)["generation"]
    fixture.worker("w2")

    def has_a_part(seen):
        # What is measured on a busy machine may say that it is not worth it.
        if "keeps plan 1 (worker w2 has joined)" in fixture.logs(job):
            raise Again(f"w2 was not wanted: {fixture.logs(job)}")
        return "w2" in with_part(seen)
    trains_with(fixture, job, has_a_part, "w2 to have a part")
    done = goes_on(fixture, job)
    seen = cost_nothing(fixture, job)
    change = next(c for c in seen["plan_changes"] if "w2 has joined" in c["reason"])
    check(change["at_step_end"], f"the plan did not wait for the step's end: {change}")
    check(seen["generation"] == generation, "the generation changed")
    first = done["summary"]["first_validation_loss"]
    check(seen["progress"]["train_loss"] < first, f"the loss does not fall from {first}")


@case
def leader_leaves(fixture):
    """The leader ends on SIGTERM: another worker takes over in the same generation, no step is made
    again, and every token counts once"""
    fixture.starts(workers=3, servers=1)
    job = fixture.submits(**dict(GIVEN, layout__stages=2, schedule__train_tokens=100_000))
    fixture.reaches(job, 2)
    before = trains_with(fixture, job, lambda seen: len(with_part(seen)) == 2, "two stages")
    decisions = fixture.job(job)["decisions"]
    check(fixture.daemons[before["worker"]].stop() == 0, f"{before['worker']}'s exit code")
    after = trains_with(fixture, job, lambda seen: seen["worker"] != before["worker"],
                        "another leader")
    check(after["generation"] == before["generation"], "the generation changed")
    check(f"has taken over from {before['worker']}" in fixture.logs(job), "no worker took over")
    goes_on(fixture, job)
    cost_nothing(fixture, job)
    fixture.finishes(job, decisions)


@case
def lone_leader_leaves(fixture):
    """A leader that does everything ends on SIGTERM beside a spare worker: that one takes over in the
    same generation, and no step is replayed"""
    fixture.starts(workers=2, servers=1)
    job = fixture.submits(**dict(GIVEN, layout__stages=1, schedule__train_tokens=100_000))
    fixture.reaches(job, 2)
    before = trains_with(fixture, job, lambda seen: len(with_part(seen)) == 1, "one part")
    fixture.wait_until("a spare worker", lambda: len(island(fixture, job)["workers"]) == 2, LIMIT_S)
    decisions = fixture.job(job)["decisions"]
    check(fixture.daemons[before["worker"]].stop() == 0, f"{before['worker']}'s exit code")
    after = trains_with(fixture, job, lambda seen: seen["worker"] != before["worker"],
                        "another leader")
    check(after["generation"] == before["generation"], "the generation changed")
    goes_on(fixture, job)
    cost_nothing(fixture, job)
    fixture.finishes(job, decisions)


@case
def leader_and_follower_leave(fixture):
    """The leader and a follower end on SIGTERM at once: another worker takes over, with
    both as transfer sources"""
    fixture.starts(workers=3, servers=1)
    job = fixture.submits(**GIVEN, layout__stages=2)
    fixture.reaches(job, 2)
    before = trains_with(fixture, job, lambda seen: len(with_part(seen)) > 1, "several parts")
    leaving = sorted(before["workers"], key=lambda w: (not w["leads"], not w["in_plan"]))[:2]
    for worker in leaving:
        fixture.daemons[worker["worker"]].process.terminate()
    for worker in leaving:
        code = fixture.daemons[worker["worker"]].process.wait(LIMIT_S)
        check(code == 0, f"{worker['worker']}'s exit code is {code}")
    goes_on(fixture, job)
    seen = cost_nothing(fixture, job)
    check(seen["generation"] == before["generation"], "the generation changed")


@case
def leader_and_follower_are_drained(fixture):
    """The leader, then a follower are drained: others take over, no step is replayed, each is shown as
    idle while it stays attached, and the leader works again after --undo"""
    fixture.starts(workers=4, servers=1)
    job = fixture.submits(**GIVEN, layout__stages=2)
    fixture.reaches(job, 2)
    before = trains_with(fixture, job, lambda seen: len(with_part(seen)) == 2, "two stages")
    leader = before["worker"]
    drained = fixture.json("drain", leader, "--wait", "--timeout", str(LIMIT_S))
    check("can be stopped" in drained["state"], f"{drained}")
    after = trains_with(fixture, job, lambda seen: len(with_part(seen)) == 2, "two stages again")
    check(after["generation"] == before["generation"], "the generation changed")
    check(leader not in {w["worker"] for w in after["workers"]}, f"{leader} is still there")
    follower = next(w["worker"] for w in after["workers"] if w["in_plan"] and not w["leads"])
    fixture.atoll("drain", f"worker/{follower}", "--wait", "--timeout", str(LIMIT_S))
    trains_with(fixture, job, lambda seen: follower not in with_part(seen) and len(with_part(seen)) == 2,
                f"a plan without {follower}")
    goes_on(fixture, job)
    for name in (leader, follower):
        member = fixture.member(name)
        check(member["attached"] and not member.get("job"), f"{member}")
    cost_nothing(fixture, job)
    check(fixture.daemons[follower].stop() == 0, f"{follower}'s exit code")
    fixture.atoll("drain", leader, "--undo")
    fixture.wait_until(f"{leader} to work again", lambda: fixture.member(leader).get("job") == job, LIMIT_S)


@case
def worker_alone_in_its_island_is_drained(fixture):
    """A worker alone in its island is drained: it trains on the data that it has leased, its contribution
    counts, and the job ends with every token counted once"""
    fixture.starts(workers=2, servers=1, step_ms=20)
    job = fixture.submits(outer__min_islands=1)
    before = fixture.reaches(job, 2)
    name = before["islands"][0]["worker"]
    code, _, error = fixture.atoll("drain", "ps9", check=False)
    check(code == 1 and "ps9" in error, f"{code}: {error}")
    fixture.atoll("drain", name, "--wait", "--timeout", str(LIMIT_S))
    seen = fixture.job(job)["islands"][0]
    check(seen["steps_redone"] == 0, f"steps were lost: {seen}")
    check(not fixture.member(name).get("job"), f"{fixture.member(name)}")
    check(fixture.daemons[name].stop() == 0, f"{name}'s exit code")
    fixture.finishes(job, before["decisions"])


@case
def two_followers_leave(fixture):
    """Two followers end on SIGTERM at once: both are transfer sources, and no step is replayed"""
    fixture.starts(workers=4, servers=1)
    job = fixture.submits(**GIVEN, layout__stages=3)
    fixture.reaches(job, 2)
    before = trains_with(fixture, job, lambda seen: len(with_part(seen)) > 1, "several parts")
    others = [w for w in before["workers"] if not w["leads"]]
    leaving = sorted(others, key=lambda w: not w["in_plan"])[:2]
    for worker in leaving:
        fixture.daemons[worker["worker"]].process.terminate()
    for worker in leaving:
        code = fixture.daemons[worker["worker"]].process.wait(LIMIT_S)  # a second SIGTERM would hurry it
        check(code == 0, f"{worker['worker']}'s exit code is {code}")
    goes_on(fixture, job)
    cost_nothing(fixture, job)


@case
def follower_killed_in_a_join(fixture):
    """A follower is killed while another worker joins: the island goes on with who is there"""
    fixture.starts(workers=3, servers=1)
    job = fixture.submits(**GIVEN, layout__stages=2)
    fixture.reaches(job, 2)
    trains_with(fixture, job, lambda seen: len(with_part(seen)) > 1, "several parts")
    fixture.worker("w4")
    fixture.wait_until("w4 to join", lambda: "w4" in {
        w["worker"] for w in island(fixture, job)["workers"]}, LIMIT_S, every_s=0.02)
    seen = island(fixture, job)
    victim = next(w["worker"] for w in seen["workers"]
                  if w["in_plan"] and not w["leads"] and w["worker"] != "w4")
    fixture.daemons[victim].kill()
    fixture.wait_until("the island to miss it", lambda: victim not in {
        w["worker"] for w in island(fixture, job)["workers"]}, LIMIT_S)
    goes_on(fixture, job)
    check(island(fixture, job)["generation"] == seen["generation"], "the generation changed")


if __name__ == "__main__":
    main("moves")
