#!/usr/bin/env python3
"""Prints the largest files, folders and functions, and holds what has been reached.

`.ci/reached.json` has the numbers, which can only fall: a larger one is a finding, and `./dev format` writes smaller ones.

  product_lines      sources and messages without tests, fixtures and benchmarks
  files_over_500     sources of more than 500 lines
  functions_over_70  functions of more than 70 lines, those in classes included
  docs_words         docs/ without docs/reference
  comments_without_subject  comments that begin with a word of COMMENT: name what is declared, or begin with a verb
"""
import collections
import json
import os
import re
import subprocess
import sys

REACHED = ".ci/reached.json"
SOURCES = (".cc", ".h", ".cu", ".cuh", ".proto")
NOT_PRODUCT = re.compile(r"_test\.|/testing/|^tests/|^bench/")
COMMENT = re.compile(r"\s*// (?:What|Of|Whether|Those|As|So)\b")
FUNCTION = re.compile(r"( *)[A-Za-z_~:].*[)\w] \{$")
NO_FUNCTION = re.compile(r"\s*(?:if|for|while|switch|else|do|try|catch|namespace|extern|class|struct|union|enum|return|case)\b|"
                         r".*(?:\bstruct|\bclass|\benum)\b.*\{$|.*\[[^\]]*\](?: *\(.*\).*)? \{$")
LARGE_FILE, LARGE_FUNCTION = 500, 70


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def tracked(*patterns):
    listed = subprocess.run(["git", "ls-files", "--", *patterns], check=True, stdout=subprocess.PIPE, text=True)
    return [path for path in listed.stdout.splitlines() if os.path.isfile(path)]


def functions(path, lines):
    """(lines, place) of functions in formatted code: from the line that ends its head to the brace in the same column."""
    open_at = {}
    for number, line in enumerate(lines, 1):
        indent = len(line) - len(line.lstrip(" "))
        if line.strip() in ("}", "};") and indent in open_at:
            begin = open_at.pop(indent)
            yield number - begin + 1, f"{path}:{begin}"
            continue
        match = FUNCTION.match(line)
        if match and len(match[1]) <= 2 and "(" in "".join(lines[max(0, number - 8):number]) and not NO_FUNCTION.match(line):
            begin = number
            while begin > 1 and lines[begin - 1].startswith(" " * (len(match[1]) + 4)):  # the head goes on
                begin -= 1
            open_at[len(match[1])] = begin


def comments_without_subject(path, lines):
    for number, line in enumerate(lines, 1):
        if COMMENT.match(line) and not (number > 1 and lines[number - 2].lstrip().startswith("//")):
            yield f"{path}:{number}: {line.strip()}"


def measure():
    numbers = collections.Counter(product_lines=0, files_over_500=0, functions_over_70=0, comments_without_subject=0)
    files, folders, long_functions, comments = [], collections.Counter(), [], []
    for path in tracked(*("*" + suffix for suffix in SOURCES)):
        lines = read(path)
        files.append((len(lines), path))
        numbers["files_over_500"] += len(lines) > LARGE_FILE
        if not NOT_PRODUCT.search(path):
            numbers["product_lines"] += len(lines)
            folders[os.path.dirname(path)] += len(lines)
        if not path.endswith(".proto"):
            long_functions += functions(path, lines)
            comments += comments_without_subject(path, lines)
    numbers["functions_over_70"] = sum(length > LARGE_FUNCTION for length, _ in long_functions)
    numbers["comments_without_subject"] = len(comments)
    numbers["docs_words"] = sum(len(" ".join(read(path)).split()) for path in tracked("docs/*.md")
                                if not path.startswith("docs/reference/"))
    return dict(numbers), sorted(files, reverse=True), folders.most_common(), sorted(long_functions, reverse=True), comments


def reached():
    with open(REACHED, encoding="utf-8") as file:
        return json.load(file)


def check():
    numbers, *_ = measure()
    for name, most in reached().items():
        if numbers[name] > most:
            yield f"{name}: {numbers[name]}, and {most} had been reached ({REACHED}); .ci/lint_size.py lists the largest"


def main():
    numbers, files, folders, long_functions, comments = measure()
    held = reached()
    if sys.argv[1:] == ["--write"]:
        with open(REACHED, "w", encoding="utf-8") as file:
            json.dump({name: min(held[name], numbers[name]) for name in held}, file, indent=2)
            file.write("\n")
        return
    if sys.argv[1:] == ["--comments"]:
        print("\n".join(comments))
        return
    for title, rows in (("largest files", files), ("largest folders of the product", [(n, f) for f, n in folders]),
                        ("longest functions", long_functions)):
        print(title)
        for length, place in rows[:12]:
            print(f"{length:8}  {place}")
    for name, most in held.items():
        print(f"{name}: {numbers[name]}, reached {most}")


if __name__ == "__main__":
    main()
