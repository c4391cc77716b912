"""Writes assets.cc: the files named on the command line as byte arrays."""
import os
import sys

TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}


def main():
    out, table = ['#include "coordinator/http/assets.h"', "", "namespace atl {", "namespace {", ""], []
    for number, path in enumerate(sys.argv[1:]):
        with open(path, "rb") as file:
            body = file.read()
        out.append(f"constexpr unsigned char k{number}[] = {{")
        out += [",".join(map(str, body[i:i + 64])) + "," for i in range(0, len(body), 64)]
        out.append("0};")
        name = os.path.basename(path)
        table.append(f'    {{"{name}", "{TYPES[os.path.splitext(name)[1]]}", '
                     f"{{reinterpret_cast<const char*>(k{number}), {len(body)}}}}},")
    out += ["", "}  // namespace", "", "const Asset* FindAsset(absl::string_view name) {",
            "  static const Asset kAssets[] = {"] + table + ["  };",
            "  for (const Asset& asset : kAssets) {", "    if (asset.name == name) return &asset;",
            "  }", "  return nullptr;", "}", "", "}  // namespace atl", ""]
    sys.stdout.write("\n".join(out))


main()
