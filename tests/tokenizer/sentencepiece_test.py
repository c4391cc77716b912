#!/usr/bin/python3
"""Compares ids and decoded text of .model files with SentencePiece's own programs (Debian's sentencepiece).

The models are trained here, each with other settings; the text is lines.py's 10,000 lines.
"""

import os
import subprocess
import sys
import tempfile
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))
ENCODE_LINES = os.path.join(FOLDER, "encode_lines")

LIKE_LLAMA = ["--normalization_rule_name=identity", "--remove_extra_whitespaces=false", "--byte_fallback",
              "--split_digits"]


def lines(count):
    made = subprocess.run([sys.executable, "-B", os.path.join(FOLDER, "lines.py"), str(count)], check=True,
                          capture_output=True)
    return made.stdout


class SentencePiece(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.text = cls.path("lines.txt")
        with open(cls.text, "wb") as file:
            file.write(lines(10000))
        with open(cls.path("train.txt"), "w") as file:
            # Mostly letters that a small vocabulary can hold; what is rarer stays unknown.
            for line in lines(9000).decode().split("\n"):
                kept = [word for word in line.split(" ") if all(ord(c) < 0x500 or c == "\u2581" for c in word)]
                file.write(" ".join(kept).replace("\0", "") + "\n")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder.name, name)

    def output(self, *command, given=None):
        with open(given or os.devnull, "rb") as file:
            done = subprocess.run(command, stdin=file, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def assert_same(self, ours, theirs):
        ours, theirs = ours.split(b"\n"), theirs.split(b"\n")
        different = [i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b]
        self.assertEqual(different, [], f"first: {[x[different[0]] for x in (ours, theirs)]}" if different else "")
        self.assertEqual((len(ours), len(theirs)), (10001, 10001))

    def check(self, kind, vocabulary, *options, same_text):
        self.output("spm_train", f"--input={self.path('train.txt')}", f"--model_prefix={self.path('m')}",
                    "--minloglevel=2", "--num_threads=1", "--character_coverage=0.98", "--bos_id=-1",
                    f"--model_type={kind}", f"--vocab_size={vocabulary}", *options)
        model = self.path("m.model")
        ids = self.path("ids.txt")
        with open(ids, "wb") as file:
            file.write(self.output("spm_encode", f"--model={model}", "--output_format=id", given=self.text))
        with open(ids, "rb") as file:
            self.assert_same(self.output(ENCODE_LINES, model, self.text), file.read())
        if same_text:
            self.assert_same(self.output(ENCODE_LINES, model, self.text, "--text"),
                             self.output("spm_decode", f"--model={model}", "--input_format=id", given=ids))

    def test_byte_pairs_as_llama_has_them(self):
        self.check("bpe", 3000, *LIKE_LLAMA, same_text=True)

    def test_byte_pairs_without_a_prefix_and_with_symbols_of_the_user(self):
        self.check("bpe", 3000, *LIKE_LLAMA, "--add_dummy_prefix=false", "--user_defined_symbols=<x>,the,\u2581\u2581",
                   same_text=True)

    def test_byte_pairs_with_the_default_normalization(self):
        self.check("bpe", 3000, same_text=False)

    def test_unigram_with_the_default_normalization(self):
        self.check("unigram", 2500, same_text=False)

    def test_unigram_with_folded_case_bytes_and_symbols_of_the_user(self):
        self.check("unigram", 2500, "--normalization_rule_name=nfkc_cf", "--byte_fallback",
                   "--user_defined_symbols=<x>,don", same_text=True)


if __name__ == "__main__":
    unittest.main()
