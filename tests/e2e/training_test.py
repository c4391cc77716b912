#!/usr/bin/python3
"""A job from its submission to the text that the model writes, and the command line around it."""
import json
import math
import os
import re
import struct
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, Again, case, check, main, parse_json  # noqa: E402
from cluster import binary  # noqa: E402

JOB_FIELDS = {"summary", "spec", "islands", "round", "ledger", "decisions", "shards"}


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}; checks that the tensors lie end to end."""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + size]), data[8 + size:]
    header.pop("__metadata__", None)
    tensors, end = {}, 0
    for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin = tensor["data_offsets"][0]
        check(begin == end, f"{path}: {name} begins at {begin}, the tensor before ends at {end}")
        end = tensor["data_offsets"][1]
        tensors[name] = (tensor["dtype"], tensor["shape"], body[begin:end])
    check(end == len(body), f"{path}: {len(body) - end} bytes belong to no tensor")
    return tensors


@case
def few_bits_both_ways(fixture):
    """Pushes and pulls of 4 bits: islands move together by quantised steps, the loss falls as it does in
    fp32, and what a worker pulls is a fraction of the model"""
    fixture.starts(workers=2, servers=1)
    pulled, losses = [], []
    for name, bits in (("full", {}), ("few", {"outer__push_encoding": "int4", "outer__pull_encoding": "int4"})):
        before = int(fixture.member("ps1")["load"].get("sent_bytes", 0))
        job = fixture.submits(name, schedule__train_tokens=400_000, outer__wait_for_all=True,
                              outer__overlap="none", **bits)
        done = fixture.finishes(job)
        fixture.wait_until("the server to say what it sent", lambda j=job: (
            f"job {j}: ended" in fixture.daemons["ps1"].log()), LIMIT_S)
        sent = fixture.wait_until("a heartbeat after it", lambda b=before: (
            lambda now: now if now > b else None)(int(fixture.member("ps1")["load"]["sent_bytes"])), LIMIT_S)
        pulled.append((sent - before) / done["summary"]["version"])
        losses.append(done["summary"]["validation_loss"])
    check(pulled[1] < 0.25 * pulled[0], f"bytes pulled a round: {pulled}")
    check(losses[1] < 1.05 * losses[0], f"losses: {losses}")


@case
def trains_to_the_end(fixture):
    """Three islands train a job to its end: the loss falls, every token counts once, both servers
    hold the same version, the exported model is whole and writes text"""
    fixture.starts()
    job = fixture.submits()
    done = fixture.finishes(job)
    first, last = (done["summary"][k] for k in ("first_validation_loss", "validation_loss"))
    check(5 < first < 6, f"an untrained byte model has a loss near ln 256, not {first}")
    check(last < 0.4 * first, f"the validation loss went from {first} only to {last}")
    check(done["summary"]["validated_version"] == done["summary"]["version"], "not validated last")
    check({i["worker"] for i in done["islands"]} == {"w1", "w2", "w3"}, "not three islands")
    check(all(i["rounds_accepted"] > 0 for i in done["islands"]), "an island never counted")
    check({s["server"] for s in done["shards"]} == {"ps1", "ps2"}, "one server holds everything")
    ended = f"job {job}: ended at version "
    for name in ("ps1", "ps2"):
        log = fixture.wait_until(f"{name} to log the end", lambda n=name: (
            lambda text: text if ended in text else None)(fixture.daemons[n].log()), LIMIT_S)
        check(f"{ended}{done['summary']['version']}\n" in log, f"{name} holds another version")

    folder = os.path.join(fixture.folder, "model")
    fixture.atoll("export", job, "--to", folder)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    check(config["hidden_size"] == 32 and config["num_hidden_layers"] == 2, f"config: {config}")
    tensors = read_safetensors(os.path.join(folder, "model.safetensors"))
    check(tensors["model.embed_tokens.weight"][1] == [256, 32], "the embedding's shape")
    for name, (dtype, shape, body) in tensors.items():
        check(dtype == "F32" and len(body) == 4 * math.prod(shape), f"{name}: {dtype} {shape}")
        check(all(map(math.isfinite, struct.unpack(f"<{len(body) // 4}f", body))), name)
    words = fixture.atoll("generate", folder, "--prompt", "The ", "--tokens", "200")[1]
    with open(fixture.text, encoding="ascii") as text:
        vocabulary = set(re.findall("[a-z]+", text.read().lower()))
    made = re.findall("[a-z]+", words.lower())
    known = sum(word in vocabulary for word in made)
    check(len(made) > 20 and known > 0.5 * len(made), f"it has not learnt the words: {words}")
    again = fixture.atoll("generate", folder, "--prompt", "The ", "--tokens", "200")[1]
    check(again == words, "the same seed wrote another text")


@case
def pushes_in_4_bits_and_is_removed(fixture):
    """Pushes of 4 bits a number: the loss falls all the same, a fraction of the bytes is pushed; the
    job is removed, and nothing of it stays on the servers' disks, also of the one that was unavailable"""
    fixture.starts(workers=2)
    job = fixture.submits(outer__push_encoding="e3m0")
    fixture.reaches(job, 12)

    def traffic():
        """What all have pushed and pulled, once they have said so of some rounds."""
        byte_counts = [[int(i.get("progress", {}).get(k, 0)) for k in ("pushed_bytes", "pulled_bytes")]
                for i in fixture.job(job)["islands"]]
        return byte_counts if all(pushed > 0 and pulled > 0 for pushed, pulled in byte_counts) else None
    for pushed, pulled in fixture.meanwhile("all to say what they sent", job, traffic):
        check(pushed < 0.3 * pulled, f"{pushed} bytes pushed, {pulled} pulled")
    fixture.still_trains(job)
    code, _, error = fixture.atoll("rm", job, check=False)
    if code == 0:
        raise Again(f"{job} could be removed")
    check(code == 1 and "cancel it first, or add --force" in error, error)
    done = fixture.finishes(job)
    first, last = (done["summary"][k] for k in ("first_validation_loss", "validation_loss"))
    check(last < 0.4 * first, f"the validation loss went from {first} only to {last}")

    def held(server):
        return os.path.exists(os.path.join(fixture.folder, server, "jobs", job))
    check(held("ps1") and held("ps2"), "the servers' folders are elsewhere")
    fixture.daemons["ps2"].kill()
    check("removed" in fixture.atoll("rm", job)[1], "not removed")
    check(fixture.json("ls").get("jobs", []) == [], "it is still listed")
    fixture.wait_until("ps1 to drop it", lambda: not held("ps1"), LIMIT_S)
    check(held("ps2"), "a dead server has deleted files")
    fixture.daemons["ps2"].start()
    fixture.wait_until("ps2 to drop it", lambda: not held("ps2"), LIMIT_S)


