#!/usr/bin/env python3
"""Writes compile_commands.json for clangd and clang-tidy. Run `./dev build` first."""
import json
import os
import subprocess

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
UNKNOWN_TO_CLANG = {"-fno-canonical-system-headers", "-Wunused-but-set-parameter",
                    "-Wno-free-nonheap-object", "--param=ggc-min-heapsize=400000",
                    "--param=ggc-min-expand=200"}


def main():
    query = [os.environ.get("BAZEL", "bazel"), "aquery", "--output=jsonproto",
             "--define=units=single",  # an entry for each source
             'mnemonic("CppCompile", //...)']
    actions = json.loads(subprocess.run(query, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    entries = {}
    for action in actions["actions"]:
        arguments = action["arguments"]
        source = arguments[arguments.index("-c") + 1]
        if source.startswith("external/") or source in entries:
            continue
        entries[source] = {
            "directory": ROOT,
            "file": source,
            "arguments": [a.replace("bazel-out/", ".bz/out/") for a in arguments
                          if a not in UNKNOWN_TO_CLANG],
        }
    with open(os.path.join(ROOT, "compile_commands.json"), "w", encoding="utf-8") as out:
        json.dump(list(entries.values()), out, indent=1)
    print(f"compile_commands.json: {len(entries)} files")


if __name__ == "__main__":
    main()
