// What was rehearsed: an answer of `atoll rehearse --json`, from a file that stays in the browser; and
// a job beside what was predicted for it.
import { h, Fragment } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import { num } from './api.js';
import { count, percent, seconds, unit } from './format.js';
import { Chart, useCharts } from './charts.jsx';
import { Problem, Section, Table } from './parts.jsx';

const words = (name) => name.replace('re_', 're-').replaceAll('_', ' ');
const sum = (uses) => Object.values(uses).reduce((all, v) => all + v, 0);
const hours = (value) => `${+(value / 3600).toPrecision(3)} h`;
const shown = (value) => (value === null || value === undefined ? 'never seen' : seconds(value));

const ROWS = [['finish', 'finish_seconds', shown], ['price', 'price', count], ['tokens/s', 'tokens_per_s', count], ['goodput', 'goodput', percent]];
const QUANTILES = [
  { title: '', cell: (r) => r.name },
  ...[['5%', 'low'], ['50%', 'median'], ['95%', 'high']].map(([title, key]) => ({ title, number: true, cell: (r) => r.text(r.spread[key]) })),
];
const USES = [{ title: 'device-time', cell: (u) => words(u[0]) }, { title: 'share', number: true, cell: (u) => percent(u[1]), sort: (u) => u[1] }];
const DEAREST = [
  { title: 'what cost most', cell: (c) => `${c.kind} ${c.subject}` },
  { title: 'after', number: true, cell: (c) => seconds(c.at_seconds), sort: (c) => c.at_seconds },
  { title: 'seed', number: true, cell: (c) => c.seed },
  { title: 'device-time', number: true, cell: (c) => hours(sum(c.device_seconds)), sort: (c) => sum(c.device_seconds) },
  { title: 'may help', wide: true, cell: (c) => c.prevention },
];

function Answer({ answer, theme }) {
  const charts = useCharts();
  const series = useMemo(() => {
    const ended = answer.runs.filter((run) => run.finished).map((run) => run.seconds / 3600).sort((a, b) => a - b);
    return [{ label: 'finished', x: [0, ...ended], y: [0, ...ended.map((_, i) => (i + 1) / answer.runs.length)], colour: 0, width: 2 }];
  }, [answer]);
  return (
    <>
      <p class="why">{answer.finished} of {answer.seeds} runs finish</p>
      <Table columns={QUANTILES} rows={ROWS.filter(([, key]) => answer[key]).map(([name, key, text]) => ({ name, text, spread: answer[key] }))} keyOf={(r) => r.name} />
      {charts.ready && answer.finished > 0 && <Chart title="Runs that have finished" series={series} xLabel="hours" theme={theme} format={percent} height={220} />}
      <Table columns={USES} rows={Object.entries(answer.device_time)} keyOf={(u) => u[0]} />
      <Table columns={DEAREST} rows={answer.dearest} empty="No failure cost anything." />
    </>
  );
}

// An answer, or several settings' of --compare.
export function Rehearsal({ theme, onLive }) {
  const [read, setRead] = useState({});
  onLive(true);
  const open = (file) => file?.text().then((text) => {
    const json = JSON.parse(text), settings = json.settings || [json];
    if (!settings.every((s) => s.runs && s.device_time)) throw new Error(`${file.name} is no answer of atoll rehearse --json`);
    setRead({ key: json.key, settings });
  }).catch((error) => setRead({ error }));
  return (
    <>
      <h1>Rehearsal</h1>
      <p class="why"><label>What `atoll rehearse --json` printed: <input type="file" accept=".json" onChange={(e) => open(e.target.files[0])} /></label></p>
      <Problem error={read.error} />
      {read.settings?.map((s, i) => <Section title={read.key ? `${read.key} = ${s.value}` : 'Answer'} id={`answer-${i}`}><Answer answer={s} theme={theme} /></Section>)}
    </>
  );
}

// What is in the model beside the rehearsed 5 and 95% of its runs.
export function Predicted({ job, history, theme }) {
  const { rehearsed, summary: s } = job;
  const series = useMemo(() => {
    const all = history?.rounds;
    if (!num(rehearsed?.runs) || !all?.unix_s.length) return null;
    const begin = num(s.submitted_unix_ms) / 1000, end = all.unix_s.at(-1);
    let committed = 0;
    const line = (label, rate, colour) => ({ label, x: [begin, end], y: [0, num(rate) * (end - begin)], colour, dash: [6, 4] });
    return [{ label: 'committed', x: [begin, ...all.unix_s], y: [0, ...all.tokens.map((t) => (committed += num(t)))], colour: 0, width: 2.2 },
      line('rehearsed, 5%', rehearsed.tokens_per_s?.low, 1), line('rehearsed, 95%', rehearsed.tokens_per_s?.high, 2)];
  }, [history, rehearsed]);
  if (!series) return null;
  const finish = rehearsed.finish_s;
  return (
    <Section title="Rehearsed" id="rehearsed">
      <p class="why">5 to 95% of {num(rehearsed.runs)} runs: {count(rehearsed.tokens_per_s?.low)} to {count(rehearsed.tokens_per_s?.high)} {unit(s)}/s
        {num(finish?.low) > 0 && `; finish after ${seconds(finish.low)} to ${num(finish.high) ? seconds(finish.high) : 'never seen'}`}</p>
      <Chart title={`Committed ${unit(s)}`} series={series} time theme={theme} format={count} height={180} />
    </Section>
  );
}
