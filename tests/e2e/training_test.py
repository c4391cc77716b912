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
from story import LIMIT_S, Again, case, check, main, parse_json  # noqa: E402
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
def few_bits_both_ways(story):
    """Pushes and pulls of 4 bits: islands move together by quantised steps, the loss falls as it does in
    fp32, and what a worker pulls is a fraction of the model"""
    story.starts(workers=2, servers=1)
    pulled, losses = [], []
    for name, bits in (("full", {}), ("few", {"outer__push_encoding": "int4", "outer__pull_encoding": "int4"})):
        before = int(story.member("ps1")["load"].get("sent_bytes", 0))
        job = story.submits(name, schedule__train_tokens=400_000, outer__wait_for_all=True,
                            outer__overlap="none", **bits)
        done = story.finishes(job)
        story.wait_until("the server to say what it sent", lambda j=job: (
            f"job {j}: ended" in story.daemons["ps1"].log()), LIMIT_S)
        sent = story.wait_until("a heartbeat after it", lambda b=before: (
            lambda now: now if now > b else None)(int(story.member("ps1")["load"]["sent_bytes"])), LIMIT_S)
        pulled.append((sent - before) / done["summary"]["version"])
        losses.append(done["summary"]["validation_loss"])
    check(pulled[1] < 0.25 * pulled[0], f"bytes pulled a round: {pulled}")
    check(losses[1] < 1.05 * losses[0], f"losses: {losses}")


@case
def trains_to_the_end(story):
    """Three islands train a job to its end: the loss falls, every token counts once, both servers
    hold the same version, the exported model is whole and writes text"""
    story.starts()
    job = story.submits()
    done = story.finishes(job)
    first, last = (done["summary"][k] for k in ("first_validation_loss", "validation_loss"))
    check(5 < first < 6, f"an untrained byte model has a loss near ln 256, not {first}")
    check(last < 0.4 * first, f"the validation loss went from {first} only to {last}")
    check(done["summary"]["validated_version"] == done["summary"]["version"], "not validated last")
    check({i["worker"] for i in done["islands"]} == {"w1", "w2", "w3"}, "not three islands")
    check(all(i["rounds_accepted"] > 0 for i in done["islands"]), "an island never counted")
    check({s["server"] for s in done["shards"]} == {"ps1", "ps2"}, "one server holds everything")
    ended = f"job {job}: ended at version "
    for name in ("ps1", "ps2"):
        log = story.wait_until(f"{name} to log the end", lambda n=name: (
            lambda text: text if ended in text else None)(story.daemons[n].log()), LIMIT_S)
        check(f"{ended}{done['summary']['version']}\n" in log, f"{name} holds another version")

    folder = os.path.join(story.folder, "model")
    story.atoll("export", job, "--to", folder)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    check(config["hidden_size"] == 32 and config["num_hidden_layers"] == 2, f"config: {config}")
    tensors = read_safetensors(os.path.join(folder, "model.safetensors"))
    check(tensors["model.embed_tokens.weight"][1] == [256, 32], "the embedding's shape")
    for name, (dtype, shape, body) in tensors.items():
        check(dtype == "F32" and len(body) == 4 * math.prod(shape), f"{name}: {dtype} {shape}")
        check(all(map(math.isfinite, struct.unpack(f"<{len(body) // 4}f", body))), name)
    words = story.atoll("generate", folder, "--prompt", "The ", "--tokens", "200")[1]
    with open(story.text, encoding="ascii") as text:
        vocabulary = set(re.findall("[a-z]+", text.read().lower()))
    made = re.findall("[a-z]+", words.lower())
    known = sum(word in vocabulary for word in made)
    check(len(made) > 20 and known > 0.5 * len(made), f"it has not learnt the words: {words}")
    again = story.atoll("generate", folder, "--prompt", "The ", "--tokens", "200")[1]
    check(again == words, "the same seed wrote another text")


