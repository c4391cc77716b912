#!/usr/bin/env python3
"""Writes docs/reference/metrics.md from common/metrics/names.h, the declarations of all metrics.

`./dev format` runs it; `./dev lint` reports when the reference is not what it would write.
"""
import re

SOURCE = "common/metrics/names.h"
REFERENCE = "docs/reference/metrics.md"
HEAD = """# Reference: metrics

Generated from `common/metrics/names.h` by `./dev format`. Every daemon serves `/metrics`, `/healthz` and `/readyz` at
`--metrics-listen HOST:PORT`. Labels: `atoll_job`, `island`, `server`, `member`, `kind`, `state`, `reason`, `outcome`,
`set`, `queue`. Ended jobs are not reported; of the others the newest 64, with 256 islands each.
Tokens of a job whose data are images are images.
"""
SECTION = re.compile(r"^// ---- (.*) ----$", re.M)
METRIC = re.compile(r'inline constexpr Metric \w+\{\s*"(\w+)",\s*MetricType::k(\w+),\s*'
                    r'((?:"(?:[^"\\]|\\.)*"\s*)+)[,}]')


def reference():
    """The text of the reference; raises where a declaration is not understood."""
    with open(SOURCE, encoding="utf-8") as source:
        text = source.read()
    parts = SECTION.split(text)
    out, found = [HEAD], 0
    for title, body in zip(parts[1::2], parts[2::2]):
        rows = METRIC.findall(body)
        found += len(rows)
        out.append(f"## {title[0].upper()}{title[1:]}\n\n| metric | type | meaning |\n|---|---|---|")
        for name, kind, strings in rows:
            help_text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', strings)).replace("|", "\\|")
            out.append(f"| `{name}` | {kind.lower()} | {help_text} |")
        out.append("")
    declared = text.count("inline constexpr Metric ")
    if found != declared:
        raise ValueError(f"{SOURCE}: {declared} metrics, of which {found} are understood")
    return "\n".join(out).rstrip() + "\n"


def check():
    with open(REFERENCE, encoding="utf-8") as file:
        if file.read() != reference():
            yield f"{REFERENCE}: not what {SOURCE} declares; run ./dev format"


if __name__ == "__main__":
    with open(REFERENCE, "w", encoding="utf-8") as file:
        file.write(reference())
