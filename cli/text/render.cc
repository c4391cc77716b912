#include "cli/text/render.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/text/island_text.h"
#include "cli/text/output.h"
#include "cli/text/scores.h"
#include "common/bytes_text.h"
#include "common/net/relay/words.h"
#include "common/plural.h"

namespace atl::cli {
namespace {

std::string Loss(double nats) { return nats == 0 ? "-" : Fixed(nats, 4); }

double Done(const v1::JobSummary& s) {
  if (s.tokens_budget() <= 0) return 0;
  return std::clamp(
      static_cast<double>(s.tokens_committed()) / static_cast<double>(s.tokens_budget()), 0.0, 1.0);
}

std::string TimeLeft(const v1::JobSummary& s) {
  if (Ended(s.state()) || s.state() == v1::JOB_STATE_PAUSED) return "-";
  const auto left =
      static_cast<double>(std::max<int64_t>(0, s.tokens_budget() - s.tokens_committed()));
  return s.tokens_per_s() > 0 ? Seconds(left / s.tokens_per_s()) : "-";
}

// "5k tokens/s"; "- tokens/s" where nothing trains.
std::string SpeedText(const v1::JobSummary& s) {
  return absl::StrCat(cli::SpeedText(ShownSpeed(s)), " ", TokenUnit(s), "/s");
}

// How long an ended job ran; "-" where it never began.
std::string DurationText(const v1::JobSummary& s) {
  if (s.started_unix_ms() == 0 || s.ended_unix_ms() == 0) return "-";
  const int64_t ran_ms = s.ended_unix_ms() - s.started_unix_ms() - s.paused_ms();
  const std::string ran = Seconds(static_cast<double>(ran_ms) / 1e3);
  if (s.paused_ms() < 1000) return ran;
  return absl::StrCat(ran, ", paused for ", Seconds(static_cast<double>(s.paused_ms()) / 1e3));
}

// How fast it trains and how long that takes: of an ended job as a whole; of a paused one nothing.
std::vector<std::string> DescribeSpeed(const v1::JobSummary& s) {
  if (s.state() == v1::JOB_STATE_PAUSED) return {};
  if (Ended(s.state())) return {"ran for " + DurationText(s), "mean " + SpeedText(s)};
  return {SpeedText(s), TimeLeft(s) + " left"};
}

std::string VersionText(int64_t version) { return version < 0 ? "-" : absl::StrCat(version); }

// Why the job came to its state; how it began to run says nothing any more once it has trained.
std::string GetDisplayReason(const v1::JobSummary& s) {
  return s.state() == v1::JOB_STATE_RUNNING && s.version() >= 1 ? "" : s.reason();
}

// The hindrance comes first.
std::string WhyState(const v1::JobSummary& s) {
  const std::string reason = GetDisplayReason(s);
  if (s.waiting_for().empty()) return StateText(s.state(), reason);
  return absl::StrCat(StateName(s.state()), ": ", s.waiting_for(), reason.empty() ? "" : "; ",
                      reason);
}

// A cell of a table that a terminal can show.
std::string Shortened(const std::string& text, const std::string& job) {
  constexpr size_t kWidest = 100;
  if (text.size() <= kWidest || IsWide()) return text;
  return absl::StrCat(text.substr(0, kWidest), "... (atoll show ", job, ")");
}

void AppendDecisions(const v1::Job& job, int count, std::string* out) {
  Table table(
      {"version", "island", "base", "steps", TokenUnit(job.summary()), "weight", "decision"},
      /*keys=*/2);
  const int first = std::max(0, job.decisions_size() - count);
  for (int d = first; d < job.decisions_size(); ++d) {
    const v1::Decision& decision = job.decisions(d);
    for (const v1::Participant& p : decision.participants()) {
      table.Add({decision.version() < 0 ? "void" : absl::StrCat(decision.version()),
                 absl::StrCat(p.island()), absl::StrCat(p.base_version()),
                 absl::StrCat(p.inner_steps()), Count(static_cast<double>(p.tokens())),
                 p.accepted() ? Fixed(p.weight(), 4) : "REJECTED", p.reason()});
    }
  }
  if (!table.empty()) absl::StrAppend(out, "\nnewest decisions\n", table.Text());
}

// How well the islands learn together; a figure that is not known is "-".
void AppendHealth(const v1::Job& job, int count, std::string* out) {
  Table table(
      {"version", "rate", "norm", "clip", "rho", "gain", "cosine", "staleness", "loss by island"});
  const auto known = [](double value) { return value == 0 ? "-" : Fixed(value, 2); };
  for (int d = std::max(0, job.decisions_size() - count); d < job.decisions_size(); ++d) {
    const v1::Decision& decision = job.decisions(d);
    if (decision.version() <= 0) continue;
    std::string losses;
    for (const v1::Participant& p : decision.participants()) {
      absl::StrAppend(&losses, losses.empty() ? "" : "  ", p.island(), ": ",
                      Fixed(p.train_loss(), 4));
    }
    table.Add({absl::StrCat(decision.version()), known(decision.learning_rate()),
               Fixed(decision.norm(), 4), Fixed(decision.clip_scale(), 2), known(decision.rho()),
               known(decision.gain()), known(decision.cosine()), Fixed(decision.staleness(), 1),
               losses});
  }
  if (!table.empty())
    absl::StrAppend(out,
                    "\nhealth of learning (words: docs/glossary.md, and the page's glossary)\n",
                    table.Text());
}

// How the job of a site's parameter servers takes part in the job above.
std::string ExchangeText(const v1::SiteExchange& exchange) {
  std::string text = absl::StrCat("site ", exchange.site(), ": island ", exchange.island(),
                                  " of job ", exchange.job_above());
  if (exchange.base_version() < 0) return text + ", fetches its parameters";
  absl::StrAppend(&text, ", of which version ", exchange.based_at(), " adopted version ",
                  exchange.base_version());
  if (exchange.contributing()) {
    absl::StrAppend(&text, "; version ", exchange.contributed_at(), " is being contributed");
  }
  return text;
}

// Jobs that only members know; empty without any.
template <class Orphans>
std::string OrphansText(const Orphans& orphans) {
  Table table({"orphaned job", "version", "on servers", "on workers", "can it be adopted"});
  for (const v1::Orphan& orphan : orphans) {
    table.Add({orphan.job(), VersionText(orphan.version()), absl::StrJoin(orphan.servers(), ", "),
               absl::StrJoin(orphan.workers(), ", "),
               orphan.missing().empty() ? absl::StrCat("yes: atoll adopt ", orphan.job())
                                        : absl::StrCat("no: ", orphan.missing())});
  }
  return table.empty() ? "" : absl::StrCat("\n", table.Text());
}

// The GPUs of all workers; empty without any.
std::string GpusText(const v1::ClusterStatus& status) {
  Table gpus({"device", "GPU", "UUID", "memory", "computes in", "NCCL"});
  for (const v1::Member& m : status.members()) {
    for (int i = 0; i < m.devices_size(); ++i) {
      const v1::DeviceInfo& device = m.devices(i);
      if (device.uuid().empty()) continue;
      gpus.Add({absl::StrCat(m.name(), "/", i), device.kind(), device.uuid(),
                BytesText(device.memory_bytes()), device.compute(),
                device.nccl().empty() ? "no" : device.nccl()});
    }
  }
  return gpus.empty() ? "" : absl::StrCat("\n", gpus.Text());
}

// Where workers stand, and how that is known; empty without any site.
std::string SitesText(const v1::ClusterStatus& status) {
  Table sites({"member", "site", "how"});
  for (const v1::Member& m : status.members()) {
    if (m.site().empty()) continue;
    sites.Add({m.name(), m.site(),
               absl::StrCat(m.site_source(), m.site_only() ? ", serves its site alone" : "")});
  }
  return sites.empty() ? "" : absl::StrCat("\n", sites.Text());
}

// The first columns of a line; colours take none, and are kept whole.
std::string ClipLine(const std::string& line, size_t columns) {
  std::string out;
  size_t shown = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      const size_t end = std::min(line.find('m', i), line.size() - 1);
      out += line.substr(i, end - i + 1);
      i = end;
    } else if (shown < columns) {
      out += line[i];
      ++shown;
    }
  }
  return out;
}

}  // namespace

