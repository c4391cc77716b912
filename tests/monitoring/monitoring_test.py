#!/usr/bin/env python3
"""Metrics of real daemons, read by a real Prometheus: alert rules, and every query of the board."""
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../e2e"))
from story import ENDLESS_TOKENS, LIMIT_S, case, check, main  # noqa: E402
from cluster import Daemon, free_port  # noqa: E402

DEPLOY = os.path.join(HERE, "../../deploy/monitoring")


def ask(url, timeout_s=10):
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

    def __init__(self, story):
        self.story, self.ports = story, {}
        story.coordinator(self.flag("coordinator"))
        story.server("ps1", self.flag("ps1"), memory="64MiB")
        for worker in ("w1", "w2"):
            story.worker(worker, self.flag(worker), "--emulate-step-ms=5")
        story.attached(3)

    def flag(self, name):
        self.ports[name] = free_port()
        return f"--metrics-listen=127.0.0.1:{self.ports[name]}"

    def get(self, name, path):
        return ask(f"http://127.0.0.1:{self.ports[name]}{path}")

    def prometheus(self):
        """Starts it; the function that queries it."""
        with open(os.path.join(DEPLOY, "prometheus.yml"), encoding="utf-8") as file:
            text = file.read()
        for port, names in (("7001", ["coordinator"]), ("7101", ["ps1"]), ("7201", ["w1", "w2"])):
            targets = ", ".join(f'"127.0.0.1:{self.ports[n]}"' for n in names)
            text = text.replace(f'"localhost:{port}"', targets)
        text = text.replace("15s", "1s").replace("- alerts.yml",
                                                  f"- {os.path.abspath(DEPLOY)}/alerts.yml")
        path = os.path.join(self.story.folder, "prometheus.yml")
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        port = free_port()
        daemon = Daemon("prometheus", ["prometheus", f"--config.file={path}",
                                       f"--web.listen-address=127.0.0.1:{port}",
                                       f"--storage.tsdb.path={self.story.folder}/tsdb"],
                        os.path.join(self.story.folder, "prometheus.log"))
        self.story.daemons["prometheus"] = daemon
        daemon.start()

        def query(text):
            quoted = urllib.parse.quote(text)
            status, body = ask(f"http://127.0.0.1:{port}/api/v1/query?query={quoted}")
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
def every_query_of_the_board_has_data(story):
    """a Prometheus scrapes every daemon, and every query of the board and of the alerts has data"""
    monitored = Monitored(story)
    query = monitored.prometheus()
    job = story.submits("metrics", schedule__train_tokens=ENDLESS_TOKENS,
                        schedule__validate_every_rounds=1)
    story.reaches(job, 4)
    story.wait_until("all targets to be up", lambda: len(query("up == 1")) == 4, LIMIT_S)
    for expression in board_queries():
        story.wait_until(f"data of {expression}", lambda e=expression: query(e), LIMIT_S)
    with open(os.path.join(DEPLOY, "alerts.yml"), encoding="utf-8") as file:
        names = set(re.findall(r"\batoll_\w+", file.read())) - {"atoll_job"}  # a label
    for name in names:
        story.wait_until(f"data of {name}", lambda n=name: query(n), LIMIT_S)
    version = float(query(f'atoll_job_version{{atoll_job="{job}"}}')[0]["value"][1])
    check(4 <= version <= story.version(job), f"version {version}")


@case
def health_and_readiness_follow_the_daemon(story):
    """readyz fails without a coordinator, healthz does not; evictions are counted by their reason"""
    monitored = Monitored(story)
    for name in monitored.ports:
        check(monitored.get(name, "/healthz")[0] == 200, f"{name} is not healthy")
        check(monitored.get(name, "/readyz")[0] == 200, f"{name} is not ready")
    job = story.submits("evicted", schedule__train_tokens=ENDLESS_TOKENS)
    story.reaches(job, 2)
    story.daemons["w2"].kill()
    counted = f'atoll_evictions_total{{atoll_job="{job}",reason="connection_lost"}} 1'
    story.wait_until("the eviction to be counted",
                     lambda: counted in monitored.get("coordinator", "/metrics")[1], LIMIT_S)
    story.daemons["coordinator"].kill()
    story.wait_until("ps1 not to be ready",
                     lambda: monitored.get("ps1", "/readyz")[0] == 503, LIMIT_S)
    check(monitored.get("ps1", "/healthz")[0] == 200, "ps1 is not healthy without a coordinator")


if __name__ == "__main__":
    main("monitoring")
