// Measures what the adapter gains when a link slows down while a job runs, and what it costs when
// not.

#ifndef ATOLL_BENCH_ISLAND_ADAPTER_CASE_H_
#define ATOLL_BENCH_ISLAND_ADAPTER_CASE_H_

namespace atl::bench {

// Step time without over with the adapter.
struct AdapterGain {
  double steady = 0;  // on the fast link, at the end
  double slowed = 0;  // once both have had the same steps on the slow link
};

// Prints a table. Two stages over two sites, 1F1B, emulated as all of this benchmark.
AdapterGain MeasureAdapter(int rounds);

}  // namespace atl::bench

#endif  // ATOLL_BENCH_ISLAND_ADAPTER_CASE_H_
