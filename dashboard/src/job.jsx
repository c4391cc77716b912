import { h, Fragment } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import { act, num, useEvents, useGet } from './api.js';
import { age, bytes, count, done, ended, islandState, loss, moment, nats, percent, ranSeconds, reason, seconds, speed, stateName, timeLeft, unit, version } from './format.js';
import { Chart, useCharts } from './charts.jsx';
import { Rounds } from './pictures.jsx';
import { Badge, Bar, Problem, Section, State, Table, Tile } from './parts.jsx';
import { Predicted } from './rehearsal.jsx';
import { WordsLink } from './words.jsx';

const ISLAND_CURVES = 7;  // with the global one, as many as there are colours
const POINTS = 300;       // of a curve: one for two pixels of a chart in a wide window
const SET_CURVES = 7;
const POINTS_MARKED = 60;  // of validation; more are a line alone
const DECISIONS_LISTED = 12;

function Actions({ summary, allowed }) {
  const [busy, setBusy] = useState(false), [error, setError] = useState(null);
  if (!allowed || ended(summary.state)) return null;
  const run = (call, question) => {
    if (question && !confirm(question)) return;
    setBusy(true);
    act(call, { job: summary.job }).then(() => setError(null), setError).finally(() => setBusy(false));
  };
  const paused = stateName(summary.state) === 'paused';
  return (
    <div class="actions">
      {paused ? <button class="act" disabled={busy} onClick={() => run('resume')}>Resume</button>
        : <button class="act" disabled={busy} onClick={() => run('pause')}>Pause</button>}
      <button class="act danger" disabled={busy} onClick={() => run('cancel', `Cancel ${summary.job}? It cannot be resumed.${num(summary.exported_version) < 0 ? ' Its model was never exported.' : ''}`)}>Cancel</button>
      <Problem error={error} />
    </div>
  );
}

const AXES = {
  time: { label: 'time', time: true, of: (c) => c.unix_s },
  version: { label: 'version', of: (c) => c.version },
};
// The mean of a point and those before it, weighted by 1, a, a^2, ...; null stays.
function smoothed(series, a) {
  if (!a) return series;
  let sum = 0, weight = 0;
  return { ...series, y: series.y.map((v) => {
    if (v === null || v === undefined) return v;
    [sum, weight] = [sum * a + v, weight * a + 1];
    return sum / weight;
  }) };
}

const known = (values) => (values || []).map((v) => (v === 0 ? null : v));

// The series of each chart.
function curvesFrom(history, summary, axis, smooth) {
  const x = AXES[axis].of, all = history.rounds;
  if (!all || all.unix_s.length === 0) return null;
  const islands = history.islands.slice(0, ISLAND_CURVES);
  const byIsland = (of) => islands.map((i, k) => ({ label: `island ${i.island}`, x: x(i.curve), y: of(i.curve), width: 1, colour: k + 1 }));
  const together = (of) => [{ label: 'all islands', x: x(all), y: of(all), width: 2.2, colour: 0 }].concat(islands.length > 1 ? byIsland(of) : []);
  const losses = together((curve) => known(curve.loss));
  if (history.validation.length) {
    losses.push({ label: 'validation', colour: 1 + islands.length, dash: [6, 4], points: history.validation.length <= POINTS_MARKED,
      x: history.validation.map((v) => (axis === 'time' ? v.unix_s : num(v.version))), y: history.validation.map((v) => v.loss) });
  }
  const speed = (curve) => curve.tokens.map((t, i) => (curve.seconds[i] > 0 ? t / curve.seconds[i] : null));
  const speeds = together(speed);
  const rounds = [{ label: 'seconds a round', x: x(all), y: all.seconds.map((s, i) => (s > 0 ? s / all.rounds[i] : null)), colour: 2 }];
  const smoothly = (all) => all.map((one) => smoothed(one, smooth));
  return { losses: smoothly(losses), speeds: smoothly(speeds), rounds, norms: smoothly(byIsland((curve) => known(curve.gradient_norm))), rates: byIsland((curve) => known(curve.learning_rate)) };
}