std::string StateName(v1::JobState state) {
  if (!v1::JobState_IsValid(state)) return "unknown";  // of a newer coordinator
  return absl::AsciiStrToLower(v1::JobState_Name(state).substr(std::string("JOB_STATE_").size()));
}

std::string StateText(v1::JobState state, const std::string& reason) {
  const std::string name = StateName(state);
  if (reason.empty() || absl::StartsWith(reason, name)) return reason.empty() ? name : reason;
  return absl::StrCat(name, ": ", reason);
}

bool Ended(v1::JobState state) {
  return state == v1::JOB_STATE_DONE || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

std::string Count(double value) {
  if (!(value > 0)) return "0";
  if (value < 1) return absl::StrFormat("%.2g", std::max(value, 1e-4));
  // A number that is rounded up to 1000 is 1 of the next unit.
  const char* const units[] = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(units)) {
    value /= 1e3;
    ++unit;
  }
  return value < 999.5 ? absl::StrFormat("%.3g%s", value, units[unit])
                       : absl::StrFormat("%.0f%s", value, units[unit]);
}

std::string Seconds(double seconds) {
  if (!std::isfinite(seconds) || seconds > 1e9) return "-";
  const auto s = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  if (s < 60) return absl::StrCat(s, " s");
  if (s < 3600) return absl::StrCat(s / 60, " min ", s % 60, " s");
  if (s < 86400) return absl::StrCat(s / 3600, " h ", s % 3600 / 60, " min");
  return absl::StrCat(s / 86400, " d ", s % 86400 / 3600, " h");
}

