"""Keeps words out that docs/glossary.md replaces, in comments, messages, documents and names."""
import io
import re
import subprocess
import tokenize

# Everything that git has under these is checked, but for what EXCLUDED begins.
CLEANED = ("*.md", "bench/", "cli/", "common/", "coordinator/", "dashboard/", "deploy/", "docs/",
           "kernels/", "paramserver/", "proto/", "rehearsal/", "tests/", "third_party/", "worker/")
EXCLUDED = ("dashboard/built/", "dashboard/package-lock.json")

# What stands in the way of a search for the field's terms, with the term to write instead.
WORDS = [
    (r"nobody|whoever|whomever|somebody|any(?:body|one)|every(?:body|one)|no one",
     "name the member or write \"no worker\", \"all members\""),
    (r"gone|(?:is|are|was|were|be|been|stays?) away", "unavailable, failed; ended, deleted"),
    (r"life|lives", "incarnation; lifetime; is, exists"),
    (r"deals?|dealt|dealing", "assigns, distributes, divides"),
    (r"promis(?:es?|ed|ing)", "predicts; guarantees, contract"),
    (r"obeys?|obeyed|obeying", "follows, carries out"),
    (r"guests?", "peers"),
    (r"quiet", "idle"),
    (r"asks|asked|asking", "requests, polls"),
    (r"ask for (?:another|a new) plan", "replan request"),
    (r"(?:'s|own) word", "commit vote"),
    (r"(?:'s|small) language", "commands, fixture"),
    (r"sums? of gradients|gradient sums?|sums with other", "all-reduce"),
    (r"in vain", "lost, without effect"),
    (r"told|tells?|hears?|heard|word of", "receives, reports, gets"),
    (r"lends?|lent|lenders?|lending|borrow(?:s|ed|ers?)?", "source, destination, transfer"),
    (r"heirs?|inherit(?:s|ed|ance)?", "successor, handover"),
    (r"(?:gives?|gave|giving|given|give) (?:it |them )?up", "refuses, ends, times out"),
    (r"as ever", "as usual"),
    (r"roster|people", "members, membership; human-readable"),
    (r"(?:holds?|held) up|stood still|stands? still|standing still", "delays, stall; idle"),
    (r"doorkeepers?|sparing", "ZAP authenticator; eviction suspension"),
    (r"stor(?:y|ies)", "test, case, fixture"),
    (r"wires?", "link"),
    (r"pieces?", "chunk"),
    (r"boundar(?:y|ies)", "stage link"),
    (r"made again", "replayed"),
    (r"news|wish(?:es)?", "drift; replan request"),
]
# Phrases of texts that users read: string literals outside tests.
PHRASES = [
    (r"(?:^|[:;,] )waits for\b", "waiting for"),
    (r"\bweighs\b", "weight"),
    (r"\bthe (?:job|island|round|worker) waits$", "is waiting"),
    (r"\bwhat lost\b", "alternatives"),
    (r"\bnothing (?:were|was) ever sent\b", "without communication"),
    (r"\boverlapped\b", "with transfers"),
    (r"\b(?:is|are|was) away\b", "unavailable"),
]
PHRASE = re.compile("|".join(f"(?P<p{i}>{words})" for i, (words, _) in enumerate(PHRASES)))
TEST = re.compile(r"^tests/|_test\.|/testing/")
PATTERN = re.compile(r"\b(?:" + "|".join(f"(?P<w{i}>{words})" for i, (words, _) in enumerate(WORDS)) + r")\b",
                     re.IGNORECASE)
QUOTED = re.compile(r"`[^`]*`|/\*\w+=\*/|[\w/]+\.(?:cc|h|py|proto)\b")  # code, arguments' names, files
# (path begins so, the line contains): the word is meant in its usual sense, or is a name.
EXCEPTIONS = [
    ("", "on the wire"),  # bytes as they are sent
    ("", "wire contract"),
    ("common/tokenizer/", "piece"),  # SentencePiece's term
    ("tests/tokenizer/", "piece"),
    ("tests/tokenizer/lines.py", "people"),  # text to tokenize
    ("", "promise N"),  # N1 to N10
    ("docs/", "promise"),
    ("tests/sim/", "promise"),
    ("worker/profiler/link_profiler.cc", "promise"),  # std::promise
    ("kernels/simd.h", "quiet"),  # of a NaN
]

