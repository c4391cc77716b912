#include "cli/job_file.h"

#include <google/protobuf/descriptor.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/protocol/wire.h"
#include "common/toml_text.h"
#include "proto/job.pb.h"

namespace atl::cli {
namespace {

using Catch::Matchers::Contains;

constexpr char kGood[] = R"(name = "tiny"

[model]
family = "llama"
hidden = 64
layers = 2
heads = 4

[data]
path = "corpus.txt"

[outer]
momentum = 0.5
overlap = "carry"

[schedule]
train_tokens = 1_000_000
)";

std::string With(const std::string& what, const std::string& instead) {
  std::string text = kGood;
  const size_t at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), instead);
}

std::string Complaint(const std::string& text) {
  return std::string(ParseJob(text, "/jobs/job.toml").status().message());
}

TEST_CASE("a job file gives a specification, with defaults for what it leaves out") {
  const auto spec = ParseJob(kGood, "/jobs/job.toml");
  REQUIRE(spec.status().message() == "");
  REQUIRE(spec->name == "tiny");
  REQUIRE(spec->model.hidden == 64);
  REQUIRE(spec->outer.momentum == 0.5);
  REQUIRE(spec->outer.overlap == Overlap::kCarry);
  REQUIRE(spec->outer.steps_per_round == JobSpec().outer.steps_per_round);
  REQUIRE(spec->schedule.train_tokens == 1000000);
}

TEST_CASE("muons_momentum_is_its_papers_unless_it_is_given") {
  const auto inner = [](const std::string& fields) {
    const auto spec =
        ParseJob(With("[outer]", "[inner]\n" + fields + "\n[outer]"), "/jobs/job.toml");
    REQUIRE(spec.status().message() == "");
    return spec->inner;
  };
  CHECK(inner("optimizer = \"muon\"").momentum == 0.95);
  CHECK(inner("optimizer = \"muon\"\nmomentum = 0.8").momentum == 0.8);
  CHECK(inner("optimizer = \"sgd\"").momentum == 0.9);
}

TEST_CASE("fields_that_the_optimizer_does_not_use_are_refused_by_name") {
  const auto complaint = [](const std::string& fields) {
    return Complaint(With("[outer]", "[inner]\n" + fields + "\n[outer]"));
  };
  CHECK_THAT(complaint("optimizer = \"sgd\"\nbeta1 = 0.8"),
             Contains("inner.beta1 = 0.8: the optimizer sgd does not use it; leave it out"));
  CHECK_THAT(complaint("momentum = 0.5"),
             Contains("inner.momentum = 0.5: the optimizer adamw does not use it"));
  CHECK_THAT(complaint("optimizer = \"rmsprop\"\nbeta1 = 0.8"), Contains("inner.beta1"));
  // The example of a job file has every field, with its default.
  for (const char* fields : {"optimizer = \"sgd\"\nbeta1 = 0.9", "momentum = 0.9",
                             "beta1 = 0.8\nbeta2 = 0.9\nepsilon = 1e-6",
                             "optimizer = \"rmsprop\"\nbeta2 = 0.9\nmomentum = 0.5",
                             "optimizer = \"muon\"\nbeta1 = 0.9\nmomentum = 0.5"}) {
    CHECK(complaint(fields) == "");
  }
}

TEST_CASE("outer_momentum_is_refused_where_the_named_optimizer_has_none") {
  const auto outer = [](const std::string& fields) {
    return Complaint(With("momentum = 0.5", fields));
  };
  CHECK_THAT(outer("optimizer = \"sgd\"\nmomentum = 0.5"),
             Contains("outer.momentum = 0.5: the optimizer sgd does not use it"));
  CHECK(outer("optimizer = \"sgd\"\nmomentum = 0.0") == "");
  CHECK(outer("optimizer = \"nesterov\"\nmomentum = 0.5") == "");
}

