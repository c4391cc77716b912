#include "rehearsal/failures.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/status.h"
#include "common/toml_message.h"
#include "rehearsal/failures.pb.h"

namespace atl::rehearsal {
namespace {

constexpr const char* kNames[] = {"device", "worker",     "node",        "site", "link",
                                  "server", "preemption", "coordinator", "disk"};
constexpr double kExpectedMax = 1e6;  // failures of a law in one run
constexpr double kSecondsMax = 100 * 365 * 86'400.0;

absl::StatusOr<FailureKind> ToKind(v1::FailureKind kind, const std::string& where) {
  if (kind == v1::FAILURE_KIND_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "kind: one of ", absl::StrJoin(kNames, ", ")));
  }
  return static_cast<FailureKind>(static_cast<int>(kind) - 1);
}

absl::Status ReadTime(const std::string& text, const std::string& where, Duration* time) {
  if (text.empty()) return absl::OkStatus();
  absl::StatusOr<Duration> read = ParseTime(text);
  if (!read.ok()) return Annotate(read.status(), where);
  *time = *read;
  return absl::OkStatus();
}

// "lognormal(1.5 h, 1)"
absl::StatusOr<RepairLaw> ParseRepair(absl::string_view text) {
  RepairLaw law;
  if (text.empty()) return law;
  const auto bad = [&] {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\": write a time, \"exponential(2 h)\" or \"lognormal(1.5 h, 1)\""));
  };
  absl::string_view inner = text;
  if (absl::ConsumePrefix(&inner, "exponential(")) law.form = RepairLaw::Form::kExponential;
  if (absl::ConsumePrefix(&inner, "lognormal(")) law.form = RepairLaw::Form::kLognormal;
  if (law.form != RepairLaw::Form::kFixed && !absl::ConsumeSuffix(&inner, ")")) return bad();
  if (law.form == RepairLaw::Form::kLognormal) {
    const size_t comma = inner.rfind(',');
    if (comma == absl::string_view::npos ||
        !absl::SimpleAtod(absl::StripAsciiWhitespace(inner.substr(comma + 1)), &law.sigma) ||
        !(law.sigma >= 0) || law.sigma > 5) {
      return bad();
    }
    inner = inner.substr(0, comma);
  }
  absl::StatusOr<Duration> time = ParseTime(inner);
  if (!time.ok()) return bad();
  law.time = *time;
  return law;
}

// Refuses fields that only other kinds have.
absl::Status CheckKind(FailureKind kind, bool notice, bool factor, const std::string& where) {
  if (notice && kind != FailureKind::kPreemption) {
    return absl::InvalidArgumentError(absl::StrCat(where, "notice: only a preemption has one"));
  }
  if (factor && kind != FailureKind::kLink) {
    return absl::InvalidArgumentError(absl::StrCat(where, "factor: only a link has one"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Failure> ReadEvent(const v1::FailureEvent& event, const std::string& where) {
  Failure failure;
  ATOLL_ASSIGN_OR_RETURN(failure.kind, ToKind(event.kind(), where));
  if (event.at().empty()) return absl::InvalidArgumentError(absl::StrCat(where, "at: give a time"));
  ATOLL_RETURN_IF_ERROR(ReadTime(event.at(), absl::StrCat(where, "at"), &failure.at));
  ATOLL_RETURN_IF_ERROR(ReadTime(event.lasts(), absl::StrCat(where, "lasts"), &failure.lasts));
  ATOLL_RETURN_IF_ERROR(ReadTime(event.notice(), absl::StrCat(where, "notice"), &failure.notice));
  failure.subject = event.subject();
  failure.factor = event.factor();
  if (!(failure.factor >= 0) || failure.factor > 1) {
    return absl::InvalidArgumentError(absl::StrCat(where, "factor: from 0 to 1"));
  }
  ATOLL_RETURN_IF_ERROR(
      CheckKind(failure.kind, !event.notice().empty(), event.factor() != 0, where));
  return failure;
}

absl::StatusOr<FailureLaw> ReadLaw(const v1::FailureLaw& read, const std::string& where) {
  FailureLaw law;
  ATOLL_ASSIGN_OR_RETURN(
      law.kind,
      ToKind(read.kind() == v1::FAILURE_KIND_UNSPECIFIED ? v1::FAILURE_KIND_DEVICE : read.kind(),
             where));
  law.of = read.of();
  law.mtbf_hours = read.mtbf_hours();
  if (!(law.mtbf_hours > 0) || law.mtbf_hours > 1e9) {
    return absl::InvalidArgumentError(absl::StrCat(where, "mtbf_hours: above 0"));
  }
  absl::StatusOr<RepairLaw> repair = ParseRepair(read.repair());
  if (!repair.ok()) return Annotate(repair.status(), absl::StrCat(where, "repair"));
  law.repair = *repair;
  law.together = read.together();
  if (!law.together.empty() && law.together != "node" && law.together != "rack" &&
      law.together != "site") {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "together = \"", law.together, "\": node, rack or site"));
  }
  if (!(read.together_share() >= 0) || read.together_share() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(where, "together_share: from 0 to 1"));
  }
  law.together_share = read.together_share() > 0 ? read.together_share() : 1;
  const bool alone = law.kind == FailureKind::kSite || law.kind == FailureKind::kLink ||
                     law.kind == FailureKind::kServer || law.kind == FailureKind::kCoordinator ||
                     law.kind == FailureKind::kDisk;
  if (alone && (!law.together.empty() || read.together_share() > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "together: a ", Name(law.kind), " fails by itself; leave it out"));
  }
  if (law.kind == FailureKind::kCoordinator && !law.of.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "of: there is one coordinator; leave it out"));
  }
  ATOLL_RETURN_IF_ERROR(ReadTime(read.notice(), absl::StrCat(where, "notice"), &law.notice));
  law.factor = read.factor();
  if (!(law.factor >= 0) || law.factor > 1) {
    return absl::InvalidArgumentError(absl::StrCat(where, "factor: from 0 to 1"));
  }
  ATOLL_RETURN_IF_ERROR(CheckKind(law.kind, !read.notice().empty(), read.factor() != 0, where));
  return law;
}

