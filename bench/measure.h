// How benchmarks time things and state what they found.

#ifndef ATOLL_BENCH_MEASURE_H_
#define ATOLL_BENCH_MEASURE_H_

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace atl::bench {

inline double MeasureSeconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Median seconds of `work`, which runs once beforehand, uncounted.
inline double MedianSeconds(const std::function<void()>& work, int rounds) {
  work();
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) seconds.push_back(MeasureSeconds(work));
  return Median(seconds);
}

// Two functions that take turns. What disturbs the machine for a while disturbs both, so the
// median of the ratios within rounds says more than the ratio of the medians.
struct Comparison {
  double base_seconds;  // medians
  double work_seconds;
  double speed;  // median of base / work within a round: above 1, the work is faster
};

inline Comparison Compare(const std::function<void()>& base, const std::function<void()>& work,
                          int rounds) {
  base();
  work();
  std::vector<double> base_seconds, work_seconds, speeds;
  for (int round = 0; round < rounds; ++round) {
    base_seconds.push_back(MeasureSeconds(base));
    work_seconds.push_back(MeasureSeconds(work));
    speeds.push_back(base_seconds.back() / work_seconds.back());
  }
  return {Median(base_seconds), Median(work_seconds), Median(speeds)};
}

// One line of the form that scripts read, for a goal of "at least".
inline void PrintFigureAtLeast(const std::string& name, double value, const std::string& unit,
                               double goal) {
  std::printf("FIGURE %s %.3f %s goal >=%g %s\n", name.c_str(), value, unit.c_str(), goal,
              value >= goal ? "ok" : "short");
}

// The same for a goal of "at most".
inline void PrintFigureAtMost(const std::string& name, double value, const std::string& unit,
                              double goal) {
  std::printf("FIGURE %s %.4g %s goal <=%g %s\n", name.c_str(), value, unit.c_str(), goal,
              value <= goal ? "ok" : "short");
}

}  // namespace atl::bench

#endif  // ATOLL_BENCH_MEASURE_H_