TEST_CASE("a branch has the settings of its origin but for those that are set") {
  auto origin = ParseJob(With("momentum = 0.5", "momentum = 0.5\nmin_islands = 3"), "/jobs/a.toml");
  REQUIRE(origin.ok());
  v1::JobSpec wire;
  REQUIRE(Encode(*origin, &wire).ok());
  const auto branch = BranchJob(wire, "tiny-7@12",
                                {"inner.schedule=wsd", "inner.decay_fraction=1",
                                 "inner.warmup_fraction=0", "schedule.train_tokens=5000"});
  REQUIRE(branch.status().ToString() == "OK");
  JobSpec expected = *origin;
  expected.model.initial_job = "tiny-7@12";
  expected.inner.schedule = RateSchedule::kWsd;
  expected.inner.decay_fraction = 1;
  expected.inner.warmup_fraction = 0;
  expected.schedule.train_tokens = 5000;
  CHECK(*branch == expected);
  CHECK_FALSE(BranchJob(wire, "tiny-7@x", {}).ok());
  // Fields of its optimizer alone are left out with that, unless they are set.
  wire.mutable_inner()->set_beta1(0.8);
  const auto sgd = BranchJob(wire, "tiny-7", {"inner.optimizer=sgd", "outer.optimizer=sgd"});
  REQUIRE(sgd.status().ToString() == "OK");
  CHECK(sgd->inner.beta1 == InnerSpec().beta1);
  CHECK(sgd->outer.momentum == 0);
  CHECK(BranchJob(wire, "tiny-7", {})->inner.beta1 == 0.8);
  CHECK_FALSE(BranchJob(wire, "tiny-7", {"inner.optimizer=sgd", "inner.beta1=0.7"}).ok());
  // The other job's parameters take the place of the weights that it began with.
  wire.mutable_model()->set_initial_weights_path("/models/base");
  wire.mutable_model()->clear_hidden();
  wire.mutable_model()->clear_layers();
  wire.mutable_model()->clear_heads();
  const auto tuned = BranchJob(wire, "tiny-7", {});
  REQUIRE(tuned.status().ToString() == "OK");
  CHECK(tuned->model.initial_weights_path.empty());
  CHECK(tuned->model.config_path == "/models/base/config.json");
  CHECK_FALSE(BranchJob(wire, "tiny-7", {"model.initial_weights_path=\"/models/other\""}).ok());
  CHECK_FALSE(BranchJob(wire, "tiny-7", {"inner.decay_fractoin=1"}).ok());
}

TEST_CASE("evaluations name files below the job file and are checked") {
  const std::string tasks =
      "\n[[evaluation]]\nname = \"arc\"\npath = \"arc.jsonl\"\nkind = \"exact\"\nlimit = 9\n";
  const auto job = ParseJob(kGood + tasks, "/jobs/a.toml");
  REQUIRE(job.status().ToString() == "OK");
  REQUIRE(job->evaluation.size() == 1);
  CHECK(job->evaluation[0] == EvaluationSpec{"arc", "/jobs/arc.jsonl", TaskKind::kExact, 16, 9});
  CHECK_FALSE(ParseJob(kGood + tasks + tasks, "/jobs/a.toml").ok());  // one name
  CHECK_FALSE(ParseJob(kGood + tasks + "every_rounds = -1\n", "/jobs/a.toml").ok());
}

TEST_CASE("relative paths are taken from the job file's folder") {
  REQUIRE(ParseJob(kGood, "/jobs/job.toml")->data.path == "/jobs/corpus.txt");
  REQUIRE(ParseJob(With("corpus.txt", "../text"), "/jobs/job.toml")->data.path == "/text");
  REQUIRE(ParseJob(With("corpus.txt", "/data/text"), "/jobs/job.toml")->data.path == "/data/text");
}

TEST_CASE("a misspelt key is named with its line and the nearest key") {
  REQUIRE(Complaint(With("momentum", "momentm")) ==
          "/jobs/job.toml:13: outer.momentm: there is no such field; did you mean momentum?");
  REQUIRE(Complaint(With("[schedule]", "[shedule]"))
              .find("/jobs/job.toml:16: shedule: there is no such field; did you mean schedule?") ==
          0);
}

TEST_CASE("a choice that does not exist names the nearest") {
  REQUIRE(Complaint(With("\"carry\"", "\"cary\"")) ==
          "/jobs/job.toml:14: outer.overlap: \"cary\" is not a choice; did you mean carry?");
}

TEST_CASE("the error for a wrong type names the expected one") {
  REQUIRE(Complaint(With("hidden = 64", "hidden = \"64\"")) ==
          "/jobs/job.toml:5: model.hidden: must be a whole number, such as 4096 or 4_096");
  REQUIRE(Complaint(With("momentum = 0.5", "momentum = true")) ==
          "/jobs/job.toml:13: outer.momentum: must be a number, not boolean");
}

TEST_CASE("a value out of range is named with its line, value and limit") {
  REQUIRE(Complaint(With("momentum = 0.5", "momentum = 2")) ==
          "/jobs/job.toml:13: outer.momentum = 2: must be at least 0 and below 1");
}

