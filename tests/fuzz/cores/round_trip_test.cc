// An encoder refuses what a decoder refuses: every kind of message and record, with fields at and
// beyond their limits.

#include <catch2/catch.hpp>
#include <limits>
#include <string>

#include "common/protocol/control.h"
#include "common/rng.h"
#include "coordinator/core/records.fields.h"
#include "coordinator/core/records.h"
#include "proto/control.fields.h"

namespace atl {
namespace {

// A visitor that fills plain structs (wire_visitor.h), most fields with what is taken, some with
// what is at a limit or beyond it.
class Filler {
 public:
  static constexpr bool kEncodes = false;

  Filler(Rng* rng, double extreme) : rng_(*rng), extreme_(extreme) {}

  template <class T, class P, class Set>
  void Number(absl::string_view, T& plain, P, Set, int64_t least, int64_t most) {
    plain = static_cast<T>(Whole(least, most));
  }
  void Copy(absl::string_view, double& plain, double, auto) { plain = Real(); }
  void Any(absl::string_view, double& plain, double, auto) { plain = Real(); }
  void Copy(absl::string_view, std::string& plain, const std::string&, auto) {
    plain = Text(kMaxTextBytes);
  }
  void Bytes(absl::string_view, std::string& plain, const std::string&, auto) {
    plain = Text(kMaxTextBytes);
  }
  template <class T, class P>
  void Copy(absl::string_view, T& plain, const P&, auto) {
    plain = static_cast<T>(rng_.Below(2));
  }
  void Name(absl::string_view, std::string& plain, const std::string&, auto, size_t limit) {
    plain = Text(limit);
  }
  template <class T, class Present>
  void Optional(absl::string_view field, T& plain, Present, T value, auto set) {
    Copy(field, plain, value, set);
  }
  template <class T, class Present>
  void Optional(absl::string_view, T& plain, Present, T, auto, int64_t least, int64_t most) {
    plain = static_cast<T>(Whole(least, most));
  }
  template <class T, class P, class IsValid>
  void Enum(absl::string_view, T& plain, P, IsValid is_valid, auto) {
    do {
      plain = static_cast<T>(rng_.Below(12));
    } while (!IsExtreme() && !is_valid(static_cast<int>(plain) + 1));
  }
  template <class List, class Repeated>
  void Messages(absl::string_view, List& plain, Repeated* repeated, int limit) {
    plain.resize(Size(limit));
    for (auto& item : plain) Fields(*this, item, *repeated->Add());
  }
  template <class List, class Repeated>
  void Numbers(absl::string_view, List& plain, Repeated*, int limit, int64_t least, int64_t most) {
    plain.resize(Size(limit));
    for (auto& value : plain) {
      value = static_cast<std::decay_t<decltype(value)>>(Whole(least, most));
    }
  }
  template <class List, class Repeated>
  void Values(absl::string_view, List& plain, Repeated*, int limit) {
    plain.resize(Size(limit));
    for (auto& value : plain) Copy("", value, value, nullptr);
  }
  template <class List, class Repeated>
  void AnyValues(absl::string_view field, List& plain, Repeated* repeated, int limit) {
    Values(field, plain, repeated, limit);
  }
  template <class List, class Repeated, class IsValid>
  void Names(absl::string_view, List& plain, Repeated*, int limit, IsValid) {
    plain.resize(Size(limit));
    for (std::string& name : plain) name = IsExtreme() ? Text(80) : "w1/0";
  }
  template <class T, class Mutable>
  void Maybe(std::optional<T>& plain, bool, Mutable message) {
    if (rng_.Chance(0.5)) Fields(*this, plain.emplace(), *message());
  }
  template <class T, class Variant, class Mutable>
  void Alternative(Variant& variant, bool, Mutable message) {
    if (rng_.Chance(0.2)) Fields(*this, variant.template emplace<T>(), *message());
  }
  template <class Find>
  bool Check(Find) {
    return true;
  }
  template <class Find>
  void CheckMade(Find) {}

