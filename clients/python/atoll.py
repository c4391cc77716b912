"""Atoll's coordinator from Python, over HTTP (docs/reference/http.md). One file, without dependencies.

    from atoll import Coordinator
    coordinator = Coordinator("http://127.0.0.1:7080")   # atoll-coordinator --http-listen 127.0.0.1:7080
    job = coordinator.submit(open("job.toml").read())    # paths in it are absolute
    for state in coordinator.watch(job):
        print(state["state"], state["version"], state["train_loss"])
    rounds = coordinator.metrics(job)                    # a list of dicts, one a point
"""
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request

ENDED = ("done", "failed", "cancelled")
TIMEOUT_S = 30


class AtollError(Exception):
    """What the coordinator says of a request that it refuses, or why it does not answer."""


def _plain(summary):
    """A job's summary with numbers as numbers and the state in a word."""
    plain = {name: _number(value) for name, value in summary.items()}
    plain["state"] = summary["state"].removeprefix("JOB_STATE_").lower()
    return plain


def _number(value):
    """64-bit integers come as strings."""
    if isinstance(value, str) and value.removeprefix("-").isdigit():
        return int(value)
    return value


class Coordinator:
    """Calls of one coordinator. With TLS, `context` has the user's certificate (ssl.SSLContext)."""

    def __init__(self, url, context: ssl.SSLContext | None = None):
        self.url, self.context = url.rstrip("/"), context

    def submit(self, job_file):
        """Submits the text of a job file and returns the job's id."""
        return self._act("submit", body=job_file.encode())["job"]

    def set(self, job, **settings):
        """Changes settings of a job that has not ended: set(job, **{"inner.learning_rate": 1e-4})."""
        body = "".join(f"{name}={value}\n" for name, value in settings.items())
        return self._act("set", body=body.encode(), job=job).get("changes", [])

    def jobs(self):
        """Summaries of all jobs, in the order of their submission."""
        return [_plain(job) for job in self._get("jobs")["jobs"]]

    def job(self, job):
        """Its summary now: state, version, losses, tokens."""
        return _plain(self._get("job", job=job)["summary"])

    def watch(self, job, every_s=2.0):
        """Yields its summary now and again until it has ended."""
        while True:
            summary = self.job(job)
            yield summary
            if summary["state"] in ENDED:
                return
            time.sleep(every_s)

    def metrics(self, job, points=4096):
        """Its curve over all islands: a dict a point, with time, version, tokens and loss."""
        curve = self._get("history", job=job, points=points, islands=1)["rounds"] or {}
        names = [name for name, values in curve.items() if values]
        return [dict(zip(names, values)) for values in zip(*(curve[name] for name in names))]

    def settings(self, job):
        """Its job file, with all defaults."""
        return self._get("settings", job=job)["toml"]

    def logs(self, job="", tail=500):
        """Lines of its log, or of the whole log, oldest first."""
        return self._get("logs", job=job, tail=tail)

    def pause(self, job):
        return _plain(self._act("pause", job=job))

    def resume(self, job):
        return _plain(self._act("resume", job=job))

    def cancel(self, job):
        return _plain(self._act("cancel", job=job))

    def _get(self, call, **parameters):
        return self._call(call, parameters, None, {})

    def _act(self, call, body=b"", **parameters):
        return self._call(call, parameters, body, {"X-Atoll-Action": "1", "Content-Type": "application/toml"})

    def _call(self, call, parameters, body, headers):
        query = urllib.parse.urlencode({name: value for name, value in parameters.items() if value != ""})
        request = urllib.request.Request(f"{self.url}/api/v1/{call}?{query}", data=body, headers=headers,
                                         method="GET" if body is None else "POST")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self.context) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            try:
                text = json.load(error)["text"]
            except (ValueError, KeyError):
                text = str(error)
            raise AtollError(text) from None
        except (OSError, ValueError) as error:
            raise AtollError(f"{self.url}: {error}") from None
