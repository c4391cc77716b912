#include "common/metrics/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <sstream>

#include "common/metrics/names.h"
#include "common/version.h"

namespace atl {
namespace {

double UnixNow() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}
const double kStarted = UnixNow();

double CpuSeconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

double ResidentBytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return NAN;
  long total = 0, resident = 0;
  const int read = std::fscanf(file, "%ld %ld", &total, &resident);
  std::fclose(file);
  return read == 2 ? static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE))
                   : NAN;
}

}  // namespace

HistogramCounts::HistogramCounts(const Metric& metric)
    : bounds_(metric.bounds), counts_(metric.bounds.size() + 1) {}

void HistogramCounts::Observe(double value) {
  if (!std::isfinite(value)) return;
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<size_t>(bucket - bounds_.begin())];
  ++count_;
  sum_ += value;
}

class MetricsWriter::Families {
 public:
  prometheus::ClientMetric& New(const Metric& metric, const Labels& labels) {
    const auto [it, inserted] = index_.try_emplace(&metric, all_.size());
    if (inserted) {
      prometheus::MetricFamily family;
      family.name = metric.name;
      family.help = metric.help;
      family.type = metric.type == MetricType::kGauge     ? prometheus::MetricType::Gauge
                    : metric.type == MetricType::kCounter ? prometheus::MetricType::Counter
                                                          : prometheus::MetricType::Histogram;
      all_.push_back(std::move(family));
    }
    prometheus::ClientMetric& added = all_[it->second].metric.emplace_back();
    for (const auto& [name, value] : labels) added.label.push_back({name, value});
    return added;
  }
  void Take(Families& other) {
    for (prometheus::MetricFamily& family : other.all_) all_.push_back(std::move(family));
    other = Families();
  }
  const std::vector<prometheus::MetricFamily>& all() const { return all_; }

 private:
  std::vector<prometheus::MetricFamily> all_;
  std::map<const Metric*, size_t> index_;
};

MetricsWriter::MetricsWriter() : families_(std::make_unique<Families>()) {}
MetricsWriter::~MetricsWriter() = default;

void MetricsWriter::Add(const Metric& metric, double value, const Labels& labels) {
  if (!std::isfinite(value)) return;
  prometheus::ClientMetric& added = families_->New(metric, labels);
  (metric.type == MetricType::kCounter ? added.counter.value : added.gauge.value) = value;
}

void MetricsWriter::Add(const Metric& metric, const HistogramCounts& counts, const Labels& labels) {
  prometheus::ClientMetric::Histogram& histogram = families_->New(metric, labels).histogram;
  histogram.sample_count = counts.count_;
  histogram.sample_sum = counts.sum_;
  uint64_t below = 0;
  for (size_t b = 0; b < counts.counts_.size(); ++b) {
    below += counts.counts_[b];
    const bool last = b == counts.bounds_.size();
    histogram.bucket.push_back(
        {below, last ? std::numeric_limits<double>::infinity() : counts.bounds_[b]});
  }
}

void MetricsWriter::AddProcess() {
  Add(kBuildInfo, 1, {{"version", kSoftwareVersion}});
  Add(kProcessCpuSeconds, CpuSeconds());
  Add(kProcessResidentBytes, ResidentBytes());
  Add(kProcessStartSeconds, kStarted);
}

void MetricsWriter::AddDisk(const std::string& path) {
  struct statvfs disk {};
  if (statvfs(path.c_str(), &disk) != 0) return;
  const auto block = static_cast<double>(disk.f_frsize);
  Add(kDiskFreeBytes, block * static_cast<double>(disk.f_bavail));
  Add(kDiskSizeBytes, block * static_cast<double>(disk.f_blocks));
}

void MetricsWriter::Take(MetricsWriter& other) { families_->Take(*other.families_); }

std::string MetricsWriter::Text() const {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families_->all());
  return out.str();
}

}  // namespace atl