function Curves({ history, other, summary, axis, theme, smooth, log }) {
  const curves = useMemo(() => {
    const own = curvesFrom(history, summary, axis, smooth), beside = other && curvesFrom(other.history, summary, axis, smooth);
    if (!own || !beside) return own;
    const add = (mine, theirs) => mine.concat({ ...theirs[0], label: other.job, colour: 7, dash: [2, 3] });
    return { ...own, losses: add(own.losses, beside.losses), speeds: add(own.speeds, beside.speeds) };
  }, [history, other, axis, smooth]);
  if (!curves) return <p class="empty">Curves begin with the first round.</p>;
  const base = { xLabel: AXES[axis].label, time: AXES[axis].time, theme };
  return (
    <div class="charts">
      <Chart {...base} title={`Loss, ${nats(summary)}`} series={curves.losses} log={log} format={(v) => String(+v.toPrecision(4))} height={280} />
      <div>
        <Chart {...base} title={`Committed ${unit(summary)}/s`} series={curves.speeds} format={count} height={120} />
        <Chart {...base} title="Seconds a round" series={curves.rounds} format={(v) => String(+v.toPrecision(3))} height={120} />
      </div>
      <Chart {...base} title="Gradient norm, before clipping" series={curves.norms} log={log} format={(v) => String(+v.toPrecision(3))} height={120} />
      <Chart {...base} title="Learning rate" series={curves.rates} format={(v) => String(+v.toPrecision(3))} height={120} />
    </div>
  );
}

const setNames = (history) => [...new Set(history.validation.flatMap((v) => (v.sets || []).map((set) => set.name)))].sort();

// The validation loss of each named set, and of the held-out data.
function setCurvesFrom(history, axis) {
  const names = setNames(history).slice(0, SET_CURVES);
  const x = history.validation.map((v) => (axis === 'time' ? v.unix_s : num(v.version))), points = x.length <= POINTS_MARKED;
  return [{ label: 'held-out data', x, y: history.validation.map((v) => v.loss), width: 2.2, colour: 0, points }]
    .concat(names.map((name, k) => ({
      label: name, x, y: history.validation.map((v) => v.sets?.find((set) => set.name === name)?.loss ?? null), colour: k + 1, points })));
}

function SetCurves({ history, summary, axis, theme }) {
  const series = useMemo(() => setCurvesFrom(history, axis), [history, axis]);
  if (series.length === 1) return null;
  return <Chart title={`Validation loss by set, ${nats(summary)}`} series={series} xLabel={AXES[axis].label} time={AXES[axis].time} theme={theme}
    format={(v) => String(+v.toPrecision(4))} height={220} />;
}

const setColumns = (summary) => [
  { title: 'set', cell: (v) => v.name, sort: (v) => v.name },
  { title: 'loss', number: true, cell: (v) => loss(v.loss), sort: (v) => num(v.loss) },
  { title: 'accuracy', number: true, cell: (v) => (num(v.accuracy) > 0 ? percent(v.accuracy) : '–'), sort: (v) => num(v.accuracy) },
  { title: unit(summary), number: true, cell: (v) => count(v.tokens), sort: (v) => num(v.tokens) },
  { title: 'version', number: true, cell: (v) => version(v.version), sort: (v) => num(v.version) },
];

