"""What happens to a cluster in the rows of bench/recovery: wrong and lost stores of the coordinator,
flipped bytes, a worker cut off from the servers, a FIFO as data."""
import os
import shutil
import statistics
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.realpath(os.path.join(HERE, "..", ".."))
for folder in ("tests/e2e", "tests/net"):
    sys.path.insert(0, os.path.join(ROOT, folder))
from cluster import Cluster, ClusterError, decided_twice  # noqa: E402
from corpus import write_corpus  # noqa: E402
from shaped import ShapedNetwork, Unavailable, Link  # noqa: E402

WRONG_S = 3      # a wrong coordinator is on the address for so long
ROUNDS = 20      # whose rate is measured
NOTICED_S = 20   # after a start on a damaged file
JOB = """name = "{name}"
model = {{ hidden = {hidden}, layers = 4, heads = 4 }}
data = {{ path = "{data}", sequence_length = 64 }}
inner = {{ batch_sequences = 4 }}
outer = {{ steps_per_round = {steps}, grace_seconds = {grace_s}, min_islands = 1, shard_copies = {copies} }}
schedule = {{ train_tokens = 1000000000, snapshot_every_rounds = 4, checkpoint_every_steps = 4 }}
"""


class Recovery(Cluster):
    """A cluster with a text and one job."""

    def starts(self, workers=2, servers=2):
        self.text()
        self.coordinator()
        for i in range(1, servers + 1):
            self.server(f"ps{i}")
        for i in range(1, workers + 1):
            self.worker(f"w{i}", "--emulate-step-ms=20")
        self.attached(workers + servers)

    def text(self):
        write_corpus(os.path.join(self.folder, "text"), 1_000_000)

    def attached(self, count):
        self.wait_until(f"{count} members", lambda: sum(
            m["attached"] for m in self.json("status")["members"]) == count)

    def submits(self, name="recovery", data="text", grace_s=2, steps=8, hidden=64, copies=1):
        path = os.path.join(self.folder, name + ".toml")
        with open(path, "w", encoding="ascii") as out:
            out.write(JOB.format(name=name, data=data, grace_s=grace_s, steps=steps,
                                 hidden=hidden, copies=copies))
        return self.json("submit", path)["job"]

    def job(self, job):
        return self.json("show", job)

    def version(self, job):
        return self.job(job)["summary"]["version"]

    def reaches(self, job, version):
        return self.wait_until(f"version {version}", lambda: (
            lambda seen: seen if seen["summary"]["version"] >= version else None)(self.job(job)),
            every_s=0.02)

    def waits(self, job, words):
        return self.wait_until(f"{job} to wait for {words}", lambda: (
            lambda text: text if words in text else None)(self.job(job)["summary"]["waiting_for"]))

    def state_dir(self, name):
        return os.path.join(self.folder, name)


def goes_on(cluster, job, before, begin):
    """(seconds since `begin` until a new round is committed, tokens lost, deltas applied twice)"""
    found = []

    def back():
        now = cluster.version(job)
        found.append(now)
        return now > max(found[0], before["summary"]["version"])
    cluster.wait_until("rounds to go on", back, every_s=0.02)
    seconds = time.monotonic() - begin
    after = cluster.job(job)
    summary, length = after["summary"], after["spec"]["data"]["sequence_length"]
    lost = max(0, before["summary"]["tokens_committed"] - summary["tokens_committed"])
    # What one account counts and another does not is lost, too, or counted twice.
    decided = summary["tokens_committed"] + sum(
        d["tokens"] for d in after["decisions"] if d["version"] > summary["version"])
    for counted in (after["ledger"]["committed"] * length,
                    sum(i["tokens_committed"] for i in after["islands"])):
        lost += abs(counted - decided)
    return seconds, lost, len(decided_twice(after["decisions"]))


def replaced(cluster, name, folder=None):
    """The daemon is killed; its folder is kept beside, and `folder` or nothing is in its place."""
    cluster.daemons[name].kill()
    own = cluster.state_dir(name)
    shutil.rmtree(own + ".own", ignore_errors=True)
    os.rename(own, own + ".own")
    if folder:
        os.rename(folder, own)