std::string Fixed(double value, int decimals) {
  if (!std::isfinite(value)) return "-";
  return absl::StrFormat("%.*f", decimals, value);
}

std::string SpeedText(double tokens_per_s) { return tokens_per_s > 0 ? Count(tokens_per_s) : "-"; }

std::string Bar(double done, int width) {
  if (!std::isfinite(done)) done = 0;
  const int filled = static_cast<int>(std::lround(std::clamp(done, 0.0, 1.0) * width));
  return absl::StrCat("[", std::string(filled, '#'), std::string(width - filled, '.'), "]");
}

std::string TokenUnit(const v1::JobSummary& s) {
  return s.token_unit().empty() ? "tokens" : s.token_unit();  // empty: of an older coordinator
}

double ShownLoss(const v1::JobSummary& s) {
  return Ended(s.state()) ? s.final_loss() : s.train_loss();
}

double ShownSpeed(const v1::JobSummary& s) {
  if (s.state() == v1::JOB_STATE_PAUSED) return 0;
  return Ended(s.state()) ? s.mean_tokens_per_s() : s.tokens_per_s();
}

std::string ShortText(const v1::JobSummary& s) {
  return absl::StrCat(StateName(s.state()), ", round ", VersionText(s.version()), ", ",
                      Fixed(100 * Done(s), 1), "%",
                      s.version() < 0 ? ""
                      : s.exported_version() < 0
                          ? ", never exported"
                          : absl::StrCat(", exported at version ", s.exported_version()));
}

