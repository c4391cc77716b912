// node load.mjs URL JOB: seconds until a job's curves are drawn, and the script's memory, as JSON. The
// median of five visits with an empty cache.
import { createRequire } from 'node:module';
import { join } from 'node:path';

const [url, job] = process.argv.slice(2);
const { chromium } = createRequire(join(process.env.ATOLL_DASHBOARD, 'package.json'))('playwright-core');
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu'] });
const visits = [];
for (let visit = 0; visit < 5; ++visit) {
  const context = await browser.newContext();
  const page = await context.newPage();
  const devtools = await context.newCDPSession(page);
  await devtools.send('Performance.enable');
  const begin = performance.now();
  await page.goto(`${url}/#/jobs/${job}`, { waitUntil: 'commit' });
  await page.locator('.chart canvas').first().waitFor();
  const seconds = (performance.now() - begin) / 1000;
  const { metrics } = await devtools.send('Performance.getMetrics');
  visits.push({ seconds, heap_bytes: metrics.find((m) => m.name === 'JSHeapTotalSize').value });
  await context.close();
}
await browser.close();
visits.sort((a, b) => a.seconds - b.seconds);
console.log(JSON.stringify(visits[2]));
