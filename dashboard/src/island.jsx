import { h, Fragment } from 'preact';
import { useState } from 'preact/hooks';
import { act, num, useEvents, useGet } from './api.js';
import { bytes, count, ended, islandState, loss, milliseconds, moment, rate, seconds, speed, unit } from './format.js';
import { Gantt, LoadBars, PlanPicture, SiteMap } from './pictures.jsx';
import { IslandLines } from './job.jsx';
import { Badge, Problem, Section, Table, Tile } from './parts.jsx';

// What each worker does in the plan, by its name.
function partsOf(plan) {
  const parts = new Map();
  (plan?.replicas || []).forEach((replica, k) => replica.stages.forEach((s, n) => {
    const text = `${plan.replicas.length > 1 ? `replica ${k} ` : ''}stage ${n}, layers ${s.first_layer}–${s.first_layer + s.layers - 1}`;
    for (const worker of new Set(s.devices.map((d) => d.split('/')[0]))) parts.set(worker, parts.has(worker) ? `${parts.get(worker)}; ${text}` : text);
  }));
  return parts;
}

const workerColumns = (parts) => [
  { title: 'worker', cell: (w) => w.worker, sort: (w) => w.worker },
  { title: 'state', cell: (w) => <Badge state={w.attached ? 'attached' : 'unavailable'} />, sort: (w) => w.attached },
  { title: 'role', cell: (w) => (w.leads ? 'leads' : w.in_plan ? 'follows' : 'spare'), sort: (w) => w.leads },
  { title: 'plan', number: true, cell: (w) => num(w.plan_number) || '–' },
  { title: 'part', wide: true, cell: (w) => parts.get(w.worker) || '–' },
  { title: 'activity', wide: true, cell: (w) => w.activity },
];
const STAGE_LINKS = [
  { title: 'from', cell: (b) => b.from, sort: (b) => b.from }, { title: 'to', cell: (b) => b.to, sort: (b) => b.to },
  { title: 'chunks', number: true, cell: (b) => b.chunks },
  { title: 'time a message', number: true, cell: (b) => (b.message_seconds > 0 ? seconds(b.message_seconds) : '–'), sort: (b) => b.message_seconds },
  { title: 'rate', number: true, cell: (b) => rate(b.bandwidth_bytes_per_s), sort: (b) => b.bandwidth_bytes_per_s },
  { title: 'state', cell: (b) => <Badge state={b.saturated ? 'warning' : 'done'} text={b.saturated ? 'saturated' : 'fine'} /> },
  { title: 'transport', wide: true, cell: (b) => b.transport }, { title: 'newest change', wide: true, cell: (b) => b.reason },
];
const MEMORY = [
  { title: 'device', cell: (m) => m.device, sort: (m) => m.device },
  { title: 'predicted', number: true, cell: (m) => (num(m.predicted_bytes) ? bytes(m.predicted_bytes) : '–') },
  { title: 'measured', number: true, cell: (m) => bytes(m.peak_bytes), sort: (m) => num(m.peak_bytes) },
  { title: 'limit', number: true, cell: (m) => (num(m.limit_bytes) ? bytes(m.limit_bytes) : '–') },
];
const EXPERTS = [
  { title: 'mixture', number: true, cell: (m) => m.mixture },
  { title: 'balance loss', number: true, cell: (m) => m.balance.toFixed(4), sort: (m) => m.balance },
  { title: 'z-loss', number: true, cell: (m) => m.z.toFixed(4), sort: (m) => m.z },
  { title: 'unseen', number: true, cell: (m) => m.tokens.filter((t) => t === 0).length },
  { title: 'least load', number: true, cell: (m) => Math.min(...m.loads).toFixed(2), sort: (m) => Math.min(...m.loads) },
  { title: 'most load', number: true, cell: (m) => Math.max(...m.loads).toFixed(2), sort: (m) => Math.max(...m.loads) },
  { title: 'load by expert', wide: true, cell: (m) => <LoadBars loads={m.loads} tokens={m.tokens} /> },
];
const CHANGES = [
  { title: 'plan', number: true, cell: (c) => num(c.number) },
  { title: 'when', cell: (c) => (c.at_step_end ? 'at a step’s end' : 'at once') }, { title: 'reason', wide: true, cell: (c) => c.reason },
];

