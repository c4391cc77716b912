#!/usr/bin/python3
"""Wrong folders under the right names, and folders that are lost: nothing is deleted by it, and what is
left suffices to go on."""
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from story import LIMIT_S, case, check, main  # noqa: E402

STEP_MS = 20


def waits_for(story, job, what):
    """Waits until the job says that it waits for this, still unfinished, and returns what it says."""
    def there():
        summary = story.job(job)["summary"]
        check(summary["state"] == "JOB_STATE_RUNNING", f"{summary}")
        return summary["waiting_for"] if what in summary["waiting_for"] else None
    return story.wait_until(f"{job} to wait for {what}", there, LIMIT_S)


def restarts_without_its_folder(story, name, *flags):
    """The daemon starts again on an empty folder; its own is kept beside it."""
    daemon = story.daemons[name]
    daemon.kill()
    own = os.path.join(story.folder, name)
    os.rename(own, own + "-own")
    daemon.command += flags
    daemon.start()
    return own


@case
def an_empty_coordinator_on_the_address(story):
    """A coordinator with an empty folder takes the address for a while: members refuse it by name,
    its status shows them, and under the right one the job goes on as if nothing had been"""
    story.starts(workers=2, step_ms=STEP_MS)
    job = story.submits(schedule__train_tokens=300_000)
    before = story.reaches(job, 4)
    own = restarts_without_its_folder(story, "coordinator")
    foreign = story.wait_until("all members to refuse it", lambda: (
        lambda seen: seen if len(seen) == 4 else None)(
            story.json("status")["foreign_members"]), LIMIT_S)
    cluster = foreign[0]["cluster"]
    check(all(member["cluster"] == cluster for member in foreign), f"{foreign}")
    for name in ("w1", "w2", "ps1", "ps2"):
        story.wait_until(f"{name} to name the remedy", lambda n=name: (
            f"--cluster {cluster}" in story.daemons[n].log()), LIMIT_S)
    code, _, error = story.atoll("export", job, "--to", os.path.join(story.folder, "none"), check=False)
    check(code == 1 and "there is no job" in error, f"{code}: {error}")
    story.daemons["coordinator"].kill()
    shutil.rmtree(own)
    os.rename(own + "-own", own)
    story.daemons["coordinator"].start()
    seen = story.wait_until("the coordinator", lambda: story.json("status")["cluster"], LIMIT_S)
    check(seen == cluster, "another cluster")
    story.finishes(job, before["decisions"])


@case
def the_coordinators_folder_is_lost(story):
    """The coordinator's folder is lost: one that starts empty with --cluster shows the job as orphaned,
    adopts it from its servers without a token lost, and finishes it; only rm deletes it"""
    story.starts(workers=2, step_ms=STEP_MS)
    job = story.submits(schedule__train_tokens=300_000)
    story.reaches(job, 4)
    cluster = story.json("status")["cluster"]
    restarts_without_its_folder(story, "coordinator", f"--cluster={cluster}")
    orphan = story.wait_until("the orphaned job to be whole", lambda: next(
        (o for o in story.json("ls")["orphans"] if o["job"] == job and not o["missing"] and
         o["servers"] == ["ps1", "ps2"]), None), LIMIT_S)
    check("atoll adopt " + job in story.atoll("ls")[1], "ls does not name the remedy")
    story.atoll("adopt", job)
    done = story.state(job, "done")
    summary, ledger = done["summary"], done["ledger"]
    check(orphan["version"] <= summary["version"], f"{orphan}, {summary}")
    check(summary["tokens_committed"] == summary["tokens_budget"], f"{summary}")
    check(ledger["committed"] == ledger["budget"] and ledger["leased"] == ledger["pushed"] == 0,
          f"{ledger}")
    check(sum(i["tokens_committed"] for i in done["islands"]) == summary["tokens_budget"],
          f"the islands' tokens: {done['islands']}")
    check(story.json("ls")["orphans"] == [], "still orphaned")
    held = [os.path.join(story.folder, name, kind, job) for name, kind in
            (("ps1", "jobs"), ("ps2", "jobs"), ("w1", "checkpoints"), ("w2", "checkpoints"))]
    check(all(os.path.isdir(path) for path in held), f"not all kept: {held}")
    story.atoll("rm", job)
    story.wait_until("rm to delete it everywhere", lambda: not any(
        os.path.exists(path) for path in held), LIMIT_S)


@case
def a_server_starts_with_an_empty_folder(story):
    """A parameter server starts with an empty folder: the job waits and says what to do; with the right
    folder it goes on, and after its end it can be exported though the server is at another port"""
    story.starts(workers=2, step_ms=STEP_MS)
    job = story.submits(schedule__train_tokens=300_000)
    before = story.reaches(job, 4)
    own = restarts_without_its_folder(story, "ps1")
    said = waits_for(story, job, "came back without the job")
    check("ps1" in said and "start it with the folder that it had" in said, said)
    story.daemons["ps1"].kill()
    shutil.rmtree(own)
    os.rename(own + "-own", own)
    story.daemons["ps1"].start()
    story.finishes(job, before["decisions"])
    endpoint = story.member("ps1")["endpoint"]
    story.daemons["ps1"].kill()
    story.daemons["ps1"].start()
    story.wait_until("ps1 at another port", lambda: (
        lambda ps1: ps1["attached"] and ps1["endpoint"] != endpoint)(story.member("ps1")), LIMIT_S)
    model = os.path.join(story.folder, "model")
    story.wait_until("the model to be exported", lambda: story.atoll(
        "export", job, "--to", model, check=False)[0] == 0, LIMIT_S)
    # The same out of the servers' folders, when no daemon runs any more.
    for name in ("coordinator", "ps1", "ps2"):
        story.daemons[name].kill()
    recovered = os.path.join(story.folder, "recovered")
    folders = [os.path.join(story.folder, name) for name in ("ps1", "ps2")]
    code, _, error = story.atoll("recover", "--from", folders[0], "--to", recovered, check=False)
    check(code == 1 and "in none of the folders" in error, f"half a model: {code}: {error}")
    story.atoll("recover", "--from", *folders, "--to", recovered)
    for file in ("config.json", "model.safetensors"):
        with open(os.path.join(model, file), "rb") as a, open(os.path.join(recovered, file), "rb") as b:
            check(a.read() == b.read(), f"{file} differs from the exported one")


@case
def a_job_fails_and_is_resumed(story):
    """A job whose data is missing fails; with the data there, resume runs it to its end"""
    story.starts(workers=2, servers=1, step_ms=1)
    away = story.text + ".away"
    os.rename(story.text, away)
    job = story.submits(schedule__train_tokens=60_000)
    failed = story.wait_until("the job to fail", lambda: (
        lambda seen: seen if seen["state"] == "JOB_STATE_FAILED" else None)(
            story.job(job)["summary"]), LIMIT_S)
    check("text.txt" in failed["reason"], f"{failed}")
    os.rename(away, story.text)

    # Within the first second workers may repeat their answer to the question before.
    def runs():
        if story.job(job)["summary"]["state"] == "JOB_STATE_FAILED":
            story.atoll("resume", job)
        return story.job(job)["summary"]["state"] in ("JOB_STATE_RUNNING", "JOB_STATE_DONE")
    story.wait_until("the resumed job to run", runs, LIMIT_S, every_s=0.5)
    story.finishes(job)


if __name__ == "__main__":
    main("resilience")
