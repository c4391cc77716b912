#!/usr/bin/env python3
"""Writes a cluster file for `atoll plan` from what other planners have.

    convert.py metis clusterfile.json hostfile > cluster.toml
    convert.py skypilot ~/.sky/catalogs/v8/aws/vms.csv p4d.24xlarge=2@us-east-1 g5.12xlarge=4@eu-north-1 > cluster.toml

Metis's bandwidths are GB/s and its memory is in GB. SkyPilot's catalogue has prices and GPUs, but no network: that
inside a region and between two is as the options say.
"""
import argparse
import csv
import json
import re
import sys

LATENCY_NS = 50_000  # inside a site


def quoted(text):
    return json.dumps(text, ensure_ascii=False)


def device_type(name, memory_bytes):
    """The catalogue's name: "A100-80GB-SXM" is a100-80. `atoll plan` answers one that it has not with the nearest."""
    kind = re.sub(r"^nvidia[- ]?|[- ]?\d+gb\b|[- ](sxm\d?|pcie|nvl|mega|hbm3)\b", "", name.lower())
    if kind == "a100":
        return "a100-80" if "80gb" in name.lower() or memory_bytes and memory_bytes > 60e9 else "a100-40"
    return {"t4g": "t4", "rtxa6000": "a6000", "rtx6000ada": "rtx6000-ada"}.get(kind, kind)


def device(name, kind, node, site, memory_bytes=None, price=None):
    lines = ["[[devices]]", f"id = {quoted(name)}", f"type = {quoted(kind)}", f"node = {quoted(node)}", f"site = {quoted(site)}"]
    if memory_bytes:
        lines.append(f"memory_bytes = {int(memory_bytes)}")
    if price:
        lines.append(f"price_per_hour = {price:.6g}")
    return "\n".join(lines) + "\n"


def link(source, to, latency_ns, bytes_per_s):
    return (f"[[links]]\nfrom = {quoted(source)}\nto = {quoted(to)}\n"
            f"edges = [{{ latency_ns = {latency_ns}, bandwidth_bytes_per_s = {bytes_per_s:g} }}]\n")


def metis(arguments):
    """Every host is a node of one site; a pair of nodes has the slower one's bandwidth, as Metis counts."""
    with open(arguments.clusterfile, encoding="utf-8") as file:
        kinds = json.load(file)
    nodes = []  # (name, host's figures, devices)
    with open(arguments.hostfile, encoding="utf-8") as file:
        for line in filter(None, map(str.strip, file)):
            found = re.fullmatch(r"(\S+)\s+slots=(\d+)", line)
            if not found or found[1] not in kinds:
                raise ValueError(f"{arguments.hostfile}: \"{line}\" is no \"HOST slots=N\" of a host in {arguments.clusterfile}")
            nodes.append((f"{len(nodes)}-{found[1]}", kinds[found[1]], int(found[2])))
    out, ids, types = [], [], {}
    for name, figures, slots in nodes:
        memory = figures["memory"] * 1e9
        kind = device_type(figures["instance_type"], memory)
        types.setdefault(kind, figures["intra_bandwidth"] * 1e9)
        ids.append([f"{name}/{i}" for i in range(slots)])
        out += [device(each, kind, name, "site", memory) for each in ids[-1]]
    out += [f"[[types]]\nname = {quoted(kind)}\nlink_bytes_per_s = {speed:g}\n" for kind, speed in types.items()]
    slowest = min(figures["inter_bandwidth"] for _, figures, _ in nodes)
    out.append(link("site", "site", LATENCY_NS, slowest * 1e9))
    for i, (_, mine, _) in enumerate(nodes):
        for k, (_, other, _) in enumerate(nodes):
            speed = min(mine["inter_bandwidth"], other["inter_bandwidth"])
            if i != k and speed != slowest:
                out += [link(a, b, LATENCY_NS, speed * 1e9) for a in ids[i] for b in ids[k]]
    return out


def skypilot(arguments):
    """A region is a site; the cheapest zone of it counts."""
    with open(arguments.catalogue, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    out, sites, column = [], [], "SpotPrice" if arguments.spot else "Price"
    for number, wanted in enumerate(arguments.nodes):
        found = re.fullmatch(r"([^=@]+)=(\d+)(?:@(.+))?", wanted)
        if not found:
            raise ValueError(f"\"{wanted}\": give INSTANCE=COUNT or INSTANCE=COUNT@REGION")
        fitting = [row for row in rows if row["InstanceType"] == found[1] and row["AcceleratorName"] and row[column]
                   and found[3] in (None, row["Region"])]
        if not fitting:
            raise ValueError(f"{arguments.catalogue}: no GPU instance {found[1]} with a {column} in {found[3] or 'any region'}")
        row = min(fitting, key=lambda each: float(each[column]))
        if not float(row["AcceleratorCount"]).is_integer():
            raise ValueError(f"{found[1]} has {row['AcceleratorCount']} of a GPU, and parts of one are not planned with")
        memory = re.search(r"['\"]SizeInMiB['\"]:\s*(\d+)", row.get("GpuInfo") or "")
        memory = int(memory[1]) << 20 if memory else None
        gpus, site = int(float(row["AcceleratorCount"])), row["Region"]
        if site not in sites:
            sites.append(site)
        for node in range(int(found[2])):
            name = f"{number}-{found[1]}-{node}"
            out += [device(f"{name}/{i}", device_type(row["AcceleratorName"], memory), name, site, memory,
                           float(row[column]) / gpus) for i in range(gpus)]
    out += [link(site, site, LATENCY_NS, arguments.site_gbit_per_s * 1e9 / 8) for site in sites]
    out += [link(a, b, int(arguments.wan_ms * 1e6), arguments.wan_gbit_per_s * 1e9 / 8) for a in sites for b in sites if a != b]
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    forms = parser.add_subparsers(required=True)
    form = forms.add_parser("metis")
    form.add_argument("clusterfile")
    form.add_argument("hostfile")
    form.set_defaults(run=metis)
    form = forms.add_parser("skypilot")
    form.add_argument("catalogue")
    form.add_argument("nodes", nargs="+", metavar="INSTANCE=COUNT[@REGION]")
    form.add_argument("--spot", action="store_true", help="prices of spot instances")
    form.add_argument("--site-gbit-per-s", type=float, default=25, help="between nodes of a region (25)")
    form.add_argument("--wan-gbit-per-s", type=float, default=1, help="between two regions (1)")
    form.add_argument("--wan-ms", type=float, default=40, help="between two regions, one way (40)")
    form.set_defaults(run=skypilot)
    arguments = parser.parse_args()
    try:
        print("\n".join(arguments.run(arguments)), end="")
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{parser.prog}: {error if not isinstance(error, KeyError) else f'a field {error} is missing'}")


if __name__ == "__main__":
    main()
