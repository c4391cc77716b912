"""The harness of the end-to-end tests: cases, their report, and a cluster of real daemons.

A case is a function that takes a `Fixture`. It starts real daemons on loopback, does something to them,
and waits for conditions, each with a deadline; nothing is ever waited for by sleeping. main() runs
the cases one after the other and writes one <testcase> each to $XML_OUTPUT_FILE.

Steps mostly sleep, so where everything else is slow a short job may be done before what was to happen
while it trains. A case that detects that raises Again, and is repeated with jobs four times as long.
"""
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from xml.sax.saxutils import quoteattr

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Cluster, ClusterError, decided_twice, parse_json  # noqa: E402
from monitor import Monitor  # noqa: E402

LIMIT_S = 120  # of one wait; generous, because the machine may be busy
STRETCHES = (1, 4, 16)  # of jobs, each time that a case is repeated
ENDLESS_TOKENS = 10_000_000  # a job of more is not waited for
# Between runs of one job on different layouts. What rounding there is at first (some 1e-7) grows with
# every step of AdamW.
LOSS_LIMIT = 1e-5
WORDS = ("a the red blue old quick lazy small fox dog house tree river jumps runs sleeps sees finds "
         "over under beside and then while").split()


class Skip(Exception):
    """This machine cannot run the case; says why."""


class Again(AssertionError):
    """The machine was too slow or too busy for the case: it is repeated, with longer jobs."""


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def write_text(path, size_bytes=200_000, seed=1):
    """Sentences of few words: a tiny model learns them in seconds."""
    rng = random.Random(seed)
    with open(path, "w", encoding="ascii") as out:
        while out.tell() < size_bytes:
            out.write(" ".join(rng.choices(WORDS, k=8)).capitalize() + ".\n")


def list_rounds(job):
    """(version, tokens, training loss) of a job's rounds; one island made all of them."""
    rounds = []
    for decision in job["decisions"]:
        if decision["tokens"] == 0:
            continue  # the initial weights
        check(len(decision["participants"]) == 1, f"several islands: {decision}")
        rounds.append((decision["version"], decision["tokens"],
                       decision["participants"][0]["train_loss"]))
    return rounds


def same_losses(one, other):
    """Two jobs that make the same steps have the same losses, relatively: those of training in all
    rounds that both have made, and if they are done, that of validation at their end."""
    pairs = list(zip(list_rounds(one), list_rounds(other)))
    check(len(pairs) > 1 and all(a[:2] == b[:2] for a, b in pairs), f"other rounds: {pairs}")
    losses = [(a[2], b[2]) for a, b in pairs]
    if one["summary"]["state"] == other["summary"]["state"] == "JOB_STATE_DONE":
        check(len(list_rounds(one)) == len(list_rounds(other)), f"other rounds: {pairs}")
        losses.append((one["summary"]["validation_loss"], other["summary"]["validation_loss"]))
    worst = max(abs(a - b) / a for a, b in losses)
    check(worst <= LOSS_LIMIT, f"losses differ by {worst:.1e} of {LOSS_LIMIT:.0e}: {losses}")


