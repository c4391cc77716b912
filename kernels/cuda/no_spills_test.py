#!/usr/bin/python3
"""What ptxas said of every kernel: a table, and failure where one spills its registers.

    no_spills_test.py LOG...      (nvcc -Xptxas -v, one architecture after the other)

On sm_75 a kernel may spill: what is hot there has no bf16, and runs on cuBLASLt's products.
"""
import collections
import os
import re
import sys

MAY_SPILL = {"sm_75"}


def kernels(path):
    """(architecture, kernel, registers, bytes spilled) of each."""
    name = arch = None
    spilled = 0
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in log:
            if found := re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line):
                name, arch, spilled = found[1], found[2], 0
            elif found := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
                spilled += int(found[1]) + int(found[2])
            elif (found := re.search(r"Used (\d+) registers", line)) and name:
                yield arch, name, int(found[1]), spilled
                name = None


def main():
    table, spills = collections.defaultdict(list), []
    for path in sys.argv[1:]:
        for arch, name, registers, spilled in kernels(path):
            table[os.path.basename(path), arch].append(registers)
            if spilled:
                spills.append(f"{arch} {name}: {spilled} bytes of spills, {registers} registers")
                if arch not in MAY_SPILL:
                    print("spills:", spills[-1])
    for (source, arch), registers in sorted(table.items()):
        print(f"{source:28s} {arch:8s} {len(registers):4d} kernels, {min(registers)}-"
              f"{max(registers)} registers")
    print(f"{len(spills)} kernels spill" + "".join("\n  " + s for s in spills))
    archs = {arch for _, arch in table}
    if not {"sm_80", "sm_90a"} <= archs:
        print(f"the logs have {sorted(archs)} only")
        return 1
    return 1 if any(s.split()[0] not in MAY_SPILL for s in spills) else 0


if __name__ == "__main__":
    sys.exit(main())
