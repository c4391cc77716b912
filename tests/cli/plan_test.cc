// `atoll plan` and `atoll simulate` as a person uses them, mistakes included.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/cli/command.h"

namespace atl {
namespace {

constexpr char kTwoSites[] = R"(
[[devices]]
id = "p0"
type = "a100-80"
node = "n0"
site = "paris"
[[devices]]
id = "p1"
type = "a100-80"
node = "n0"
site = "paris"
[[devices]]
id = "o0"
type = "h20"
node = "n1"
site = "oslo"
[[devices]]
id = "o1"
type = "h20"
node = "n1"
site = "oslo"
[[links]]
from = "paris"
to = "oslo"
edges = [{ latency_ns = 10_000_000, bandwidth_bytes_per_s = 1.25e9 }]
[[links]]
from = "oslo"
to = "paris"
edges = [{ latency_ns = 10_000_000, bandwidth_bytes_per_s = 1.25e9 }]
)";

struct Outcome {
  int code = -1;
  std::string out, errors;
};

class CliFixture {
 public:
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name)) << text;
    return Path(name);
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(Path(name));
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  // A command on a model of the catalogue and the cluster above.
  Outcome Run(const std::string& what, std::vector<std::string> flags,
              const std::string& cluster = kTwoSites) const {
    flags.insert(flags.begin(), {"cli/atoll", what, "--cluster", Write("cluster.toml", cluster)});
    Command command(flags, folder_);
    const int code = command.Wait();
    return {code, command.rest(), command.errors()};
  }

 private:
  const std::string folder_ = FreshFolder();
};

const std::vector<std::string> kSmall = {"--model", "gpt2", "--batch", "16"};

std::vector<std::string> With(std::vector<std::string> flags, std::vector<std::string> more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

TEST_CASE("a plan is shown with its reason, the alternatives, and the choice of islands") {
  const CliFixture fixture;
  const Outcome plan = fixture.Run(
      "plan", With(kSmall, {"--trace", fixture.Path("t.json"), "--svg", fixture.Path("s.svg")}));
  INFO(plan.errors);
  REQUIRE(plan.code == 0);
  CHECK_THAT(plan.out, Catch::Contains("alternatives:") && Catch::Contains("schedule: ") &&
                           Catch::Contains("more samples for each doubling of the islands"));
  CHECK(nlohmann::json::parse(fixture.Read("t.json"))["traceEvents"].size() > 10);
  CHECK_THAT(fixture.Read("s.svg"), Catch::EndsWith("</svg>\n"));
}

const std::string kJob = R"(name = "tiny"
[model]
hidden = 64
layers = 4
heads = 4
[data]
path = "text.txt"
[schedule]
train_tokens = 1000
)";

TEST_CASE("a_job_has_the_islands_and_rounds_that_its_file_says") {
  const CliFixture fixture;
  std::string cluster = kTwoSites;
  for (size_t at = 0; (at = cluster.find("1.25e9", at)) != std::string::npos;) {
    cluster.replace(at, 6, "1.25e4");  // an exchange takes longer than its steps
  }
  const auto plan = [&](const std::string& more, const std::vector<std::string>& flags = {}) {
    Command command(With({"cli/atoll", "--json", "plan", "--cluster",
                          fixture.Write("c.toml", cluster), fixture.Write("job.toml", kJob + more)},
                         flags),
                    fixture.Path(""));
    REQUIRE(command.Wait() == 0);
    return nlohmann::json::parse(command.rest());
  };
  const std::string site = "[layout]\nisland = \"site\"\n";
  const auto full = plan(site);
  REQUIRE(full["islands"].size() == 2);
  CHECK(full["islands"][0]["steps_per_round"] != "64");  // as the slow link allows
  const auto given = plan("[outer]\nsteps_per_round = 64\n" + site);
  CHECK(given["islands"][0]["steps_per_round"] == "64");
  CHECK(plan("[layout]\nisland = \"all\"\n")["islands"].size() == 1);
  CHECK(plan(site, {"--islands", "one"})["islands"].size() == 1);
}

TEST_CASE("a_plan_that_misses_its_deadline_is_shown_with_what_it_needs") {
  const CliFixture fixture;
  const Outcome plan =
      fixture.Run("plan", {fixture.Write("late.toml", kJob + "[layout]\ndeadline_hours = 1e-9\n")});
  CHECK(plan.code == 1);
  CHECK_THAT(plan.out, Catch::StartsWith("run: "));
  CHECK_THAT(plan.errors, Catch::Contains("layout.deadline_hours") && Catch::Contains("needs"));
}

