"""Starts Atoll's real daemons on this machine, kills them and starts them again.

The end-to-end tests and the benchmarks of whole clusters are written with it. Every daemon
dies with this process, whatever happens to it. All traffic stays on loopback.
"""
import ctypes
import json
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
LIBC = ctypes.CDLL(None)  # here: another thread may hold the loader's lock when a child is forked
PORTS_LOCK, PORTS = threading.Lock(), set()


class ClusterError(Exception):
    """Something that the cluster's user should read: one line, and where to look further."""


def built_folder():
    """Bazel's outputs: $ATOLL_BIN, the runfiles of a Bazel test, or those of this checkout."""
    if "ATOLL_BIN" in os.environ:
        return os.environ["ATOLL_BIN"]
    if "TEST_SRCDIR" in os.environ:
        return os.path.join(os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"])
    return os.path.join(ROOT, ".bz", "bin")


def built_file(path):
    found = os.path.join(built_folder(), path)
    if not os.access(found, os.R_OK):
        raise ClusterError(f"no {path} in {built_folder()}; run ./dev build")
    return found


def binary(name):
    """Path of a built program. $ATOLL_BIN may also be a folder of programs alone."""
    paths = {"atoll": "cli/atoll", "atoll-coordinator": "coordinator/atoll-coordinator",
              "atoll-worker": "worker/atoll-worker",
              "hostile-worker": "bench/outer_quality/hostile-worker",
              "atoll-paramserver": "paramserver/atoll-paramserver"}
    folder = built_folder()
    for candidate in (os.path.join(folder, paths[name]), os.path.join(folder, name)):
        if os.access(candidate, os.X_OK):
            return candidate
    raise ClusterError(f"{name} is not built: no {paths[name]} in {folder}; run ./dev build")


def parse_json(text):
    """protobuf's JSON form has 64-bit integers as strings: they become int here. What is null is left out."""
    def plain(value):
        if isinstance(value, list):
            return [plain(item) for item in value]
        if isinstance(value, str) and re.fullmatch("-?[0-9]+", value):
            return int(value)
        return value

    return json.loads(text, object_hook=lambda fields: {k: plain(v) for k, v in fields.items() if v is not None})


def decided_twice(decisions):
    """Contributions that two rounds have accepted."""
    seen, twice = set(), []
    for decision in decisions:
        for p in decision["participants"]:
            name = (p["island"], p["generation"], p["incarnation"], p["base_version"])
            if p["accepted"] and name in seen:
                twice.append(name)
            if p["accepted"]:
                seen.add(name)
    return twice


def free_port():
    """None that the kernel gives to outgoing connections: they would take it while its daemon is down,
    and one to itself even succeeds. None twice: threads of this process may have a cluster each."""
    for port in random.sample(range(20_000, 32_768), 100):
        with PORTS_LOCK, socket.socket() as probe:
            if port in PORTS:
                continue
            try:
                probe.bind(("127.0.0.1", port))
                PORTS.add(port)
                return port
            except OSError:
                pass
    raise ClusterError("of 100 ports from 20000 to 32767 none is free")


def die_with_parent():
    """Runs in the child: no daemon outlives the thread that started it, and Ctrl-C reaches only us."""
    os.setpgrp()
    LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Daemon:
    """One process that can be killed, stopped, frozen and started again with the same state."""

    def __init__(self, name, command, log_path, cwd=None):
        self.name, self.command, self.log_path, self.cwd = name, command, log_path, cwd
        self.process = None
        self.starts = 0

    def start(self):
        if self.alive():
            raise ClusterError(f"{self.name} is running already")
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, cwd=self.cwd,
                                            preexec_fn=die_with_parent)
        self.starts += 1

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        """SIGKILL: no goodbye."""
        self.process.kill()
        self.process.wait()

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def stop(self, timeout_s=60):
        """SIGTERM, and its exit code. A worker that shares an island waits until others have its
        state, at most 30 s without progress."""
        if self.process is None:
            return 0
        if self.alive():
            self.process.terminate()
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ClusterError(f"{self.name} did not end within {timeout_s} s of SIGTERM; "
                               f"see {self.log_path}") from None

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as text:
            return text.read()