absl::Status ReadTimes(const v1::RehearsalTimes& read, Times* times) {
  ATOLL_RETURN_IF_ERROR(ReadTime(read.detect(), "times.detect", &times->detect));
  ATOLL_RETURN_IF_ERROR(ReadTime(read.restart(), "times.restart", &times->restart));
  ATOLL_RETURN_IF_ERROR(ReadTime(read.open(), "times.open", &times->open));
  ATOLL_RETURN_IF_ERROR(ReadTime(read.plan(), "times.plan", &times->plan));
  return ReadTime(read.set_up(), "times.set_up", &times->set_up);
}

}  // namespace

const char* Name(FailureKind kind) { return kNames[static_cast<int>(kind)]; }

Duration RepairLaw::Draw(Rng& rng) const {
  if (form == Form::kFixed) return time;
  const double seconds = form == Form::kExponential
                             ? -Seconds(time) * std::log(1 - rng.Uniform())
                             : Seconds(time) * std::exp(sigma * rng.Normal());
  return FromSeconds(std::min(seconds, kSecondsMax));
}

absl::StatusOr<Duration> ParseTime(absl::string_view text) {
  static const std::map<std::string, double> units = {
      {"ms", 1e-3}, {"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86'400}};
  const absl::string_view stripped = absl::StripAsciiWhitespace(text);
  const size_t end = stripped.find_last_of("0123456789.");
  double value = 0;
  const auto unit =
      end == absl::string_view::npos
          ? units.end()
          : units.find(std::string(absl::StripAsciiWhitespace(stripped.substr(end + 1))));
  if (unit == units.end() ||
      !absl::SimpleAtod(absl::StripAsciiWhitespace(stripped.substr(0, end + 1)), &value) ||
      !(value >= 0) || value * unit->second > kSecondsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\": write a time such as \"90 s\", \"2 min\", \"1.5 h\" or \"3 d\""));
  }
  return FromSeconds(value * unit->second);
}

