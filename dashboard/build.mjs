// node build.mjs DIRECTORY: bundles src/ into DIRECTORY. The same inputs give the same bytes.
import { build } from 'esbuild';
import { copyFileSync, mkdirSync } from 'node:fs';

const out = process.argv[2];
if (!out) throw new Error('usage: node build.mjs DIRECTORY');
mkdirSync(out, { recursive: true });
const common = { bundle: true, minify: true, charset: 'utf8', legalComments: 'eof', logLevel: 'warning' };
// The style sheet is a string of the script: one request fewer, and a browser runs no script before a page's linked
// style sheets are there.
const styles = {
  name: 'styles',
  setup: ({ onLoad }) => onLoad({ filter: /app\.css$/ }, async ({ path }) => {
    const built = await build({ ...common, entryPoints: [path], write: false });
    return { contents: built.outputFiles[0].text, loader: 'text' };
  }),
};
await build({
  ...common, entryPoints: ['src/app.jsx'], outfile: `${out}/app.js`, format: 'iife', target: 'es2020',
  jsxFactory: 'h', jsxFragment: 'Fragment', loader: { '.svg': 'text' },
  inject: ['src/lazy_intl.js'], define: { Intl: 'lazyIntl' }, plugins: [styles],
});
for (const name of ['index.html', 'favicon.svg']) copyFileSync(`src/${name}`, `${out}/${name}`);
