#!/usr/bin/python3
"""deploy/clusters/convert.py: what other planners have is planned with."""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../..")
sys.path.insert(0, os.path.join(HERE, "../e2e"))
from fixture import case, check, main  # noqa: E402

HOSTS = """{"10.0.0.1": {"instance_type": "V100", "inter_bandwidth": 10, "intra_bandwidth": 50, "memory": 16},
            "10.0.0.4": {"instance_type": "A100", "inter_bandwidth": 20, "intra_bandwidth": 46, "memory": 80}}"""
CATALOGUE = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region
p4de,A100-80GB,2.0,96.0,1152.0,"{'Gpus': [{'Name': 'A100-80GB', 'MemoryInfo': {'SizeInMiB': 81920}}]}",40.96,20.1,us
p4de,A100-80GB,2.0,96.0,1152.0,,40.96,18.3,us
h100,H100-MEGA-80GB,2.0,16.0,256.0,,20.0,,us
pod,A100-80GB-SXM,1.0,16.0,256.0,,1.9,,us
old,V100-32GB,1.0,16.0,256.0,,1.2,,us
part,A10,0.5,18.0,220.0,,1.6,,us
g5,A10G,4.0,48.0,192.0,"{'Gpus': [{'Name': 'A10G', 'MemoryInfo': {'SizeInMiB': 24576}}]}",5.672,,eu
m5,,,2.0,8.0,,0.096,0.04,us
"""


def convert(*arguments):
    command = [sys.executable, os.path.join(ROOT, "deploy/clusters/convert.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def plan(toml):
    with open("cluster.toml", "w", encoding="utf-8") as file:
        file.write(toml)
    done = subprocess.run([os.path.join(ROOT, "cli/atoll"), "plan", "--model", "gpt2", "--batch", "16", "--sequence", "512",
                           "--cluster", "cluster.toml"], capture_output=True, text=True, check=False)
    check(done.returncode == 0, done.stderr)
    return done.stdout


@case
def metis(_):
    """Metis's cluster file and hostfile become a cluster that is planned with"""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, text in (("clusterfile.json", HOSTS), ("hostfile", "10.0.0.4 slots=2\n10.0.0.1 slots=2"),
                           ("wrong", "10.0.0.9 slots=2")):
            with open(name, "w", encoding="utf-8") as file:
                file.write(text)
        done = convert("metis", "clusterfile.json", "hostfile")
        check(done.returncode == 0 and done.stdout.count("[[devices]]") == 4, done.stderr)
        check('type = "a100-80"' in done.stdout and "link_bytes_per_s = 4.6e+10" in done.stdout, done.stdout)
        check("bandwidth_bytes_per_s = 1e+10" in done.stdout and "2e+10" not in done.stdout, done.stdout)
        plan(done.stdout)
        done = convert("metis", "clusterfile.json", "wrong")
        check(done.returncode == 1 and "10.0.0.9" in done.stderr, done.stderr)
        os.chdir("/")


@case
def skypilot(_):
    """Instances of SkyPilot's catalogue become a cluster with prices that is planned with"""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with open("vms.csv", "w", encoding="utf-8") as file:
            file.write(CATALOGUE)
        done = convert("skypilot", "vms.csv", "p4de=1@us", "g5=2")
        check(done.returncode == 0 and done.stdout.count('type = "a10g"') == 8, done.stderr)
        check("price_per_hour = 20.48" in done.stdout and "price_per_hour = 1.418" in done.stdout, done.stdout)
        plan(done.stdout)
        spot = convert("skypilot", "vms.csv", "p4de=1", "--spot").stdout
        check("price_per_hour = 9.15" in spot, spot)
        done = convert("skypilot", "vms.csv", "h100=1", "pod=1", "old=1")
        check(done.returncode == 0 and all(f'type = "{kind}"' in done.stdout for kind in ("h100", "a100-80", "v100")), done.stdout)
        plan(done.stdout)
        for wrong in ("m5=1", "g5=1@us", "g5", "part=1"):
            done = convert("skypilot", "vms.csv", wrong)
            check(done.returncode == 1 and wrong.split("=")[0] in done.stderr, done.stderr)
        os.chdir("/")


if __name__ == "__main__":
    main("clusters")
