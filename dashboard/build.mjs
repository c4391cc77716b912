// node build.mjs DIRECTORY: bundles src/ into DIRECTORY. The same inputs give the same bytes.
import { build } from 'esbuild';
import { copyFileSync, mkdirSync } from 'node:fs';

const out = process.argv[2];
if (!out) throw new Error('usage: node build.mjs DIRECTORY');
mkdirSync(out, { recursive: true });
const common = { bundle: true, minify: true, charset: 'utf8', legalComments: 'eof', logLevel: 'warning' };
const scripts = { ...common, format: 'esm', target: 'es2020' };
await build({
  ...scripts, entryPoints: ['src/app.jsx'], outfile: `${out}/app.js`, external: ['./uplot.js'],
  jsxFactory: 'h', jsxFragment: 'Fragment', loader: { '.svg': 'text' },
});
await build({
  ...scripts, entryPoints: ['src/uplot.js'], outfile: `${out}/uplot.js`,
  inject: ['src/lazy_intl.js'], define: { Intl: 'lazyIntl' },
});
await build({ ...common, entryPoints: ['src/app.css'], outfile: `${out}/app.css` });
for (const name of ['index.html', 'favicon.svg']) copyFileSync(`src/${name}`, `${out}/${name}`);