// A task's scores: what its kind does not have is absent.
const withAccuracy = (v) => v.kind !== 'TASK_KIND_PERPLEXITY', choosing = (v) => v.kind === 'TASK_KIND_CHOICES';
const share = (mean, error) => `${percent(mean)} ± ${percent(error)}`;
const TASKS = [
  { title: 'task', cell: (v) => v.name, sort: (v) => v.name },
  { title: 'accuracy ± standard error', number: true, cell: (v) => (withAccuracy(v) ? share(v.accuracy, v.accuracy_standard_error) : '–'), sort: (v) => num(v.accuracy) },
  { title: 'normalised', number: true, cell: (v) => (choosing(v) ? share(v.normalised_accuracy, v.normalised_accuracy_standard_error) : '–'), sort: (v) => num(v.normalised_accuracy) },
  { title: 'perplexity', number: true, cell: (v) => (choosing(v) ? '–' : loss(v.perplexity)), sort: (v) => num(v.perplexity) },
  { title: 'items', number: true, cell: (v) => count(v.items), sort: (v) => num(v.items) },
  { title: 'version', number: true, cell: (v) => version(v.version), sort: (v) => num(v.version) },
];

// Accuracies by task, over the versions that were scored.
function TaskCurves({ history, axis, theme }) {
  const series = useMemo(() => {
    const scored = history.validation.flatMap((v) => (v.scores || []).filter(withAccuracy).map((score) => ({ ...score, unix_s: v.unix_s })));
    return [...new Set(scored.map((score) => score.name))].sort().map((name, k) => {
      const own = scored.filter((score) => score.name === name);
      return { label: name, x: own.map((score) => (axis === 'time' ? score.unix_s : num(score.version))), y: own.map((score) => 100 * score.accuracy), colour: k, points: own.length <= POINTS_MARKED };
    });
  }, [history, axis]);
  if (!series.length) return null;
  return <Chart title="Accuracy, %" series={series} xLabel={AXES[axis].label} time={AXES[axis].time} theme={theme} format={(v) => String(+v.toPrecision(4))} height={220} />;
}

const nameColumns = (summary) => [
  { title: 'island', cell: (i) => <a href={`#/jobs/${summary.job}/islands/${i.island}`}>island {i.island}</a>, sort: (i) => i.island },
  { title: 'leader', cell: (i) => i.worker || '–', sort: (i) => i.worker },
];
const ROUND_COLUMNS = [
  { title: 'accepted', number: true, cell: (i) => num(i.rounds_accepted), sort: (i) => num(i.rounds_accepted) },
  { title: 'rejected', number: true, cell: (i) => num(i.rounds_rejected), sort: (i) => num(i.rounds_rejected) },
];
const EVICTIONS = { title: 'evictions', number: true, cell: (i) => num(i.evictions), sort: (i) => num(i.evictions) };

// What each island of an ended job did.
const endedColumns = (summary) => [
  ...nameColumns(summary),
  { title: 'steps', number: true, cell: (i) => num(i.pushed_steps), sort: (i) => num(i.pushed_steps) },
  { title: 'loss', number: true, cell: (i) => loss(i.pushed_loss), sort: (i) => num(i.pushed_loss) },
  ...ROUND_COLUMNS,
  { title: unit(summary), number: true, cell: (i) => count(i.tokens_committed), sort: (i) => num(i.tokens_committed) },
  EVICTIONS,
  { title: 'last state', wide: true, cell: (i) => i.reason },
];

const islandColumns = (summary) => (ended(summary.state) ? endedColumns(summary) : [
  ...nameColumns(summary),
  { title: 'state', cell: (i) => <State state={islandState(i, summary)} why={i.stalled || (i.attached ? i.activity : i.reason)} />, sort: (i) => i.attached },
  { title: 'loss', number: true, cell: (i) => loss(i.train_loss), sort: (i) => num(i.train_loss) },
  { title: `${unit(summary)}/s`, number: true, cell: (i) => speed(i.tokens_per_s), sort: (i) => num(i.tokens_per_s) },
  { title: 'learning rate', number: true, cell: (i) => (num(i.learning_rate) ? +num(i.learning_rate).toPrecision(3) : '–'), sort: (i) => num(i.learning_rate) },
  { title: 'gradient norm', hint: 'before clipping, mean of the last steps', number: true, cell: (i) => (num(i.gradient_norm) ? +num(i.gradient_norm).toPrecision(3) : '–'), sort: (i) => num(i.gradient_norm) },
  { title: 'step time (idle link)', number: true, cell: (i) => (num(i.step_seconds_idle_link) > 0 ? seconds(i.step_seconds_idle_link) : '–'), sort: (i) => num(i.step_seconds_idle_link) },
  { title: 'with transfers', number: true, cell: (i) => (num(i.step_seconds_overlap) > 0 ? seconds(i.step_seconds_overlap) : '–') },
  ...ROUND_COLUMNS,
  { title: 'pushed', number: true, cell: (i) => bytes(i.pushed_bytes), sort: (i) => num(i.pushed_bytes) },
  EVICTIONS,
]);

