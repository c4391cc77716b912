"""Checks what documents say of commands, flags and targets against the sources that declare them.

Also that docs/reference has every command of `atoll` and every flag of the daemons. Flags of other programs: OTHERS.
"""
import glob
import os
import re
import subprocess

OTHERS = {"from-literal", "logdir"}  # of kubectl and TensorBoard
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]+)")
DAEMONS = ("coordinator", "paramserver", "worker")
SHARED_FLAGS = ("common/metrics/metrics_server.h", "common/net/control/tls.h", "common/trust/member_access.h",
                "common/flag_sources.cc", "common/log_flags.cc")
DECLARED = re.compile(r"add_(?:option|flag)\w*(?:<[\w:]*>)?\(\s*\"(?:-\w,)?--([a-z0-9-]+)")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def tracked():
    listed = subprocess.run(["git", "ls-files"], check=True, stdout=subprocess.PIPE, text=True)
    return [path for path in listed.stdout.splitlines() if os.path.isfile(path)]


def flags_of_sources(paths):
    found = set()
    for path in paths:
        if path.endswith((".md", ".json", ".svg")) or path.startswith("dashboard/built/"):
            continue
        try:
            found |= set(FLAG.findall(read(path)))
        except UnicodeDecodeError:
            continue
    return found


def atoll_commands():
    return set(re.findall(r"Add(?:Local|Control)?\(\s*\"([a-z]+)\"", read("cli/command_line.cc")))


def is_target(label):
    folder, name = label[2:].split(":")
    if name in ("all", "..."):
        return os.path.isdir(folder)
    build = os.path.join(folder, "BUILD")
    return os.path.exists(build) and f"\"{name}\"" in read(build)


def check_line(line, flags, commands, dev):
    for flag in FLAG.findall(line):
        if flag not in flags:
            yield f"no program has --{flag}"
    for name in re.findall(r"(?:^|`|\$ |&& |\()atoll ([a-z]+)", line):
        if name not in commands:
            yield f"there is no command atoll {name}"
    for name in re.findall(r"\./dev ([a-z][a-z-]*)", line):
        if name not in dev:
            yield f"there is no command ./dev {name}"
    for name in re.findall(r"\./dev bench ([a-z_]+)", line):
        if name != "all" and not os.path.isdir(os.path.join("bench", name)):
            yield f"there is no benchmark {name}"
    for label in re.findall(r"(?<![\w:])//[a-z_/]+:[a-z_]+", line):
        if not is_target(label):
            yield f"there is no target {label}"


def check_references(commands):
    reference = "docs/reference/commands.md"
    text = read(reference)
    for command in sorted(commands):
        if not re.search(rf"`{command}\b", text):
            yield f"{reference}: atoll {command} is missing"
    reference = "docs/reference/daemons.md"
    text = read(reference)
    for daemon in DAEMONS:
        for path in glob.glob(f"{daemon}/*.cc") + glob.glob(f"{daemon}/*.h") + list(SHARED_FLAGS):
            for flag in DECLARED.findall(read(path)):
                if not re.search(rf"--{flag}\b", text):
                    yield f"{reference}: --{flag} of atoll-{daemon} is missing"


def check():
    paths = tracked()
    flags = flags_of_sources(paths) | OTHERS
    commands = atoll_commands()
    dev = set(re.findall(r"^  ([a-z][a-z-]*)[ |)]", read("dev"), re.M)) | {"help"}
    for path in paths:
        if path.endswith(".md"):
            for number, line in enumerate(read(path).splitlines(), 1):
                for finding in check_line(line, flags, commands | set(DAEMONS), dev):
                    yield f"{path}:{number}: {finding}"
    for example in re.findall(r'\"(atoll (?:[^\"\\]|\\.)*)\"', read("cli/examples.cc")):
        for finding in check_line(example, flags, commands | set(DAEMONS), dev):
            yield f"cli/examples.cc: {example}: {finding}"
    for command in sorted(commands - set(re.findall(r'^    \{\"([a-z]+)\"', read("cli/examples.cc"), re.M))):
        yield f"cli/examples.cc: atoll {command} has no examples"
    yield from dict.fromkeys(check_references(commands))


if __name__ == "__main__":
    print("\n".join(check()))