std::string JobsTable(const v1::ListReply& reply, int64_t now_ms) {
  std::vector<std::string> header = {"job",  "state",      "age",     "version", "trained", "of",
                                     "loss", "validation", "islands", "speed",   "left",    "why"};
  if (IsWide()) header.emplace_back("exported");
  Table table(header);
  for (const v1::JobSummary& s : reply.jobs()) {
    const double age_s = static_cast<double>(now_ms - s.submitted_unix_ms()) / 1e3;
    std::vector<std::string> row = {
        s.job(),
        StateName(s.state()),
        s.submitted_unix_ms() == 0 ? "-" : Seconds(age_s),
        VersionText(s.version()),
        Count(static_cast<double>(s.tokens_committed())),
        Count(static_cast<double>(s.tokens_budget())),
        Loss(ShownLoss(s)),
        Loss(s.validation_loss()),
        absl::StrCat(s.active_islands()),
        ShownSpeed(s) > 0 ? SpeedText(s) : "-",
        TimeLeft(s),
        Shortened(s.waiting_for().empty() ? GetDisplayReason(s) : s.waiting_for(), s.job())};
    if (IsWide()) row.push_back(VersionText(s.exported_version()));
    table.Add(std::move(row));
  }
  const std::string orphans = OrphansText(reply.orphans());
  if (table.empty() && orphans.empty()) return "no jobs; submit one with: atoll submit job.toml\n";
  return absl::StrCat(
      table.empty() ? "" : table.Text(),
      reply.before() == 0 ? "" : "older jobs have ended: atoll ls --newest N lists more\n",
      orphans);
}

std::string JobText(const v1::Job& job, int decisions) {
  const v1::JobSummary& s = job.summary();
  std::string out = absl::StrCat(s.job(), ": ", WhyState(s), "\n");
  absl::StrAppend(&out, "  version ", VersionText(s.version()), ", ",
                  Count(static_cast<double>(s.tokens_committed())), " of ",
                  Count(static_cast<double>(s.tokens_budget())), " ", TokenUnit(s), " (",
                  Fixed(100 * Done(s), 1), "%)");
  for (const std::string& pace : DescribeSpeed(s)) absl::StrAppend(&out, ", ", pace);
  absl::StrAppend(&out, "\n");
  if (const std::string place = RehearsedText(job); !place.empty()) {
    absl::StrAppend(&out, "  ", place, "\n");
  }
  if (const std::string& from = job.spec().model().initial_job(); !from.empty()) {
    absl::StrAppend(&out, "  begins with the parameters of ", from, "\n");
  }
  absl::StrAppend(&out, "  loss: training ", Loss(ShownLoss(s)), ", validation ",
                  Loss(s.validation_loss()), " at version ", VersionText(s.validated_version()),
                  " (", Loss(s.first_validation_loss()), " at the start)\n");
  if (s.skipped_sequences() > 0) {
    absl::StrAppend(&out, "  skipped: ", s.skipped_sequences(),
                    " sequences, as not finite or unlike the others; atoll logs names them\n");
  }
  if (s.validation_accuracy() > 0) {
    absl::StrAppend(&out, "  accuracy: ", Fixed(100 * s.validation_accuracy(), 2), "%\n");
  }
  for (const v1::ValidationLoss& set : s.validation_sets()) {
    absl::StrAppend(
        &out, "  validation of ", set.name(), ": ", Loss(set.loss()), " at version ",
        VersionText(set.version()),
        set.accuracy() > 0 ? absl::StrCat(", accuracy ", Fixed(100 * set.accuracy(), 2), "%") : "",
        "\n");
  }
  for (const v1::TaskScore& score : s.scores()) {
    absl::StrAppend(&out, "  task ", ScoreText(score), "\n");
  }
  if (!s.owner().empty()) absl::StrAppend(&out, "  submitted by ", s.owner(), "\n");
  const v1::Ledger& ledger = job.ledger();
  absl::StrAppend(&out, "  data: ",
                  CountText(ledger.committed(), TokenUnit(s) == "images" ? "image" : "sequence"),
                  " in the model, ", ledger.pushed(), " pushed, ", ledger.leased(), " leased, ",
                  ledger.free(), " free of ", ledger.budget(), "\n");
  if (!Ended(s.state())) {
    absl::StrAppend(&out, "  round for version ", job.round().next_version(), ": ",
                    job.round().phase(), job.round().reason().empty() ? "" : "; ",
                    job.round().reason(), "\n");
  }
  if (job.shards_size() > 0) {
    absl::StrAppend(&out, "  ", CountText(job.shards_size(), "shard"),
                    "; the fullest server holds ", Fixed(job.placement_max_over_mean(), 2),
                    " times the mean\n");
    for (const absl::string_view server : absl::StrSplit(job.placement(), "; ")) {
      if (!server.empty()) absl::StrAppend(&out, "    ", server, "\n");
    }
  }
  if (job.has_exchange()) absl::StrAppend(&out, "  ", ExchangeText(job.exchange()), "\n");
  if (!job.moves().empty()) absl::StrAppend(&out, "  shards: ", job.moves(), "\n");
  if (!job.round_length().empty()) absl::StrAppend(&out, "  ", job.round_length(), "\n");
  if (!job.grouping().empty()) absl::StrAppend(&out, "  islands: ", job.grouping(), "\n");
  if (!job.evaluator().empty()) absl::StrAppend(&out, "  evaluated by ", job.evaluator(), "\n");
  absl::StrAppend(&out, IslandsText(job));
  AppendDecisions(job, decisions, &out);
  AppendHealth(job, decisions, &out);
  return out;
}

