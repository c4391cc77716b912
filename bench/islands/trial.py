"""Runs one job on real daemons of this machine and says how it went."""
import dataclasses
import datetime
import hashlib
import json
import math
import os
import re
import shutil
import statistics
import sys
import tempfile
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
from cluster import Cluster, ClusterError  # noqa: E402
from corpus import write_corpus  # noqa: E402

COMMITTED = re.compile(r"^(\S+) .*: version \d+ is committed: (\d+) tokens so far", re.M)
VALIDATED = re.compile(r"^\S+ .*: version (\d+): validation loss (?:of \S+ )?([0-9.]+) nats a token "
                       r"over (\d+) tokens", re.M)
VERSION = re.compile(r": version (\d+) is committed: (\d+) tokens so far")
STUDENT_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306,
               9: 2.262}
END_STATES = ("JOB_STATE_DONE", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED")


@dataclasses.dataclass
class Result:
    """curve: (tokens, validation loss) pairs; commits: (seconds, tokens), one for each round."""
    curve: list
    commits: list

    def final_loss(self):
        return self.curve[-1][1]

    def tokens_per_s(self, first=0.15, last=0.9):
        """Committed tokens over time, between two rounds well inside the run."""
        total = self.commits[-1][1]
        inside = [c for c in self.commits if first * total <= c[1] <= last * total]
        (begin_s, begin_tokens), (end_s, end_tokens) = inside[0], inside[-1]
        return (end_tokens - begin_tokens) / (end_s - begin_s)


def interval(values):
    """Half the width of the 95% confidence interval of the mean."""
    if len(values) < 2:
        return math.nan
    return STUDENT_975[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))


def kept_path(folder, what):
    key = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
    return os.path.join(folder, key[:24] + ".json")


def find_kept(folder, what):
    """The JSON value that keep() has put into this folder for `what`, or None."""
    path = kept_path(folder, what)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def keep(folder, what, value):
    path = kept_path(folder, what)
    os.makedirs(folder, exist_ok=True)
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(path + ".part", path)


def kept(folder, what, make):
    """make(), or what it gave when it was last called for `what` with this folder."""
    value = find_kept(folder, what)
    if value is None:
        value = make()
        keep(folder, what, value)
    return value


def toml(spec):
    """A job file: `spec` is a dict of tables, whose fields are values, tables or lists of tables."""
    def is_tables(value):
        return isinstance(value, list) and value and isinstance(value[0], dict)

    def format_fields(fields):
        return [f"{key} = {json.dumps(value)}" for key, value in fields.items()
                if not is_tables(value) and not isinstance(value, dict)]

    lines = [f'name = {json.dumps(spec["name"])}']
    for table, fields in spec.items():
        if table == "name":
            continue
        lines += [f"[{table}]", *format_fields(fields)]
        for key, value in fields.items():
            if isinstance(value, dict):
                lines += [f"[{table}.{key}]", *format_fields(value)]
            for one in value if is_tables(value) else []:
                lines += [f"[[{table}.{key}]]", *format_fields(one)]
    return "\n".join(lines) + "\n"


def merged(spec, changes):
    """A copy of the job `spec` with the fields of `changes`, table by table."""
    return {key: {**value, **changes.get(key, {})} if isinstance(value, dict) else value
            for key, value in spec.items()}


def parse_log(log):
    def seconds(stamp):
        return datetime.datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
    tokens = {0: 0, **{int(v): int(t) for v, t in VERSION.findall(log)}}
    losses = {}  # of a version: one, or one of each site that has a text
    for version, loss, count in VALIDATED.findall(log):
        losses.setdefault(int(version), []).append((float(loss), int(count)))
    return Result([(tokens[version], statistics.fmean([l for l, _ in each], [n for _, n in each]))
                   for version, each in losses.items()],
                  [(seconds(stamp), int(t)) for stamp, t in COMMITTED.findall(log)])


def wait_for_end(cluster, job, what, meanwhile, poll_s):
    shown, limit = None, time.monotonic() + 7200
    while time.monotonic() < limit:
        cluster.check_alive_but()
        summary = cluster.json("show", job)["summary"]
        if summary["validated_version"] != shown:
            shown = summary["validated_version"]
            print(f"   {what}: {int(summary['tokens_committed']):9,d} tokens, validation loss "
                  f"{summary['validation_loss']:.4f}", file=sys.stderr, flush=True)
        if meanwhile:
            meanwhile(cluster, int(summary["tokens_committed"]))
        if summary["state"] in END_STATES:
            if summary["state"] != "JOB_STATE_DONE":
                raise ClusterError(f"{what}: {summary['reason']}; logs: {cluster.folder}")
            return
        time.sleep(poll_s)
    raise ClusterError(f"{what} did not end within two hours; logs: {cluster.folder}")


