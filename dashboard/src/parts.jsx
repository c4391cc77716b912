// Small parts of pages.
import { h, Fragment } from 'preact';
import { useState } from 'preact/hooks';
import { stateName } from './format.js';

export const Badge = ({ state, text, title }) => <span class={`badge ${stateName(state)}`} title={title}>{text || stateName(state)}</span>;

// A state with its reason below it, where a narrow window shows it too.
export const State = ({ why, ...badge }) => <><Badge {...badge} />{why && <div class="reason">{why}</div>}</>;

export const Tile = ({ label, value, detail }) => (
  <div class="tile"><div class="label">{label}</div><div class="value">{value}</div>{detail && <div class="detail">{detail}</div>}</div>
);

export const Bar = ({ ratio, label }) => (
  <div class="bar" role="progressbar" aria-label={label} aria-valuemin="0" aria-valuemax="100" aria-valuenow={Math.round(ratio * 100)}>
    <div style={{ width: `${100 * ratio}%` }} />
  </div>
);

export const Section = ({ title, id, children, tools }) => (
  <section aria-labelledby={id}><div class="head"><h2 id={id}>{title}</h2>{tools}</div>{children}</section>
);

export const Problem = ({ error }) => (error ? <p class="problem" role="alert">{error.message || String(error)}</p> : null);

// columns: [{title, hint, number, cell(row), sort(row)}]; a page of rows at a time, sorted by a column's
// title when it is pressed. Where there are more rows than `rows`: `total`, and onMore(wanted) requests them.
export function Table({ columns, rows, empty, pageSize = 50, keyOf, total = rows.length, onMore }) {
  const [sort, setSort] = useState(null);
  const [shown, setShown] = useState(pageSize);
  if (!rows.length) return <p class="empty">{empty}</p>;
  let sorted = rows;
  if (sort) {
    const value = columns[sort.column].sort;
    sorted = [...rows].sort((a, b) => {
      const x = value(a), y = value(b);
      return (x < y ? -1 : x > y ? 1 : 0) * sort.direction;
    });
  }
  const press = (column) => setSort((old) => ({ column, direction: old?.column === column ? -old.direction : 1 }));
  return (
    <div class="scroll" tabIndex="0" role="region" aria-label={`table by ${columns[0].title}`}>
      <table>
        <thead><tr>{columns.map((c, i) => (
          <th class={c.number ? 'number' : ''} title={c.hint} aria-sort={sort?.column === i ? (sort.direction > 0 ? 'ascending' : 'descending') : undefined}>
            {c.sort ? <button onClick={() => press(i)}>{c.title}{sort?.column === i ? (sort.direction > 0 ? ' ↑' : ' ↓') : ''}</button> : c.title}
          </th>))}</tr></thead>
        <tbody>{sorted.slice(0, shown).map((row, i) => (
          <tr key={keyOf ? keyOf(row) : i}>{columns.map((c) => <td class={`${c.number ? 'number' : ''} ${c.wide ? 'wide' : ''}`}>{c.cell(row)}</td>)}</tr>))}
        </tbody>
      </table>
      {total > shown && <button class="more" onClick={() => { setShown(shown + 4 * pageSize); onMore?.(shown + 4 * pageSize); }}>
        {total - shown} more</button>}
    </div>
  );
}
