#!/usr/bin/python3
"""The commands of README.md, docs/ and the READMEs of deploy/, as they stand there, in a network of their own.

What a person fills in is filled in: TOKEN@..., JOB, a state folder that is left out. Commands that are not run here are
in ELSEWHERE, with the test that runs them or the reason; a command that is in neither list fails the test.
"""
import contextlib
import glob
import os
import re
import shutil
import socket
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../..")
sys.path.insert(0, HERE)
from fixture import ENDLESS_TOKENS, Skip, case, check, main  # noqa: E402
from cluster import binary, die_with_parent, parse_json  # noqa: E402

INSIDE = "ATOLL_DOCUMENTS_TEST_INSIDE"
LIMIT_S = 300
PROGRAMS = ("atoll", "atoll-coordinator", "atoll-paramserver", "atoll-worker")
COMMAND = re.compile(r"^(?:[A-Z]+=\$\()?(?:\./dev|apt|systemctl|editor|kubectl|docker|bazel|npm|tests/\S+|atoll[\w-]*) ?.*")
PACKAGES, BUILT = "tests/deploy:package_test", "builds the checkout"
# Beginnings of commands that are not run here, and why.
ELSEWHERE = {
    "./dev ": BUILT, "bazel ": "runs the tests", "tests/e2e/failures_test.py": "runs a test",
    "apt install": PACKAGES, "systemctl": PACKAGES, "editor": "a person's", "kubectl": "tests/deploy:kubernetes_test, without a cluster",
    "TOKEN=$(kubectl": "tests/deploy:kubernetes_test, without a cluster",
    "atoll run tune.toml": "tests/e2e:tutorial_test",
    "atoll submit stable.toml": "tests/e2e:evaluation_test", "atoll submit --from": "tests/e2e:evaluation_test",
    "atoll init --host coordinator.example": PACKAGES + ", with the packages' folders", "atoll token create --role worker": PACKAGES,
    "atoll-worker --coordinator c1.example": "tests/e2e:coordinators_test, with etcd", "atoll-worker --join TOKEN@c1": "tests/e2e:coordinators_test",
    "atoll --coordinator c1.example": "tests/e2e:coordinators_test",
    "atoll verify JOB": "tests/security:security_test",
}
HOSTS = {"10.0.0.1": "coordinator.example", "10.0.0.2": "server.example", "10.0.0.3": "oslo.example"}


def written_commands():
    """{command without its comment: the page} of all pages, in order."""
    pages = ["README.md", *sorted(glob.glob("docs/**/*.md", root_dir=ROOT, recursive=True)),
             *sorted(glob.glob("deploy/*/README.md", root_dir=ROOT))]
    found = {}
    for page in pages:
        with open(os.path.join(ROOT, page), encoding="utf-8") as file:
            text = file.read()
        blocks = re.findall(r"^```(?:sh)?\n(.*?)^```$", text, re.M | re.S) + re.findall(r"^    (\S.*)$", text, re.M)
        for line in "\n".join(blocks).splitlines():
            if COMMAND.match(line):
                found[re.sub(r"\s+#.*| &$", "", line)] = page
    return found


def enter_namespaces():
    """Runs this program again with a network, mounts and process ids of its own."""
    space = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*space, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        os.environ[INSIDE] = "no namespaces here"
        return
    os.environ[INSIDE] = "yes"
    os.execvp(space[0], [*space, sys.executable, os.path.abspath(__file__), *sys.argv[1:]])


