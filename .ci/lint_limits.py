"""Keeps limits out of tests that a slow machine exceeds: a limit of real time is a minute or more, and ends what hangs."""
import re
import subprocess

SHORTEST_S = 60

CPP = re.compile(r"^tests/.*\.(cc|h)$|_test\.cc$|/testing/.*\.(cc|h)$|"
                 r"fixture\.h$|test_handler\.h$|half_sent\.h$")
PYTHON = re.compile(r"^tests/.*\.py$")

# Only simulated time passes in these.
SIMULATED = ("tests/sim/", "coordinator/core/", "paramserver/core/", "worker/core/")

REAL_TIME = re.compile(r"\b(?:Push|StartPush|Pull|StartPull|Probe|Sample|Join|Await\w*|MeasureLink|OpenLeaderChannel)\(|"
                       r"\bwait_for\(|\bwait_until\(|set_deadline\(|(?:steady|system)_clock::now|\bSteadyNow\(|absl::Now\(")
LIMIT_NAME = re.compile(r"constexpr.*\bk\w*(?:Long|Limit|Patience|Wait|Timeout|Deadline|Stall)\b")
ELAPSED = re.compile(r"(?:SteadyNow\(\)|now\(\)) - \w+\)? (?:<|<=) (?!k[A-Z])")
SECONDS = {"nanoseconds": 1e-9, "microseconds": 1e-6, "milliseconds": 1e-3, "seconds": 1, "minutes": 60, "hours": 3600,
           "Seconds": 1, "Milliseconds": 1e-3, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}
DURATION = re.compile(r"\b(nanoseconds|microseconds|milliseconds|seconds|minutes|hours|Seconds|Milliseconds)"
                      r"(?:\s+k\w+)?[({]([\d'.]+)[)}]|\b(\d[\d']*)(ns|us|ms|s|min|h)\b")
PYTHON_LIMIT = re.compile(r"\b(?:timeout|timeout_s|limit_s|LIMIT_S|DEADLINE_S)\s*=\s*([\d.]+)\b(?!\s*\*)|\.(?:wait|join)\(([\d.]+)\)")

# (path, what the line contains, why it is no limit that a slow machine exceeds)
EXCEPTIONS = [
    ("tests/island/commit_test.cc", "SteadyNow() + 300ms", "time in which nothing may happen"),
    ("worker/island/member/group_calls_test.cc", "milliseconds(1)", "nothing comes that is waited for"),
    ("tests/island/slow_links_test.cc", "deadline > SteadyNow()", "tells waits of a minute from polls"),
    ("tests/cli/cli_test.cc", "wait_for(lock, stop", "the interval of heartbeats"),
    ("common/net/peer/peer_link_test.cc", "<= SteadyNow() - begun", "a part is at most the whole"),
    ("tests/net/shaped_test.py", "limit_s=", "the answers to packets that a cut link loses; of others the best of many"),
    ("common/net/tensor/tensor_link_test.cc", "pulled, 2s", "the server drops it before, or after"),
    ("tests/security/cluster.h", "seconds(10)", "an admitted call without an end ends by it; others end before"),
    ("tests/fuzz/run.py", "-timeout=10", "of libFuzzer, for one input: what takes longer is a finding"),
]


def duration_s(match):
    if match[1]:
        return float(match[2].replace("'", "")) * SECONDS[match[1]]
    return float(match[3].replace("'", "")) * SECONDS[match[4]]


def short_limits(path, line):
    if PYTHON.search(path):
        for match in PYTHON_LIMIT.finditer(line):
            if float(match[1] or match[2]) < SHORTEST_S:
                yield match[0]
        return
    code = line.split("//")[0]
    if ELAPSED.search(code):
        yield code.strip()
    elif "(Duration limit)" not in code and REAL_TIME.search(code) or LIMIT_NAME.search(code):
        for match in DURATION.finditer(code):
            if 0 < duration_s(match) < SHORTEST_S:
                yield match[0]


def check():
    listed = subprocess.run(["git", "ls-files"], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    for path in listed:
        if not CPP.search(path) and not PYTHON.search(path) or path.startswith(SIMULATED):
            continue
        with open(path, encoding="utf-8") as source:
            for number, line in enumerate(source, 1):
                if any(path == where and what in line for where, what, _ in EXCEPTIONS):
                    continue
                for limit in short_limits(path, line):
                    yield (f"{path}:{number}: a slow machine exceeds this limit: {limit}; tests/catch/limits.h has "
                           f"limits that end what hangs, docs/testing.md the rules")


if __name__ == "__main__":
    print("\n".join(check()))
