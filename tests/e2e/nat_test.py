#!/usr/bin/python3
"""Networks in which not every member reaches every other: which end connects, and that jobs train there. w1 is at
site a, w2 at b, the coordinator at c, ps1 where the row of NETWORKS says."""
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "../net"))
from fixture import LIMIT_S, Skip, case, check, main  # noqa: E402
from shaped import Link, ShapedNetwork, Unavailable  # noqa: E402

ISLAND = {"layout__island": "all", "layout__stages": 2, "outer__min_islands": 1, "outer__max_islands": 1,
          "inner__micro_batch_sequences": 2}
ALONE = {"outer__min_islands": 2, "schedule__train_tokens": 600_000}
RELAY = 7400


class Network:
    """What a row says, and what comes of it: pairs (member, to which it connects itself)."""

    def __init__(self, hidden="", symmetric=False, server="c", relays=(), job=None, connects=(), relayed=False):
        self.hidden, self.symmetric, self.server = hidden, symmetric, server
        self.relays, self.job = relays, job or ISLAND
        self.connects, self.relayed = set(connects), relayed


NETWORKS = {
    "open": Network(),
    "a worker behind NAT": Network("a", connects=[("w1", "w2")]),
    "a server behind NAT": Network("a", server="a", job=ALONE, connects=[("ps1", "w2")]),
    "both workers behind NAT": Network("ab", relays="c", relayed=True),
    "both behind symmetric NAT": Network("ab", symmetric=True, relays="c", relayed=True),
    "a worker behind symmetric NAT": Network("a", symmetric=True, connects=[("w1", "w2")]),
}


def network(sites):
    try:
        return ShapedNetwork(sites, Link(rate_mbit=1000, latency_ms=1)).__enter__()
    except Unavailable as why:
        raise Skip(str(why)) from None


def starts(fixture, net, server="c", relays="", named=False):
    """The coordinator at c1, ps1 at the last host of its site, w1 at a1, w2 at b1. `named`: members know the
    coordinator and ps1 by the name c."""
    here = fixture.address = net.address("c1") + ":7070"
    fixture.cli, fixture.cli_flags = net.inside("c1"), ["--insecure"]
    fixture.coordinator("--insecure", wrapper=net.inside("c1"))
    last = net.hosts(server)[-1]
    flags = [f"--relay=tcp://{net.address(last)}:{RELAY}"] if relays else []
    if named:
        fixture.address = "cc:7070"
        flags.append("--advertise=tcp://cc:7071")
    fixture.server("ps1", "--insecure", *flags, memory="64MiB", listen=f"tcp://{net.address(last)}:7071",
                   wrapper=net.inside(last))
    for name, host in (("w1", "a1"), ("w2", "b1")):
        worker(fixture, net, name, host)
    fixture.address = here
    fixture.attached(3)


def worker(fixture, net, name, host, *flags):
    fixture.worker(name, "--insecure", f"--peer-endpoint=tcp://{net.address(host)}:7080-7089",
                   "--emulate-step-ms=20", f"--site={host[0]}", *flags, wrapper=net.inside(host))


def ways(fixture, name):
    return fixture.member(name).get("relays", "")


def connects(fixture, pairs):
    """Whether these members, and no others, connect to others themselves."""
    found = {(name, part.split(" ")[2]) for name in ("w1", "w2", "ps1")
             for part in ways(fixture, name).split(", ") if part.startswith("itself to ")}
    return found == pairs


def takes_part(fixture, job):
    """Workers in an island's plan, or alone in one, which has none."""
    return {w["worker"] for island in fixture.job(job).get("islands", []) for w in island["workers"]
            if w["in_plan"] or len(island["workers"]) == 1}


def trains(fixture, job, rounds=2):
    fixture.wait_until("a plan with both workers", lambda: takes_part(fixture, job) == {"w1", "w2"}, 2 * LIMIT_S)
    return fixture.reaches(job, fixture.version(job) + rounds)