TEST_CASE("rounds_of_a_sites_servers_are_a_section_and_what_the_coordinator_sets_is_refused") {
  const auto spec =
      ParseJob(With("[schedule]", "[outer.site]\nrounds = 4\n[schedule]"), "/job.toml");
  REQUIRE(spec.status().message() == "");
  CHECK(spec->outer.site == SiteServersSpec{.rounds = 4});
  CHECK(Complaint(With("momentum = 0.5", "contributes_to = \"job-1\"")) ==
        "/jobs/job.toml:13: outer.contributes_to = \"job-1\": must be left out: the coordinator "
        "sets it "
        "in jobs of a site's servers");
}

TEST_CASE("a_line_end_in_a_setting_sets_no_second_key") {
  for (const char* setting :
       {"outer.momentum=0.5\nschedule.train_tokens=5", "name=a\nb", "a\rb=1"}) {
    const auto spec = ParseJob(kGood, "job.toml", {setting});
    CHECK(absl::IsInvalidArgument(spec.status()));
    CHECK_THAT(std::string(spec.status().message()), Contains("control character"));
    CHECK(spec.status().message().find('\n') == absl::string_view::npos);
  }
}

TEST_CASE("a_setting_that_is_wrong_is_named_in_place_of_the_files_line") {
  const auto complaint = [](const std::string& setting) {
    return std::string(ParseJob(kGood, "/jobs/job.toml", {setting}).status().message());
  };
  CHECK(complaint("outer.momentum=0.25").empty());
  CHECK(complaint("outer.overlap=carry").empty());
  CHECK(complaint("outer.momentum=2") ==
        "--set outer.momentum=2: outer.momentum = 2: must be at least 0 and below 1");
  CHECK(complaint("outer.momentum=much") ==
        "--set outer.momentum=much: outer.momentum: must be a number, not string");
  CHECK(complaint("outer.momentm=1") ==
        "--set outer.momentm=1: outer.momentm: there is no such field; did you mean momentum?");
  CHECK(complaint("outer.momentum") ==
        "--set outer.momentum: write KEY=VALUE, such as outer.momentum=0.9");
}

TEST_CASE("a layout has recomputed blocks and each device's part of a layer") {
  const auto with = [](const std::string& line) {
    return std::string(kGood) + "\n[layout]\ntensor_parallel = 2\n" + line + "\n";
  };
  const auto spec =
      ParseJob(with("recompute = \"none\"\ntensor_split_ratios = [3, 1]"), "/jobs/job.toml");
  REQUIRE(spec.status().message() == "");
  CHECK(spec->layout.recompute == Recompute::kNone);
  CHECK(spec->layout.tensor_split_ratios == std::vector<int64_t>{3, 1});
  CHECK(Complaint(with("recompute = true")) ==
        "/jobs/job.toml:21: layout.recompute: must be one of \"auto\", \"none\", \"all\"");
  CHECK(Complaint(with("tensor_split_ratios = 2")) ==
        "/jobs/job.toml:21: layout.tensor_split_ratios: must be a list of whole numbers, such as "
        "[2, 1]");
  CHECK(Complaint(with("tensor_split_ratios = [2, \"1\"]")) ==
        "/jobs/job.toml:21: layout.tensor_split_ratios: must be a list of whole numbers, such as "
        "[2, 1]");
  CHECK(Complaint(with("tensor_split_ratios = [2, 1]"))
            .find("/jobs/job.toml:21: layout.tensor_split_ratios = [2, 1]: the model's 4 key-value "
                  "heads "
                  "cannot be cut so") == 0);
}

TEST_CASE("a_layout_lists_names_that_take_no_part_and_limits_of_links") {
  const auto with = [](const std::string& line) {
    return std::string(kGood) + "\n[layout]\n" + line + "\n";
  };
  const auto spec = ParseJob(
      with("exclude = [\"w3\", \"w4/1\"]\nsites = [\"paris\", \"rome\"]\nmemory_reserve_bytes = 5\n"
           "link_limits = [{ from = \"paris\", to = \"rome\", bytes_per_day = 1e11 }]"),
      "/jobs/job.toml");
  REQUIRE(spec.status().message() == "");
  CHECK(spec->layout.exclude == std::vector<std::string>{"w3", "w4/1"});
  CHECK(spec->layout.sites == std::vector<std::string>{"paris", "rome"});
  CHECK(spec->layout.memory_reserve_bytes == 5);
  CHECK(spec->layout.link_limits == std::vector<LinkLimit>{{"paris", "rome", 1e11}});
  const auto empty = ParseJob(with("exclude = []\nsites = []\nlink_limits = []"), "/jobs/job.toml");
  REQUIRE(empty.status().message() == "");
  CHECK(empty->layout == ParseJob(kGood, "/jobs/job.toml")->layout);
  const auto bare = ParseJob(with("sites = \"paris\""), "/jobs/job.toml");
  REQUIRE(bare.status().message() == "");
  CHECK(bare->layout.sites == std::vector<std::string>{"paris"});
  for (const char* wrong : {"sites = 3", "sites = [3]", "sites = [\"paris\", 3]"}) {
    CHECK(Complaint(with(wrong)) ==
          "/jobs/job.toml:20: layout.sites: must be a list of texts, such as [\"a\", \"b\"]");
  }
  CHECK(
      Complaint(with("exclude = [\"w\", \"w\"]")).find("/jobs/job.toml:20: layout.exclude names") ==
      0);
}

