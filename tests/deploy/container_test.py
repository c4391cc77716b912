#!/usr/bin/python3
"""What deploy/container says is true: its flags exist, its packages bring the programs' libraries."""
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../..")
sys.path.insert(0, os.path.join(HERE, "../e2e"))
from fixture import case, check, main  # noqa: E402

PROGRAMS = ["cli/atoll", "coordinator/atoll-coordinator", "paramserver/atoll-paramserver",
            "worker/atoll-worker"]


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def lines(*command):
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return result.stdout.splitlines()


def packages_with_dependencies(names):
    """All packages that installing these installs, of alternatives the first that is there."""
    depends = {}
    for line in lines("dpkg-query", "-W", "-f=${Package}\t${Pre-Depends}, ${Depends}\n"):
        name, wanted = line.split("\t")
        depends[name] = [[re.split(r"[ :(]", choice.strip())[0] for choice in one.split("|")]
                         for one in wanted.split(",") if one.strip()]
    found, left = set(), list(names)
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        left += [next(c for c in choices if c in depends)
                 for choices in depends[name] if any(c in depends for c in choices)]
    return found


def library_files(program):
    for line in lines("ldd", os.path.join(ROOT, program)):
        check("not found" not in line, f"{program}: {line.strip()}")
        match = re.search(r"=> (/\S+)", line)
        if match:
            yield os.path.realpath(match[1])


def list_packages(files):
    # Where /lib is a link to /usr/lib, dpkg may know a file by either name.
    names = {path: [path, path[len("/usr"):] if path.startswith("/usr/") else "/usr" + path]
             for path in files}
    result = subprocess.run(["dpkg", "-S"] + sum(names.values(), []), stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True, check=False)
    owners = dict(reversed(line.split(": ")) for line in result.stdout.splitlines())
    for path, known in names.items():
        check(any(name in owners for name in known), f"{path} belongs to no Debian package")
    return {owner.split(":")[0] for owner in owners.values()}


@case
def libraries(_):
    """The runtime packages bring every library that the programs need"""
    listed = re.findall(r"^runtime (\S+)$", read("third_party/packages.txt"), re.M)
    brought = packages_with_dependencies(listed)
    needed = list_packages({path for program in PROGRAMS for path in library_files(program)})
    check(len(needed) > 10, f"ldd names the libraries of only {sorted(needed)}")
    check(needed <= brought, f"missing in third_party/packages.txt: {sorted(needed - brought)}")
    for name in listed:  # each is there for a reason
        others = packages_with_dependencies([one for one in listed if one != name])
        check(not needed <= others, f"{name} is not needed in third_party/packages.txt")


@case
def compose(_):
    """Every command in compose.yaml is a daemon's, with flags that it has"""
    commands = [json.loads(line) for line in re.findall(r"^    command: (\[.*\])$",
                                                        read("deploy/container/compose.yaml"), re.M)]
    check({command[0] for command in commands} == {"coordinator", "paramserver", "worker"},
          f"the daemons are {[command[0] for command in commands]}")
    for daemon, *flags in commands:
        text = "\n".join(lines(os.path.join(ROOT, daemon, f"atoll-{daemon}"), "--help"))
        known = set(re.findall(r"(--[a-z-]+)", text))
        for flag in flags:
            check(flag.split("=")[0] in known, f"{daemon} has no flag {flag}")


@case
def quick_start(_):
    """What compose.yaml says to type in the coordinator's container is taken as it stands"""
    text = read("deploy/container/compose.yaml")
    said = re.search(r"exec coordinator \\\n# +(atoll .*)\n", text)[1].split()
    health = json.loads(re.search(r"test: (\[.*?\])", text)[1])[1:]
    address = re.search(r'ATOLL_COORDINATOR: "(.*?)"', text)[1]
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as job:
        job.write("name = 'tiny'\n[model]\nhidden = 64\nlayers = 2\nheads = 4\n"
                  "[data]\npath = 'corpus.txt'\n[schedule]\ntrain_tokens = 1000\n")
        job.flush()
        for command in said, health:
            command = [job.name if word.endswith(".toml") else word for word in command]
            result = subprocess.run([os.path.join(ROOT, "cli/atoll"), *command[1:]],
                                    env={"ATOLL_COORDINATOR": address}, stderr=subprocess.PIPE,
                                    stdout=subprocess.PIPE, text=True, check=False)
            # There is no coordinator; that is all that is wrong.
            check(result.returncode == 1 and address in result.stderr,
                  f"{command}: {result.stderr}")


@case
def image(_):
    """The image has all programs"""
    text = read("deploy/container/Containerfile")
    for program in PROGRAMS:
        check(f".bz/bin/{program}" in text, f"{program} is not installed in the image")


if __name__ == "__main__":
    main("container_test")
