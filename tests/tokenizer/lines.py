"""Prints lines of many scripts and of hostile Unicode: the same ones for the same seed.

usage: lines.py COUNT [--settled]. No line holds a line feed; all are UTF-8. --settled: only characters that were in
Unicode 3.2 with today's category, for tokenizers that go by categories: peers have tables of other versions.
"""

import random
import sys
import unicodedata

WORDS = """the of and to in a is that for it was on are as with they at be this from I have or by one had not but what
all were when we there can an your which their said if do will each about how up out them then she many some so these
would other into has more two like him see time could no make than first been its who now people my made over did down
only way find use may water long little very after words called just where most know internationalisation tokenizer
supercalifragilistic don't I'll we've it's they're HELLO World iPhone e.g. U.S.A. 3.14159 2026-11-22 1,000,000 C++ x=y+1
foo_bar camelCaseWord http://example.org/a?b=c&d=%20 user@example.com <|endoftext|> <s> </s> [CLS] ##ing <unk> {"a": [1]}
naïve café Straße Ærøskøbing ﬁne ﬂow ① ½ Ⅷ K Å ǅ ŉ ẞ İstanbul ılık ΑΣ Σίσυφος ΟΔΥΣΣΕΥΣ""".split()

# First and last letters of scripts, assigned in every Unicode since 9.
SCRIPTS = [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x17F), (0x391, 0x3A1), (0x3B1, 0x3C9), (0x410, 0x44F), (0x531, 0x556),
           (0x5D0, 0x5EA), (0x621, 0x63A), (0x905, 0x939), (0x985, 0x98C), (0xB85, 0xB8A), (0xE01, 0xE30),
           (0x10D0, 0x10F0), (0x1100, 0x1112), (0x1200, 0x1206), (0x1780, 0x17B3), (0x3041, 0x3096), (0x30A1, 0x30FA),
           (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0x1D400, 0x1D454), (0x1F600, 0x1F64F), (0x20000, 0x2A6D6)]
SPACES = " \t\r\u000b\u000c\u00a0\u1680\u2002\u2003\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
ODD = ("\u0000\u0001\u001b\u007f\u0080\u009f\u00ad\u0300\u0301\u0308\u0327\u034f\u0483\u05b0\u064b\u093c\u0e31\u200b"
       "\u200c\u200d\u200e\u202e\u2060\u20dd\u20e3\u3099\ufe0f\ufeff\ufff9\ufffd\U0001f1e6\U0001f3fd\U000e0061"
       "\U0010ffff\ue000\uf8ff\u2581\u0120\u010a\u0110")


def letters(random, low, high):
    first, last = random.choice(SCRIPTS)
    return "".join(chr(random.randint(first, last)) for _ in range(random.randint(low, high)))


def anything(random):
    """Any assigned character of the basic plane, most of which no vocabulary has."""
    while True:
        character = chr(random.randint(0x20, 0x2FFFF if random.random() < 0.2 else 0xFFFD))
        if unicodedata.category(character) not in ("Cn", "Cs"):
            return character


def english(random):
    return random.choice(WORDS)


def scripts(random):
    return letters(random, 1, 12)


def numbers(random):
    return str(random.randint(0, 10 ** random.randint(1, 18)))


def punctuation(random):
    return "".join(random.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~«»“”…—、。！？・") for _ in range(random.randint(1, 6)))


def marks(random):
    base = letters(random, 1, 3)
    return base + "".join(random.choice(ODD) for _ in range(random.randint(1, 5)))


def odd(random):
    return "".join(random.choice(ODD) for _ in range(random.randint(1, 4)))


def random_characters(random):
    return "".join(anything(random) for _ in range(random.randint(1, 8)))


def gap(random):
    if random.random() < 0.75:
        return " "
    return "".join(random.choice(SPACES) for _ in range(random.randint(0, 4)))


KINDS = [(english,), (english, punctuation, numbers), (scripts,), (english, scripts, punctuation), (marks, scripts),
         (odd, english), (random_characters,), (english, scripts, numbers, punctuation, marks, odd, random_characters)]


def settled(line):
    old = unicodedata.ucd_3_2_0
    return "".join(c for c in line if ord(c) < 0x20000 and old.category(c) == unicodedata.category(c) != "Cn")


def lines(count, seed=1):
    choose = random.Random(seed)
    for i in range(count):
        kinds = KINDS[i % len(KINDS)]
        parts = [choose.choice(kinds)(choose) + gap(choose) for _ in range(choose.randint(0, 16))]
        line = choose.choice(["", "", "", " ", "\t "]) + "".join(parts)
        yield line.replace("\n", " ")


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    for line in lines(int(sys.argv[1])):
        print(settled(line) if "--settled" in sys.argv else line)
