#!/usr/bin/python3
"""clients/python/atoll.py, and docs/reference/openapi.yaml, with real daemons."""
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../clients/python")]
from atoll import AtollError, Coordinator  # noqa: E402
from cluster import free_port  # noqa: E402
from fixture import case, check, main  # noqa: E402


def unlike(schemas, schema, value, at):
    """Where a value is not as a schema says, a line each. A field that no schema has is one, too."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rsplit("/", 1)[1]]
    if "oneOf" in schema:
        if not any(not list(unlike(schemas, one, value, at)) for one in schema["oneOf"]):
            yield f"{at}: {value!r}"
        return
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
    right = isinstance(value, kinds[schema["type"]]) and (schema["type"] == "boolean" or not isinstance(value, bool))
    if not right or value not in schema.get("enum", [value]):
        yield f"{at}: {value!r} is no {schema}"
    elif schema["type"] == "array":
        for number, item in enumerate(value):
            yield from unlike(schemas, schema["items"], item, f"{at}[{number}]")
    elif schema["type"] == "object":
        for name, item in value.items():
            of_field = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if of_field is None:
                yield f"{at}.{name}: is not described"
            elif item is not None:
                yield from unlike(schemas, of_field, item, f"{at}.{name}")


@case
def calls_answer_as_the_reference_says(fixture):
    """Each call of openapi.yaml is made with its parameters; the answer has the fields and types that it says"""
    with open(os.path.join(HERE, "../../docs/reference/openapi.yaml"), encoding="utf-8") as file:
        reference = yaml.safe_load(file)
    port = free_port()
    fixture.coordinator(f"--http-listen=127.0.0.1:{port}")
    fixture.server("ps1", memory="64MiB")
    fixture.worker("w1")
    fixture.worker("w2")
    fixture.attached(3)
    coordinator = Coordinator(f"http://127.0.0.1:{port}")
    with open(fixture.job_file(schedule__train_tokens=100_000_000), encoding="utf-8") as file:
        text = file.read()
    job = coordinator.submit(text)
    fixture.wait_until("a round", lambda: coordinator.job(job)["version"] >= 1, 120)
    values = {"job": job, "decisions": 4, "island": 0, "points": 16, "islands": 2, "tail": 8, "after": 0,
              "severity": "info", "contains": "", "server": "ps1", "undo": "1", "before": 0}
    bodies = {"submit": text, "set": "outer.grace_seconds=7\ninner.schedule=linear"}
    ended = ["cancel", "submit"]  # in this order, after all others
    calls = [(path, method, call) for path, methods in reference["paths"].items() for method, call in methods.items()]
    calls.sort(key=lambda call: ended.index(call[2]["operationId"]) if call[2]["operationId"] in ended else -1)
    wrong = []
    for path, method, call in calls:
        query = {one["name"]: values[one["name"]] for one in call["parameters"] if one["in"] == "query"}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}?{urllib.parse.urlencode(query)}", method=method.upper(),
            data=bodies[call["operationId"]].encode() if "requestBody" in call else b"" if method == "post" else None,
            headers={"X-Atoll-Action": "1"} if method == "post" else {})
        content = call["responses"]["200"]["content"]
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                if "text/event-stream" in content:
                    check(reply.readline().startswith(b"data: {"), "no event")
                else:
                    wrong += unlike(reference["components"]["schemas"], content["application/json"]["schema"],
                                    json.load(reply), path)
        except urllib.error.HTTPError as error:
            wrong.append(f"{path}: {error.code} {error.read().decode()}")
    check(not wrong, "\n".join(wrong))
    for path, code in ((f"job?job={job}0", 404), ("jobz", 404), (f"pause?job={job}", 403)):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=120, data=b"" if code == 403 else None)
            check(False, f"{path} is not refused")
        except urllib.error.HTTPError as error:
            check(error.code == code and list(json.load(error)) == ["text"], f"{path}: {error.code}")


@case
def job_is_submitted_watched_and_read(fixture):
    """Python submits a job file, watches the job to its end and reads its curve; what is wrong is refused by name"""
    port = free_port()
    fixture.coordinator(f"--http-listen=127.0.0.1:{port}")
    fixture.server("ps1", memory="64MiB")
    for name in ("w1", "w2"):
        fixture.worker(name)
    fixture.attached(3)
    coordinator = Coordinator(f"http://127.0.0.1:{port}")
    with open(fixture.job_file(), encoding="utf-8") as file:
        text = file.read()
    job = coordinator.submit(text)
    check([one["job"] for one in coordinator.jobs()] == [job], f"{coordinator.jobs()}")
    states = list(coordinator.watch(job, every_s=0.2))
    check(states[-1]["state"] == "done", f"{states[-1]}")
    points = coordinator.metrics(job)
    check(len(points) == states[-1]["version"], f"{len(points)} points, {states[-1]}")
    check(points[-1]["version"] == states[-1]["version"] and points[-1]["loss"] < points[0]["loss"], f"{points}")
    check(sum(point["tokens"] for point in points) == states[-1]["tokens_committed"], f"{points}")
    check("hidden = 32" in coordinator.settings(job), coordinator.settings(job))
    check(coordinator.logs(job), "no line")

    endless = coordinator.submit(text.replace('name = "job"', 'name = "endless"').replace(
        "train_tokens = ", "train_tokens = 1"))
    check(coordinator.cancel(endless)["state"] == "cancelled", "not cancelled")
    for wrong, words in ((text.replace("hidden", "hiden"), "hiden"), (text.replace("hidden = 32", "hidden = -1"), "hidden")):
        try:
            coordinator.submit(wrong)
        except AtollError as error:
            check(words in str(error), str(error))
        else:
            check(False, f"submitted: {words}")
    try:
        coordinator.job("none-1")
    except AtollError as error:
        check("none-1" in str(error), str(error))
    else:
        check(False, "there is a job none-1")


if __name__ == "__main__":
    main("client")
