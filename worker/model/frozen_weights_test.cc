// Codes of frozen weights: as bitsandbytes defines them, in parts as in the whole, and computed
// with as they are stored.

#include "worker/model/frozen_weights.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "common/rng.h"
#include "kernels/testing/reference/reference.h"
#include "worker/model/runner.h"
#include "worker/model/testing/weights_fixture.h"

namespace atl {
namespace {

constexpr WeightCode kCodes[] = {WeightCode::kNf4, WeightCode::kInt8};
constexpr int64_t kLength = 7;

// Makes the matrix that parity/make_codes.py does.
std::vector<float> MakeMatrix() {
  std::vector<float> values;
  for (int64_t i = 0; i < 300 * kWeightBlock; ++i) {
    const int64_t block = i / kWeightBlock;
    const auto mixed = static_cast<uint32_t>(i) * 2654435761u;
    const auto number = static_cast<double>(static_cast<int64_t>(mixed >> 8) - (1 << 23));
    const double size = std::ldexp(1.0, static_cast<int>(-(24 + block * 7 % 5)));
    values.push_back(block == 17 ? 0.0f : block == 18 ? 0.5f : static_cast<float>(number * size));
  }
  return values;
}

std::vector<float> Expected(const std::string& name) {
  const auto reader = SafetensorsReader::Open("worker/model/parity/codes/expected.safetensors");
  Must(reader.status());
  std::vector<float> values(static_cast<size_t>(reader->tensors().at(name).shape[0]));
  Must(reader->Read(name, values));
  return values;
}

float CodeAt(WeightCode code, const CodedMatrix& matrix, size_t i) {
  if (code == WeightCode::kInt8) return static_cast<int8_t>(matrix.codes[i]);
  return static_cast<float>(matrix.codes[i / 2] >> (i % 2 == 0 ? 0 : 4) & 15);
}

ModelConfig Coded(ModelFamily family, WeightCode code) {
  ModelConfig c = TinyModel(family, /*tied=*/false);
  c.d_model = 64;
  c.ffn = 192;
  if (family != ModelFamily::kGpt2) c.head_channels = 32;
  c.adapter = {.rank = 3, .alpha = 5, .targets = {kAllLinear}, .base = code};
  return c;
}

std::vector<float> RandomValues(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(0.2 * rng.Normal());
  return values;
}

// ---- what codes are ----

TEST_CASE("a_matrix_is_coded_as_bitsandbytes_defines_it") {
  const std::vector<float> values = MakeMatrix(), scale_codes = Expected("scale_codes"),
                           coarse = Expected("coarse");
  for (const WeightCode code : kCodes) {
    const std::string name = code == WeightCode::kNf4 ? "nf4" : "int8";
    const std::vector<float> codes = Expected(name), decoded = Expected(name + "_values");
    const CodedMatrix matrix = EncodeMatrix(code, values);
    std::vector<float> again(values.size());
    DecodeMatrix(code, matrix, again);
    for (size_t i = 0; i < values.size(); ++i) {
      CAPTURE(name, i, values[i]);
      REQUIRE(CodeAt(code, matrix, i) == codes[i]);
    }
    REQUIRE(matrix.coarse.size() == coarse.size());
    for (size_t i = 0; i < coarse.size(); ++i) CHECK(matrix.coarse[i] == Approx(coarse[i]));
    for (size_t b = 0; b < scale_codes.size(); ++b) {
      CAPTURE(name, b);
      REQUIRE(static_cast<float>(matrix.scales[b]) == scale_codes[b]);
      REQUIRE(again[b * kWeightBlock] == Approx(decoded[b]).epsilon(1e-6));
    }
  }
}

TEST_CASE("a_number_of_a_large_matrix_takes_a_little_more_than_its_code") {
  ModelConfig c;  // LLaMA 2 7B
  c.family = ModelFamily::kLlama;
  c.vocab = 32000;
  c.d_model = 4096;
  c.layers = 1;
  c.heads = c.kv_heads = 32;
  c.ffn = 11008;
  c.max_positions = 4096;
  for (const auto& [code, bits] : {std::pair(WeightCode::kNf4, 4.13), {WeightCode::kInt8, 8.13}}) {
    c.adapter = {.rank = 8, .alpha = 8, .targets = {kAllLinear}, .base = code};
    const LayerLayout block = MakeLayouts(c)[1];
    const double each = 8.0 * static_cast<double>(PlaceFrozen(block, 2).bytes) /
                        static_cast<double>(block.frozen_size);
    CHECK(each == Approx(bits).margin(0.01));
  }
}

// ---- parts ----

// Decodes what a part stores of a matrix.
std::vector<float> DecodePart(const LayerLayout& part, size_t index,
                              std::vector<std::byte>& image) {
  const auto backend = NewReferenceBackend();
  const auto stream = *backend->NewStream();
  const FrozenPlace place = PlaceFrozen(part, sizeof(float)).params[index];
  std::vector<float> values(static_cast<size_t>(part.frozen[index].size));
  int64_t row = 0;
  for (const CodedRows& rows : place.rows) {
    const int64_t begin = row * place.cols, size = rows.rows * place.cols;
    std::byte* const at = image.data();
    const auto words = [](std::byte* from, int64_t bytes) {
      return Tensor(from, DType::kInt32, 1, (bytes + 3) / 4);
    };
    backend->Run(*stream,
                 DecodeWeights{*part.coding,
                               words(at + place.values + GetCodeBytes(*part.coding, begin),
                                     GetCodeBytes(*part.coding, size)),
                               words(at + place.scales + begin / kWeightBlock, size / kWeightBlock),
                               Tensor(at + place.coarse, DType::kFloat32, 1, place.coarse_numbers),
                               rows.first_scale, rows.scale_step,
                               Tensor(&values[static_cast<size_t>(begin)], DType::kFloat32,
                                      rows.rows, place.cols)});
    row += rows.rows;
  }
  return values;
}

TEST_CASE("ranks_have_the_numbers_of_the_matrix_that_was_coded_whole") {
  for (const ModelFamily family : {ModelFamily::kLlama, ModelFamily::kGpt2}) {
    for (const WeightCode code : kCodes) {
      ModelConfig config = Coded(family, code);
      if (family == ModelFamily::kGpt2) config.d_model = 256;
      const LayerLayout whole = MakeLayouts(config)[1];
      const std::vector<float> values = RandomValues(whole.frozen_size, 3);
      const FrozenWeights weights(whole, values);
      const std::vector<float> stored = weights.Stored();
      const std::vector<TensorPart> ranks = *CutModel(config, 2, std::vector<int32_t>{2, 1});
      for (const TensorPart& rank : ranks) {
        const LayerLayout part = MakeLayouts(config, rank)[1];
        std::vector<std::byte> image = weights.Image(part, DType::kFloat32);
        for (size_t i = 0; i < part.frozen.size(); ++i) {
          if (!part.coded(part.frozen[i])) continue;
          CAPTURE(part.frozen[i].name, rank.rank);
          std::vector<float> expected(static_cast<size_t>(part.frozen[i].size));
          ForEachRun(whole.frozen[i], part.frozen[i], [&](int64_t from, int64_t to, int64_t count) {
            std::copy_n(stored.begin() + from, count,
                        expected.begin() + (to - part.frozen[i].offset));
          });
          CHECK(DecodePart(part, i, image) == expected);
        }
      }
    }
  }
}

TEST_CASE("models_are_cut_between_blocks_of_codes") {
  ModelConfig config = Coded(ModelFamily::kLlama, WeightCode::kNf4);
  config.heads = 8;
  config.kv_heads = 8;  // of 32 channels: two end with a block
  const std::vector<TensorPart> parts = *CutModel(config, 3, std::vector<int32_t>{2, 1, 1});
  for (const TensorPart& part : parts) {
    CHECK(part.ffn.begin % kWeightBlock == 0);
    CHECK(part.kv_heads.begin % 2 == 0);
  }
  const absl::Status five = CutModel(config, 5, {}).status();
  CHECK(absl::IsInvalidArgument(five));
  CHECK(absl::StrContains(five.message(), "1 to 3 devices"));
}

TEST_CASE("a_base_whose_rows_end_within_a_block_is_refused") {
  const AdapterSpec spec{
      .kind = AdapterKind::kLora, .targets = {kAllLinear}, .base = AdapterBase::kNf4};
  const absl::Status status = WithAdapter(TinyModel(ModelFamily::kLlama, false), spec).status();
  REQUIRE(absl::IsInvalidArgument(status));
  CHECK(absl::StrContains(status.message(), "adapter.base"));
  CHECK(absl::StrContains(status.message(), "hidden size of 8"));
}

// ---- products ----

// Loss and gradients of a model with random parameters.
std::pair<double, std::vector<double>> TrainOnce(const ModelConfig& config, bool store) {
  const auto backend = NewReferenceBackend();
  ModelConfig plain = config;
  if (store) plain.adapter.base.reset();
  const Model model = *Model::Create(plain, DType::kFloat64);
  const auto runner =
      *ModelRunner::Create(*backend, model, {.micro_batch_rows = 2, .seq_len = kLength});
  const std::vector<LayerLayout> layouts = MakeLayouts(config);
  for (size_t l = 0; l < layouts.size(); ++l) {
    LayerState& layer = runner->layer(static_cast<int>(l));
    std::vector<float> frozen = RandomValues(layouts[l].frozen_size, 10 + l);
    if (store) frozen = FrozenWeights(layouts[l], frozen).Stored();
    Must(layer.WriteFrozen(runner->stream(), FrozenWeights(layer.layout(), frozen)));
    const std::vector<float> trained = RandomValues(layouts[l].size, 50 + l);
    std::copy(trained.begin(), trained.end(), static_cast<double*>(layer.params().data));
  }
  std::vector<int32_t> tokens(3 * (kLength + 1));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 7 % 19);
  const double loss = runner->Train(tokens, 3)->mean();
  std::vector<double> grads;
  for (LayerState* layer : runner->layers()) {
    const auto* from = static_cast<const double*>(layer->grads().data);
    grads.insert(grads.end(), from, from + layer->layout().size);
  }
  return {loss, grads};
}

TEST_CASE("a_model_computes_with_its_base_as_it_is_stored") {
  for (const ModelFamily family :
       {ModelFamily::kLlama, ModelFamily::kGpt2, ModelFamily::kPhi3, ModelFamily::kQwen3}) {
    for (const WeightCode code : kCodes) {
      CAPTURE(static_cast<int>(family), static_cast<int>(code));
      const ModelConfig config = Coded(family, code);
      CHECK(TrainOnce(config, /*store=*/false) == TrainOnce(config, /*store=*/true));
    }
  }
}

TEST_CASE("a_gaussian_adapter_has_the_deviation_of_its_rank") {
  ModelConfig config = Coded(ModelFamily::kLlama, WeightCode::kNf4);
  config.adapter.rank = 8;
  config.adapter.init = AdapterInit::kGaussian;
  const LayerLayout layout = MakeLayouts(config)[1];
  std::vector<float> values(static_cast<size_t>(layout.size));
  InitLayer(layout, 2, 7, values);
  for (const ParamSpec& param : layout.params) {
    double squares = 0;
    for (int64_t i = param.offset; i < param.end(); ++i) {
      squares += std::pow(values[static_cast<size_t>(i)], 2);
    }
    const double deviation = std::sqrt(squares / static_cast<double>(param.size));
    CAPTURE(param.name);
    CHECK(deviation == Approx(param.use == Param::kAdapterA ? 1.0 / 8 : 0).epsilon(0.1));
  }
}

}  // namespace
}  // namespace atl
