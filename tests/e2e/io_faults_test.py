#!/usr/bin/python3
"""One file operation of a daemon fails, each in turn, while it starts, trains a round, saves and stops: it goes
on, or ends and says why, and nothing that it held is lost."""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, case, check, main  # noqa: E402
from cluster import built_file  # noqa: E402

ERRORS = ("EIO", "EMFILE", "ENOSPC", "EINTR", "short")
# Of a daemon's operations: all of them take hours.
SAMPLES = int(os.environ.get("ATOLL_IO_FAULT_SAMPLES", "8"))
SEED = int(os.environ.get("ATOLL_IO_FAULT_SEED", "1"))


class Faults:
    """Starts one daemon of a cluster again and again, with a fault in it."""

    def __init__(self, fixture, name, job):
        self.fixture, self.daemon, self.job = fixture, fixture.daemons[name], job
        self.command = self.daemon.command
        self.folder = os.path.join(fixture.folder, name)
        self.log = os.path.join(fixture.folder, name + ".operations")

    def start(self, at, error):
        if os.path.exists(self.log):
            os.unlink(self.log)
        self.daemon.command = [
            "env", "LD_PRELOAD=" + built_file("tests/faults/libio_faults_preload.so"),
            "ATOLL_IO_FAULT_FOLDER=" + self.folder, f"ATOLL_IO_FAULT_AT={at}",
            "ATOLL_IO_FAULT_ERROR=" + error, "ATOLL_IO_FAULT_LOG=" + self.log, *self.command]
        self.daemon.start()

    def operations(self):
        with open(self.log, encoding="utf-8", errors="replace") as lines:
            return [line.split(maxsplit=1)[1].strip() for line in lines if " " in line]

    def trains(self, rounds, may_end):
        """Waits for so many more rounds; False: the daemon has ended before."""
        def done():
            if may_end and not self.daemon.alive():
                return "ended"
            try:
                version = self.fixture.version(self.job)
            except Exception:  # no coordinator answers yet, or any more
                return None
            before = self.before if self.before is not None else version
            self.before = before
            return "trained" if version >= before + rounds else None
        self.before = None
        return self.fixture.wait_until(f"{rounds} more rounds", done, LIMIT_S) == "trained"

    def record(self):
        """The operations of a start, two rounds with their saves, and a stop."""
        self.daemon.stop()
        self.start(0, "EIO")
        self.trains(2, may_end=False)
        self.daemon.stop()
        found = self.operations()
        self.daemon.command = self.command
        self.daemon.start()
        return found

    def fails(self, at, error):
        """What the daemon did with a fault there; raises where it did wrong."""
        self.daemon.stop()
        begin = len(self.daemon.log())
        self.start(at, error)
        went_on = self.trains(2, may_end=True)
        code = self.daemon.stop()
        what = f"operation {at} of {self.daemon.name} ({(self.operations() + ['?'] * at)[at - 1]}) fails with {error}"
        said = self.daemon.log()[begin:]
        check(code >= 0, f"{what}: it ended by signal {-code}: {said[-2000:]}")
        check(went_on or code > 0, f"{what}: it ended as if all were well: {said[-2000:]}")
        check(went_on or said.strip(), f"{what}: it did not say why it ended")
        self.daemon.command = self.command
        self.daemon.start()
        check(self.trains(1, may_end=True), f"{what}: afterwards it does not start: {self.daemon.log()[-2000:]}")
        return "went on" if went_on else "ended with a reason"


def tries(fixture, name):
    fixture.starts(workers=1, servers=1, step_ms=20)
    job = fixture.submits(outer__min_islands=1, outer__steps_per_round=4, schedule__train_tokens=100_000_000,
                          schedule__snapshot_every_rounds=2)
    fixture.reaches(job, 2)
    faults = Faults(fixture, name, job)
    operations = faults.record()
    # The name of each job that is handled is written: of these, only the first.
    numbers = [number for number, operation in enumerate(operations, 1)
               if "crashed-at" not in operation or operation not in operations[:number - 1]]
    chosen = random.Random(SEED).sample(numbers, min(SAMPLES, len(numbers)))
    outcomes = {}
    for i, at in enumerate(sorted(chosen)):
        outcome = faults.fails(at, ERRORS[i % len(ERRORS)])
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    print(f"{name}: {len(operations)} operations, {len(chosen)} faults: {outcomes}", flush=True)
    seen = fixture.job(job)
    check(seen["summary"]["state"] == "JOB_STATE_RUNNING", f"the job does not run: {seen['summary']}")


@case
def file_operations_of_a_coordinator_fail(fixture):
    """A file operation of the coordinator fails: it goes on or says why, and its jobs are there"""
    tries(fixture, "coordinator")


@case
def file_operations_of_a_parameter_server_fail(fixture):
    """A file operation of a parameter server fails: it goes on or says why, and holds its shards"""
    tries(fixture, "ps1")


@case
def file_operations_of_a_worker_fail(fixture):
    """A file operation of a worker fails: it goes on or says why, and its saves are there"""
    tries(fixture, "w1")


if __name__ == "__main__":
    main("io_faults")
