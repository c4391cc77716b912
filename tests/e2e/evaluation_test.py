#!/usr/bin/python3
"""Tasks scored while a job trains, and jobs that begin with another's parameters."""
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, WORDS, case, check, main  # noqa: E402

SCORE_LIMIT = 1e-4  # of perplexities, relatively: the same numbers, added up in another order


def write_tasks(fixture):
    """Files of the three kinds, as a job's `evaluation`."""
    pairs = [(a, b) for a in WORDS[:16] for b in WORDS[:16]]
    items = {
        "choices": [{"prompt": f"The {a}", "choices": [b, "zqx", "jumps over a"], "answer": i % 3}
                    for i, (a, b) in enumerate(pairs)],
        "exact": [{"prompt": "", "answer": a + b} for a in "adefhlnorst " for b in "abehilnorstu "],
        "perplexity": [{"text": f"The {a} {b} sleeps under the old tree."} for a, b in pairs]}
    tasks = []
    for kind, lines in items.items():
        path = os.path.join(fixture.folder, kind + ".jsonl")
        with open(path, "w", encoding="utf-8") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)
        tasks.append({"name": kind, "path": path, "kind": kind, "every_rounds": 2, "limit": 200 if kind == "choices" else 0})
    return tasks


def scores(job):
    return {score["name"]: score for score in job["summary"]["scores"]}


def same_as_evaluate(fixture, job, tasks):
    """The scores of the last version are those of `atoll evaluate` on what is exported."""
    done = fixture.job(job)
    folder = os.path.join(fixture.folder, f"{job}-model")
    fixture.atoll("export", job, "--to", folder)
    found = scores(done)
    for task in tasks:
        name = task["name"]
        printed = fixture.atoll("--json", "evaluate", folder, "--task", task["path"], "--kind", task["kind"],
                                "--limit", str(task["limit"]), "--context", "32", timeout_s=LIMIT_S)[1]
        expected, score = json.loads(printed), found[name]
        check(score["version"] == done["summary"]["version"], f"{name}: not of the last version: {score}")
        for field in ("items", "tokens"):
            check(score[field] == expected[field], f"{name}: {field}: {score} and {expected}")
        for field in ("accuracy", "accuracy_standard_error", "normalised_accuracy", "perplexity", "byte_perplexity"):
            wanted = expected[field] or 0
            check(abs(score[field] - wanted) <= SCORE_LIMIT * max(1, wanted), f"{name}: {field}: {score} and {expected}")
    return done


@case
def scores_of_versions(fixture):
    """Tasks are scored in the versions where they are due, although the island that does it is killed"""
    tasks = write_tasks(fixture)
    fixture.starts(workers=2, servers=1, step_ms=20)
    job = fixture.submits(evaluation=tasks, outer__min_islands=1)
    busy = fixture.meanwhile("an island to score a version", job, lambda: next(
        (i["worker"] for i in fixture.job(job)["islands"] if i.get("progress", {}).get("activity", "").startswith("evaluating")),
        None), every_s=0.02)
    fixture.daemons[busy].kill()
    before = fixture.version(job)
    fixture.worker("w3", "--emulate-step-ms=20")
    seen = fixture.wait_until("a later version to be scored", lambda: next(
        (s for s in [scores(fixture.job(job))] if len(s) == len(tasks) and all(v["version"] > before for v in s.values())),
        None), LIMIT_S)
    check(seen["exact"]["items"] == 156, f"other items: {seen}")
    fixture.finishes(job)
    done = same_as_evaluate(fixture, job, tasks)
    check(0 < scores(done)["exact"]["accuracy"] < 1, f"nothing learned: {scores(done)}")
    lines = fixture.atoll("metrics", job, "--csv")[1].splitlines()
    columns = lines[0].split(",")
    rows = [dict(zip(columns, line.split(","))) for line in lines if line.startswith("evaluation/choices,")]
    check(len(rows) >= 2 and int(rows[-1]["version"]) == done["summary"]["version"], f"other rows: {rows}")
    check(abs(float(rows[-1]["accuracy"]) - scores(done)["choices"]["accuracy"]) < 1e-9, f"{rows[-1]}")
    check("task choices: accuracy " in fixture.atoll("show", job)[1], "show has no score")


