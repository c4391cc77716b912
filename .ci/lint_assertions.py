"""Checks that tests/fuzz/assertions.md lists what could end a process: each place belongs to the row with the
longest path that it begins with, and a row says how many there are. Tests that the page names exist."""
import re
import subprocess

PAGE = "tests/fuzz/assertions.md"
FOLDERS = ("common", "coordinator", "paramserver", "worker", "cli", "kernels")
TESTS = re.compile(r"_test\.cc$|/testing/|fixture|breaking_proxy|interceptor\.h|test_handler")
PLACE = re.compile(r"\bATOLL_CHECK\(|\.at\(|\.value\(\)|\*[\w.>-]*Find\w*\(")
TEST = re.compile(r"`([a-z_]{25,})`")
ROW = re.compile(r"^\| `([^`]+)` \| (\d+) \|", re.M)


def count():
    """How many places each file has."""
    listed = subprocess.run(["git", "ls-files", *FOLDERS], check=True, stdout=subprocess.PIPE, text=True).stdout
    for path in listed.splitlines():
        if not path.endswith((".cc", ".h", ".cu", ".cuh")) or TESTS.search(path):
            continue
        with open(path, encoding="utf-8") as source:
            yield path, sum(bool(PLACE.search(line.split("//")[0])) for line in source if not line.startswith("#"))


def check():
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    for test in TEST.findall(page):
        if subprocess.run(["git", "grep", "-q", test, "--", "*_test.cc", "*_test.py"], check=False).returncode != 0:
            yield f"{PAGE}: there is no test {test}"
    rows = {path: int(number) for path, number in ROW.findall(page)}
    found = dict.fromkeys(rows, 0)
    for path, number in count():
        row = max((row for row in rows if path.startswith(row)), key=len, default=None)
        if row is not None:
            found[row] += number
        elif number > 0:
            yield f"{path}: {number} places that could end the process are not in {PAGE}"
    for row, number in rows.items():
        if number != found[row]:
            yield (f"{PAGE}: {row} has {found[row]} places and not {number}: say what guarantees a new one, or "
                   "return a status")


if __name__ == "__main__":
    print("\n".join(check()))
