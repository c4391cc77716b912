#!/usr/bin/python3
"""Wrong folders under the right names, and folders that are lost: nothing is deleted by it, and what is
left suffices to go on."""
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, case, check, main  # noqa: E402

STEP_MS = 50


def waits_for(fixture, job, what):
    """Waits until the job says that it waits for this, still unfinished, and returns what it says."""
    def there():
        summary = fixture.job(job)["summary"]
        check(summary["state"] == "JOB_STATE_RUNNING", f"{summary}")
        return summary["waiting_for"] if what in summary["waiting_for"] else None
    return fixture.wait_until(f"{job} to wait for {what}", there, LIMIT_S)


def restarts_without_its_folder(fixture, name, *flags):
    """The daemon starts again on an empty folder; its own is kept beside it."""
    daemon = fixture.daemons[name]
    daemon.kill()
    own = os.path.join(fixture.folder, name)
    os.rename(own, own + "-own")
    daemon.command += flags
    daemon.start()
    return own


@case
def an_empty_coordinator_on_the_address(fixture):
    """A coordinator with an empty folder takes the address for a while: members refuse it by name,
    its status shows them, and under the right one the job goes on as if nothing had been"""
    fixture.starts(workers=2, step_ms=STEP_MS)
    job = fixture.submits(schedule__train_tokens=150_000)
    before = fixture.reaches(job, 4)
    own = restarts_without_its_folder(fixture, "coordinator")
    foreign = fixture.wait_until("all members to refuse it", lambda: (
        lambda seen: seen if len(seen) == 4 else None)(
            fixture.status()["foreign_members"]), LIMIT_S)
    cluster = foreign[0]["cluster"]
    check(all(member["cluster"] == cluster for member in foreign), f"{foreign}")
    for name in ("w1", "w2", "ps1", "ps2"):
        fixture.wait_until(f"{name} to name the remedy", lambda n=name: (
            f"--cluster {cluster}" in fixture.daemons[n].log()), LIMIT_S)
    code, _, error = fixture.atoll("export", job, "--to", os.path.join(fixture.folder, "none"), check=False)
    check(code == 1 and "there is no job" in error, f"{code}: {error}")
    fixture.daemons["coordinator"].kill()
    shutil.rmtree(own)
    os.rename(own + "-own", own)
    fixture.daemons["coordinator"].start()
    seen = fixture.wait_until("the coordinator", lambda: fixture.status()["cluster"], LIMIT_S)
    check(seen == cluster, "another cluster")
    fixture.finishes(job, before["decisions"])


@case
def the_coordinators_folder_is_lost(fixture):
    """The coordinator's folder is lost: one that starts empty with --cluster shows the job as orphaned,
    adopts it from its servers without a token lost, and finishes it; only rm deletes it"""
    fixture.starts(workers=2, step_ms=STEP_MS)
    job = fixture.submits(schedule__train_tokens=150_000)
    fixture.reaches(job, 4)
    cluster = fixture.status()["cluster"]
    restarts_without_its_folder(fixture, "coordinator", f"--cluster={cluster}")
    orphan = fixture.wait_until("the orphaned job to be whole", lambda: next(
        (o for o in fixture.json("ls")["orphans"] if o["job"] == job and not o["missing"] and
         o["servers"] == ["ps1", "ps2"]), None), LIMIT_S)
    check("atoll adopt " + job in fixture.atoll("ls")[1], "ls does not name the remedy")
    fixture.atoll("adopt", job)
    done = fixture.state(job, "done")
    summary, ledger = done["summary"], done["ledger"]
    check(orphan["version"] <= summary["version"], f"{orphan}, {summary}")
    check(summary["tokens_committed"] == summary["tokens_budget"], f"{summary}")
    check(ledger["committed"] == ledger["budget"] and ledger["leased"] == ledger["pushed"] == 0,
          f"{ledger}")
    check(sum(i["tokens_committed"] for i in done["islands"]) == summary["tokens_budget"],
          f"the islands' tokens: {done['islands']}")
    check(fixture.json("ls")["orphans"] == [], "still orphaned")
    held = [os.path.join(fixture.folder, name, kind, job) for name, kind in
            (("ps1", "jobs"), ("ps2", "jobs"), ("w1", "checkpoints"), ("w2", "checkpoints"))]
    check(all(os.path.isdir(path) for path in held), f"not all kept: {held}")
    fixture.atoll("rm", job)
    fixture.wait_until("rm to delete it everywhere", lambda: not any(
        os.path.exists(path) for path in held), LIMIT_S)


