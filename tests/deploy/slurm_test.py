#!/usr/bin/python3
"""deploy/slurm on Debian's Slurm: a controller and two nodes in namespaces of their own, on one machine."""
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../..")
sys.path.insert(0, os.path.join(HERE, "../e2e"))
from fixture import Skip, case, check, main  # noqa: E402
from cluster import Daemon, binary  # noqa: E402

# A Bazel test's PATH has no sbin, where the daemons are.
os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "sinfo", "unshare", "ip")
INSIDE = "ATOLL_SLURM_TEST_INSIDE"
LIMIT_S = 120
NODES = {"node1": "10.77.0.1", "node2": "10.77.0.2"}
CONFIG = """ClusterName=lab
SlurmctldHost=node1(10.77.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={short}/munge,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={short}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/linear
NodeName=node1 NodeAddr=10.77.0.1 NodeHostname=node1 Port=17001 CPUs=1
NodeName=node2 NodeAddr=10.77.0.2 NodeHostname=node1 Port=17002 CPUs=1
PartitionName=all Nodes=node1,node2 Default=YES State=UP
"""


def run(*command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          timeout=LIMIT_S, **more)
    check(done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}: {done.stdout}")
    return done.stdout


def enter_namespaces():
    """Runs this program again with a network, mounts, a host name and process ids of its own."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    space = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc"]
    if missing or subprocess.run([*space, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        why = f"not installed: {' '.join(missing)}" if missing else "no namespaces here"
        os.environ[INSIDE] = why
        return
    os.environ[INSIDE] = "yes"
    # Bash is process 1 there and reaps what Slurm leaves: a job with a zombie has not ended to it.
    init = ["bash", "-c", '"$@" & wait $!', "init"]
    os.execvp(space[0], [*space, *init, sys.executable, os.path.abspath(__file__), *sys.argv[1:]])


class Slurm:
    """Slurm's daemons, until stop(); two names of this host are its nodes."""

    def __init__(self, folder):
        os.makedirs(os.path.join(folder, "state"))
        # Of munge's socket and those of job steps, which are in a node's spool: a socket's path has 108 bytes at
        # most, and Bazel's folders are deep.
        self.short = tempfile.mkdtemp(prefix="slurm-", dir="/tmp")
        os.chmod(self.short, 0o755)
        self.folder = folder
        self.daemons = []
        self.make_network()
        self.write("slurm.conf", CONFIG.format(folder=folder, short=self.short))
        with open(os.path.join(folder, "munge.key"), "wb") as key:
            key.write(os.urandom(64))
        os.chmod(os.path.join(folder, "munge.key"), 0o400)
        os.environ["SLURM_CONF"] = os.path.join(folder, "slurm.conf")
        self.start("munged", "--force", "--foreground", f"--key-file={folder}/munge.key",
                   f"--socket={self.short}/munge", f"--pid-file={folder}/munge.pid",
                   f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed")
        self.start("slurmctld", "-D")
        for node in NODES:
            os.makedirs(os.path.join(self.short, node))
            self.start("slurmd", "-D", "-N", node)

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        return path

    def make_network(self):
        # Slurm resolves no name where only loopback has an address.
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1")
        for address in NODES.values():
            run("ip", "addr", "add", f"{address}/24", "dev", "v0")
        run("ip", "link", "set", "v0", "up")
        run("ip", "link", "set", "v1", "up")
        hosts = "".join(f"{address} {name}\n" for name, address in NODES.items())
        run("mount", "--bind", self.write("hosts", "127.0.0.1 localhost\n" + hosts), "/etc/hosts")
        socket.sethostname("node1")

    def start(self, *command):
        log = os.path.join(self.folder, f"{command[0]}-{len(self.daemons)}.log")
        self.daemons.append(Daemon(command[0], list(command), log))
        self.daemons[-1].start()

    def idle(self):
        """Nodes that take jobs; none while the controller does not answer."""
        done = subprocess.run(["sinfo", "--Node", "--noheader", "--format=%T"], capture_output=True, text=True,
                              check=False)
        return done.stdout.split().count("idle")

    def stop(self):
        for daemon in reversed(self.daemons):
            daemon.kill()
        shutil.rmtree(self.short)


@case
def island_of_an_allocation(fixture):
    """island.sbatch makes an island of two nodes; after scontrol requeue its workers come back under
    their names, and the job goes on to its end"""
    if os.environ[INSIDE] != "yes":
        raise Skip(os.environ[INSIDE])
    slurm = Slurm(os.path.join(fixture.folder, "slurm"))
    try:
        fixture.wait_until("both nodes to be idle", lambda: slurm.idle() == 2, LIMIT_S)
        os.environ["HOME"], os.environ["XDG_CONFIG_HOME"] = fixture.folder, ""
        run(binary("atoll"), "init", f"--state-dir={fixture.folder}/coordinator",
            f"--port={fixture.address.rsplit(':', 1)[1]}")
        fixture.cli_flags = ["--context=default"]
        fixture.coordinator()
        token = fixture.atoll("token", "create", "--role=paramserver")[1].strip()
        fixture.server("ps1", f"--join={token}", memory="64MiB")
        programs = [os.path.dirname(binary(name)) for name in ("atoll", "atoll-worker")]
        environment = {**os.environ, "PATH": os.pathsep.join([*programs, os.environ["PATH"]]),
                       "ATOLL_STATE": os.path.join(fixture.folder, "state"), "ATOLL_FLAGS": "--emulate-step-ms=20"}
        with open(os.path.join(ROOT, "deploy/slurm/island.sbatch"), encoding="utf-8") as file:
            typed = "\n".join(re.findall("^#   (.*)$", file.read(), re.M))
        for written, here in (("--uses 4", "--uses 2"), ("--nodes=4", f"--parsable --nodes=2 --output={fixture.folder}/batch.log")):
            check(written in typed, f"the batch file's first lines are {typed}")
            typed = typed.replace(written, here)
        batch = run("bash", "-ec", typed, cwd=ROOT, env=environment).split()[-1]
        fixture.attached(3)
        names = {m["name"] for m in fixture.json("status")["members"] if m["kind"] == "worker"}
        check(names == {"slurm-node1", "slurm-node2"}, f"{names}")
        check(all(fixture.member(name)["site"] == "lab" for name in names), "another site than the cluster")
        job = fixture.submits(outer__min_islands=1, layout__island="site", layout__workers_per_island=2)
        before = fixture.reaches(job, 2)
        check(len(before["islands"]) == 1 and len(before["islands"][0]["workers"]) == 2, f"{before['islands']}")
        incarnations = {name: fixture.member(name)["incarnation"] for name in names}
        run("scontrol", "requeue", batch)
        fixture.wait_until("both workers to be back", lambda: all(
            fixture.member(name)["attached"] and fixture.member(name)["incarnation"] > incarnations[name]
            for name in names), 2 * LIMIT_S)
        fixture.finishes(job, before["decisions"])
        run("scancel", batch)
    finally:
        slurm.stop()


if __name__ == "__main__":
    if INSIDE not in os.environ:
        enter_namespaces()
    main("slurm_test")
