#!/usr/bin/python3
"""Sites that hold different data, which none of the others may read, and named validation sets."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from story import LIMIT_S, case, check, main, write_text  # noqa: E402

SITES = ("oslo", "rome")


def job_of_sites(story):
    """Path of a job whose sites have a text each, and which validates on a third one too."""
    path = story.job_file("sites", schedule__validate_every_rounds=2, schedule__train_tokens=150_000)
    with open(path, encoding="utf-8") as file:
        text = "".join(line for line in file if not line.startswith("path = "))
    for site in SITES:
        text += f'[[data.sites]]\nsite = "{site}"\npath = "{story.folder}/{site}/text"\n'
    text += f'[[data.validation]]\nname = "law"\npath = "{story.folder}/shared/law"\n'
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)
    return path


@case
def sites_with_different_data(story):
    """Two sites train one model, each on a text that the other may not read; the model has every token
    of the budget once, each site validates on its own text, and both on a named set; a worker of a
    third site is refused, and says why"""
    for seed, folder in enumerate((*SITES, "shared")):
        os.makedirs(os.path.join(story.folder, folder))
        write_text(os.path.join(story.folder, folder, "law" if folder == "shared" else "text"),
                   40_000 * (1 + seed), seed + 7)
    story.coordinator()
    story.server("ps1", memory="64MiB")
    for name, site in (("w1", "oslo"), ("w2", "rome"), ("w3", "bern")):
        story.worker(name, f"--site={site}", f"--data-root={story.folder}/{site}"
                     if site != "bern" else f"--data-root={story.folder}",
                     f"--data-root={story.folder}/shared")
    story.attached(4)
    job = story.atoll("submit", job_of_sites(story))[1].strip()
    story.wait_until("w3 to be refused", lambda: "worker w3 cannot run the job" in story.logs(job), LIMIT_S)
    done = story.finishes(job)
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
    lines = story.atoll("metrics", job, "--csv")[1].splitlines()
    for name in sets:
        check(any(line.startswith(f"validation/{name},") for line in lines), f"no curve of {name}")


if __name__ == "__main__":
    main("sites")