absl::StatusOr<Failures> ParseFailures(absl::string_view text, const std::string& path) {
  TomlMessage toml(path);
  v1::FailuresFile file;
  ATOLL_RETURN_IF_ERROR(toml.Read(text, &file));
  Failures failures;
  const auto read = [&]() -> absl::Status {
    for (int i = 0; i < file.events_size(); ++i) {
      ATOLL_ASSIGN_OR_RETURN(Failure event,
                             ReadEvent(file.events(i), absl::StrCat("events[", i, "].")));
      failures.events.push_back(std::move(event));
    }
    for (int i = 0; i < file.failures_size(); ++i) {
      ATOLL_ASSIGN_OR_RETURN(FailureLaw law,
                             ReadLaw(file.failures(i), absl::StrCat("failures[", i, "].")));
      failures.laws.push_back(std::move(law));
    }
    return ReadTimes(file.times(), &failures.times);
  };
  if (absl::Status status = read(); !status.ok()) return Annotate(status, path);
  for (const v1::Rack& rack : file.racks()) {
    for (const std::string& node : rack.nodes()) failures.racks[node] = rack.name();
  }
  for (const v1::RehearsalServers& servers : file.servers()) {
    failures.servers.push_back({servers.site(), servers.count() == 0 ? 1 : servers.count()});
  }
  failures.coordinator_site = file.coordinator();
  for (int i = 0; i < file.prices_size(); ++i) {
    const v1::HourlyPrice& price = file.prices(i);
    const bool in_day = price.from_hour() >= 0 && price.from_hour() < kHours &&
                        price.to_hour() > 0 && price.to_hour() <= kHours &&
                        price.to_hour() != price.from_hour();
    if (!in_day || !(price.price_per_hour() >= 0) || price.price_per_hour() > 1e6) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": prices[", i,
                       "]: from_hour is 0 to 23, to_hour 1 to 24 and another one, "
                       "price_per_hour 0 to 1e6"));
    }
    failures.prices.push_back(
        {price.of(), price.from_hour(), price.to_hour(), price.price_per_hour()});
  }
  for (size_t i = 0; i < failures.laws.size(); ++i) {
    if (failures.laws[i].together != "rack" || !failures.racks.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": failures[", i, "].together = \"rack\": say which nodes share one in [[racks]]"));
  }
  return failures;
}

absl::StatusOr<FailureSource> FailureSource::Make(const Failures* failures, const Scene* scene) {
  FailureSource source(failures, scene);
  for (const SceneWorker& worker : scene->workers) source.workers_[worker.name] = &worker;
  for (const auto& [node, rack] : failures->racks) {
    if (source.workers_.contains(node)) continue;
    return absl::NotFoundError(
        absl::StrCat("racks: rack \"", rack, "\" has a node \"", node, "\": there is no such one"));
  }
  ATOLL_RETURN_IF_ERROR(source.FindEvents());
  for (size_t i = 0; i < failures->laws.size(); ++i) {
    const FailureLaw& law = failures->laws[i];
    source.of_laws_.push_back(source.ListSubjects(law.kind, law.of));
    if (!source.of_laws_.back().empty()) continue;
    return absl::NotFoundError(
        absl::StrCat("failures[", i, "]: no ", Name(law.kind), " is of \"", law.of, "\""));
  }
  source.FindGroups();
  return source;
}

FailureSource::Subjects FailureSource::ListSubjects(FailureKind kind, const std::string& of) const {
  Subjects subjects;
  const auto type_of = [&](int device) -> const std::string& {
    return scene_.input.cluster.types[scene_.input.cluster.devices[device].type].name;
  };
  if (kind == FailureKind::kLink) {
    for (const auto& [ends, link] : scene_.links) {
      if (ends.first == ends.second || (!of.empty() && of != ends.first && of != ends.second)) {
        continue;
      }
      subjects[absl::StrCat(ends.first, ">", ends.second)];
    }
    return subjects;
  }
  if (kind == FailureKind::kServer || kind == FailureKind::kDisk) {
    int number = 0;
    for (const ServerPlace& place : scene_.servers) {
      for (int i = 0; i < place.count; ++i, ++number) {
        if (of.empty() || of == place.site) subjects[absl::StrCat("server-", number)];
      }
    }
  }
  if (kind == FailureKind::kCoordinator) subjects["coordinator"];
  if (kind == FailureKind::kServer || kind == FailureKind::kCoordinator) return subjects;
  for (const SceneWorker& worker : scene_.workers) {
    const bool of_site = of.empty() || of == worker.site;
    const bool of_type = !of_site && std::any_of(worker.devices.begin(), worker.devices.end(),
                                                 [&](int d) { return type_of(d) == of; });
    if (!of_site && !of_type) continue;
    if (kind == FailureKind::kDevice) {
      for (const int d : worker.devices) {
        if (of_site || type_of(d) == of) {
          subjects[scene_.input.cluster.devices[d].id] = {worker.name};
        }
      }
    } else if (kind == FailureKind::kSite) {
      subjects[worker.site].push_back(worker.name);
    } else {
      subjects[worker.name] = {worker.name};
    }
  }
  return subjects;
}

