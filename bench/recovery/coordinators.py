"""Three coordinators with their records in an etcd of three members: what happens when one of either
is killed, frozen or cut off while a job trains."""
import json
import socket
import threading
import time
import urllib.request

from scenarios import Recovery, goes_on
from cluster import free_port

FROZEN_S = 30
LONG_STEPS = 400  # of 20 ms


class Relay:
    """Forwards TCP connections to `target`; once cut, carries nothing and closes nothing."""

    def __init__(self, target):
        self.target, self.cut = target, threading.Event()
        self.listener = socket.create_server(("127.0.0.1", free_port()))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        host, port = self.target.split(":")
        while True:
            here, _ = self.listener.accept()
            try:
                there = socket.create_connection((host, int(port)))
            except OSError:
                here.close()
                continue
            for one, other in ((here, there), (there, here)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one, other):
        try:
            while data := one.recv(1 << 16):
                if self.cut.is_set():
                    return  # neither end is notified
                other.sendall(data)
        except OSError:
            pass
        if not self.cut.is_set():
            for end in (one, other):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass


class Several(Recovery):
    """c1..c3, etcd1..etcd3, two servers and two workers. Each coordinator has relays of its own."""

    def starts(self):
        self.text()
        self.etcd_at = self.etcd(members=3)
        self.relays = [[Relay(target) for target in self.etcd_at] for _ in range(3)]
        self.coordinators(["etcd://" + ",".join(relay.address for relay in own)
                           for own in self.relays])
        for i in (1, 2):
            self.server(f"ps{i}")
        for name in ("w1", "w2"):
            self.worker(name, "--emulate-step-ms=20")
        self.attached(4)

    def leading_etcd(self):
        """Name of the etcd member that leads the others."""
        for i, address in enumerate(self.etcd_at):
            request = urllib.request.Request(f"http://{address}/v3/maintenance/status", b"{}")
            answer = json.load(urllib.request.urlopen(request, timeout=5))
            if answer["leader"] == answer["header"]["member_id"]:
                return f"etcd{i + 1}"
        raise AssertionError("no member of etcd leads")


# ---- faults: each returns what ends it, which is called when rounds go on ----

def leader_killed(cluster, leader):
    """the leading coordinator killed (SIGKILL)"""
    leader.kill()
    return leader.start


def leader_frozen(cluster, leader):
    """the leading coordinator frozen for 30 s"""
    begin = time.monotonic()
    leader.freeze()

    def end():
        time.sleep(max(0, begin + FROZEN_S - time.monotonic()))
        leader.thaw()
        cluster.wait_until("the frozen one to end", lambda: not leader.alive())
        leader.start()
    return end


def leader_cut_off(cluster, leader):
    """the leading coordinator cut off from etcd"""
    relays = cluster.relays[int(leader.name[1:]) - 1]
    for relay in relays:
        relay.cut.set()

    def end():
        cluster.wait_until("the one cut off to end", lambda: not leader.alive())
    return end


def etcd_member_killed(cluster, leader):
    """one of three members of etcd, the leading one, killed (SIGKILL)"""
    member = cluster.daemons[cluster.leading_etcd()]
    member.kill()
    return member.start


FAULTS = (leader_killed, leader_frozen, leader_cut_off, etcd_member_killed)


def lost_rounds(before, after):
    """Rounds that were decided before and are not, or not the same, afterwards."""
    kept = {d["round"]: d for d in after}
    return sum(kept.get(d["round"]) != d for d in before if d["round"] >= after[0]["round"])


def measure(cluster, fault):
    """First with short rounds, which show how soon decisions go on; then with rounds that are longer
    than a takeover, which show whether training pauses."""
    cluster.starts()
    job = cluster.submits()
    before = cluster.reaches(job, 6)
    leader = cluster.daemons[cluster.wait_until("a leader", cluster.leader)]
    before = cluster.job(job)
    begin = time.monotonic()
    end = fault(cluster, leader)
    seconds, tokens_lost, twice = goes_on(cluster, job, before, begin)
    end()
    _, later_lost, later_twice = goes_on(cluster, job, cluster.job(job), time.monotonic())
    after = cluster.job(job)
    row = {"seconds": seconds, "tokens_lost": tokens_lost + later_lost, "twice": twice + later_twice,
           "rounds_lost": lost_rounds(before["decisions"], after["decisions"]),
           "evictions": sum(i["evictions"] for i in after["islands"])}
    cluster.atoll("cancel", job)
    for daemon in cluster.daemons.values():
        if not daemon.alive() and fault is not leader_cut_off:
            daemon.start()
    job = cluster.submits("long", steps=LONG_STEPS)
    cluster.reaches(job, 1)
    begin = time.monotonic()
    before = cluster.reaches(job, 2)
    undisturbed = time.monotonic() - begin
    begin = time.monotonic()
    end = fault(cluster, cluster.daemons[cluster.leader()])
    cluster.reaches(job, 3)
    row["round_time"] = (time.monotonic() - begin) / undisturbed
    end()
    _, tokens_lost, twice = goes_on(cluster, job, before, time.monotonic())
    row["tokens_lost"] += tokens_lost
    row["twice"] += twice
    return row
