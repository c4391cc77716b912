import { h, Fragment } from 'preact';
import { useState } from 'preact/hooks';
import { act, num, useEvents, useGet } from './api.js';
import { age, bytes, count, done, ended, loss, percent, reason, seconds, speed, stateName, timeLeft, unit, version } from './format.js';
import { Badge, Bar, Problem, Section, State, Table, Tile } from './parts.jsx';

const why = (s) => s.waiting_for || reason(s);

function JobCard({ job }) {
  const s = job.summary;
  return (
    <a class="card" href={`#/jobs/${s.job}`}>
      <div class="row"><strong>{s.job}</strong><Badge state={s.state} title={s.reason} />
        <span class="grow"><Bar ratio={done(s)} label={`${s.job}: share of its ${unit(s)}`} /></span>
        <span class="number">{percent(done(s))}</span>{num(s.train_loss) > 0 && <span>loss {loss(s.train_loss)}</span>}
        {num(s.tokens_per_s) > 0 && <span>{speed(s.tokens_per_s)} {unit(s)}/s</span>}{timeLeft(s) !== '–' && <span>{timeLeft(s)} left</span>}</div>
      {why(s) && <p class="why">{why(s)}</p>}
      {job.stalled.map((i) => <p class="notice">Island {i.island} is stalled: {i.stalled}</p>)}
    </a>
  );
}

const HOLDS = { worker: (m) => (m.job ? <a href={`#/jobs/${m.job}`}>{m.job}</a> : 'idle'),
  paramserver: (m) => `${bytes(m.parameter_bytes)} + ${bytes(m.staged_bytes)} staged` };

// Moves what a member has to others, for those who may.
const DRAINS = { worker: 'It leaves its island and gets no work.', paramserver: 'Its shards move to other servers.' };

function Drain({ member }) {
  const [busy, setBusy] = useState(false), [error, setError] = useState(null);
  const run = (undo) => {
    if (!undo && !confirm(`Drain ${member.name}? ${DRAINS[member.kind]}`)) return;
    setBusy(true);
    act('drain', { server: `${member.kind}/${member.name}`, undo: undo ? 1 : undefined }).then(() => setError(null), setError).finally(() => setBusy(false));
  };
  return (
    <>
      {member.draining ? <button class="act" disabled={busy} onClick={() => run(true)} aria-label="Undo drain">Undo</button>
        : <button class="act" disabled={busy} onClick={() => run(false)}>Drain</button>}
      <Problem error={error} />
    </>
  );
}
const ACTIONS = { title: 'actions', cell: (m) => <Drain member={m} /> };

const MEMBERS = [
  { title: 'kind', cell: (m) => m.kind, sort: (m) => m.kind },
  { title: 'name', cell: (m) => m.name, sort: (m) => m.name },
  { title: 'state', cell: (m) => <State state={m.attached ? 'attached' : 'unavailable'} why={m.measuring || m.draining || (m.attached ? '' : m.reason)} />, sort: (m) => m.attached },
  { title: 'last heartbeat', number: true, cell: (m) => (!m.attached ? '–' : m.since_heartbeat_s < 1 ? 'now' : `${seconds(m.since_heartbeat_s)} ago`), sort: (m) => m.since_heartbeat_s },
  { title: 'utilisation', hint: 'share of the time in which its devices compute', number: true, cell: (m) => (m.utilisation > 0 ? percent(m.utilisation) : '–'), sort: (m) => num(m.utilisation) },
  { title: 'holds', cell: (m) => HOLDS[m.kind](m), sort: (m) => m.job },
  { title: 'memory', number: true, cell: (m) => (num(m.memory_bytes) ? bytes(m.memory_bytes) : '–'), sort: (m) => num(m.memory_bytes) },
  { title: 'devices', cell: (m) => m.devices.join(', ') || '–', sort: (m) => m.devices.join() },
  { title: 'site', cell: (m) => m.site || '–', sort: (m) => m.site },
  { title: 'address', cell: (m) => m.address || '–', sort: (m) => m.address },
  { title: 'version', cell: (m) => m.software_version || '–', sort: (m) => m.software_version },
];

