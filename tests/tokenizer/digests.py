"""FNV-1a digests of lines of token ids, one for each 100 lines: digests.py NAME < IDS."""

import sys


def digest(lines):
    value = 0xCBF29CE484222325
    for line in lines:
        for number in [int(word) for word in line.split()] + [0xFFFFFFFF]:
            for shift in (0, 8, 16, 24):
                value = ((value ^ (number >> shift & 255)) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


all_lines = sys.stdin.read().split("\n")[:-1]
print(sys.argv[1], *(f"{digest(all_lines[i:i + 100]):016x}" for i in range(0, len(all_lines), 100)))
