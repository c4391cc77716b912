// Pictures in SVG: rounds, a plan, sites, a traced step.
import { h, Fragment } from 'preact';
import { useState } from 'preact/hooks';
import { num } from './api.js';
import { milliseconds, rate, seconds } from './format.js';
import { COLOURS, useWidth } from './charts.jsx';

const series = (i) => `var(--series-${i % COLOURS})`;

export function ticks(from, to, wanted) {
  const span = to - from;
  if (!(span > 0)) return [from];
  const raw = span / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const all = [];
  for (let t = Math.ceil(from / step) * step; t <= to + step * 1e-6; t += step) all.push(t);
  return all;
}

const Key = ({ entries }) => (
  <div class="legend">{entries.map(([label, fill]) => <span><i style={{ background: fill }} />{label}</span>)}</div>
);

// Who pushed when, and when the round was decided and committed: the newest rounds, a row an island.
export function Rounds({ rounds, islands }) {
  const [holder, width] = useWidth(640);
  const known = rounds.filter((r) => num(r.decided_ms));
  if (!known.length) return <p class="empty" ref={holder}>No round has been decided yet.</p>;
  const begin = Math.min(...known.flatMap((r) => r.pushes.map((p) => num(p.granted_ms)).filter(Boolean).concat(num(r.decided_ms))));
  const end = Math.max(...known.map((r) => num(r.committed_ms) || num(r.decided_ms)));
  const left = 78, row = 22, top = 18, rows = islands.length, bottom = top + rows * row;
  const x = (ms) => left + ((ms - begin) / Math.max(1, end - begin)) * (width - left - 16);
  const nameOf = (r) => (num(r.version) < 0 ? 'void' : String(num(r.version)));
  const labelled = new Set();  // those whose number has room behind the one before
  let free = 0;
  for (const r of [...known].sort((a, b) => num(a.decided_ms) - num(b.decided_ms))) {
    const half = 4 * nameOf(r).length;
    if (x(num(r.decided_ms)) - half < free) continue;
    labelled.add(r);
    free = x(num(r.decided_ms)) + half + 4;
  }
  return (
    <figure class="picture" ref={holder} tabIndex="0">
      <svg width={width} height={bottom + 26} role="img" aria-label="the newest rounds">
        {ticks(0, (end - begin) / 1000, 8).map((t) => (
          <g><line x1={x(begin + t * 1000)} x2={x(begin + t * 1000)} y1={top} y2={bottom} stroke="var(--line)" />
            <text class="muted" x={x(begin + t * 1000)} y={bottom + 16} text-anchor="middle">{t === 0 ? '0 s' : seconds(t)}</text></g>))}
        {islands.map((island, i) => <text x="0" y={top + i * row + 15}>island {island}</text>)}
        {known.map((r) => (
          <g>
            {r.pushes.map((p) => {
              const i = islands.indexOf(p.island);
              if (i < 0 || !num(p.granted_ms)) return null;
              const late = num(p.staleness) > 0;
              return (
                <rect x={x(num(p.granted_ms))} y={top + i * row + 3} rx="2" height={row - 8}
                  width={Math.max(2, x(num(r.decided_ms)) - x(num(p.granted_ms)))}
                  fill={p.accepted ? (late ? 'var(--warn)' : 'var(--accent)') : 'var(--bad)'}>
                  <title>{`round ${r.round}, island ${p.island}: ${p.accepted ? 'accepted' : 'rejected'}, ${num(p.staleness)} versions behind; pushed ${seconds((num(r.decided_ms) - num(p.granted_ms)) / 1000)} before the decision`}</title>
                </rect>);
            })}
            <line x1={x(num(r.decided_ms))} x2={x(num(r.decided_ms))} y1={top - 4} y2={bottom} stroke="var(--ink)" stroke-width="1">
              <title>{`round ${r.round} decided: ${r.closed_because}`}</title></line>
            {num(r.committed_ms) > 0 && <line x1={x(num(r.committed_ms))} x2={x(num(r.committed_ms))} y1={top - 4} y2={bottom} stroke="var(--good)" stroke-width="1.5" stroke-dasharray="3 3" />}
            {labelled.has(r) && <text x={x(num(r.decided_ms))} y="10" text-anchor="middle" class="muted">{nameOf(r)}</text>}
          </g>))}
      </svg>
      <Key entries={[['push, from its grant to the decision', 'var(--accent)'], ['from an older version', 'var(--warn)'],
        ['rejected', 'var(--bad)'], ['decided', 'var(--ink)'], ['committed', 'var(--good)']]} />
    </figure>
  );
}