const decisionColumns = (summary) => [
  { title: 'version', number: true, cell: (d) => (num(d.version) < 0 ? 'void' : num(d.version)) },
  { title: 'island', number: true, cell: (d) => d.island },
  { title: 'outcome', hint: 'norm: length of the pseudo-gradient; its mean: that of the island’s own before', cell: (d) => <State state={d.accepted ? 'accepted' : 'rejected'} why={d.reason} /> },
  { title: 'base', hint: 'version that the island started from; staleness is the committed version less it', number: true, cell: (d) => num(d.base_version) },
  { title: 'steps', number: true, cell: (d) => num(d.inner_steps) },
  { title: unit(summary), number: true, cell: (d) => count(d.tokens) },
  { title: 'weight', hint: 'in the round’s average, by tokens and after clipping', number: true, cell: (d) => num(d.weight).toFixed(3) },
  { title: 'round closed because', wide: true, cell: (d) => d.closed_because },
];

const SERVERS = [
  { title: 'server', cell: (s) => s.name, sort: (s) => s.name },
  { title: 'shards', number: true, cell: (s) => s.shards, sort: (s) => s.shards },
  { title: 'parameters', number: true, cell: (s) => count(s.elements), sort: (s) => num(s.elements) },
  { title: 'share', cell: (s) => <Bar ratio={s.share} label={`${s.name}: share of the parameters`} /> },
];

function Tiles({ job, summary: s }) {
  const over = ended(s.state), ran = over ? ranSeconds(s) : null, paused = num(s.paused_ms) >= 1000 ? `paused for ${seconds(s.paused_ms / 1000)}; ` : '';
  return (
    <div class="tiles">
      <Tile label={over ? 'final training loss' : 'training loss'} value={loss(over ? s.final_loss : s.train_loss)} detail={nats(s)} />
      <Tile label="validation loss" value={loss(s.validation_loss)} detail={`version ${version(s.validated_version)}; ${loss(s.first_validation_loss)} at the start`} />
      <Tile label={`${over ? 'mean ' : ''}${unit(s)}/s`} value={speed(over ? s.mean_tokens_per_s : s.tokens_per_s)} detail={over ? '' : `${num(s.active_islands)} islands`} />
      <Tile label={`committed ${unit(s)}`} value={percent(done(s))} detail={`${count(s.tokens_committed)} of ${count(s.tokens_budget)}`} />
      <Tile label="version" value={version(s.version)} detail={over ? '' : job.phase} />
      <Tile label={over ? 'duration' : 'time left'} value={over ? (ran === null ? '–' : seconds(ran)) : timeLeft(s)} detail={num(s.submitted_unix_ms) ? `${paused}submitted ${age(s.submitted_unix_ms)}` : ''} />
    </div>
  );
}

// The curves of all islands together, as a file for other programs.
function downloadCsv(job, curve) {
  const columns = ['unix_s', 'version', 'tokens', 'loss', 'seconds', 'rounds', 'learning_rate', 'gradient_norm'].filter((c) => curve[c]?.length);
  const lines = [columns.join(',')].concat(curve.unix_s.map((_, i) => columns.map((c) => curve[c][i]).join(',')));
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([lines.join('\n'), '\n'], { type: 'text/csv' }));
  link.download = `${job}.csv`;
  link.click();
  URL.revokeObjectURL(link.href);
}