std::string StatusText(const v1::ClusterStatus& status) {
  std::string out =
      absl::StrCat("coordinator: cluster ", status.cluster(), ", epoch ", status.epoch(), ", up ",
                   Seconds(status.up_s()), ", version ", status.software_version(), "\n");
  if (!status.store_age().empty()) absl::StrAppend(&out, "  ", status.store_age(), "\n");
  for (const v1::ForeignMember& m : status.foreign_members()) {
    absl::StrAppend(&out, "  ", m.kind(), " ", m.name(),
                    " refuses this coordinator: it belongs to ", "cluster ", m.cluster(), " (",
                    Fixed(m.since_seen_s(), 1), " s ago); see its log\n");
  }
  out += "\n";
  std::vector<std::string> header = {"kind",  "name",  "state", "last heartbeat",
                                     "holds", "moved", "why"};
  if (IsWide())
    header.insert(header.end(), {"address", "version", "memory", "utilisation", "incarnation"});
  Table members(header, /*keys=*/2);
  for (const v1::Member& m : status.members()) {
    const bool server = m.kind() == "paramserver";
    const v1::ServerHeartbeat& load = m.load();
    std::vector<std::string> row = {
        m.kind(),
        m.name(),
        m.attached() ? "attached" : "unavailable",
        m.attached() ? absl::StrCat(Fixed(m.since_heartbeat_s(), 1), " s ago") : "",
        server ? absl::StrCat(BytesText(load.parameter_bytes()), " + ",
                              BytesText(load.staged_bytes()), " staged")
               : (m.job().empty() ? "idle" : m.job()),
        server ? absl::StrCat(BytesText(load.received_bytes()), " in, ",
                              BytesText(load.sent_bytes()), " out")
               : "",
        m.attached() && !m.measuring().empty() ? m.measuring()
        : m.attached()                         ? m.draining()
                                               : m.reason()};
    if (IsWide()) {
      int64_t memory = m.memory_bytes();
      for (const v1::DeviceInfo& device : m.devices()) memory += device.memory_bytes();
      row.insert(row.end(),
                 {DescribeEndpoint(server ? m.endpoint() : m.peer_endpoint()), m.software_version(),
                  BytesText(memory),
                  m.utilisation() > 0 ? absl::StrCat(Fixed(100 * m.utilisation(), 0), "%") : "-",
                  absl::StrCat(m.incarnation())});
    }
    members.Add(std::move(row));
  }
  absl::StrAppend(&out, members.empty() ? "no members\n" : members.Text(), SitesText(status),
                  GpusText(status));
  if (status.troubles_size() > 0) absl::StrAppend(&out, "\nnot as measured\n");
  for (const std::string& text : status.troubles()) absl::StrAppend(&out, "  ", text, "\n");
  absl::StrAppend(&out, OrphansText(status.orphans()));
  for (const v1::Job& job : status.jobs()) absl::StrAppend(&out, "\n", JobText(job, 3));
  return out;
}