// Mixtures: losses of their routers in the newest step; what each expert saw in the newest push, as tokens and in shares of the mean.
function mixturesOf({ router_losses: losses = [], expert_tokens: tokens = [] }) {
  const count = losses.length / 2, experts = count ? tokens.length / count : 0;
  return experts === 0 ? [] : Array.from({ length: count }, (_, mixture) => {
    const own = tokens.slice(mixture * experts, (mixture + 1) * experts).map(num);
    const mean = Math.max(1, own.reduce((a, b) => a + b, 0)) / experts;
    return { mixture, balance: losses[2 * mixture], z: losses[2 * mixture + 1], tokens: own, loads: own.map((t) => t / mean) };
  });
}

// Between two sites, the fastest measured link between their workers.
function siteLinks(sites, links) {
  const siteOf = new Map(sites.flatMap((s, i) => s.workers.map((w) => [w.name, i])));
  const best = new Map();
  for (const link of links) {
    const a = siteOf.get(link.from.split('/')[0]), b = siteOf.get(link.to.split('/')[0]);
    if (a === undefined || b === undefined || a === b) continue;
    const key = `${Math.min(a, b)},${Math.max(a, b)}`;
    const edge = (link.edges || [])[0] || link;
    const bandwidth = num(edge.bandwidth_bytes_per_s);
    if (!(best.get(key)?.bandwidth > bandwidth)) best.set(key, { a: Math.min(a, b), b: Math.max(a, b), bandwidth, latency: num(edge.latency_ns) });
  }
  return [...best.values()];
}

const MANY_WORKERS = 64;  // their links are looked up on demand: that takes the coordinator seconds with 1,000

function Sites({ job, workers }) {
  const [shown, setShown] = useState(job.workers <= MANY_WORKERS);
  if (!shown) return <p><button class="act" onClick={() => setShown(true)}>Show sites and links</button></p>;
  return <SitesAndLinks job={job} workers={workers} />;
}

function SitesAndLinks({ job, workers }) {
  const few = workers.length <= MANY_WORKERS;
  const { data, error } = useGet('sites', { job: job.summary.job }, few ? 10000 : 0);
  const members = new Map(workers.map((w) => [w.worker, w]));
  if (!data) return error || few ? <p class="empty">No measurement yet.</p> : <p class="loading">Loading…</p>;
  let sites = data.sites.map((s) => ({ name: s.name, workers: s.workers.filter((w) => members.has(w)).map((w) => ({ name: w, attached: members.get(w).attached })) })).filter((s) => s.workers.length);
  const placed = new Set(sites.flatMap((s) => s.workers.map((w) => w.name)));
  const rest = [...members.values()].filter((w) => !placed.has(w.worker));
  if (rest.length) sites = sites.concat({ name: 'site not known', workers: rest.map((w) => ({ name: w.worker, attached: w.attached })) });
  if (!sites.length) return <p class="empty">No worker has this island now.</p>;
  return <SiteMap sites={sites} links={siteLinks(sites, data.cluster?.links || [])} />;
}

const LEFT = [
  { title: 'time', cell: (l) => moment(l.unix_ms), sort: (l) => num(l.unix_ms) }, { title: 'worker', cell: (l) => l.worker, sort: (l) => l.worker },
  { title: 'reason', wide: true, cell: (l) => l.reason },
];

function Left({ job, island }) {
  const { data } = useGet('history', { job, points: 16, islands: 1 }, 5000);
  return <Table columns={LEFT} rows={(data?.left || []).filter((l) => l.island === island).reverse()} empty="No worker has left this island." />;
}

function Trace({ job, island }) {
  const [state, setState] = useState({});
  const requestTrace = () => {
    setState({ busy: true });
    act('trace', { job, island }).then((data) => setState({ data }), (error) => setState({ error }));
  };
  const { data } = state;
  const length = (t) => Math.max(1, ...t.devices.flatMap((d) => [num(d.end_ns), ...d.spans.map((s) => num(s.end_ns))]));
  const scale = data ? Math.max(length(data.measured), data.predicted ? length(data.predicted) : 0) : 1;
  return (
    <>
      <p><button class="act" disabled={state.busy} onClick={requestTrace}>{state.busy ? 'Waiting for a step…' : 'Record one step'}</button></p>
      <Problem error={state.error} />
      {data && <Gantt title={`measured: step ${num(data.measured.step)}, plan ${num(data.measured.plan_number)}`} trace={data.measured} scaleNs={scale} />}
      {data?.predicted && <Gantt title={`predicted: ${data.predicted.about}`} trace={data.predicted} scaleNs={scale} />}
      {data?.no_prediction && <p class="empty">{data.no_prediction}</p>}
    </>
  );
}