# Words that no name has, functions whose names end in "Of" included. Names that strings hold, such as keys, are not read.
NAME_WORDS = re.compile(r"nobody|whoever|somebody|told|tells?|ask(?:s|ed)?|hear[sd]?|news|wish(?:es)?|lent|lenders?|borrow(?:s|ed)?|"
                        r"heirs?|vain|desks?|books?|keepers?|charters?|seats?|roster|people|doorkeepers?|guests?|sparing|spared|"
                        r"doing|usual|twins?|settle[sd]?|gone|goodbye|farewell")
NAME_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
NAMES_EXCEPTED = {"CURLOPT_NOBODY", "IsOneOf"}
GETTER = re.compile(r"\b[A-Z]\w*[a-z]Of\(")


def c_like(text):
    """Comments and string literals with white space in them, with line numbers."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((.*?)\)"|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', re.S)
    for match in token.finditer(text):
        found = match[0]
        if not found.startswith(("/", "R")) and not re.search(r"\s", found):
            continue
        for offset, line in enumerate(found.split("\n")):
            yield text.count("\n", 0, match.start()) + 1 + offset, line


def literals(text):
    """The contents of string literals, adjacent ones joined, with line numbers."""
    code = re.sub(r"//[^\n]*", "", text)
    for match in re.finditer(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*', code):
        yield code.count("\n", 0, match.start()) + 1, re.sub(r'"\s*"', "", match[0])[1:-1]


def python(text):
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds and re.search(r"\s", token.string):
            for offset, line in enumerate(token.string.split("\n")):
                yield token.start[0] + offset, re.sub(r"\{[^{}]*\}", "", line)


def comments(text):
    """Shell, TOML, YAML, BUILD: what follows a number sign."""
    for number, line in enumerate(text.split("\n"), 1):
        match = re.search(r"(?:^|\s)#(?!!)(.*)", line)
        if match:
            yield number, match[1]


def document(text):
    code = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code:
            yield number, re.sub(r"`[^`]*`|\]\([^)]*\)", "", line)


def sentences(path, text):
    if path.endswith((".cc", ".h", ".cu", ".cuh", ".proto", ".js", ".jsx", ".mjs")):
        return c_like(text)
    if path.endswith(".md"):
        return document(text)
    if path.endswith(".py") or re.match(r"#!.*\bpython3\n", text):
        return python(text)
    if path.endswith((".sh", ".toml", ".yaml", ".yml", ".bzl", "BUILD", ".bazel", ".env", ".service", ".in", ".txt")) \
            or text.startswith("#!"):
        return comments(text)
    return ()


def names(path, text):
    """Names in code that have a word of NAME_WORDS or end in "Of", with line numbers and the reason."""
    if not path.endswith((".cc", ".h", ".cu", ".cuh", ".proto", ".js", ".jsx")):
        return
    blank = lambda match: re.sub(r"[^\n]", " ", match[0])
    code = re.sub(r'//[^\n]*|/\*.*?\*/|R"\((.*?)\)"|"(?:[^"\\\n]|\\.)*"'
                  + (r"|'[^'\n]*'" if path.endswith(("js", "jsx")) else ""), blank, text, flags=re.S)
    for match in re.finditer(r"\b[A-Za-z_]\w*", code):
        words = [part for part in NAME_PARTS.findall(match[0]) if NAME_WORDS.fullmatch(part.lower())]
        if words and match[0] not in NAMES_EXCEPTED:
            yield code.count("\n", 0, match.start()) + 1, match[0], words[0].lower()
    for match in GETTER.finditer(code):
        if match[0][:-1] not in NAMES_EXCEPTED:
            yield code.count("\n", 0, match.start()) + 1, match[0][:-1], "Of"


def check():
    listed = subprocess.run(["git", "ls-files", "--", *CLEANED], check=True, stdout=subprocess.PIPE, text=True)
    for path in listed.stdout.splitlines():
        if path.startswith(EXCLUDED):
            continue
        try:
            with open(path, encoding="utf-8") as source:
                text = source.read()
        except UnicodeDecodeError:
            continue
        if path.endswith((".cc", ".h", ".jsx", ".js")) and not TEST.search(path):
            for number, literal in literals(text):
                for match in PHRASE.finditer(literal):
                    yield f"{path}:{number}: \"{match[0]}\": {PHRASES[int(match.lastgroup[1:])][1]}"
        for number, name, word in names(path, text):
            yield f"{path}:{number}: the name {name} has \"{word}\": docs/glossary.md"
        for number, line in sentences(path, text):
            for match in PATTERN.finditer(QUOTED.sub("", line)):
                if any(path.startswith(where) and what in line for where, what in EXCEPTIONS):
                    continue
                term = WORDS[int(match.lastgroup[1:])][1]
                yield f"{path}:{number}: \"{match[0]}\": {term}"


if __name__ == "__main__":
    print("\n".join(check()))
