#include "kernels/testing/communicator_cases.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <thread>

#include "common/rng.h"
#include "kernels/bfloat16.h"
#include "kernels/testing/reference/reference.h"

namespace atl::testing {
namespace {

using Floats = std::vector<float>;

constexpr Duration kLong = std::chrono::seconds(60);  // passes only if something hangs

enum class Kind { kSum, kMax };

template <typename T>
absl::Status Reduce(Communicator& member, std::vector<T>& x, Kind kind = Kind::kSum) {
  const auto backend = NewReferenceBackend();
  const auto stream = *backend->NewStream();
  const Tensor tensor(x.data(), GetDType<T>(), 1, static_cast<int64_t>(x.size()));
  return kind == Kind::kSum ? member.AllReduceSum(*backend, *stream, tensor)
                            : member.AllReduceMax(*backend, *stream, tensor);
}

// Calls body(rank) on a thread per rank in [first, last) and waits for all.
template <typename Body>
void OnThreads(int first, int last, const Body& body) {
  std::vector<std::jthread> threads;
  for (int rank = first; rank < last; ++rank) threads.emplace_back([&body, rank] { body(rank); });
}

// A number for every member and element.
std::vector<Floats> Numbers(int members, size_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<Floats> numbers(members, Floats(count));
  for (Floats& of_member : numbers) {
    for (float& x : of_member) x = static_cast<float>(rng.Normal());
  }
  return numbers;
}

// Every member's numbers after a collective. REQUIRES that all succeed.
template <typename T>
std::vector<std::vector<T>> Reduced(Members& members, std::vector<std::vector<T>> numbers,
                                    Kind kind = Kind::kSum) {
  std::vector<absl::Status> statuses(members.size());
  OnThreads(0, static_cast<int>(members.size()),
            [&](int rank) { statuses[rank] = Reduce(*members[rank], numbers[rank], kind); });
  for (const absl::Status& status : statuses) {
    INFO(status);
    REQUIRE(status.ok());
  }
  return numbers;
}

void SumsAndMaxima(const MakeMembers& make, const CommunicatorLimits& limits) {
  for (const int size : {1, 2, 3, 5}) {
    if (size > limits.members) break;
    Members members = make(size, kLong);
    for (const size_t count : {0, 1, 2, 64, 193, 20'011}) {
      CAPTURE(size, count);
      const std::vector<Floats> numbers = Numbers(size, count, 10 * size + count);
      const std::vector<Floats> sums = Reduced(members, numbers);
      const std::vector<Floats> maxima = Reduced(members, numbers, Kind::kMax);
      for (size_t i = 0; i < count; ++i) {
        double sum = 0, largest = numbers[0][i];
        for (const Floats& of_member : numbers) {
          sum += of_member[i];
          largest = std::max(largest, double{of_member[i]});
        }
        if (std::abs(sums[0][i] - sum) > 1e-5) FAIL("sum " << sums[0][i] << " is not " << sum);
        if (maxima[0][i] != largest) FAIL("maximum " << maxima[0][i] << " is not " << largest);
      }
    }
  }
}

// Unequal parts, one of them empty.
Cuts UnevenCuts(int size, size_t count) {
  const auto n = static_cast<int64_t>(count);
  Cuts cuts = {0};
  for (int r = 1; r < size; ++r) cuts.push_back(r == 2 ? cuts.back() : std::min(n, n * r / 7 + r));
  cuts.push_back(n);
  return cuts;
}

// Every member's numbers after call(member, backend, stream, tensor). REQUIRES that all succeed.
template <typename Call>
std::vector<Floats> After(Members& members, std::vector<Floats> numbers, const Call& call) {
  std::vector<absl::Status> statuses(members.size());
  OnThreads(0, static_cast<int>(members.size()), [&](int rank) {
    const auto backend = NewReferenceBackend();
    const auto stream = *backend->NewStream();
    Floats& own = numbers[rank];
    const Tensor x(own.data(), DType::kFloat32, 1, static_cast<int64_t>(own.size()));
    statuses[rank] = call(*members[rank], *backend, *stream, x);
  });
  for (const absl::Status& status : statuses) {
    INFO(status);
    REQUIRE(status.ok());
  }
  return numbers;
}

void PartsAreSummed(const MakeMembers& make, const CommunicatorLimits& limits) {
  for (const int size : {1, 2, 3, 5}) {
    if (size > limits.members) break;
    Members members = make(size, kLong);
    for (const size_t count : {0, 9, 193, 200'011}) {
      CAPTURE(size, count);
      const Cuts cuts = UnevenCuts(size, count);
      const std::vector<Floats> numbers = Numbers(size, count, 20 * size + count);
      const auto sums =
          After(members, numbers, [&](Communicator& member, Backend& b, Stream& s, Tensor x) {
            return member.ReduceScatterSum(b, s, x, cuts);
          });
      for (int rank = 0; rank < size; ++rank) {
        for (int64_t i = cuts[rank]; i < cuts[rank + 1]; ++i) {
          double sum = 0;
          for (const Floats& of_member : numbers) sum += of_member[i];
          if (std::abs(sums[rank][i] - sum) > 1e-5) FAIL(sums[rank][i] << " is not " << sum);
        }
      }
    }
  }
}

void PartsAreAllGathered(const MakeMembers& make, const CommunicatorLimits& limits) {
  for (const int size : {1, 2, 3, 5}) {
    if (size > limits.members) break;
    Members members = make(size, kLong);
    const auto routes = [](int from, int to) { return from % 2 == to % 2 || from == 0; };
    for (const size_t count : {0, 9, 193, 200'011}) {
      CAPTURE(size, count);
      const Cuts cuts = UnevenCuts(size, count);
      const std::vector<Floats> numbers = Numbers(size, count, 30 * size + count);
      const auto gathered =
          After(members, numbers, [&](Communicator& member, Backend& b, Stream& s, Tensor x) {
            return member.AllGather(b, s, x, cuts, routes);
          });
      for (int from = 0; from < size; ++from) {
        for (int to = 0; to < size; ++to) {
          for (int64_t i = cuts[from]; i < cuts[from + 1]; ++i) {
            const bool copied = gathered[to][i] == numbers[from][i];
            const bool kept = gathered[to][i] == numbers[to][i];
            const bool routed = from == to || routes(from, to);
            if (!copied && (routed || !kept)) FAIL(from << " to " << to << ", element " << i);
          }
        }
      }
    }
  }
}

void SameBits(const MakeMembers& make, const CommunicatorLimits& limits) {
  const int size = std::min(4, limits.members);
  const std::vector<Floats> numbers = Numbers(size, 5000, 3);
  std::vector<Floats> first;
  for (int group = 0; group < 2; ++group) {
    Members members = make(size, kLong);
    for (int again = 0; again < 10; ++again) {
      const std::vector<Floats> sums = Reduced(members, numbers);
      if (first.empty()) first = sums;
      for (const Floats& of_member : sums) REQUIRE(of_member == first[0]);
    }
  }
}

void OtherTypes(const MakeMembers& make, const CommunicatorLimits&) {
  Members members = make(3, kLong);
  const double tiny = std::ldexp(1, -40);  // nothing beside 1 in f32
  const auto wide = Reduced<double>(members, {{1, 2}, {tiny, 3}, {tiny, 4}});
  for (const auto& of_member : wide) REQUIRE(of_member == std::vector<double>{1 + 2 * tiny, 9});

  // In bf16, 256 + 1 is 256 again: the sum is rounded only once.
  const auto half = [](float x) { return RoundToBfloat16(x); };
  const auto narrow = Reduced<Bfloat16>(members, {{half(256)}, {half(1)}, {half(1)}});
  for (const auto& of_member : narrow) REQUIRE(WidenBfloat16(of_member[0]) == 258);
}

void NotFinite(const MakeMembers& make, const CommunicatorLimits&) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  Members members = make(3, kLong);
  const std::vector<Floats> numbers = {{1, NAN, 1, -kInf}, {NAN, 2, kInf, -kInf}, {3, 3, 5, -kInf}};
  for (const Kind kind : {Kind::kSum, Kind::kMax}) {
    for (const Floats& of_member : Reduced(members, numbers, kind)) {
      REQUIRE((std::isnan(of_member[0]) && std::isnan(of_member[1])));
      REQUIRE(of_member[2] == kInf);
      REQUIRE(of_member[3] == -kInf);
    }
  }
}

void ManyInARow(const MakeMembers& make, const CommunicatorLimits& limits) {
  constexpr int kRounds = 100;
  const int size = std::min(3, limits.members), last = size - 1;
  Members members = make(size, kLong);
  std::vector<Floats> sums(static_cast<size_t>(size));
  OnThreads(0, size, [&](int rank) {
    Floats x(1), y(130);
    for (int round = 0; round < kRounds; ++round) {
      x[0] = static_cast<float>(round + rank);
      y.assign(y.size(), static_cast<float>(rank));
      if (!Reduce(*members[rank], x).ok() || !Reduce(*members[rank], y, Kind::kMax).ok()) return;
      sums[rank].push_back(x[0] + y[129]);
    }
  });
  for (const Floats& of_member : sums) {
    REQUIRE(of_member.size() == kRounds);
    for (int round = 0; round < kRounds; ++round) {
      REQUIRE(of_member[round] == size * round + size * last / 2 + last);
    }
  }
}

bool IsEnd(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kAborted ||
         status.code() == absl::StatusCode::kDeadlineExceeded;
}

// All but the last member come to a collective; then `end` is called, on the test's thread.
// What they, and they again, return.
template <typename End>
std::vector<absl::Status> WithoutTheLast(Members& members, const End& end) {
  const int last = static_cast<int>(members.size()) - 1;
  std::vector<absl::Status> statuses(2 * last);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < last; ++rank) {
      threads.emplace_back([&, rank] {
        Floats x(100, 1), y(100, 1);
        statuses[rank] = Reduce(*members[rank], x);
        statuses[last + rank] = Reduce(*members[rank], y);
      });
    }
    end();
  }
  return statuses;
}

void MissingMember(const MakeMembers& make, const CommunicatorLimits& limits) {
  Members members = make(std::min(3, limits.members), limits.shortest);
  const auto statuses = WithoutTheLast(members, [] {});
  bool late = false;
  for (const absl::Status& status : statuses) {
    INFO(status);
    REQUIRE(IsEnd(status));
    late = late || status.code() == absl::StatusCode::kDeadlineExceeded;
  }
  REQUIRE(late);  // the others may have seen that one end
}

void LostMember(const MakeMembers& make, const CommunicatorLimits&) {
  Members members = make(3, kLong);
  for (const absl::Status& status : WithoutTheLast(members, [&] { members.back().reset(); })) {
    INFO(status);
    REQUIRE(status.code() == absl::StatusCode::kUnavailable);
  }
}

void AbortEnds(const MakeMembers& make, const CommunicatorLimits&) {
  Members members = make(3, kLong);
  const auto statuses = WithoutTheLast(members, [&] { members[0]->Abort("a new plan"); });
  for (const int call : {0, 2}) {  // rank 0's
    REQUIRE(statuses[call].code() == absl::StatusCode::kAborted);
    REQUIRE(statuses[call].message().find("a new plan") != absl::string_view::npos);
  }
  for (const int call : {1, 3}) {
    INFO(statuses[call]);
    REQUIRE(
        (IsEnd(statuses[call]) && statuses[call].code() != absl::StatusCode::kDeadlineExceeded));
  }
  // The last member comes afterwards. What rank 0 sent before the Abort may have reached it, and
  // with it a whole first sum; of the second one rank 0 sent nothing.
  Floats first(100, 1), second(100, 1);
  const absl::Status status = Reduce(*members[2], first);
  INFO(status);
  REQUIRE((IsEnd(status) || (status.ok() && first == Floats(100, 3))));
  const absl::Status again = Reduce(*members[2], second);
  INFO(again);
  REQUIRE(IsEnd(again));
}

void AbortOfTheFirstReason(const MakeMembers& make, const CommunicatorLimits&) {
  Members members = make(2, kLong);
  members[1]->Abort("one");
  members[1]->Abort("two");
  Floats x(3);
  const absl::Status status = Reduce(*members[1], x);
  REQUIRE(status.code() == absl::StatusCode::kAborted);
  REQUIRE(status.message().find("one") != absl::string_view::npos);
}

}  // namespace

std::vector<CommunicatorCase> CommunicatorCases(const CommunicatorLimits& limits) {
  using Body = void (*)(const MakeMembers&, const CommunicatorLimits&);
  const std::vector<std::pair<std::string, Body>> bodies = {
      {"sums and maxima over groups of several sizes", SumsAndMaxima},
      {"parts of a sum where they are wanted", PartsAreSummed},
      {"parts that are copied where they are routed", PartsAreAllGathered},
      {"the same bits on all members, every time", SameBits},
      {"sums in f64 and bf16", OtherTypes},
      {"what is not a finite number passes", NotFinite},
      {"many collectives in a row", ManyInARow},
      {"a member that does not come ends the others' wait in time", MissingMember},
      {"a member that is destroyed ends the others' wait at once", LostMember},
      {"Abort ends waits at once, for good", AbortEnds},
      {"the first reason of an Abort stays", AbortOfTheFirstReason},
  };
  std::vector<CommunicatorCase> cases;
  for (const auto& [name, body] : bodies) {
    cases.push_back({name, [body = body, limits](const MakeMembers& make) { body(make, limits); }});
  }
  return cases;
}

}  // namespace atl::testing
