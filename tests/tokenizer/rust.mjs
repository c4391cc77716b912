// node rust.mjs FOLDER LINES [--time]: as oracle.mjs, by Hugging Face's Rust library (npm's
// @anush008/tokenizers); with --time, bytes, tokens and seconds instead of the ids.

import { readFileSync } from "node:fs";
import { Tokenizer } from "@anush008/tokenizers";

const [folder, lines, time] = process.argv.slice(2);
const tokenizer = Tokenizer.fromFile(`${folder}/tokenizer.json`);
const content = readFileSync(lines, "utf8");
const text = content.split("\n");
text.pop();
if (time) {
  let tokens = 0;
  const start = process.hrtime.bigint();
  for (let i = 0; i < text.length; i += 1000) {
    for (const encoding of await tokenizer.encodeBatch(text.slice(i, i + 1000))) tokens += encoding.getLength();
  }
  const seconds = Number(process.hrtime.bigint() - start) / 1e9;
  console.log(Buffer.byteLength(content), tokens, seconds);
} else {
  const out = [];
  for (const line of text) out.push((await tokenizer.encode(line)).getIds().join(" "));
  process.stdout.write(out.join("\n") + "\n");
}
