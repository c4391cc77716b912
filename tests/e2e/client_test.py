#!/usr/bin/python3
"""clients/python/atoll.py with real daemons."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../clients/python")]
from atoll import AtollError, Coordinator  # noqa: E402
from cluster import free_port  # noqa: E402
from fixture import case, check, main  # noqa: E402


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
