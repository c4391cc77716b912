"""Writes a small tokenizer.json of each kind: make_tokenizers.py FOLDER.

They are trained on lines.py's text, the same ones every time. The peers of oracle.mjs read them too.
"""

import collections
import json
import os
import sys

import lines

LLAMA3 = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
          "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")


def byte_characters():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    characters, extra = {}, 256
    for byte in range(256):
        if byte in printable:
            characters[byte] = chr(byte)
        else:
            characters[byte] = chr(extra)
            extra += 1
    return characters


def words():
    counts = collections.Counter()
    for line in lines.lines(240, seed=7):
        for word in line.split(" "):
            if word:
                counts[" " + word] += 1
    return counts


def train(pieces, merges):
    """Byte pair encoding: `pieces` maps tuples of symbols to how often they occur."""
    found = []
    pieces = dict(pieces)
    for _ in range(merges):
        pairs = collections.Counter()
        for symbols, count in pieces.items():
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += count
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        found.append(best)
        joined = {}
        for symbols, count in pieces.items():
            result, i = [], 0
            while i < len(symbols):
                if symbols[i:i + 2] == best:
                    result.append(symbols[i] + symbols[i + 1])
                    i += 2
                else:
                    result.append(symbols[i])
                    i += 1
            joined[tuple(result)] = joined.get(tuple(result), 0) + count
        pieces = joined
    return found


def number(tokens):
    return {token: i for i, token in enumerate(dict.fromkeys(tokens))}


def added(vocabulary, contents, special=True):
    return [{"id": vocabulary[content], "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": special} for content in contents]


def file(model, added_tokens, normalizer=None, pre_tokenizer=None, post_processor=None, decoder=None):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens,
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": post_processor,
            "decoder": decoder, "model": model}


def byte_bpe(merges, pattern, ignore_merges, normalizer):
    vocabulary = number([*byte_characters().values(), *(a + b for a, b in merges), "<|endoftext|>"])
    split = [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}] if pattern else []
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": not pattern}
    return file({"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                 "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": ignore_merges,
                 "vocab": vocabulary, "merges": [list(merge) for merge in merges]},
                added(vocabulary, ["<|endoftext|>"]), normalizer,
                {"type": "Sequence", "pretokenizers": [*split, level]}, None, level)


def sentencepiece_bpe(counts):
    pieces = {tuple(("\u2581" + word[1:])): count for word, count in counts.items()}
    merges = train(pieces, 300)
    characters = sorted({symbol for piece in pieces for symbol in piece if ord(symbol) < 0x500} | {"\u2581"})
    known = set(characters)
    kept = []
    for a, b in merges:
        if a in known and b in known:
            kept.append((a, b))
            known.add(a + b)
    vocabulary = number(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *characters,
                         *(a + b for a, b in kept)])
    template = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return file({"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                 "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "vocab": vocabulary,
                 "merges": [f"{a} {b}" for a, b in kept]},
                added(vocabulary, ["<unk>", "<s>", "</s>"]),
                {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
                                                     {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
                None,
                {"type": "TemplateProcessing", "single": template, "pair": template,
                 "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
                {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                                                  {"type": "ByteFallback"}, {"type": "Fuse"},
                                                  {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})


def word_piece(counts):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    text = "".join(counts).lower()
    letters = sorted({c for c in text if c.isalnum() or 33 <= ord(c) < 127})
    parts = collections.Counter()
    for word, count in counts.items():
        word = word[1:].lower()
        for size in range(2, 7):
            for i in range(len(word) - size + 1):
                parts[("##" if i else "") + word[i:i + size]] += count
    tokens += letters + ["##" + c for c in letters] + [part for part, _ in sorted(parts.most_common(600))]
    vocabulary = number(tokens)
    return file({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                 "max_input_chars_per_word": 100, "vocab": vocabulary},
                added(vocabulary, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]),
                {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                 "lowercase": True},
                {"type": "BertPreTokenizer"},
                {"type": "TemplateProcessing",
                 "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                            {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
                 "pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                          {"SpecialToken": {"id": "[SEP]", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                 "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                                    "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}},
                {"type": "WordPiece", "prefix": "##", "cleanup": True})


def unigram(counts):
    parts = collections.Counter()
    for word, count in counts.items():
        word = "\u2581" + word[1:]
        for size in range(1, 7):
            for i in range(len(word) - size + 1):
                parts[word[i:i + size]] += count * size
    kept = [(part, count) for part, count in parts.most_common(900)]
    # Scores that no two ways to cut a text share, so that ties do not matter.
    pieces = [["<unk>", 0.0], ["</s>", 0.0]]
    pieces += [[part, round(-(i + 1) ** 0.5 / 3 - 0.001 * (i * 7919 % 1013), 6)] for i, (part, _) in enumerate(sorted(kept))]
    vocabulary = {piece: i for i, (piece, _) in enumerate(pieces)}
    space = {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True, "prepend_scheme": "always"}
    template = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}]
    return file({"type": "Unigram", "unk_id": 0, "byte_fallback": False, "vocab": pieces},
                added(vocabulary, ["<unk>", "</s>"]), {"type": "NFKC"},
                {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, space]},
                {"type": "TemplateProcessing", "single": template, "pair": template,
                 "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}}, space)


def main(folder):
    counts = words()
    spell = byte_characters()
    merges = train({tuple(spell[byte] for byte in word.encode()): count for word, count in counts.items()}, 300)
    files = {"gpt2": byte_bpe(merges, "", False, None),
             "llama3": byte_bpe(merges, LLAMA3, True, None),
             "qwen": byte_bpe(merges, LLAMA3.replace("{1,3}", ""), False, {"type": "NFC"}),
             "sentencepiece_bpe": sentencepiece_bpe(counts),
             "word_piece": word_piece(counts),
             "unigram": unigram(counts)}
    for name, content in files.items():
        os.makedirs(os.path.join(folder, name), exist_ok=True)
        with open(os.path.join(folder, name, "tokenizer.json"), "w", encoding="utf-8") as out:
            json.dump(content, out, ensure_ascii=False)


if __name__ == "__main__":
    main(sys.argv[1])
