#!/usr/bin/python3
"""The shaped network is what it says: its latency, its rate, its cuts."""
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, Skip, case, check, main  # noqa: E402
from shaped import ShapedNetwork, Unavailable, Link, relay_path  # noqa: E402

ECHO = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("0.0.0.0", 7000))
print("up", flush=True)
while True:
    data, sender = s.recvfrom(2048)
    s.sendto(data, sender)
"""
# Shortest round trip of some, in ms, up to one that is short enough: a busy machine has many longer
# ones. The answer to one that is lost never comes.
PING = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(float(sys.argv[2]))
best = 1e9
for i in range(int(sys.argv[3])):
    if i >= 15 and best < float(sys.argv[4]):
        break
    begin = time.monotonic()
    s.sendto(b"x", (sys.argv[1], 7000))
    try:
        s.recv(2048)
        best = min(best, 1e3 * (time.monotonic() - begin))
    except OSError:
        pass
print(best)
"""
# Megabits of payload that came, and when; and when the first one left: all hosts have one clock.
SINK = """
import socket, time
s = socket.create_server(("0.0.0.0", 7001))
print("up", flush=True)
c = s.accept()[0]
size = 0
while data := c.recv(1 << 20):
    size += len(data)
print(8e-6 * size, time.monotonic())
"""
SOURCE = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 7001))
block = bytes(1 << 16)
print(time.monotonic())
for i in range(int(sys.argv[2]) >> 16):
    s.sendall(block)
"""


def python(*arguments):
    return [sys.executable, "-c", *map(str, arguments)]


def joined(sites, link, **more):
    try:
        return ShapedNetwork(sites, link, **more).__enter__()
    except Unavailable as reason:
        raise Skip(str(reason)) from None


def serves(net, host, program):
    server = net.popen(host, python(program), stdout=subprocess.PIPE, text=True)
    check(server.stdout.readline() == "up\n", f"{host} does not serve")
    return server


def ping_ms(net, here, there, limit_s=5.0, count=300, enough_ms=20):
    return float(net.run(here, python(PING, net.address(there), limit_s, count, enough_ms)).stdout)


@case
def latency(_):
    """A packet takes 20 ms across the link each way, next to nothing inside a site, and neither
    after the link is cut; restored, it is as before"""
    with joined({"a": 2, "b": 1}, Link(rate_mbit=100, latency_ms=20)) as net:
        far, near = serves(net, "b1", ECHO), serves(net, "a2", ECHO)
        try:
            across = ping_ms(net, "a1", "b1", enough_ms=60)
            check(40 <= across < 60, f"{across} ms for a round trip across, not 40")
            inside = ping_ms(net, "a1", "a2")
            check(inside < 20, f"{inside} ms for a round trip inside a site")
            net.cut("a", "b")
            check(ping_ms(net, "a1", "b1", limit_s=0.2, count=2) == 1e9, "a cut link carries")
            net.mend("b", "a")
            across = ping_ms(net, "a1", "b1", enough_ms=60)
            check(40 <= across < 60, f"{across} ms for a round trip across a restored link")
        finally:
            far.kill()
            near.kill()


@case
def separates(_):
    """Two hosts that are separated lose what they send each other, and others do not"""
    with joined({"a": 3}, Link(rate_mbit=100, latency_ms=0)) as net:
        servers = [serves(net, host, ECHO) for host in ("a2", "a3")]
        try:
            net.separate("a1", "a2")
            check(ping_ms(net, "a1", "a2", limit_s=0.2, count=2) == 1e9, "separated hosts talk")
            check(ping_ms(net, "a1", "a3") < 20 and ping_ms(net, "a2", "a3") < 20, "others do not")
        finally:
            for server in servers:
                server.kill()


@case
def rate(_):
    """A link of 100 Mbit/s carries that much, and a fifth of it when it is reshaped to 20; links of
    a third site have their own"""
    with joined({"a": 1, "b": 1, "c": 1}, Link(rate_mbit=100, latency_ms=2),
                links={("c", "a"): Link(rate_mbit=50, latency_ms=0)}) as net:
        def mbit_s(here, there, megabytes):
            sink = serves(net, there, SINK)
            begin = float(net.run(here, python(SOURCE, net.address(there), megabytes << 20)).stdout)
            megabits, end = map(float, sink.communicate(timeout=60)[0].split())
            return megabits / (end - begin)

        def carries(here, there, limit, most):
            """Never more, and its rate at times: a busy machine is slower at others."""
            until = time.monotonic() + LIMIT_S
            while time.monotonic() < until:
                got = mbit_s(here, there, limit // 10)
                check(got < most * limit, f"{here} to {there}: {got} of {limit} Mbit/s")
                if got > 0.6 * limit:
                    return
            check(False, f"{here} to {there}: {got} of {limit} Mbit/s")

        # Payload is 1448 of 1500 bytes; a burst passes at once.
        for here, there, limit in (("a1", "b1", 100), ("a1", "c1", 50), ("c1", "a1", 50)):
            carries(here, there, limit, most=1.03)
        net.reshape("b", "a", rate_mbit=20)
        carries("b1", "a1", 20, most=1.05)


@case
def leaves_nothing(_):
    """When the network is closed, its processes have ended and its namespaces are deleted"""
    net = joined({"a": 1, "b": 1}, Link(rate_mbit=100, latency_ms=1))
    pids = [holder.process.pid for holder in net._holders]
    spaces = {os.readlink(f"/proc/{pid}/ns/net") for pid in pids}
    check(len(spaces) >= 4, f"namespaces: {spaces}")
    net.close()
    for pid in pids:
        check(not os.path.exists(f"/proc/{pid}"), f"process {pid} is left")


@case
def refuses(_):
    """A relay with impossible arguments says how to use it and makes nothing"""
    for arguments in ([], ["x", "y", "-1"], ["x", "y", "20ms"], ["x", "a-name-that-is-too-long", "1"]):
        done = subprocess.run([relay_path(), *arguments], capture_output=True, text=True,
                              timeout=60, check=False)
        check(done.returncode == 2 and "usage" in done.stderr, f"{arguments}: {done}")
    for sites, link in (({"a1": 1}, (1, 1)), ({"a": 0}, (1, 1)), ({"a": 1}, (0, 1))):
        try:
            ShapedNetwork(sites, Link(*link))
        except ValueError:
            continue
        check(False, f"{sites}, {link} was accepted")


if __name__ == "__main__":
    main("shaped_test")
