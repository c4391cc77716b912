// Human-readable numbers.
import { num } from './api.js';

export function count(value) {
  const v = num(value);
  if (!Number.isFinite(v) || v === 0) return '0';
  for (const [size, unit] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']]) {
    if (Math.abs(v) >= size) return `${+(v / size).toPrecision(3)}${unit}`;
  }
  return `${+v.toPrecision(3)}`;
}

// What a job's tokens are: "tokens", or "images"; what its losses are.
export const unit = (s) => s.token_unit;
export const nats = (s) => (unit(s) === 'images' ? 'nats an image' : 'nats a token');

// "12.3k"; a dash where nothing trains.
export const speed = (tokensPerS) => (num(tokensPerS) > 0 ? count(tokensPerS) : '–');

export function bytes(value) {
  const v = num(value);
  for (const [size, unit] of [[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [1024, 'KiB']]) {
    if (v >= size) return `${+(v / size).toPrecision(3)} ${unit}`;
  }
  return `${v} B`;
}

export function seconds(value) {
  const v = num(value);
  if (!Number.isFinite(v) || v < 0) return '–';
  if (v > 0 && v < 0.001) return `${+(v * 1e6).toPrecision(3)} us`;
  if (v < 1) return `${+(v * 1000).toPrecision(3)} ms`;
  if (v < 60) return `${v < 10 ? v.toFixed(1) : Math.round(v)} s`;
  if (v < 3600) return `${Math.floor(v / 60)} min ${Math.floor(v % 60)} s`;
  if (v < 86400) return `${Math.floor(v / 3600)} h ${Math.floor((v % 3600) / 60)} min`;
  return `${Math.floor(v / 86400)} d ${Math.floor((v % 86400) / 3600)} h`;
}

export const loss = (value) => (num(value) === 0 ? '–' : num(value).toFixed(4));
export const version = (value) => (num(value) < 0 ? '–' : String(num(value)));
export const percent = (ratio) => `${(100 * ratio).toFixed(1)}%`;
export const rate = (bytesPerS) => (bytesPerS > 0 ? `${+((bytesPerS * 8) / 1e6).toPrecision(3)} Mbit/s` : '–');
export const milliseconds = (ns) => `${+(num(ns) / 1e6).toPrecision(3)} ms`;
const two = (n) => String(n).padStart(2, '0');
// In the browser's time zone. Not by Intl, whose first use takes 30 ms.
export function moment(unixMs) {
  const at = new Date(num(unixMs));
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}
export const age = (unixMs) => (num(unixMs) ? `${seconds(Math.max(0, (Date.now() - num(unixMs)) / 1000))} ago` : '–');

export const stateName = (state) => (state || '').replace('JOB_STATE_', '').toLowerCase() || 'unknown';
// Why a job is in its state; how it began to run says nothing any more once it has trained.
export const reason = (s) => (stateName(s.state) === 'running' && num(s.version) >= 1 ? '' : s.reason);
export const ended = (state) => ['done', 'failed', 'cancelled'].includes(stateName(state));
// An island of a job that has ended is not missing.
export const islandState = (island, job) => (ended(job.state) ? 'ended' : island.stalled ? 'stalled' : island.attached ? 'attached' : 'unavailable');
// Of an ended job: how long it ran, without its pauses; null: it never began.
export const ranSeconds = (s) => (num(s.started_unix_ms) ? (num(s.ended_unix_ms) - num(s.started_unix_ms) - num(s.paused_ms)) / 1000 : null);
export const done = (s) => (num(s.tokens_budget) > 0 ? Math.min(1, num(s.tokens_committed) / num(s.tokens_budget)) : 0);
export function timeLeft(s) {
  const left = num(s.tokens_budget) - num(s.tokens_committed);
  return ended(s.state) || s.state === 'JOB_STATE_PAUSED' || num(s.tokens_per_s) <= 0 ? '–' : seconds(left / num(s.tokens_per_s));
}