def flip_labels(text):
    """The text with every second word in a reversed alphabet: what follows a word is wrong."""
    letters = bytes(range(ord("a"), ord("z") + 1))
    words = text.split(b" ")
    words[1::2] = [word.translate(bytes.maketrans(letters, letters[::-1])) for word in words[1::2]]
    return b" ".join(words)


def split_corpus(path, count, flipped=False):
    """Its parts, as texts of as many sites: names of the sites and paths. flipped: the last site's text
    has its labels flipped, and a fiftieth of the corpus validates all sites."""
    with open(path, "rb") as file:
        text = file.read()
    sites, more = [], {}
    if flipped:
        held, text = text[:len(text) // 50], text[len(text) // 50:]
        more = {"validation_path": path + ".held"}
        with open(path + ".held", "wb") as out:
            out.write(held)
    for i in range(count):
        sites.append({"site": f"s{i + 1}", "path": f"{path}.{i + 1}", **more})
        part = text[len(text) * i // count:len(text) * (i + 1) // count]
        with open(sites[-1]["path"], "wb") as out:
            out.write(flip_labels(part) if flipped == "last" and i + 1 == count else part)
    return sites


def check_hostile(cluster, name):
    with open(os.path.join(cluster.folder, name + ".log"), encoding="utf-8", errors="replace") as log:
        if "pushes its pseudo-gradient times" not in log.read():
            raise ClusterError(f"{name} was to push other values than its own, and did not")


def run_trial(what, spec, worker_flags, corpus_bytes, export_to=None, observe=None, meanwhile=None,
              own_texts=False, flipped=False, push_factor=None, site_servers=(), text=None, poll_s=0.5):
    """Trains `spec` with one worker for each list of flags in worker_flags, and one server.

    observe(cluster, job) is called when it has ended, before the daemons stop; meanwhile(cluster,
    tokens) every poll_s until then. own_texts: each worker is a site with a text of its own, a part
    of the corpus; flipped: as split_corpus has it. push_factor: the last worker is hostile, its pushes
    are its pseudo-gradients times this. site_servers: sites that have a server of their own. text: a file that has the
    corpus already. Several threads may call this at once; daemons end with the thread."""
    folder = tempfile.mkdtemp(prefix="atoll-islands-")
    corpus = os.path.join(folder, "corpus.txt")
    if text:
        shutil.copyfile(text, corpus)
    write_corpus(corpus, corpus_bytes)
    count = len(worker_flags)
    data = {"path": "corpus.txt"}
    if own_texts:
        data = {"sites": split_corpus(corpus, count, flipped)}
        worker_flags = [[*flags, f"--site=s{i + 1}"] for i, flags in enumerate(worker_flags)]
    spec = merged({"name": "islands", **spec},
                  {"data": data, "outer": {"min_islands": count, "max_islands": count}})
    job_file = os.path.join(folder, "job.toml")
    with open(job_file, "w", encoding="utf-8") as out:
        out.write(toml(spec))
    with Cluster(folder) as cluster:
        cluster.coordinator()
        cluster.server("ps1")
        for site in site_servers:
            cluster.server(f"{site}-ps", f"--site={site}", "--site-only")
        honest = count if push_factor is None else count - 1
        for i, flags in enumerate(worker_flags[:honest]):
            cluster.worker(f"w{i + 1}", *flags)
        for flags in worker_flags[honest:]:
            cluster.worker("hostile", *flags, program="hostile-worker",
                           wrapper=("env", f"ATOLL_PUSH_FACTOR={push_factor}"))
        job = cluster.wait_until("the coordinator",
                                 lambda: cluster.atoll("submit", job_file)[1].strip())
        wait_for_end(cluster, job, what, meanwhile, poll_s)
        if push_factor is not None:
            check_hostile(cluster, "hostile")
        result = parse_log(cluster.atoll("logs", "--severity=debug", job)[1])
        if observe:
            observe(cluster, job)
        if export_to:
            cluster.atoll("export", job, "--to", export_to)
    shutil.rmtree(folder)
    return result