def comes_back(cluster, name):
    cluster.daemons[name].kill()
    own = cluster.state_dir(name)
    shutil.rmtree(own)
    os.rename(own + ".own", own)
    begin = time.monotonic()
    cluster.daemons[name].start()
    return begin


# ---- the coordinator's store: each starts with a job under way, and returns goes_on() ----

def empty_coordinator(cluster, job):
    """an empty coordinator on the address for 3 s"""
    before = cluster.reaches(job, 6)
    replaced(cluster, "coordinator")
    cluster.daemons["coordinator"].start()
    time.sleep(WRONG_S)
    return goes_on(cluster, job, before, comes_back(cluster, "coordinator"))


def other_cluster(cluster, job):
    """a coordinator of another cluster, that has started before, on the address for 3 s"""
    other = cluster.state_dir("other")
    with Cluster(os.path.join(cluster.folder, "elsewhere")) as elsewhere:
        elsewhere.coordinator()
        elsewhere.wait_until("it to start", lambda: elsewhere.json("status"))
    os.rename(os.path.join(elsewhere.folder, "coordinator"), other)
    before = cluster.reaches(job, 6)
    replaced(cluster, "coordinator", other)
    cluster.daemons["coordinator"].start()
    time.sleep(WRONG_S)
    return goes_on(cluster, job, before, comes_back(cluster, "coordinator"))


def copy_store(cluster):
    """Of a coordinator that has ended, as it was."""
    daemon, copy = cluster.daemons["coordinator"], cluster.state_dir("copy")
    daemon.kill()
    shutil.copytree(cluster.state_dir("coordinator"), copy)
    daemon.start()
    return copy


def older_copy_for_a_while(cluster, job):
    """an older copy of its folder on the address for 3 s"""
    cluster.reaches(job, 3)
    copy = copy_store(cluster)
    before = cluster.reaches(job, 9)
    replaced(cluster, "coordinator", copy)
    cluster.daemons["coordinator"].start()
    time.sleep(WRONG_S)
    return goes_on(cluster, job, before, comes_back(cluster, "coordinator"))


def older_copy(cluster, job):
    """an older copy of its folder for good: the job waits, `atoll adopt`"""
    cluster.reaches(job, 3)
    copy = copy_store(cluster)
    before = cluster.reaches(job, 9)
    replaced(cluster, "coordinator", copy)
    begin = time.monotonic()
    cluster.daemons["coordinator"].start()
    cluster.waits(job, f"atoll adopt {job}")
    cluster.wait_until("it to be adopted", lambda: cluster.atoll("adopt", job, check=False)[0] == 0)
    return goes_on(cluster, job, before, begin)


def older_backup(cluster, job):
    """its folder lost: an older backup, by --restore"""
    cluster.reaches(job, 3)
    backup = os.path.join(cluster.folder, "backup")
    cluster.atoll("backup", "--to", backup)
    before = cluster.reaches(job, 9)
    replaced(cluster, "coordinator")
    daemon = cluster.daemons["coordinator"]
    daemon.command.append("--restore=" + backup)
    begin = time.monotonic()
    daemon.start()
    return goes_on(cluster, job, before, begin)


def lost_folder(cluster, job):
    """its folder lost: an empty one, by --cluster, and `atoll adopt`"""
    before = cluster.reaches(job, 6)
    own = cluster.json("status")["cluster"]
    replaced(cluster, "coordinator")
    daemon = cluster.daemons["coordinator"]
    daemon.command.append("--cluster=" + own)
    begin = time.monotonic()
    daemon.start()
    cluster.wait_until("it to be adopted", lambda: cluster.atoll("adopt", job, check=False)[0] == 0)
    return goes_on(cluster, job, before, begin)


STORES = (empty_coordinator, other_cluster, older_copy_for_a_while, older_copy, older_backup,
          lost_folder)


# ---- shards ----

