#!/usr/bin/python3
"""`atoll run`: a cluster, a job and its model by one command, which can be stopped and called again."""
import contextlib
import json
import os
import re
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, Skip, case, check, main  # noqa: E402
from cluster import binary, die_with_parent, parse_json  # noqa: E402

STEP_MS = 20  # of a job that is interrupted


class Run:
    """One `atoll run --json`, with what it has printed so far."""

    def __init__(self, fixture, *arguments, prefix=()):
        self.fixture = fixture
        self.out_path = os.path.join(fixture.folder, "run.out")
        self.errors_path = os.path.join(fixture.folder, "run.err")
        with open(self.out_path, "wb") as out, open(self.errors_path, "wb") as errors:
            self.process = subprocess.Popen(
                [*prefix, binary("atoll"), "run", "--json", *arguments], stdin=subprocess.DEVNULL, stdout=out,
                stderr=errors, cwd=fixture.folder, preexec_fn=die_with_parent)

    def jobs(self):
        """The job each time that it was printed."""
        with open(self.out_path, encoding="utf-8") as out:
            lines = [line for line in out.read().splitlines(keepends=True) if line.endswith("\n")]
        found = [parse_json(line) for line in lines if line.startswith("{")]
        return [job for job in found if "summary" in job]

    def errors(self):
        with open(self.errors_path, encoding="utf-8") as errors:
            return errors.read()

    def version(self):
        jobs = self.jobs()
        return jobs[-1]["summary"]["version"] if jobs else -1

    def reaches(self, version):
        def there():
            check(self.process.poll() is None, f"ended with {self.process.returncode}: {self.errors()}")
            return self.version() >= version
        self.fixture.wait_until(f"version {version}", there, LIMIT_S)

    def wait(self):
        return self.process.wait(2 * LIMIT_S)


def daemons_of(folder):
    """{name: process id} of the daemons whose state is in the folder."""
    found = {}
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        for word in words:
            if word.startswith(f"--state-dir={folder}/"):
                found[os.path.basename(word)] = int(entry)
    return found


def none_left(fixture, folder):
    fixture.wait_until("all daemons to end", lambda: not daemons_of(folder), LIMIT_S)


def slow_folder(fixture, name):
    """A folder for a run whose workers take STEP_MS a step."""
    folder = os.path.join(fixture.folder, name)
    os.makedirs(folder)
    with open(os.path.join(folder, "run.toml"), "w", encoding="ascii") as record:
        record.write("servers = 1\n")
    with open(os.path.join(folder, "worker.toml"), "w", encoding="ascii") as flags:
        flags.write(f"emulate-step-ms = {STEP_MS}\n")
    return folder


def refused(fixture, *arguments, code, words):
    """A run that ends before any daemon is started; its message has these words."""
    run = Run(fixture, *arguments)
    check(run.wait() == code, f"{arguments}: exit code {run.process.returncode}: {run.errors()}")
    check(all(word in run.errors() for word in words), f"{arguments}: {run.errors()}")
    check(len(run.errors().splitlines()) == 1, f"not one line: {run.errors()}")


@case
def job_is_trained_and_exported(fixture):
    """One command trains a job and exports its model; called again it finds the job done and exports it
    again"""
    job = fixture.job_file(outer__min_islands=1)
    folder = os.path.join(fixture.folder, "atoll-run", "job")
    for _ in range(2):
        run = Run(fixture, job)
        check(run.wait() == 0, run.errors())
        check(run.jobs()[-1]["summary"]["state"] == "JOB_STATE_DONE", f"{run.jobs()[-1]['summary']}")
        with open(os.path.join(folder, "model", "config.json"), encoding="utf-8") as config:
            check(json.load(config)["hidden_size"] == 32, "another model")
        check(not daemons_of(folder), f"left: {daemons_of(folder)}")
    check(len({job["summary"]["job"] for job in run.jobs()}) == 1, "a second job")


@case
def shipped_job_reaches_first_round(fixture):
    """Without a file it trains a small model of the text that it has with it"""
    folder = os.path.join(fixture.folder, "shipped")
    run = Run(fixture, "--folder", folder, "--set", "schedule.train_tokens=200_000")
    run.reaches(1)
    check(sorted(daemons_of(folder)) == ["coordinator", "server-1", "worker-1", "worker-2"],
          f"{daemons_of(folder)}")
    check(run.wait() == 0, run.errors())


@case
def interrupted_run_goes_on(fixture):
    """SIGINT stops all daemons in order; the same command goes on from the version that was committed; a
    second SIGINT ends them at once"""
    folder = slow_folder(fixture, "state")
    command = (fixture.job_file(schedule__train_tokens=3_000_000), "--folder", folder)
    run = Run(fixture, *command)
    run.reaches(1)
    run.process.send_signal(signal.SIGINT)
    check(run.wait() == -signal.SIGINT, f"exit code {run.process.returncode}: {run.errors()}")
    none_left(fixture, folder)
    before = run.jobs()[-1]["summary"]

    run = Run(fixture, *command)
    run.reaches(before["version"] + 1)
    check(run.jobs()[-1]["summary"]["job"] == before["job"], "another job")
    run.process.send_signal(signal.SIGINT)
    fixture.wait_until("it to stop", lambda: "Ctrl-C" in run.errors().splitlines()[-1], LIMIT_S)
    run.process.send_signal(signal.SIGINT)
    check(run.wait() == -signal.SIGINT, f"exit code {run.process.returncode}: {run.errors()}")
    none_left(fixture, folder)

    run = Run(fixture, *command)  # what was ended at once is whole
    run.reaches(before["version"] + 1)
    run.process.kill()
    run.wait()
    none_left(fixture, folder)  # no daemon outlives it