@case
def pushes_in_4_bits_and_is_removed(story):
    """Pushes of 4 bits a number: the loss falls all the same, a fraction of the bytes is pushed; the
    job is removed, and nothing of it stays on the servers' disks, also of the one that was unavailable"""
    story.starts(workers=2)
    job = story.submits(outer__push_encoding="e3m0")
    story.reaches(job, 12)

    def traffic():
        """What all have pushed and pulled, once they have said so of some rounds."""
        told = [[int(i.get("progress", {}).get(k, 0)) for k in ("pushed_bytes", "pulled_bytes")]
                for i in story.job(job)["islands"]]
        return told if all(pushed > 0 and pulled > 0 for pushed, pulled in told) else None
    for pushed, pulled in story.meanwhile("all to say what they sent", job, traffic):
        check(pushed < 0.3 * pulled, f"{pushed} bytes pushed, {pulled} pulled")
    story.still_trains(job)
    code, _, error = story.atoll("rm", job, check=False)
    if code == 0:
        raise Again(f"{job} could be removed")
    check(code == 1 and "cancel it first, or add --force" in error, error)
    done = story.finishes(job)
    first, last = (done["summary"][k] for k in ("first_validation_loss", "validation_loss"))
    check(last < 0.4 * first, f"the validation loss went from {first} only to {last}")

    def held(server):
        return os.path.exists(os.path.join(story.folder, server, "jobs", job))
    check(held("ps1") and held("ps2"), "the servers' folders are elsewhere")
    story.daemons["ps2"].kill()
    check("removed" in story.atoll("rm", job)[1], "not removed")
    check(story.json("ls").get("jobs", []) == [], "it is still listed")
    story.wait_until("ps1 to drop it", lambda: not held("ps1"), LIMIT_S)
    check(held("ps2"), "a dead server has deleted files")
    story.daemons["ps2"].start()
    story.wait_until("ps2 to drop it", lambda: not held("ps2"), LIMIT_S)


@case
def holds_goes_on_and_is_cancelled(story):
    """A job is paused, resumed and cancelled by command; its workers then train another one"""
    story.starts(workers=2, servers=1, step_ms=20)
    job = story.submits(schedule__train_tokens=100_000_000)
    story.reaches(job, 2)
    code, out, _ = story.atoll("pause", job)
    check(code == 0 and "paused by a user" in out, out)
    paused = story.wait_until("all workers to hold", lambda: (
        lambda seen: seen if all("paused by a user" in i["doing"] for i in seen["islands"]) and
        seen["round"]["phase"] == "idle" else None)(story.job(job)), LIMIT_S)
    steps = [i["progress"]["inner_step"] for i in paused["islands"]]
    heard = [story.member(w)["since_heartbeat_s"] for w in ("w1", "w2")]
    check(heard and steps, "no progress is shown")
    code, _, error = story.atoll("pause", job, check=False)
    check(code == 1 and "only a running job can be paused" in error, error)
    check([i["progress"]["inner_step"] for i in story.job(job)["islands"]] == steps,
          "a paused worker stepped")

    check("resumed by a user" in story.atoll("resume", job)[1], "not resumed")
    story.reaches(job, paused["summary"]["version"] + 2)
    check("cancelled by a user" in story.atoll("cancel", job)[1], "not cancelled")
    code, _, error = story.atoll("cancel", job, check=False)
    check(code == 1 and "has ended already" in error, error)
    other = story.submits("another", schedule__train_tokens=20_000)
    story.finishes(other)
    states = {j["job"]: j["state"] for j in story.json("ls")["jobs"]}
    check(states == {job: "JOB_STATE_CANCELLED", other: "JOB_STATE_DONE"}, f"ls: {states}")


@case
def says_what_is_wrong_with_the_data(story):
    """A job whose data cannot be read fails and says why; a worker with other data is named"""
    story.starts(workers=2, servers=1)
    missing = os.path.join(story.folder, "missing.txt")
    job = story.submits("lost", data__path=missing)
    failed = story.wait_until("the job to fail", lambda: (
        lambda seen: seen if seen["summary"]["state"] == "JOB_STATE_FAILED" else None)(
            story.job(job)), LIMIT_S)
    check(missing in failed["summary"]["reason"], failed["summary"]["reason"])
    shown = story.atoll("show", job)[1]
    check(missing in shown and "failed" in shown, shown)
    code, _, error = story.atoll("watch", job, check=False)
    check(code == 1 and missing in error, error)

    # A third worker sees another text of the same size under the job's path.
    elsewhere = os.path.join(story.folder, "elsewhere")
    os.mkdir(elsewhere)
    with open(story.text, "rb") as text, open(os.path.join(elsewhere, "text.txt"), "wb") as other:
        other.write(text.read().swapcase())
    for daemon in ("w1", "w2"):
        check(story.daemons[daemon].stop() == 0, f"{daemon} did not end well")
        story.worker(daemon, "--emulate-step-ms=5", process=daemon + "-here", cwd=story.folder)
    story.worker("w3", process="w3-elsewhere", cwd=elsewhere)
    story.attached(4)
    job = story.submits("differs", data__path="/proc/self/cwd/text.txt")
    story.meanwhile("w3 to be named", job, lambda: "worker w3 cannot run the job: it differs from the "
                    "other workers" in story.logs(job))
    story.finishes(job)