const REPLICAS_DRAWN = 12;  // at first: hundreds are taller than any window

// Replicas as rows, stages as boxes whose width is their share of the layers.
export function PlanPicture({ plan }) {
  const [holder, width] = useWidth(640), [shown, setShown] = useState(REPLICAS_DRAWN);
  const replicas = plan.replicas.slice(0, shown), more = plan.replicas.length - replicas.length;
  const layers = Math.max(1, ...replicas.map((r) => r.stages.reduce((n, s) => n + s.layers, 0)));
  const left = 76, row = 58;
  const x = (layer) => left + (layer / layers) * (width - left - 10);
  const workers = [...new Set(replicas.flatMap((r) => r.stages.flatMap((s) => s.devices.map((d) => d.split('/')[0]))))];
  return (
    <figure class="picture" ref={holder} tabIndex="0">
      <svg width={width} height={replicas.length * row + 24} role="img" aria-label="the plan">
        {replicas.map((replica, r) => (
          <g>
            <text x="0" y={r * row + 24}>replica {r}</text>
            <text class="muted" x="0" y={r * row + 40}>{replica.micro_batches} × {replica.micro_batch_sequences}</text>
            {replica.stages.map((stage, s) => {
              const x0 = x(stage.first_layer), x1 = x(stage.first_layer + stage.layers);
              const fill = series(workers.indexOf(stage.devices[0]?.split('/')[0]));
              const room = Math.floor((x1 - x0 - 10) / 6.6);
              const name = stage.devices.join(' ');
              return (
                <g><rect x={x0 + 1} y={r * row + 4} width={Math.max(2, x1 - x0 - 2)} height={row - 14} rx="5" fill={fill} fill-opacity=".18" stroke={fill}>
                  <title>{`stage ${s}: layers ${stage.first_layer} to ${stage.first_layer + stage.layers - 1} on ${name}`}</title></rect>
                  {room > 3 && <text x={x0 + 6} y={r * row + 22}>{name.length > room ? `${name.slice(0, room - 1)}…` : name}</text>}
                  {room > 3 && <text class="muted" x={x0 + 6} y={r * row + 38}>{room > 12 ? `stage ${s}, ${stage.layers} layers` : `${stage.layers} l.`}</text>}
                </g>);
            })}
          </g>))}
        {ticks(0, layers, 10).filter((t) => Number.isInteger(t)).map((t) => <text class="muted" x={x(t)} y={replicas.length * row + 14} text-anchor="middle">{t}</text>)}
      </svg>
      <Key entries={workers.map((w, i) => [w, series(i)])} />
      {more > 0 && <button class="more" onClick={() => setShown(shown + 4 * REPLICAS_DRAWN)}>{more} more</button>}
    </figure>
  );
}

// Sites around a circle, their workers in them, and the best measured link between each two.
export function SiteMap({ sites, links }) {
  const [holder, width] = useWidth(sites.length === 1 ? 240 : 640);  // one fits into a narrow window
  const height = sites.length > 2 ? 380 : 120, cx = width / 2, cy = height / 2;
  const at = (i) => (sites.length === 1 ? [cx, cy]
    : [cx + (Math.min(width, 900) / 2 - 120) * Math.cos((2 * Math.PI * i) / sites.length - Math.PI), cy + (height / 2 - 60) * Math.sin((2 * Math.PI * i) / sites.length - Math.PI)]);
  return (
    <figure class="picture" ref={holder} tabIndex="0">
      <svg width={width} height={height} role="img" aria-label="sites and links">
        {links.map((l) => {
          const [a, b] = [at(l.a), at(l.b)], mx = (a[0] + b[0]) / 2, my = (a[1] + b[1]) / 2;
          return (
            <g><line x1={a[0]} y1={a[1]} x2={b[0]} y2={b[1]} stroke="var(--accent)" stroke-width={1 + Math.min(5, Math.log10(1 + l.bandwidth / 1e6))} stroke-opacity=".6" />
              <rect x={mx - 66} y={my - 17} width="132" height="34" rx="5" fill="var(--card)" stroke="var(--line)" />
              <text x={mx} y={my - 3} text-anchor="middle">{rate(l.bandwidth)}</text>
              <text x={mx} y={my + 11} text-anchor="middle" class="muted">{milliseconds(l.latency)}</text></g>);
        })}
        {sites.map((site, i) => {
          const [x, y] = at(i);
          return (
            <g><rect x={x - 108} y={y - 32} width="216" height="64" rx="10" fill="var(--calm-bg)" stroke="var(--line)" />
              <text x={x} y={y - 10} text-anchor="middle" font-weight="600">{site.name}</text>
              {site.workers.slice(0, 8).map((w, k, all) => <circle cx={x + (k - (all.length - 1) / 2) * 22} cy={y + 8} r="7" fill={w.attached ? 'var(--good)' : 'var(--bad)'}><title>{`${w.name}: ${w.attached ? 'attached' : 'unavailable'}`}</title></circle>)}
              <text x={x} y={y + 28} text-anchor="middle" class="muted">{site.workers.length <= 3 ? site.workers.map((w) => w.name).join(', ') : `${site.workers.length} workers`}</text></g>);
        })}
      </svg>
      <Key entries={[['worker attached', 'var(--good)'], ['worker unavailable', 'var(--bad)']]} />
    </figure>
  );
}

