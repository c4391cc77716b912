#!/usr/bin/python3
"""Tiers of an island's state, on real daemons: what owners have saved to their disks, or to a folder that all
workers share, brings back parameters and moments after all of them have died, and the losses are those of a
run without that."""
import contextlib
import glob
import os
import shutil
import socket
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import LIMIT_S, Skip, case, check, main, same_losses  # noqa: E402
from cluster import free_port  # noqa: E402

ROUND = 8  # steps
# Without copies in memory: only the tiers below are used. Every step is saved, so that in the middle of
# a round there is a save of its base. Both jobs round alike: plans that follow from measured times have
# micro-batches of the same size.
PIPELINE = {"model__layers": 2, "outer__min_islands": 1, "outer__max_islands": 1,
            "outer__overlap": "none", "schedule__train_tokens": 20_000,
            "schedule__checkpoint_every_steps": 1, "schedule__validate_every_rounds": 0,
            "layout__island": "all", "layout__stages": 2, "layout__replicas": 1,
            "layout__workers_per_island": 2, "layout__chunks_max": 1, "inner__micro_batch_sequences": 2,
            "checkpoint__peer_copies": 0, "outer__steps_per_round": ROUND}


def island(fixture, job):
    islands = fixture.job(job)["islands"]
    return islands[0] if islands else {}


def step(fixture, job):
    return island(fixture, job).get("progress", {}).get("inner_step", 0)


def in_a_round(fixture, job):
    """Waits for the middle of a later round."""
    begun = step(fixture, job)
    fixture.meanwhile("the middle of a round", job, every_s=0.03, condition=lambda: (
        step(fixture, job) >= begun + 2 and 3 <= step(fixture, job) % ROUND <= 5))


def undisturbed(fixture):
    return fixture.finishes(fixture.submits("calm", **PIPELINE))


def killed(fixture, names):
    for name in names:
        fixture.daemons[name].kill()
    fixture.wait_until("them to be missed", lambda: not any(
        fixture.member(name)["attached"] for name in names), LIMIT_S)


def came_back(fixture, job):
    """That the job went on from a saved state, once, and lost nothing."""
    done = fixture.finishes(job)
    logs = fixture.logs(job)
    check("goes on from the state saved at inner step" in logs, f"no saved state was used: {logs}")
    check("the state of " not in logs, "state was lost")
    return done


@case
def all_workers_restart(fixture):
    """All workers of an island are killed at once and start again: they go on from what is on their
    disks, moments included"""
    fixture.starts(workers=2, servers=1, step_ms=60)
    calm = undisturbed(fixture)
    job = fixture.submits("struck", **PIPELINE)
    fixture.reaches(job, 1)
    in_a_round(fixture, job)
    killed(fixture, ("w1", "w2"))
    for name in ("w1", "w2"):
        fixture.daemons[name].start()
    same_losses(calm, came_back(fixture, job))


def loses_its_disks(fixture, remote, folder):
    """All workers are killed and come back with empty disks. `folder` is where the remote tier's objects
    are seen."""
    fixture.starts(workers=2, servers=1, step_ms=60)
    calm = undisturbed(fixture)
    job = fixture.submits("struck", **dict(PIPELINE, checkpoint__remote=remote))
    fixture.reaches(job, 1)
    fixture.wait_until("a save in the remote tier",
                       lambda: len(glob.glob(folder + "/**/manifest*", recursive=True)) >= 2, LIMIT_S)
    in_a_round(fixture, job)
    killed(fixture, ("w1", "w2"))
    for name in ("w1", "w2"):
        shutil.rmtree(os.path.join(fixture.folder, name))
        fixture.daemons[name].start()
    same_losses(calm, came_back(fixture, job))


@case
def a_disk_is_lost(fixture):
    """With checkpoint.remote a worker's disk may be lost with it: the state comes from the shared
    folder"""
    remote = os.path.join(fixture.folder, "remote")
    os.makedirs(remote)
    loses_its_disks(fixture, remote, remote)


@contextlib.contextmanager
def s3_server(fixture):
    """npm's s3rver, which `./dev test --all` installs, with a bucket; daemons find its credentials in the
    environment"""
    home = os.environ.get("ATOLL_S3_SERVER", "")
    program = os.path.join(home, "node_modules/s3rver/bin/s3rver.js")
    if not os.path.exists(program):
        raise Skip("there is no S3 server: ./dev test --all")
    port = free_port()
    objects = os.path.join(fixture.folder, "objects")
    with subprocess.Popen(["node", "--openssl-legacy-provider", program, "--directory", objects,
                           "--address", "127.0.0.1", "--port", str(port), "--silent",
                           "--configure-bucket", "atoll-test"]) as server:
        try:
            fixture.wait_until("the S3 server", lambda: answers(port), LIMIT_S)
            os.environ.update(AWS_ACCESS_KEY_ID="S3RVER", AWS_SECRET_ACCESS_KEY="S3RVER",
                              AWS_REGION="us-east-1", AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}")
            yield objects
        finally:
            server.kill()


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@case
def a_disk_is_lost_and_the_state_is_in_s3(fixture):
    """The same with a bucket of an S3 server"""
    with s3_server(fixture) as objects:
        loses_its_disks(fixture, "s3://atoll-test/runs", objects)


@case
def a_remote_tier_is_not_writable(fixture):
    """A remote tier that cannot be written is one message, and training goes on"""
    remote = os.path.join(fixture.folder, "remote")
    with open(remote, "w", encoding="utf-8") as blocked:
        blocked.write("not a folder")
    fixture.starts(workers=2, servers=1, step_ms=10)
    job = fixture.submits("blocked", **dict(PIPELINE, checkpoint__remote=remote,
                                            schedule__train_tokens=20_000))
    fixture.finishes(job)
    loss_lines = [line for line in fixture.logs(job).splitlines() if remote in line]
    check(0 < len(loss_lines) <= 4, f"log lines about {remote}: {loss_lines}")


if __name__ == "__main__":
    main("tiers_test")
