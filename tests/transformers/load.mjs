// Loads each folder in FOLDER with the peer's AutoConfig and AutoTokenizer: node load.mjs FOLDER TEXTS
import { readdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { AutoConfig, AutoTokenizer, env } from '@huggingface/transformers';

env.allowRemoteModels = false;
env.localModelPath = '/';
const all = resolve(process.argv[2]);
const texts = readFileSync(process.argv[3], 'utf8').split('\n').filter((line) => line !== '').slice(0, 200);
// The fields of config.json that the peer looks up for each kind of decoder.
const decoders = ['gpt2', 'llama', 'mistral', 'qwen2', 'qwen3', 'olmo2', 'gemma2', 'phi3'];
const seen = new Set();
let wrong = 0;
const expect = (folder, what, got, wanted) => {
  if (got === wanted) return;
  console.log(`${folder}: ${what} is ${got}, not ${wanted}`);
  wrong += 1;
};

for (const folder of readdirSync(all).sort()) {
  const path = join(all, folder);
  const written = JSON.parse(readFileSync(join(path, 'config.json'), 'utf8'));
  const config = await AutoConfig.from_pretrained(path);
  expect(folder, 'model_type', config.model_type, written.model_type);
  if (decoders.includes(config.model_type)) {
    expect(folder, 'layers', config.normalized_config.num_layers, written.num_hidden_layers ?? written.n_layer);
    expect(folder, 'heads', config.normalized_config.num_heads,
           written.num_key_value_heads ?? written.num_attention_heads ?? written.n_head);
  }
  seen.add(config.model_type);
  const tokenizer = await AutoTokenizer.from_pretrained(path);
  for (const text of texts) expect(folder, 'a text', tokenizer.decode(tokenizer.encode(text)), text);
}
for (const family of [...decoders, 'bert', 'resnet', 'efficientnet']) expect('all', family, seen.has(family), true);
console.log(`${seen.size} families, ${texts.length} texts, ${wrong} differences`);
process.exit(wrong === 0 ? 0 : 1);
