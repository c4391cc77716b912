#!/usr/bin/python3
"""Several coordinators with their records in a real etcd: the leader is killed or frozen while a job
trains, and another one takes over; an etcd that is full, or older than what members have seen."""
import base64
import json
import os
import shutil
import sys
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, case, check, decided_twice, main  # noqa: E402

STEP_MS = 50
QUOTA_BYTES = 16 << 20


def starts(fixture, coordinators=3, etcd_flags=(), **changes):
    """A job under way: (job, the leading coordinator's daemon)."""
    fixture.endpoints = fixture.etcd(flags=etcd_flags)
    fixture.coordinators(["etcd://" + ",".join(fixture.endpoints)] * coordinators)
    for name in ("ps1", "ps2"):
        fixture.server(name, memory="64MiB")
    for name in ("w1", "w2"):
        fixture.worker(name, f"--emulate-step-ms={STEP_MS}")
    fixture.attached(4)
    job = fixture.submits(**{"schedule__train_tokens": 150_000, **changes})
    fixture.reaches(job, 3)
    leader = fixture.daemons[fixture.wait_until("a leader", fixture.leader, LIMIT_S)]
    return job, leader


def taken_over(fixture, leader):
    return fixture.wait_until("another leader", lambda: fixture.leader() not in (None, leader.name),
                              LIMIT_S)


@case
def the_leader_is_killed(fixture):
    """leader killed while training: a standby goes on, nothing is lost or counted twice"""
    job, leader = starts(fixture)
    before = fixture.job(job)
    epoch = fixture.json("status")["epoch"]
    leader.kill()
    taken_over(fixture, leader)
    check(fixture.json("status")["epoch"] > epoch, "the epoch has not grown")
    fixture.reaches(job, before["summary"]["version"] + 2)
    leader.start()  # stands by
    done = fixture.finishes(job, [d for d in before["decisions"]])
    check(sum(i["evictions"] for i in done["islands"]) == 0, "an island was evicted")
    others = [fixture.daemons[name] for name in fixture.coordinator_at if name != leader.name]
    check(fixture.leader() != leader.name or any(other.starts > 1 for other in others),
          "the restarted coordinator leads")
    fixture.check_alive_but(*fixture.coordinator_at)


@case
def the_leader_is_frozen(fixture):
    """leader frozen until another one leads: it ends by itself when it goes on, and decides nothing"""
    job, leader = starts(fixture)
    before = fixture.job(job)
    leader.freeze()
    taken_over(fixture, leader)
    fixture.reaches(job, before["summary"]["version"] + 2)
    leader.thaw()
    fixture.wait_until("the frozen one to end", lambda: not leader.alive(), LIMIT_S)
    check(leader.process.returncode == 1, f"it ended with {leader.process.returncode}")
    fixture.finishes(job, before["decisions"])


@case
def the_leader_is_stopped(fixture):
    """leader stopped with SIGTERM: another one leads at once"""
    job, leader = starts(fixture)
    before = fixture.job(job)
    check(leader.stop() == 0, "it did not end well")
    taken_over(fixture, leader)
    fixture.finishes(job, before["decisions"])


def call(fixture, path, **request):
    """A call of etcd's v3 API as JSON; returns the answer, or what it refuses."""
    body = json.dumps(request).encode()
    try:
        with urllib.request.urlopen(f"http://{fixture.endpoints[0]}/v3/{path}", body, timeout=LIMIT_S) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        return json.loads(refused.read())


def text(value):
    return base64.b64encode(value.encode()).decode()


def fills_etcd(fixture):
    for i in range(100):
        answer = call(fixture, "kv/put", key=text(f"junk/{i}"), value=text("x" * (1 << 20)))
        if "database space exceeded" in answer.get("error", ""):
            return
    raise AssertionError(f"etcd takes everything: {answer}")


def makes_room(fixture):
    """As docs/coordinators.md says."""
    answer = call(fixture, "kv/deleterange", key=text("junk/"), range_end=text("junk0"))
    call(fixture, "kv/compaction", revision=answer["header"]["revision"], physical=True)
    call(fixture, "maintenance/defragment")
    for alarm in call(fixture, "maintenance/alarm", action="GET").get("alarms", []):
        call(fixture, "maintenance/alarm", action="DEACTIVATE", memberID=alarm["memberID"], alarm=alarm["alarm"])


def startup_errors(daemon):
    """The errors of the daemon's newest start."""
    lines = daemon.log().splitlines()
    starts_at = max(i for i, line in enumerate(lines) if "listening on" in line)
    return [line for line in lines[starts_at:] if " ERROR " in line]


@case
def etcd_is_full(fixture):
    """etcd full: the coordinator ends with one message that says what to do, and goes on after it"""
    job, leader = starts(fixture, coordinators=1, etcd_flags=[f"--quota-backend-bytes={QUOTA_BYTES}"])
    before = fixture.job(job)
    fills_etcd(fixture)
    for _ in range(2):  # the one that leads, and one that is started then
        fixture.wait_until("the coordinator to end", lambda: not leader.alive(), LIMIT_S)
        check(leader.process.returncode == 1, f"it ended with {leader.process.returncode}")
        said = startup_errors(leader)
        check(len(said) == 1, f"not one message: {said}")
        for words in ("database space exceeded", "compact and defragment", "etcdctl alarm disarm"):
            check(words in said[0], f"no {words!r} in {said[0]}")
        leader.start()
    makes_room(fixture)
    fixture.wait_until("the coordinator to lead", fixture.leader, LIMIT_S)
    fixture.finishes(job, before["decisions"])


@case
def etcd_is_an_older_copy(fixture):
    """etcd restored from an older snapshot: jobs wait and say why, `adopt` takes them over"""
    job, leader = starts(fixture, coordinators=1)
    etcd = fixture.daemons["etcd1"]
    data = os.path.join(fixture.folder, "etcd1")
    leader.stop()
    etcd.stop()
    shutil.copytree(data, data + ".older")
    etcd.start()
    leader.start()
    fixture.wait_until("a leader", fixture.leader, LIMIT_S)
    version = fixture.job(job)["summary"]["version"]
    fixture.reaches(job, version + 2)
    leader.kill()
    etcd.kill()
    shutil.rmtree(data)
    shutil.move(data + ".older", data)
    etcd.start()
    leader.start()
    fixture.wait_until("a leader", fixture.leader, LIMIT_S)
    fixture.attached(4)
    waits = fixture.wait_until("the job to wait", lambda: fixture.job(job)["summary"].get("waiting_for", ""), LIMIT_S)
    check("older copy" in waits and f"atoll adopt {job}" in waits, f"it says: {waits}")
    check("older copy" in fixture.atoll("status")[1], "`atoll status` does not say it")
    said = [line for line in fixture.atoll("logs")[1].splitlines() if "older copy" in line]
    of_job = [line for line in said if "nothing is decided" in line]
    check(len(said) == 2 and len(of_job) == 1, f"not one message of the cluster and one of the job: {said}")
    check(fixture.job(job)["summary"]["version"] <= version, "something was decided")
    fixture.atoll("adopt", job)
    # Decisions that only the newer copy had are not known again, but their tokens and weights are.
    done = fixture.state(job, "done")
    summary, ledger = done["summary"], done["ledger"]
    check(summary["tokens_committed"] == summary["tokens_budget"], f"committed tokens differ: {summary}")
    check(ledger["committed"] == ledger["budget"] and ledger["leased"] == ledger["pushed"] == 0,
          f"the ledger is not used up: {ledger}")
    check(decided_twice(done["decisions"]) == [], "decided twice")


main("coordinators")
