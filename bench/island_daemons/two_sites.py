"""Real daemons on two sites of two workers each, in network namespaces joined by a shaped link, whose
steps can be watched: what this folder's benchmark is written with."""
import os
import re
import statistics
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
sys.path[:0] = [os.path.join(ROOT, "tests", "e2e"), os.path.join(ROOT, "tests", "net")]
from cluster import Cluster  # noqa: E402
from corpus import write_corpus  # noqa: E402
from shaped import ShapedNetwork, Unavailable, Link  # noqa: E402,F401

WORKERS = {"w1": "a1", "w2": "a2", "w3": "b1", "w4": "b2"}  # and where each runs
# A GPT-2 of 14 blocks. A message between stages has 16 sequences of 32 tokens, 64 wide, in fp32:
# 131,072 bytes, 10.5 ms of a link of 100 Mbit/s. A block's F, B or W of as much lasts 2 ms.
BLOCK_MS = 0.125  # of one sequence
MICRO_BATCHES = 16
JOB = """name = "{name}"
model = {{ family = "gpt2", hidden = 64, layers = 14, heads = 4 }}
data = {{ path = "text", sequence_length = 32 }}
inner = {{ batch_sequences = 256, micro_batch_sequences = 16 }}
outer = {{ steps_per_round = 1000, min_islands = 1 }}
layout = {{ island = "all", stages = 4, schedule = "{schedule}", chunks_max = {chunks} }}
schedule = {{ train_tokens = 1000000000, checkpoint_every_steps = 0, validation_sequences = 1, validate_every_rounds = 0 }}
"""


def get_site(device):
    """Of "w1/0", say."""
    return WORKERS[device.split("/")[0]][0]


class TwoSites(Cluster):
    """Use as a context manager. Coordinator and parameter server are at a1, as is the first worker."""

    def __init__(self, folder, rate_mbit, latency_ms):
        super().__init__(folder)
        self.net = ShapedNetwork({"a": 2, "b": 2}, Link(rate_mbit, latency_ms))
        write_corpus(os.path.join(self.folder, "text"), 1_000_000)

    def __enter__(self):
        self.net.__enter__()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.close()
        self.net.close()

    def _start(self):
        here = self.net.address("a1")
        inside = self.net.inside("a1")
        self.address = here + ":7070"
        self.cli, self.cli_flags = inside, ["--insecure"]
        self.coordinator("--insecure", wrapper=inside)
        self.server("ps1", "--insecure", listen=f"tcp://{here}:7071", wrapper=inside)
        for name, host in WORKERS.items():
            self.worker(name, "--insecure", f"--peer-endpoint=tcp://{self.net.address(host)}:7080",
                        f"--site={host[0]}", f"--emulate-block-ms={BLOCK_MS}", "--log-level=debug",
                        wrapper=self.net.inside(host))
        self.wait_until("five members", lambda: sum(
            m["attached"] for m in self.json("status")["members"]) == 5)

    def trains(self, schedule, chunks=1):
        """Submits a job of this schedule ("": the planner's choice) and waits until it trains."""
        job = Training(self, schedule, chunks)
        job.steps(1)
        return job

    def link(self):
        """Latency in ms and rate in Mbit/s between the sites, as the workers measured them, the rate
        while they train: medians over all pairs."""
        found = [link["edges"][0] for link in self.json("profile")["cluster"]["links"]
                 if get_site(link["from"]) != get_site(link["to"])]
        return (statistics.median(float(edge["latency_ns"]) * 1e-6 for edge in found),
                statistics.median(edge["bandwidth_bytes_per_s"] * 8e-6 for edge in found))


class Training:
    """One job, until it is cancelled."""

    def __init__(self, sites, schedule, chunks):
        self.sites, self.began = sites, {w: len(sites.daemons[w].log()) for w in WORKERS}
        path = os.path.join(sites.folder, "job.toml")
        with open(path, "w", encoding="ascii") as out:
            out.write(JOB.format(name=schedule or "planned", schedule=schedule, chunks=chunks))
        self.id = sites.json("submit", path)["job"]

    def _steps(self):
        """Milliseconds of all steps so far, by the leader's log."""
        for name, begin in self.began.items():
            found = re.findall(r"step \d+ took ([0-9.e+]+) ms", self.sites.daemons[name].log()[begin:])
            if found:
                return [float(ms) for ms in found]
        return []

    def steps(self, count, uncounted=0):
        """The next `count` steps' milliseconds, after as many that do not count."""
        done = len(self._steps())
        self.sites.wait_until(f"{uncounted + count} steps of {self.id}",
                              lambda: len(self._steps()) >= done + uncounted + count, timeout_s=120)
        return self._steps()[done + uncounted:done + uncounted + count]

    def island(self):
        return self.sites.json("show", self.id)["islands"][0]

    def ends(self):
        self.sites.atoll("cancel", self.id)
        self.sites.wait_until(f"{self.id} to end", lambda: all(
            not i["workers"] for i in self.sites.json("show", self.id)["islands"]))
