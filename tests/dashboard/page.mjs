// node page.mjs PHASE URL JOB OUT: looks at the coordinator's pages with a real Chromium. A phase
// ends with exit code 0, or with what is not as it should be. Screenshots go to OUT.
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

const [phase, url, job, out] = process.argv.slice(2);
const require = createRequire(join(process.env.ATOLL_DASHBOARD, 'package.json'));
const { chromium } = require('playwright-core');
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
const LIMIT_MS = 60_000;

const problems = [];
const check = (condition, what) => { if (!condition) problems.push(what); };

const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu'] });

async function open({ width = 1280, dark = false } = {}) {
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme: dark ? 'dark' : 'light' });
  const page = await context.newPage();
  page.setDefaultTimeout(LIMIT_MS);
  page.on('console', (message) => { if (message.type() === 'error') problems.push(`console: ${message.text()}`); });
  page.on('pageerror', (error) => problems.push(`page error: ${error.message}`));
  page.on('request', (request) => { if (!request.url().startsWith(url) && !request.url().startsWith('data:')) problems.push(`asks ${request.url()}`); });
  return page;
}

// Waits for fn(argument) in the page. (Playwright's own way needs what the page's policy forbids.)
async function until(page, what, fn, argument) {
  for (const limit = Date.now() + LIMIT_MS; Date.now() < limit;) {
    if (await page.evaluate(fn, argument)) return;
    await page.waitForTimeout(100);
  }
  throw new Error(`timed out: ${what}`);
}

const PAGES = {
  overview: ['#/', 'Overview'],
  jobs: ['#/jobs', 'Jobs'],
  job: [`#/jobs/${job}`, job],
  island: [`#/jobs/${job}/islands/0`, 'Island 0'],
  logs: ['#/logs', 'Log'],
  words: ['#/words', 'Glossary'],
};

async function go(page, name) {
  await page.goto(`${url}/${PAGES[name][0]}`);
  await page.locator('h1', { hasText: PAGES[name][1] }).waitFor();
  await page.locator('.dot.live').waitFor();
}

// What axe-core finds against accessibility.
async function checkAccess(page, name) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document));
  for (const v of violations) check(false, `${name}: ${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.target.join(' ')).join('; ')}`);
}

// Every page, in one size and theme.
async function tour(options, suffix) {
  const page = await open(options);
  for (const name of Object.keys(PAGES)) {
    await go(page, name);
    if (name === 'job') await page.locator('.chart canvas').first().waitFor();
    await page.waitForTimeout(300);  // charts draw in the next frame
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    check(wide <= 0, `${name}${suffix} is ${wide} px wider than the window`);
    await page.screenshot({ path: join(out, `${name}${suffix}.png`), fullPage: true });
    await checkAccess(page, `${name}${suffix}`);
    check((await page.title()).startsWith(name === 'island' ? `${job}, island 0` : PAGES[name][1]), `${name}: its title is ${await page.title()}`);
  }
  await page.context().close();
}

