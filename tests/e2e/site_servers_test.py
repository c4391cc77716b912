#!/usr/bin/python3
"""Sites with parameter servers of their own, under those of the job, on real daemons."""
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, case, check, main  # noqa: E402

STEP_MS = 50
SITES = {"east": ("e1", "e2"), "west": ("w1", "w2")}


def starts(fixture):
    """A server of the job, and at each of two sites a server of its own and two workers."""
    fixture.coordinator()
    fixture.server("ps1", memory="64MiB")
    for site, workers in SITES.items():
        fixture.server(f"{site}-ps", f"--site={site}", "--site-only", memory="64MiB")
        for worker in workers:
            fixture.worker(worker, f"--site={site}", f"--emulate-step-ms={STEP_MS}")
    fixture.attached(7)


def submits(fixture, rounds=2, **changes):
    path = fixture.job_file(**{"schedule__train_tokens": 150_000, "schedule__validate_every_rounds": 2,
                               "outer__min_islands": 1, "outer__steps_per_round": 4, **changes})
    with open(path, "a", encoding="utf-8") as out:
        out.write(f"[outer.site]\nrounds = {rounds}\n")
    return fixture.atoll("submit", path)[1].strip()


def site_jobs(fixture, job):
    """By site: the job of the site's servers."""
    return {island["site"]: island["site_job"] for island in fixture.job(job)["islands"]
            if island["site"] and island["site_job"]}


def both_train(fixture, job):
    """Waits until both sites train as jobs of their own. Returns these by site."""
    return fixture.meanwhile("both sites to train", job, lambda: (
        lambda jobs: jobs if len(jobs) == 2 and all(fixture.version(j) > 0 for j in jobs.values()) else None)(
            site_jobs(fixture, job)))


def sites_in(decision):
    return {p["worker"] for p in decision["participants"]}


@case
def two_sites_train_one_model(fixture):
    """Islands of two sites push to servers of their own, which exchange sums of two rounds with the job's: the
    model has every token of the budget once, and each version is made of sites alone"""
    starts(fixture)
    job = submits(fixture)
    jobs = both_train(fixture, job)
    for site, site_job in jobs.items():
        seen = fixture.job(site_job)
        check({s["server"] for s in seen["shards"]} == {f"{site}-ps"}, f"{seen['shards']}")
        check({i["worker"] for i in seen["islands"]} == set(SITES[site]), f"{seen['islands']}")
    check({s["server"] for s in fixture.job(job)["shards"]} == {"ps1"}, "shards on a site's own server")
    done = fixture.finishes(job)
    later = [d for d in done["decisions"] if d["version"] > 0]
    check(all(sites_in(d) <= {"site east", "site west"} for d in later), f"{[sites_in(d) for d in later]}")
    check({s for d in later for s in sites_in(d)} == {"site east", "site west"}, "a site has not contributed")
    summary = done["summary"]
    check(summary["validated_version"] == summary["version"], f"{summary}")
    check(summary["validation_loss"] < 0.8 * summary["first_validation_loss"], f"{summary}")
    fixture.wait_until("the sites' jobs to be deleted", lambda: not os.listdir(
        os.path.join(fixture.folder, "east-ps", "jobs")), LIMIT_S)


@case
def a_sites_server_is_killed_and_comes_back(fixture):
    """A site's server is killed while it trains and comes back with its folder: the site's job goes on, and
    nothing of the job is lost"""
    starts(fixture)
    job = submits(fixture, schedule__snapshot_every_rounds=64)  # what it has is in its log alone
    jobs = both_train(fixture, job)
    before = fixture.reaches(job, 2)
    fixture.daemons["east-ps"].kill()
    fixture.daemons["east-ps"].start()
    version = fixture.version(jobs["east"])
    fixture.meanwhile("the site's rounds to go on", job, lambda: fixture.version(jobs["east"]) > version + 2)
    check(site_jobs(fixture, job) == jobs, f"{site_jobs(fixture, job)}, not {jobs}")
    fixture.finishes(job, before["decisions"])


@case
def a_sites_server_is_lost(fixture):
    """A site's server is lost: its workers take part in the job itself, which has every token once; when a new
    server has come, the site has a job of its own again"""
    starts(fixture)
    job = submits(fixture, schedule__train_tokens=300_000)
    jobs = both_train(fixture, job)
    before = fixture.reaches(job, 2)
    fixture.daemons["east-ps"].kill()
    shutil.rmtree(os.path.join(fixture.folder, "east-ps"))
    fixture.meanwhile("its workers to be islands of the job", job, lambda: set(SITES["east"]) <= {
        i["worker"] for i in fixture.job(job)["islands"] if i["incarnation"] != 0 and i["ready"]})
    fixture.daemons["east-ps"].start()
    fixture.meanwhile("another job of the site", job, lambda: site_jobs(fixture, job).get("east") not in (
        None, jobs["east"]))
    fixture.finishes(job, before["decisions"])


@case
def the_coordinator_is_killed(fixture):
    """The coordinator is killed and started again during an exchange: the sites' jobs go on"""
    starts(fixture)
    job = submits(fixture)
    jobs = both_train(fixture, job)
    before = fixture.reaches(job, 2)
    fixture.daemons["coordinator"].kill()
    fixture.daemons["coordinator"].start()
    fixture.wait_until("the coordinator", lambda: fixture.status()["cluster"], LIMIT_S)
    fixture.reaches(job, fixture.version(job) + 2)
    check(site_jobs(fixture, job) == jobs, f"{site_jobs(fixture, job)}, not {jobs}")
    fixture.finishes(job, before["decisions"])


if __name__ == "__main__":
    main("site_servers")
