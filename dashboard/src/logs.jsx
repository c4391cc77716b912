import { h, Fragment } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { useGet } from './api.js';
import { Lines } from './job.jsx';
import { Problem, Section } from './parts.jsx';

export function Logs({ query, onLive }) {
  const [job, setJob] = useState(query.get('job') || '');
  const [severity, setSeverity] = useState(''), [text, setText] = useState(''), [contains, setContains] = useState('');
  useEffect(() => { const timer = setTimeout(() => setContains(text), 300); return () => clearTimeout(timer); }, [text]);
  const jobs = useGet('jobs', undefined, 10000);
  const { data, error } = useGet('logs', { job, severity, contains, tail: 500 }, 2000);
  onLive(!!data, error);
  return (
    <>
      <div class="title"><h1>Log</h1></div>
      <Section title="Newest lines first" id="lines" tools={
        <div class="filters">
          <label>job <select value={job} onChange={(e) => setJob(e.target.value)}><option value="">all</option>
            {[...(jobs.data?.jobs || [])].reverse().map((j) => <option value={j.job}>{j.job}</option>)}</select></label>
          <label>severity <select value={severity} onChange={(e) => setSeverity(e.target.value)}>
            <option value="">events</option><option value="debug">events and rounds</option><option value="warning">warnings and errors</option><option value="error">errors</option></select></label>
          <label>text <input type="search" value={text} onInput={(e) => setText(e.target.value)} placeholder="contains…" /></label>
        </div>}>
        <Problem error={error} />
        {data ? <Lines lines={[...data].reverse()} withJob={!job} /> : !error && <p class="loading">Loading…</p>}
      </Section>
    </>
  );
}