const phases = {
  async running() {
    await tour({}, '');
    await tour({ dark: true }, '-dark');
    await tour({ width: 400 }, '-narrow');
    const page = await open();
    await go(page, 'job');
    const version = () => page.locator('.tile', { hasText: 'version' }).locator('.value').last().innerText();
    const before = await version();
    await until(page, 'another version', (old) => [...document.querySelectorAll('.tile')].some((t) => t.querySelector('.label').textContent === 'version' && t.querySelector('.value').textContent !== old), before);
    // Named validation sets: a row and a curve each.
    for (const set of ['law', 'code']) {
      const cells = await page.locator('[aria-labelledby=validation-sets] tbody tr', { hasText: set }).first().locator('td').allInnerTexts();
      check(cells[0] === set && Number(cells[1]) > 0 && Number(cells[4]) >= 0, `the row of set ${set} is ${cells.join(', ')}`);
    }
    const legend = await page.locator('[aria-labelledby=validation-sets] .u-legend .u-label').allInnerTexts();
    check(['held-out data', 'law', 'code'].every((label) => legend.includes(label)), `sets' curves: ${legend.join(', ')}`);
    check(await page.locator('.chart canvas').count() === 6, 'a job with validation sets has six charts');
    // By island: what its last point says is a number.
    for (const chart of ['Gradient norm', 'Learning rate']) {
      await page.locator('.chart', { hasText: chart }).locator('.u-over').hover();
      const values = await page.locator('.chart', { hasText: chart }).locator('.u-value').allInnerTexts();
      check(values.length === 4 && values.slice(1).some((v) => Number(v) > 0), `${chart}: ${values.join(', ')}`);
    }
    check(await page.locator('svg[aria-label="the newest rounds"] rect').count() > 0, 'rounds show pushes');
    check(await page.locator('#decisions').count() === 1, 'decisions are listed');
    // By keyboard alone: g j goes to the jobs; Tab reaches a link that Enter follows.
    await page.keyboard.press('g');
    await page.keyboard.press('j');
    await page.locator('h1', { hasText: 'Jobs' }).waitFor();
    await page.locator(`a[href="#/jobs/${job}"]`).first().focus();
    await page.keyboard.press('Enter');
    await page.locator('h1', { hasText: job }).waitFor();
    // Its settings as a job file, other views of its curves, and what keys there are.
    await page.locator('summary', { hasText: 'job file' }).click();
    await page.locator('pre', { hasText: 'steps_per_round' }).waitFor();
    await page.getByLabel('smoothing').selectOption({ label: 'much' });
    await page.getByLabel('logarithmic loss').check();
    const speeds = await page.locator('.chart', { hasText: 'Committed tokens/s' }).locator('.u-label').allInnerTexts();
    check(['all islands', 'island 0', 'island 1', 'island 2'].every((label) => speeds.includes(label)), `speeds of ${speeds.join(', ')}`);
    const [csv] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Download CSV' }).click()]);
    const rows = readFileSync(await csv.path(), 'utf8').trim().split('\n');
    check(rows.length > 2 && rows[0].split(',').length === rows[1].split(',').length, `the CSV begins with ${rows.slice(0, 2).join(' / ')}`);
    await page.keyboard.press('?');
    await page.locator('dialog[open]').waitFor();
    await checkAccess(page, 'keys');
    await page.keyboard.press('Escape');
    // The log: what has happened, and on demand every round; its filter.
    await go(page, 'logs');
    const decided = () => page.evaluate(() => [...document.querySelectorAll('.log .text')].filter((r) => / is decided: /.test(r.textContent)).length);
    check(await decided() === 0, 'rounds are among the events');
    await page.getByLabel('severity').selectOption({ label: 'events and rounds' });
    await until(page, 'rounds in the log', () => [...document.querySelectorAll('.log .text')].some((r) => / is decided: /.test(r.textContent)));
    await page.getByLabel('severity').selectOption({ label: 'events' });
    await page.locator('input[type=search]').fill('joined');
    await until(page, 'filtered lines', () => { const rows = [...document.querySelectorAll('.log .text')]; return rows.length > 0 && rows.every((r) => r.textContent.toLowerCase().includes('joined')); });
    // An unknown job says so.
    await page.goto(`${url}/#/jobs/none-1`);
    await page.locator('.problem').waitFor();
    const expected = problems.filter((p) => p.includes('404'));
    for (const p of expected) problems.splice(problems.indexOf(p), 1);
    await page.context().close();
  },
  async killed() {
    const page = await open();
    await go(page, 'overview');
    const busy = await page.locator('[aria-labelledby=members] tbody tr', { hasText: 'worker' }).locator('td', { hasText: /^\d+\.\d%$/ }).count();
    check(busy >= 2, `${busy} workers have a utilisation`);
    await page.locator('.badge.unavailable').first().waitFor();
    await page.screenshot({ path: join(out, 'overview-killed.png'), fullPage: true });
    await go(page, 'job');
    await page.locator('tr', { hasText: 'island 1' }).locator('.badge.unavailable').first().waitFor();
    await page.screenshot({ path: join(out, 'job-killed.png'), fullPage: true });
    await page.goto(`${url}/#/jobs/${job}/islands/1`);
    await page.locator('[aria-labelledby=events] .text', { hasText: /^island 1: worker/ }).first().waitFor();
    const left = await page.locator('[aria-labelledby=left] tbody tr').first().locator('td').allInnerTexts();
    check(left.length === 3 && /^\d{4}-/.test(left[0]) && left.slice(1).every(Boolean), `a worker that left: ${left.join(', ')}`);
    await page.screenshot({ path: join(out, 'island-killed.png'), fullPage: true });
  },
  // Prints "ready", then "off" when the connection is lost; the caller stops and starts the coordinator.
  async restarted() {
    const page = await open();
    await go(page, 'job');
    const version = await page.locator('.tile', { hasText: 'version' }).locator('.value').last().innerText();
    console.log('ready');
    await page.locator('.dot.off').waitFor();
    check(await page.locator('h1', { hasText: job }).count() === 1, 'without a connection the page keeps what it shows');
    await page.locator('.lost').waitFor();
    check(await page.getByRole('button', { name: 'Pause' }).isDisabled(), 'without a connection actions are off');
    await page.screenshot({ path: join(out, 'job-lost.png') });
    console.log('off');
    await page.locator('.dot.live').waitFor();
    await page.locator('.lost').waitFor({ state: 'detached' });
    await until(page, 'another version', (old) => [...document.querySelectorAll('.tile')].some((t) => t.querySelector('.label').textContent === 'version' && Number(t.querySelector('.value').textContent) > Number(old)), version);
    await until(page, 'no error on the page', () => document.querySelectorAll('.problem').length === 0);
    // The browser itself reports requests that nothing answered.
    const expected = problems.filter((p) => /^console: Failed to load resource: net::ERR_/.test(p));
    for (const p of expected) problems.splice(problems.indexOf(p), 1);
  },
  async actions() {
    const page = await open();
    page.on('dialog', (dialog) => dialog.accept());
    await go(page, 'overview');
    for (const name of ['ps1', 'w1']) {
      const member = page.locator('[aria-labelledby=members] tr', { hasText: name });
      await member.getByRole('button', { name: 'Drain', exact: true }).click();
      await member.locator('.reason', { hasText: /^(draining|drained): / }).waitFor();
      await page.screenshot({ path: join(out, `overview-draining-${name}.png`), fullPage: true });
      await member.getByRole('button', { name: 'Undo drain' }).click();
      await member.getByRole('button', { name: 'Drain', exact: true }).waitFor();
    }
    await go(page, 'job');
    await page.getByRole('button', { name: 'Pause' }).click();
    await page.locator('.title .badge.paused').waitFor();
    await until(page, 'no speed of a paused job', () => [...document.querySelectorAll('[aria-labelledby=islands] tbody tr')].every((r) => r.cells[4].textContent === '–')
      && [...document.querySelectorAll('.tile')].find((t) => t.querySelector('.label').textContent === 'tokens/s').querySelector('.value').textContent === '–');
    await page.getByRole('button', { name: 'Resume' }).click();
    await page.locator('.title .badge.running').waitFor();
    await page.getByRole('button', { name: 'Cancel' }).click();
    await page.locator('.title .badge.cancelled').waitFor();
    check(await page.getByRole('button', { name: 'Cancel' }).count() === 0, 'an ended job has no actions');
    await page.locator('.tile', { hasText: 'duration' }).waitFor();
    const did = await page.locator('[aria-labelledby=islands] tbody tr').first().locator('td').allInnerTexts();
    check(did.length === 9 && Number(did[2]) > 0 && Number(did[3]) > 0 && Number(did[4]) > 0 && did[8] !== '', `an island of an ended job: ${did.join(', ')}`);
    await page.screenshot({ path: join(out, 'job-ended.png'), fullPage: true });
  },
};

try {
  await phases[phase]();
} catch (error) {
  problems.push(error.message);
}
await browser.close();
for (const problem of problems) console.error(problem);
process.exit(problems.length ? 1 : 0);
