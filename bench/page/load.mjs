// node load.mjs URL JOB: of the overview, a job and an island, as JSON: seconds from the request until
// the page shows its data and its main thread is idle, and what it takes of the browser's memory (its
// process's own pages beyond those of an empty page). Medians of five visits with an empty cache each.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const [url, job] = process.argv.slice(2);
const { chromium } = createRequire(join(process.env.ATOLL_DASHBOARD, 'package.json'))('playwright-core');
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu'] });
const whole = await browser.newBrowserCDPSession();
const VISITS = 5;
const PAGES = [
  { page: 'overview', path: '#/', shown: '[aria-labelledby=members] tbody tr' },
  { page: 'job', path: `#/jobs/${job}`, shown: '.chart canvas' },
  { page: 'island', path: `#/jobs/${job}/islands/0`, shown: 'main table tbody tr' },
];
const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

async function renderers() {
  const { processInfo } = await whole.send('SystemInfo.getProcessInfo');
  return processInfo.filter((p) => p.type === 'renderer').map((p) => p.id);
}

const privateBytes = (pid) => [...readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8').matchAll(/^Private_\w+:\s+(\d+) kB/gm)]
  .reduce((sum, found) => sum + 1024 * Number(found[1]), 0);

// {seconds, memory_bytes} of a visit; memory of the process that appeared with it.
async function visit(address, shown) {
  const before = await renderers();
  const context = await browser.newContext();
  const page = await context.newPage();
  const begin = performance.now();
  await page.goto(address, { waitUntil: 'commit' });
  if (shown) await page.locator(shown).first().waitFor();
  await page.evaluate(() => new Promise((idle) => requestIdleCallback(idle)));
  const seconds = (performance.now() - begin) / 1000;
  const own = (await renderers()).filter((pid) => !before.includes(pid));
  if (own.length === 0) throw new Error('the page has no process of its own');
  const memory_bytes = own.reduce((sum, pid) => sum + privateBytes(pid), 0);
  await context.close();
  return { seconds, memory_bytes };
}

async function visits(address, shown) {
  const all = [];
  for (let i = 0; i < VISITS; ++i) all.push(await visit(address, shown));
  return { seconds: median(all.map((v) => v.seconds)), memory_bytes: median(all.map((v) => v.memory_bytes)) };
}

const empty = await visits('about:blank');
const measured = [];
for (const { page, path, shown } of PAGES) {
  const { seconds, memory_bytes } = await visits(`${url}/${path}`, shown);
  measured.push({ page, seconds, memory_bytes: memory_bytes - empty.memory_bytes });
}
await browser.close();
console.log(JSON.stringify(measured));
