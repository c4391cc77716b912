#!/usr/bin/env python3
"""Runs `bazel test` on the given targets (default //...) and closes with 'N passed, N failed'.

Without targets, those tagged "slow" are left out unless `--all` is given, and so is what only benchmarks,
fuzzing and slow tests need. The ten slowest targets are listed before
the count. Every Catch2 case counts as one test, any other target as one. A target that did not pass counts
as at least one failure, whatever went wrong: it did not build, crashed, or ran out of time. A
case counts as skipped when its log says so (see tests/README.md). Cached results are not used.

With `--stress` every test runs three times beside eight busy processes, once all are built; the count is of
all runs.
"""
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import urllib.parse
import xml.etree.ElementTree as ET

BAZEL = os.environ.get("BAZEL", "bazel")
BUSY_PROCESSES, STRESS_RUNS = 8, 3
# Ends with its parent, however that ends.
BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(10_000_000):
        pass
"""


@contextlib.contextmanager
def busy_machine():
    """Has all cores busy with other processes meanwhile."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(BUSY_PROCESSES)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def run_bazel(arguments):
    """Returns Bazel's exit code and the build events it recorded."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "events.json")
        command = [BAZEL, "test", "--keep_going", "--nocache_test_results",
                   # Tests of real daemons mostly wait: run more at a time than there are cores.
                   "--local_cpu_resources=HOST_CPUS*2", "--jobs=HOST_CPUS*2",
                   "--build_event_json_file=" + path] + arguments
        code = subprocess.run(command, check=False).returncode
        if not os.path.exists(path):
            return code, []
        with open(path, encoding="utf-8") as lines:
            return code, [json.loads(line) for line in lines]


class Outcome:
    def __init__(self, with_slow):
        self.with_slow = with_slow
        self.status, self.reports, self.incompatible = {}, {}, set()
        self.seconds = {}

    def add(self, event):
        ident = event.get("id", {})
        if "testSummary" in ident:
            label = ident["testSummary"]["label"]
            self.status[label] = event.get("testSummary", {}).get("overallStatus", "NO_STATUS")
        elif "targetConfigured" in ident and event.get("configured", {}).get("testSize"):
            if self.with_slow or "slow" not in event["configured"].get("tag", []):
                self.status.setdefault(ident["targetConfigured"]["label"], "NOT RUN")
        elif "targetCompleted" in ident and event.get("aborted", {}).get("reason") == "SKIPPED":
            self.incompatible.add(ident["targetCompleted"]["label"])
        elif "testResult" in ident:
            label = ident["testResult"]["label"]
            milliseconds = int(event.get("testResult", {}).get("testAttemptDurationMillis", 0))
            self.seconds[label] = self.seconds.get(label, 0) + milliseconds / 1000
            for output in event.get("testResult", {}).get("testActionOutput", []):
                if output["name"] == "test.xml" and output.get("uri", "").startswith("file://"):
                    path = urllib.parse.unquote(output["uri"][len("file://"):])
                    self.reports.setdefault(label, []).append(path)

    def count_cases(self, label):
        passed = failed = skipped = 0
        for path in self.reports.get(label, []):
            try:
                cases = list(ET.parse(path).iter("testcase"))
            except (ET.ParseError, OSError):
                continue
            for case in cases:
                if case.find("failure") is not None or case.find("error") is not None:
                    failed += 1
                elif case.find("skipped") is not None:
                    skipped += 1
                else:
                    passed += 1
        return passed, failed, skipped


def main():
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--all", "--stress")]
    with_slow = True
    if all(argument.startswith("-") for argument in arguments):
        with_slow = "--all" in sys.argv[1:]
        arguments += ["//..."] if with_slow else ["--test_tag_filters=-slow", "--build_tests_only", "//..."]
    with contextlib.ExitStack() as stack:
        if "--stress" in sys.argv[1:]:
            # What does not build is reported by the run of the tests.
            subprocess.run([BAZEL, "build", "--keep_going"] + arguments, check=False)
            stack.enter_context(busy_machine())
            arguments = [f"--runs_per_test={STRESS_RUNS}"] + arguments
        code, events = run_bazel(arguments)
    outcome = Outcome(with_slow)
    for event in events:
        outcome.add(event)
    passed = failed = skipped = 0
    for label, status in sorted(outcome.status.items()):
        if label in outcome.incompatible:
            print(f"SKIPPED (needs another configuration)  {label}")
            skipped += 1
            continue
        good, bad, left_out = outcome.count_cases(label)
        if status in ("PASSED", "FLAKY"):
            if good + bad + left_out == 0:
                good = 1
        elif bad == 0:
            bad = 1
        if status != "PASSED":
            print(f"{status:18}{label}")
        if left_out:
            print(f"SKIPPED {left_out} case(s)  {label}")
        passed, failed, skipped = passed + good, failed + bad, skipped + left_out
    slowest = sorted(outcome.seconds.items(), key=lambda entry: -entry[1])[:10]
    if len(slowest) > 1:
        print("the slowest targets:")
    for label, seconds in slowest if len(slowest) > 1 else []:
        print(f"{seconds:8.1f} s  {label}")
    if code != 0 and failed == 0:  # for example a BUILD file that does not load
        failed = 1
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return code or (1 if failed or not passed else 0)


if __name__ == "__main__":
    sys.exit(main())
