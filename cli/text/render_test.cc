#include "cli/text/render.h"

#include <google/protobuf/util/message_differencer.h>

#include <catch2/catch.hpp>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "cli/text/output.h"
#include "cli/text/testing/running_job.h"
#include "common/proto_json.h"

namespace atl::cli {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST_CASE("columns are as wide as their widest cell and numbers end together") {
  Table table({"job", "tokens"});
  REQUIRE(table.empty());
  table.Add({"a", "7"});
  table.Add({"long-name", "1234567"});
  REQUIRE(table.Text() ==
          "job         tokens\n"
          "a                7\n"
          "long-name  1234567\n");
}

TEST_CASE("numbers are human-readable, and a value that is not a number is a dash") {
  CHECK(Count(0) == "0");
  CHECK(Count(kNan) == "0");
  CHECK(Count(999) == "999");
  CHECK(Count(12'340) == "12.3k");
  CHECK(Count(4.56e6) == "4.56M");
  CHECK(Count(999.7) == "1k");
  CHECK(Count(999'700) == "1M");
  CHECK(Count(2.5e12) == "2.5T");
  CHECK(Count(0.25) == "0.25");
  CHECK(Seconds(45) == "45 s");
  CHECK(Seconds(200) == "3 min 20 s");
  CHECK(Seconds(7500) == "2 h 5 min");
  CHECK(Seconds(100'000) == "1 d 3 h");
  CHECK(Seconds(-3) == "0 s");
  CHECK(Seconds(kNan) == "-");
  CHECK(Fixed(kNan, 3) == "-");
  CHECK(Fixed(1.0 / 3, 3) == "0.333");
  CHECK(Bar(0.5, 10) == "[#####.....]");
  CHECK(Bar(kNan, 4) == "[....]");
  CHECK(Bar(7, 4) == "[####]");
}

TEST_CASE("a state that this program does not know is no crash") {
  CHECK(StateName(v1::JOB_STATE_RUNNING) == "running");
  CHECK(StateName(static_cast<v1::JobState>(99)) == "unknown");
  CHECK_FALSE(Ended(static_cast<v1::JobState>(99)));
}

TEST_CASE("numbers end in one place, sentences begin in one, also those that begin with a number") {
  Table table({"worker", "left", "why"});
  table.Add({"w1", "2 min 30 s", "2 chunks instead of 1"});
  table.Add({"w10", "9 s", "fine"});
  CHECK(table.Text() ==
        "worker        left  why\n"
        "w1      2 min 30 s  2 chunks instead of 1\n"
        "w10            9 s  fine\n");
}

// Sets the terminal's width for a case.
struct Terminal {
  explicit Terminal(int columns) { SetTerminalWidth(columns); }
  ~Terminal() { SetTerminalWidth(0); }
};

TEST_CASE("on_a_narrow_terminal_a_table_is_cut_into_parts_that_begin_with_the_keys") {
  Table table({"kind", "name", "state", "last heartbeat", "why"}, /*keys=*/2);
  table.Add({"worker", "w1", "attached", "0.1 s ago", ""});
  table.Add({"worker", "w2", "unavailable", "", "evicted"});
  const std::string whole = table.Text();
  const Terminal narrow(30);
  CHECK(table.Text() ==
        "kind    name  state\n"
        "worker  w1    attached\n"
        "worker  w2    unavailable\n"
        "\n"
        "kind    name  last heartbeat\n"
        "worker  w1         0.1 s ago\n"
        "\n"
        "kind    name  why\n"
        "worker  w2    evicted\n");
  const Terminal wide(static_cast<int>(whole.find('\n')) + 4);
  CHECK(table.Text() == whole);
}

TEST_CASE("a_last_text_that_does_not_fit_continues_on_further_lines") {
  Table table({"job", "state", "why"});
  table.Add({"lm-1", "running", "waiting for the first island update of a round that takes long"});
  table.Add({"lm-2", "queued", "waiting"});
  const Terminal narrow(50);
  CHECK(table.Text() ==
        "job   state    why\n"
        "lm-1  running  waiting for the first island update\n"
        "               of a round that takes long\n"
        "lm-2  queued   waiting\n");
}

TEST_CASE("no_line_is_wider_than_the_terminal_and_no_cell_is_lost") {
  Table table({"job", "tokens", "of", "loss", "validation", "why"});
  table.Add({"lm-1", "12.3k", "4.56M", "2.5000", "2.7500",
             "\u00e4\u00f6\u00fc and so on, for long enough to wrap"});
  for (int columns = 36; columns < 90; columns += 7) {
    const Terminal narrow(columns);
    const std::string text = table.Text();
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      CAPTURE(columns, std::string(line));
      CHECK(line.size() <= static_cast<size_t>(columns) + 3);  // three letters of two bytes
    }
    for (const char* cell :
         {"lm-1", "12.3k", "4.56M", "2.5000", "2.7500", "\u00e4\u00f6\u00fc", "wrap"}) {
      CHECK_THAT(text, Catch::Contains(cell));
    }
  }
}

TEST_CASE("one line of progress has step, loss, speed and time left") {
  REQUIRE(ProgressLine(RunningJob()) ==
          "lm-1: running, round 3, step 120, 25.0%, loss 2.5000, validation 2.7500, 2 islands, "
          "5k tokens/s, 2 min 30 s left\n");
}

TEST_CASE("a_job_of_images_counts_images") {
  v1::Job job = RunningJob();
  job.mutable_summary()->set_token_unit("images");
  v1::ListReply reply;
  *reply.add_jobs() = job.summary();
  for (const std::string& text :
       {ProgressLine(job), ProgressLines(job), JobText(job, 0), JobsTable(reply, 0)}) {
    CHECK_THAT(text, Catch::Contains("5k images/s") && !Catch::Contains("tokens"));
  }
}

TEST_CASE("progress_of_a_job_that_has_nothing_to_show_yet_is_its_state_and_why") {
  v1::Job job;
  job.mutable_summary()->set_job("lm-1");
  job.mutable_summary()->set_state(v1::JOB_STATE_QUEUED);
  job.mutable_summary()->set_version(-1);
  job.mutable_summary()->set_waiting_for("a worker");
  REQUIRE(ProgressLine(job) == "lm-1: queued; a worker\n");
}

TEST_CASE("on a narrow terminal the bar gives way to the numbers") {
  const v1::Job job = RunningJob();
  const auto first = [&](int columns) {
    const std::string text = ProgressLines(job, columns);
    return text.substr(0, text.find('\n'));
  };
  const std::string widest = first(0);
  CHECK(first(200) == widest);
  const std::string numbers = widest.substr(widest.find(']') + 2);
  for (const int columns : {120, 80, 70, 60}) {
    INFO(columns);
    CHECK(first(columns).find(numbers) != std::string::npos);
    CHECK(first(columns).size() <= static_cast<size_t>(columns));
  }
  CHECK(first(60).find('[') == std::string::npos);
}

TEST_CASE("a loss that has become NaN shows as a dash everywhere") {
  v1::Job job = RunningJob();
  job.mutable_summary()->set_train_loss(kNan);
  job.mutable_summary()->set_tokens_per_s(kNan);
  job.mutable_islands(0)->mutable_progress()->set_train_loss(kNan);
  for (const std::string& text : {ProgressLine(job), ProgressLines(job), JobText(job, 3)}) {
    INFO(text);
    CHECK((text.find("loss -") != text.npos || text.find("training -") != text.npos));
    CHECK(text.find("nan") == std::string::npos);
  }
}

TEST_CASE("JSON reads back as the same message, on many lines or on one") {
  v1::Job job = RunningJob();
  job.mutable_islands(0)->set_activity("waits for \"version 4\"\nor so");
  job.add_decisions()->set_norm(std::numeric_limits<double>::infinity());
  for (const std::string& text : {Document(job), DocumentLine(job)}) {
    v1::Job back;
    REQUIRE(ReadJson(text, &back).ok());
    REQUIRE(google::protobuf::util::MessageDifferencer::Equals(back, job));
  }
  const std::string line = DocumentLine(job);
  REQUIRE(line.find('\n') == line.size() - 1);
  // Fields that are zero are there too, under the names of the .proto files; what is absent is
  // null.
  const auto document = nlohmann::json::parse(line);
  CHECK(document["schema_version"] == kSchemaVersion);
  CHECK(document["placement_max_over_mean"] == 0);
  CHECK(document["exchange"].is_null());
}

TEST_CASE("a document of another schema version is refused by its number") {
  v1::Job job;
  const absl::Status status = ReadJson(R"({"schema_version": 2, "summary": {}})", &job);
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(absl::StrContains(status.message(), "schema_version 2"));
  CHECK_FALSE(ReadJson(R"({"schema_version": 1, "sumary": {}})", &job).ok());
}

TEST_CASE("YAML has the fields of the JSON, and a stream's documents are separated") {
  SetOutputFormat(OutputFormat::kYaml);
  const std::string one = Document(R"({"a": {"b": [1, {"c": "x: #y"}], "d": [], "e": null}})");
  const std::string line = DocumentLine({{"job", "lm-1"}, {"version", 3}});
  SetOutputFormat(OutputFormat::kText);
  CHECK(one ==
        "schema_version: 1\n"
        "a:\n"
        "  b:\n"
        "    - 1\n"
        "    -\n"
        "      c: \"x: #y\"\n"
        "  d: []\n"
        "  e: null\n");
  CHECK(line == "---\nschema_version: 1\njob: \"lm-1\"\nversion: 3\n");
}

TEST_CASE("wide tables have members' addresses and are not shortened") {
  v1::ClusterStatus status;
  v1::Member& member = *status.add_members();
  member.set_kind("worker");
  member.set_peer_endpoint("tcp://10.0.0.7:7200");
  CHECK_FALSE(absl::StrContains(StatusText(status), "10.0.0.7"));
  SetOutputFormat(OutputFormat::kWide);
  const std::string wide = StatusText(status);
  SetOutputFormat(OutputFormat::kText);
  CHECK(absl::StrContains(wide, "tcp://10.0.0.7:7200"));
}

TEST_CASE("a job in full: rejected contributions stand out with their reason") {
  v1::Job job = RunningJob();
  v1::Decision& decision = *job.add_decisions();
  decision.set_version(3);
  v1::Participant& p = *decision.add_participants();
  p.set_island(1);
  p.set_norm(-1);
  p.set_reason("its pseudo-gradient is not finite");
  const std::string text = JobText(job, 10);
  CHECK(text.find("REJECTED  its pseudo-gradient is not finite") != std::string::npos);
  CHECK(text.find("(5.5000 at the start)") != std::string::npos);
  CHECK(JobText(job, 0).find("REJECTED") == std::string::npos);
}

TEST_CASE("the reason of a job's start is dropped once it has trained; obstacles come first") {
  v1::Job job = RunningJob();
  job.mutable_summary()->set_reason("the initial weights are committed");
  job.mutable_round()->set_phase("open");
  CHECK_THAT(JobText(job, 0), Catch::StartsWith("lm-1: running\n"));
  CHECK_THAT(JobText(job, 0), Catch::Contains("round for version 0: open\n"));
  job.mutable_summary()->set_waiting_for("a server");
  CHECK_THAT(JobText(job, 0), Catch::StartsWith("lm-1: running: a server\n"));
  job.mutable_summary()->set_version(0);
  CHECK_THAT(JobText(job, 0),
             Catch::StartsWith("lm-1: running: a server; the initial weights are committed\n"));
  job.mutable_summary()->set_state(v1::JOB_STATE_PAUSED);
  job.mutable_summary()->set_version(5);
  job.mutable_summary()->set_reason("paused by a user");
  job.mutable_summary()->clear_waiting_for();
  CHECK_THAT(JobText(job, 0), Catch::StartsWith("lm-1: paused by a user\n"));
}

TEST_CASE("a long reason does not tear the table of jobs") {
  v1::ListReply reply;
  *reply.add_jobs() = RunningJob().summary();
  reply.mutable_jobs(0)->set_waiting_for(std::string(300, 'x'));
  const std::string text = JobsTable(reply, 0);
  CHECK_THAT(text, Catch::Contains(std::string(100, 'x') + "... (atoll show lm-1)\n"));
  CHECK_THAT(text, !Catch::Contains(std::string(101, 'x')));
}

v1::JobSummary EndedJob() {
  v1::JobSummary s = RunningJob().summary();
  s.set_state(v1::JOB_STATE_DONE);
  s.set_train_loss(0);
  s.set_tokens_per_s(0);
  s.set_final_loss(1.25);
  s.set_mean_tokens_per_s(5000);
  s.set_submitted_unix_ms(1'000);
  s.set_started_unix_ms(10'000);
  s.set_ended_unix_ms(75'000);
  return s;
}

TEST_CASE("an_ended_job_shows_final_loss_duration_and_mean_throughput") {
  v1::Job job;
  *job.mutable_summary() = EndedJob();
  CHECK_THAT(JobText(job, 0), Catch::Contains("ran for 1 min 5 s, mean 5k tokens/s\n") &&
                                  Catch::Contains("loss: training 1.2500"));
  CHECK_THAT(ProgressLine(job), Catch::Contains("loss 1.2500") && Catch::Contains("mean 5k"));
  v1::ListReply reply;
  *reply.add_jobs() = EndedJob();
  CHECK_THAT(JobsTable(reply, 3'601'000), Catch::Contains("done   1 h 0 min"));
}

TEST_CASE("the_duration_of_an_ended_job_does_not_count_its_pauses") {
  v1::Job job;
  *job.mutable_summary() = EndedJob();
  job.mutable_summary()->set_paused_ms(5'000);
  CHECK_THAT(JobText(job, 0), Catch::Contains("ran for 1 min 0 s, paused for 5 s, mean 5k"));
}

// The cells of the line that begins with `first`, of the first table with such a line.
std::vector<std::string> FindRowCells(const std::string& text, const std::string& first) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    std::vector<std::string> cells;
    for (const absl::string_view cell : absl::StrSplit(line, "  ", absl::SkipWhitespace())) {
      cells.emplace_back(absl::StripAsciiWhitespace(cell));
    }
    if (!cells.empty() && cells[0] == first) return cells;
  }
  return {};
}

TEST_CASE("an_ended_job_shows_what_each_island_did") {
  v1::Job job;
  *job.mutable_summary() = EndedJob();
  v1::Island& island = *job.add_islands();
  island.set_worker("w1");
  island.set_pushed_steps(640);
  island.set_pushed_loss(1.5);
  island.set_rounds_accepted(20);
  island.set_rounds_rejected(1);
  island.set_tokens_committed(81'920);
  island.set_evictions(2);
  island.set_reason("the job is done");
  CHECK(FindRowCells(JobText(job, 0), "island") ==
        std::vector<std::string>{"island", "worker", "steps", "loss", "accepted", "rejected",
                                 "tokens", "evicted", "last state"});
  CHECK(FindRowCells(JobText(job, 0), "0") == std::vector<std::string>{"0", "w1", "640", "1.5000",
                                                                       "20", "1", "81.9k", "2",
                                                                       "the job is done"});
}

TEST_CASE("a_paused_job_shows_no_throughput") {
  v1::Job job = RunningJob();
  job.mutable_summary()->set_state(v1::JOB_STATE_PAUSED);
  CHECK(ShownSpeed(job.summary()) == 0);
  CHECK_THAT(JobText(job, 0), !Catch::Contains("tokens/s, "));
  CHECK_THAT(ProgressLine(job), Catch::EndsWith("2 islands\n"));
  CHECK_THAT(ProgressLines(job), !Catch::Contains(" left"));
  const std::vector<std::string> names = FindRowCells(JobText(job, 0), "island");
  const std::vector<std::string> cells = FindRowCells(JobText(job, 0), "0");
  REQUIRE(cells.size() > 5);
  REQUIRE(names.size() > 5);
  CHECK(names[5] == "tokens/s");
  CHECK(cells[5] == "-");
}

TEST_CASE("a_stalled_island_says_so_in_place_of_what_it_does") {
  v1::Job job = RunningJob();
  job.mutable_islands(0)->set_stalled("heartbeats come, but no step for 45 s");
  CHECK_THAT(JobText(job, 0), Catch::Contains("STALLED: heartbeats come, but no step for 45 s"));
}

TEST_CASE("colours_keep_columns_and_are_cut_whole") {
  v1::ListReply reply;
  *reply.add_jobs() = EndedJob();
  const std::string plain = JobsTable(reply, 0);
  SetColour(true);
  const std::string coloured = JobsTable(reply, 0);
  SetColour(false);
  CHECK(coloured.size() == plain.size() + std::string("\x1b[32m\x1b[0m").size());
  CHECK(Clip("ab\x1b[32mcd\x1b[0mef\n", 3, 0) == "ab\x1b[32mc\x1b[0m\n");
}

TEST_CASE("an empty cluster and an empty list of jobs are reported") {
  CHECK(JobsTable({}, 0) == "no jobs; submit one with: atoll submit job.toml\n");
  CHECK(StatusText({}).find("no members\n") != std::string::npos);
}

TEST_CASE("the status of workers with GPUs names each of them") {
  v1::ClusterStatus status;
  v1::Member* worker = status.add_members();
  worker->set_kind("worker");
  worker->set_name("w1");
  worker->add_devices()->set_kind("cpu");
  CHECK(StatusText(status).find("UUID") == std::string::npos);
  v1::DeviceInfo* gpu = worker->add_devices();
  gpu->set_kind("NVIDIA H200 bf16");
  gpu->set_uuid("GPU-0a1b");
  gpu->set_memory_bytes(int64_t{139} << 30);
  gpu->set_compute("bf16");
  const std::string text = StatusText(status);
  CHECK(text.find("w1/1    NVIDIA H200 bf16  GPU-0a1b  139.00 GiB  bf16         no") !=
        std::string::npos);
}

TEST_CASE("the status prints drift") {
  v1::ClusterStatus status;
  CHECK(StatusText(status).find("not as measured") == std::string::npos);
  status.add_troubles("w3 > w4: no connection within 8 s; probed in 40 s");
  CHECK_THAT(StatusText(status),
             Catch::Contains("\nnot as measured\n  w3 > w4: no connection within 8 s; probed in"));
}

TEST_CASE("the status prints what each worker measures") {
  v1::ClusterStatus status;
  v1::Member& member = *status.add_members();
  member.set_kind("worker");
  member.set_name("w1");
  member.set_attached(true);
  member.set_reason("attached");
  CHECK_THAT(StatusText(status), Catch::Contains("idle") && Catch::Contains("  attached "));
  member.set_measuring("measures layers: 7 of at most 21, block, micro-batch 4");
  CHECK_THAT(StatusText(status),
             Catch::Contains("  measures layers: 7 of at most 21, block, micro"));
}

TEST_CASE("a log line has its time in UTC") {
  v1::LogLine line;
  line.set_unix_ms(1'000'000'000'123);
  line.set_severity("warning");
  line.set_job("lm-1");
  line.set_text("w1 is evicted: silent");
  CHECK(LogText(line) == "2001-09-09T01:46:40.123Z warning lm-1: w1 is evicted: silent\n");
}

TEST_CASE("a small terminal sees what fits, without wrapping or scrolling") {
  CHECK(Clip("12345\n12\n1\n", 3, 2) == "123\n12\n");
  CHECK(Clip("12345\n12\n", 0, 0) == "12345\n12\n");
}

TEST_CASE("a job that was rehearsed says where it stands in the predicted interval") {
  v1::Job job;
  CHECK(RehearsedText(job).empty());
  v1::RehearsedSpec& rehearsed = *job.mutable_spec()->mutable_rehearsed();
  rehearsed.set_runs(20);
  rehearsed.mutable_tokens_per_s()->set_low(90);
  rehearsed.mutable_tokens_per_s()->set_high(110);
  rehearsed.mutable_finish_s()->set_low(1000);
  rehearsed.mutable_finish_s()->set_high(1200);
  v1::JobSummary& s = *job.mutable_summary();
  s.set_state(v1::JOB_STATE_RUNNING);
  s.set_tokens_budget(110'000);
  CHECK_THAT(RehearsedText(job), !Catch::Contains("now"));
  // 100 s until it started, and 900 s since: 100 tokens/s of both.
  s.set_submitted_unix_ms(1'000'000);
  s.set_started_unix_ms(1'100'000);
  s.set_tokens_committed(100'000);
  s.set_mean_tokens_per_s(100'000 / 900.0);
  CHECK_THAT(RehearsedText(job),
             Catch::Contains("now 100 (inside)") && Catch::Contains("rate 18 min 20 s (inside)"));
  s.set_mean_tokens_per_s(100'000 / 1900.0);
  CHECK_THAT(RehearsedText(job), Catch::Contains("now 50 (below)") && Catch::Contains("(above)"));
  s.set_state(v1::JOB_STATE_DONE);
  s.set_ended_unix_ms(2'000'000);
  s.set_paused_ms(100'000);
  CHECK_THAT(RehearsedText(job), Catch::Contains("was 15 min 0 s (below)"));
}

}  // namespace
}  // namespace atl::cli
