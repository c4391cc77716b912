#!/usr/bin/env python3
"""Checks what a compiler does not: format, lengths, folder rules, and documents (lint_docs.py).

The folder rules restate the architecture (README.md, "Folders"): who may include whom, and that
cores stay free of clocks, threads, input and output. Prints one line per finding.
"""
import collections
import hashlib
import os
import re
import subprocess
import sys

import lint_assertions
import lint_commands
import lint_docs
import lint_limits
import lint_names
import lint_size
import lint_words
import metrics_reference

MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 70
MAX_MAIN_LINES = 80
MAX_SOURCES = 21  # of a folder, without its tests
FORMATTED = ".dev/formatted"
SUFFIXES = (".cc", ".h", ".cu", ".cuh")

# A quoted include that begins with none of these is a library's or the compiler's.
PROJECT = ("proto/", "common/", "kernels/", "coordinator/", "paramserver/", "worker/", "cli/",
           "deploy/", "tests/", "bench/", "third_party/")

# A file under the first path may include project headers under these paths only.
MAY_INCLUDE = [
    ("proto/", ["proto/"]),
    ("common/", ["common/", "proto/"]),
    ("kernels/", ["common/", "kernels/"]),
    ("coordinator/planner/", ["common/", "coordinator/planner/", "coordinator/simulator/"]),
    ("coordinator/simulator/", ["common/", "coordinator/simulator/"]),
    ("coordinator/plan_io/", ["common/", "proto/", "coordinator/plan_io/", "coordinator/planner/",
                              "coordinator/simulator/"]),
    ("coordinator/planning/", ["common/", "coordinator/plan_io/", "coordinator/planner/",
                               "coordinator/planning/", "coordinator/simulator/"]),
    ("coordinator/measurements/", ["common/", "proto/", "coordinator/core/",
                                   "coordinator/measurements/", "coordinator/planner/",
                                   "coordinator/planning/"]),
    ("coordinator/", ["common/", "proto/", "coordinator/"]),
    ("paramserver/", ["common/", "proto/", "kernels/", "paramserver/"]),
    ("worker/", ["common/", "proto/", "kernels/", "worker/"]),
]

# Cores take time and randomness as arguments and hand back actions.
CORES = ("coordinator/core/", "paramserver/core/", "worker/core/", "coordinator/planner/",
         "coordinator/simulator/", "coordinator/planning/", "coordinator/measurements/")
# Shared with the network thread, which asks before it takes memory: its mutex is its contract.
SHARED_WITH_SHELL = ()
# Tables that are looked up and never walked: their order shows nowhere.
HASHED = ("coordinator/core/job_table.h",)
IMPURE = re.compile(r"#include <(thread|mutex|condition_variable|fstream|iostream|unistd\.h|"
                    r"grpc|grpcpp|zmq|sqlite3)|system_clock|steady_clock|absl::Now|random_device|"
                    r"getenv|std::rand\b|unordered_map<|flat_hash_map<")


def files():
    listed = subprocess.run(["git", "ls-files"], check=True, stdout=subprocess.PIPE, text=True)
    return [f for f in listed.stdout.splitlines() if f.endswith(SUFFIXES)]


def check_includes(path, number, line):
    match = re.match(r'#include "([^"]+)"', line)
    if not match or path.startswith(("tests/", "bench/")):
        return
    if match[1].startswith("tests/catch/") and lint_limits.CPP.search(path):
        return
    for folder, allowed in MAY_INCLUDE:
        if path.startswith(folder):
            if match[1].startswith(PROJECT) and not match[1].startswith(tuple(allowed)) \
                    and not path.endswith("_test.cc"):
                yield f"{path}:{number}: {folder} may not include {match[1]}"
            return


def check_rooms(paths):
    """No two folders of the worker include each other."""
    seen = {}
    for path in paths:
        room = re.match(r"worker/(\w+)/", path)
        if not room or path.endswith("_test.cc") or "/testing/" in path:
            continue
        with open(path, encoding="utf-8") as source:
            for other in re.findall(r'^#include "worker/(\w+)/', source.read(), re.M):
                if other != room[1]:
                    seen.setdefault((room[1], other), path)
    for (room, other), path in sorted(seen.items()):
        if room < other and (other, room) in seen:
            yield f"{path}: includes worker/{other}, and {seen[other, room]} worker/{room}"


