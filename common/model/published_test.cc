// Published models: their config.json, as far as it describes the model, and their sizes.

#include <catch2/catch.hpp>
#include <fstream>

#include "common/model/family.h"
#include "common/model/hugging_face.h"
#include "common/model/testing/model_sizes.h"

namespace atl {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

// A line of published_configs.jsonl: fields and numbers of a config.json, and what is expected.
struct Published {
  std::string name, config;
  std::string refused;                // "": it loads; else the field that is named
  int64_t parameters = 0;             // 0: not known
  int64_t active = 0;                 // of these, what a token goes through; 0: all
  std::vector<std::string> left_out;  // of the warning
};

std::vector<Published> ReadPublished() {
  std::ifstream file("common/model/published_configs.jsonl");
  std::vector<Published> list;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    list.push_back({json.at("name"), json.at("config").dump(), json.value("refused", ""),
                    json.value("parameters", int64_t{0}), json.value("active", int64_t{0}),
                    json.value("left_out", std::vector<std::string>())});
  }
  REQUIRE(list.size() >= 60);
  return list;
}

ModelConfig Parsed(absl::string_view text) {
  const auto config = ParseModelConfig(text, "config.json");
  INFO(config.status().message());
  REQUIRE(config.ok());
  return *config;
}

TEST_CASE("published_models_load_with_their_numbers_of_parameters") {
  for (const Published& published : ReadPublished()) {
    if (!published.refused.empty()) continue;
    INFO(published.name);
    std::string warning;
    const auto config = ParseModelConfig(published.config, "config.json", &warning);
    INFO(config.status().message());
    REQUIRE(config.ok());
    if (published.parameters > 0) CHECK(testing::ParameterCount(*config) == published.parameters);
    if (published.active > 0) {
      CHECK(testing::ParameterCount(*config) - testing::IdleParameterCount(*config) ==
            published.active);
    }
    CHECK(warning.empty() == published.left_out.empty());
    for (const std::string& field : published.left_out) CHECK_THAT(warning, Contains(field));
  }
}

TEST_CASE("published_models_that_are_not_implemented_are_refused_by_the_field") {
  for (const Published& published : ReadPublished()) {
    if (published.refused.empty()) continue;
    INFO(published.name);
    const auto config = ParseModelConfig(published.config, "config.json");
    REQUIRE_FALSE(config.ok());
    CHECK_THAT(std::string(config.status().message()),
               StartsWith(absl::StrCat("config.json: field \"", published.refused, "\" ")));
  }
}

TEST_CASE("what is written of a published model is read back") {
  for (const Published& published : ReadPublished()) {
    if (!published.refused.empty()) continue;
    INFO(published.name);
    const ModelConfig config = Parsed(published.config);
    CHECK(Parsed(FormatModelConfig(config)) == config);
    CHECK(ModelConfigFromSpec(ToSpec(config), 1).value() == config);
  }
}

TEST_CASE("a job file's numbers make a model of every family but those of images") {
  for (const Family* family : AllFamilies()) {
    INFO(family->model_type);
    ModelSpec spec;
    spec.family = family->id;
    spec.hidden = 64;
    spec.layers = 2;
    spec.heads = 4;
    const auto config = ModelConfigFromSpec(spec, 32);
    if (family->image_layers != nullptr) {
      CHECK(absl::IsInvalidArgument(config.status()));
      continue;
    }
    INFO(config.status().message());
    REQUIRE(config.ok());
    CHECK(Parsed(FormatModelConfig(*config)) == *config);
  }
}

}  // namespace
}  // namespace atl
