#!/usr/bin/python3
"""Mixtures, sites that hold different data, which none of the others may read, and named validation sets."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, case, check, main, write_text  # noqa: E402

SITES = ("oslo", "rome")
STEP_MS = 20


def make_job_file(fixture, name, data, **changes):
    """Path of a job file whose data are these tables."""
    path = fixture.job_file(name, schedule__validate_every_rounds=2, **changes)
    with open(path, encoding="utf-8") as file:
        text = "".join(line for line in file if not line.startswith("path = "))
    with open(path, "w", encoding="utf-8") as out:
        out.write(text + data)
    return path


def tables_of_sites(fixture):
    """Sites that have a text each, which this writes, and a third text to validate on."""
    for seed, folder in enumerate((*SITES, "shared")):
        os.makedirs(os.path.join(fixture.folder, folder))
        write_text(os.path.join(fixture.folder, folder, "law" if folder == "shared" else "text"),
                   40_000 * (1 + seed), seed + 7)
    return "".join(f'[[data.sites]]\nsite = "{site}"\npath = "{fixture.folder}/{site}/text"\n' for site in SITES) + \
        f'[[data.validation]]\nname = "law"\npath = "{fixture.folder}/shared/law"\n'


def killed_and_started_again(fixture, job, worker):
    """Kills the worker in the middle of the job; it is evicted, others go on, and it counts again once it
    is back. Returns the job when it is done."""
    before = fixture.reaches(job, 3)
    was = fixture.island(job, worker)
    fixture.daemons[worker].kill()
    fixture.meanwhile(f"the eviction of {worker}", job, lambda: not fixture.island(job, worker)["attached"])
    fixture.reaches(job, fixture.version(job) + 2)
    fixture.daemons[worker].start()
    back = fixture.meanwhile(f"{worker} to be ready again", job, lambda: (
        lambda island: island if island["ready"] else None)(fixture.island(job, worker)))
    fixture.meanwhile(f"{worker} to count again", job, lambda: fixture.island(job, worker)["rounds_accepted"] >
                      back["rounds_accepted"])
    check(back["island"] == was["island"] and back["incarnation"] > was["incarnation"], f"{was}, then {back}")
    return fixture.finishes(job, before["decisions"])


@case
def sites_with_different_data(fixture):
    """Two sites train one model, each on a text that the other may not read; the model has every token
    of the budget once, each site validates on its own text, and both on a named set; a worker of a
    third site is refused, and says why"""
    tables = tables_of_sites(fixture)
    fixture.coordinator()
    fixture.server("ps1", memory="64MiB")
    for name, site in (("w1", "oslo"), ("w2", "rome"), ("w3", "bern")):
        fixture.worker(name, f"--site={site}", f"--data-root={fixture.folder}/{site}"
                       if site != "bern" else f"--data-root={fixture.folder}",
                       f"--data-root={fixture.folder}/shared")
    fixture.attached(4)
    job = fixture.atoll("submit", make_job_file(fixture, "sites", tables, schedule__train_tokens=150_000))[1].strip()
    fixture.wait_until("w3 to be refused", lambda: "worker w3 cannot run the job" in fixture.logs(job), LIMIT_S)
    done = fixture.finishes(job)
    check({i["worker"] for i in done["islands"]} == {"w1", "w2"}, f"islands: {done['islands']}")
    check(all(int(i["rounds_accepted"]) > 0 for i in done["islands"]), "a site never counted")
    ledger = {k: int(v) for k, v in done["ledger"].items()}
    check(ledger["committed"] == ledger["budget"], f"ledger: {ledger}")
    summary = done["summary"]
    sets = {s["name"]: s for s in summary["validation_sets"]}
    check(set(sets) == {*SITES, "law"}, f"sets: {sets}")
    check(all(s["version"] == summary["version"] for s in sets.values()), f"not the last version: {sets}")
    check(all(0.2 < s["loss"] < 5 for s in sets.values()), f"losses: {sets}")
    check(len({s["loss"] for s in sets.values()}) == 3, f"the same data: {sets}")
    tokens = {name: int(s["tokens"]) for name, s in sets.items()}
    mean = sum(sets[s]["loss"] * tokens[s] for s in SITES) / sum(tokens[s] for s in SITES)
    check(abs(summary["validation_loss"] - mean) < 1e-9, f"{summary['validation_loss']} is not the mean {mean}")
    check(summary["first_validation_loss"] > summary["validation_loss"], f"no progress: {summary}")
    lines = fixture.atoll("metrics", job, "--csv")[1].splitlines()
    for name in sets:
        check(any(line.startswith(f"validation/{name},") for line in lines), f"no curve of {name}")


@case
def killed_worker_of_a_site_returns_to_its_data(fixture):
    """The only worker of a site is killed and started again: the other site goes on, then both count, with
    every token of the budget once and a loss of each site's own data"""
    tables = tables_of_sites(fixture)
    fixture.coordinator()
    fixture.server("ps1", memory="64MiB")
    for name, site in (("w1", "oslo"), ("w2", "rome")):
        fixture.worker(name, f"--site={site}", f"--data-root={fixture.folder}/{site}",
                       f"--data-root={fixture.folder}/shared", f"--emulate-step-ms={STEP_MS}")
    fixture.attached(3)
    job = fixture.atoll("submit", make_job_file(fixture, "sites", tables, schedule__train_tokens=500_000,
                                         outer__min_islands=1, outer__grace_seconds=2))[1].strip()
    done = killed_and_started_again(fixture, job, "w2")
    sets = {s["name"]: s for s in done["summary"]["validation_sets"]}
    check(set(sets) == {*SITES, "law"}, f"sets: {sets}")
    check(all(s["version"] == done["summary"]["version"] for s in sets.values()), f"not the last version: {sets}")
    check(len({s["loss"] for s in sets.values()}) == 3, f"the same data: {sets}")


@case
def killed_worker_of_a_mixture_returns_to_its_order(fixture):
    """A worker of a mixture is killed and started again: it is evicted, the others go on, it finds the same
    data, and every token of the budget counts once"""
    tables = ""
    for seed, weight in ((7, 3), (8, 1)):
        path = os.path.join(fixture.folder, f"source{seed}")
        write_text(path, 60_000, seed)
        tables += f'[[data.sources]]\npath = "{path}"\nweight = {weight}\n'
    fixture.starts(step_ms=STEP_MS)
    job = fixture.atoll("submit", make_job_file(fixture, "mixture", tables, schedule__train_tokens=500_000,
                                         outer__grace_seconds=2))[1].strip()
    done = killed_and_started_again(fixture, job, "w2")
    check(done["summary"]["first_validation_loss"] > done["summary"]["validation_loss"], f"{done['summary']}")


if __name__ == "__main__":
    main("sites")
