"""Sites of network namespaces, joined by slow links: for tests of daemons on a network that is real
to them.

    with ShapedNetwork({"a": 2, "b": 2}, Link(rate_mbit=100, latency_ms=20)) as net:
        server = net.popen("a1", ["my-daemon", "--listen", net.address("a1") + ":7000"])
        net.run("b2", ["my-client", net.address("a1") + ":7000"])
        net.reshape("a", "b", rate_mbit=10)
        net.cut("a", "b")

Site "a" of 2 has the hosts a1 and a2, each a network namespace. Hosts of one site are joined by a
bridge, unshaped. Every pair of sites is joined by a link: a token bucket (tbf) at both ends gives the
rate, and a relay between two TUN devices the latency (delay_relay.cc). Nothing of it can be seen from
outside: a program talks to a host only from inside the network, with run(), popen() or inside().

All processes end with this one, so nothing is left behind, even after a crash.
Unavailable says why a machine cannot do it.
"""
import itertools
import os
import select
import shutil
import subprocess

# Where ip and tc may be: a Bazel test's PATH has no sbin.
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
AT_ONCE = ["chrt", "--rr", "10"]
LIMIT_S = 120  # of one step of the setup; generous, because the machine may be busy


class Unavailable(Exception):
    """Why this machine cannot have such a network."""


class Link:
    """What joins two sites, in each direction: its rate and the latency one way."""

    def __init__(self, rate_mbit, latency_ms):
        if not (0 < rate_mbit <= 10_000 and 0 <= latency_ms <= 10_000):
            raise ValueError(f"a link of {rate_mbit} Mbit/s and {latency_ms} ms cannot be made")
        self.rate_mbit, self.latency_ms = rate_mbit, latency_ms

    def tbf(self):
        # A burst of 2 ms keeps the rate although timers are late, and is no gift to messages that
        # come one by one; a queue of 50 ms is what a router has.
        burst = int(min(max(self.rate_mbit * 1e6 / 8 * 2e-3, 15000), 1 << 20))
        return f"tbf rate {self.rate_mbit}mbit burst {burst} latency 50ms"


def relay_path():
    """The built relay: beside this file in a Bazel test, or in Bazel's output of this checkout."""
    here = os.path.dirname(os.path.abspath(__file__))
    for path in (os.path.join(here, "delay_relay"),
                 os.path.join(here, "../../.bz/bin/tests/net/delay_relay")):
        if os.access(path, os.X_OK):
            return path
    raise Unavailable("tests/net/delay_relay is not built; run ./dev build //tests/net/...")


def _works(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"exit {done.returncode}")


class _Holder:
    """A process that waits for the end of its standard input, and with it of this process."""

    def __init__(self, command):
        self.command = command
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)

    def ready(self):
        """Waits for its first line."""
        readable, _, _ = select.select([self.process.stdout], [], [], LIMIT_S)
        if readable and self.process.stdout.readline():
            return self
        self.process.kill()
        said = self.process.communicate()[1].strip()
        raise Unavailable(f"{' '.join(self.command)}: {said or 'no answer'}")

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


