"""Writes shipped.cc: alice.toml and alice.txt, named on the command line, as strings."""
import sys


def main():
    lines = ['#include "cli/run/run_folder.h"', "", "namespace atl::cli {"]
    for name, path in zip(("kShippedJob", "kShippedText"), sys.argv[1:]):
        with open(path, "rb") as file:
            body = file.read()
        lines.append(f"const char {name}[] = {{")
        lines += [",".join(map(str, body[i:i + 64])) + "," for i in range(0, len(body), 64)]
        lines.append("0};")
    print("\n".join(lines + ["}  // namespace atl::cli"]))


main()