def row(name):
    """The case of a row."""
    network_of = NETWORKS[name]

    def run(fixture):
        net = network({"a": 2, "b": 1, "c": 2})
        try:
            for site in network_of.hidden:
                net.hide(site, network_of.symmetric)
            starts(fixture, net, network_of.server, network_of.relays)
            job = fixture.submits(**network_of.job)
            trains(fixture, job)
            if not network_of.relayed:
                fixture.wait_until(f"connections by {network_of.connects}",
                                   lambda: connects(fixture, network_of.connects), LIMIT_S)
            else:
                for worker_name in ("w1", "w2"):
                    check(ways(fixture, worker_name).startswith("ps1 "), f"{worker_name}: {ways(fixture, worker_name)}")
            fixture.finishes(job, fixture.job(job)["decisions"])
            fixture.close()
        finally:
            net.close()

    run.__name__ = name.replace(" ", "_")
    run.__doc__ = f"{name[0].upper()}{name[1:]}: both workers train, and the reachable end is connected to"
    return case(run)


for row_name in NETWORKS:
    row(row_name)


@case
def a_relay_dies_between_symmetric_nats(fixture):
    """Both workers behind symmetric NAT: one of two relays is killed, and they train on through the other one"""
    net = network({"a": 1, "b": 1, "c": 2})
    try:
        for site in "ab":
            net.hide(site, symmetric=True)
        starts(fixture, net, relays="c")
        worker(fixture, net, "r1", "c1", f"--relay=tcp://{net.address('c1')}:{RELAY}")
        fixture.attached(4)
        job = fixture.submits(layout__sites=["a", "b"], schedule__train_tokens=600_000, **ISLAND)
        trains(fixture, job)
        before = fixture.job(job)["decisions"]
        fixture.daemons["r1"].kill()
        fixture.still_trains(job)
        trains(fixture, job, 3)
        fixture.finishes(job, before)
        fixture.close()
    finally:
        net.close()


@case
def a_worker_gets_another_address(fixture):
    """A worker's address changes in the middle of a job, as by DHCP: it connects to the other one itself, and both
    train on"""
    net = network({"a": 1, "b": 1, "c": 1})
    try:
        starts(fixture, net)
        job = fixture.submits(schedule__train_tokens=100_000_000, **ISLAND)
        trains(fixture, job)
        net.readdress("b1", 77)
        fixture.wait_until("w2 to connect to w1", lambda: connects(fixture, {("w2", "w1")}), 2 * LIMIT_S)
        trains(fixture, job)
        fixture.atoll("cancel", job)
        fixture.state(job, "cancelled")
        fixture.close()
    finally:
        net.close()


@case
def a_name_has_a_broken_address(fixture):
    """The name of coordinator and server has a first address, of IPv6, that leads nowhere: members find the second"""
    net = network({"a": 1, "b": 1, "c": 1})
    try:
        inside = net.inside
        with tempfile.NamedTemporaryFile("w", prefix="hosts-", suffix=".txt") as file:
            file.write(f"127.0.0.1 localhost\nfd00::c cc\n{net.address('c1')} cc\n")
            file.flush()
            script = (f'ip addr replace fd00::{os.getpid() % 1000 + 1}/64 dev eth0 nodad; mount --bind {file.name} /etc/hosts; '
                      'exec "$@"')
            net.inside = lambda host: [*inside(host), "unshare", "--mount", "sh", "-c", script, "sh"]
            for host in ("a1", "b1", "c1"):
                found = net.run(host, ["getent", "ahosts", "cc"], check=False).stdout
                check(found.startswith("fd00::c "), f"the name's addresses: {found!r}")
            starts(fixture, net, named=True)
            job = fixture.submits(**ISLAND)
            trains(fixture, job)
            fixture.finishes(job, fixture.job(job)["decisions"])
            fixture.close()
    finally:
        net.close()


if __name__ == "__main__":
    main("nat")
