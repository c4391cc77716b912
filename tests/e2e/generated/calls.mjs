// node calls.mjs URL JOB_FILE: makes every call of docs/reference/openapi.yaml with the client that was generated of it
// (client.mjs), the same job's. Ends with exit code 0, or with what is not as it should be.
import { readFileSync } from 'node:fs';
import { DefaultService as Atoll, OpenAPI } from './client.mjs';

const [url, path] = process.argv.slice(2);
const file = readFileSync(path, 'utf8'), act = { xAtollAction: '1' };
OpenAPI.BASE = url;
const check = (condition, what) => { if (!condition) throw new Error(what); };
const until = async (what, done) => {
  for (const limit = Date.now() + 120_000; Date.now() < limit; await new Promise((next) => setTimeout(next, 200))) {
    if (await done()) return;
  }
  throw new Error(`timed out: ${what}`);
};

const { job } = await Atoll.submit({ ...act, requestBody: file });
await until('a round', async () => Number((await Atoll.job({ job })).summary.version) >= 1);
const answers = {
  status: (a) => a.members.length === 3,
  jobs: (a) => a.jobs.some((one) => one.job === job),
  job: (a) => a.summary.job === job && a.islands.length > 0,
  settings: (a) => a.toml.includes('[model]'),
  history: (a) => a.rounds.unix_s.length > 0,
  logs: (a) => a.length > 0 && a.every((line) => line.text),
  sites: (a) => Array.isArray(a.sites),
  session: (a) => a.actions === true,
  trace: (a) => a.job === job && a.measured.devices.length > 0,
  set: (a) => a.changes.length === 1 && a.changes[0].after === '7',
  pause: (a) => a.state === 'JOB_STATE_PAUSED',
  resume: (a) => a.state === 'JOB_STATE_RUNNING',
  drain: (a) => a.state === '',
  submit: (a) => a.job !== job,
  cancel: (a) => a.state === 'JOB_STATE_CANCELLED',
  events: (a) => a.includes(`"job":"${job}"`),  // of an ended job they end
};
const known = Object.getOwnPropertyNames(Atoll).filter((name) => !['length', 'name', 'prototype'].includes(name));
check(known.sort().join() === Object.keys(answers).sort().join(), `the calls are ${known}`);
for (const [call, isRight] of Object.entries(answers)) {
  const requestBody = call === 'set' ? 'outer.grace_seconds=7' : file;
  const answer = await Atoll[call]({ ...act, job, server: 'ps1', undo: '1', requestBody });
  check(isRight(answer), `${call}: ${JSON.stringify(answer).slice(0, 500)}`);
}
const refused = await Atoll.job({ job: 'none-1' }).catch((error) => error);
check(refused.status === 404 && refused.body.text.includes('none-1'), `no such job: ${refused}`);
