"""Checks documents: links, paths, lengths, the index of decisions, and the functions that walks name.

Called by lint.py. A path in backquotes is checked where it begins with a folder of the repository.
"""
import os
import re
import subprocess

README_WORDS = 400
WALKS = "docs/walks.md"
ROOT_README_WORDS = 950
FOLDERS = ("bench/", "cli/", "common/", "coordinator/", "dashboard/", "deploy/", "docs/", "kernels/",
           "paramserver/", "proto/", "tests/", "third_party/", "worker/")
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")
QUOTED = re.compile(r"`([^`\s]+)`")


def tracked(pattern):
    listed = subprocess.run(["git", "ls-files", "--", pattern], check=True, stdout=subprocess.PIPE,
                            text=True)
    return listed.stdout.splitlines()


def anchors(path):
    """The anchors that GitHub makes of a document's headings."""
    found = set()
    for line in prose(path):
        match = re.match(r"#+ +(.*)", line[1])
        if match:
            text = re.sub(r"[`*\[\]]|\([^)]*\)", "", match[1]).strip().lower()
            found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


def prose(path):
    """Lines outside of code blocks, with their numbers."""
    code = False
    with open(path, encoding="utf-8") as source:
        for number, line in enumerate(source, 1):
            if line.lstrip().startswith("```"):
                code = not code
            elif not code:
                yield number, line.rstrip("\n")


def check_links(path):
    for number, line in prose(path):
        for match in LINK.finditer(line):
            target = next(group for group in match.groups() if group)
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            file = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
            if not os.path.exists(file):
                yield f"{path}:{number}: no such file: {target}"
            elif anchor and file.endswith(".md") and anchor not in anchors(file):
                yield f"{path}:{number}: no such heading: {target}"


def check_paths(path):
    for number, line in prose(path):
        for quoted in QUOTED.findall(line):
            name = quoted.rstrip(".,:;").split(":")[0]
            if not name.startswith(FOLDERS) or re.search(r"[*<>{}$A-Z]", os.path.dirname(name)):
                continue
            if re.search(r"[*<>{}$]", name) or name.rstrip("/").endswith("/built"):
                continue
            near = os.path.join(os.path.dirname(path), name)
            if not any(os.path.exists(at + suffix) for at in (name, near)
                       for suffix in ("", ".h", ".cc", ".py")):
                yield f"{path}:{number}: no such path: {quoted}"


def check_length(path):
    if os.path.basename(path) != "README.md" or path.startswith("docs/"):
        return
    limit = ROOT_README_WORDS if path == "README.md" else README_WORDS
    with open(path, encoding="utf-8") as source:
        text = source.read()
    words = len(text.split())
    if re.search(r"^[-*] (?:\*\*)?20\d\d-\d\d-\d\d", text, re.M):
        yield f"{path}: a dated decision; it belongs into docs/decisions"
    if words > limit:
        yield f"{path}: {words} words, at most {limit}"


def check_decisions():
    index = "docs/decisions/README.md"
    with open(index, encoding="utf-8") as source:
        listed = re.findall(r"\]\(([\w-]+\.md)\)", source.read())
    for path in tracked("docs/decisions/*.md"):
        if os.path.basename(path) not in listed + ["README.md"]:
            yield f"{index}: {os.path.basename(path)} is not listed"


def check_mentions():
    """Pages that are named in plain text, in sources too; in docs/decisions by their file name alone."""
    listed = subprocess.run(["git", "grep", "-nIoE", r"\bdocs/[A-Za-z0-9_/-]+\.md\b"], check=True,
                            stdout=subprocess.PIPE, text=True)
    for line in listed.stdout.splitlines():
        path, number, page = line.split(":", 2)
        if not os.path.exists(page):
            yield f"{path}:{number}: no such page: {page}"
    for path in tracked("docs/decisions/*.md"):
        for number, line in prose(path):
            for name in re.findall(r"(?<![\w/.-])([a-z0-9-]+\.md)\b", line):
                if not any(os.path.exists(folder + name) for folder in
                           ("docs/decisions/", "docs/", "docs/reference/")):
                    yield f"{path}:{number}: no such page: {name}"


def check_walks():
    """A name in backquotes in WALKS that begins with a capital is a function, type or message of the sources."""
    text = "\n".join(line for _, line in prose(WALKS))
    names = {name for name in QUOTED.findall(text) if re.fullmatch(r"[A-Z]\w*(?:::[A-Z]\w*)*", name)}
    sources = {}
    for path in tracked("*.cc") + tracked("*.h") + tracked("*.proto"):
        if not re.search(r"_test\.|/testing/|^tests/|^bench/", path):
            with open(path, encoding="utf-8") as source:
                sources[path] = source.read()
    for name in sorted(names):
        *owners, function = name.split("::")
        defined = re.compile(rf"\b{name}\b *[({{]|\b(?:struct|class|message) {name}\b")
        member = re.compile(rf"\b{function}\(")
        owner = re.compile(rf"\b(?:class|struct) {owners[-1]}\b" if owners else r"(?!)")
        if not any(defined.search(text) or owner.search(text) and member.search(text) for text in sources.values()):
            yield f"{WALKS}: there is no {name}"


def check():
    yield from check_mentions()
    yield from check_walks()
    for path in tracked("*.md"):
        yield from check_links(path)
        yield from check_paths(path)
        yield from check_length(path)
    yield from check_decisions()
