#!/usr/bin/env python3
"""Metrics of real daemons, read by a real Prometheus: alert rules, and every query of the board. Rounds
as traces, received by a collector."""
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../e2e"))
from fixture import ENDLESS_TOKENS, LIMIT_S, case, check, main  # noqa: E402
from cluster import Daemon, free_port  # noqa: E402

DEPLOY = os.path.join(HERE, "../../deploy/monitoring")


def fetch(url, timeout_s=LIMIT_S):
    """(status, text)"""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def run(*command):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False)
    check(done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}")


@case
def rules_hold(_):
    """alert rules are valid and their tests pass"""
    run("promtool", "check", "rules", os.path.join(DEPLOY, "alerts.yml"))
    run("promtool", "test", "rules", os.path.join(DEPLOY, "alerts_test.yml"))
    run("promtool", "check", "config", os.path.join(DEPLOY, "prometheus.yml"))


class Monitored:
    """A cluster whose daemons are all scraped by a Prometheus."""

    def __init__(self, fixture):
        self.fixture, self.ports = fixture, {}
        fixture.coordinator(self.flag("coordinator"))
        fixture.server("ps1", self.flag("ps1"), memory="64MiB")
        for worker in ("w1", "w2"):
            fixture.worker(worker, self.flag(worker), "--emulate-step-ms=5")
        fixture.attached(3)

    def flag(self, name):
        self.ports[name] = free_port()
        return f"--metrics-listen=127.0.0.1:{self.ports[name]}"

    def get(self, name, path):
        return fetch(f"http://127.0.0.1:{self.ports[name]}{path}")

    def prometheus(self):
        """Starts it; the function that queries it."""
        with open(os.path.join(DEPLOY, "prometheus.yml"), encoding="utf-8") as file:
            text = file.read()
        for port, names in (("7001", ["coordinator"]), ("7101", ["ps1"]), ("7201", ["w1", "w2"])):
            targets = ", ".join(f'"127.0.0.1:{self.ports[n]}"' for n in names)
            text = text.replace(f'"localhost:{port}"', targets)
        text = text.replace("15s", "1s").replace("- alerts.yml",
                                                  f"- {os.path.abspath(DEPLOY)}/alerts.yml")
        path = os.path.join(self.fixture.folder, "prometheus.yml")
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        port = free_port()
        daemon = Daemon("prometheus", ["prometheus", f"--config.file={path}",
                                       f"--web.listen-address=127.0.0.1:{port}",
                                       f"--storage.tsdb.path={self.fixture.folder}/tsdb"],
                        os.path.join(self.fixture.folder, "prometheus.log"))
        self.fixture.daemons["prometheus"] = daemon
        daemon.start()

        def query(text):
            quoted = urllib.parse.quote(text)
            status, body = fetch(f"http://127.0.0.1:{port}/api/v1/query?query={quoted}")
            check(status in (0, 200), f"{text}: {body}")
            return json.loads(body)["data"]["result"] if status == 200 else []
        return query


def board_queries():
    with open(os.path.join(DEPLOY, "grafana.json"), encoding="utf-8") as file:
        board = json.load(file)
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$job", ".*").replace("[5m]", "[20s]")


@case
def every_query_of_the_board_has_data(fixture):
    """a Prometheus scrapes every daemon, and every query of the board and of the alerts has data"""
    monitored = Monitored(fixture)
    query = monitored.prometheus()
    job = fixture.submits("metrics", schedule__train_tokens=ENDLESS_TOKENS,
                          schedule__validate_every_rounds=1)
    fixture.reaches(job, 4)
    fixture.wait_until("all targets to be up", lambda: len(query("up == 1")) == 4, LIMIT_S)
    for expression in board_queries():
        fixture.wait_until(f"data of {expression}", lambda e=expression: query(e), LIMIT_S)
    with open(os.path.join(DEPLOY, "alerts.yml"), encoding="utf-8") as file:
        names = set(re.findall(r"\batoll_\w+", file.read())) - {"atoll_job"}  # a label
    for name in names:
        fixture.wait_until(f"data of {name}", lambda n=name: query(n), LIMIT_S)
    version = float(query(f'atoll_job_version{{atoll_job="{job}"}}')[0]["value"][1])
    check(4 <= version <= fixture.version(job), f"version {version}")


