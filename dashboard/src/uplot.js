// The library of charts, which pages without charts do not load.
export { default } from 'uplot';
