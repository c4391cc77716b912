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
from cluster import binary, free_port  # noqa: E402
from fixture import case, check, main  # noqa: E402

OVERLAYS = {"base": 13, "gpu": 13, "monitoring": 14}  # objects
CUSTOM = "monitoring.coreos.com/v1"  # not of the API itself


def environment(**variables):
    """With the daemons' programs in its path, which `atoll` looks for."""
    folders = [os.path.dirname(binary(f"atoll-{daemon}")) for daemon in ("coordinator", "paramserver", "worker")]
    return {**os.environ, "PATH": os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)]), **variables}


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
            pod = item["spec"]["template"]["spec"]
            yield from pod.get("initContainers", [])
            yield from pod["containers"]


@case
def valid_objects(_):
    """kustomize builds both overlays, and every object satisfies the API's schema"""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("package.json", "package-lock.json", "validate.mjs"):
            shutil.copy(os.path.join(HERE, "kubernetes", name), folder)
        run(["npm", "ci", "--silent", "--no-audit", "--no-fund", f"--cache={folder}/cache"],
            cwd=folder, env={**os.environ, "HOME": folder})
        for overlay, count in OVERLAYS.items():
            found = objects(overlay)
            check(len(found) == count, f"{overlay} has {len(found)} objects")
            known = [item for item in found if item["apiVersion"] != CUSTOM]
            run(["node", "validate.mjs"], cwd=folder, input=json.dumps(known))
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
            known = set(re.findall(r"(--[a-z-]+)", run([binary("atoll"), "help", daemon], env=environment())))
            unknown = {flag.split("=")[0] for flag in flags} - known
            check(not unknown, f"{overlay}: {daemon} has no {sorted(unknown)}")
        check(daemons == {"init", "coordinator", "paramserver", "worker"}, f"{overlay} has {daemons}")


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
            for container in pod.get("initContainers", []) + pod["containers"]:
                context = container["securityContext"]
                check(context["capabilities"]["drop"] == ["ALL"], f"{container['name']}: {context}")
                check(not context["allowPrivilegeEscalation"], f"{container['name']}: {context}")


def selected(policy_or_service, labels):
    return all(labels.get(key) == value for key, value in policy_or_service.items())


@case
def ports_are_reached(_):
    """Each service has pods with the port that it names, and the network policy lets that port in"""
    for overlay in OVERLAYS:
        found = objects(overlay)
        pods = [item["spec"]["template"] for item in found if item["kind"] == "StatefulSet"]
        allowed = {port["port"] for item in found if item["kind"] == "NetworkPolicy"
                   for rule in item["spec"].get("ingress", []) for port in rule["ports"]}
        for service in (item for item in found if item["kind"] == "Service"):
            for pod in (p for p in pods if selected(service["spec"]["selector"], p["metadata"]["labels"])):
                ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
                for port in service["spec"]["ports"]:
                    check(ports.get(port["name"]) == port["port"], f"{service['metadata']['name']}: {port}: {ports}")
                    check(port["port"] in allowed, f"{port} is not let in")
        names = {item["metadata"]["name"] for item in found if item["kind"] == "Service"}
        check("atoll-page" in names, f"{names}")


class Pods:
    """The pods' containers as processes of this machine, with their arguments and environment as they stand, but for
    addresses and paths."""

    def __init__(self, fixture):
        self.fixture, self.folder = fixture, fixture.folder
        self.sets = {item["metadata"]["name"]: item["spec"]["template"]["spec"] for item in objects("base")
                     if item["kind"] == "StatefulSet"}
        self.port = free_port()
        self.daemons = []

    def command(self, name, container):
        """The arguments and the environment of a container of the pod."""
        ports = {"7000": self.port}
        state = os.path.join(self.folder, name)
        arguments = []
        for argument in container["args"]:
            argument = argument.replace("$(POD_NAME).atoll-paramserver", "127.0.0.1").replace("$(POD_NAME)", name)
            argument = re.sub(r"\$\(POD_IP\)|0\.0\.0\.0|\batoll-coordinator\b(?!-)", "127.0.0.1", argument)
            argument = argument.replace("/var/lib/atoll", state)
            arguments.append(re.sub(r":(\d{4})$", lambda m: f":{ports.setdefault(m[1], free_port())}", argument))
        if arguments[0] == "init":
            arguments.append(f"--port={self.port}")
        variables = {}
        for variable in container["env"]:
            variables[variable["name"]] = variable.get("value", "")
            if "secretKeyRef" in variable.get("valueFrom", {}):
                variables[variable["name"]] = self.secret
        return [binary("atoll"), *arguments], environment(**{**variables, "HOME": os.path.join(self.folder, "home")})

    def start(self, kind, number):
        name = f"atoll-{kind}-{number}"
        command, variables = self.command(name, self.sets[f"atoll-{kind}"]["containers"][0])
        log = open(os.path.join(self.folder, f"{name}.log"), "w", encoding="utf-8")  # for as long as the daemon runs
        self.daemons.append(subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stdout=log,
                                             stderr=subprocess.STDOUT))

    def execute(self, *command):
        """`kubectl exec atoll-coordinator-0 -- ...`"""
        _, variables = self.command("atoll-coordinator-0", self.sets["atoll-coordinator"]["containers"][0])
        return run([binary(command[0]), *command[1:]], env=variables)

    def stop(self):
        for daemon in self.daemons:
            daemon.kill()
            daemon.wait()


def typed(word):
    """What README.md has one type in the coordinator's container, with this word in it."""
    with open(os.path.join(ROOT, "deploy/kubernetes/README.md"), encoding="utf-8") as file:
        lines = re.findall(r"atoll-coordinator-0 -- ([^)\n]*)", file.read())
    found = [line.split() for line in lines if word in line]
    check(len(found) == 1, f"{word}: {lines}")
    return found[0]


@case
def pods_commands_make_a_cluster(fixture):
    """The containers' commands, and what the README has one type, make a cluster with certificates that trains"""
    pods = Pods(fixture)
    coordinator = pods.sets["atoll-coordinator"]
    try:
        for _ in range(2):  # of a pod that is replaced, too
            command, variables = pods.command("atoll-coordinator-0", coordinator["initContainers"][0])
            run(command, env=variables)
        pods.start("coordinator", 0)
        pods.secret = pods.execute(*typed("token")).strip()
        for kind in ("paramserver", "worker"):
            for number in range(2):
                pods.start(kind, number)
        job = fixture.job_file(schedule__train_tokens=30_000)
        submit = [job if word == "/data/job.toml" else word for word in typed("submit")]
        fixture.wait_until("four members", lambda: 4 == sum(member["attached"] for member in json.loads(
            pods.execute("atoll", "--json", "status"))["members"]), 120)
        check("100.0%" in pods.execute(*submit), "the job did not end")
    finally:
        pods.stop()


if __name__ == "__main__":
    main("kubernetes_test")