class ShapedNetwork:
    """See above. `sites`: name -> number of hosts. `links`: {("a", "b"): Link}, where they differ
    from `link`."""

    def __init__(self, sites, link, links=None):
        self.sites, self.links = dict(sites), {}
        for name, hosts in self.sites.items():
            if not (name.isalpha() and len(name) <= 6 and 1 <= hosts <= 200):
                raise ValueError(f"site {name!r} of {hosts}: 1 to 6 letters, 1 to 200 hosts")
        others = {frozenset(pair): special for pair, special in (links or {}).items()}
        for pair in itertools.combinations(self.sites, 2):
            self.links[pair] = others.pop(frozenset(pair), link)
        if others:
            raise ValueError(f"no such sites to join: {[sorted(pair) for pair in others]}")
        self._holders, self._spaces, self._user = [], {}, []

    # ---- what a test does with it ----
    def hosts(self, site):
        return [f"{site}{i}" for i in range(1, self.sites[site] + 1)]

    def address(self, host):
        name = host.rstrip("0123456789")
        if host not in self.hosts(name):
            raise KeyError(host)
        return f"10.{self._index(name)}.0.{int(host[len(name):]) + 1}"

    def inside(self, host):
        """What goes before a command so that it runs on this host."""
        return self._user + [f"--net=/proc/{self._spaces[host].process.pid}/ns/net", "--"]

    def popen(self, host, command, **options):
        return subprocess.Popen(self.inside(host) + list(command), **options)

    def run(self, host, command, **options):
        """subprocess.run on a host; by default its output is captured, and a failure is raised."""
        options = {"capture_output": True, "text": True, "check": True, "timeout": 60, **options}
        return subprocess.run(self.inside(host) + list(command), **options)

    def cut(self, one, other):
        """Everything on the wire and all that follows is lost, until mend()."""
        self._both_ends(one, other, "ip link set {device} down")

    def mend(self, one, other):
        self._both_ends(one, other, "ip link set {device} up", "ip route replace {net} dev {device}")

    def separate(self, one, other):
        """These two hosts of one site lose everything that they send each other; no other pair does."""
        for here, there in ((one, other), (other, one)):
            self._do(here, f"ip neigh replace {self.address(there)} lladdr 02:00:00:00:00:01 "
                           "dev eth0 nud permanent")

    def reunite(self, one, other):
        """After separate()."""
        for here, there in ((one, other), (other, one)):
            self._do(here, f"ip neigh del {self.address(there)} dev eth0")

    def hide(self, site, symmetric=False):
        """From now on the site is behind NAT: others see its router's address alone, and reach none of its hosts
        but by connections that these have made. `symmetric`: each connection has another port."""
        if shutil.which("nft", path=PATH) is None:
            raise Unavailable("there is no program nft (Debian: nftables)")
        ports = " fully-random" if symmetric else ""
        self._do(site, "nft -f - <<END",
                 "table ip nat { chain out { type nat hook postrouting priority 100;",
                 f' oifname != "site" masquerade{ports}; }}; }}',
                 "table ip filter { chain pass { type filter hook forward priority 0;",
                 ' ct state established,related accept; oifname "site" iifname != "site" drop; }; }', "END")

    def readdress(self, host, number):
        """The host has another address of its site, as after a new DHCP lease, and not the one before."""
        net = self.address(host).rsplit(".", 1)[0]
        self._do(host, "ip addr flush dev eth0", f"ip addr add {net}.{number}/24 dev eth0",
                 f"ip route replace default via {net}.1")

    def reshape(self, one, other, rate_mbit):
        """Changes the rate; the latency stays. What waits in the old bucket is lost: segments that
        TCP had put together for a larger burst would never fit into a smaller one, nor let anything
        pass behind them."""
        pair = self._pair(one, other)
        self.links[pair] = Link(rate_mbit, self.links[pair].latency_ms)
        self._both_ends(one, other, "tc qdisc del dev {device} root",
                        "tc qdisc add dev {device} root " + self.links[pair].tbf())

    # ---- how it is made ----
    def __enter__(self):
        try:
            self._choose_namespaces()
            for name in self.sites:
                self._make_site(name)
            for one, other in self.links:
                self._join(one, other)
        except BaseException as error:
            self.close()
            if isinstance(error, subprocess.CalledProcessError):
                raise Unavailable(f"{error.cmd[-1]!r}: {error.stderr.strip() or error}") from None
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        while self._holders:
            self._holders.pop().end()
        self._spaces.clear()

    def _hold(self, command):
        holder = _Holder(command)
        self._holders.append(holder)
        return holder.ready()

    def _choose_namespaces(self):
        """Network namespaces directly where that is allowed, otherwise inside a user namespace."""
        for tool in ("ip", "tc", "unshare", "nsenter"):
            if shutil.which(tool, path=PATH) is None:
                raise Unavailable(f"there is no program {tool} (Debian: iproute2, util-linux)")
        if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
            raise Unavailable("/dev/net/tun cannot be opened: no TUN devices for the latency")
        relay_path()
        # Before what computes: packets that wait for a busy processor would be a slower link.
        self._at_once = [] if _works(AT_ONCE + ["true"]) else AT_ONCE
        if not _works(["unshare", "--net", "true"]):
            self._user, self._fresh = ["nsenter"], ["unshare", "--net"]
            return
        why = _works(["unshare", "--user", "--map-root-user", "--net", "true"])
        if why:
            raise Unavailable(f"no network namespaces, neither as this user nor in a user namespace: "
                              f"{why}")
        owner = self._hold(["unshare", "--user", "--map-root-user", "--net",
                            "sh", "-c", "echo up && exec cat"])
        self._user = ["nsenter", f"--user=/proc/{owner.process.pid}/ns/user",
                      "--preserve-credentials"]
        self._fresh = self._user + ["--", "unshare", "--net"]

    def _make_space(self, name, *script):
        self._spaces[name] = self._hold(self._fresh + ["sh", "-c", "echo up && exec cat"])
        self._do(name, "ip link set lo up", *script)

    def _do(self, name, *script):
        self.run(name, ["sh", "-ec", "\n".join([f"PATH={PATH!r}", *script])])

    def _make_site(self, name):
        net = f"10.{self._index(name)}.0"
        self._make_space(name, "echo 1 > /proc/sys/net/ipv4/ip_forward",
                         "ip link add site type bridge", f"ip addr add {net}.1/24 dev site",
                         "ip link set site up")
        for i, host in enumerate(self.hosts(name)):
            self._make_space(host)
            self._do(name, f"ip link add port{i} type veth peer name eth0 netns "
                           f"{self._spaces[host].process.pid}",
                     f"ip link set port{i} master site up")
            self._do(host, f"ip addr add {self.address(host)}/24 dev eth0", "ip link set eth0 up",
                     f"ip route add default via {net}.1")

    def _join(self, one, other):
        link = self.links[one, other]
        names = [f"{one}-{other}", f"{other}-{one}"]
        self._hold(self.inside(one) + self._at_once + [relay_path(), *names, str(round(link.latency_ms * 1000))])
        self._do(one, f"ip link set {names[1]} netns {self._spaces[other].process.pid}")
        # A relay that is late (the machine is busy) loses nothing of what the rate has let through.
        self._both_ends(one, other, "ip link set {device} txqueuelen 20000 up",
                        "tc qdisc add dev {device} root " + link.tbf(),
                        "ip route add {net} dev {device}")

    def _both_ends(self, one, other, *script):
        self._pair(one, other)
        for here, there in ((one, other), (other, one)):
            words = {"device": f"{here}-{there}", "net": f"10.{self._index(there)}.0.0/24"}
            self._do(here, *(line.format(**words) for line in script))

    def _pair(self, one, other):
        return (one, other) if (one, other) in self.links else (other, one)

    def _index(self, site):
        return list(self.sites).index(site) + 1
