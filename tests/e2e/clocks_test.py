#!/usr/bin/python3
"""Wall clocks that are ten years wrong, at start and from one moment to the next (Debian's faketime)."""
import glob
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, Skip, case, check, main  # noqa: E402

LIBRARY = "/usr/lib/*/faketime/libfaketimeMT.so.1"
YEARS = 10 * 365
ENDLESS = 100_000_000


class Clock:
    """The wall clock of the daemons that run under its wrapper; timers are as they are."""

    def __init__(self, fixture, name):
        found = glob.glob(LIBRARY)
        if not found:
            raise Skip("faketime is not installed; ./dev deps run")
        self.path = os.path.join(fixture.folder, name + ".clock")
        self.set_days(0)
        self.wrapper = ("env", "LD_PRELOAD=" + found[0], "FAKETIME_TIMESTAMP_FILE=" + self.path, "FAKETIME_NO_CACHE=1",
                        "FAKETIME_DONT_FAKE_MONOTONIC=1")

    def set_days(self, days):
        with open(self.path + ".new", "w", encoding="ascii") as file:
            file.write(f"{days:+}d")
        os.replace(self.path + ".new", self.path)


def starts(fixture, of_coordinator, of_members):
    fixture.coordinator(wrapper=of_coordinator.wrapper)
    fixture.server("ps1", memory="64MiB", wrapper=of_members.wrapper)
    for name in ("w1", "w2"):
        fixture.worker(name, "--emulate-step-ms=10", wrapper=of_members.wrapper)
    fixture.attached(3)


def goes_on(fixture, job):
    """Rounds, and no member is lost."""
    fixture.reaches(job, fixture.version(job) + 2)
    fixture.check_alive_but()


@case
def clocks_jump_while_a_job_trains(fixture):
    """A clock that is set by ten years, on one machine or on all, changes no decision"""
    coordinator, members = Clock(fixture, "coordinator"), Clock(fixture, "members")
    starts(fixture, coordinator, members)
    job = fixture.submits(schedule__train_tokens=ENDLESS)
    fixture.reaches(job, 2)
    for days in (YEARS, -YEARS):
        for clock in (coordinator, members):
            clock.set_days(days)
            goes_on(fixture, job)
        coordinator.set_days(0)
        goes_on(fixture, job)
    evicted = [line for line in fixture.logs().splitlines() if "evicted" in line]
    check(not evicted, f"members were lost: {evicted}")


@case
def daemons_start_by_a_wrong_clock(fixture):
    """What was stored by another clock is read, newer incarnations are newer, and nothing is taken for expired"""
    coordinator, members = Clock(fixture, "coordinator"), Clock(fixture, "members")
    starts(fixture, coordinator, members)
    job = fixture.submits(schedule__train_tokens=ENDLESS)
    version = 2
    for days in (YEARS, -YEARS, 0):
        version = fixture.reaches(job, version + 2)["summary"]["version"]
        for daemon in fixture.daemons.values():
            daemon.stop()
        coordinator.set_days(days)
        members.set_days(-days)
        for daemon in fixture.daemons.values():
            daemon.start()
    fixture.reaches(job, version + 2)
    fixture.check_alive_but()


@case
def certificates_outlive_a_coordinator_with_a_wrong_clock(fixture):
    """A coordinator that ran ten years ahead or behind lets its members in again by the right clock"""
    os.environ["HOME"] = os.environ["XDG_CONFIG_HOME"] = fixture.folder
    clock = Clock(fixture, "coordinator")
    host, port = fixture.address.split(":")
    state = os.path.join(fixture.folder, "coordinator")
    fixture.atoll("init", "--state-dir", state, "--host", host, "--port", port)
    fixture.coordinator(wrapper=clock.wrapper)
    token = fixture.wait_until("a token", lambda: fixture.atoll(
        "token", "create", "--role", "worker,paramserver", "--uses", "2")[1].strip(), LIMIT_S)
    fixture.server("ps1", "--join=" + token, memory="64MiB")
    fixture.worker("w1", "--emulate-step-ms=10", "--join=" + token)

    def attached():
        members = fixture.json("status")["members"]
        return sum(member["attached"] for member in members) == 2

    fixture.wait_until("both members", attached, LIMIT_S)
    for days in (YEARS, -YEARS):
        clock.set_days(days)  # certificates of now are not valid then, and no call is answered
        fixture.daemons["coordinator"].stop()
        fixture.daemons["coordinator"].start()
        clock.set_days(0)
        fixture.daemons["coordinator"].stop()
        fixture.daemons["coordinator"].start()
        fixture.wait_until("both members by the right clock", attached, LIMIT_S)


if __name__ == "__main__":
    main("clocks")