@case
def spare_workers_evaluate(fixture):
    """A worker that no island uses scores versions while the island trains, and an island does when it is killed"""
    tasks = write_tasks(fixture)
    fixture.starts(workers=1, servers=1, step_ms=20)
    job = fixture.submits(evaluation=tasks, outer__min_islands=1, outer__max_islands=1)
    fixture.reaches(job, 0)
    fixture.worker("w2", "--emulate-step-ms=20")
    fixture.meanwhile("the spare worker to score a version", job,
                      lambda: "evaluating" in fixture.job(job).get("evaluator", ""), every_s=0.02)
    shown = fixture.job(job)
    check([i["worker"] for i in shown["islands"]] == ["w1"], f"other islands: {shown['islands']}")
    fixture.daemons["w2"].kill()
    before = fixture.version(job)
    fixture.wait_until("a later version to be scored by the island", lambda: next(
        (s for s in [scores(fixture.job(job))] if len(s) == len(tasks) and all(v["version"] > before for v in s.values())),
        None), LIMIT_S)
    fixture.daemons["w2"].start()
    fixture.finishes(job)
    same_as_evaluate(fixture, job, tasks)


@case
def branches(fixture):
    """A stable run is branched into a decayed one, which begins with its exact parameters"""
    fixture.starts(workers=2, servers=2)
    stable = fixture.submits("stable", inner__schedule="wsd", inner__decay_fraction=0.0)
    fixture.reaches(stable, 1)
    code, _, error = fixture.atoll("submit", "--from", f"{stable}@0", check=False)
    check(code != 0 and "newest version" in error, f"an old version was taken: {error}")
    fixture.finishes(stable)
    last = fixture.version(stable)
    decayed = fixture.atoll("submit", "--from", f"{stable}@{last}", "--set", "name=decayed",
                            "--set", "inner.warmup_fraction=0", "--set", "inner.decay_fraction=1",
                            "--set", "data.shuffle_seed=2", "--set", "schedule.train_tokens=60000")[1].strip()
    done = fixture.state(decayed, "done")
    of_stable = fixture.job(stable)["summary"]
    first, final = done["summary"]["first_validation_loss"], of_stable["validation_loss"]
    check(abs(first - final) <= 1e-6 * final, f"it begins at {first}, and {stable} ended at {final}")
    check(done["spec"]["model"]["initial_job"] == f"{stable}@{last}", f"another origin: {done['spec']['model']}")
    # It goes on from there: one that began anew would be at several times that loss after as many tokens.
    check(done["summary"]["validation_loss"] < 1.1 * final, f"its loss has risen: {done['summary']}")
    check(f"begins with the parameters of {stable}@{last}" in fixture.atoll("show", decayed)[1], "show has no origin")
    # Several may begin with one job's parameters.
    other = fixture.atoll("submit", "--from", stable, "--set", "name=other", "--set", "data.shuffle_seed=3",
                          "--set", "schedule.train_tokens=10000")[1].strip()
    begun = fixture.state(other, "done")["summary"]["first_validation_loss"]
    check(abs(begun - final) <= 1e-6 * final, f"another branch begins at {begun}, and {stable} ended at {final}")


@case
def averages_are_exported(fixture):
    """The moving average of the parameters is another model than they are, and about as good"""
    fixture.starts(workers=2, servers=2)
    job = fixture.submits(inner__ema=0.9)
    fixture.finishes(job)
    task = write_tasks(fixture)[2]
    losses = []
    for name, flags in (("last", ()), ("average", ("--ema",))):
        folder = os.path.join(fixture.folder, name)
        fixture.atoll("export", job, "--to", folder, *flags)
        losses.append(fixture.json("evaluate", folder, "--task", task["path"], "--kind", "perplexity")["byte_perplexity"])
    check(losses[0] != losses[1], f"the average is what the parameters are: {losses}")
    check(losses[1] < 1.2 * losses[0], f"the average has learned nothing: {losses}")
    plain = fixture.submits("plain", schedule__train_tokens=10_000)
    fixture.finishes(plain)
    code, _, error = fixture.atoll("export", plain, "--to", os.path.join(fixture.folder, "none"), "--ema", check=False)
    check(code != 0 and "inner.ema" in error, f"an average of a job without one: {error}")


if __name__ == "__main__":
    main("evaluation")
