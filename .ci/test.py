#!/usr/bin/env python3
"""Runs `bazel test` on the given targets (default //...) and closes with 'N passed, N failed'.

Every Catch2 case counts as one test, any other target as one. A target that did not pass counts
as at least one failure, whatever went wrong: it did not build, crashed, or ran out of time. A
case counts as skipped when its log says so (see tests/README.md). Cached results are not used.
"""
import json
import os
import subprocess
import sys
import tempfile
import urllib.parse
import xml.etree.ElementTree as ET

BAZEL = os.environ.get("BAZEL", "bazel")


def run_bazel(arguments):
    """Returns Bazel's exit code and the build events it recorded."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "events.json")
        command = [BAZEL, "test", "--keep_going", "--nocache_test_results",
                   "--build_event_json_file=" + path] + arguments
        code = subprocess.run(command, check=False).returncode
        if not os.path.exists(path):
            return code, []
        with open(path, encoding="utf-8") as lines:
            return code, [json.loads(line) for line in lines]


class Outcome:
    def __init__(self):
        self.status, self.reports, self.incompatible = {}, {}, set()

    def add(self, event):
        ident = event.get("id", {})
        if "testSummary" in ident:
            label = ident["testSummary"]["label"]
            self.status[label] = event.get("testSummary", {}).get("overallStatus", "NO_STATUS")
        elif "targetConfigured" in ident and event.get("configured", {}).get("testSize"):
            self.status.setdefault(ident["targetConfigured"]["label"], "NOT RUN")
        elif "targetCompleted" in ident and event.get("aborted", {}).get("reason") == "SKIPPED":
            self.incompatible.add(ident["targetCompleted"]["label"])
        elif "testResult" in ident:
            for output in event.get("testResult", {}).get("testActionOutput", []):
                if output["name"] == "test.xml" and output.get("uri", "").startswith("file://"):
                    path = urllib.parse.unquote(output["uri"][len("file://"):])
                    self.reports.setdefault(ident["testResult"]["label"], []).append(path)

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
    arguments = sys.argv[1:]
    if all(argument.startswith("-") for argument in arguments):
        arguments.append("//...")
    code, events = run_bazel(arguments)
    outcome = Outcome()
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
    if code != 0 and failed == 0:  # for example a BUILD file that does not load
        failed = 1
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return code or (1 if failed or not passed else 0)


if __name__ == "__main__":
    sys.exit(main())