const KINDS = { FORWARD: ['F: forward', 0], INPUT_GRADIENT: ['B: input gradient', 1], WEIGHT_GRADIENT: ['W: weight gradient', 2], SYNC: ['all-reduce', 3], OPTIMIZER: ['optimizer', 6], COMMIT: ['commit', 7], WAIT: ['waiting', -1], SYNC_WAIT: ['waiting', -1] };
const kindOf = (span) => KINDS[span.kind.replace('TRACE_KIND_', '')] || ['other', 5];

// Loads of a mixture's experts, in shares of their mean, which the line marks.
export function LoadBars({ loads, tokens }) {
  const each = Math.max(2, Math.min(14, Math.floor(420 / loads.length))), high = 34;
  const y = (load) => high * (1 - load / Math.max(2, ...loads));
  return (
    <svg width={each * loads.length} height={high} role="img" aria-label="load by expert">
      {loads.map((load, e) => <rect x={e * each} y={y(load)} width={Math.max(1, each - 1)} height={Math.max(0.5, high - y(load))} fill={tokens[e] ? 'var(--series-0)' : 'var(--bad)'}><title>{`expert ${e}: ${tokens[e]} tokens, ${load.toFixed(2)} of the mean`}</title></rect>)}
      <line x1="0" x2={each * loads.length} y1={y(1)} y2={y(1)} stroke="var(--muted)" stroke-dasharray="3 3" />
    </svg>
  );
}

// One step: a row a device, twice where there is a prediction.
export function Gantt({ title, trace, scaleNs }) {
  const [holder, width] = useWidth(640);
  const left = 96, row = 24, bottom = trace.devices.length * row;
  const x = (ns) => left + (num(ns) / scaleNs) * (width - left - 30);
  const used = new Map(trace.devices.flatMap((d) => d.spans.map(kindOf)));
  return (
    <figure class="picture" ref={holder} tabIndex="0">
      <figcaption>{title}</figcaption>
      <svg width={width} height={bottom + 24} role="img" aria-label={title}>
        {ticks(0, scaleNs / 1e6, 8).map((t) => (
          <g><line x1={x(t * 1e6)} x2={x(t * 1e6)} y1="0" y2={bottom} stroke="var(--line)" />
            <text class="muted" x={x(t * 1e6)} y={bottom + 16} text-anchor="middle">{+t.toPrecision(4)} ms</text></g>))}
        {trace.devices.map((device, d) => (
          <g><text x="0" y={d * row + 16}>{device.device}</text>
            {device.spans.map((span) => {
              const [name, index] = kindOf(span);
              return <rect x={x(span.start_ns)} y={d * row + 4} height={row - 8} width={Math.max(0.7, x(span.end_ns) - x(span.start_ns))}
                fill={index < 0 ? 'var(--calm-bg)' : series(index)} fill-opacity={name === 'all-reduce' ? 0.45 : 0.9}>
                <title>{`${name}, stage ${span.stage}, micro-batch ${span.micro_batch}: ${milliseconds(num(span.end_ns) - num(span.start_ns))}`}</title></rect>;
            })}</g>))}
      </svg>
      <Key entries={[...used].map(([name, index]) => [name, index < 0 ? 'var(--calm-bg)' : series(index)])} />
    </figure>
  );
}