std::string LogText(const v1::LogLine& line) {
  const auto seconds = static_cast<time_t>(line.unix_ms() / 1000);
  tm utc{};
  gmtime_r(&seconds, &utc);
  const size_t severity_width = line.severity().size() < 7 ? 7 - line.severity().size() : 0;
  return absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02d.%03dZ %s %s%s%s\n", utc.tm_year + 1900,
                         utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                         static_cast<int>(line.unix_ms() % 1000),
                         Coloured(line.severity()) + std::string(severity_width, ' '), line.job(),
                         line.job().empty() ? "" : ": ", line.text());
}

std::string ProgressLine(const v1::Job& job) {
  const v1::JobSummary& s = job.summary();
  int64_t steps = 0;
  bool any_progress = false;  // a coordinator that has just started has not
  for (const v1::Island& i : job.islands()) {
    steps += i.progress().inner_step();
    any_progress = any_progress || i.has_progress();
  }
  std::string line = absl::StrCat(s.job(), ": ", StateName(s.state()));
  if (s.version() >= 0) {  // before that nothing is trained
    absl::StrAppend(&line, ", round ", s.version(), ", step ",
                    any_progress ? absl::StrCat(steps) : "-", ", ", Fixed(100 * Done(s), 1),
                    "%, loss ", Loss(ShownLoss(s)), ", validation ", Loss(s.validation_loss()));
    if (!Ended(s.state())) {
      absl::StrAppend(&line, ", ", CountText(s.active_islands(), "island"));
    }
    for (const std::string& pace : DescribeSpeed(s)) absl::StrAppend(&line, ", ", pace);
  }
  return absl::StrCat(line, s.waiting_for().empty() ? "" : "; ", s.waiting_for(), "\n");
}

std::string ProgressLines(const v1::Job& job, int columns) {
  constexpr int kWidestBar = 40, kNarrowestBar = 8;
  const v1::JobSummary& s = job.summary();
  std::string numbers =
      absl::StrCat(Fixed(100 * Done(s), 1), "%  round ", VersionText(s.version()));
  for (const std::string& pace : DescribeSpeed(s)) absl::StrAppend(&numbers, "  ", pace);
  // The numbers say more than the bar, which gets what they leave.
  const int rest = static_cast<int>(s.job().size() + numbers.size()) + 5;
  const int room = columns > 0 ? std::min(columns - rest, kWidestBar) : kWidestBar;
  std::string out =
      absl::StrCat(s.job(), "  ", room < kNarrowestBar ? "" : absl::StrCat(Bar(Done(s), room), " "),
                   numbers, "\n  loss ", Loss(ShownLoss(s)), "  validation ",
                   Loss(s.validation_loss()), "  ", WhyState(s), "\n");
  for (const v1::Island& i : job.islands()) {
    absl::StrAppend(
        &out,
        absl::StrFormat("  island %d %-12s step %6d  loss %-7s %7s %s/s  %s\n", i.island(),
                        i.worker(), i.progress().inner_step(), Loss(i.progress().train_loss()),
                        SpeedText(i.progress().tokens_per_s()), TokenUnit(s), DescribeActivity(i)));
  }
  return out;
}

std::string Clip(const std::string& text, int columns, int rows) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (lines.back().empty()) lines.pop_back();
  if (rows > 0 && static_cast<int>(lines.size()) > rows) lines.resize(rows);
  std::string out;
  for (const std::string& line : lines) {
    absl::StrAppend(&out, columns > 0 ? ClipLine(line, static_cast<size_t>(columns)) : line, "\n");
  }
  return out;
}

}  // namespace atl::cli