// What is looked up when it is opened.
function Details({ summary, children }) {
  const [open, setOpen] = useState(false);
  return <details onToggle={(e) => setOpen(e.target.open)}><summary>{summary}</summary>{open && children()}</details>;
}

function Settings({ job }) {
  const [copied, setCopied] = useState(false);
  return (
    <Details summary="The job file, with the defaults that it left out">
      {() => <SettingsText job={job} copied={copied} onCopy={(text) => navigator.clipboard?.writeText(text).then(() => setCopied(true))} />}
    </Details>
  );
}

function SettingsText({ job, copied, onCopy }) {
  const { data, error } = useGet('settings', { job });
  if (!data) return error ? <Problem error={error} /> : <p class="loading">Loading…</p>;
  return <><p><button class="act" onClick={() => onCopy(data.toml)}>{copied ? 'Copied' : 'Copy'}</button></p><pre tabIndex="0">{data.toml}</pre></>;
}

const SMOOTHINGS = [['none', 0], ['some', 0.6], ['much', 0.9]];

// What is drawn, and how.
function CurveTools({ id, view, setView, curve }) {
  const jobs = useGet('jobs', undefined, 0).data?.jobs || [];
  const set = (change) => setView({ ...view, ...change });
  return (
    <div class="filters">
      <label>over <select value={view.axis} onChange={(e) => set({ axis: e.target.value })}><option value="time">time</option><option value="version">version</option></select></label>
      <label>smoothing <select value={view.smooth} onChange={(e) => set({ smooth: Number(e.target.value) })}>{SMOOTHINGS.map(([name, a]) => <option value={a}>{name}</option>)}</select></label>
      <label>beside <select value={view.beside} onChange={(e) => set({ beside: e.target.value, axis: e.target.value ? 'version' : view.axis })}><option value="">no other job</option>
        {jobs.filter((j) => j.job !== id).map((j) => <option value={j.job}>{j.job}</option>)}</select></label>
      <label><input type="checkbox" checked={view.log} onChange={(e) => set({ log: e.target.checked })} /> logarithmic loss</label>
      <button class="act" disabled={!curve?.unix_s?.length} onClick={() => downloadCsv(id, curve)}>Download CSV</button>
    </div>
  );
}

