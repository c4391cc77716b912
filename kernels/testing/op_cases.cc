#include <cmath>

#include "kernels/testing/op_case.h"

namespace atl::testing {
namespace {

constexpr auto kAct = Type::kAct;
constexpr auto kF32 = Type::kF32;
constexpr auto kInt32 = Type::kInt32;

// Numbers below `limit` that jump about.
auto TokensBelow(int64_t limit) {
  return [limit](int64_t i) { return static_cast<double>((i * 7919 + 13) % limit); };
}

auto Constant(double value) {
  return [value](int64_t) { return value; };
}

// Positive, of several magnitudes, as second moments are.
double Positive(int64_t i) { return std::exp(std::sin(static_cast<double>(i)) * 4); }

// Bytes of `count` f32 numbers.
double Floats(double count) { return 4 * count; }

const char* Name(Activation kind) {
  switch (kind) {
    case Activation::kNone:
      return "";
    case Activation::kGeluTanh:
      return " gelu_tanh";
    case Activation::kGeluErf:
      return " gelu_erf";
  }
  return "";
}

OpCase LinearCase(int64_t n, int64_t in, int64_t out, bool bias, bool add,
                  Activation activation = Activation::kNone) {
  OpCase c;
  c.name = absl::StrCat("linear ", n, "x", in, "->", out, bias ? " bias" : "", add ? " add" : "",
                        Name(activation));
  c.args = {{"x", Role::kInput, n, in},
            {"w", Role::kInput, out, in},
            {"y", Role::kOutput, n, out},
            {"dy", Role::kInput, n, out},
            {"dx", Role::kGradient, n, in, kAct, nullptr, false, add ? "dadd" : ""},
            {"dw", Role::kGradient, out, in, kF32, nullptr, false, "dw"}};
  if (bias) {
    c.args.push_back({"bias", Role::kInput, 1, out});
    c.args.push_back({"dbias", Role::kGradient, 1, out, kF32, nullptr, false, "dbias"});
  }
  if (add) {
    c.args.push_back({"add", Role::kInput, n, out});
    c.args.push_back({"dadd", Role::kInput, n, in});  // another branch's gradient for x
  }
  if (activation != Activation::kNone) {
    // dy is taken through the activation first, as the next layer's B does.
    c.args.push_back({"pre", Role::kSaved, n, out});
    c.args.push_back({"dpre", Role::kSaved, n, out});
  }
  c.forward = [activation](Call& a) {
    a.Run(LinearForward{.x = a["x"],
                        .w = a["w"],
                        .bias = a["bias"],
                        .add = a["add"],
                        .y = a["y"],
                        .activation = activation,
                        .pre = a["pre"]});
  };
  c.backward = [activation](Call& a) {
    Tensor dy = a["dy"];
    if (activation != Activation::kNone) {
      a.Run(GeluBackward{.x = a["pre"], .dy = dy, .dx = a["dpre"], .kind = activation});
      dy = a["dpre"];
    }
    a.Run(LinearBackwardInput{.dy = dy, .w = a["w"], .add = a["dadd"], .dx = a["dx"]});
    a.Run(LinearBackwardWeight{.x = a["x"], .dy = dy, .dw = a["dw"], .dbias = a["dbias"]});
  };
  c.forward_flops = 2.0 * n * in * out;
  c.backward_flops = 2 * c.forward_flops;
  return c;
}

// The second half of an MLP, whose B goes back through the activation that made its input.
OpCase ActivatedInputCase(int64_t n, int64_t in, int64_t out, Activation activation) {
  OpCase c;
  c.name = absl::StrCat("linear of activation ", n, "x", in, "->", out, Name(activation));
  c.args = {{"pre", Role::kInput, n, in},
            {"w", Role::kInput, out, in},
            {"x", Role::kSaved, n, in},
            {"y", Role::kOutput, n, out},
            {"dy", Role::kInput, n, out},
            {"other", Role::kInput, n, in},
            {"dpre", Role::kGradient, n, in, kAct, nullptr, false, "other"}};
  c.forward = [activation](Call& a) {
    a.Run(GeluForward{.x = a["pre"], .y = a["x"], .kind = activation});
    a.Run(LinearForward{.x = a["x"], .w = a["w"], .y = a["y"]});
  };
  c.backward = [activation](Call& a) {
    a.Run(LinearBackwardInput{.dy = a["dy"],
                              .w = a["w"],
                              .add = a["other"],
                              .dx = a["dpre"],
                              .activation = activation,
                              .pre = a["pre"]});
  };
  c.forward_flops = c.backward_flops = 2.0 * n * in * out;
  return c;
}

OpCase EmbeddingCase(int64_t batch, int64_t seq_len, int64_t vocabulary, int64_t channels,
                     bool positions, int64_t offset) {
  const int64_t n = batch * seq_len;
  OpCase c;
  c.name = absl::StrCat("embedding ", n, "x", channels, positions ? " positions" : "");
  c.args = {{"tokens", Role::kInput, 1, n, kInt32, TokensBelow(vocabulary)},
            {"table", Role::kInput, vocabulary, channels},
            {"y", Role::kOutput, n, channels},
            {"dy", Role::kInput, n, channels},
            {"dtable", Role::kGradient, vocabulary, channels, kF32, nullptr, false, "dtable"}};
  if (positions) {
    const int64_t rows = offset + seq_len + 1;
    c.args.push_back({"positions", Role::kInput, rows, channels});
    c.args.push_back(
        {"dpositions", Role::kGradient, rows, channels, kF32, nullptr, false, "dpositions"});
  }
  c.forward = [=](Call& a) {
    a.Run(EmbeddingForward{.tokens = a["tokens"],
                           .table = a["table"],
                           .positions = a["positions"],
                           .y = a["y"],
                           .seq_len = seq_len,
                           .position_offset = offset});
  };
  c.backward = [=](Call& a) {
    a.Run(EmbeddingBackwardWeight{.tokens = a["tokens"],
                                  .dy = a["dy"],
                                  .dtable = a["dtable"],
                                  .dpositions = a["dpositions"],
                                  .seq_len = seq_len,
                                  .position_offset = offset});
  };
  c.forward_bytes = Floats(2.0 * n * channels);
  c.backward_bytes = Floats(3.0 * n * channels);
  return c;
}

OpCase RmsNormCase(int64_t n, int64_t channels, bool add) {
  OpCase c;
  c.name = absl::StrCat("rms_norm ", n, "x", channels, add ? " add" : "");
  c.args = {{"x", Role::kInput, n, channels},
            {"w", Role::kInput, 1, channels},
            {"y", Role::kOutput, n, channels},
            {"rstd", Role::kSaved, 1, n, kF32},
            {"dy", Role::kInput, n, channels},
            {"dx", Role::kGradient, n, channels, kAct, nullptr, false, add ? "dadd" : ""},
            {"dw", Role::kGradient, 1, channels, kF32, nullptr, false, "dw"}};
  if (add) c.args.push_back({"dadd", Role::kInput, n, channels});
  c.forward = [](Call& a) {
    a.Run(RmsNormForward{.x = a["x"], .w = a["w"], .y = a["y"], .rstd = a["rstd"]});
  };
  c.backward = [](Call& a) {
    a.Run(RmsNormBackwardInput{.dy = a["dy"],
                               .x = a["x"],
                               .w = a["w"],
                               .rstd = a["rstd"],
                               .add = a["dadd"],
                               .dx = a["dx"]});
    a.Run(RmsNormBackwardWeight{.dy = a["dy"], .x = a["x"], .rstd = a["rstd"], .dw = a["dw"]});
  };
  c.forward_bytes = Floats(2.0 * n * channels);
  c.backward_bytes = Floats((add ? 6.0 : 5.0) * n * channels);
  return c;
}

OpCase LayerNormCase(int64_t n, int64_t channels, bool add) {
  OpCase c;
  c.name = absl::StrCat("layer_norm ", n, "x", channels, add ? " add" : "");
  c.args = {{"x", Role::kInput, n, channels},
            {"w", Role::kInput, 1, channels},
            {"b", Role::kInput, 1, channels},
            {"y", Role::kOutput, n, channels},
            {"mean", Role::kSaved, 1, n, kF32},
            {"rstd", Role::kSaved, 1, n, kF32},
            {"dy", Role::kInput, n, channels},
            {"dx", Role::kGradient, n, channels, kAct, nullptr, false, add ? "dadd" : ""},
            {"dw", Role::kGradient, 1, channels, kF32, nullptr, false, "dw"},
            {"db", Role::kGradient, 1, channels, kF32, nullptr, false, "db"}};
  if (add) c.args.push_back({"dadd", Role::kInput, n, channels});
  c.forward = [](Call& a) {
    a.Run(LayerNormForward{
        .x = a["x"], .w = a["w"], .b = a["b"], .y = a["y"], .mean = a["mean"], .rstd = a["rstd"]});
  };
  c.backward = [](Call& a) {
    a.Run(LayerNormBackwardInput{.dy = a["dy"],
                                 .x = a["x"],
                                 .w = a["w"],
                                 .mean = a["mean"],
                                 .rstd = a["rstd"],
                                 .add = a["dadd"],
                                 .dx = a["dx"]});
    a.Run(LayerNormBackwardWeight{.dy = a["dy"],
                                  .x = a["x"],
                                  .mean = a["mean"],
                                  .rstd = a["rstd"],
                                  .dw = a["dw"],
                                  .db = a["db"]});
  };
  c.forward_bytes = Floats(2.0 * n * channels);
  c.backward_bytes = Floats((add ? 6.0 : 5.0) * n * channels);
  return c;
}

OpCase RopeCase(int64_t batch, int64_t seq_len, int64_t heads, int64_t head_dim, int64_t offset) {
  const int64_t n = batch * seq_len, channels = heads * head_dim;
  OpCase c;
  c.name = absl::StrCat("rope ", n, "x", heads, "x", head_dim);
  c.args = {{"x", Role::kInput, n, channels},
            {"table", Role::kSaved, offset + seq_len, head_dim, kF32},
            {"y", Role::kOutput, n, channels},
            {"dy", Role::kInput, n, channels},
            {"dx", Role::kGradient, n, channels}};
  c.forward = [=](Call& a) {
    a.Run(RopeTable{.table = a["table"], .theta = 500.0f});
    a.Run(Convert{.from = a["x"], .to = a["y"]});
    a.Run(Rope{.x = a["y"], .table = a["table"], .seq_len = seq_len, .position_offset = offset});
  };
  c.backward = [=](Call& a) {
    a.Run(Convert{.from = a["dy"], .to = a["dx"]});
    a.Run(Rope{.x = a["dx"],
               .table = a["table"],
               .seq_len = seq_len,
               .position_offset = offset,
               .inverse = true});
  };
  c.forward_bytes = c.backward_bytes = Floats(4.0 * n * channels);
  return c;
}

OpCase AttentionCase(int64_t batch, int64_t seq_len, int64_t heads, int64_t kv_heads,
                     int64_t head_dim) {
  const int64_t n = batch * seq_len, q = heads * head_dim, kv = kv_heads * head_dim;
  const AttentionShape shape = {batch,    seq_len,  heads,
                                kv_heads, head_dim, 1 / std::sqrt(static_cast<float>(head_dim))};
  OpCase c;
  c.name =
      absl::StrCat("attention B", batch, " T", seq_len, " H", heads, "/", kv_heads, " D", head_dim);
  c.args = {{"q", Role::kInput, n, q},
            {"k", Role::kInput, n, kv},
            {"v", Role::kInput, n, kv},
            {"out", Role::kOutput, n, q},
            {"lse", Role::kSaved, batch * heads, seq_len, kF32},
            {"dout", Role::kInput, n, q},
            {"dq", Role::kGradient, n, q},
            {"dk", Role::kGradient, n, kv},
            {"dv", Role::kGradient, n, kv}};
  c.forward = [shape](Call& a) {
    a.Run(AttentionForward{
        .shape = shape, .q = a["q"], .k = a["k"], .v = a["v"], .out = a["out"], .lse = a["lse"]});
  };
  c.backward = [shape](Call& a) {
    a.Run(AttentionBackward{.shape = shape,
                            .q = a["q"],
                            .k = a["k"],
                            .v = a["v"],
                            .out = a["out"],
                            .lse = a["lse"],
                            .dout = a["dout"],
                            .dq = a["dq"],
                            .dk = a["dk"],
                            .dv = a["dv"]});
  };
  // Two products forward, five backward, over half of each T x T square.
  const double product = static_cast<double>(n) * (seq_len + 1) * q;
  c.forward_flops = 2 * product;
  c.backward_flops = 5 * product;
  return c;
}

OpCase SwigluCase(int64_t n, int64_t channels) {
  OpCase c;
  c.name = absl::StrCat("swiglu ", n, "x", channels);
  c.args = {{"gate", Role::kInput, n, channels},     {"up", Role::kInput, n, channels},
            {"y", Role::kOutput, n, channels},       {"dy", Role::kInput, n, channels},
            {"dgate", Role::kGradient, n, channels}, {"dup", Role::kGradient, n, channels}};
  c.forward = [](Call& a) { a.Run(SwigluForward{.gate = a["gate"], .up = a["up"], .y = a["y"]}); };
  c.backward = [](Call& a) {
    a.Run(SwigluBackward{
        .gate = a["gate"], .up = a["up"], .dy = a["dy"], .dgate = a["dgate"], .dup = a["dup"]});
  };
  c.forward_bytes = Floats(3.0 * n * channels);
  c.backward_bytes = Floats(5.0 * n * channels);
  return c;
}

OpCase GeluCase(int64_t n, int64_t channels, Activation kind) {
  OpCase c;
  c.name = absl::StrCat("gelu ", n, "x", channels, Name(kind));
  c.args = {{"x", Role::kInput, n, channels},
            {"y", Role::kOutput, n, channels},
            {"dy", Role::kInput, n, channels},
            {"dx", Role::kGradient, n, channels}};
  c.forward = [kind](Call& a) { a.Run(GeluForward{.x = a["x"], .y = a["y"], .kind = kind}); };
  c.backward = [kind](Call& a) {
    a.Run(GeluBackward{.x = a["x"], .dy = a["dy"], .dx = a["dx"], .kind = kind});
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

// In place on f32 (axpy), and a scale behind it.
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

// Some targets are ignored. `in_place`: the gradient replaces the logits.
OpCase CrossEntropyCase(int64_t n, int64_t vocabulary, bool in_place) {
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
                       .grad_scale = scale});
  };
  if (!in_place) {
    c.backward = [=](Call& a) {
      a.Run(CrossEntropy{.logits = a["logits"],
                         .targets = a["targets"],
                         .dlogits = a["dlogits"],
                         .totals = a["again"],
                         .grad_scale = scale});
    };
  }
  c.forward_bytes = Floats((in_place ? 2.0 : 1.0) * n * vocabulary);
  c.backward_bytes = Floats(2.0 * n * vocabulary);
  return c;
}

OpCase AdamWCase(int64_t size, int64_t step, bool clip, bool copy) {
  OpCase c;
  c.name = absl::StrCat("adamw ", size, clip ? " clip" : "", copy ? " copy" : "");
  c.args = {{"param", Role::kState, 1, size, kF32, nullptr, true},
            {"grad", Role::kState, 1, size, kF32, nullptr, true},
            {"m", Role::kState, 1, size, kF32, nullptr, true},
            {"v", Role::kState, 1, size, kF32, Positive, true}};
  if (clip) c.args.push_back({"scale", Role::kInput, 1, 1, kF32, Constant(0.37)});
  if (copy) c.args.push_back({"copy", Role::kState, 1, size, Type::kBf16, nullptr, true});
  c.forward = [=](Call& a) {
    a.Run(AdamW{.param = a["param"],
                .grad = a["grad"],
                .m = a["m"],
                .v = a["v"],
                .grad_scale = a["scale"],
                .param_copy = a["copy"],
                .step = step,
                .lr = 1e-2,
                .weight_decay = 0.1,
                .zero_grad = clip});
  };
  if (copy) c.tolerance = 1.0 / 128;
  c.forward_bytes = Floats((clip ? 8.0 : 7.0) * size);
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

}  // namespace

std::vector<OpCase> TestCases() {
  const auto tanh = Activation::kGeluTanh, erf = Activation::kGeluErf;
  return {
      LinearCase(7, 5, 9, false, false),
      LinearCase(300, 33, 20, true, false),
      LinearCase(4, 16, 150, false, true),
      LinearCase(19, 24, 33, true, true, tanh),
      LinearCase(5, 7, 16, false, false, erf),
      ActivatedInputCase(9, 18, 11, tanh),
      ActivatedInputCase(3, 16, 4, erf),
      EmbeddingCase(2, 7, 11, 5, false, 0),
      EmbeddingCase(3, 5, 6, 70, true, 2),
      RmsNormCase(5, 16, false),
      RmsNormCase(150, 37, true),
      LayerNormCase(5, 16, false),
      LayerNormCase(150, 37, true),
      RopeCase(2, 5, 3, 4, 0),
      RopeCase(1, 9, 2, 40, 3),
      AttentionCase(1, 1, 1, 1, 4),
      AttentionCase(2, 19, 2, 2, 8),
      AttentionCase(1, 67, 4, 2, 16),
      AttentionCase(1, 130, 6, 1, 20),
      AttentionCase(2, 64, 2, 2, 48),
      SwigluCase(7, 33),
      GeluCase(7, 33, tanh),
      GeluCase(7, 33, erf),
      AddScaledCase(5, 19, kF32, kF32, kF32),
      AddScaledCase(5, 19, kF32, Type::kBf16, kF32),
      AddScaledCase(5, 19, kF32, kF32, Type::kBf16),
      InPlaceCase(6, 21),
      ConvertCase(5, 35),
      CrossEntropyCase(11, 23, false),
      CrossEntropyCase(7, 256, true),
      CrossEntropyCase(900, 20, false),
      AdamWCase(1000, 1, false, false),
      AdamWCase(70'003, 100, true, true),
      ClipCase(40'001, 1.0f),
      ClipCase(3, 1e6f),
  };
}

std::vector<OpCase> BenchmarkCases() {
  const int64_t n = 2048, d = 256, f = 688, vocabulary = 256, parameters = 6'400'000;
  const auto tanh = Activation::kGeluTanh;
  return {
      LinearCase(n, d, d, false, true),
      LinearCase(n, d, 3 * d, false, false),
      LinearCase(n, d, 2 * f, false, false),
      LinearCase(n, f, d, false, true),
      LinearCase(n, d, 4 * d, true, false, tanh),
      LinearCase(n, 1024, 1024, false, false),
      EmbeddingCase(8, 256, vocabulary, d, false, 0),
      RmsNormCase(n, d, true),
      LayerNormCase(n, d, true),
      RopeCase(8, 256, 8, 32, 0),
      AttentionCase(8, 256, 8, 8, 32),
      AttentionCase(2, 1024, 12, 4, 64),
      SwigluCase(n, f),
      GeluCase(n, 4 * d, tanh),
      AddScaledCase(n, d, kF32, kF32, kF32),
      ConvertCase(n, d),
      CrossEntropyCase(n, vocabulary, true),
      AdamWCase(parameters, 10, true, false),
      ClipCase(parameters, 1.0f),
  };
}

}  // namespace atl::testing