@case
def killed_worker_is_started_again(fixture):
    """A worker that a signal ends is reported and started again, and the job is trained to its end"""
    folder = slow_folder(fixture, "state")
    run = Run(fixture, fixture.job_file(), "--folder", folder)
    run.reaches(1)
    before = daemons_of(folder)["worker-1"]
    os.kill(before, signal.SIGKILL)
    fixture.wait_until("it to be started again", lambda: daemons_of(folder).get("worker-1", before) != before,
                       LIMIT_S)
    check("worker-1" in run.errors() and "signal 9" in run.errors(), run.errors())
    check(run.wait() == 0, run.errors())
    check(run.jobs()[-1]["summary"]["state"] == "JOB_STATE_DONE", f"{run.jobs()[-1]['summary']}")


@case
def daemon_that_ends_by_itself_ends_the_run(fixture):
    """A daemon that ends by itself is named with the end of its log, and the run ends"""
    folder = slow_folder(fixture, "state")
    with open(os.path.join(folder, "worker.toml"), "w", encoding="ascii") as flags:
        flags.write("thraeds = 1\n")
    run = Run(fixture, fixture.job_file(), "--folder", folder)
    check(run.wait() == 1, run.errors())
    # Both workers read that file: the first that ends is named.
    check(re.search("worker-[12] ended with exit code 2", run.errors()) and "thraeds" in run.errors(), run.errors())
    none_left(fixture, folder)


@case
def wrong_arguments_are_refused_before_anything_starts(fixture):
    """Wrong flags, folders that hold something else or are in use, other settings, too few workers and
    files that are not there are refused by name"""
    job = fixture.job_file()
    refused(fixture, job, "--workres=2", code=2, words=["--workres", "--workers"])
    refused(fixture, job, "--workers=1", code=2, words=["--workers 1", "min_islands = 2"])
    refused(fixture, job, "--folder", fixture.folder, code=1, words=["--folder", "holds"])
    refused(fixture, "no.toml", code=1, words=["no.toml"])
    refused(fixture, fixture.job_file("nodata", data__path="/nowhere/text.txt"), code=1,
            words=["/nowhere/text.txt"])
    refused(fixture, job, "--export", fixture.folder, "--folder", os.path.join(fixture.folder, "export"), code=1,
            words=["--export"])

    folder = slow_folder(fixture, "state")
    run = Run(fixture, job, "--folder", folder)
    run.reaches(0)
    other = subprocess.run([binary("atoll"), "run", job, "--folder", folder], capture_output=True, text=True,
                           check=False, timeout=LIMIT_S)
    check(other.returncode == 1 and f"process {run.process.pid} runs on it" in other.stderr, other.stderr)
    run.process.send_signal(signal.SIGTERM)
    check(run.wait() == -signal.SIGTERM, f"{run.process.returncode}")
    changed = Run(fixture, fixture.job_file(outer__momentum=0.5), "--folder", folder)
    check(changed.wait() == 1 and "momentum" in changed.errors(), changed.errors())
    none_left(fixture, folder)


@case
def full_disk_is_shown(fixture):
    """On a full disk the job says so, and goes on when there is room"""
    folder = os.path.join(fixture.folder, "small")
    os.makedirs(folder)
    mount = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=40m tmpfs "$0" && exec "$@"', folder]
    try:
        probe = subprocess.run([*mount, "true"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise Skip(f"no unshare: {error}") from None
    if probe.returncode != 0:
        raise Skip(f"no file system can be mounted here: {probe.stderr.strip()}")
    job = fixture.job_file(schedule__train_tokens=20_000_000)
    run = Run(fixture, job, "--folder", os.path.join(folder, "state"), prefix=mount)
    run.reaches(1)
    ballast = f"/proc/{run.process.pid}/root{folder}/ballast"

    def full():
        ended = run.process.poll() is not None
        try:
            with open(ballast, "ab", buffering=0) as file:
                for size in (1 << 20, 1 << 12, 1):
                    with contextlib.suppress(OSError):
                        while True:
                            file.write(bytes(size))
        except OSError:
            ended = True  # with the process goes the way into its mounts
            run.wait()
        check(not ended or "No space left on device" in run.errors(), run.errors())
        return ended or "No space left on device" in run.jobs()[-1]["summary"]["waiting_for"]

    fixture.wait_until("the full disk to be named", full, LIMIT_S)
    if run.process.poll() is None:
        os.unlink(ballast)
        run.reaches(run.version() + 1)
        run.process.send_signal(signal.SIGINT)
        run.wait()


if __name__ == "__main__":
    main("run")
