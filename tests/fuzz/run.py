#!/usr/bin/env python3
"""`./dev fuzz`: every decoder under libFuzzer with the address and undefined-behaviour sanitizers.

Prints executions and coverage of each and ends with 0 where nothing crashed. With --planted a bug is
put into each decoder, in a copy of the tree; it then ends with 0 where every one of them was found.
Inputs that were of use stay in .dev/fuzz/corpus and are where the next run begins.
"""
import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import time

from planted import PLANTED

PROGRAMS = ["fuzz_wire_decoders", "fuzz_text_decoders", "fuzz_file_decoders"]
STATE = os.path.abspath(".dev/fuzz")
BAZEL = os.environ.get("BAZEL", "bazel")
# A decoder that takes so much memory, or so long, for 64 KiB has crashed, too.
LIMITS = ["-max_len=65536", "-rss_limit_mb=1024", "-malloc_limit_mb=256", "-timeout=10"]


def build(folder, name):
    """Builds the programs of the tree in `folder`; returns where they are."""
    base = os.path.join(STATE, "bazel-" + name)
    command = [BAZEL, "--output_base=" + base, "build", "--config=fuzz", "--keep_going", "--symlink_prefix=/",
               "--disk_cache=" + os.path.join(STATE, "cache")]
    subprocess.run(command + ["//tests/fuzz:" + program for program in PROGRAMS], cwd=folder, check=True)
    where = subprocess.run([BAZEL, "--output_base=" + base, "info", "--config=fuzz", "bazel-bin"], cwd=folder,
                           check=True, capture_output=True, text=True).stdout.strip()
    subprocess.run([BAZEL, "--output_base=" + base, "shutdown"], cwd=folder, check=True)
    return [os.path.join(where, "tests/fuzz", program) for program in PROGRAMS]


def tree_with_bugs():
    """A copy of the tracked files with every planted bug."""
    copy = os.path.join(STATE, "planted")
    shutil.rmtree(copy, ignore_errors=True)
    files = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], check=True,
                           capture_output=True, text=True).stdout.split("\0")
    for file in filter(os.path.isfile, files):
        os.makedirs(os.path.dirname(os.path.join(copy, file)), exist_ok=True)
        shutil.copy2(file, os.path.join(copy, file))
    for decoder, (file, there, instead) in PLANTED.items():
        path = os.path.join(copy, file)
        with open(path, encoding="utf-8") as source:
            text = source.read()
        if text.count(there) != 1:
            sys.exit(f"tests/fuzz/planted.py: {decoder}: {file} has the text {text.count(there)} times, not once")
        with open(path, "w", encoding="utf-8") as source:
            source.write(text.replace(there, instead))
    return copy


def fuzz(program, decoder, folder, seconds):
    """Runs one decoder; returns (crashed, executions, coverage, seconds, first line of the finding)."""
    corpus = os.path.join(folder, "corpus", decoder)
    crashes = os.path.join(folder, "crashes", decoder, "")
    os.makedirs(corpus, exist_ok=True)
    os.makedirs(crashes, exist_ok=True)
    command = [program, "--decoder=" + decoder, corpus, os.path.join(folder, "seeds", decoder),
               f"-max_total_time={seconds}", "-artifact_prefix=" + crashes, "-print_final_stats=1", *LIMITS]
    begin = time.monotonic()
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    with open(os.path.join(folder, decoder + ".log"), "w", encoding="utf-8") as log:
        log.write(result.stderr)
    executions = re.findall(r"stat::number_of_executed_units:\s*(\d+)", result.stderr)
    executions = executions or re.findall(r"^#(\d+)", result.stderr, re.M) or ["0"]
    coverage = re.findall(r"\bcov: (\d+)", result.stderr) or ["0"]
    finding = re.search(r"^.*(runtime error|ERROR: |CHECK|check failed|terminate called).*$", result.stderr, re.M)
    return (result.returncode != 0, int(executions[-1]), int(coverage[-1]), time.monotonic() - begin,
            finding.group(0).strip() if finding else "")


def main():
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("decoders", nargs="*", help="only these")
    parser.add_argument("--seconds", type=int, default=60, help="for each decoder (60)")
    parser.add_argument("--planted", action="store_true", help="with a bug in each decoder, which must be found")
    arguments = parser.parse_args()
    folder = STATE if not arguments.planted else os.path.join(STATE, "of-planted")
    if arguments.planted:
        shutil.rmtree(folder, ignore_errors=True)  # nothing is known from other runs
    programs = build(tree_with_bugs() if arguments.planted else os.getcwd(),
                     "planted" if arguments.planted else "plain")
    where = {}
    for program in programs:
        listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
        where.update(dict.fromkeys(listed, program))
        subprocess.run([program, "--seeds=" + os.path.join(folder, "seeds")], check=True)
    if set(where) != set(PLANTED):
        sys.exit(f"tests/fuzz/planted.py and the decoders differ: {sorted(set(where) ^ set(PLANTED))}")
    unknown = set(arguments.decoders) - set(where)
    if unknown:
        sys.exit(f"no decoder {', '.join(sorted(unknown))}; there are {', '.join(sorted(where))}")
    chosen = arguments.decoders or sorted(where)
    print(f"{'decoder':<20}{'executions':>12}{'coverage':>10}{'seconds':>9}  result", flush=True)
    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = pool.map(lambda name: fuzz(where[name], name, folder, arguments.seconds), chosen)
        for name, (crashed, executions, coverage, seconds, finding) in zip(chosen, runs):
            wrong += crashed != arguments.planted
            text = ("found: " if arguments.planted else "CRASHED: ") + finding if crashed else (
                "NOT FOUND" if arguments.planted else "no crash")
            print(f"{name:<20}{executions:>12,}{coverage:>10,}{seconds:>9.1f}  {text[:150]}", flush=True)
    if arguments.planted:
        print(f"{len(chosen) - wrong} of {len(chosen)} planted bugs found")
    else:
        print(f"crashes: {wrong} of {len(chosen)} decoders; inputs and logs in {os.path.relpath(folder)}/")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