// [[unit, a second]] of all jobs.
function speeds(jobs) {
  const sums = new Map(jobs.length ? [] : [['tokens', 0]]);
  for (const { summary: s } of jobs) sums.set(unit(s), (sums.get(unit(s)) || 0) + num(s.tokens_per_s));
  return [...sums];
}

export function Overview({ session, onLive }) {
  const { data, error, live } = useEvents();
  onLive(live, error);
  if (!data) return error ? <Problem error={error} /> : <p class="loading">Loading…</p>;
  const workers = data.members.filter((m) => m.kind === 'worker'), servers = data.members.filter((m) => m.kind === 'paramserver');
  const busy = workers.filter((m) => m.utilisation > 0);
  const of = (all) => `${all.filter((m) => m.attached).length} of ${all.length}`;
  return (
    <>
      <div class="title"><h1>Overview</h1></div>
      <p class="why">Coordinator {data.software_version}, epoch {data.epoch}, up {seconds(data.up_s)}</p>
      <div class="tiles">
        <Tile label="jobs at work" value={data.jobs.length} />
        {speeds(data.jobs).map(([name, sum]) => <Tile label={`${name}/s`} value={count(sum)} detail="of all jobs" />)}
        <Tile label="workers attached" value={of(workers)} detail={workers.length ? `${percent(workers.filter((m) => m.attached && m.job).length / workers.length)} of them train` : ''} />
        <Tile label="utilisation" value={busy.length ? percent(busy.reduce((sum, m) => sum + m.utilisation, 0) / busy.length) : '–'} detail="mean of the workers that train" />
        <Tile label="parameter servers attached" value={of(servers)} />
      </div>
      <Section title="Jobs" id="jobs"><div class="cards">
        {data.jobs.map((job) => <JobCard key={job.summary.job} job={job} />)}
        {!data.jobs.length && <p class="empty">No job is at work. Submit one with <code>atoll submit job.toml</code>, or see <a href="#/jobs">all jobs</a>.</p>}
      </div></Section>
      {data.troubles.length > 0 && <Section title="Not as measured" id="troubles"><ul class="plain">{data.troubles.map((t) => <li>{t}</li>)}</ul></Section>}
      <Section title="Members" id="members"><Table columns={session?.actions ? [...MEMBERS.slice(0, 3), ACTIONS, ...MEMBERS.slice(3)] : MEMBERS} rows={data.members} keyOf={(m) => m.kind + m.name} empty="No worker or parameter server has attached yet." /></Section>
    </>
  );
}

const JOBS = [
  { title: 'job', cell: (s) => <a href={`#/jobs/${s.job}`}>{s.job}</a>, sort: (s) => s.job },
  { title: 'state', cell: (s) => <State state={s.state} why={why(s)} />, sort: (s) => s.state },
  { title: 'submitted', cell: (s) => age(s.submitted_unix_ms), sort: (s) => num(s.submitted_unix_ms) },
  { title: 'done', number: true, cell: (s) => percent(done(s)), sort: done },
  { title: 'version', number: true, cell: (s) => version(s.version), sort: (s) => num(s.version) },
  { title: 'loss', number: true, cell: (s) => loss(ended(s.state) ? s.final_loss : s.train_loss), sort: (s) => num(s.train_loss) },
  { title: 'validation', number: true, cell: (s) => loss(s.validation_loss), sort: (s) => num(s.validation_loss) },
  { title: 'speed', number: true, cell: (s) => (num(s.tokens_per_s) > 0 && !ended(s.state) ? `${count(s.tokens_per_s)} ${unit(s)}/s` : num(s.mean_tokens_per_s) ? `mean ${count(s.mean_tokens_per_s)} ${unit(s)}/s` : '–'), sort: (s) => num(s.tokens_per_s) },
];

export function Jobs({ onLive }) {
  const { data, error } = useGet('jobs', undefined, 3000);
  onLive(!!data, error);
  if (!data) return error ? <Problem error={error} /> : <p class="loading">Loading…</p>;
  return (
    <>
      <div class="title"><h1>Jobs</h1></div>
      <Section title="All jobs, newest first" id="all"><Table columns={JOBS} rows={[...data.jobs].reverse()} keyOf={(s) => s.job}
        empty="There are no jobs. Submit one with atoll submit job.toml." /></Section>
    </>
  );
}
