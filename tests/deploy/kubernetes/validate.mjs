// Reads a JSON list of Kubernetes objects on standard input and checks each against the API's schema.
// Prints one line per object, "ok KIND NAME" or "bad KIND NAME: why"; exit code 1 if any is bad.
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';

const require = createRequire(import.meta.url);
let bad = 0;
for (const object of JSON.parse(readFileSync(0, 'utf8'))) {
  const name = `${object.kind} ${object.metadata?.name}`;
  try {
    const Model = require(`kubernetes-models/${object.apiVersion}/${object.kind}`)[object.kind];
    new Model(object).validate();
    console.log(`ok ${name}`);
  } catch (error) {
    bad += 1;
    console.log(`bad ${name}: ${error.message}`);
  }
}
process.exit(bad === 0 ? 0 : 1);