@case
def holds_goes_on_and_is_cancelled(fixture):
    """A job is paused, resumed and cancelled by command; its workers then train another one"""
    fixture.starts(workers=2, servers=1, step_ms=20)
    job = fixture.submits(schedule__train_tokens=100_000_000)
    fixture.reaches(job, 2)
    code, out, _ = fixture.atoll("pause", job)
    check(code == 0 and "paused by a user" in out, out)
    paused = fixture.wait_until("all workers to hold", lambda: (
        lambda seen: seen if all("paused by a user" in i["activity"] for i in seen["islands"]) and
        seen["round"]["phase"] == "idle" else None)(fixture.job(job)), LIMIT_S)
    steps = [i["progress"]["inner_step"] for i in paused["islands"]]
    heartbeat_ages = [fixture.member(w)["since_heartbeat_s"] for w in ("w1", "w2")]
    check(heartbeat_ages and steps, "no progress is shown")
    code, _, error = fixture.atoll("pause", job, check=False)
    check(code == 1 and "only a running job can be paused" in error, error)
    check([i["progress"]["inner_step"] for i in fixture.job(job)["islands"]] == steps,
          "a paused worker stepped")

    check("resumed by a user" in fixture.atoll("resume", job)[1], "not resumed")
    fixture.reaches(job, paused["summary"]["version"] + 2)
    check("cancelled by a user" in fixture.atoll("cancel", job)[1], "not cancelled")
    code, _, error = fixture.atoll("cancel", job, check=False)
    check(code == 1 and "has ended already" in error, error)
    other = fixture.submits("another", schedule__train_tokens=20_000)
    fixture.finishes(other)
    states = {j["job"]: j["state"] for j in fixture.json("ls")["jobs"]}
    check(states == {job: "JOB_STATE_CANCELLED", other: "JOB_STATE_DONE"}, f"ls: {states}")


