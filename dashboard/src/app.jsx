// The page's frame: where one is, the theme, whether what is shown is live.
import { h, render, Fragment } from 'preact';
import { useCallback, useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { useGet } from './api.js';
import { age, moment } from './format.js';
import { Overview, Jobs } from './overview.jsx';
import { Job } from './job.jsx';
import { Island } from './island.jsx';
import { Logs } from './logs.jsx';
import { Rehearsal } from './rehearsal.jsx';
import { Words } from './words.jsx';
import icon from './favicon.svg';

const PAGES = [['#/', 'Overview'], ['#/jobs', 'Jobs'], ['#/rehearsal', 'Rehearsal'], ['#/logs', 'Log']];
const media = matchMedia('(prefers-color-scheme: dark)');
const storedTheme = () => localStorage.getItem('theme') || (media.matches ? 'dark' : 'light');

function useHash() {
  const [hash, setHash] = useState(location.hash || '#/');
  useEffect(() => {
    const change = () => { setHash(location.hash || '#/'); scrollTo(0, 0); };
    addEventListener('hashchange', change);
    return () => removeEventListener('hashchange', change);
  }, []);
  return hash;
}

function Page({ hash, ...common }) {
  const [path, query] = hash.slice(1).split('?');
  const words = path.split('/').filter(Boolean).map(decodeURIComponent);
  if (words[0] === 'jobs' && words[2] === 'islands') return <Island key={hash} id={words[1]} number={Number(words[3])} {...common} />;
  if (words[0] === 'jobs' && words[1]) return <Job key={words[1]} id={words[1]} {...common} />;
  if (words[0] === 'jobs') return <Jobs {...common} />;
  if (words[0] === 'logs') return <Logs key={hash} query={new URLSearchParams(query)} {...common} />;
  if (words[0] === 'rehearsal') return <Rehearsal {...common} />;
  if (words[0] === 'words') return <Words {...common} />;
  if (words.length) return <p class="problem">There is no page {path}. <a href="#/">Overview</a></p>;
  return <Overview {...common} />;
}

const TITLES = { jobs: 'Jobs', rehearsal: 'Rehearsal', logs: 'Log', words: 'Glossary' };

// What the browser's tab says.
function titleOf(hash) {
  const [page, job, , island] = hash.slice(2).split('?')[0].split('/').map(decodeURIComponent);
  const name = page === 'jobs' && job ? (island ? `${job}, island ${island}` : job) : TITLES[page] || 'Overview';
  return `${name} – Atoll`;
}

const KEYS = [['g o', 'overview'], ['g j', 'jobs'], ['g l', 'log'], ['g w', 'glossary'], ['?', 'this list'], ['Esc', 'close it']];

function Keys({ onClose }) {
  const dialog = useRef(null);
  useEffect(() => { dialog.current.showModal(); }, []);
  return (
    <dialog ref={dialog} onClose={onClose} aria-labelledby="keys"><h2 id="keys">Keys</h2>
      <dl>{KEYS.map(([keys, what]) => <div><dt>{keys.split(' ').map((k) => <kbd>{k}</kbd>)}</dt><dd>{what}</dd></div>)}</dl>
      <button class="act" onClick={() => dialog.current.close()}>Close</button></dialog>
  );
}

// Shown while the coordinator does not answer.
function Lost({ since }) {
  const [, tick] = useState(0);
  useEffect(() => { const timer = setInterval(() => tick((n) => n + 1), 1000); return () => clearInterval(timer); }, []);
  return (
    <p class="lost" role="alert">The coordinator does not answer. {since ? `Its last answer came at ${moment(since)}, ${age(since)}: what is shown is as old, and actions are off.` : 'It has not answered yet.'}</p>
  );
}

function App() {
  const hash = useHash();
  const [keys, setKeys] = useState(false);
  const [theme, setTheme] = useState(storedTheme());
  const [live, setLive] = useState('');
  // Repeated: a stream of events from a machine that is cut off just says nothing more.
  const { data: answer, error: silence } = useGet('session', undefined, 5000);
  const session = useMemo(() => answer, [JSON.stringify(answer)]);
  document.documentElement.dataset.theme = theme;  // before charts read their colours
  useEffect(() => {
    const follow = () => setTheme(storedTheme());
    media.addEventListener('change', follow);
    return () => media.removeEventListener('change', follow);
  }, []);
  useEffect(() => {  // keys: g then o, j, l, w
    let last = '';
    const press = (event) => {
      if (event.key === '?' && !/INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) setKeys(true);
      if (/INPUT|SELECT|TEXTAREA/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
      const to = last === 'g' && { o: '#/', j: '#/jobs', l: '#/logs', w: '#/words' }[event.key];
      if (to) location.hash = to;
      last = event.key;
    };
    addEventListener('keydown', press);
    return () => removeEventListener('keydown', press);
  }, []);
  useEffect(() => { document.title = titleOf(hash); }, [hash]);
  const newest = useRef(''), answered = useRef(0);
  useEffect(() => { if (answer) answered.current = Date.now(); }, [answer]);
  const state = silence && !silence.answered ? 'off' : live;
  const onLive = useCallback((now, error) => {
    const next = error && !error.answered ? 'off' : now ? 'live' : 'wait';
    if (next === 'live') answered.current = Date.now();
    if (next === newest.current) return;
    newest.current = next;
    setTimeout(() => setLive(next));
  }, []);
  // The same element where only the frame has changed: the page is not rendered again.
  const page = useMemo(() => <Page hash={hash} session={session} theme={theme} onLive={onLive} />, [hash, session, theme]);
  const toggle = () => { const next = theme === 'dark' ? 'light' : 'dark'; localStorage.setItem('theme', next); setTheme(next); };
  const here = (target) => (target === '#/' ? hash === '#/' : hash.startsWith(target));
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); document.getElementById('main').focus(); }}>Skip to content</a>
      <header class="top">
        <a class="brand" href="#/"><span class="icon" aria-hidden="true" dangerouslySetInnerHTML={{ __html: icon }} />Atoll</a>
        <nav aria-label="pages">{PAGES.map(([target, name]) => <a href={target} aria-current={here(target) ? 'page' : undefined}>{name}</a>)}</nav>
        <div class="right"><span role="status"><span class={`dot ${state}`} />{{ live: 'live', off: 'no connection' }[state] || 'connecting'}</span>
          <button class="act" onClick={toggle} aria-label="change the colours">{theme === 'dark' ? 'Light' : 'Dark'}</button>
          <button class="act" onClick={() => setKeys(true)} aria-label="keys">?</button></div>
      </header>
      {state === 'off' && <Lost since={answered.current} />}
      <main id="main" tabIndex="-1" class={state === 'off' ? 'stale' : ''}><fieldset class="bare" disabled={state === 'off'}>{page}</fieldset></main>
      {keys && <Keys onClose={() => setKeys(false)} />}
    </>
  );
}

const root = document.getElementById('app');
root.textContent = '';
render(<App />, root);
