// Metrics in Prometheus' text format. Each metric is declared once, in names.h; a daemon writes all
// of its metrics anew whenever they are read, so that what was deleted (a job that was removed) is
// not reported any more.
//
//   MetricsWriter writer;
//   writer.Add(kJobLossNats, 2.5, {{"job", "lm-1"}});
//   writer.Text();

#ifndef ATOLL_COMMON_METRICS_METRICS_H_
#define ATOLL_COMMON_METRICS_METRICS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace atl {

enum class MetricType { kGauge, kCounter, kHistogram };

struct Metric {
  const char* name;
  MetricType type;
  const char* help;
  std::span<const double> bounds = {};  // of a histogram's buckets, ascending
};

// How many observations fell below each bound. Not thread-safe.
class HistogramCounts {
 public:
  explicit HistogramCounts(const Metric& metric);
  void Observe(double value);
  uint64_t count() const { return count_; }

 private:
  friend class MetricsWriter;
  std::span<const double> bounds_;
  std::vector<uint64_t> counts_;  // a bucket each, and one above all bounds
  uint64_t count_ = 0;
  double sum_ = 0;
};

class MetricsWriter {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  MetricsWriter();
  ~MetricsWriter();

  // Gauges and counters; a value that is not finite is left out. `metric` outlives the writer.
  void Add(const Metric& metric, double value, const Labels& labels = {});
  void Add(const Metric& metric, const HistogramCounts& counts, const Labels& labels = {});
  // Adds memory, CPU time and start of this process.
  void AddProcess();
  // Space left where `path` is.
  void AddDisk(const std::string& path);

  // Adds what another one has, whose metrics are none of this one's.
  void Take(MetricsWriter& other);

  std::string Text() const;

 private:
  class Families;
  std::unique_ptr<Families> families_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_METRICS_METRICS_H_
