// node load.mjs URL JOB: of the icon alone, the overview, a job and an island, as JSON: seconds from the
// request until the page shows its data and its main thread is idle, what it takes of the browser's memory
// (its process's own pages beyond those of an empty page), and the bytes that it has received by then, not
// compressed. Medians of five visits with an empty cache each.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const [url, job] = process.argv.slice(2);
const { chromium } = createRequire(join(process.env.ATOLL_DASHBOARD, 'package.json'))('playwright-core');
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu'] });
const whole = await browser.newBrowserCDPSession();
const VISITS = 5, POLL_MS = 200, LIMIT_MS = 60_000;
const PAGES = [
  { page: 'icon', path: 'favicon.svg', shown: 'svg' },
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

// In the page: notes when `shown` is there and the main thread is idle then, in milliseconds since the request.
function noteInteractive(shown) {
  const watch = new MutationObserver(() => {
    if (!document.querySelector(shown)) return;
    watch.disconnect();
    requestIdleCallback(() => { globalThis.interactiveMs = performance.now(); });
  });
  watch.observe(document, { childList: true, subtree: true });
}

// {seconds, memory_bytes, received_bytes} of a visit; memory of the process that appeared with it. The page itself
// takes the time: what a driver looks for elements with is a larger script than the page's own.
async function visit(address, shown) {
  const before = await renderers();
  const context = await browser.newContext();
  const page = await context.newPage();
  if (shown) await page.addInitScript(noteInteractive, shown);
  const network = await context.newCDPSession(page);
  let received_bytes = 0;
  network.on('Network.dataReceived', (part) => { received_bytes += part.dataLength; });
  await network.send('Network.enable');
  await page.goto(address, { waitUntil: 'commit' });
  let interactiveMs = 0;
  for (const limit = Date.now() + LIMIT_MS; shown && !interactiveMs;) {
    await page.waitForTimeout(POLL_MS);
    interactiveMs = await page.evaluate(() => globalThis.interactiveMs);
    if (Date.now() > limit) throw new Error(`${address} does not show ${shown}`);
  }
  const seconds = interactiveMs / 1000, received = received_bytes;
  const own = (await renderers()).filter((pid) => !before.includes(pid));
  if (own.length === 0) throw new Error('the page has no process of its own');
  const memory_bytes = own.reduce((sum, pid) => sum + privateBytes(pid), 0);
  await context.close();
  return { seconds, memory_bytes, received_bytes: received };
}

async function visits(address, shown) {
  const all = [];
  for (let i = 0; i < VISITS; ++i) all.push(await visit(address, shown));
  return Object.fromEntries(Object.keys(all[0]).map((name) => [name, median(all.map((v) => v[name]))]));
}

const empty = await visits('about:blank');
const measured = [];
for (const { page, path, shown } of PAGES) {
  const visited = await visits(`${url}/${path}`, shown);
  measured.push({ page, ...visited, memory_bytes: visited.memory_bytes - empty.memory_bytes });
}
await browser.close();
console.log(JSON.stringify(measured));