@case
def goes_on_with_settings_that_are_changed(fixture):
    """A job without a near end gets another end, and a decay of its learning rate: it trains each token
    once, at the rates of its new schedule, over a death of its coordinator; what cannot change is refused"""
    fixture.starts(workers=2, servers=1, step_ms=20)
    job = fixture.submits(schedule__train_tokens=100_000_000, inner__schedule="constant", inner__warmup_fraction=0)
    fixture.reaches(job, 2)
    rates = [i["progress"]["learning_rate"] for i in fixture.job(job)["islands"]]
    check(rates == [3e-3, 3e-3], f"rates before: {rates}")
    for code, words, setting in ((1, "cannot change while a job runs", "model.layers=3"),
                                 (1, "schedule.train_tokens must be at least", "schedule.train_tokens=64"),
                                 (1, "did you mean", "inner.learning_rat=1")):
        failed, _, error = fixture.atoll("set", job, setting, check=False)
        check(failed == code and words in error, f"{setting}: {failed} {error}")
    budget = fixture.job(job)["summary"]["tokens_committed"] + 60_000
    budget -= budget % 32
    _, out, _ = fixture.atoll("set", job, f"schedule.train_tokens={budget}", "inner.schedule=wsd",
                              "inner.decay_fraction=0.5", "inner.final_learning_rate_ratio=0")
    check('inner.schedule: "constant" -> "wsd"' in out, out)
    fixture.daemons["coordinator"].kill()
    fixture.coordinator()
    done = fixture.finishes(job)
    check(done["summary"]["tokens_budget"] == budget, f"its budget: {done['summary']}")
    check(done["spec"]["inner"]["schedule"] == "RATE_SCHEDULE_WSD", f"{done['spec']['inner']}")
    check("changed by a user" in fixture.logs(job), "the log has nothing of it")


@case
def says_what_is_wrong_with_the_data(fixture):
    """A job whose data cannot be read fails and says why; a worker with other data is named"""
    fixture.starts(workers=2, servers=1)
    missing = os.path.join(fixture.folder, "missing.txt")
    job = fixture.submits("lost", data__path=missing)
    failed = fixture.wait_until("the job to fail", lambda: (
        lambda seen: seen if seen["summary"]["state"] == "JOB_STATE_FAILED" else None)(
            fixture.job(job)), LIMIT_S)
    check(missing in failed["summary"]["reason"], failed["summary"]["reason"])
    shown = fixture.atoll("show", job)[1]
    check(missing in shown and "failed" in shown, shown)
    code, _, error = fixture.atoll("watch", job, check=False)
    check(code == 1 and missing in error, error)

    # A third worker sees another text of the same size under the job's path.
    elsewhere = os.path.join(fixture.folder, "elsewhere")
    os.mkdir(elsewhere)
    with open(fixture.text, "rb") as text, open(os.path.join(elsewhere, "text.txt"), "wb") as other:
        other.write(text.read().swapcase())
    for daemon in ("w1", "w2"):
        check(fixture.daemons[daemon].stop() == 0, f"{daemon} did not end well")
        fixture.worker(daemon, "--emulate-step-ms=5", process=daemon + "-here", cwd=fixture.folder)
    fixture.worker("w3", process="w3-elsewhere", cwd=elsewhere)
    fixture.attached(4)
    job = fixture.submits("differs", data__path="/proc/self/cwd/text.txt")
    fixture.meanwhile("w3 to be named", job, lambda: "worker w3 cannot run the job: it differs from the "
                      "other workers" in fixture.logs(job))
    fixture.finishes(job)


