// Activations, sums, conversions, loss and optimizer.

#include <cmath>

#include "kernels/testing/case_makers.h"

namespace atl::testing {
namespace {

auto Constant(double value) {
  return [value](int64_t) { return value; };
}

// Positive, of several magnitudes, as second moments are.
double Positive(int64_t i) { return std::exp(std::sin(static_cast<double>(i)) * 4); }

}  // namespace

OpCase GatedCase(int64_t n, int64_t channels, Activation kind) {
  OpCase c;
  c.name = absl::StrCat("gated ", n, "x", channels, Name(kind));
  c.args = {{"gate", Role::kInput, n, channels},     {"up", Role::kInput, n, channels},
            {"y", Role::kOutput, n, channels},       {"dy", Role::kInput, n, channels},
            {"dgate", Role::kGradient, n, channels}, {"dup", Role::kGradient, n, channels}};
  c.forward = [kind](Call& a) {
    a.Run(GatedForward{.gate = a["gate"], .up = a["up"], .y = a["y"], .kind = kind});
  };
  c.backward = [kind](Call& a) {
    a.Run(GatedBackward{.gate = a["gate"],
                        .up = a["up"],
                        .dy = a["dy"],
                        .dgate = a["dgate"],
                        .dup = a["dup"],
                        .kind = kind});
  };
  c.forward_bytes = Floats(3.0 * n * channels);
  c.backward_bytes = Floats(5.0 * n * channels);
  return c;
}

OpCase SoftcapCase(int64_t n, int64_t channels, float cap) {
  OpCase c;
  c.name = absl::StrCat("softcap ", n, "x", channels, " at ", cap);
  c.args = {{"x", Role::kInput, n, channels},
            {"y", Role::kOutput, n, channels},
            {"dy", Role::kInput, n, channels},
            {"dx", Role::kGradient, n, channels}};
  c.forward = [cap](Call& a) { a.Run(SoftcapForward{a["x"], a["y"], cap}); };
  c.backward = [cap](Call& a) { a.Run(SoftcapBackward{a["x"], a["dy"], a["dx"], cap}); };
  c.forward_bytes = Floats(2.0 * n * channels);
  c.backward_bytes = Floats(3.0 * n * channels);
  return c;
}

OpCase GeluCase(int64_t n, int64_t channels, Activation kind) {
  OpCase c;
  c.name = absl::StrCat("gelu ", n, "x", channels, Name(kind));
  c.args = {{"x", Role::kInput, n, channels},
            {"y", Role::kOutput, n, channels},
            {"dy", Role::kInput, n, channels},
            {"dx", Role::kGradient, n, channels}};
  c.forward = [kind](Call& a) { a.Run(GatedForward{.gate = a["x"], .y = a["y"], .kind = kind}); };
  c.backward = [kind](Call& a) {
    a.Run(GatedBackward{.gate = a["x"], .dy = a["dy"], .dgate = a["dx"], .kind = kind});
  };
  c.forward_bytes = Floats(2.0 * n * channels);
  c.backward_bytes = Floats(3.0 * n * channels);
  return c;
}

OpCase AddScaledCase(int64_t n, int64_t channels, Type a_type, Type b_type, Type out_type) {
  OpCase c;
  c.name = absl::StrCat("add_scaled ", n, "x", channels, " types ", static_cast<int>(a_type),
                        static_cast<int>(b_type), static_cast<int>(out_type));
  c.args = {{"a", Role::kInput, n, channels, a_type},
            {"b", Role::kInput, n, channels, b_type},
            {"out", Role::kState, n, channels, out_type}};
  c.forward = [](Call& a) {
    a.Run(AddScaled{.a = a["a"], .b = a["b"], .out = a["out"], .alpha = -0.75f});
  };
  // One unit in the last place of bf16, where the two backends' f32 sums straddle a tie.
  if (out_type == Type::kBf16) c.tolerance = 1.0 / 128;
  c.forward_bytes = Floats(3.0 * n * channels);
  return c;
}

OpCase InPlaceCase(int64_t n, int64_t channels) {
  OpCase c;
  c.name = absl::StrCat("axpy and scale ", n, "x", channels);
  c.args = {{"x", Role::kState, n, channels}, {"b", Role::kInput, n, channels}};
  c.forward = [](Call& a) {
    a.Run(AddScaled{.a = a["x"], .b = a["b"], .out = a["x"], .alpha = 2.0f});
    a.Run(Scale{.x = a["x"], .factor = 0.3f});
  };
  c.forward_bytes = Floats(5.0 * n * channels);
  return c;
}

OpCase ConvertCase(int64_t n, int64_t channels) {
  OpCase c;
  c.name = absl::StrCat("convert ", n, "x", channels);
  c.args = {{"x", Role::kInput, n, channels, kF32},
            {"half", Role::kState, n, channels, Type::kBf16},
            {"back", Role::kState, n, channels, kF32}};
  c.forward = [](Call& a) {
    a.Run(Convert{.from = a["x"], .to = a["half"]});
    a.Run(Convert{.from = a["half"], .to = a["back"]});
  };
  c.tolerance = 0;
  c.forward_bytes = 12.0 * n * channels;
  return c;
}

OpCase CrossEntropyCase(int64_t n, int64_t vocabulary, bool in_place, float smoothing) {
  OpCase c;
  const float scale = 1 / static_cast<float>(n);
  c.name = absl::StrCat("cross_entropy ", n, "x", vocabulary, in_place ? " in place" : "");
  const auto target = [=](int64_t i) {
    return i % 5 == 3 ? -100.0 : static_cast<double>((i * 31 + 7) % vocabulary);
  };
  c.args = {{"logits", in_place ? Role::kState : Role::kInput, n, vocabulary},
            {"targets", Role::kInput, 1, n, kInt32, target},
            {"totals", in_place ? Role::kState : Role::kOutput, 1, 2, kF32, Constant(0)}};
  if (!in_place) {
    // The loss is differentiated, the count is not.
    const auto d = [=](int64_t i) { return i == 0 ? double{scale} : 0.0; };
    c.args.push_back({"dtotals", Role::kInput, 1, 2, kF32, d});
    c.args.push_back({"dlogits", Role::kGradient, n, vocabulary});
    c.args.push_back({"again", Role::kState, 1, 2, kF32, Constant(3)});
  }
  c.forward = [=](Call& a) {
    a.backend().Zero(a.stream(), a["totals"]);
    a.Run(CrossEntropy{.logits = a["logits"],
                       .targets = a["targets"],
                       .dlogits = in_place ? a["logits"] : Tensor(),
                       .totals = a["totals"],
                       .grad_scale = scale,
                       .smoothing = smoothing});
  };
  if (!in_place) {
    c.backward = [=](Call& a) {
      a.Run(CrossEntropy{.logits = a["logits"],
                         .targets = a["targets"],
                         .dlogits = a["dlogits"],
                         .totals = a["again"],
                         .grad_scale = scale,
                         .smoothing = smoothing});
    };
  }
  c.forward_bytes = Floats((in_place ? 2.0 : 1.0) * n * vocabulary);
  c.backward_bytes = Floats(2.0 * n * vocabulary);
  return c;
}

OpCase SmoothedCrossEntropyCase(int64_t n, int64_t classes) {
  OpCase c = CrossEntropyCase(n, classes, false, 0.1f);
  c.name += " smoothed";
  return c;
}

OpCase CrossEntropyPartCase(int64_t n, int64_t first_class, int64_t classes, bool in_place) {
  // The rest of the vocabulary is only seen through `max`.
  OpCase c = CrossEntropyCase(n, first_class + 2 * classes, in_place);
  const float scale = 1 / static_cast<float>(n);
  c.name = absl::StrCat("part of ", c.name);
  for (Arg& arg : c.args) {
    if (arg.name == "logits" || arg.name == "dlogits") arg.cols = classes;
    if (arg.name == "logits") {  // some reach `max`
      arg.value = [](int64_t i) { return i % 5 == 2 ? 1.5 : std::sin(static_cast<double>(i)); };
    }
  }
  c.args.push_back({"max", Role::kInput, 1, n, kF32, Constant(1.5)});
  c.args.push_back({"sums", Role::kSaved, 3, n, kF32});
  c.args.push_back({"largest", Role::kSaved, 1, n, kF32});
  const auto part = [=](Call& a, const Tensor& dlogits, const Tensor& totals) {
    a.Run(CrossEntropy{.logits = a["logits"],
                       .targets = a["targets"],
                       .dlogits = dlogits,
                       .totals = totals,
                       .grad_scale = scale,
                       .max = a["max"],
                       .sums = a["sums"],
                       .first_class = first_class});
  };
  c.forward = [=](Call& a) {
    a.backend().Zero(a.stream(), a["totals"]);
    a.Run(CrossEntropyMax{a["logits"], a["largest"]});
    a.Run(CrossEntropySums{a["logits"], a["targets"], a["max"], a["sums"], first_class});
    part(a, in_place ? a["logits"] : Tensor(), a["totals"]);
  };
  if (!in_place) c.backward = [=](Call& a) { part(a, a["dlogits"], a["again"]); };
  return c;
}

OpCase AdamCase(int64_t size, int64_t step, bool clip, bool copy, bool lamb) {
  OpCase c;
  c.name = absl::StrCat(lamb ? "lamb " : "adamw ", size, clip ? " clip" : "", copy ? " copy" : "");
  c.args = {{"param", Role::kState, 1, size, kF32, nullptr, true},
            {"grad", Role::kState, 1, size, kF32, nullptr, true},
            {"m", Role::kState, 1, size, kF32, nullptr, true},
            {"v", Role::kState, 1, size, kF32, Positive, true}};
  if (lamb) c.args.push_back({"sums", Role::kState, 1, 2, kF32, Constant(3)});
  if (clip) c.args.push_back({"scale", Role::kInput, 1, 1, kF32, Constant(0.37)});
  if (copy) c.args.push_back({"copy", Role::kState, 1, size, Type::kBf16, nullptr, true});
  c.forward = [=](Call& a) {
    const AdamStep update{.param = a["param"],
                          .grad = a["grad"],
                          .m = a["m"],
                          .v = a["v"],
                          .grad_scale = a["scale"],
                          .param_copy = a["copy"],
                          .step = step,
                          .lr = 1e-2,
                          .weight_decay = 0.1,
                          .zero_grad = clip,
                          .lamb = lamb};
    if (lamb) a.Run(LambNorms{update, a["sums"]});
    a.Run(update);
  };
  if (copy) c.tolerance = 1.0 / 128;
  c.forward_bytes = Floats(((clip ? 8.0 : 7.0) + (lamb ? 4.0 : 0.0)) * size);
  return c;
}

OpCase MomentumCase(int64_t size, bool divides, bool params, bool copy) {
  OpCase c;
  c.name = absl::StrCat(divides ? "rmsprop " : "momentum ", size, params ? "" : " alone",
                        copy ? " copy" : "");
  c.args = {{"grad", Role::kState, 1, size, kF32, nullptr, true},
            {"m", Role::kState, 1, size, kF32, nullptr, true},
            {"scale", Role::kInput, 1, 1, kF32, Constant(0.37)}};
  if (params) c.args.push_back({"param", Role::kState, 1, size, kF32, nullptr, true});
  if (divides) c.args.push_back({"v", Role::kState, 1, size, kF32, Positive, true});
  if (copy) c.args.push_back({"copy", Role::kState, 1, size, Type::kBf16, nullptr, true});
  c.forward = [=](Call& a) {
    a.Run(MomentumStep{.param = a["param"],
                       .grad = a["grad"],
                       .m = a["m"],
                       .v = a["v"],
                       .grad_scale = a["scale"],
                       .param_copy = a["copy"],
                       .lr = 1e-2,
                       .momentum = 0.9,
                       .alpha = 0.95,
                       .weight_decay = params ? 0.1 : 0,
                       .zero_grad = divides});
  };
  if (copy) c.tolerance = 1.0 / 128;
  c.forward_bytes = Floats((params ? 5.0 : 3.0) * size);
  return c;
}

OpCase NormalizeCase(int64_t size) {
  OpCase c;
  c.name = absl::StrCat("normalize ", size);
  c.args = {{"x", Role::kInput, 1, size, kF32, nullptr, true},
            {"sum", Role::kState, 1, 1, kF32},
            {"y", Role::kState, 1, size, kF32, nullptr, true}};
  c.forward = [=](Call& a) {
    a.Run(SumOfSquares{.x = a["x"], .out = a["sum"]});
    a.Run(Normalize{a["x"], a["sum"], a["y"]});
  };
  c.forward_bytes = Floats(3.0 * size);
  return c;
}

OpCase DecodeCase(WeightCode code, int64_t rows, int64_t cols, int64_t first, int64_t whole) {
  OpCase c;
  c.name =
      absl::StrCat(code == WeightCode::kNf4 ? "nf4 " : "int8 ", rows, "x", cols, " of ", whole);
  // Every code there is, in any place.
  const auto bytes = [](int64_t i) {
    const auto mixed = static_cast<uint32_t>(i + 1) * 2654435761u;
    return static_cast<double>(static_cast<int32_t>(mixed ^ mixed >> 15));
  };
  const int64_t words = GetCodeBytes(code, rows * cols) / 4;
  const int64_t scale_words = (rows * cols / kWeightBlock + 3) / 4;
  const int64_t first_scale = kScaleBlock + first / kWeightBlock;
  const int64_t last = first_scale + rows * (whole / kWeightBlock);
  c.args = {{"codes", Role::kInput, 1, words, kInt32, bytes, true},
            {"scales", Role::kInput, 1, scale_words, kInt32, bytes, true},
            {"coarse", Role::kInput, 1, 2 + last / kScaleBlock, kOnlyF32,
             [](int64_t i) { return 0.5 + 0.125 * static_cast<double>(i % 7); }, true},
            {"y", Role::kState, rows, cols, kAct, nullptr, true}};
  c.forward = [=](Call& a) {
    a.Run(DecodeWeights{code, a["codes"], a["scales"], a["coarse"], first_scale,
                        whole / kWeightBlock, a["y"]});
  };
  c.forward_bytes = Floats(static_cast<double>(words + scale_words) + 1.0 * rows * cols);
  return c;
}

OpCase ClipCase(int64_t size, float max_norm) {
  OpCase c;
  c.name = absl::StrCat("sum_of_squares and clip ", size, " max ", max_norm);
  c.args = {{"x", Role::kInput, 1, size, kF32, nullptr, true},
            {"more", Role::kInput, 3, 5, kF32, nullptr, true},
            {"sum", Role::kState, 1, 1, kF32},
            {"scale", Role::kState, 1, 1, kF32}};
  c.forward = [=](Call& a) {
    a.Run(SumOfSquares{.x = a["x"], .out = a["sum"]});
    a.Run(SumOfSquares{.x = a["more"], .out = a["sum"], .accumulate = true});
    a.Run(ClipScale{.sum_of_squares = a["sum"], .scale = a["scale"], .max_norm = max_norm});
  };
  c.forward_bytes = Floats(size);
  return c;
}

}  // namespace atl::testing