export function Island({ id, number, onLive }) {
  const { data: job, error, live } = useEvents({ job: id, island: number });
  onLive(live, error);
  if (!job) return error ? <Problem error={error} /> : <p class="loading">Loading…</p>;
  const island = job.islands.find((i) => i.island === number);
  if (!island) return <Problem error={new Error(`${id} has no island ${number}.`)} />;
  const d = island.details, plan = num(d.plan.number) ? d.plan : null, mixtures = mixturesOf(d);
  return (
    <>
      <div class="crumbs"><a href="#/jobs">Jobs</a> / <a href={`#/jobs/${id}`}>{id}</a> / island {number}</div>
      <div class="title"><h1>Island {number}</h1><Badge state={islandState(island, job.summary)} /></div>
      <p class="why">{[island.attached ? island.activity : '', island.reason].filter(Boolean).join('; ')}</p>
      {island.stalled && <p class="notice" role="alert">Stalled: {island.stalled}</p>}
      <div class="tiles">
        <Tile label="training loss" value={loss(num(island.train_loss) ? island.train_loss : island.pushed_loss)} />
        <Tile label={`${unit(job.summary)}/s`} value={speed(island.tokens_per_s)} />
        <Tile label={`committed ${unit(job.summary)}`} value={count(island.tokens_committed)} detail={`${num(island.rounds_accepted)} rounds, ${num(island.rounds_rejected)} rejected`} />
        <Tile label="step time (idle link)" value={num(island.step_seconds_idle_link) > 0 ? seconds(island.step_seconds_idle_link) : '–'} detail={plan ? `predicted ${milliseconds(plan.step_ns)}` : ''} />
        <Tile label="step time (with transfers)" value={num(island.step_seconds_overlap) > 0 ? seconds(island.step_seconds_overlap) : '–'} />
        <Tile label="steps a round" value={num(island.steps_this_round)} />
        <Tile label="since the last step" value={ended(job.summary.state) || !island.attached ? '–' : seconds(island.since_step_s)} />
      </div>
      <Section title="Workers" id="workers"><Table columns={workerColumns(partsOf(d.plan))} rows={d.workers} keyOf={(w) => w.worker} empty="No worker has this island now." /></Section>
      <Section title="Sites and links" id="sites"><Sites job={job} workers={d.workers} /></Section>
      <Section title={plan ? `Plan ${num(plan.number)}${plan.schedule ? `, ${plan.schedule}` : ''}` : 'Plan'} id="plan">
        {plan ? <><PlanPicture plan={plan} /><h3>Why</h3><ul class="plain">{plan.reason.split('; ').filter(Boolean).map((r) => <li>{r}</li>)}</ul></>
          : <p class="empty">One worker trains by itself; it needs no plan.</p>}
        {d.planning && <p class="why">Planning: {d.planning}</p>}
        {d.plan_changes.length > 0 && <><h3>Newest plans, since the coordinator’s start</h3><Table columns={CHANGES} rows={[...d.plan_changes].reverse()} empty="" /></>}
      </Section>
      {d.stage_links.length > 0 && <Section title="Messages between stages" id="links"><Table columns={STAGE_LINKS} rows={d.stage_links} empty="" /></Section>}
      {mixtures.length > 0 && <Section title="Experts" id="experts"><Table columns={EXPERTS} rows={mixtures} keyOf={(m) => m.mixture} empty="" /></Section>}
      {d.memory.length > 0 && <Section title="Memory" id="memory"><Table columns={MEMORY} rows={d.memory} empty="" /></Section>}
      <Section title="Workers that left, newest first" id="left"><Left job={id} island={number} /></Section>
      <Section title="Events, newest first" id="events"><IslandLines job={id} island={number} /></Section>
      {!ended(job.summary.state) && <Section title="A step, measured and predicted" id="trace"><Trace job={id} island={number} /></Section>}
    </>
  );
}
