// node oracle.mjs TEMPLATE CONVERSATIONS: what npm's @huggingface/jinja renders, a line each: {"text": ...} or {"error": ...}.

import { readFileSync } from "node:fs";
import { Template } from "@huggingface/jinja";

const [file, conversations] = process.argv.slice(2);
const template = new Template(readFileSync(file, "utf8"));
// The day that strftime_now shows.
const Now = Date;
globalThis.Date = class extends Now {
  constructor(...parts) {
    super(...(parts.length > 0 ? parts : [2026, 2, 4, 5, 6, 7]));
  }
};
const lines = readFileSync(conversations, "utf8").split("\n");
lines.pop();
for (const line of lines) {
  let made;
  try {
    made = { text: template.render(JSON.parse(line)) };
  } catch (error) {
    made = { error: error.message };
  }
  console.log(JSON.stringify(made));
}