TEST_CASE(
    "validation sets, sources and sites are lists of tables, their paths beside the job file") {
  const auto with = [](const std::string& data) {
    return ParseJob(With("[data]\npath = \"corpus.txt\"\n", data), "/jobs/job.toml");
  };
  const auto mixture = with(R"(
[[data.validation]]
name = "law"
path = "law.txt"
[[data.sources]]
path = "a.txt"
weight = 3
[[data.sources]]
path = "s3://bucket/b.txt"
)");
  REQUIRE(mixture.status().message() == "");
  CHECK(mixture->data.validation == std::vector<ValidationSet>{{"law", "/jobs/law.txt"}});
  CHECK(mixture->data.sources ==
        std::vector<DataSource>{{"/jobs/a.txt", 3}, {"s3://bucket/b.txt", 1}});
  const auto sites = with(R"(
[[data.sites]]
site = "oslo"
path = "/data/a.txt"
[[data.sites]]
site = "rome"
path = "b.txt"
validation_path = "v.txt"
)");
  REQUIRE(sites.status().message() == "");
  CHECK(sites->data.sites ==
        std::vector<SiteData>{{"oslo", "/data/a.txt", ""}, {"rome", "/jobs/b.txt", "/jobs/v.txt"}});
  const std::string site = "[[data.sites]]\nsite = \"oslo\"\npath = \"a\"\n";
  const std::string source = "[[data.sources]]\npath = \"a\"\n";
  const std::string set = "[[data.validation]]\nname = \"oslo\"\npath = \"a\"\n";
  for (const std::string& wrong :
       {"[data]\npath = \"a\"\n" + source, "[data]\npath = \"a\"\n" + site, site + source,
        site + site, set + site, set + set + source, source + "weight = 0\n",
        source + "[layout]\nisland = \"al\"\n", site + "[layout]\nisland = \"all\"\n",
        "[data]\nvalidation_path = \"v\"\n" + site, std::string("[data]\nfield = \"x\"\n"),
        "[[data.validation]]\nname = \"Law\"\npath = \"a\"\n" + source}) {
    INFO(wrong);
    CHECK_FALSE(with(wrong).ok());
  }
}

TEST_CASE("the error for text that is not TOML has its place") {
  REQUIRE(Complaint("name = \"x\"\n[model\n").find("/jobs/job.toml:2: not TOML: ") == 0);
  // A character of Latin or Cyrillic where white space may stand.
  for (const char* letter : {"\xc3\x99", "\xd0\x96"}) {
    const std::string text = std::string("name = \"x\"\nname ") + letter + " = 1\n";
    REQUIRE(Complaint(text).find("/jobs/job.toml:2: not TOML: ") == 0);
  }
}

TEST_CASE("a missing file is an error with its name") {
  REQUIRE(ReadJobFile("/nonexistent/job.toml").status().message() ==
          "/nonexistent/job.toml: cannot open: No such file or directory");
}

TEST_CASE("a plan's file is read beside the job's, and without what follows from the rest") {
  char path[] = "/tmp/atoll-job-XXXXXX";
  REQUIRE(mkdtemp(path) != nullptr);
  const std::string plan = std::string(path) + "/plan.json";
  const auto parse = [&](const std::string& layout) {
    return ParseJob(std::string(kGood) + "[layout]\n" + layout, std::string(path) + "/job.toml");
  };
  CHECK(absl::IsNotFound(parse("plan = \"plan.json\"").status()));
  std::ofstream(plan) << R"({"islands": [{"replicas": [{"stages": [{"layers": 3}]}],
                             "step_ns": "5"}], "reason": "why"})";
  const auto spec = parse("plan = \"plan.json\"");
  INFO(spec.status());
  REQUIRE(spec.ok());
  CHECK(spec->layout.plan == R"({"islands":[{"replicas":[{"stages":[{"layers":3}]}]}]})");
  CHECK(absl::IsInvalidArgument(parse("plan = \"plan.json\"\nstages = 2").status()));
  std::ofstream(plan) << "no plan";
  CHECK(absl::IsInvalidArgument(parse("plan = \"plan.json\"").status()));
  std::filesystem::remove_all(path);
}

