#!/usr/bin/env python3
"""Lines and branches of the pure cores that their tests run, by gcov: `./dev coverage [FOLDER...] [--missing]`.

Builds the tests with the folders' libraries instrumented (and nothing else compiled anew), runs them, and prints a
line for each folder; with --missing, also the lines of each file that no test runs. Exits with 1 where a folder has less than LINES_MIN.
Branches of exceptions are not counted: the code throws none.
"""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

LINES_MIN = 95.0
# The tests that run a core, besides those in its folder.
SHARED = ["//tests/sim:sim_test", "//tests/scenarios/..."]
TESTS = {
    "coordinator/core": SHARED,
    "coordinator/planner": ["//coordinator/planning/...", "//coordinator/plan_io/..."],
    "coordinator/simulator": ["//coordinator/planner/...", "//coordinator/planning/..."],
    "coordinator/planning": ["//coordinator/plan_io/..."],
    "paramserver/core": SHARED,
    "worker/core": SHARED,
}
BAZEL = os.environ.get("BAZEL", "bazel")


def bazel(*arguments):
    return subprocess.run([BAZEL, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def list_tests(folders):
    patterns = sorted({f"//{folder}/..." for folder in folders} | {test for folder in folders for test in TESTS[folder]})
    wanted = f"tests({' + '.join(patterns)})"
    left_out = f"attr(tags, '\\bslow\\b', {wanted}) + kind(py_test, {wanted})"
    return bazel("query", f"{wanted} except ({left_out})").split()


def build(folders, tests):
    # Outside of a sandbox and its cache the compiler's notes (.gcno) stay beside the objects.
    flags = ["--disk_cache=", "--linkopt=--coverage"]
    for folder in folders:
        flags += [f"--per_file_copt=//{folder}[:/].*[.]cc$,-.*_test[.]cc$,-.*/testing/.*@--coverage,-O0",
                  f"--strategy_regexp=Compiling {folder}/.*=local"]
    bazel("build", *flags, *tests)


def run(tests, counts):
    """Runs the tests; their counts lie below `counts`, by the objects' paths."""
    failed = []
    for test in tests:
        path = ".bz/bin/" + test[2:].replace(":", "/")
        environment = dict(os.environ, GCOV_PREFIX=counts, TEST_TMPDIR=tempfile.mkdtemp(dir=counts))
        done = subprocess.run([os.path.abspath(path)], cwd=path + ".runfiles/atoll", env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            failed.append(test)
            print(done.stdout[-2000:], file=sys.stderr)
    return failed


def read_gcov(notes, counts_file, folder):
    """gcov's reports of one object: the paths and lines of its sources."""
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copy(notes, os.path.join(scratch, "unit.gcno"))
        if counts_file:
            shutil.copy(counts_file, os.path.join(scratch, "unit.gcda"))
        done = subprocess.run(["gcov", "--json-format", "--stdout", "--branch-probabilities", "unit.gcno"], cwd=scratch,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    for line in done.stdout.splitlines():
        for file in json.loads(line)["files"]:
            if file["file"].startswith(folder + "/") and not file["file"].endswith("_test.cc"):
                yield file["file"], file["lines"]


class Counts:
    """How often each line and branch of a folder's sources ran: the most of any object that has it."""

    def __init__(self):
        self.lines, self.branches = {}, {}

    def add(self, path, lines):
        for line in lines:
            at = (path, line["line_number"])
            self.lines[at] = max(self.lines.get(at, 0), line["count"])
            for number, branch in enumerate(b for b in line["branches"] if not b["throw"]):
                self.branches[at + (number,)] = max(self.branches.get(at + (number,), 0), branch["count"])

    def missing(self):
        files = {}
        for (path, number), count in sorted(self.lines.items()):
            if count == 0:
                files.setdefault(path, []).append(number)
        return files


def percent(counts):
    return 100 * sum(count > 0 for count in counts.values()) / max(1, len(counts))


def main():
    folders = [argument for argument in sys.argv[1:] if not argument.startswith("-")] or sorted(TESTS)
    unknown = [folder for folder in folders if folder not in TESTS]
    if unknown:
        sys.exit(f"./dev coverage: {unknown[0]} is no pure core; they are {', '.join(sorted(TESTS))}")
    low = False
    with tempfile.TemporaryDirectory(prefix="coverage-") as counts_root:
        tests = list_tests(folders)
        build(folders, tests)
        failed = run(tests, counts_root)
        counts_files = {path.split("/bazel-out/")[1]: path
                        for path in glob.glob(counts_root + "/**/*.gcda", recursive=True)}
        output = os.path.realpath(".bz/out")
        for folder in folders:
            counts = Counts()
            for notes in glob.glob(f".bz/bin/{folder}/**/*.gcno", recursive=True):
                name = os.path.relpath(os.path.realpath(notes), output)[:-len("gcno")] + "gcda"
                for path, lines in read_gcov(notes, counts_files.get(name), folder):
                    counts.add(path, lines)
            lines, branches = percent(counts.lines), percent(counts.branches)
            low = low or lines < LINES_MIN
            print(f"{folder:24} lines {lines:5.1f}% of {len(counts.lines):5}   "
                  f"branches {branches:5.1f}% of {len(counts.branches):5}")
            if "--missing" in sys.argv[1:]:
                for path, numbers in counts.missing().items():
                    print(f"  {path}: {', '.join(map(str, numbers))}")
    for test in failed:
        print(f"FAILED  {test}")
    return 1 if low or failed else 0


if __name__ == "__main__":
    sys.exit(main())
