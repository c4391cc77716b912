// Calls of the coordinator, and pages' subscriptions to it.
// Requests begin as soon as a page is rendered (layout effects): an effect waits for the frame to be drawn.
import { useLayoutEffect, useRef, useState } from 'preact/hooks';

// 64-bit integers come as strings.
export const num = (value) => (value === undefined || value === null || value === '' ? 0 : Number(value));

const url = (call, parameters = {}) => {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, v]) => v !== undefined && v !== ''));
  const text = query.toString();
  return `/api/v1/${call}${text ? `?${text}` : ''}`;
};

async function parse(response) {
  if (response.ok) return response.json();  // fails where the connection was lost on the way
  const body = await response.json().catch(() => ({}));
  throw Object.assign(new Error(body.text || `the coordinator answers ${response.status}`), { answered: true });
}

const PATIENCE_MS = 15000;  // a coordinator that is cut off answers neither yes nor no
const silent = (error) => {
  throw error.name === 'TimeoutError' ? new Error(`the coordinator has not answered for ${PATIENCE_MS / 1000} s`) : error;
};
export const get = (call, parameters) => fetch(url(call, parameters), { signal: AbortSignal.timeout(PATIENCE_MS) }).then(parse).catch(silent);
export const act = (call, parameters) =>
  fetch(url(call, parameters), { method: 'POST', headers: { 'X-Atoll-Action': '1' } }).then(parse);

// {data, error}; requested again every `everyMs`, where given, and when `key` changes.
export function useGet(call, parameters, everyMs) {
  const [state, setState] = useState({});
  const key = url(call, parameters);
  useLayoutEffect(() => {
    let over = false, timer;
    setState((old) => (old.key === key ? old : {}));
    const request = () => get(call, parameters)
      .then((data) => !over && setState({ key, data }), (error) => !over && setState((old) => ({ ...(old.key === key ? old : {}), key, error })))
      .finally(() => { if (!over && everyMs) timer = setTimeout(request, everyMs); });
    request();
    return () => { over = true; clearTimeout(timer); };
  }, [key, everyMs]);
  return state;
}

// {data, error, live}: the newest event of a stream: of the cluster, or of `parameters.job`. Where there
// is no stream to be had (too many pages are open), repeats the request every few seconds. Other
// parameters of the same job keep what is shown until the first event with them.
export function useEvents(parameters = {}) {
  const [state, setState] = useState({});
  const failures = useRef(0), key = url('events', parameters);
  useLayoutEffect(() => {
    let over = false, timer, source;
    const poll = () => get(parameters.job ? 'job' : 'status', parameters)
      .then((data) => !over && setState({ data, live: false }), (error) => !over && setState((old) => ({ ...old, error, live: false })));
    const open = () => {
      source = new EventSource(key);
      source.onmessage = (event) => {
        failures.current = 0;
        if (!over) setState({ data: JSON.parse(event.data), live: true });
      };
      source.addEventListener('end', () => { source.close(); poll(); });
      source.onerror = () => {
        source.close();
        failures.current += 1;
        if (over) return;
        poll();
        timer = setTimeout(open, Math.min(15000, 1000 * 2 ** failures.current));
      };
    };
    open();
    return () => { over = true; clearTimeout(timer); source?.close(); };
  }, [key]);
  return state;
}
