// `atoll rehearse` as a person uses it, mistakes included.

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/command.h"

namespace atl {
namespace {

constexpr char kCluster[] = R"(
[[devices]]
id = "p0"
type = "a100-80"
node = "n0"
site = "paris"
[[devices]]
id = "p1"
type = "a100-80"
node = "n1"
site = "paris"
)";

constexpr char kJob[] = R"(name = "small"
[model]
hidden = 256
layers = 4
heads = 4
[data]
path = "text.txt"
sequence_length = 256
[inner]
batch_sequences = 64
[outer]
steps_per_round = 16
[layout]
island = "site"
[schedule]
train_tokens = 200_000_000
)";

constexpr char kFailures[] = R"toml(
[[failures]]
of = "a100-80"
mtbf_hours = 0.02
repair = "lognormal(20 s, 1)"
)toml";

struct Outcome {
  int code = -1;
  std::string out, errors;
};

class Fixture {
 public:
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }
  Outcome Run(const std::vector<std::string>& more, const std::string& failures = kFailures) const {
    std::vector<std::string> flags = {"cli/atoll",  "--json",
                                      "rehearse",   Write("job.toml", kJob),
                                      "--cluster",  Write("cluster.toml", kCluster),
                                      "--failures", Write("failures.toml", failures),
                                      "--seeds",    "3"};
    flags.insert(flags.end(), more.begin(), more.end());
    Command command(flags, folder_);
    const int code = command.Wait();
    return {code, command.rest(), command.errors()};
  }

 private:
  const std::string folder_ = FreshFolder();
};

TEST_CASE("a run is rehearsed, and the same seeds give the same answer") {
  const Fixture fixture;
  const Outcome outcome = fixture.Run({});
  INFO(outcome.errors);
  REQUIRE(outcome.code == 0);
  const auto answer = nlohmann::json::parse(outcome.out);
  CHECK(answer["schema_version"].is_number());
  CHECK(answer["finished"] == 3);
  CHECK(answer["runs"].size() == 3);
  CHECK(answer["finish_seconds"]["median"] > answer["bound"]["seconds"]);
  double sum = 0;
  for (const auto& [use, share] : answer["device_time"].items()) sum += share.get<double>();
  CHECK(sum == Approx(1));
  CHECK_FALSE(answer["dearest"].empty());
  CHECK(fixture.Run({}).out == outcome.out);
}

TEST_CASE("settings are compared, the best one first") {
  const Fixture fixture;
  const Outcome outcome = fixture.Run({"--compare", "inner.batch_sequences=32,64"});
  INFO(outcome.errors);
  REQUIRE(outcome.code == 0);
  const auto settings = nlohmann::json::parse(outcome.out)["settings"];
  REQUIRE(settings.size() == 2);
  CHECK(settings[0]["slower"] == 0);
  CHECK(settings[1]["slower"] >= 0);
  CHECK(settings[0]["tokens_per_s"]["median"] >= settings[1]["tokens_per_s"]["median"]);
}

TEST_CASE("a picture has a bar for each use of device-time, and a curve for each setting") {
  const Fixture fixture;
  const std::string file = fixture.Write("picture.svg", "");
  REQUIRE(fixture.Run({"--compare", "inner.batch_sequences=32,64", "--svg", file}).code == 0);
  std::ifstream stream(file);
  const std::string picture{std::istreambuf_iterator<char>(stream), {}};
  CHECK_THAT(picture, Catch::StartsWith("<svg ") && Catch::EndsWith("</svg>\n"));
  const auto count = [&](const std::string& part) {
    int found = 0;
    for (size_t at = picture.find(part); at != std::string::npos; at = picture.find(part, at + 1)) {
      ++found;
    }
    return found;
  };
  CHECK(count("<title>replayed ") == 2);
  CHECK(count("<title>bound</title>") == 2);
}

TEST_CASE("wrong keys, subjects and flags are refused by name") {
  const Fixture fixture;
  const Outcome key = fixture.Run({}, "[[failures]]\nmtbf = 3\n");
  CHECK(key.code == 1);
  CHECK_THAT(key.errors, Catch::Contains("failures[0].mtbf"));
  const Outcome subject =
      fixture.Run({}, "[[events]]\nat = \"1 h\"\nkind = \"node\"\nsubject = \"n7\"\n");
  CHECK(subject.code == 1);
  CHECK_THAT(subject.errors, Catch::Contains("n7"));
  CHECK(fixture.Run({"--compare", "outer.momentum"}).code == 2);
  CHECK(fixture.Run({"--days", "0"}).code == 2);
}

}  // namespace
}  // namespace atl
