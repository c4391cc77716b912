#!/usr/bin/env python3
"""digests.py NAME < LINES: a line "NAME INDEX DIGEST" for each 50 renderings, as jinja_test computes them."""
import json
import sys

PRIME, OFFSET, EACH = 0x100000001b3, 0xcbf29ce484222325, 50

digest, index, count = OFFSET, 0, 0
for line in sys.stdin:
    made = json.loads(line)
    for byte in (made.get("text", "(refused)") + "\n").encode():
        digest = ((digest ^ byte) * PRIME) & 0xffffffffffffffff
    count += 1
    if count == EACH:
        print(sys.argv[1], index, f"{digest:016x}")
        digest, index, count = OFFSET, index + 1, 0