class Fixture(Cluster):
    """A cluster with a text, tiny jobs and questions about them."""

    def __init__(self, folder, stretch=1):
        super().__init__(folder)
        self.stretch = stretch
        self.text = os.path.join(self.folder, "text.txt")
        write_text(self.text)

    # ---- what happens ----
    def starts(self, workers=3, servers=2, step_ms=0, flags=()):
        """Coordinator, ps1.., w1..; each inner step lasts at least step_ms."""
        self.coordinator()
        for i in range(1, servers + 1):
            self.server(f"ps{i}", memory="64MiB")
        for i in range(1, workers + 1):
            self.worker(f"w{i}", f"--emulate-step-ms={step_ms}", *flags)
        self.attached(workers + servers)

    def stands_still(self, seconds):
        """Freezes all daemons for so long, as on a machine that stalls."""
        for daemon in self.daemons.values():
            daemon.freeze()
        time.sleep(seconds)
        begin = time.monotonic()
        for daemon in self.daemons.values():
            daemon.thaw()
        if time.monotonic() - begin > 1:
            raise Again("the machine stalled while daemons thawed: some were frozen for longer")

    def wait_until(self, what, condition, timeout_s=60, every_s=0.2, slowest_s=0.4):
        # Some conditions run the command line, which takes some hundredths of a second of CPU time.
        return super().wait_until(what, condition, timeout_s, every_s, slowest_s)

    def attached(self, count):
        self.wait_until(f"{count} members to attach", lambda: count == sum(
            member["attached"] for member in self.status()["members"]), LIMIT_S)

    def job_file(self, name="job", **changes):
        """Path of a job file. Changes are section__key=value, None leaves a key out; or section=[{...}, ...]."""
        job = {"model": {"hidden": 32, "layers": 2, "heads": 2},
               "data": {"path": self.text, "sequence_length": 32},
               "inner": {"batch_sequences": 8, "learning_rate": 3e-3},
               # Clipped, so that rounding grows slowly: runs of different layouts are compared. With an
               # outer optimizer that has state.
               "outer": {"steps_per_round": 8, "grace_seconds": 10, "min_islands": 2,
                         "clip_norm": 1.0, "optimizer": "nesterov"},
               "schedule": {"train_tokens": 300_000, "validation_sequences": 16,
                            "checkpoint_every_steps": 4, "snapshot_every_rounds": 4}}
        for key, value in changes.items():
            section, _, field = key.partition("__")
            if field:
                job.setdefault(section, {})[field] = value
            else:
                job[section] = value
        if job["schedule"]["train_tokens"] < ENDLESS_TOKENS:
            job["schedule"]["train_tokens"] *= self.stretch
        path = os.path.join(self.folder, name + ".toml")
        with open(path, "w", encoding="utf-8") as out:
            out.write(f'name = "{name}"\n')
            for section, tables in job.items():
                several = isinstance(tables, list)
                for fields in tables if several else [tables]:
                    out.write(f"[[{section}]]\n" if several else f"[{section}]\n")
                    for field, value in fields.items():
                        if value is not None:
                            out.write(f"{field} = {json.dumps(value)}\n")  # for these, TOML's form too
        return path

    def submits(self, name="job", **changes):
        # What workers find of bad data is tested, too.
        return self.atoll("submit", "--unchecked", self.job_file(name, **changes))[1].strip()

    # ---- what is seen ----
    def call(self, service, method, command, **fields):
        """What the command prints as JSON: by a call to a single coordinator without TLS, else by it."""
        if self.cli_flags not in ([], ["--insecure"]) or "," in self.address:
            return self.json(*command)
        return Monitor.at(self.cli).call(self.address, service, method, fields)

    def job(self, job):
        return self.call("Jobs", "Get", ["show", job], job=job)

    def status(self):
        return self.call("Status", "Get", ["status"])

    def island(self, job, worker):
        """The island of a worker, or None."""
        return next((i for i in self.job(job)["islands"] if i["worker"] == worker), None)

    def member(self, name):
        return next(m for m in self.status()["members"] if m["name"] == name)

    def logs(self, job=""):
        return self.atoll("logs", "--severity=debug", *([job] if job else []))[1]

    def version(self, job):
        return self.job(job)["summary"]["version"]

    def still_trains(self, job):
        seen = self.job(job)["summary"]
        if seen["state"] == "JOB_STATE_DONE":
            raise Again(f"{job} was done too soon: {seen}")

    def meanwhile(self, what, job, condition, limit_s=LIMIT_S, every_s=0.2):
        """Waits for a condition while the job trains."""
        def there():
            value = condition()
            if not value:
                self.still_trains(job)
            return value
        return self.wait_until(what, there, limit_s, every_s)

    def reaches(self, job, version):
        """Waits for a committed version, and returns the job."""
        def there():
            seen = self.job(job)
            ended = seen["summary"]["state"] in ("JOB_STATE_FAILED", "JOB_STATE_CANCELLED")
            check(not ended, f"{job} ended: {seen['summary']['reason']}")
            if seen["summary"]["version"] >= version:
                return seen
            if seen["summary"]["state"] == "JOB_STATE_DONE":
                raise Again(f"{job} was done before version {version}: {seen['summary']}")
            return None
        return self.wait_until(f"{job} to reach version {version}", there, LIMIT_S, every_s=0.05)

    def state(self, job, state):
        """Waits for the job's state, and returns the job."""
        wanted = "JOB_STATE_" + state.upper()

        def there():
            seen = self.job(job)
            if seen["summary"]["state"] == wanted:
                return seen
            ended = seen["summary"]["state"] in ("JOB_STATE_FAILED", "JOB_STATE_CANCELLED",
                                                 "JOB_STATE_DONE")
            check(not ended, f"{job} is {seen['summary']['state']}: {seen['summary']['reason']}")
            return None
        return self.wait_until(f"{job} to be {state}", there, 2 * LIMIT_S * self.stretch)

    def finishes(self, job, decisions_before=()):
        """Waits for the job's end and checks that nothing was lost and nothing counted twice."""
        done = self.state(job, "done")
        summary, ledger, decisions = done["summary"], done["ledger"], done["decisions"]
        budget = summary["tokens_budget"]
        length = done["spec"]["data"]["sequence_length"]
        check(summary["tokens_committed"] == budget, f"committed tokens differ: {summary}")
        check(ledger["committed"] == ledger["budget"] == budget // length,
              f"the ledger is not used up: {ledger}")
        check(ledger["pushed"] == ledger["leased"] == ledger["free"] == 0, f"left over: {ledger}")
        check(sum(i["tokens_committed"] for i in done["islands"]) == budget,
              "the islands' tokens are not the job's")
        versions = [d["version"] for d in decisions if d["version"] >= 0]
        check(versions == list(range(summary["version"] + 1)), f"versions with gaps: {versions}")
        check(sum(d["tokens"] for d in decisions) == budget, "decided tokens are not the job's")
        check(decided_twice(decisions) == [], f"decided twice: {decided_twice(decisions)}")
        check(decisions[:len(decisions_before)] == list(decisions_before),
              "decisions made before the fault have changed")
        return done