 private:
  bool IsExtreme() { return rng_.Chance(extreme_); }
  int64_t Whole(int64_t least, int64_t most) {
    if (!IsExtreme()) return std::clamp<int64_t>(static_cast<int64_t>(rng_.Below(3)), least, most);
    const int64_t numbers[] = {least,   least == kMinInt ? least : least - 1,
                               most,    most == kMaxInt ? most : most + 1,
                               -1,      0,
                               kMaxInt, kMinInt};
    return numbers[rng_.Below(std::size(numbers))];
  }
  double Real() {
    using Limits = std::numeric_limits<double>;
    if (!IsExtreme()) return 0.5;
    const double numbers[] = {
        0, -1, Limits::max(), Limits::lowest(), Limits::infinity(), Limits::quiet_NaN()};
    return numbers[rng_.Below(std::size(numbers))];
  }
  std::string Text(size_t limit) {
    if (!IsExtreme()) return "w1";
    const std::string texts[] = {"", std::string(limit, 'x'), std::string(limit + 1, 'x'),
                                 "\xff\xfe", "\xc3"};
    return texts[rng_.Below(std::size(texts))];
  }
  size_t Size(int limit) {
    if (IsExtreme() && limit < 64) return static_cast<size_t>(limit) + rng_.Below(2);
    return rng_.Below(3);
  }

  Rng& rng_;
  const double extreme_;
};

struct Counts {
  int taken = 0, refused = 0;
};

template <class Plain, class Wire>
void TryOne(Rng& rng, double extreme, Counts& counts) {
  Plain plain;
  Wire scratch, wire;
  Filler filler(&rng, extreme);
  Fields(filler, plain, scratch);
  MessageWriter encoder;
  Fields(encoder, plain, wire);
  const std::string bytes = wire.SerializeAsString();
  MessageReader decoder;
  Plain back;
  Fields(decoder, back, wire);
  INFO(Wire::descriptor()->full_name() << ", encoding: " << encoder.status().ToString()
                                       << ", decoding: " << decoder.status().ToString());
  ++(encoder.status().ok() ? counts.taken : counts.refused);
  REQUIRE((decoder.status().ok() || !encoder.status().ok()));
  if (!encoder.status().ok()) return;
  REQUIRE(Wire().ParseFromString(bytes));
  Wire again;
  MessageWriter once_more;
  Fields(once_more, back, again);
  REQUIRE(once_more.status().ok());
  REQUIRE(again.SerializeAsString() == bytes);
}

template <class Plain, class Wire>
void Try() {
  Rng rng(7);
  Counts counts;
  for (int i = 0; i < 3000; ++i) TryOne<Plain, Wire>(rng, i % 3 == 0 ? 0.2 : 0.01, counts);
  INFO(Wire::descriptor()->full_name());
  CHECK(counts.taken > 0);
  CHECK(counts.refused > 0);
}

TEST_CASE("what_a_decoder_refuses_of_a_message_its_encoder_refuses") {
  Try<FromWorker, v1::FromWorker>();
  Try<ToWorker, v1::ToWorker>();
  Try<FromServer, v1::FromServer>();
  Try<ToServer, v1::ToServer>();
  Try<JobDefinition, v1::JobDefinition>();
  Try<DeviceProfile, v1::DeviceProfile>();
}

TEST_CASE("what_a_decoder_refuses_of_a_record_its_encoder_refuses") {
  Try<EpochRecord, v1::stored::Epoch>();
  Try<MemberRecord, v1::stored::Member>();
  Try<JobRecord, v1::stored::Job>();
  Try<ProgressRecord, v1::stored::Progress>();
  Try<IslandRecord, v1::stored::Island>();
  Try<ContributionRecord, v1::stored::Contribution>();
  Try<DecisionRecord, v1::stored::Decision>();
  Try<PenaltyRecord, v1::stored::Penalty>();
  Try<LedgerRecord, v1::stored::Ledger>();
  Try<PlanRecord, v1::stored::IslandPlan>();
  Try<LinkRecord, v1::stored::LiveLink>();
  Try<DeviceRecord, v1::stored::LiveDevice>();
  Try<RemovedRecord, v1::stored::Removed>();
}

}  // namespace
}  // namespace atl
