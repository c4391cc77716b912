#!/usr/bin/python3
"""A client that openapi-typescript-codegen makes of docs/reference/openapi.yaml calls a real coordinator."""
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from cluster import free_port  # noqa: E402
from fixture import ENDLESS_TOKENS, case, check, main  # noqa: E402

LIMIT_S = 300


@case
def generated_client_makes_every_call(fixture):
    """Every call of the reference is made by the generated client, and answers with its fields"""
    folder = os.path.join(fixture.folder, "generated")
    os.makedirs(folder)
    for name in ("package.json", "package-lock.json", "calls.mjs"):
        shutil.copy(os.path.join(HERE, "generated", name), folder)
    shutil.copy(os.path.join(HERE, "../../docs/reference/openapi.yaml"), folder)

    def run(*command):
        done = subprocess.run(command, cwd=folder, env={**os.environ, "HOME": folder}, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False)
        check(done.returncode == 0, f"{command}:\n{done.stdout[-3000:]}")

    run("npm", "ci", "--silent", "--no-audit", "--no-fund", f"--cache={folder}/cache")
    run("node_modules/.bin/openapi", "--input", "openapi.yaml", "--output", "client", "--useOptions")
    run("node_modules/.bin/esbuild", "client/index.ts", "--bundle", "--format=esm", "--platform=node",
        "--outfile=client.mjs")
    port = free_port()
    fixture.coordinator(f"--http-listen=127.0.0.1:{port}")
    fixture.server("ps1", memory="64MiB")
    for name in ("w1", "w2"):
        fixture.worker(name)
    fixture.attached(3)
    run("node", "calls.mjs", f"http://127.0.0.1:{port}", fixture.job_file(schedule__train_tokens=ENDLESS_TOKENS))


if __name__ == "__main__":
    main("generated_client")