TEST_CASE("islands_that_are_alike_share_a_table_and_a_run_of_many_devices_stays_short") {
  const CliFixture fixture;
  std::string cluster;
  for (const char* site : {"a", "b", "c", "d"}) {
    for (int d = 0; d < 64; ++d) {
      cluster += std::string("[[devices]]\nid = \"") + site + std::to_string(d) +
                 "\"\ntype = \"a100-80\"\nnode = \"" + site + "n" + std::to_string(d / 8) +
                 "\"\nsite = \"" + site + "\"\n";
    }
    for (const char* other : {"a", "b", "c", "d"}) {
      cluster += std::string("[[links]]\nfrom = \"") + site + "\"\nto = \"" + other +
                 "\"\nedges = [{latency_ns = 10_000_000, bandwidth_bytes_per_s = 1e9}]\n";
    }
  }
  const Outcome plan = fixture.Run("plan", With(kSmall, {"--islands", "per-site"}), cluster);
  INFO(plan.errors << plan.out);
  REQUIRE(plan.code == 0);
  CHECK_THAT(plan.out, Catch::Contains("4 islands, at a, b, c, d: "));
  CHECK(std::count(plan.out.begin(), plan.out.end(), '\n') <= 40);
}

TEST_CASE("a plan satisfies what a job's [layout] fixes, as its islands do") {
  const CliFixture fixture;
  const std::string& job = kJob;
  const Outcome free = fixture.Run("plan", {fixture.Write("free.toml", job)});
  INFO(free.errors);
  CHECK(free.code == 0);
  Command held({"cli/atoll", "--json", "plan", "--cluster", fixture.Write("c.toml", kTwoSites),
                fixture.Write("held.toml", job + "[layout]\nstages = 3\nreplicas = 1\n"),
                "--islands", "one"},
               fixture.Path(""));
  REQUIRE(held.Wait() == 0);
  const auto plan = nlohmann::json::parse(held.rest());
  REQUIRE(plan["islands"][0]["replicas"].size() == 1);
  CHECK(plan["islands"][0]["replicas"][0]["stages"].size() == 3);
  const Outcome many =
      fixture.Run("plan", {fixture.Write("many.toml", job + "[layout]\nstages = 5\n")});
  CHECK(many.code == 1);
  CHECK_THAT(many.errors, Catch::Contains("layout.stages = 5 takes 5 devices"));
}

TEST_CASE("JSON holds the whole plan; per-site islands are the user's to request") {
  const CliFixture fixture;
  Command json({"cli/atoll", "--json", "plan", "--cluster", fixture.Write("c.toml", kTwoSites),
                "--model", "gpt2", "--batch", "16", "--islands", "per-site"},
               fixture.Path(""));
  REQUIRE(json.Wait() == 0);
  const auto plan = nlohmann::json::parse(json.rest());
  CHECK(plan["islands"].size() == 2);
  std::set<std::string> devices;
  for (const auto& island : plan["islands"]) {
    CHECK(std::stoi(island["steps_per_round"].get<std::string>()) >= 2);
    for (const auto& program : island["programs"]) devices.insert(program["device"]);
  }
  CHECK(devices.size() == 4);
}

// A pipeline over all four devices, as a plan.
const char* const kPipeline = R"({"islands": [{"replicas": [{
  "micro_batch_sequences": 1, "micro_batches": 16, "stages": [
    {"first_layer": 0, "layers": 4, "devices": ["p0"]},
    {"first_layer": 4, "layers": 4, "devices": ["p1"]},
    {"first_layer": 8, "layers": 3, "devices": ["o0"]},
    {"first_layer": 11, "layers": 3, "devices": ["o1"]}]}]}]})";

TEST_CASE("any layout plays under any schedule that it can take") {
  const CliFixture fixture;
  const std::string layout = fixture.Write("pipeline.json", kPipeline);
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "zb-v", "interleaved", "compact-zb"}) {
    const Outcome played =
        fixture.Run("simulate", With(kSmall, {"--layout", layout, "--schedule", schedule}));
    INFO(schedule << ": " << played.errors);
    CHECK(played.code == 0);
    CHECK_THAT(played.out, Catch::Contains(std::string("schedule ") + schedule));
  }
  CHECK(fixture.Run("simulate", With(kSmall, {"--layout", layout})).code == 0);
}

TEST_CASE("a layout that cannot be is refused by what is wrong with it") {
  const CliFixture fixture;
  const auto refused = [&](const std::string& from, const std::string& to, const char* says) {
    std::string text = kPipeline;
    text.replace(text.find(from), from.size(), to);
    const Outcome outcome =
        fixture.Run("simulate", With(kSmall, {"--layout", fixture.Write("bad.json", text)}));
    CHECK(outcome.code == 1);
    CHECK_THAT(outcome.errors, Catch::Contains("bad.json: ") && Catch::Contains(says));
  };
  refused("{\"islands\"", "{\"isles\"", "isles");
  refused("\"first_layer\": 8", "\"first_layer\": 9", "one after the other");
  refused("\"layers\": 3, \"devices\": [\"o1\"]", "\"layers\": 2, \"devices\": [\"o1\"]",
          "end with layer 12 of 14");
  refused("\"o1\"", "\"x1\"", "\"x1\" is not in the cluster");
  refused("\"micro_batches\": 16", "\"micro_batches\": 0", "micro-batches");
  refused("[\"p1\"]", "[]", "a stage has no devices");
  refused("\"micro_batches\": 16", "\"micro_batches\": 12",
          "12 sequences a step, and the batch has 16");
  refused("[\"p1\"]", "[\"p1\"], \"recomputed_layers\": [5]", "recomputed_layers = [5]");
}

