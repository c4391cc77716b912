#!/usr/bin/python3
"""Strangers open connections and say nothing, or hardly anything: members go on, and the log names the flood."""
import os
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, case, check, main  # noqa: E402
from cluster import free_port  # noqa: E402

DESCRIPTORS = 400  # that a daemon may open


class Flood:
    """Opens connections from another address without end, each with a few bytes now and then."""

    def __init__(self, port, first=b"", more=b"", connections=2 * DESCRIPTORS):
        self.port, self.first, self.more, self.connections = port, first, more, connections
        self.ending = False
        self.most = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def __enter__(self):
        self.thread.start()
        return self

    def reaches_its_most(self):
        """Waits until it has all connections, or as many as are taken."""
        check(self.most.wait(LIMIT_S), "the flood has not reached its most")

    def __exit__(self, *_):
        self.ending = True
        self.thread.join()

    def _open(self):
        one = socket.socket()
        one.bind(("127.0.0.2", 0))
        one.settimeout(0.05)
        try:
            one.connect(("127.0.0.1", self.port))
            if self.first:
                one.send(self.first)
        except OSError:
            one.close()
            return None
        return one

    def _run(self):
        held = []
        while not self.ending:
            while len(held) < self.connections and not self.ending:
                one = self._open()
                if one is None:
                    break
                held.append(one)
            self.most.set()
            for one in list(held) if self.more else []:
                try:
                    one.send(self.more)
                except OSError:
                    held.remove(one)
                    one.close()
            time.sleep(0.3)
        for one in held:
            one.close()


def starts(fixture, *flags):
    limited = ("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}")
    fixture.coordinator(*flags, wrapper=limited)
    fixture.server("ps1", memory="64MiB", wrapper=limited)
    fixture.worker("w1", "--emulate-step-ms=20", wrapper=limited)
    fixture.attached(2)
    job = fixture.submits(outer__min_islands=1, outer__steps_per_round=4, schedule__train_tokens=100_000_000)
    fixture.reaches(job, 2)
    return job


def find_tensor_port(fixture, server):
    line = next(line for line in fixture.daemons[server].log().splitlines() if "tensor link listens at" in line)
    return int(line.split("tcp://127.0.0.1:")[1].split(",")[0])


def goes_on(fixture, job):
    """Rounds, calls of the command line and a member that comes anew, while the flood lasts."""
    fixture.reaches(job, fixture.version(job) + 3)
    check(fixture.atoll("ls")[0] == 0, "the command line gets no answer")
    fixture.daemons["w1"].stop()
    fixture.daemons["w1"].start()
    fixture.reaches(job, fixture.version(job) + 2)
    fixture.check_alive_but()


@case
def idle_connections_to_the_coordinator(fixture):
    """Connections that say nothing take no descriptor that the coordinator needs"""
    job = starts(fixture)
    coordinator = fixture.daemons["coordinator"]
    with Flood(int(fixture.address.rsplit(":", 1)[1])):
        fixture.wait_until("the log to name the flood", lambda: (
            "connections were not taken: " in coordinator.log() and "127.0.0.2" in coordinator.log()), LIMIT_S)
        goes_on(fixture, job)


@case
def slow_requests_to_the_metrics(fixture):
    """Requests of a byte now and then delay neither the health check nor the metrics"""
    port = free_port()
    job = starts(fixture, f"--metrics-listen=127.0.0.1:{port}")

    def healthy():
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as one:
            one.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return one.recv(64).startswith(b"HTTP/1.1 200")

    with Flood(port, b"GET /healthz HTTP/1.1\r\na: ", b"b"):
        fixture.wait_until("the log to name the flood", lambda: (
            "127.0.0.2" in fixture.daemons["coordinator"].log()), LIMIT_S)
        for _ in range(5):
            check(healthy(), "the coordinator is not healthy")
        goes_on(fixture, job)


@case
def idle_connections_to_a_parameter_server(fixture):
    """Connections that say nothing to a tensor link end, and pushes and pulls go on"""
    job = starts(fixture)
    server = fixture.daemons["ps1"]
    with Flood(find_tensor_port(fixture, "ps1")):
        fixture.wait_until("the log to name the flood", lambda: (
            "connections were not taken: " in server.log() and "127.0.0.2" in server.log()), LIMIT_S)
        goes_on(fixture, job)


if __name__ == "__main__":
    main("floods")
