// node oracle.mjs FOLDER LINES: the ids of each line by npm's @huggingface/tokenizers, one line of
// numbers each. FOLDER holds tokenizer.json.

import { readFileSync } from "node:fs";
import { Tokenizer } from "@huggingface/tokenizers";

const [folder, lines] = process.argv.slice(2);
const json = JSON.parse(readFileSync(`${folder}/tokenizer.json`, "utf8"));
const tokenizer = new Tokenizer(json, {});
const text = readFileSync(lines, "utf8").split("\n");
text.pop();
process.stdout.write(text.map((line) => tokenizer.encode(line).ids.join(" ")).join("\n") + "\n");