TEST_CASE("every_island_of_a_layout_is_played_and_folders_are_no_layouts") {
  const CliFixture fixture;
  const std::string pair = R"({"replicas": [{"micro_batch_sequences": 1, "micro_batches": 16,
    "stages": [{"first_layer": 0, "layers": 7, "devices": ["A"]},
               {"first_layer": 7, "layers": 7, "devices": ["B"]}]}]})";
  std::string paris = pair, oslo = pair;
  for (auto& [text, site] : {std::pair(&paris, 'p'), std::pair(&oslo, 'o')}) {
    (*text)[text->find('A')] = site;
    (*text)[text->find('B')] = site;
    text->insert(text->find(std::string(1, site) + "\"") + 1, "0");
    text->insert(text->rfind(std::string(1, site) + "\"") + 1, "1");
  }
  const std::string layout =
      fixture.Write("two.json", "{\"islands\": [" + paris + ", " + oslo + "]}");
  Command json(With({"cli/atoll", "--json", "simulate", "--cluster",
                     fixture.Write("c.toml", kTwoSites), "--layout", layout},
                    kSmall),
               fixture.Path(""));
  REQUIRE(json.Wait() == 0);
  const auto played = nlohmann::json::parse(json.rest());
  REQUIRE(played["islands"].size() == 2);
  CHECK(played["islands"][0]["replicas"][0]["stages"][1]["devices"][0] == "p1");
  CHECK(played["islands"][1]["replicas"][0]["stages"][1]["devices"][0] == "o1");
  CHECK(played["islands"][1]["island"] == 1);
  CHECK(played["idle_devices"].empty());
  CHECK(played["step_ns"] == played["islands"][1]["step_ns"]);  // the slower devices
  const Outcome text = fixture.Run("simulate", With(kSmall, {"--layout", layout}));
  CHECK_THAT(text.out, Catch::Contains("island 0: ") && Catch::Contains("island 1: "));
  const Outcome folder = fixture.Run("simulate", With(kSmall, {"--layout", fixture.Path("")}));
  CHECK(folder.code == 1);
  CHECK_THAT(folder.errors, Catch::Contains("is a folder"));
}

TEST_CASE("wrong flags are distinguished from wrong files, both by name") {
  const CliFixture fixture;
  const auto usage = [&](const std::vector<std::string>& flags, const char* says) {
    const Outcome refused = fixture.Run("plan", flags);
    CHECK(refused.code == 2);
    CHECK(refused.out.empty());
    CHECK_THAT(refused.errors, Catch::Contains(says));
  };
  usage({"--model", "gpt2"}, "--batch");
  usage({"--batch", "4"}, "--model");
  usage(With(kSmall, {"--islands", "none"}), "per-site");
  usage(With(kSmall, {"--efficiency", "2"}), "--efficiency");
  usage(With(kSmall, {"--micro-batch", "2,0"}), "--micro-batch 0");
  usage(With(kSmall, {"--colour", "red"}), "--colour");
  const auto file = [&](const std::string& from, const std::string& to, const char* says) {
    std::string cluster = kTwoSites;
    cluster.replace(cluster.find(from), from.size(), to);
    const Outcome refused = fixture.Run("plan", kSmall, cluster);
    CHECK(refused.code == 1);
    CHECK_THAT(refused.errors, Catch::Contains("cluster.toml") && Catch::Contains(says));
  };
  file("latency_ns = 10_000_000", "latency_ms = 10", "latency_ms");
  file("type = \"h20\"", "type = \"h21\"", "device \"o0\"");
  file("to = \"oslo\"", "to = \"rome\"", "\"rome\"");
  const Outcome wide = fixture.Run("plan", With(kSmall, {"--tensor-parallel", "16"}));
  CHECK(wide.code == 1);
  CHECK_THAT(wide.errors, Catch::Contains("tensor_parallel = 16"));
  const Outcome few =
      fixture.Run("plan", {"--model", "llama-1b", "--batch", "16", "--tensor-parallel", "9"});
  CHECK(few.code == 1);
  CHECK_THAT(few.errors, Catch::Contains("--tensor-parallel 9") && Catch::Contains("= 8"));
  const Outcome model = fixture.Run("plan", {"--model", "gpt5", "--batch", "4"});
  CHECK(model.code == 1);
  CHECK_THAT(model.errors, Catch::Contains("gpt2-xl"));
}

TEST_CASE("a plan that cannot fit says which device lacks how much, and what would fit") {
  const CliFixture fixture;
  const Outcome large = fixture.Run("plan", {"--model", "gpt3-175b", "--batch", "16"});
  CHECK(large.code == 1);
  CHECK_THAT(large.errors, Catch::Contains("lacks") && Catch::Contains("GiB") &&
                               Catch::Contains("would hold it"));
}

}  // namespace
}  // namespace atl
