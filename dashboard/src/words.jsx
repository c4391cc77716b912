import { h, Fragment } from 'preact';
import { Section, Table } from './parts.jsx';

// WORDS: of docs/glossary.md (build.mjs).
const COLUMNS = [{ title: 'word', cell: ([word]) => word, sort: ([word]) => word }, { title: 'meaning', wide: true, cell: ([, meaning]) => meaning }];

export const WordsLink = () => <a href="#/words">glossary</a>;

export function Words({ session, onLive }) {
  onLive(!!session);
  return (
    <>
      <div class="title"><h1>Glossary</h1></div>
      <Section title="What words and numbers mean" id="words"><Table columns={COLUMNS} rows={WORDS} pageSize={WORDS.length} keyOf={([word]) => word} /></Section>
    </>
  );
}