def check_functions(path, lines):
    """Formatted code begins a function at column 0 and ends it with a lone brace there."""
    begin = None
    for number, line in enumerate(lines, 1):
        if line == "}" and begin is not None:
            if number - begin >= MAX_FUNCTION_LINES:
                yield (f"{path}:{begin}: a function of {number - begin + 1} lines, "
                       f"at most {MAX_FUNCTION_LINES}")
            begin = None
        elif re.match(r"(namespace|extern)\b.*\{$", line):
            begin = None
        elif re.match(r"[A-Za-z_\[:]", line) and not line.endswith((";", ":")):
            begin = number


def check_file(path):
    with open(path, encoding="utf-8") as source:
        lines = source.read().splitlines()
    if len(lines) > MAX_FILE_LINES:
        yield f"{path}: {len(lines)} lines, at most {MAX_FILE_LINES}"
    is_main = path.endswith("/main.cc") and not path.startswith("bench/")
    if is_main and len(lines) > MAX_MAIN_LINES:
        yield f"{path}: {len(lines)} lines; main.cc has at most {MAX_MAIN_LINES}"
    yield from check_functions(path, lines)
    pure = path.startswith(CORES) and not path.endswith("_test.cc") \
        and path not in SHARED_WITH_SHELL
    for number, line in enumerate(lines, 1):
        yield from check_includes(path, number, line)
        if pure and IMPURE.search(line) and not (path in HASHED and "unordered_map" in line):
            yield f"{path}:{number}: a core is pure: {line.strip()}"


def check_folders(paths):
    sources = collections.Counter(os.path.dirname(path) for path in paths
                                  if path.endswith((".cc", ".cu")) and not path.endswith("_test.cc"))
    for folder, count in sorted(sources.items()):
        if count > MAX_SOURCES:
            yield f"{folder}: {count} sources, at most {MAX_SOURCES}"


def check_format(paths):
    """Files that were found formatted are not looked at again until they change."""
    with open(".clang-format", "rb") as style:
        rules = hashlib.sha256(style.read())
    seen, digests = set(), {}
    if os.path.exists(FORMATTED):
        with open(FORMATTED, encoding="ascii") as file:
            seen = set(file.read().split())
    for path in paths:
        with open(path, "rb") as file:
            digest = rules.copy()
            digest.update(file.read())
            digests[path] = digest.hexdigest()
    unseen = [path for path in paths if digests[path] not in seen]
    found = []
    if unseen:
        result = subprocess.run(["clang-format", "--dry-run", "-Werror"] + unseen, stderr=subprocess.PIPE,
                                text=True, check=False)
        found = [line for line in result.stderr.splitlines() if "error:" in line]
    yield from (line.replace("error: code should be clang-formatted", "not formatted") for line in found)
    if not found:
        os.makedirs(os.path.dirname(FORMATTED), exist_ok=True)
        with open(FORMATTED, "w", encoding="ascii") as file:
            file.write("\n".join(sorted(digests.values())))


def check_planted():
    done = subprocess.run(["python3", "tests/fuzz/run.py", "--check-planted"], stderr=subprocess.PIPE,
                          text=True, check=False)
    yield from done.stderr.splitlines()


def check_openapi():
    done = subprocess.run([".ci/openapi_reference.py", "--check"], stdout=subprocess.PIPE, text=True, check=True)
    yield from filter(None, done.stdout.splitlines())


def main():
    paths = files()
    findings = [finding for path in paths for finding in check_file(path)]
    findings += list(check_folders(paths))
    findings += list(check_rooms(paths))
    findings += list(lint_names.check(paths))
    findings += list(check_format(paths))
    findings += list(lint_docs.check())
    findings += list(lint_assertions.check())
    findings += list(lint_commands.check())
    findings += list(lint_limits.check())
    findings += list(lint_words.check())
    findings += list(lint_size.check())
    findings += list(metrics_reference.check())
    findings += list(check_openapi())
    findings += list(check_planted())
    print("\n".join(findings) if findings else f"lint: {len(paths)} files, nothing to say")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