absl::Status FailureSource::FindEvents() {
  std::map<FailureKind, Subjects> of_kind;
  for (size_t i = 0; i < failures_.events.size(); ++i) {
    Failure event = failures_.events[i];
    const auto [listed, is_new] = of_kind.try_emplace(event.kind);
    if (is_new) listed->second = ListSubjects(event.kind, "");
    const Subjects& subjects = listed->second;
    if (event.kind == FailureKind::kCoordinator) event.subject = "coordinator";
    const auto found = subjects.find(event.subject);
    if (found == subjects.end()) {
      std::vector<std::string> some;
      for (const auto& [name, workers] : subjects) {
        if (some.size() < 8) some.push_back(name);
      }
      return absl::NotFoundError(absl::StrCat(
          "events[", i, "].subject = \"", event.subject, "\": there is no such ", Name(event.kind),
          "; there are ", absl::StrJoin(some, ", "), some.size() < subjects.size() ? ", ..." : ""));
    }
    event.workers = found->second;
    events_.push_back(std::move(event));
  }
  return absl::OkStatus();
}

std::string FailureSource::GetGroup(const std::string& together, const SceneWorker& worker) const {
  if (together == "site") return worker.site;
  if (together == "node") return worker.name;
  const auto rack = failures_.racks.find(worker.name);
  return rack == failures_.racks.end() ? absl::StrCat("no rack, ", worker.name) : rack->second;
}

void FailureSource::FindGroups() {
  for (const FailureLaw& law : failures_.laws) {
    const auto [groups, is_new] = groups_.try_emplace(law.together);
    if (!is_new || law.together.empty()) continue;
    for (const SceneWorker& worker : scene_.workers) {
      groups->second[GetGroup(law.together, worker)].push_back(worker.name);
    }
  }
}

absl::Status FailureSource::DrawLaw(size_t number, Duration until, uint64_t seed,
                                    std::vector<Failure>* drawn) const {
  const FailureLaw& law = failures_.laws[number];
  const Subjects& subjects = of_laws_[number];
  const double expected =
      Seconds(until) / 3600 / law.mtbf_hours * static_cast<double>(subjects.size());
  if (expected > kExpectedMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "failures[%d].mtbf_hours = %g: %.3g failures are expected of %d subjects; at most %.3g: "
        "raise it, or play fewer days",
        number, law.mtbf_hours, expected, subjects.size(), kExpectedMax));
  }
  for (const auto& [subject, workers] : subjects) {
    // A subject's failures do not depend on which others there are.
    Rng rng(seed, XXH3_64bits_withSeed(subject.data(), subject.size(), number));
    double hours = 0;
    for (;;) {
      hours += -law.mtbf_hours * std::log(1 - rng.Uniform());
      if (hours * 3600 >= Seconds(until)) break;
      Failure failure{FromSeconds(hours * 3600),
                      law.kind,
                      subject,
                      law.repair.Draw(rng),
                      law.notice,
                      law.factor,
                      workers};
      const bool together = rng.Chance(law.together_share) && !law.together.empty();
      if (together && workers.size() == 1) {
        const std::string group = GetGroup(law.together, *workers_.at(workers[0]));
        failure.workers = groups_.at(law.together).at(group);
      }
      drawn->push_back(std::move(failure));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Failure>> FailureSource::Draw(Duration until, uint64_t seed) const {
  std::vector<Failure> drawn = events_;
  for (size_t i = 0; i < events_.size(); ++i) {
    if (events_[i].at < until) continue;
    return absl::InvalidArgumentError(absl::StrCat("events[", i, "].at: after the end of ",
                                                   Seconds(until) / 86'400, " days (--days)"));
  }
  for (size_t i = 0; i < failures_.laws.size(); ++i) {
    ATOLL_RETURN_IF_ERROR(DrawLaw(i, until, seed, &drawn));
  }
  std::stable_sort(drawn.begin(), drawn.end(),
                   [](const Failure& a, const Failure& b) { return a.at < b.at; });
  return drawn;
}

absl::Status SetPrices(const std::vector<HourlyPrice>& prices, Scene& scene) {
  const plan::Cluster& cluster = scene.input.cluster;
  for (size_t i = 0; i < prices.size(); ++i) {
    const HourlyPrice& price = prices[i];
    bool found = false;
    for (SceneWorker& worker : scene.workers) {
      for (size_t d = 0; d < worker.devices.size(); ++d) {
        const auto type = static_cast<size_t>(cluster.devices[worker.devices[d]].type);
        const bool applies =
            price.of.empty() || price.of == worker.site || price.of == cluster.types[type].name;
        found = found || applies;
        for (int hour = price.from_hour; applies; hour = (hour + 1) % kHours) {
          worker.prices[d][static_cast<size_t>(hour)] = price.price_per_hour;
          if ((hour + 1) % kHours == price.to_hour % kHours) break;
        }
      }
    }
    if (found) continue;
    return absl::NotFoundError(
        absl::StrCat("prices[", i, "].of = \"", price.of, "\": no type of devices, and no site"));
  }
  return absl::OkStatus();
}

}  // namespace atl::rehearsal