@case
def the_command_line(fixture):
    """The command line: exit codes, one clear line for each mistake, JSON, and a watch on a pipe"""
    def fails(code, words, *arguments):
        found, out, error = fixture.atoll(*arguments, check=False)
        check(found == code, f"{arguments}: exit code {found}, not {code}: {error}")
        check(words in error, f"{arguments}: it says {error!r}, not {words!r}")
        check(out == "", f"{arguments}: an error is no data: {out!r}")

    fails(1, "is the coordinator running", "ls")
    fixture.starts(workers=2, servers=1)
    fails(2, "--flurb", "ls", "--flurb")
    fails(2, "flurb", "flurb")
    fails(2, "JOB is required", "show")
    for command in ("show", "watch", "logs", "pause", "resume", "cancel"):
        fails(1, "there is no job nosuch", command, "nosuch")
    fails(1, "there is no job nosuch", "export", "nosuch", "--to", fixture.folder + "/none")
    fails(1, fixture.folder + "/none.toml", "submit", fixture.folder + "/none.toml")
    wrong = fixture.job_file("wrong", inner__batch_sequence=3)
    fails(1, "batch_sequences", "validate", wrong)
    fails(1, "outer.momentum", "submit", fixture.job_file("wrong", outer__momentum=1.5))

    path = fixture.job_file("right", schedule__train_tokens=60_000)
    code, out, errors = fixture.atoll("validate", path)
    check((code, out) == (0, path + ": valid\n") and errors.startswith("data: "), "validate")
    check(fixture.atoll("validate", path, "--live")[0] == 0, "validate --live")
    check(fixture.json("validate", path)["schedule"]["train_tokens"] == 60_000, "validate --json")
    nothing = fixture.json("ls")
    check([nothing[key] for key in ("schema_version", "jobs", "orphans")] == [1, [], []], "ls --json of nothing")
    job = fixture.json("submit", path)["job"]
    watched = fixture.atoll("watch", job)
    check(watched[0] == 0, f"watch ends with {watched[0]}: {watched[2]}")
    lines = watched[1].splitlines()
    check(all(line.startswith(job + ": ") for line in lines), watched[1])
    # Of a job that is done already there is no more to say.
    check(len(lines) >= 2 or (lines and ": done, " in lines[0]), watched[1])
    check(": done, " in lines[-1] and "\x1b" not in watched[1], watched[1])
    fixture.finishes(job)
    check(JOB_FIELDS <= fixture.json("show", job).keys(), "show --json")
    check({m["name"] for m in fixture.json("status")["members"]} == {"w1", "w2", "ps1"}, "status")
    check([j["job"] for j in fixture.json("ls")["jobs"]] == [job], "ls --json")
    check(job in fixture.atoll("ls")[1] and "done" in fixture.atoll("ls")[1], "ls")
    check("newest decisions" in fixture.atoll("show", job)[1], "show")
    check(f"{job}: done: all 60000 tokens" in fixture.logs(job), fixture.logs(job))
    log = fixture.atoll("logs", job, "--json")[1]
    check(all("text" in parse_json(line) for line in log.splitlines()), log)

    for daemon in ("atoll-coordinator", "atoll-worker", "atoll-paramserver"):
        for flags in (["--flurb"], []):
            done = subprocess.run([binary(daemon), *flags], capture_output=True, text=True,
                                  timeout=LIMIT_S, check=False)
            check(done.returncode == 2 and done.stderr, f"{daemon} {flags}: {done}")


@case
def doctor_measures_the_link_to_a_parameter_server(fixture):
    """atoll doctor: the coordinator's clock, and the bandwidth of the tensor link to a parameter server;
    a server that is frozen has a finding with a remedy"""
    fixture.starts(workers=0, servers=1)

    def findings():
        code, out, _ = fixture.atoll("doctor", "--json", "--state-dir", fixture.folder, check=False)
        found = {f["check"]: f for f in parse_json(out)["findings"]}
        check(code == any(f["level"] == "problem" for f in found.values()), f"{code}: {found}")
        for finding in found.values():
            check((finding["level"] == "ok") == (finding["remedy"] == ""), f"{finding}")
        return found
    found = findings()
    check(found["clock"]["level"] == "ok", f"{found['clock']}")
    link = next(f for name, f in found.items() if name.startswith("bandwidth to "))
    check("Mbit/s" in link["found"], f"{link}")
    fixture.daemons["ps1"].freeze()
    link = next(f for name, f in findings().items() if name.startswith("bandwidth to "))
    check(link["level"] == "problem", f"{link}")
    fixture.daemons["ps1"].thaw()


if __name__ == "__main__":
    main("training")
