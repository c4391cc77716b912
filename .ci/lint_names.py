"""No two files define a class of the same full name: what links both would take either's functions for both."""
import collections
import re

TOKEN = re.compile(r"namespace\s*([\w:]*)\s*\{|\b(?:class|struct|enum class)\s+(\w+)\s*(?:final\s*)?"
                   r"(?::[^:;{][^;{]*)?\{|\{|\}")
UNSEEN = re.compile(r"//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'")


def defined(text):
    """Full names of the classes that a text defines in namespaces that have names."""
    around = []  # what each open brace belongs to: a namespace's name, or None
    for token in TOKEN.finditer(UNSEEN.sub("", text)):
        if token[0] == "}":
            if around:
                around.pop()
        elif token[0].startswith("namespace"):
            around.append(token[1])
        else:
            if token[2] and all(around):
                yield "::".join([*around, token[2]])
            around.append(None)


def check(paths):
    seen = collections.defaultdict(list)
    for path in paths:
        with open(path, encoding="utf-8") as source:
            for name in set(defined(source.read())):
                seen[name].append(path)
    for name, where in sorted(seen.items()):
        if len(where) > 1:
            yield f"{where[0]}: {name} is also a class of {', '.join(where[1:])}: one of them needs another name"
