#!/usr/bin/python3
"""Runs a daemon where only outward connections pass, as behind NAT: in a network namespace of its own, whose
ports PORT,... lead to 127.0.0.1:PORT outside. Nothing outside can connect to the daemon.

    outward.py PORT,...[/SECONDS] PROGRAM ARGUMENT...

A connection over which nothing has come either way for SECONDS is dropped, as firewalls do. There is nothing but loopback: connections pass through a Unix socket, which belongs to no namespace.
"""
import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
LIBC = ctypes.CDLL(None, use_errno=True)


DROPPED = "outward: an idle connection is dropped"


class Clock:
    """When something last came over a connection, in either direction."""

    def __init__(self, limit):
        self.limit = limit
        self.used = time.monotonic()

    def check(self):
        if time.monotonic() - self.used > self.limit:
            print(DROPPED, flush=True)
            raise TimeoutError(DROPPED)


def receive(source, clock):
    while not select.select([source], [], [], 1)[0]:
        clock.check()
    data = source.recv(65536)
    clock.used = time.monotonic()
    return data


def forward(source, to, clock):
    try:
        while data := receive(source, clock):
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, to):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def passes(listener, connect, limit):
    """Each connection to the listener goes to what connect() returns, for as long as it is not idle."""
    while True:
        near, _ = listener.accept()
        try:
            far = connect()
        except OSError:
            near.close()
            continue
        clock = Clock(limit)
        threading.Thread(target=forward, args=(near, far, clock), daemon=True).start()
        threading.Thread(target=forward, args=(far, near, clock), daemon=True).start()


def connects(path):
    end = socket.socket(socket.AF_UNIX)
    end.connect(path)
    return end


def serve(listeners, connect_to, limit=float("inf")):
    threads = [threading.Thread(target=passes, args=(listener, lambda port=port: connect_to(port), limit))
               for port, listener in listeners.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def child(work):
    """Ends with this process, which becomes the daemon."""
    if os.fork() == 0:
        LIBC.prctl(1, signal.SIGKILL)
        work()
        os._exit(0)


def enter_namespace():
    user, group = os.getuid(), os.getgid()
    if LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as out:
            out.write(text)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))


def possible():
    """Whether this machine allows such namespaces."""
    pid = os.fork()
    if pid == 0:
        try:
            enter_namespace()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def main():
    names, _, limit = sys.argv[1].partition("/")
    ports = [int(port) for port in names.split(",")]
    folder = tempfile.mkdtemp(prefix="outward-")
    outside = {}
    for port in ports:
        outside[port] = socket.socket(socket.AF_UNIX)
        outside[port].bind(f"{folder}/{port}")
        outside[port].listen(128)
    child(lambda: serve(outside, lambda port: socket.create_connection(("127.0.0.1", port)),
                        float(limit or "inf")))
    enter_namespace()
    LIBC.prctl(1, signal.SIGKILL)  # entering has cleared it
    inside = {port: socket.create_server(("127.0.0.1", port), backlog=128) for port in ports}
    child(lambda: serve(inside, lambda port: connects(f"{folder}/{port}")))
    for listener in [*outside.values(), *inside.values()]:
        listener.close()
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
