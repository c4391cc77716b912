#include "common/model/image_model.h"

#include <catch2/catch.hpp>

#include "common/model/costs.h"
#include "common/model/hugging_face.h"
#include "common/model/job_model.h"

namespace atl {
namespace {

ModelConfig Parse(const std::string& json) {
  auto config = ParseModelConfig(json, "test");
  INFO(config.status().message());
  REQUIRE(config.ok());
  return *config;
}

struct Published {
  std::string json;
  int64_t parameters;
  double giga_products;  // of one image of 224 x 224, unless a size is given
};

// torchvision's numbers, of their documentation.
TEST_CASE("models_of_images_have_the_published_sizes") {
  const Published all[] = {
      {R"({"model_type": "resnet", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512],
           "layer_type": "basic"})",
       11'689'512, 1.81},
      {R"({"model_type": "resnet"})", 25'557'032, 4.09},
      {R"({"model_type": "resnet", "depths": [3, 4, 23, 3]})", 44'549'160, 7.8},
      {R"({"model_type": "efficientnet"})", 5'288'548, 0.39},
      {R"({"model_type": "efficientnet", "depth_coefficient": 1.1, "image_size": 240})", 7'794'184,
       0.69},
      {R"({"model_type": "efficientnet", "width_coefficient": 1.1, "depth_coefficient": 1.2,
           "image_size": 288})",
       9'109'994, 1.09},
      {R"({"model_type": "efficientnet", "width_coefficient": 1.2, "depth_coefficient": 1.4,
           "image_size": 300})",
       12'233'232, 1.83},
      {R"({"model_type": "efficientnet", "width_coefficient": 1.4, "depth_coefficient": 1.8,
           "image_size": 380})",
       19'341'616, 4.39},
  };
  for (const Published& published : all) {
    CAPTURE(published.json);
    const ModelConfig config = Parse(published.json);
    int64_t parameters = 0;
    for (const LayerLayout& layout : MakeLayouts(config)) parameters += layout.trained_size;
    CHECK(parameters == published.parameters);
    double flops = 0;
    for (const LayerCosts& costs : CostsByLayer(config, 1, {})) flops += costs.forward_flops;
    CHECK(flops / 2e9 == Approx(published.giga_products).epsilon(0.03));
    CHECK(Parse(FormatModelConfig(config)) == config);
  }
}

TEST_CASE("outputs_have_the_size_of_each_layers_image") {
  const ModelConfig config = Parse(R"({"model_type": "resnet", "image_size": 32,
      "depths": [1, 1], "hidden_sizes": [8, 16], "layer_type": "basic", "embedding_size": 4,
      "num_labels": 7})");
  REQUIRE(config.layers == 2);
  CHECK(config.OutputColumns(0) == 8 * 8 * 4);  // a stride of 2 and pooling by 2
  CHECK(config.OutputColumns(1) == 8 * 8 * 8);
  CHECK(config.OutputColumns(2) == 4 * 4 * 16);
  CHECK(config.OutputColumns(3) == 7);
  CHECK(config.RowNumbers(1) == 32 * 32 * 3 + 1);
  const std::vector<LayerCosts> costs = CostsByLayer(config, 1, {});
  for (size_t l = 0; l < costs.size(); ++l) {
    CHECK(costs[l].output_bytes == 4 * config.OutputColumns(static_cast<int64_t>(l)));
  }
}

TEST_CASE("running_statistics_are_the_end_of_each_layer") {
  const ModelConfig config = Parse(R"({"model_type": "efficientnet", "image_size": 32})");
  for (const LayerLayout& layout : MakeLayouts(config)) {
    CAPTURE(layout.name);
    for (const ParamSpec& param : layout.params) {
      const bool running = param.name.find(".running_") != std::string::npos;
      CHECK((param.offset >= layout.trained_size) == running);
      CHECK((param.offset < layout.decay_size) == (param.shape.size() > 1));
    }
  }
}

TEST_CASE("classes_are_counted_by_num_labels_or_by_the_names_that_a_config_has") {
  const std::string names = R"("id2label": {"0": "cat", "1": "dog", "2": "eel"})";
  CHECK(Parse(R"({"model_type": "resnet", )" + names + "}").vocab == 3);
  CHECK(Parse(R"({"model_type": "resnet", "num_labels": 3, )" + names + "}").vocab == 3);
  CHECK(Parse(R"({"model_type": "resnet", "num_labels": 4})").vocab == 4);
  const auto config =
      ParseModelConfig(R"({"model_type": "resnet", "num_labels": 4, )" + names + "}", "test");
  CHECK(config.status().message() ==
        "test: field \"num_labels\" is 4, and id2label names 3 classes; correct one of them");
}

TEST_CASE("written_config_names_no_class_of_transformers_beside_torchvisions_tensors") {
  CHECK_THAT(FormatModelConfig(Parse(R"({"model_type": "resnet"})")),
             !Catch::Contains("architectures"));
}

TEST_CASE("fields_that_are_not_implemented_are_refused_by_name") {
  const auto [json, name] = GENERATE(table<std::string, std::string>({
      {R"({"model_type": "resnet", "layer_type": "wide"})", "layer_type"},
      {R"({"model_type": "resnet", "hidden_act": "gelu"})", "hidden_act"},
      {R"({"model_type": "resnet", "downsample_in_bottleneck": true})", "downsample_in_bottleneck"},
      {R"({"model_type": "resnet", "depths": [1], "hidden_sizes": [8, 16]})", "hidden_sizes"},
      {R"({"model_type": "resnet", "groups": 32})", "groups"},
      {R"({"model_type": "efficientnet", "width_coefficient": 0})", "width_coefficient"},
      {R"({"model_type": "efficientnet", "image_mean": [0.5]})", "image_mean"},
      {R"({"model_type": "efficientnet", "squeeze_expansion_ratio": 0.5})", "squeeze_expansion"},
  }));
  CAPTURE(json);
  const auto config = ParseModelConfig(json, "test");
  REQUIRE(absl::IsInvalidArgument(config.status()));
  CHECK_THAT(std::string(config.status().message()), Catch::Contains(name));
}

TEST_CASE("jobs_whose_model_and_data_do_not_fit_are_refused") {
  JobSpec spec;
  spec.model.config_json = R"({"model_type": "resnet", "image_size": 28, "num_channels": 1})";
  spec.data.sequence_length = 1;
  CHECK(absl::IsInvalidArgument(ModelConfigOfJob(spec).status()));
  spec.data.format = DataFormat::kIdx;
  CHECK(ModelConfigOfJob(spec).ok());
  JobSpec folder = spec;
  folder.data.format = DataFormat::kImageFolder;
  folder.data.image_size = 28;
  CHECK(absl::IsInvalidArgument(ModelConfigOfJob(folder).status()));  // has three channels
  folder.model.config_json = R"({"model_type": "resnet", "image_size": 28})";
  CHECK(ModelConfigOfJob(folder).ok());
  folder.data.image_size = 32;
  CHECK(absl::IsInvalidArgument(ModelConfigOfJob(folder).status()));
  spec.layout.tensor_parallel = 2;
  CHECK(absl::IsInvalidArgument(ModelConfigOfJob(spec).status()));
  spec.layout.tensor_parallel = 0;
  spec.inner.optimizer = InnerOptimizer::kMuon;
  CHECK(absl::IsInvalidArgument(ModelConfigOfJob(spec).status()));
}

}  // namespace
}  // namespace atl