@case
def health_and_readiness_follow_the_daemon(fixture):
    """readyz fails without a coordinator, healthz does not; evictions are counted by their reason"""
    monitored = Monitored(fixture)
    for name in monitored.ports:
        check(monitored.get(name, "/healthz")[0] == 200, f"{name} is not healthy")
        check(monitored.get(name, "/readyz")[0] == 200, f"{name} is not ready")
    job = fixture.submits("evicted", schedule__train_tokens=ENDLESS_TOKENS)
    fixture.reaches(job, 2)
    fixture.daemons["w2"].kill()
    counted = f'atoll_evictions_total{{atoll_job="{job}",reason="connection_lost"}} 1'
    fixture.wait_until("the eviction to be counted",
                       lambda: counted in monitored.get("coordinator", "/metrics")[1], LIMIT_S)
    fixture.daemons["coordinator"].kill()
    fixture.wait_until("ps1 not to be ready",
                       lambda: monitored.get("ps1", "/readyz")[0] == 503, LIMIT_S)
    check(monitored.get("ps1", "/healthz")[0] == 200, "ps1 is not healthy without a coordinator")


@case
def a_paused_job_has_no_speed(fixture):
    """the speed of a paused job is zero in the metrics of the coordinator and of its workers"""
    monitored = Monitored(fixture)
    job = fixture.submits("held", schedule__train_tokens=ENDLESS_TOKENS)
    fixture.reaches(job, 2)

    def speeds():
        """By daemon and metric."""
        found = {}
        for name in ("coordinator", "w1", "w2"):
            text = monitored.get(name, "/metrics")[1]
            for metric, value in re.findall(r"^(atoll_\w+_tokens_per_second)\{.*\} (\S+)$", text, re.M):
                found[name, metric] = max(float(value), found.get((name, metric), 0))
        return found

    def all_are(wanted):
        found = speeds()
        return len(found) == 4 and all((value > 0) == wanted for value in found.values())
    fixture.wait_until("a speed in every metric", lambda: all_are(True), LIMIT_S)
    fixture.atoll("pause", job)
    fixture.wait_until("no speed in any metric", lambda: all_are(False), LIMIT_S)
    fixture.atoll("resume", job)
    fixture.wait_until("a speed in every metric", lambda: all_are(True), LIMIT_S)


class Collector:
    """An OpenTelemetry collector's HTTP port: keeps the spans that are posted to it."""

    def __init__(self):
        spans = self.spans = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):  # noqa: N802
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                accepted = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/json"
                if accepted:
                    spans.extend([{"service": attributes(group["resource"]).get("service.name"),
                                   "key": self.headers.get("x-key"), **span}
                                  for group in body["resourceSpans"]
                                  for scope in group["scopeSpans"] for span in scope["spans"]])
                self.send_response(200 if accepted else 400)
                self.end_headers()

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def attributes(of):
    """OTLP's JSON: each value stands under the name of its type."""
    return {each["key"]: next(iter(each["value"].values())) for each in of["attributes"]}


@case
def rounds_arrive_as_traces(fixture):
    """a collector that the OTEL_ variables name receives each round as a trace with its pushes"""
    collector = Collector()
    fixture.coordinator(wrapper=["env", f"OTEL_EXPORTER_OTLP_ENDPOINT={collector.url}",
                                 "OTEL_EXPORTER_OTLP_HEADERS=x-key=secret", "OTEL_BSP_SCHEDULE_DELAY=200"])
    fixture.server("ps1", memory="64MiB")
    for worker in ("w1", "w2"):
        fixture.worker(worker, "--emulate-step-ms=5")
    fixture.attached(3)
    job = fixture.submits("traced", schedule__train_tokens=ENDLESS_TOKENS)
    fixture.reaches(job, 4)

    def roots():
        return [s for s in collector.spans if s["name"] == "outer round"]
    fixture.wait_until("rounds as traces", lambda: len(roots()) >= 3, LIMIT_S)
    decisions = {d["round"]: d for d in fixture.job(job)["decisions"]}
    for root in roots()[:3]:
        check((root["service"], root["key"]) == ("atoll-coordinator", "secret"), f"not as set: {root}")
        about = attributes(root)
        decision = decisions[int(about["atoll.round"])]
        check((about["atoll.job"], int(about["atoll.version"])) == (job, decision["version"]), f"{about}")
        parts = [s for s in collector.spans if s["traceId"] == root["traceId"] and s is not root]
        check(all(s["parentSpanId"] == root["spanId"] for s in parts), f"spans without their round: {parts}")
        pushes = {int(attributes(s)["atoll.island"]): attributes(s)["atoll.accepted"]
                  for s in parts if s["name"] == "push"}
        made = {p["island"]: p["accepted"] for p in decision["participants"]}
        check(pushes == made, f"pushes {pushes} of round {about['atoll.round']}: {made}")
        check([s["name"] for s in parts].count("commit") == 1, f"commits: {parts}")
        for span in [root, *parts]:
            begin, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
            check(int(root["startTimeUnixNano"]) <= begin <= end <= int(root["endTimeUnixNano"]),
                  f"a span outside its round: {span}")
    # A collector that fails delays nothing.
    collector.server.shutdown()
    collector.server.server_close()
    fixture.reaches(job, fixture.version(job) + 3)


if __name__ == "__main__":
    main("monitoring")