def loses_folder(cluster):
    """ps1 starts again with an empty folder; when."""
    cluster.daemons["ps1"].kill()
    shutil.rmtree(cluster.state_dir("ps1"))
    begin = time.monotonic()
    cluster.daemons["ps1"].start()
    return begin


def servers_folder(cluster, job):
    """a server's folder deleted, with one copy: `atoll refill` (parameters exact, momentum lost)"""
    before, begin = cluster.reaches(job, 6), loses_folder(cluster)
    cluster.waits(job, "came back without the job")
    cluster.wait_until("refill", lambda: cluster.atoll("refill", job, "ps1", check=False)[0] == 0)
    row = goes_on(cluster, job, before, begin)
    if "outer momentum began at zero" not in cluster.job(job)["moves"]:
        raise AssertionError("the lost momentum is not named")
    return row


def servers_folder_with_copies(cluster, job):
    """a server's folder deleted, with two copies: no command is needed, nothing is lost"""
    before, begin = cluster.reaches(job, 6), loses_folder(cluster)
    row = goes_on(cluster, job, before, begin)
    if "outer momentum began at zero" in cluster.job(job)["moves"]:
        raise AssertionError("momentum was lost")
    return row


def drained_and_added(cluster, job):
    """a server drained and another one added while training: (seconds a round, the same undisturbed,
    tokens lost, deltas applied twice)"""
    def rate(until):
        first, begin = cluster.version(job), time.monotonic()
        until(first)
        return (time.monotonic() - begin) / max(1, cluster.version(job) - first)

    def moved(first):
        cluster.server("ps3")
        cluster.atoll("drain", "ps1")
        cluster.wait_until("ps1 to be empty and ps3 to hold shards", lambda: {
            shard["server"] for shard in cluster.job(job)["shards"]} == {"ps2", "ps3"})
        cluster.reaches(job, max(first + 20, cluster.version(job) + 1))

    before = cluster.reaches(job, 6)
    undisturbed = rate(lambda first: cluster.reaches(job, first + 20))
    disturbed = rate(moved)
    _, lost, twice = goes_on(cluster, job, before, time.monotonic())
    return disturbed, undisturbed, lost, twice


# ---- one flipped byte ----

def flip(path, data):
    """In the middle, or in the newest occurrence of `data`: pages of a database have free space."""
    with open(path, "r+b") as file:
        whole = file.read()
        place = whole.rfind(data) if path.endswith(".db") else len(whole) // 2
        file.seek(place)
        file.write(bytes([whole[place] ^ 1]))


def list_file_kinds(folder):
    """One file of each kind of a daemon's folder, the newest of its kind: {kind: path}."""
    kinds = {}
    for place, _, names in os.walk(folder):
        for name in sorted(names):
            kind = name.rstrip("0123456789").rstrip("-") or name
            if os.path.basename(place) == "history":
                kind = "history"
            if kind not in ("lock", "coordinator.db-shm") and not name.endswith(".tmp"):
                kinds[kind] = os.path.relpath(os.path.join(place, name), folder)
    return kinds


def notices(cluster, name, path):
    """Whether the daemon names the file when it starts on the damage: in what it says, or as the
    reason of what waits."""
    daemon = cluster.daemons[name]
    words, offset = os.path.basename(path), len(daemon.log())
    daemon.start()
    limit = time.monotonic() + NOTICED_S
    while time.monotonic() < limit:
        if any(words in line and ("damage" in line or "checksum" in line or "not a " in line)
               for line in daemon.log()[offset:].splitlines()):
            return True
        if not daemon.alive():
            return False
        time.sleep(0.1)
    return False


