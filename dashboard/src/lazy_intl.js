// Stands in for Intl in uPlot (build.mjs), which makes a number formatter and looks up its time zone when it is
// loaded: the first use of Intl takes a browser 30 ms. The formatter is made when a number is formatted; the zone
// counts only for charts with a zone of their own, which pages have none of.
class NumberFormat {
  constructor(...options) { this.options = options; }
  format(value) {
    this.made ??= new globalThis.Intl.NumberFormat(...this.options);
    return this.made.format(value);
  }
}
class DateTimeFormat {
  resolvedOptions() { return {}; }
}
export const lazyIntl = { NumberFormat, DateTimeFormat };
