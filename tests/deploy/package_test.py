#!/usr/bin/python3
"""The Debian packages, installed in a clean Debian 12: a job runs, upgrades keep, a purge prompts."""
import concurrent.futures
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.realpath(os.path.join(HERE, "../.."))
sys.path.insert(0, os.path.join(HERE, "../e2e"))
from fixture import case, check, main, write_text  # noqa: E402
from cluster import binary  # noqa: E402

# A Bazel test's PATH has no sbin, where chroot is.
os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
DAEMONS = ("coordinator", "paramserver", "worker")
JOB = """name = "packaged"
[model]
hidden = 32
layers = 2
heads = 2
[data]
path = "/srv/text.txt"
sequence_length = 32
[inner]
batch_sequences = 8
[outer]
steps_per_round = 8
[schedule]
train_tokens = 20_000
validation_sequences = 16
"""


def run(*command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, **more)
    check(done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}: {done.stdout}")
    return done.stdout


class Machine:
    """A clean Debian 12 in a folder, with a network of its own that has loopback only."""

    def __init__(self, folder):
        self.root = os.path.join(folder, "root")
        self.space = f"atoll-{os.getpid()}"
        self.daemons = []
        run("mmdebstrap", "--variant=apt", "--quiet", "bookworm", self.root)
        self.run("apt-get", "update", "-qq")  # mmdebstrap leaves no lists of packages
        run("ip", "netns", "add", self.space)
        run("ip", "netns", "exec", self.space, "ip", "link", "set", "lo", "up")

    def path(self, inside):
        return os.path.join(self.root, inside.lstrip("/"))

    def read(self, inside):
        with open(self.path(inside), encoding="utf-8") as file:
            return file.read()

    def write(self, inside, text):
        with open(self.path(inside), "w", encoding="utf-8") as file:
            file.write(text)

    def run(self, *command, user=None):
        """With the network of the machine outside: packages have dependencies."""
        who = [f"--userspec={user}"] if user else []
        return run("chroot", *who, self.root, "env", "DEBIAN_FRONTEND=noninteractive",
                   "LC_ALL=C.UTF-8", *command)

    def atoll(self, *arguments):
        return run("ip", "netns", "exec", self.space, "chroot", self.root, "atoll", *arguments)

    def attached(self, name):
        """Whether the coordinator answers and has this member."""
        done = subprocess.run(["ip", "netns", "exec", self.space, "chroot", self.root, "atoll", "status", "--json"],
                              capture_output=True, text=True, check=False)
        members = json.loads(done.stdout).get("members", []) if done.returncode == 0 else []
        return any(member["name"] == name and member["attached"] for member in members)

    def start(self, daemon):
        """As systemd does: the unit's user, state folder and command."""
        unit = self.read(f"/lib/systemd/system/atoll-{daemon}.service")
        user = re.search(r"^User=(.*)$", unit, re.M)[1]
        state = "/var/lib/" + re.search(r"^StateDirectory=(.*)$", unit, re.M)[1]
        if not os.path.exists(self.path(state)):
            self.run("install", "-d", "-m", "750", "-o", user, "-g", user, state)
        settings = dict(re.findall(r"^([A-Z_]+)=(.*)$", self.read(f"/etc/atoll/{daemon}.env"), re.M))
        command = re.search(r"^ExecStart=(.*)$", unit, re.M)[1]
        command = re.sub(r"\$\{?([A-Z_]+)\}?", lambda name: settings[name[1]], command)
        self.daemons.append(subprocess.Popen(
            ["ip", "netns", "exec", self.space, "chroot", f"--userspec={user}:{user}", self.root,
             *shlex.split(command)]))

    def stop(self):
        for daemon in self.daemons:
            daemon.terminate()
        for daemon in self.daemons:
            daemon.wait(60)
        self.daemons = []

    def close(self):
        self.stop()
        subprocess.run(["ip", "netns", "del", self.space], check=False)

    def digest(self, inside):
        """Of all files below a folder."""
        total = hashlib.sha256()
        for folder, _, names in sorted(os.walk(self.path(inside))):
            for name in sorted(names):
                with open(os.path.join(folder, name), "rb") as file:
                    total.update(name.encode() + file.read())
        return total.hexdigest()


def build_packages(folder):
    out = os.path.join(folder, "packages")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    programs = os.path.dirname(os.path.dirname(binary("atoll")))
    return run(os.path.join(ROOT, "deploy/deb/build"), programs, out, env=environment).split()[-4:]


