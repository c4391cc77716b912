#!/usr/bin/env python3
"""`./dev fuzz`: every decoder under libFuzzer with the address and undefined-behaviour sanitizers.

Prints executions and coverage of each and ends with 0 where nothing crashed. With --planted a bug is
put into each decoder, in a copy of the tree; it then ends with 0 where every one of them was found.
Inputs that were of use stay in .dev/fuzz/corpus and are where the next run begins. Only the programs of
the named decoders are built. A run that was cut off goes on with --resume, which keeps the results of
decoders that had their time in the same program; it also keeps a finding.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time

from planted import PLANTED

FILES = ["client_decoders", "control_decoders", "data_decoders", "file_decoders", "model_decoders", "planning_decoders",
         "service_decoders", "state_decoders", "store_decoders", "text_decoders", "wire_decoders"]
CORES = "cores"  # not decoders: messages to whole cores
DAEMONS = "daemons"  # and to real daemons
HERE = os.path.dirname(os.path.abspath(__file__))
STATE = os.path.abspath(".dev/fuzz")
BAZEL = os.environ.get("BAZEL", "bazel")
# A decoder that takes so much memory, or so long, for 64 KiB has crashed, too.
LIMITS = ["-max_len=65536", "-rss_limit_mb=1024", "-malloc_limit_mb=256", "-timeout=10"]


def decoders():
    """Decoder: the name of the file that registers it."""
    found = {}
    for name in FILES:
        with open(os.path.join(HERE, name + ".cc"), encoding="utf-8") as source:
            found.update(dict.fromkeys(re.findall(r'^const Registration \w+\(\{"(\w+)"', source.read(), re.M),
                                       name))
    return found


def stale_plants():
    """What is wrong with planted.py, a line each."""
    wrong = [f"{name} is not both a decoder and planted" for name in sorted(set(PLANTED) ^ set(decoders()))]
    for decoder, (file, there, _) in PLANTED.items():
        with open(os.path.join(HERE, "../..", file), encoding="utf-8") as source:
            count = source.read().count(there)
        if count != 1:
            wrong.append(f"{decoder}: {file} has the text {count} times, not once")
    return wrong


def build(folder, name, files, cores=False):
    """Builds these programs of the tree in `folder`; returns where each is."""
    programs = ["fuzz_" + file for file in files] + ["cores:run"] * cores
    base = os.path.join(STATE, "bazel-" + name)
    command = [BAZEL, "--output_base=" + base, "build", "--config=fuzz", "--keep_going", "--symlink_prefix=/",
               "--disk_cache=" + os.path.join(STATE, "cache")]
    targets = ["//tests/fuzz" + ("/" if ":" in program else ":") + program for program in programs]
    subprocess.run(command + targets, cwd=folder, check=True)
    where = subprocess.run([BAZEL, "--output_base=" + base, "info", "--config=fuzz", "bazel-bin"], cwd=folder,
                           check=True, capture_output=True, text=True).stdout.strip()
    subprocess.run([BAZEL, "--output_base=" + base, "shutdown"], cwd=folder, check=True)
    built = {file: os.path.join(where, "tests/fuzz", "fuzz_" + file) for file in files}
    return {**built, CORES: os.path.join(where, "tests/fuzz/cores/run")} if cores else built


def tree_with_bugs():
    """A copy of the tracked files with every planted bug."""
    copy = os.path.join(STATE, "planted")
    shutil.rmtree(copy, ignore_errors=True)
    files = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], check=True,
                           capture_output=True, text=True).stdout.split("\0")
    for file in filter(os.path.isfile, files):
        os.makedirs(os.path.dirname(os.path.join(copy, file)), exist_ok=True)
        shutil.copy2(file, os.path.join(copy, file))
    for file, there, instead in PLANTED.values():
        path = os.path.join(copy, file)
        with open(path, encoding="utf-8") as source:
            text = source.read()
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


class Results:
    """What decoders have shown so far, on the disk after each: a later run goes on from there."""

    def __init__(self, folder, keep):
        self.path = os.path.join(folder, "results.json")
        self.found = {}
        if keep and os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as file:
                self.found = json.load(file)

    def done(self, decoder, program, seconds):
        """The decoder's result in this very program, if it had its time or a finding; else None."""
        known = self.found.get(decoder)
        had = known and known["program"] == program and (known["crashed"] or known["requested_s"] >= seconds)
        return known if had else None

    def add(self, decoder, result):
        self.found[decoder] = result
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            json.dump(self.found, file, indent=1, sort_keys=True)
        os.replace(self.path + ".new", self.path)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def run_all(chosen, programs, folder, arguments):
    """Runs the decoders, as many at a time as there are cores; returns how many were not as they should be."""
    results = Results(folder, arguments.resume)
    where, wrong = decoders(), 0
    digests = {file: digest(program) for file, program in programs.items()}

    def find_result(name):
        known = results.done(name, digests[where[name]], arguments.seconds)
        if known:
            return known
        crashed, executions, coverage, seconds, finding = fuzz(programs[where[name]], name, folder,
                                                               arguments.seconds)
        return {"program": digests[where[name]], "requested_s": arguments.seconds, "crashed": crashed,
                "executions": executions, "coverage": coverage, "seconds": seconds, "finding": finding}

    print(f"{'decoder':<20}{'executions':>12}{'coverage':>10}{'seconds':>9}  result", flush=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, found in zip(chosen, pool.map(find_result, chosen)):
            results.add(name, found)
            wrong += found["crashed"] != arguments.planted
            text = ("found: " if arguments.planted else "CRASHED: ") + found["finding"] if found["crashed"] else (
                "NOT FOUND" if arguments.planted else "no crash")
            print(f"{name:<20}{found['executions']:>12,}{found['coverage']:>10,}{found['seconds']:>9.1f}  "
                  f"{text[:150]}", flush=True)
    return wrong


def run_cores(program):
    """Extreme messages against each whole core; returns how many did not survive them."""
    wrong = 0
    for core in ("coordinator", "paramserver", "worker"):
        wrong += subprocess.run([program, "--core=" + core], check=False).returncode != 0
    return wrong


def run_daemons():
    """The same to each of real daemons, built as they are used; returns how many runs failed."""
    command = [BAZEL, "test", "//tests/fuzz/daemons:daemons_test", "--test_env=ATOLL_EXTREME_MESSAGES=100000",
               "--test_output=all", "--cache_test_results=no", "--test_timeout=14400"]
    return subprocess.run(command, check=False).returncode != 0


def main():
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("decoders", nargs="*", help="only these, or those of a file: " + ", ".join([*FILES, CORES, DAEMONS]))
    parser.add_argument("--seconds", type=int, default=60, help="for each decoder (60)")
    parser.add_argument("--planted", action="store_true", help="with a bug in each decoder, which must be found")
    parser.add_argument("--resume", action="store_true", help="keep the results of a run that was cut off")
    parser.add_argument("--check-planted", action="store_true", help="only that planted.py fits the sources")
    arguments = parser.parse_args()
    stale = stale_plants()
    if stale:
        sys.exit("tests/fuzz/planted.py: " + "; ".join(stale))
    if arguments.check_planted:
        return 0
    where = decoders()
    chosen = sorted(name for name, file in where.items()
                    if not arguments.decoders or {name, file} & set(arguments.decoders))
    cores = not arguments.planted and (not arguments.decoders or CORES in arguments.decoders)
    daemons = not arguments.planted and (not arguments.decoders or DAEMONS in arguments.decoders)
    if daemons and run_daemons():
        return 1
    if arguments.decoders == [DAEMONS]:
        return 0
    unknown = set(arguments.decoders) - set(where) - set(FILES) - {CORES, DAEMONS}
    if unknown:
        sys.exit(f"no decoder {', '.join(sorted(unknown))}; there are {', '.join(sorted(where))}")
    folder = STATE if not arguments.planted else os.path.join(STATE, "of-planted")
    if arguments.planted and not arguments.resume:
        shutil.rmtree(folder, ignore_errors=True)  # nothing is known from other runs
    files = sorted({where[name] for name in chosen})
    programs = build(tree_with_bugs() if arguments.planted else os.getcwd(),
                     "planted" if arguments.planted else "plain", files, cores)
    if cores and run_cores(programs.pop(CORES)):
        return 1
    for program in programs.values():
        subprocess.run([program, "--seeds=" + os.path.join(folder, "seeds")], check=True)
    wrong = run_all(chosen, programs, folder, arguments)
    if arguments.planted:
        print(f"{len(chosen) - wrong} of {len(chosen)} planted bugs found")
    else:
        print(f"crashes: {wrong} of {len(chosen)} decoders; inputs and logs in {os.path.relpath(folder)}/")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
