#!/usr/bin/python3
"""Members that only outward connections reach others from: workers and parameter servers behind NAT train through
relays, and go on when one is killed."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from fixture import LIMIT_S, Skip, case, check, main  # noqa: E402
from cluster import free_port  # noqa: E402
from outward import DROPPED, possible  # noqa: E402

ISLAND = {"layout__island": "site", "layout__stages": 2, "outer__min_islands": 1,
          "inner__micro_batch_sequences": 2}


def outward(fixture, *ports, idle=""):
    """A wrapper of a daemon from which only these ports, outside, are reached; connections that are idle for so
    many seconds are dropped."""
    if not possible():
        raise Skip("no network namespace can be made here")
    coordinator = int(fixture.address.rsplit(":", 1)[1])
    passed = ",".join(map(str, (coordinator, *ports))) + (f"/{idle}" if idle else "")
    return [sys.executable, os.path.join(HERE, "outward.py"), passed]


def address(port):
    return f"tcp://127.0.0.1:{port}"


def relayed(fixture, name):
    return fixture.member(name).get("relays", "")


@case
def workers_behind_nat_share_an_island(fixture):
    """Two workers, each behind NAT, share an island through the relay of a parameter server"""
    server, relay = free_port(), free_port()
    fixture.coordinator()
    fixture.server("ps1", f"--relay={address(relay)}", memory="64MiB", listen=address(server))
    for name in ("w1", "w2"):
        fixture.worker(name, "--site=home", "--emulate-step-ms=20", wrapper=outward(fixture, server, relay))
    fixture.attached(3)
    for name in ("w1", "w2"):
        check(relayed(fixture, name).startswith("ps1 "), f"{name} has the relays {relayed(fixture, name)!r}")
    job = fixture.submits(**ISLAND)
    fixture.reaches(job, 3)
    workers = fixture.job(job)["islands"][0]["workers"]
    check(sum(worker["in_plan"] for worker in workers) == 2, f"one worker trains alone: {workers}")
    code, out, _ = fixture.atoll("status", "-o", "wide", check=False)
    check(code == 0 and f"relay 127.0.0.1:{relay}" in out, out)
    fixture.finishes(job, fixture.job(job)["decisions"])


@case
def a_server_behind_nat_is_reached(fixture):
    """Workers behind NAT train with a parameter server behind another, through the relay of a third worker"""
    relay = free_port()
    fixture.coordinator()
    fixture.worker("w1", f"--relay={address(relay)}", "--emulate-step-ms=20")
    fixture.attached(1)
    fixture.server("ps1", memory="64MiB", listen=address(free_port()), wrapper=outward(fixture, relay))
    fixture.worker("w2", "--emulate-step-ms=20", wrapper=outward(fixture, relay))
    fixture.attached(3)
    job = fixture.submits()
    fixture.reaches(job, 3)
    fixture.finishes(job, fixture.job(job)["decisions"])


@case
def a_firewall_drops_what_is_idle(fixture):
    """Two workers share an island through a relay after a firewall has dropped the connections that waited there"""
    server, relay = free_port(), free_port()
    fixture.coordinator()
    fixture.server("ps1", f"--relay={address(relay)}", memory="64MiB", listen=address(server))
    for name in ("w1", "w2"):
        fixture.worker(name, "--site=home", "--emulate-step-ms=20", wrapper=outward(fixture, server, relay, idle=8))
    fixture.attached(3)
    for name in ("w1", "w2"):
        fixture.wait_until(f"{name}'s idle connections to be dropped",
                           lambda name=name: DROPPED in fixture.daemons[name].log(), LIMIT_S)
    job = fixture.submits(**ISLAND)
    fixture.reaches(job, 3)
    workers = fixture.job(job)["islands"][0]["workers"]
    check(sum(worker["in_plan"] for worker in workers) == 2, f"one worker trains alone: {workers}")
    fixture.finishes(job, fixture.job(job)["decisions"])


@case
def relay_is_killed(fixture):
    """The relay that all links use is killed in the middle of a job; they go on through another, and no step is
    counted twice"""
    server, first, second = free_port(), free_port(), free_port()
    fixture.coordinator()
    fixture.worker("r1", f"--relay={address(first)}", "--site=elsewhere")
    fixture.attached(1)
    fixture.server("ps1", f"--relay={address(second)}", memory="64MiB", listen=address(server))
    for name in ("w1", "w2"):
        fixture.worker(name, "--site=home", "--emulate-step-ms=20",
                       wrapper=outward(fixture, server, first, second))
    fixture.attached(4)
    for name in ("w1", "w2"):
        check("r1 " in relayed(fixture, name) and "ps1 " in relayed(fixture, name),
              f"{name} has the relays {relayed(fixture, name)!r}")
    job = fixture.submits(layout__sites=["home"], schedule__train_tokens=600_000, **ISLAND)
    fixture.reaches(job, 2)
    before = fixture.job(job)["decisions"]
    fixture.daemons["r1"].kill()
    fixture.still_trains(job)
    fixture.reaches(job, fixture.version(job) + 3)
    fixture.finishes(job, before)


if __name__ == "__main__":
    main("relay")