class Person:
    """Types commands in a folder, with a home, as a user of this name."""

    def __init__(self, fixture, name):
        self.fixture, self.home = fixture, os.path.join(fixture.folder, name)
        os.makedirs(self.home)
        self.users = self.home + ".passwd"
        with open(self.users, "w", encoding="ascii") as file:
            file.write(f"{name}:x:{os.geteuid()}:{os.getegid()}::{self.home}:/bin/bash\n")
        programs = os.path.join(fixture.folder, "bin")
        if not os.path.isdir(programs):
            os.makedirs(programs)
            for program in PROGRAMS:
                os.symlink(binary(program), os.path.join(programs, program))
        self.environment = {**os.environ, "HOME": self.home, "PATH": programs + ":" + os.environ["PATH"]}
        self.environment.pop("XDG_CONFIG_HOME", None)

    def types(self, command, **filled_in):
        """Runs a command of a page; returns what it prints."""
        self.fixture.typed.add(command)
        for placeholder, value in filled_in.items():
            command = re.sub({"TOKEN": r"TOKEN@\S+"}.get(placeholder, rf"\b{placeholder}\b"), lambda _, v=value: v, command)
        command = f"mount --bind {self.users} /etc/passwd\n{command}"
        done = subprocess.run(["unshare", "--mount", "bash", "-ec", command], cwd=self.home, env=self.environment, stdin=subprocess.DEVNULL, text=True, errors="replace",
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT_S, check=False)
        check(done.returncode == 0, f"{command}: exit code {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    def starts(self, command, token=""):
        """Runs a command of a page that goes on."""
        self.fixture.typed.add(command)
        name = f"{command.split()[0]}-{len(self.fixture.typed)}"
        command = re.sub(r"TOKEN@\S+", token, command).replace("--state-dir ...", f"--state-dir {self.fixture.folder}/{name}")
        with open(os.path.join(self.fixture.folder, name + ".log"), "wb") as log:
            subprocess.Popen(command.split(), cwd=self.home, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                             preexec_fn=die_with_parent)


@contextlib.contextmanager
def machine(fixture):
    """This machine with the addresses and names of the pages, and an empty /var/lib."""
    def run(*command):
        subprocess.run(command, check=True)
    run("ip", "link", "set", "lo", "up")
    for address in HOSTS:
        run("ip", "addr", "add", f"{address}/32", "dev", "lo")
    hosts = os.path.join(fixture.folder, "hosts")
    with open(hosts, "w", encoding="ascii") as file:
        file.write("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for address, name in HOSTS.items()))
    run("mount", "--bind", hosts, "/etc/hosts")
    socket.sethostname("coordinator.example")
    run("mount", "-t", "tmpfs", "tmpfs", "/var/lib")
    try:
        yield
    finally:
        run("umount", "--lazy", "/var/lib")  # daemons have their state there
        run("umount", "--lazy", "/etc/hosts")


def attached(fixture, person, count):
    fixture.wait_until(f"{count} members", lambda: count == sum(
        member["attached"] for member in parse_json(person.types("atoll --json status"))["members"]), LIMIT_S)


def listens(address, port):
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def a_cluster_as_trust_says(fixture, operator):
    operator.types("atoll init --state-dir /var/lib/atoll-coordinator --host coordinator.example")
    operator.starts("atoll-coordinator --state-dir /var/lib/atoll-coordinator --listen 10.0.0.1:7000")
    # The command line waits for a coordinator of loopback alone.
    fixture.wait_until("the coordinator", lambda: listens("10.0.0.1", 7000), LIMIT_S)
    token = operator.types("atoll token create --role worker,paramserver --uses 2").strip()
    operator.starts("atoll-paramserver --name s1 --state-dir /var/lib/s1 --listen tcp://10.0.0.2:7100 --join TOKEN@...", token)
    operator.starts("atoll-worker --name w1 --state-dir /var/lib/w1 --join TOKEN@...", token)
    attached(fixture, operator, 2)


@case
def commands_run_as_they_are_written(fixture):
    """Each command of README.md, docs/ and deploy/ runs as it stands, or is known to be run elsewhere"""
    if os.environ[INSIDE] != "yes":
        raise Skip(os.environ[INSIDE])
    fixture.typed = set()
    with machine(fixture):
        operator, colleague = Person(fixture, "operator"), Person(fixture, "colleague")
        job = fixture.job_file(schedule__train_tokens=60_000, outer__min_islands=1)
        for person in operator, colleague:
            shutil.copy(job, os.path.join(person.home, "job.toml"))
            shutil.copytree(os.path.join(ROOT, "deploy/jobs"), os.path.join(person.home, "deploy/jobs"))
        a_cluster_as_trust_says(fixture, operator)
        token = operator.types("atoll token create --role operator").strip()
        colleague.types("atoll join TOKEN@coordinator.example:7000", TOKEN=token)
        colleague.types("atoll status")
        job = colleague.types("atoll submit --watch job.toml").split()[0]
        colleague.types("atoll export JOB --to model", JOB=job)
        # What the pages say of several sites, and of a step of a job that runs.
        token = operator.types("atoll token create --role worker,paramserver --uses 4").strip()
        operator.starts("atoll-worker --name oslo-1 --site oslo --peer-endpoint tcp://10.0.0.3:7200 "
                        "--state-dir /var/lib/atoll-worker --join TOKEN@...", token)
        operator.starts("atoll-paramserver --name server-1 --site oslo --listen tcp://10.0.0.3:7100 --memory-bytes 16GiB "
                        "--state-dir ... --join TOKEN@...", token)
        attached(fixture, operator, 4)
        operator.types("atoll plan job.toml --cluster deploy/jobs/two_sites.toml --islands auto")
        operator.types("atoll rehearse job.toml --cluster deploy/jobs/two_sites.toml --failures deploy/jobs/failures.toml")
        endless = fixture.job_file("endless", schedule__train_tokens=ENDLESS_TOKENS, outer__min_islands=1)
        running = operator.types(f"atoll submit {endless}").strip()
        fixture.wait_until("a round", lambda: parse_json(operator.types(f"atoll --json show {running}"))["summary"]["version"] >= 1,
                           LIMIT_S)
        operator.types("atoll trace JOB --svg step.svg", JOB=running)
        operator.types(f"atoll cancel {running} --yes")
        # On a laptop.
        operator.types("atoll run job.toml")
        operator.types("atoll run job.toml --workers 4 --export my-model")
        operator.types('atoll generate my-model --prompt "Alice "')
        check("the model writes" in operator.types("atoll run"), "the shipped job's model writes nothing")
    commands = written_commands()
    known = {command for command in commands if any(command.startswith(start) for start in ELSEWHERE)}
    missing = {command: page for command, page in commands.items() if command not in fixture.typed | known}
    check(not missing, f"not run: {missing}")
    stale = [start for start in ELSEWHERE if not any(command.startswith(start) for command in commands)]
    check(not stale, f"no page has {stale}")


if __name__ == "__main__":
    if INSIDE not in os.environ:
        enter_namespaces()
    main("documents")
