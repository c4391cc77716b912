// Curves, drawn by uPlot. Colours are the page's CSS variables.
import { h } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';

export const COLOURS = 8;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const colour = (index) => css(`--series-${index % COLOURS}`);

// As many digits as the ticks need to differ.
const clockTicks = (_, ticks, __, ___, step) => ticks.map((t) => {
  const at = new Date(t * 1000), pad = (n) => String(n).padStart(2, '0');
  if (step >= 86400) return `${at.getMonth() + 1}/${at.getDate()}`;
  return `${pad(at.getHours())}:${pad(at.getMinutes())}${step < 60 ? `:${pad(at.getSeconds())}` : ''}`;
});

// The width of the element that `ref` is given to, at least `least`.
export function useWidth(least) {
  const ref = useRef(null), [width, setWidth] = useState(least);
  useEffect(() => {
    const measure = () => setWidth(Math.max(least, Math.floor(ref.current.clientWidth)));
    measure();
    const watch = new ResizeObserver(measure);
    watch.observe(ref.current);
    return () => watch.disconnect();
  }, []);
  return [ref, width];
}

// Several series with their own x: uPlot's joined columns.
const join = (series) => uPlot.join(series.map((s) => [s.x, s.y]));

// series: [{label, x, y, colour, width, dash, points}]; every colour has its entry in the legend.
export function Chart({ title, series, xLabel, yLabel, time, height = 240, theme, format }) {
  const holder = useRef(null), plot = useRef(null);
  const key = `${series.map((s) => s.label).join('|')}|${time}|${theme}|${height}`;
  useEffect(() => {
    const axis = (label) => ({
      stroke: css('--muted'), grid: { stroke: css('--line'), width: 1 }, ticks: { stroke: css('--line'), width: 1 },
      label, labelSize: label ? 22 : 0, font: '12px system-ui, sans-serif', labelFont: '12px system-ui, sans-serif', size: 52,
    });
    const options = {
      width: holder.current.clientWidth, height, scales: { x: { time: !!time } },
      axes: [{ ...axis(time ? '' : xLabel), size: 30, space: 70, ...(time ? { values: clockTicks } : {}) }, { ...axis(yLabel), values: (_, ticks) => ticks.map((t) => (t === null ? '' : format(t))) }],
      series: [{ label: xLabel, value: time ? undefined : (_, v) => (v === null ? '–' : format(v)) }].concat(series.map((s, i) => ({
        label: s.label, stroke: colour(s.colour ?? i), width: s.width ?? 1.5, dash: s.dash, spanGaps: true,
        points: { show: s.points ?? false, size: 5 }, value: (_, v) => (v === null || v === undefined ? '–' : format(v)),
      }))),
      legend: { live: true }, cursor: { drag: { x: true, y: false } },
    };
    plot.current = new uPlot(options, join(series), holder.current);
    const resize = new ResizeObserver(() => plot.current?.setSize({ width: holder.current.clientWidth, height }));
    resize.observe(holder.current);
    return () => { resize.disconnect(); plot.current.destroy(); plot.current = null; };
  }, [key]);
  useEffect(() => { plot.current?.setData(join(series)); });
  return <figure class="chart"><figcaption>{title}</figcaption><div ref={holder} role="img" aria-label={title} /></figure>;
}
