// node build.mjs DIRECTORY: bundles src/ into DIRECTORY. The same inputs give the same bytes.
import { build } from 'esbuild';
import { copyFileSync, mkdirSync, readFileSync } from 'node:fs';

const out = process.argv[2];
if (!out) throw new Error('usage: node build.mjs DIRECTORY');
mkdirSync(out, { recursive: true });
const common = { bundle: true, minify: true, charset: 'utf8', legalComments: 'eof', logLevel: 'warning' };
// Rows "| word | meaning |" but for the table's head.
const words = readFileSync('../docs/glossary.md', 'utf8').split('\n').map((line) => line.split(' | ').map((cell) => cell.replace(/^\| | \|$/g, '')))
  .filter((cells, i, all) => cells.length === 2 && i > all.findIndex((row) => row.length === 2));
const scripts = { ...common, format: 'esm', target: 'es2020' };
await build({
  ...scripts, entryPoints: ['src/app.jsx'], outfile: `${out}/app.js`, external: ['./uplot.js'],
  jsxFactory: 'h', jsxFragment: 'Fragment', loader: { '.svg': 'text' }, define: { WORDS: JSON.stringify(words) },
});
await build({
  ...scripts, entryPoints: ['src/uplot.js'], outfile: `${out}/uplot.js`,
  inject: ['src/lazy_intl.js'], define: { Intl: 'lazyIntl' },
});
await build({ ...common, entryPoints: ['src/app.css'], outfile: `${out}/app.css` });
for (const name of ['index.html', 'favicon.svg']) copyFileSync(`src/${name}`, `${out}/${name}`);