def flipped_byte(cluster, job, name, kind):
    """(noticed by name, *goes_on()) of one kind of file; None: there is none."""
    before = cluster.reaches(job, cluster.version(job) + (1 if name[0] == "w" else 5))
    if name[0] == "w":
        time.sleep(1)  # it has a local checkpoint of this version
    daemon, own = cluster.daemons[name], cluster.state_dir(name)
    if kind == "coordinator.db":
        daemon.stop()  # its write-ahead log is in it now
    else:
        daemon.kill()
    path = list_file_kinds(own).get(kind)
    if path is None:
        daemon.start()
        return None
    shutil.copytree(own, own + ".own")
    flip(os.path.join(own, path), job.encode())
    named = notices(cluster, name, path)
    begin = time.monotonic()
    try:
        cluster.wait_until("a new version", lambda: cluster.version(job) >
                           before["summary"]["version"] + 1, timeout_s=25 if name[0] == "w" else 8)
        shutil.rmtree(own + ".own")  # it goes on with what is whole
    except ClusterError:
        begin = comes_back(cluster, name)
    return (named, *goes_on(cluster, job, before, begin))


# ---- cut off, and what hangs ----

def cut_off(folder):
    """(rounds a second with a worker that is cut off from the server only, without it)"""
    with ShapedNetwork({"c": 2, "s": 1, "b": 1}, Link(rate_mbit=1000, latency_ms=1)) as net, \
            Recovery(folder) as cluster:
        cluster.text()
        cluster.address = net.address("c1") + ":7070"
        cluster.cli, cluster.cli_flags = net.inside("c1"), ["--insecure"]
        cluster.coordinator("--insecure", wrapper=net.inside("c1"))
        cluster.server("ps1", "--insecure", listen=f"tcp://{net.address('s1')}:7071",
                       wrapper=net.inside("s1"))
        for name, host in (("w1", "c2"), ("w2", "b1")):
            cluster.worker(name, "--insecure", f"--peer-endpoint=tcp://{net.address(host)}:7080",
                           "--emulate-step-ms=50", wrapper=net.inside(host))
        cluster.attached(3)
        # Small steps that mostly sleep: the machine's cores are no part of what is compared.
        job = cluster.submits(grace_s=6, steps=16, hidden=16)
        cluster.reaches(job, 5)

        def island():
            return next(i for i in cluster.job(job)["islands"] if i["worker"] == "w2")

        def rate():
            version, seconds, begin = cluster.version(job), [], 0
            for i in range(ROUNDS + 1):
                version = cluster.reaches(job, version + 1)["summary"]["version"]
                seconds.append(time.monotonic() - begin)
                begin = time.monotonic()
            return 1 / statistics.median(seconds[1:])  # what else the machine does counts less
        cluster.wait_until("w2 to count", lambda: island()["rounds_accepted"])
        net.cut("b", "s")
        cluster.wait_until("w2 to be named", lambda: island()["activity"].startswith("not waited for"))
        with_it = rate()
        cluster.daemons["w2"].kill()
        cluster.wait_until("the eviction of w2", lambda: not island()["attached"])
        return with_it, rate()


def fifo(folder):
    """(seconds from the submission of a job whose data is a FIFO until it has failed, from `cancel`
    until the worker is free of a job that it reads the data of, from SIGTERM until it has ended)"""
    with Recovery(folder) as cluster:
        cluster.starts(workers=1, servers=1)
        os.mkfifo(os.path.join(cluster.folder, "fifo"))
        with open(os.path.join(cluster.folder, "large"), "wb") as out:
            out.truncate(1 << 40)

        def activity():
            return next(m for m in cluster.json("status")["members"] if m["name"] == "w1")["measuring"]

        def reads(name):
            job = cluster.submits(name, data="large")
            cluster.wait_until("w1 to read", lambda: "reads data file" in activity(), every_s=0.02)
            return job
        begin = time.monotonic()
        job = cluster.submits("fifo", data="fifo")
        cluster.wait_until("it to fail", lambda: cluster.job(job)["summary"]["state"] ==
                           "JOB_STATE_FAILED", every_s=0.02)
        fails_s = time.monotonic() - begin
        job = reads("cancelled")
        begin = time.monotonic()
        cluster.atoll("cancel", job)
        cluster.wait_until("w1 to be free", lambda: "reads" not in activity(), every_s=0.02)
        cancel_s = time.monotonic() - begin
        reads("stopped")
        begin = time.monotonic()
        cluster.daemons["w1"].stop()
        return fails_s, cancel_s, time.monotonic() - begin