@case
def a_server_starts_with_an_empty_folder(fixture):
    """A parameter server starts with an empty folder: the job waits and says what to do; with the right
    folder it goes on, and after its end it can be exported though the server is at another port"""
    fixture.starts(workers=2, step_ms=STEP_MS)
    job = fixture.submits(schedule__train_tokens=150_000)
    before = fixture.reaches(job, 4)
    own = restarts_without_its_folder(fixture, "ps1")
    said = waits_for(fixture, job, "came back without the job")
    check("ps1" in said and "start it with the folder that it had" in said, said)
    fixture.daemons["ps1"].kill()
    shutil.rmtree(own)
    os.rename(own + "-own", own)
    fixture.daemons["ps1"].start()
    fixture.finishes(job, before["decisions"])
    endpoint = fixture.member("ps1")["endpoint"]
    fixture.daemons["ps1"].kill()
    fixture.daemons["ps1"].start()
    fixture.wait_until("ps1 at another port", lambda: (
        lambda ps1: ps1["attached"] and ps1["endpoint"] != endpoint)(fixture.member("ps1")), LIMIT_S)
    model = os.path.join(fixture.folder, "model")
    fixture.wait_until("the model to be exported", lambda: fixture.atoll(
        "export", job, "--to", model, check=False)[0] == 0, LIMIT_S)
    # The same out of the servers' folders, when no daemon runs any more.
    for name in ("coordinator", "ps1", "ps2"):
        fixture.daemons[name].kill()
    recovered = os.path.join(fixture.folder, "recovered")
    folders = [os.path.join(fixture.folder, name) for name in ("ps1", "ps2")]
    code, _, error = fixture.atoll("recover", "--from", folders[0], "--to", recovered, check=False)
    check(code == 1 and "in none of the folders" in error, f"half a model: {code}: {error}")
    fixture.atoll("recover", "--from", *folders, "--to", recovered)
    for file in ("config.json", "model.safetensors"):
        with open(os.path.join(model, file), "rb") as a, open(os.path.join(recovered, file), "rb") as b:
            check(a.read() == b.read(), f"{file} differs from the exported one")


@case
def a_job_fails_and_is_resumed(fixture):
    """A job whose data is missing fails; with the data there, resume runs it to its end"""
    fixture.starts(workers=2, servers=1, step_ms=1)
    moved_aside = fixture.text + ".away"
    os.rename(fixture.text, moved_aside)
    job = fixture.submits(schedule__train_tokens=30_000)
    failed = fixture.wait_until("the job to fail", lambda: (
        lambda seen: seen if seen["state"] == "JOB_STATE_FAILED" else None)(
            fixture.job(job)["summary"]), LIMIT_S)
    check("text.txt" in failed["reason"], f"{failed}")
    os.rename(moved_aside, fixture.text)

    # Within the first second workers may repeat their answer to the question before.
    def runs():
        if fixture.job(job)["summary"]["state"] == "JOB_STATE_FAILED":
            fixture.atoll("resume", job)
        return fixture.job(job)["summary"]["state"] in ("JOB_STATE_RUNNING", "JOB_STATE_DONE")
    fixture.wait_until("the resumed job to run", runs, LIMIT_S, every_s=0.5)
    fixture.finishes(job)


if __name__ == "__main__":
    main("resilience")
