// Curves, drawn by uPlot. Colours are the page's CSS variables. Effects measure and draw before the frame is
// shown: a frame without charts first, then one with them, would be laid out and drawn twice.
import { h } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { moment } from './format.js';

export const COLOURS = 8;

// The library; a page that will have charts loads it while it waits for its data.
let uPlot;

// {ready, error}: whether a Chart can be rendered.
export function useCharts() {
  const [state, setState] = useState({ ready: !!uPlot });
  useLayoutEffect(() => {
    let over = false;
    if (!uPlot) {
      import('./uplot.js').then((module) => { uPlot = module.default; return { ready: true }; }, (error) => ({ error }))
        .then((next) => !over && setState(next));
    }
    return () => { over = true; };
  }, []);
  return state;
}

// Looked up once a theme: each look-up has the browser bring its styles up to date.
let colours = {}, coloursTheme;
function css(name) {
  const { theme } = document.documentElement.dataset;
  if (theme !== coloursTheme) [colours, coloursTheme] = [{}, theme];
  return (colours[name] ??= getComputedStyle(document.documentElement).getPropertyValue(name).trim());
}
const colour = (index) => css(`--series-${index % COLOURS}`);

// As many digits as the ticks need to differ.
const clockTicks = (_, ticks, __, ___, step) => ticks.map((t) => {
  const at = new Date(t * 1000), pad = (n) => String(n).padStart(2, '0');
  if (step >= 86400) return `${at.getMonth() + 1}/${at.getDate()}`;
  return `${pad(at.getHours())}:${pad(at.getMinutes())}${step < 60 ? `:${pad(at.getSeconds())}` : ''}`;
});

// The width of the element that `ref` is given to, at least `least`.
export function useWidth(least) {
  const ref = useRef(null), [width, setWidth] = useState(least);
  useLayoutEffect(() => {
    const measure = () => setWidth(Math.max(least, Math.floor(ref.current.clientWidth)));
    measure();
    const watch = new ResizeObserver(measure);
    watch.observe(ref.current);
    return () => watch.disconnect();
  }, [least]);
  return [ref, width];
}

// Several series with their own x: uPlot's joined columns.
const join = (series) => uPlot.join(series.map((s) => [s.x, s.y]));

// A line through the known points of a series. uPlot's own walks the joined columns, most of which are
// other series' points.
function lineThrough(plot, { x, y }) {
  const stroke = new Path2D();
  x.forEach((at, i) => {
    if (y[i] !== null && y[i] !== undefined) stroke.lineTo(plot.valToPos(at, 'x', true), plot.valToPos(y[i], 'y', true));
  });
  return { stroke, fill: null, clip: null, band: null, gaps: null, flags: 0 };
}

// series: [{label, x, y, colour, width, dash, points}]; every colour has its entry in the legend. The same
// array is not drawn again.
export function Chart({ title, series, xLabel, yLabel, time, height = 240, theme, format, log }) {
  const holder = useRef(null), plot = useRef(null), drawn = useRef(null);
  const key = `${series.map((s) => s.label).join('|')}|${time}|${theme}|${height}|${log}`;
  useLayoutEffect(() => {
    const axis = (label) => ({
      stroke: css('--muted'), grid: { stroke: css('--line'), width: 1 }, ticks: { stroke: css('--line'), width: 1 },
      label, labelSize: label ? 22 : 0, font: '12px system-ui, sans-serif', labelFont: '12px system-ui, sans-serif', size: 52,
    });
    const options = {
      width: holder.current.clientWidth, height, scales: { x: { time: !!time }, y: log ? { distr: 3 } : {} },
      axes: [{ ...axis(time ? '' : xLabel), size: 30, space: 70, ...(time ? { values: clockTicks } : {}) }, {
        ...axis(yLabel), values: (_, ticks) => ticks.map((t) => (t === null ? '' : format(t))),
        size: (_, labels) => Math.max(52, ...(labels ?? []).map((l) => 16 + 7 * l.length)),
      }],
      series: [{ label: xLabel, value: (_, v) => (v === null || v === undefined ? '–' : time ? moment(1000 * v) : String(v)) }].concat(series.map((s, i) => ({
        label: s.label, stroke: colour(s.colour ?? i), width: s.width ?? 1.5, dash: s.dash, spanGaps: true, paths: (u, index) => lineThrough(u, drawn.current[index - 1]),
        points: { show: s.points ?? false, size: 5 }, value: (_, v) => (v === null || v === undefined ? '–' : format(v)),
      }))),
      legend: { live: true }, cursor: { drag: { x: true, y: false } },
    };
    drawn.current = series;
    plot.current = new uPlot(options, join(series), holder.current);
    const resize = new ResizeObserver(() => {  // is called once for the size that there is
      const width = holder.current.clientWidth;
      if (width !== plot.current.width) plot.current.setSize({ width, height });
    });
    resize.observe(holder.current);
    return () => { resize.disconnect(); plot.current.destroy(); plot.current = null; };
  }, [key]);
  useLayoutEffect(() => {
    if (drawn.current === series) return;
    drawn.current = series;
    plot.current.setData(join(series));
  }, [key, series]);
  return <figure class="chart"><figcaption>{title}</figcaption><div ref={holder} role="img" aria-label={title} /></figure>;
}
