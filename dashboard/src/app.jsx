// The page's frame: where one is, the theme, whether what is shown is live.
import { h, render, Fragment } from 'preact';
import { useCallback, useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { useGet } from './api.js';
import { Overview, Jobs } from './overview.jsx';
import { Job } from './job.jsx';
import { Island } from './island.jsx';
import { Logs } from './logs.jsx';
import icon from './favicon.svg';

const PAGES = [['#/', 'Overview'], ['#/jobs', 'Jobs'], ['#/logs', 'Log']];
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
  if (words.length) return <p class="problem">There is no page {path}. <a href="#/">Overview</a></p>;
  return <Overview {...common} />;
}

function App() {
  const hash = useHash();
  const [theme, setTheme] = useState(storedTheme());
  const [live, setLive] = useState('');
  const { data: session } = useGet('session');
  document.documentElement.dataset.theme = theme;  // before charts read their colours
  useEffect(() => {
    const follow = () => setTheme(storedTheme());
    media.addEventListener('change', follow);
    return () => media.removeEventListener('change', follow);
  }, []);
  useEffect(() => {  // keys: g then o, j, l
    let last = '';
    const press = (event) => {
      if (/INPUT|SELECT|TEXTAREA/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
      const to = last === 'g' && { o: '#/', j: '#/jobs', l: '#/logs' }[event.key];
      if (to) location.hash = to;
      last = event.key;
    };
    addEventListener('keydown', press);
    return () => removeEventListener('keydown', press);
  }, []);
  const newest = useRef('');
  const onLive = useCallback((now, error) => {
    const next = error ? 'off' : now ? 'live' : 'wait';
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
        <div class="right"><span role="status"><span class={`dot ${live}`} />{{ live: 'live', off: 'no connection' }[live] || 'connecting'}</span>
          <button class="act" onClick={toggle} aria-label="change the colours">{theme === 'dark' ? 'Light' : 'Dark'}</button></div>
      </header>
      <main id="main" tabIndex="-1">{page}</main>
    </>
  );
}

const root = document.getElementById('app');
root.textContent = '';
render(<App />, root);