std::string Read(const std::string& path) {
  std::ifstream file(path);
  INFO(path);
  REQUIRE(file);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The keys of a section that `text` has at the beginning of lines.
template <class Section>
void CheckNames(const std::string& text, const std::string& before, const std::string& after) {
  const auto& type = *Section::descriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    INFO(type.field(i)->full_name());
    if (type.field(i)->name() == "contributes_to") continue;          // the coordinator sets it
    if (type.field(i)->name() == "site" && before == "\n") continue;  // a section of its own
    CHECK(text.find(before + type.field(i)->name() + after) != std::string::npos);
  }
}

template <class... Sections>
void CheckAllNames(const std::string& text, const std::string& before, const std::string& after) {
  (CheckNames<Sections>(text, before, after), ...);
}

TEST_CASE("the example has every key and, but for the required ones, the defaults") {
  const std::string text = Read("deploy/jobs/example.toml");
  CheckAllNames<v1::ModelSpec, v1::DataSpec, v1::InnerSpec, v1::OuterSpec, v1::SiteServersSpec,
                v1::ScheduleSpec, v1::LayoutSpec, v1::CheckpointSpec>(text, "\n", " = ");
  const auto spec = ReadJobFile("deploy/jobs/example.toml");
  REQUIRE(spec.status().message() == "");
  JobSpec defaults;
  defaults.name = spec->name;
  defaults.model.hidden = spec->model.hidden;
  defaults.model.layers = spec->model.layers;
  defaults.model.heads = spec->model.heads;
  defaults.data.path = spec->data.path;
  defaults.schedule.train_tokens = spec->schedule.train_tokens;
  defaults.outer.push_encoding = defaults.outer.pull_encoding = Encoding::kInt4;
  CHECK(*spec == defaults);
}

TEST_CASE("documents_of_lines_are_packed_unless_a_job_says_otherwise") {
  const auto documents = [](const std::string& data,
                            const std::vector<std::string>& settings = {}) {
    const auto spec = ParseJob(With("path = \"corpus.txt\"", "path = \"d\"\n" + data),
                               "/jobs/job.toml", settings);
    INFO(spec.status().message());
    REQUIRE(spec.ok());
    return spec->data.documents;
  };
  CHECK(documents("") == Documents::kText);
  CHECK(documents("format = \"shards\"") == Documents::kText);
  CHECK(documents("format = \"shards\"\ndocuments = \"mask\"") == Documents::kMask);
  CHECK(documents("format = \"jsonl\"") == Documents::kMask);
  CHECK(documents("format = \"chat\"") == Documents::kMask);
  CHECK(documents("format = \"chat\"\ndocuments = \"continue\"") == Documents::kContinue);
  CHECK(documents("format = \"jsonl\"\ndocuments = \"text\"") == Documents::kText);
  CHECK(documents("format = \"jsonl\"", {"data.documents=\"text\""}) == Documents::kText);
}

TEST_CASE("settings_as_toml_are_read_as_the_same_job") {
  const std::string lists = With("path = \"corpus.txt\"", "path = \"a \\\"b\\\\c\"") +
                            "[[data.validation]]\nname = \"law\"\npath = "
                            "\"law.txt\"\n[layout]\nsites = [\"paris\", \"rome\"]\n"
                            "[inner]\nlearning_rate = 3.14159265358979e-5\n";
  for (const std::string& text : {Read("deploy/jobs/example.toml"), lists}) {
    const auto spec = ParseJob(text, "/jobs/job.toml");
    REQUIRE(spec.status().message() == "");
    v1::JobSpec wire;
    REQUIRE(Encode(*spec, &wire).ok());
    INFO(TomlText(wire));
    const auto again = ParseJob(TomlText(wire), "/jobs/job.toml");
    REQUIRE(again.status().message() == "");
    CHECK(*again == *spec);
  }
}

TEST_CASE("the reference of the job file has every key") {
  CheckAllNames<v1::ModelSpec, v1::DataSpec, v1::InnerSpec, v1::OuterSpec, v1::SiteServersSpec,
                v1::ScheduleSpec, v1::LayoutSpec, v1::CheckpointSpec, v1::EvaluationSpec>(
      Read("docs/reference/job-file.md"), "`", "`");
}

}  // namespace
}  // namespace atl::cli
