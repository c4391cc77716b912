#!/usr/bin/python3
"""Jobs that cannot succeed end with their reason, hold no worker, and let the next job run."""
import os
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, case, check, main  # noqa: E402


def fails(fixture, job, *words):
    """The job fails by itself; `ls` has the reason."""
    def failed():
        summary = next(j for j in fixture.json("ls")["jobs"] if j["job"] == job)
        return summary if summary["state"] == "JOB_STATE_FAILED" else None
    reason = fixture.wait_until(f"{job} to fail", failed, LIMIT_S)["reason"]
    check(all(word in reason for word in words), f"{job}: {reason}")


@case
def files_that_no_job_can_be_made_of(fixture):
    """A FIFO as data, a token that the model does not know, a FIFO as weights, a learning rate that
    diverges: each fails with its reason, and the worker then trains another job"""
    fixture.starts(workers=1, servers=1)
    fifo = os.path.join(fixture.folder, "fifo")
    os.mkfifo(fifo)
    alone = {"outer__min_islands": 1}
    fails(fixture, fixture.submits("fifo", data__path=fifo, **alone), fifo, "is a FIFO")
    tokens = os.path.join(fixture.folder, "tokens.bin")
    with open(tokens, "wb") as out:
        out.write(struct.pack("<20000H", *([7] * 19_999), 9000))
    fails(fixture, fixture.submits("tokens", data__path=tokens, data__format="tokens16",
                                   model__vocabulary=8192, **alone), "token 19999", "vocabulary of 8192")
    weights = os.path.join(fixture.folder, "weights")
    os.mkdir(weights)
    os.mkfifo(os.path.join(weights, "model.safetensors"))
    fails(fixture, fixture.submits("weights", model__initial_weights_path=weights, **alone),
          weights, "is a FIFO")
    diverges = fixture.submits("diverges", inner__learning_rate=99, inner__clip_norm=0, **alone)
    fails(fixture, diverges, "stopped at version", "not finite")
    lines = [line for line in fixture.logs(diverges).splitlines() if "finite" in line]
    check(len(lines) < 20, f"{len(lines)} lines say so")
    fixture.finishes(fixture.submits("after", schedule__train_tokens=30_000, **alone))


@case
def a_worker_that_reads_for_long(fixture):
    """A worker reads a file of 1 TiB: when the job is cancelled another one has it long
    before the file is read, and SIGTERM ends it, too"""
    fixture.starts(workers=1, servers=1)
    large = os.path.join(fixture.folder, "large")
    with open(large, "wb") as out:
        out.truncate(1 << 40)

    def reads(name):
        job = fixture.submits(name, data__path=large, outer__min_islands=1)
        fixture.wait_until("w1 to read", lambda: "reads data file" in fixture.member("w1")["measuring"],
                           LIMIT_S)
        return job
    fixture.atoll("cancel", reads("cancelled"))
    job = fixture.submits("after", schedule__train_tokens=30_000, outer__min_islands=1)
    fixture.wait_until("the next job to leave the queue and its preparation", lambda: fixture.job(job)[
        "summary"]["state"] not in ("JOB_STATE_QUEUED", "JOB_STATE_PREPARING"), LIMIT_S, every_s=0.05)
    fixture.finishes(job)
    reads("stopped")
    fixture.daemons["w1"].stop()


if __name__ == "__main__":
    main("hopeless_jobs")