def upgraded(packages, folder):
    """The same packages under the next version's number."""
    newer = []
    for package in packages:
        tree = os.path.join(folder, "tree")
        run("rm", "-rf", tree)
        run("dpkg-deb", "-R", package, tree)
        version = run("dpkg-deb", "-f", package, "Version").strip()
        control = os.path.join(tree, "DEBIAN/control")
        with open(control, encoding="utf-8") as file:
            text = file.read()
        with open(control, "w", encoding="utf-8") as file:
            file.write(text.replace(version, version + "+1"))
        newer.append(os.path.join(folder, os.path.basename(package).replace(version, version + "+1")))
        run("dpkg-deb", "-Znone", "-b", "--root-owner-group", tree, newer[-1])
    return newer


def check_installed(machine):
    version = re.search(r'"(.*)"', open(os.path.join(ROOT, "common/version.h"),
                                        encoding="utf-8").read())[1]
    check(machine.run("atoll", "--version").strip() == f"atoll {version}", "another version")
    check("worker" in machine.run("cat", "/usr/share/bash-completion/completions/atoll"), "completion")
    for daemon in DAEMONS:
        name = f"atoll-{daemon}"
        check(os.path.exists(machine.path(f"/usr/share/man/man1/{name}.1.gz")), f"no page of {name}")
        check("atoll" in machine.run("id", "-Gn", name).split(), f"{name} is not in the group atoll")
        conffiles = machine.run("dpkg-query", "-W", "-f=${Conffiles}", name)
        check(f"/etc/atoll/{daemon}.env" in conffiles, f"{name}: {conffiles}")
    check(machine.run("dpkg", "--verify") == "", "files differ from their packages")


def run_job(fixture, machine, done):
    """Starts the daemons, runs a job, and stops them; `done` jobs are done then."""
    for daemon in DAEMONS:
        machine.start(daemon)
    fixture.wait_until("the worker", lambda: machine.attached("worker-1"), 60)
    machine.atoll("submit", "--watch", "/srv/job.toml")
    jobs = json.loads(machine.atoll("ls", "--json"))["jobs"]
    check([job["state"] for job in jobs] == done * ["JOB_STATE_DONE"], f"{jobs}")
    machine.stop()


@case
def life_of_the_packages(fixture):
    """Installed in a clean system they run a job; a reinstallation and an upgrade keep state and settings,
    and the next job runs on them; a purge keeps the state unless it is confirmed"""
    with concurrent.futures.ThreadPoolExecutor() as pool:  # one waits for the network, the other for xz
        building = pool.submit(build_packages, fixture.folder)
        machine = Machine(fixture.folder)
    try:
        packages = building.result()
        check(len(packages) == 4, f"{packages}")
        for package in packages:
            run("cp", package, machine.path("/tmp"))
        files = ["/tmp/" + os.path.basename(package) for package in packages]
        install = ["apt-get", "install", "-qq", "--no-install-recommends"]
        machine.run(*install, *files)
        check_installed(machine)

        write_text(machine.path("/srv/text.txt"))
        machine.write("/srv/job.toml", JOB)
        run_job(fixture, machine, 1)

        states = {daemon: machine.digest(f"/var/lib/atoll-{daemon}") for daemon in DAEMONS}
        machine.write("/etc/atoll/worker.env", machine.read("/etc/atoll/worker.env") + "# mine\n")
        machine.run(*install, "--reinstall", *files)
        check(machine.read("/etc/atoll/worker.env").endswith("# mine\n"), "settings are lost")
        newer = upgraded(packages, fixture.folder)
        for package in newer:
            run("cp", package, machine.path("/tmp"))
        machine.run(*install, *["/tmp/" + os.path.basename(package) for package in newer])
        versions = {machine.run("dpkg-query", "-W", "-f=${Version}", f"atoll-{daemon}") for daemon in DAEMONS}
        check(len(versions) == 1 and versions.pop().endswith("+1"), f"not upgraded: {versions}")
        check(machine.read("/etc/atoll/worker.env").endswith("# mine\n"), "an upgrade loses settings")
        for daemon in DAEMONS:
            check(machine.digest(f"/var/lib/atoll-{daemon}") == states[daemon], f"upgraded {daemon} lost state")
        run_job(fixture, machine, 2)  # the first one is still known
        states = {daemon: machine.digest(f"/var/lib/atoll-{daemon}") for daemon in DAEMONS}
        machine.run("apt-get", "purge", "-qq", "atoll-worker", "atoll-coordinator")
        for daemon in DAEMONS:
            check(machine.digest(f"/var/lib/atoll-{daemon}") == states[daemon], f"{daemon} lost state")

        machine.run("sh", "-c", "echo atoll-paramserver atoll-paramserver/delete-state boolean true "
                                "| debconf-set-selections")
        machine.run("apt-get", "purge", "-qq", "atoll-paramserver")
        check(not os.path.exists(machine.path("/var/lib/atoll-paramserver")), "state is kept")
        check(os.path.exists(machine.path("/var/lib/atoll-worker")), "another daemon's state was deleted")
    finally:
        machine.close()


if __name__ == "__main__":
    main("package_test")
