// Routers and experts.

#include "kernels/testing/case_makers.h"

namespace atl::testing {
namespace {

// The numbers of a row are so far apart that no slope's step changes their order.
double Logit(int64_t i) { return static_cast<double>((i * 7919 + 13) % 257) / 16 - 8; }

// The j-th of k experts of a token; those of one token differ. Not all experts are chosen.
auto Chosen(int64_t k, int64_t experts) {
  return [=](int64_t i) {
    const int64_t token = i / k, j = i % k;
    return static_cast<double>((token * token % 5 + 3 * j) % experts);
  };
}

Arg Whole(const std::string& name, Role role, int64_t rows, int64_t cols,
          std::function<double(int64_t)> value = nullptr) {
  return {name, role, rows, cols, kInt32, std::move(value), true};
}

constexpr float kBalance = 0.75f, kZ = 0.01f;

RouterLosses Losses(Call& a, int64_t sequences, const std::string& totals) {
  if (sequences == 0) return {};
  return {.balance = kBalance,
          .z = kZ,
          .share = a["share"],
          .counts = a["counts"],
          .starts = a["starts"],
          .terms = a["terms"],
          .totals = a[totals],
          .loads = a["loads"]};
}

// Puts tokens in order, through the experts, and back.
void RunExperts(Call& a, int64_t hidden, int64_t first) {
  const Tensor up = a["up"];
  a.Run(GroupTokens{a["experts"], first, a["group_starts"], a["assignments"], a["rows"]});
  a.Run(GatherRows{a["x"], a["assignments"], a["rows"].cols, a["sorted"]});
  a.Run(GroupedForward{a["sorted"], a["w"].Rows(0, 2 * hidden), 2 * hidden * a["w"].stride,
                       a["group_starts"], up});
  a.Run(WeightedGatedForward{up.Columns(0, hidden), up.Columns(hidden, hidden), a["weights"],
                             a["assignments"], a["hidden"], Activation::kSilu});
  a.Run(GroupedForward{a["hidden"], a["down"].Rows(0, a["x"].cols), a["x"].cols * a["down"].stride,
                       a["group_starts"], a["sorted_y"]});
  a.Run(AddRows{a["sorted_y"], a["rows"], a["add"], a["y"]});
}

void RunExpertsBackward(Call& a, int64_t hidden) {
  const int64_t d = a["x"].cols;
  const Tensor up = a["up"], dup = a["dup"], dw = a["dw"], ddown = a["ddown"];
  a.backend().Zero(a.stream(), a["dweights"]);
  a.Run(GatherRows{a["dy"], a["assignments"], a["rows"].cols, a["sorted_y"]});
  a.Run(GroupedBackwardInput{a["sorted_y"], a["down"].Rows(0, d), d * a["down"].stride,
                             a["group_starts"], a["dhidden"]});
  a.Run(WeightedGatedBackward{up.Columns(0, hidden), up.Columns(hidden, hidden), a["weights"],
                              a["assignments"], a["dhidden"], dup.Columns(0, hidden),
                              dup.Columns(hidden, hidden), a["dweights"], Activation::kSilu});
  a.Run(GroupedBackwardWeight{a["hidden"], a["sorted_y"], a["group_starts"], ddown.Rows(0, d),
                              d * ddown.stride});
  a.Run(GroupedBackwardWeight{a["sorted"], dup, a["group_starts"], dw.Rows(0, 2 * hidden),
                              2 * hidden * dw.stride});
  a.Run(GroupedBackwardInput{dup, a["w"].Rows(0, 2 * hidden), 2 * hidden * a["w"].stride,
                             a["group_starts"], a["dsorted"]});
  a.Run(AddRows{a["dsorted"], a["rows"], Tensor(), a["dx"]});
}

}  // namespace

OpCase RouterCase(int64_t n, int64_t experts, int64_t k, const RouterRule& rule, bool biased,
                  int64_t sequences) {
  OpCase c;
  c.name = absl::StrCat(
      "router ", n, "x", k, " of ", experts, rule.score == RouterScore::kSigmoid ? " sigmoid" : "",
      rule.normalise ? " normalised" : "", biased ? " biased" : "", sequences > 0 ? " losses" : "");
  c.args = {{"logits", Role::kInput, n, experts, kAct, Logit},
            Whole("experts", Role::kSaved, n, k),
            {"weights", Role::kOutput, n, k, kF32},
            {"dweights", Role::kInput, n, k, kF32},
            {"dlogits", Role::kGradient, n, experts}};
  if (biased) {
    c.args.push_back({"bias", Role::kInput, 1, experts, kF32,
                      [experts](int64_t e) { return 1.5 * static_cast<double>(e * 5 % experts); }});
  }
  if (sequences > 0) {
    c.args.push_back(Whole("counts", Role::kSaved, sequences, experts));
    c.args.push_back({"none", Role::kInput, n, k, kF32, [](int64_t) { return 0.0; }});
    c.args.push_back({"terms", Role::kSaved, 2, n, kF32});
    c.args.push_back({"dlogits_of_none", Role::kSaved, n, experts});
    c.args.push_back({"share", Role::kInput, 1, 1, kF32,
                      [sequences](int64_t) { return 1 / static_cast<double>(sequences); }});
    const int64_t length = n / sequences, padding = std::max<int64_t>(0, length - 2);
    // Two documents; of every other sequence what is behind its first two tokens is padding.
    c.args.push_back(Whole("starts", Role::kInput, 1, n, [length, padding](int64_t i) {
      const int64_t at = i % length;
      if (at < 2 || padding < 2) return 0.0;
      return static_cast<double>(i / length % 2 == 0 ? at : 2);
    }));
    c.args.push_back({"totals", Role::kOutput, 1, 2 + experts, kF32, nullptr, true});
    c.args.push_back({"dtotals", Role::kInput, 1, 2 + experts, kF32, [](int64_t i) {
                        return i == 0 ? double{kBalance} : i == 1 ? double{kZ} : 0.0;
                      }});
    c.args.push_back({"again", Role::kState, 1, 2 + experts, kF32, [](int64_t) { return 3.0; }});
    c.args.push_back({"loads", Role::kState, 1, experts, kF32, [](int64_t e) { return e % 3; }});
  }
  c.forward = [=](Call& a) {
    a.Run(RouteForward{rule, a["logits"], a["bias"], a["experts"], a["weights"]});
    if (sequences == 0) return;
    a.Run(CountExperts{a["experts"], a["counts"], a["starts"]});
    a.backend().Zero(a.stream(), a["totals"]);
    a.Run(RouteBackward{rule, a["logits"], a["experts"], a["none"], a["dlogits_of_none"],
                        Losses(a, sequences, "totals")});
  };
  c.backward = [=](Call& a) {
    a.Run(RouteBackward{rule, a["logits"], a["experts"], a["dweights"], a["dlogits"],
                        Losses(a, sequences, "again")});
  };
  return c;
}

OpCase BalanceCase(int64_t experts, bool copy) {
  OpCase c;
  c.name = absl::StrCat("balance of ", experts, " experts", copy ? " copy" : "");
  c.args = {{"bias", Role::kState, 1, experts, kF32},
            {"loads", Role::kState, 1, experts, kF32, [](int64_t e) { return e % 3 - 1.0; }}};
  if (copy) c.args.push_back({"copy", Role::kOutput, 1, experts, Type::kBf16});
  c.forward = [=](Call& a) {
    a.Run(BalanceExperts{a["bias"], a["loads"], a["copy"], 0.25f, copy});
  };
  return c;
}

OpCase ExpertsCase(int64_t n, int64_t d, int64_t hidden, int64_t experts, int64_t k, int64_t first,
                   int64_t here, bool add) {
  const int64_t room = n * std::min(k, here);
  OpCase c;
  c.name = absl::StrCat("experts ", n, "x", d, "->", hidden, ", ", k, " of ", experts, ", ", here,
                        " here", add ? " add" : "");
  c.args = {{"x", Role::kInput, n, d},
            Whole("experts", Role::kInput, n, k, Chosen(k, experts)),
            {"weights", Role::kInput, n, k, kF32},
            {"w", Role::kInput, here * 2 * hidden, d},
            {"down", Role::kInput, here * d, hidden},
            Whole("group_starts", Role::kSaved, 1, here + 1),
            Whole("assignments", Role::kSaved, 1, room),
            Whole("rows", Role::kSaved, n, k),
            {"sorted", Role::kSaved, room, d},
            {"up", Role::kSaved, room, 2 * hidden},
            {"hidden", Role::kSaved, room, hidden},
            {"sorted_y", Role::kSaved, room, d},
            {"y", Role::kOutput, n, d},
            {"dy", Role::kInput, n, d},
            {"dhidden", Role::kSaved, room, hidden},
            {"dup", Role::kSaved, room, 2 * hidden},
            {"dsorted", Role::kSaved, room, d},
            {"dx", Role::kGradient, n, d},
            {"dw", Role::kGradient, here * 2 * hidden, d, kF32, nullptr, false, "dw"},
            {"ddown", Role::kGradient, here * d, hidden, kF32, nullptr, false, "ddown"},
            {"dweights", Role::kGradient, n, k, kF32, nullptr, true}};
  if (add) c.args.push_back({"add", Role::kInput, n, d});
  c.forward = [=](Call& a) { RunExperts(a, hidden, first); };
  c.backward = [=](Call& a) { RunExpertsBackward(a, hidden); };
  c.forward_flops = 6.0 * static_cast<double>(room * d * hidden);
  c.backward_flops = 2 * c.forward_flops;
  return c;
}

std::vector<OpCase> ExpertTestCases() {
  constexpr auto kSoftmax = RouterScore::kSoftmax, kSigmoid = RouterScore::kSigmoid;
  return {
      RouterCase(7, 5, 2, {kSoftmax, false, 1.0f}, false),
      RouterCase(9, 40, 8, {kSoftmax, true, 1.0f}, false, 3),
      RouterCase(12, 8, 2, {kSoftmax, false, 2.0f}, false, 2),
      RouterCase(6, 16, 4, {kSigmoid, true, 2.5f}, true),
      RouterCase(8, 9, 3, {kSigmoid, true, 1.0f}, false, 2),
      RouterCase(11, 1, 1, {kSigmoid, false, 1.0f}, false),
      BalanceCase(7, false),
      BalanceCase(40, true),
      ExpertsCase(13, 8, 6, 4, 1, 0, 4, false),
      ExpertsCase(37, 24, 16, 11, 2, 0, 11, true),
      ExpertsCase(37, 12, 10, 11, 4, 3, 5, true),
      ExpertsCase(10, 7, 5, 8, 2, 6, 1, false),
      ExpertsCase(300, 9, 7, 4, 2, 0, 4, true),
      ExpertsCase(300, 136, 72, 4, 2, 0, 4, true),
  };
}

}  // namespace atl::testing
