#!/usr/bin/python3
"""The manifests of deploy/kubernetes are valid, and start daemons with flags that they have."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../..")
sys.path.insert(0, os.path.join(HERE, "../e2e"))
from fixture import case, check, main  # noqa: E402

OVERLAYS = ("base", "gpu")


def run(command, **more):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            check=False, **more)
    check(result.returncode == 0, f"{command}: {result.stdout}{result.stderr}")
    return result.stdout


def objects(overlay):
    # As files: kustomize follows no links, which is what Bazel makes of them.
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "kubernetes")
        shutil.copytree(os.path.join(ROOT, "deploy/kubernetes"), copy)
        text = run(["kubectl", "kustomize", os.path.join(copy, overlay)])
    return list(yaml.safe_load_all(text))


def containers(overlay):
    for item in objects(overlay):
        if item["kind"] == "StatefulSet":
            yield from item["spec"]["template"]["spec"]["containers"]


@case
def valid_objects(_):
    """kustomize builds both overlays, and every object satisfies the API's schema"""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("package.json", "package-lock.json", "validate.mjs"):
            shutil.copy(os.path.join(HERE, "kubernetes", name), folder)
        run(["npm", "ci", "--silent", "--no-audit", "--no-fund", f"--cache={folder}/cache"],
            cwd=folder, env={**os.environ, "HOME": folder})
        for overlay in OVERLAYS:
            found = objects(overlay)
            check(len(found) == 10, f"{overlay} has {len(found)} objects")
            run(["node", "validate.mjs"], cwd=folder, input=json.dumps(found))
        broken = objects("base")
        next(o for o in broken if o["kind"] == "StatefulSet")["spec"]["replicas"] = "two"
        refused = subprocess.run(["node", "validate.mjs"], cwd=folder, input=json.dumps(broken),
                                 stdout=subprocess.PIPE, text=True, check=False)
        check(refused.returncode == 1, f"a wrong object is taken: {refused.stdout}")


@case
def known_flags(_):
    """Every flag in a manifest is one of the daemon's"""
    for overlay in OVERLAYS:
        daemons = set()
        for container in containers(overlay):
            daemon, *flags = container["args"]
            daemons.add(daemon)
            program = os.path.join(ROOT, daemon, f"atoll-{daemon}")
            known = set(re.findall(r"(--[a-z-]+)", run([program, "--help"])))
            unknown = {flag.split("=")[0] for flag in flags} - known
            check(not unknown, f"{overlay}: {daemon} has no {sorted(unknown)}")
        check(daemons == {"coordinator", "paramserver", "worker"}, f"{overlay} has {daemons}")


@case
def restricted_pods(_):
    """Every pod satisfies the restricted pod security standard and keeps its state on a volume"""
    for overlay in OVERLAYS:
        for item in objects(overlay):
            if item["kind"] != "StatefulSet":
                continue
            pod = item["spec"]["template"]["spec"]
            check(pod["securityContext"]["runAsNonRoot"], item["metadata"]["name"])
            check(item["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] == "state", "no state")
            for container in pod["containers"]:
                context = container["securityContext"]
                check(context["capabilities"]["drop"] == ["ALL"], f"{container['name']}: {context}")
                check(not context["allowPrivilegeEscalation"], f"{container['name']}: {context}")


if __name__ == "__main__":
    main("kubernetes_test")
