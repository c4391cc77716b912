// Writes the same rows with several writers, and compares what read_rows prints with hyparquet.
import assert from 'node:assert/strict';
import {spawnSync} from 'node:child_process';
import {mkdirSync, writeFileSync} from 'node:fs';
import duckdb from '@duckdb/node-api';
import parquetjs from '@dsnp/parquetjs';
import {asyncBufferFromFile, parquetReadObjects} from 'hyparquet';
import {compressors} from 'hyparquet-compressors';
import {parquetWriteBuffer} from 'hyparquet-writer';

const [folder, readRows] = process.argv.slice(2);
mkdirSync(folder, {recursive: true});

const rows = Array.from({length: 3000}, (_, i) => ({
  id: i,
  text: i % 17 === 3 ? null : `line ${i} of “text”\n\twith ${'words '.repeat(i % 50)}\u0001"\\`,
  score: i % 7 === 0 ? null : i / 3,
  good: i % 3 === 0,
  tags: i % 11 === 0 ? null : Array.from({length: i % 4}, (_, k) => (k === 2 ? null : `t${k}-${i % 6}`)),
  messages: Array.from({length: i % 4}, (_, k) => ({
    role: k % 2 ? 'assistant' : 'user',
    content: k === 1 && i % 5 === 0 ? null : `m${k} of ${i}`,
    weight: k % 2,
  })),
}));
const json = `${folder}/rows.jsonl`;
writeFileSync(json, rows.map(row => JSON.stringify(row)).join('\n') + '\n');
const read = [], refused = [];

const connection = await (await duckdb.DuckDBInstance.create(':memory:')).connect();
await connection.run(`create table t as select * from read_json('${json}', columns = {id: 'BIGINT', text: 'VARCHAR',
  score: 'DOUBLE', good: 'BOOLEAN', tags: 'VARCHAR[]', messages: 'STRUCT(role VARCHAR, content VARCHAR, weight INTEGER)[]'})`);
for (const [options, word] of [['compression uncompressed'], ['compression snappy'], ['compression gzip'], ['compression zstd'],
    ['compression zstd, row_group_size 2048'], ['compression brotli', 'brotli'], ['compression lz4_raw', 'LZ4_RAW'],
    ['compression zstd, parquet_version v2'], ['compression snappy, parquet_version v2, dictionary_size_limit 1']]) {
  const file = `${folder}/duckdb-${options.replace(/\W+/g, '-')}.parquet`;
  await connection.run(`copy t to '${file}' (format parquet, ${options})`);
  word === undefined ? read.push(file) : refused.push([file, word]);
}

const column = (name, type, nullable = false) => ({name, data: rows.map(row => row[name]), type, nullable});
for (const codec of ['UNCOMPRESSED', 'SNAPPY']) {
  const file = `${folder}/hyparquet-${codec}.parquet`;
  writeFileSync(file, Buffer.from(parquetWriteBuffer({codec, columnData: [column('id', 'INT32'), column('text', 'STRING', true),
    column('score', 'DOUBLE', true), column('good', 'BOOLEAN')]})));
  read.push(file);
}

const schema = new parquetjs.ParquetSchema({
  id: {type: 'INT64'}, text: {type: 'UTF8', optional: true, compression: 'GZIP'},
  score: {type: 'DOUBLE', optional: true, compression: 'SNAPPY'}, good: {type: 'BOOLEAN'}, tags: {type: 'UTF8', repeated: true},
  messages: {repeated: true, fields: {role: {type: 'UTF8'}, content: {type: 'UTF8', optional: true}, weight: {type: 'INT32'}}},
});
const withoutNulls = value => Object.fromEntries(Object.entries(value).filter(([, field]) => field !== null));
for (const useDataPageV2 of [false, true]) {
  const file = `${folder}/parquetjs-${useDataPageV2 ? 2 : 1}.parquet`;
  const writer = await parquetjs.ParquetWriter.openFile(schema, file, {rowGroupSize: 700, useDataPageV2});
  for (const row of rows) {
    await writer.appendRow(withoutNulls({...row, tags: (row.tags ?? []).filter(tag => tag !== null),
                                         messages: row.messages.map(withoutNulls)}));
  }
  await writer.close();
  read.push(file);
}

// Numbers of 64 bits are BigInts, what is not there is undefined: as in JSON.
const plain = value => JSON.parse(JSON.stringify(value, (_, field) => (typeof field === 'bigint' ? Number(field) : field ?? null)));
for (const file of read) {
  const wanted = plain(await parquetReadObjects({file: await asyncBufferFromFile(file), compressors}));
  assert.equal(wanted.length, rows.length);
  const run = spawnSync(readRows, [file], {encoding: 'utf8', maxBuffer: 1 << 28});
  assert.equal(run.status, 0, `${file}: ${run.stderr}`);
  const got = run.stdout.trim().split('\n').map(line => JSON.parse(line));
  assert.deepEqual(got.map(row => row.text), rows.map(row => row.text), file);
  // hyparquet gives null where parquetjs wrote no element of a list.
  for (const row of wanted) for (const name of ['tags', 'messages']) if (file.includes('parquetjs')) row[name] ??= [];
  assert.deepEqual(got, wanted, file);
  console.log(`${file.split('/').pop()}: ${got.length} rows`);
}
for (const [file, word] of refused) {
  const run = spawnSync(readRows, [file], {encoding: 'utf8', maxBuffer: 1 << 28});
  assert.notEqual(run.status, 0, file);
  assert(run.stderr.includes(word), `${file}: ${run.stderr}`);
  console.log(`${file.split('/').pop()}: refused, ${word}`);
}