export function Job({ id, session, theme, onLive }) {
  const [wanted, setWanted] = useState(DECISIONS_LISTED);
  const { data: job, error, live } = useEvents({ job: id, decisions: wanted });
  const [view, setView] = useState({ axis: 'time', smooth: 0, beside: '', log: false }), { axis } = view;
  const over = job && ended(job.summary.state);
  const history = useGet('history', { job: id, points: POINTS, islands: ISLAND_CURVES }, over ? 0 : 2500);
  const beside = useGet(view.beside ? 'history' : 'session', view.beside ? { job: view.beside, points: POINTS, islands: 1 } : undefined);
  const other = useMemo(() => (view.beside && beside.data?.rounds ? { job: view.beside, history: beside.data } : null), [view.beside, beside.data]);
  const charts = useCharts();
  onLive(live || over, error);
  if (!job) return error ? <Problem error={error} /> : <p class="loading">Loading…</p>;
  const s = job.summary, parameters = job.servers.reduce((n, v) => n + num(v.elements), 0);
  const servers = job.servers.map((v) => ({ ...v, share: parameters ? num(v.elements) / parameters : 0 }))
    .sort((a, b) => (a.name < b.name ? -1 : 1));
  return (
    <>
      <div class="crumbs"><a href="#/jobs">Jobs</a> / {s.job}</div>
      <div class="title"><h1>{s.job}</h1><Badge state={s.state} /><Actions summary={s} allowed={session?.actions} /></div>
      <p class="why">{[s.waiting_for, reason(s)].filter(Boolean).join('; ')}{num(s.ended_unix_ms) > 0 && ` (ended ${moment(s.ended_unix_ms)})`}</p>
      {job.islands.filter((i) => i.stalled).map((i) => <p class="notice" role="alert">Island {i.island} is stalled: {i.stalled}</p>)}
      <Tiles job={job} summary={s} />
      <Section title="Curves" id="curves" tools={<CurveTools id={id} view={view} setView={setView} curve={history.data?.rounds} />}>
        <Problem error={history.error || charts.error} />
        {history.data && charts.ready ? <Curves history={history.data} other={other} summary={s} axis={axis} theme={theme} smooth={view.smooth} log={view.log} /> : <p class="loading">Loading…</p>}
        {job.islands.length > ISLAND_CURVES && <p class="empty">The first {ISLAND_CURVES} of {job.islands.length} islands are drawn; `atoll metrics {s.job} --csv` has all.</p>}
      </Section>
      {charts.ready && <Predicted job={job} history={history.data} theme={theme} />}
      {s.validation_sets.length > 0 && (
        <Section title="Validation sets" id="validation-sets">
          <Table columns={setColumns(s)} rows={s.validation_sets} keyOf={(v) => v.name} />
          {history.data && charts.ready && <SetCurves history={history.data} summary={s} axis={axis} theme={theme} />}
        </Section>
      )}
      {s.scores.length > 0 && (
        <Section title="Tasks" id="tasks">
          <Table columns={TASKS} rows={s.scores} keyOf={(v) => v.name} />
          {history.data && charts.ready && <TaskCurves history={history.data} axis={axis} theme={theme} />}
        </Section>
      )}
      {history.data && <Section title="Newest rounds" id="rounds">{job.round_length && <p class="why">{job.round_length}</p>}<Rounds rounds={history.data.newest} islands={job.islands.slice(0, 32).map((i) => i.island)} /></Section>}
      <Section title="Islands" id="islands"><Table columns={islandColumns(s)} rows={job.islands} keyOf={(i) => i.island} empty="No worker has an island yet." /></Section>
      <Section title="Decisions, newest first" id="decisions" tools={<WordsLink />}><Table columns={decisionColumns(s)} rows={job.decisions} total={job.decisions_kept} onMore={setWanted} pageSize={DECISIONS_LISTED} empty="No round has been decided yet." /></Section>
      <Section title="Parameter servers" id="servers"><Table columns={SERVERS} rows={servers} keyOf={(v) => v.name} empty="The model is not placed yet." /></Section>
      <Section title="Settings" id="settings"><Settings job={id} /></Section>
      <Section title="Log, newest first" id="log" tools={<a href={`#/logs?job=${s.job}`}>the whole log</a>}><NewestLines job={s.job} /></Section>
    </>
  );
}

function NewestLines({ job }) {
  const { data } = useGet('logs', { job, tail: 8 }, 3000);
  return <Lines lines={[...(data || [])].reverse()} />;
}

// Who came and left, plans and what was dropped: the log's lines that name the island.
export function IslandLines({ job, island }) {
  const { data } = useGet('logs', { job, contains: `island ${island}`, tail: 500 }, 5000);
  const own = new RegExp(`\\bisland ${island}\\b`);
  return <Lines lines={(data || []).filter((l) => own.test(l.text)).reverse()} pageSize={12} />;
}

// A page of lines at a time.
export function Lines({ lines, withJob, pageSize = 60 }) {
  const [shown, setShown] = useState(pageSize);
  return (
    <div class="scroll"><table class="log"><tbody>{lines.slice(0, shown).map((l) => (
      <tr key={l.sequence}><td class="meta">{moment(l.unix_ms)}</td><td class="meta"><Badge state={l.severity} /></td>
        {withJob && <td class="meta">{l.job ? <a href={`#/jobs/${l.job}`}>{l.job}</a> : ''}</td>}<td class="text">{l.text}</td></tr>))}
    </tbody></table>{!lines.length && <p class="empty">No line.</p>}
      {lines.length > shown && <button class="more" onClick={() => setShown(shown + 4 * pageSize)}>{lines.length - shown} more</button>}</div>
  );
}