@case
def the_command_line(story):
    """The command line: exit codes, one clear line for each mistake, JSON, and a watch on a pipe"""
    def fails(code, words, *arguments):
        found, out, error = story.atoll(*arguments, check=False)
        check(found == code, f"{arguments}: exit code {found}, not {code}: {error}")
        check(words in error, f"{arguments}: it says {error!r}, not {words!r}")
        check(out == "", f"{arguments}: an error is no data: {out!r}")

    fails(1, "is the coordinator running", "ls")
    story.starts(workers=2, servers=1)
    fails(2, "--flurb", "ls", "--flurb")
    fails(2, "flurb", "flurb")
    fails(2, "JOB is required", "show")
    for command in ("show", "watch", "logs", "pause", "resume", "cancel"):
        fails(1, "there is no job nosuch", command, "nosuch")
    fails(1, "there is no job nosuch", "export", "nosuch", "--to", story.folder + "/none")
    fails(1, story.folder + "/none.toml", "submit", story.folder + "/none.toml")
    wrong = story.job_file("wrong", inner__batch_sequence=3)
    fails(1, "batch_sequences", "validate", wrong)
    fails(1, "outer.momentum", "submit", story.job_file("wrong", outer__momentum=1.5))

    path = story.job_file("right", schedule__train_tokens=60_000)
    code, out, errors = story.atoll("validate", path)
    check((code, out) == (0, path + ": valid\n") and errors.startswith("data: "), "validate")
    check(story.atoll("validate", path, "--ask")[0] == 0, "validate --ask")
    check(story.json("validate", path)["schedule"]["train_tokens"] == 60_000, "validate --json")
    check(story.json("ls") == {"jobs": [], "orphans": []}, "ls --json of nothing")
    job = story.json("submit", path)["job"]
    watched = story.atoll("watch", job)
    check(watched[0] == 0, f"watch ends with {watched[0]}: {watched[2]}")
    lines = watched[1].splitlines()
    check(all(line.startswith(job + ": ") for line in lines), watched[1])
    # Of a job that is done already there is no more to say.
    check(len(lines) >= 2 or (lines and ": done, " in lines[0]), watched[1])
    check(": done, " in lines[-1] and "\x1b" not in watched[1], watched[1])
    story.finishes(job)
    check(JOB_FIELDS <= story.json("show", job).keys(), "show --json")
    check({m["name"] for m in story.json("status")["members"]} == {"w1", "w2", "ps1"}, "status")
    check([j["job"] for j in story.json("ls")["jobs"]] == [job], "ls --json")
    check(job in story.atoll("ls")[1] and "done" in story.atoll("ls")[1], "ls")
    check("newest decisions" in story.atoll("show", job)[1], "show")
    check(f"{job}: done: all 60000 tokens" in story.logs(job), story.logs(job))
    log = story.atoll("logs", job, "--json")[1]
    check(all("text" in parse_json(line) for line in log.splitlines()), log)

    for daemon in ("atoll-coordinator", "atoll-worker", "atoll-paramserver"):
        for flags in (["--flurb"], []):
            done = subprocess.run([binary(daemon), *flags], capture_output=True, text=True,
                                  timeout=LIMIT_S, check=False)
            check(done.returncode == 2 and done.stderr, f"{daemon} {flags}: {done}")


@case
def doctor_measures_the_link_to_a_parameter_server(story):
    """atoll doctor: the coordinator's clock, and the bandwidth of the tensor link to a parameter server;
    a server that is frozen has a finding with a remedy"""
    story.starts(workers=0, servers=1)

    def findings():
        code, out, _ = story.atoll("doctor", "--json", "--state-dir", story.folder, check=False)
        found = {f["check"]: f for f in parse_json(out)}
        check(code == any(f["level"] == "problem" for f in found.values()), f"{code}: {found}")
        for finding in found.values():
            check((finding["level"] == "ok") == (finding["remedy"] == ""), f"{finding}")
        return found
    found = findings()
    check(found["clock"]["level"] == "ok", f"{found['clock']}")
    link = next(f for name, f in found.items() if name.startswith("bandwidth to "))
    check("Mbit/s" in link["found"], f"{link}")
    story.daemons["ps1"].freeze()
    link = next(f for name, f in findings().items() if name.startswith("bandwidth to "))
    check(link["level"] == "problem", f"{link}")
    story.daemons["ps1"].thaw()


if __name__ == "__main__":
    main("training")
