#!/usr/bin/python3
"""Real daemons get well-formed messages with extreme values: none ends by a crash, and all read what they have stored.

ATOLL_EXTREME_MESSAGES: how many each gets (5,000; `./dev fuzz`: 100,000). Then and now they are restarted.
"""
import os
import re
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../e2e"))
from fixture import LIMIT_S, case, check, main  # noqa: E402
from cluster import ClusterError, Daemon, built_folder, free_port  # noqa: E402

MESSAGES = int(os.environ.get("ATOLL_EXTREME_MESSAGES", "5000"))
BETWEEN_RESTARTS = 1000
MEMBERS = {"w1": "worker", "w2": "worker", "ps1": "paramserver"}
CRASH = re.compile(r"check failed|CHECK|terminate called|Sanitizer|is damaged", re.I)


class Driver:
    def __init__(self, fixture):
        self.fixture, self.starts, self.renewed = fixture, 0, 0
        self.sent = dict.fromkeys(("coordinator", "worker", "paramserver"), 0)
        self.real = fixture.address
        self.relay = None

    def run(self):
        fixture = self.fixture
        fixture.coordinator()
        self.start_relay()
        fixture.server("ps1", memory="64MiB")
        for name in ("w1", "w2"):
            fixture.worker(name, "--emulate-step-ms=5")
        fixture.address = self.real
        for most in range(BETWEEN_RESTARTS, MESSAGES + 1, BETWEEN_RESTARTS):
            for name in self.sent:
                fixture.wait_until(f"{most} messages to the {name}", lambda n=name, m=most: self.total()[n] >= m or
                                   self.mend(), LIMIT_S)
            self.restart_all()
        print("messages:", self.total(), "; restarts of all:", self.starts, "; members that began anew:", self.renewed)

    # ---- the relay ----
    def start_relay(self):
        listen = f"127.0.0.1:{free_port()}"
        program = os.path.join(built_folder(), "tests/fuzz/daemons/relay")
        self.relay = Daemon("relay", [program, "--listen=" + listen, "--coordinator=" + self.real, "--extremes=10"],
                            os.path.join(self.fixture.folder, "relay.log"))
        self.relay.start()
        self.fixture.daemons["relay"] = self.relay
        self.fixture.address = listen

    def total(self):
        lines = re.findall(r"^sent (.*)$", self.relay.log(), re.M)
        return {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", lines[-1])} if lines else self.sent

    # ---- daemons ----
    def mend(self):
        """Daemons that ended with a reason are started again; one that crashed is a finding."""
        for name, daemon in self.fixture.daemons.items():
            if daemon.alive():
                continue
            code, end = daemon.process.returncode, daemon.log()[-3000:]
            check(code >= 0 and not CRASH.search(end), f"{name} ended with code {code}:\n{end}")
            self.renew(name)
        try:
            if not self.trains():
                self.fixture.submits(f"job{self.starts}", outer__min_islands=1, schedule__train_tokens=100_000_000)
        except ClusterError:
            pass  # it starts; the limit of the wait holds
        return False

    def trains(self):
        jobs = self.fixture.json("ls")["jobs"]
        return any(job["state"] in ("JOB_STATE_RUNNING", "JOB_STATE_QUEUED", "JOB_STATE_PREPARING") for job in jobs)

    def renew(self, name):
        """A member may have learnt that it is another's, or is unwanted: it begins with nothing."""
        check(name in MEMBERS, f"{name} ended:\n{self.fixture.daemons[name].log()[-3000:]}")
        shutil.rmtree(os.path.join(self.fixture.folder, name), ignore_errors=True)
        self.renewed += 1
        self.fixture.daemons[name].start()

    def restart_all(self):
        self.starts += 1
        for name in ("coordinator", *MEMBERS):
            daemon = self.fixture.daemons[name]
            daemon.kill() if self.starts % 2 else daemon.stop()
            check(self.starts % 2 or daemon.process.returncode >= 0, f"{name} ended badly:\n{daemon.log()[-3000:]}")
            daemon.start()
        self.fixture.wait_until("the coordinator to read its store", lambda: self.fixture.atoll("ls", check=False)[0] == 0,
                                LIMIT_S)
        self.mend()


@case
def extreme_messages(fixture):
    """Members and coordinator go on, or end with a reason, whatever the other end says"""
    Driver(fixture).run()


if __name__ == "__main__":
    main("daemons")