class Cluster:
    """A coordinator and its members in one folder. Use as a context manager."""

    def __init__(self, folder):
        self.folder = os.path.abspath(folder)
        os.makedirs(self.folder, exist_ok=True)
        self.address = f"127.0.0.1:{free_port()}"
        self.daemons = {}
        self.kept = set()  # daemons that are started again when they fail, as systemd does
        self.cli, self.cli_flags = [], []  # what goes before the CLI's program and after it

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends every daemon, politely at first."""
        alive = [d for d in self.daemons.values() if d.alive()]
        for daemon in alive:
            daemon.thaw()
            daemon.process.terminate()
        limit = time.monotonic() + 10
        for daemon in alive:
            try:
                daemon.process.wait(max(0.1, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                daemon.kill()

    def _add(self, name, program, *arguments, wrapper=(), cwd=None):
        """Starts wrapper + program. `name` names its state folder and its log."""
        daemon = Daemon(name, [*wrapper, binary(program), *arguments,
                               "--state-dir=" + os.path.join(self.folder, name)],
                        os.path.join(self.folder, name + ".log"), cwd)
        self.daemons[name] = daemon
        daemon.start()
        return daemon

    def coordinator(self, *flags, wrapper=()):
        return self._add("coordinator", "atoll-coordinator", "--listen=" + self.address, *flags,
                         wrapper=wrapper)

    def etcd(self, members=1, flags=()):
        """Starts etcd1.. (Debian's etcd-server); returns their endpoints, HOST:PORT each."""
        program = "/usr/bin/etcd"
        if not os.access(program, os.X_OK):
            raise ClusterError("etcd is not installed; ./dev deps installs the package etcd-server")
        names = [f"etcd{i}" for i in range(1, members + 1)]
        peers = {name: f"http://127.0.0.1:{free_port()}" for name in names}
        clients = {name: f"127.0.0.1:{free_port()}" for name in names}
        everyone = ",".join(f"{name}={url}" for name, url in peers.items())
        for name in names:
            self.daemons[name] = Daemon(name, [
                program, "--name=" + name, "--data-dir=" + os.path.join(self.folder, name),
                "--listen-client-urls=http://" + clients[name],
                "--advertise-client-urls=http://" + clients[name],
                "--listen-peer-urls=" + peers[name], "--initial-advertise-peer-urls=" + peers[name],
                "--initial-cluster=" + everyone, *flags], os.path.join(self.folder, name + ".log"))
            self.daemons[name].start()
        return list(clients.values())

    def coordinators(self, stores, *flags):
        """Starts c1.., with one --store each, of one etcd: one of them leads. Members that are started
        later, and the CLI, get all of their addresses."""
        addresses = [f"127.0.0.1:{free_port()}" for _ in stores]
        for i, (address, store) in enumerate(zip(addresses, stores)):
            self._add(f"c{i + 1}", "atoll-coordinator", "--listen=" + address, "--store=" + store,
                      *flags)
        self.coordinator_at = {f"c{i + 1}": address for i, address in enumerate(addresses)}
        self.kept = set(self.coordinator_at)
        self.address = ",".join(addresses)

    def leader(self):
        """Name of the coordinator that leads; None: none does now."""
        for name, address in self.coordinator_at.items():
            if self.daemons[name].alive() and self.atoll(
                    "--coordinator", address, "status", check=False)[0] == 0:
                return name
        return None

    def server(self, name, *flags, memory="1GiB", listen="tcp://127.0.0.1:0", wrapper=()):
        return self._add(name, "atoll-paramserver", "--coordinator=" + self.address,
                         "--name=" + name, "--listen=" + listen,
                         "--memory-bytes=" + memory, *flags, wrapper=wrapper)

    def worker(self, name, *flags, threads=1, process=None, cwd=None, wrapper=(), program="atoll-worker"):
        """`process`: the daemon's name here, where several are to have one name there."""
        return self._add(process or name, program, "--coordinator=" + self.address,
                         "--name=" + name, f"--threads={threads}", *flags, wrapper=wrapper, cwd=cwd)

    def atoll(self, *arguments, check=True, timeout_s=60):
        """Runs the CLI: (exit code, standard output, standard error)."""
        # No user is there to confirm what cannot be undone.
        environment = dict(os.environ, ATOLL_COORDINATOR=self.address, ATOLL_CANCEL_YES="true", ATOLL_RM_YES="true")
        done = subprocess.run([*self.cli, binary("atoll"), *self.cli_flags, *arguments], env=environment,
                              text=True, errors="replace",  # a byte model writes any bytes
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=timeout_s, check=False)
        if check and done.returncode != 0:
            raise ClusterError(f"atoll {' '.join(arguments)}: exit code {done.returncode}: "
                               f"{done.stderr.strip()}")
        return done.returncode, done.stdout, done.stderr

    def json(self, *arguments):
        return parse_json(self.atoll(*arguments, "--json")[1])

    def check_alive_but(self, *excepted):
        """Raises for a daemon that ended by itself."""
        for daemon in self.daemons.values():
            if daemon.name not in excepted and daemon.process is not None and not daemon.alive():
                raise ClusterError(f"{daemon.name} ended with code {daemon.process.returncode}; "
                                   f"the end of its log:\n{daemon.log()[-1500:]}")

    def _restart_failed(self):
        """A coordinator ends by itself, with 1, when its etcd answers too late: on a busy machine at any time."""
        for name in self.kept:
            daemon = self.daemons[name]
            if daemon.process is not None and daemon.process.poll() == 1:
                daemon.start()

    def wait_until(self, what, condition, timeout_s=60, every_s=0.2, slowest_s=0):
        """Waits for condition() to be true; returns its value. It polls less and less often, down to once in
        slowest_s."""
        limit = time.monotonic() + timeout_s
        while True:
            try:
                value = condition()
            except ClusterError:
                if time.monotonic() > limit:
                    raise
                value = None
            if value:
                return value
            if time.monotonic() > limit:
                raise ClusterError(f"no {what} within {timeout_s} s; logs: {self.folder}")
            self._restart_failed()
            time.sleep(every_s)
            every_s = max(every_s, min(1.25 * every_s, slowest_s))