# ------------------------------------------------------------------------------------- runner ----

CASES = []


def case(function):
    """Marks a case. Its docstring is its name."""
    CASES.append(function)
    return function


# Repeated lines of logs: only the last ones are printed.
ROUNDS = (" is committed: ", " is decided: ", " validation loss ", " training", " version ",
          " chunks ", " saturated:", "a step is recorded")
# Always printed: plans with their reasons, lost members, findings.
IMPORTANT = (": plan ", " keeps plan ", " no new plan ", " is lost", " is unavailable", " evicted", " joined",
        "than measured", "measured: ", "setting up", "state of ")
IMPORTANT_MOST, OTHERS_MOST, LAST = 60, 24, 4


def summarize_log(lines):
    important = [i for i, line in enumerate(lines) if any(word in line for word in IMPORTANT)]
    others = [i for i, line in enumerate(lines) if not any(word in line for word in ROUNDS)]
    selected = {*important[-IMPORTANT_MOST:], *others[-OTHERS_MOST:], *range(len(lines))[-LAST:]}
    return "".join(lines[i] for i in sorted(selected))


def print_logs(folder):
    """What all logs say that may explain a failure, and how busy the machine is."""
    print(f"load of the machine's {os.cpu_count()} cores in the last 1, 5 and 15 min: "
          f"{' '.join(f'{load:.1f}' for load in os.getloadavg())}")
    for name in sorted(os.listdir(folder)):
        if name.endswith(".log"):
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as log:
                print(f"---- {name}\n{summarize_log(log.readlines())}")


def run_once(function, folder, stretch):
    """('passed' | 'skipped' | 'failed' | 'again', explanation)"""
    try:
        with Fixture(folder, stretch) as fixture:
            function(fixture)
        return "passed", ""
    except Skip as reason:
        return "skipped", str(reason)
    except Again as error:
        print_logs(folder)
        return "again", str(error)
    except Exception as error:  # whatever it is, the other cases run
        if not isinstance(error, (AssertionError, ClusterError)):
            traceback.print_exc()
        print_logs(folder)
        return "failed", f"{type(error).__name__}: {error}"


def run_case(function, folder):
    """('passed' | 'skipped' | 'failed', explanation)"""
    for stretch in STRETCHES:
        outcome, why = run_once(function, f"{folder}-{stretch}" if stretch > 1 else folder, stretch)
        if outcome != "again":
            return outcome, why
        print(f"{why}; its jobs were {stretch} times as long as it says", flush=True)
    return "failed", why


def make_xml(suite, results):
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f"<testsuites><testsuite name={quoteattr(suite)}>"]
    for name, seconds, outcome, why in results:
        lines.append(f'<testcase name={quoteattr(name)} time="{seconds:.2f}">')
        if outcome != "passed":
            tag = "skipped" if outcome == "skipped" else "failure"
            lines.append(f"<{tag} message={quoteattr(why)}/>")
        lines.append("</testcase>")
    return "\n".join(lines + ["</testsuite></testsuites>", ""])


def select_shard(cases):
    """Every n-th of the cases, where Bazel runs this test in n parts (shard_count) at a time."""
    if "TEST_SHARD_STATUS_FILE" not in os.environ:
        return cases
    with open(os.environ["TEST_SHARD_STATUS_FILE"], "w", encoding="utf-8"):
        pass  # that it exists says that this test knows of its parts
    return cases[int(os.environ["TEST_SHARD_INDEX"])::int(os.environ["TEST_TOTAL_SHARDS"])]


def main(suite):
    """Runs the cases, or those whose name contains the command line's argument; after a "-", all others."""
    pattern = sys.argv[1] if len(sys.argv) > 1 else ""
    others = pattern.startswith("-")
    chosen = select_shard([c for c in CASES if (pattern.lstrip("-") in c.__doc__ + c.__name__) != others])
    root = tempfile.mkdtemp(prefix="atoll-e2e-", dir=os.environ.get("TEST_TMPDIR"))
    # Daemons keep what they derive of data beside the test, wherever this one runs.
    os.environ.setdefault("ATOLL_DATA_CACHE", os.path.join(root, "cache"))
    results = []
    for function in chosen:
        name = " ".join(function.__doc__.split())
        begin = time.monotonic()
        outcome, why = run_case(function, os.path.join(root, function.__name__))
        results.append((name, time.monotonic() - begin, outcome, why))
        print(f"{outcome:8}{results[-1][1]:6.1f} s  {name}" + (f": {why}" if why else ""), flush=True)
    failed = [r for r in results if r[2] == "failed"]
    if "XML_OUTPUT_FILE" in os.environ:
        with open(os.environ["XML_OUTPUT_FILE"], "w", encoding="utf-8") as out:
            out.write(make_xml(suite, results))
    if failed:
        print(f"what the daemons left: {root}")
    else:
        shutil.rmtree(root, ignore_errors=True)
    sys.exit(1 if failed or not results else 0)
