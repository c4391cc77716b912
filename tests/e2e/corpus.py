"""Real English text for the benchmarks: the GNU dictionary of Debian's dict-gcide.

Its .dict.dz is gzip with an index. The first megabytes are prefaces; what follows is the dictionary
from A on. The text is GPL and is read from the installed package, never copied into this project.
"""
import gzip
import os

SOURCE = "/usr/share/dictd/gcide.dict.dz"
SKIPPED_BYTES = 2_000_000


def write_corpus(path, size_bytes):
    """Writes size_bytes of text to path, unless it is there already."""
    if os.path.exists(path) and os.path.getsize(path) == size_bytes:
        return
    if not os.path.exists(SOURCE):
        raise SystemExit(f"{SOURCE} is missing: apt-get install dict-gcide, or ./dev deps")
    with gzip.open(SOURCE) as dictionary:
        dictionary.read(SKIPPED_BYTES)
        text = dictionary.read(size_bytes)
    if len(text) < size_bytes:
        raise SystemExit(f"{SOURCE} has only {len(text)} bytes after the first {SKIPPED_BYTES}")
    with open(path + ".part", "wb") as out:
        out.write(text)
    os.replace(path + ".part", path)
