// node ids.mjs FOLDER CONVERSATIONS: the ids that npm's packages make of each conversation with the folder's chat_template, one
// line of numbers each; "refused" where the template refuses it.

import { readFileSync } from "node:fs";
import { Template } from "@huggingface/jinja";
import { Tokenizer } from "@huggingface/tokenizers";

const [folder, conversations] = process.argv.slice(2);
const config = JSON.parse(readFileSync(`${folder}/tokenizer_config.json`, "utf8"));
const tokenizer = new Tokenizer(JSON.parse(readFileSync(`${folder}/tokenizer.json`, "utf8")), {});
const template = new Template(config.chat_template);
const special = {};
for (const [name, token] of Object.entries(config)) {
  if (name.endsWith("_token") && token !== null && typeof token !== "boolean") special[name] = token.content ?? token;
}
const lines = readFileSync(conversations, "utf8").split("\n");
lines.pop();
for (const line of lines) {
  const { messages, tools } = JSON.parse(line);
  let ids = "refused";
  try {
    const text = template.render({ ...special, messages, ...(tools ? { tools } : {}), add_generation_prompt: false });
    ids = tokenizer.encode(text, { add_special_tokens: false }).ids.join(" ");
  } catch {
    // The template has its reasons.
  }
  console.log(ids);
}
