#!/usr/bin/python3
"""Runs a daemon where only outward connections pass, as behind NAT: in a network namespace of its own, whose
ports PORT,... lead to 127.0.0.1:PORT outside. Nothing outside can connect to the daemon.

    outward.py PORT,... PROGRAM ARGUMENT...

There is nothing but loopback: connections pass through a Unix socket, which belongs to no namespace.
"""
import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
import tempfile
import threading

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
LIBC = ctypes.CDLL(None, use_errno=True)


def forward(source, to):
    try:
        while data := source.recv(65536):
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, to):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def passes(listener, connect):
    """Each connection to the listener goes to what connect() returns."""
    while True:
        near, _ = listener.accept()
        try:
            far = connect()
        except OSError:
            near.close()
            continue
        threading.Thread(target=forward, args=(near, far), daemon=True).start()
        threading.Thread(target=forward, args=(far, near), daemon=True).start()


def connects(path):
    end = socket.socket(socket.AF_UNIX)
    end.connect(path)
    return end


def serve(listeners, connect_to):
    threads = [threading.Thread(target=passes, args=(listener, lambda port=port: connect_to(port)))
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
    ports = [int(port) for port in sys.argv[1].split(",")]
    folder = tempfile.mkdtemp(prefix="outward-")
    outside = {}
    for port in ports:
        outside[port] = socket.socket(socket.AF_UNIX)
        outside[port].bind(f"{folder}/{port}")
        outside[port].listen(128)
    child(lambda: serve(outside, lambda port: socket.create_connection(("127.0.0.1", port))))
    enter_namespace()
    LIBC.prctl(1, signal.SIGKILL)  # entering has cleared it
    inside = {port: socket.create_server(("127.0.0.1", port), backlog=128) for port in ports}
    child(lambda: serve(inside, lambda port: connects(f"{folder}/{port}")))
    for listener in [*outside.values(), *inside.values()]:
        listener.close()
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
