#!/usr/bin/python3
"""A worker that reaches nothing but an HTTP proxy trains through it, and goes on when the proxy is back."""
import os
import socket
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, case, check, main  # noqa: E402
from cluster import free_port  # noqa: E402


class Proxy:
    """Answers CONNECT on 127.0.0.1; `targets` is all that was wanted of it."""

    def __init__(self):
        self.port = free_port()
        self.targets, self.open, self.lock = [], [], threading.Lock()
        self.listener = None

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", self.port), reuse_port=True)
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()
        return self

    def __exit__(self, *_):
        """Ends the proxy and all connections that it carries."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        with self.lock:
            for one in self.open:
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            self.open.clear()

    def _accept(self, listener):
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            got = near.recv(1)
            if not got:
                return
            head += got
        method, target, _ = head.split(b"\r\n")[0].decode("ascii").split(" ")
        host, _, port = target.rpartition(":")
        try:
            far = socket.create_connection((host, int(port)))
        except OSError:
            near.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            near.close()
            return
        with self.lock:
            self.targets.append((method, target))
            self.open += [near, far]
        near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        threading.Thread(target=self._forward, args=(far, near), daemon=True).start()
        self._forward(near, far)

    @staticmethod
    def _forward(source, to):
        try:
            while data := source.recv(65536):
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@case
def trains_through_a_proxy(fixture):
    """Control and tensors of a worker go through the proxy of its environment; the proxy ends in the middle of
    the job, and comes back; every token is committed once"""
    fixture.address = fixture.address.replace("127.0.0.1", "127.0.0.2")
    fixture.coordinator()
    fixture.server("ps1", memory="64MiB", listen="tcp://127.0.0.2:0")
    proxy = Proxy()
    with proxy:
        fixture.worker("w1", "--emulate-step-ms=20", wrapper=("env", f"HTTPS_PROXY=http://127.0.0.1:{proxy.port}"))
        fixture.attached(2)
        job = fixture.submits(outer__min_islands=1)
        fixture.reaches(job, 3)
        endpoint = next(m["endpoint"] for m in fixture.status()["members"] if m["kind"] == "paramserver")
        wanted = {("CONNECT", fixture.address), ("CONNECT", endpoint.removeprefix("tcp://"))}
        check(set(proxy.targets) == wanted, f"connections to {proxy.targets}, not {wanted}")
        before = len(proxy.targets)
    with proxy:
        fixture.meanwhile("the worker to connect again", job, lambda: len(proxy.targets) >= before + 2, LIMIT_S)
        fixture.reaches(job, fixture.version(job) + 2)
        fixture.finishes(job, fixture.job(job)["decisions"])


@case
def says_which_proxy_does_not_answer(fixture):
    """A command whose proxy is not there names it, without its password, and the way around it"""
    fixture.address = fixture.address.replace("127.0.0.1", "127.0.0.2")
    fixture.coordinator()
    port = free_port()
    fixture.cli = ["env", f"https_proxy=http://user:secret@127.0.0.1:{port}"]
    code, _, error = fixture.atoll("status", check=False)
    check(code == 1, f"exit code {code}")
    check(f"http://127.0.0.1:{port}" in error and "no_proxy" in error and "secret" not in error, error)


if __name__ == "__main__":
    main("proxy")
