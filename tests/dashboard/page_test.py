#!/usr/bin/env python3
"""The coordinator's web page in a real browser, with real daemons behind it. `./dev test --all` installs
Chromium and the Node packages of dashboard/, and names that folder by $ATOLL_DASHBOARD."""
import filecmp
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../e2e"))
from fixture import ENDLESS_TOKENS, Skip, case, check, main, write_text  # noqa: E402
from cluster import free_port  # noqa: E402

BUILT = ("app.css", "app.js", "favicon.svg", "index.html", "uplot.js")
LIMIT_S = 240


def node_folder():
    folder = os.environ.get("ATOLL_DASHBOARD", "")
    if not os.path.isdir(os.path.join(folder, "node_modules")):
        raise Skip("the Node packages are not installed: run ./dev test --all")
    return folder


def node(*arguments, cwd=None):
    done = subprocess.run(["node", *arguments], cwd=cwd, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S,
                          check=False)
    check(done.returncode == 0, f"node {' '.join(arguments)}:\n{done.stdout[-3000:]}")


@case
def built_assets_are_what_the_sources_give(fixture):
    """dashboard/built is what its sources and lock file give"""
    sources = os.path.join(HERE, "../../dashboard")
    copy = os.path.join(fixture.folder, "dashboard")
    shutil.copytree(sources, copy, ignore=shutil.ignore_patterns("node_modules", "built"))
    os.makedirs(os.path.join(fixture.folder, "docs"))
    shutil.copy(os.path.join(HERE, "../../docs/glossary.md"), os.path.join(fixture.folder, "docs"))
    os.symlink(os.path.join(node_folder(), "node_modules"), os.path.join(copy, "node_modules"))
    node("build.mjs", "built", cwd=copy)
    different = [name for name in BUILT if not filecmp.cmp(
        os.path.join(sources, "built", name), os.path.join(copy, "built", name), shallow=False)]
    check(not different, f"{different} differ: run npm ci && npm run build in dashboard/")


def loses_its_coordinator(command, lose, find):
    """The page says when the coordinator can be lost, and when it has noticed."""
    with subprocess.Popen(["node", *command], text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT) as page:
        try:
            check(page.stdout.readline() == "ready\n", "the page is not there")
            lose()
            check(page.stdout.readline() == "off\n", "the page does not say that the connection is lost")
            find()
            rest, _ = page.communicate(timeout=LIMIT_S)
            check(page.returncode == 0, f"after a restart of the coordinator: {rest[-3000:]}")
        finally:
            page.kill()


@case
def pages_show_a_run_in_progress(fixture):
    """every page shows a run, a killed worker and an action, without an error on the console"""
    node_folder()
    out = os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR", os.path.join(fixture.folder, "screenshots"))
    os.makedirs(out, exist_ok=True)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    fixture.coordinator(f"--http-listen=127.0.0.1:{port}")
    for server in ("ps1", "ps2"):
        fixture.server(server, memory="64MiB")
    for worker in ("w1", "w2", "w3"):
        fixture.worker(worker, "--emulate-step-ms=20")
    fixture.attached(5)
    path = fixture.job_file("page", schedule__train_tokens=ENDLESS_TOKENS, outer__min_islands=3,
                            outer__grace_seconds=5, schedule__validate_every_rounds=2)
    with open(path, "a", encoding="utf-8") as file:
        for name in ("law", "code"):
            write_text(os.path.join(fixture.folder, name), 20_000, seed=len(name))
            file.write(f'[[data.validation]]\nname = "{name}"\npath = "{fixture.folder}/{name}"\n')
    job = fixture.atoll("submit", path)[1].strip()
    fixture.reaches(job, 6)
    look = [os.path.join(HERE, "page.mjs")]
    node(*look, "running", url, job, out)
    victim = next(i["worker"] for i in fixture.job(job)["islands"] if i["island"] == 1)
    fixture.daemons[victim].kill()
    node(*look, "killed", url, job, out)
    fixture.daemons[victim].start()
    coordinator = fixture.daemons["coordinator"]
    command = [*look, "restarted", url, job, out]
    loses_its_coordinator(command, coordinator.kill, coordinator.start)
    loses_its_coordinator(command, coordinator.freeze, coordinator.thaw)  # no answer, neither yes nor no
    node(*look, "actions", url, job, out)


if __name__ == "__main__":
    main("page")
