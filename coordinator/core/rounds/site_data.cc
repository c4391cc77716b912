#include "coordinator/core/rounds/site_data.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/shards/placement.h"

namespace atl::coord {

int64_t FindSiteAxis(const JobSpec& spec, const std::string& site) {
  const std::vector<SiteData>& sites = spec.data.sites;
  if (sites.empty()) return 0;
  const auto found = std::find_if(sites.begin(), sites.end(),
                                  [&](const SiteData& data) { return data.site == site; });
  return found == sites.end() ? -1 : found - sites.begin();
}

int64_t FindDataAxis(const JobSpec& spec, const Worker& worker) {
  return FindSiteAxis(spec, worker.site);
}

std::string WhyNoData(const JobSpec& spec, const Worker& worker) {
  if (FindDataAxis(spec, worker) >= 0) return "";
  const std::string sites = absl::StrJoin(
      spec.data.sites, ", ",
      [](std::string* out, const SiteData& data) { absl::StrAppend(out, data.site); });
  return absl::StrCat(worker.site.empty() ? "it was started without --site"
                                          : absl::StrCat("it is at site ", worker.site),
                      ", and the job's data.sites are ", sites);
}

JobSpec SpecFor(const Job& job, const Worker& worker) {
  JobSpec spec = job.spec();
  if (spec.data.sites.empty()) return spec;
  const int64_t axis = FindDataAxis(spec, worker);
  const SiteData site = axis < 0 ? SiteData() : spec.data.sites[static_cast<size_t>(axis)];
  spec.data.path = site.path;
  spec.data.validation_path = site.validation_path;
  spec.data.sites.clear();
  return spec;
}

std::string DifferenceAt(const JobSpec& spec, const JobFacts& facts, const Worker& worker,
                         std::vector<SiteFacts>& sites) {
  const JobFacts& found = *worker.prepared;
  if (spec.data.sites.empty()) return Difference(facts, found, spec.evaluation);
  const auto first = std::find_if(sites.begin(), sites.end(),
                                  [&](const SiteFacts& site) { return site.site == worker.site; });
  JobFacts expected = facts;  // the model's, and the site's data
  expected.train_sequences = first == sites.end() ? found.train_sequences : first->train_sequences;
  expected.validation_sequences =
      first == sites.end() ? found.validation_sequences : first->validation_sequences;
  expected.data_digest = first == sites.end() ? found.data_digest : first->data_digest;
  std::string difference = Difference(expected, found, spec.evaluation);
  if (difference.empty() && first == sites.end()) {
    sites.push_back(
        {worker.site, found.train_sequences, found.validation_sequences, found.data_digest});
  }
  return difference;
}

}  // namespace atl::coord
