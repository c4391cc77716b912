// Plain structs as bytes, every field of them, without a list of fields: structured bindings name
// as many as an aggregate takes. What is written by one build is read by the same build alone: the
// layout is the code's, and no number of a version is in the bytes.
//
// Numbers, enums, times, texts, std containers, optionals, variants, shared pointers, absl::Status
// and absl::StatusOr are written; functions are left out, and read as they are. Classes without
// padding that may be copied byte by byte are; another one with private fields, bases, or others
// than are written, has
//
//   template <class V>
//   void VisitFields(V& v) { v(a_, b_); }

#ifndef ATOLL_COMMON_PLAIN_FIELDS_H_
#define ATOLL_COMMON_PLAIN_FIELDS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/time.h"

namespace atl {
namespace plain_fields {

template <class T, template <class...> class Of>
inline constexpr bool kIs = false;
template <template <class...> class Of, class... A>
inline constexpr bool kIs<Of<A...>, Of> = true;
template <class T>
inline constexpr bool kIsArray = false;
template <class T, size_t n>
inline constexpr bool kIsArray<std::array<T, n>> = true;

template <class T>
concept HasVisitFields = requires {
  &T::template VisitFields<std::monostate>;
};
template <class T>
inline constexpr bool kIsTime = std::is_same_v<T, Duration> || std::is_same_v<T, Instant>;
inline int64_t Nanoseconds(Duration time) { return time.count(); }
inline int64_t Nanoseconds(Instant time) { return time.time_since_epoch().count(); }

// Names of eight fields less some, and as many initialisers.
#define ATOLL_N1(p) p##1
#define ATOLL_N2(p) ATOLL_N1(p), p##2
#define ATOLL_N3(p) ATOLL_N2(p), p##3
#define ATOLL_N4(p) ATOLL_N3(p), p##4
#define ATOLL_N5(p) ATOLL_N4(p), p##5
#define ATOLL_N6(p) ATOLL_N5(p), p##6
#define ATOLL_N7(p) ATOLL_N6(p), p##7
#define ATOLL_N8(p) ATOLL_N7(p), p##8
// clang-format off
#define ATOLL_B1 {}
#define ATOLL_B2 ATOLL_B1, {}
#define ATOLL_B3 ATOLL_B2, {}
#define ATOLL_B4 ATOLL_B3, {}
#define ATOLL_B5 ATOLL_B4, {}
#define ATOLL_B6 ATOLL_B5, {}
#define ATOLL_B7 ATOLL_B6, {}
#define ATOLL_B8 ATOLL_B7, {}
// clang-format on
#define ATOLL_N0_ALL
#define ATOLL_N1_ALL ATOLL_N8(a),
#define ATOLL_N2_ALL ATOLL_N1_ALL ATOLL_N8(b),
#define ATOLL_N3_ALL ATOLL_N2_ALL ATOLL_N8(c),
#define ATOLL_N4_ALL ATOLL_N3_ALL ATOLL_N8(d),
#define ATOLL_N5_ALL ATOLL_N4_ALL ATOLL_N8(e),
#define ATOLL_B0_ALL
#define ATOLL_B1_ALL ATOLL_B8,
#define ATOLL_B2_ALL ATOLL_B1_ALL ATOLL_B8,
#define ATOLL_B3_ALL ATOLL_B2_ALL ATOLL_B8,
#define ATOLL_B4_ALL ATOLL_B3_ALL ATOLL_B8,
#define ATOLL_B5_ALL ATOLL_B4_ALL ATOLL_B8,
// An aggregate has as many fields as the most initialisers that it takes.
#define ATOLL_CASE(eights, rest, p)                                     \
  if constexpr (requires { T{ATOLL_B##eights##_ALL ATOLL_B##rest}; }) { \
    auto& [ATOLL_N##eights##_ALL ATOLL_N##rest(p)] = value;             \
    v(ATOLL_N##eights##_ALL ATOLL_N##rest(p));                          \
  } else
#define ATOLL_CASES(eights, p) \
  ATOLL_CASE(eights, 8, p)     \
  ATOLL_CASE(eights, 7, p)     \
  ATOLL_CASE(eights, 6, p)     \
  ATOLL_CASE(eights, 5, p)     \
  ATOLL_CASE(eights, 4, p)     \
  ATOLL_CASE(eights, 3, p) ATOLL_CASE(eights, 2, p) ATOLL_CASE(eights, 1, p)

template <class V, class T>
void VisitAggregate(V& v, T& value) {
  static_assert(std::is_aggregate_v<T>, "needs VisitFields");
  // clang-format off
  ATOLL_CASES(5, f) ATOLL_CASES(4, e) ATOLL_CASES(3, d)
  ATOLL_CASES(2, c) ATOLL_CASES(1, b) ATOLL_CASES(0, a)
  static_assert(std::is_empty_v<T>);
  // clang-format on
}

#undef ATOLL_CASES
#undef ATOLL_CASE

}  // namespace plain_fields

// Reads or writes each value that Visit gets, in the same order. Values that are written may be
// constant: they are not changed.
template <bool kReads>
class PlainCodec {
 public:
  // Appends to `out`, which outlives it.
  explicit PlainCodec(std::string* out) requires(!kReads) : out_(out) {}
  explicit PlainCodec(absl::string_view bytes) requires(kReads) : rest_(bytes) {}

  // False: the bytes are not those of the values that were read, which mean nothing then.
  bool ok() const { return ok_ && rest_.empty(); }

  template <class... T>
  void operator()(T&... fields) {
    (Visit(fields), ...);
  }

  template <class T>
  void Visit(T& value) {
    using namespace plain_fields;  // NOLINT
    if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) {
      const int64_t number = Number(static_cast<int64_t>(value));
      if (kReads) value = static_cast<T>(number);
    } else if constexpr (std::is_floating_point_v<T>) {
      Raw(&value, sizeof(value));
    } else if constexpr (kIsTime<T>) {
      const int64_t number = Number(Nanoseconds(value));
      if (kReads) value = T(Duration(number));
    } else if constexpr (std::is_same_v<T, std::string>) {
      const size_t size = Size(value.size());
      if (kReads) value.resize(size);
      Raw(value.data(), size);
    } else if constexpr (kIs<T, std::optional>) {
      const bool has = Number(value.has_value()) != 0;
      if (has && kReads) value.emplace();
      if (!has && kReads) value.reset();
      if (has) Visit(*value);
    } else if constexpr (kIs<T, std::shared_ptr>) {
      VisitShared(value);
    } else if constexpr (kIs<T, std::variant>) {
      VisitVariant(value, Number(static_cast<int64_t>(value.index())));
    } else if constexpr (kIs<T, std::pair>) {
      Visit(const_cast<std::remove_const_t<typename T::first_type>&>(value.first));
      Visit(value.second);
    } else if constexpr (kIsArray<T>) {
      for (auto& entry : value) Visit(entry);
    } else if constexpr (std::is_same_v<T, absl::Status>) {
      std::string message(value.message());
      const int64_t code = Number(static_cast<int64_t>(value.code()));
      Visit(message);
      if (kReads) value = absl::Status(static_cast<absl::StatusCode>(code), message);
    } else if constexpr (kIs<T, absl::StatusOr>) {
      absl::Status status = value.status();
      Visit(status);
      if (kReads && status.ok()) value.emplace();
      if (kReads && !status.ok()) value = status;
      if (status.ok()) Visit(*value);
    } else if constexpr (kIs<T, std::function>) {
    } else if constexpr (requires { typename T::value_type; }) {
      VisitContainer(value);
    } else if constexpr (HasVisitFields<T>) {
      value.VisitFields(*this);
    } else if constexpr (std::is_trivially_copyable_v<T> && !std::is_aggregate_v<T>) {
      static_assert(!std::is_pointer_v<T>, "its address says nothing");
      static_assert(std::has_unique_object_representations_v<T>, "needs VisitFields: its padding");
      Raw(&value, sizeof(value));
    } else {
      VisitAggregate(*this, value);
    }
  }

 private:
  bool Fail() {
    ok_ = false;
    rest_ = {};
    return false;
  }
  void Raw(void* data, size_t size) {
    if constexpr (!kReads) {
      out_->append(static_cast<const char*>(data), size);
    } else if (size <= rest_.size() || Fail()) {
      if (size > 0) std::memcpy(data, rest_.data(), size);
      rest_.remove_prefix(size);
    }
  }
  // Seven bits a byte; small numbers of either sign are short. Returns the one that was read.
  int64_t Number(int64_t number) {
    uint64_t bits = (static_cast<uint64_t>(number) << 1) ^ static_cast<uint64_t>(number >> 63);
    if constexpr (!kReads) {
      for (; bits >= 0x80; bits >>= 7) out_->push_back(static_cast<char>(bits | 0x80));
      out_->push_back(static_cast<char>(bits));
      return number;
    }
    bits = 0;
    uint8_t byte = 0x80;
    for (int shift = 0; shift < 64 && (byte & 0x80) != 0; shift += 7) {
      byte = 0;
      Raw(&byte, 1);
      bits |= static_cast<uint64_t>(byte & 0x7f) << shift;
    }
    if ((byte & 0x80) != 0) Fail();
    return static_cast<int64_t>(bits >> 1) ^ -static_cast<int64_t>(bits & 1);
  }
  // The size of a text or container, no entry of which is shorter than a byte.
  size_t Size(size_t size) {
    size = static_cast<size_t>(Number(static_cast<int64_t>(size)));
    if (kReads && size > rest_.size()) Fail();
    return ok_ ? size : 0;
  }
  template <class T>
  void VisitContainer(T& value) {
    size_t left = Size(static_cast<size_t>(std::distance(value.begin(), value.end())));
    if constexpr (!kReads) {
      for (auto&& entry : value) {
        Visit(const_cast<typename T::value_type&>(entry));
      }
    } else {
      for (value.clear(); left > 0 && ok_; --left) {
        if constexpr (requires { typename T::mapped_type; }) {
          typename T::key_type key{};
          Visit(key);
          Visit(value[std::move(key)]);
        } else {
          typename T::value_type entry{};
          Visit(entry);
          value.insert(value.end(), std::move(entry));
        }
      }
    }
  }
  void VisitContainer(std::vector<bool>& value) {
    const size_t size = Size(value.size());
    if (kReads) value.resize(size);
    for (size_t i = 0; i < size; ++i) {
      const bool bit = Number(value[i]) != 0;
      if (kReads) value[i] = bit;
    }
  }
  template <size_t i = 0, class... T>
  void VisitVariant(std::variant<T...>& value, int64_t index) {
    if constexpr (i == sizeof...(T)) {
      Fail();
    } else if (index != i) {
      VisitVariant<i + 1>(value, index);
    } else {
      if (kReads) value.template emplace<i>();
      Visit(std::get<i>(value));
    }
  }
  // The first of several pointers to one value has the value.
  template <class T>
  void VisitShared(std::shared_ptr<T>& value) {
    const auto known = std::find(shared_.begin(), shared_.end(), value);
    const int64_t next = std::ssize(shared_);
    const int64_t number = Number(value == nullptr ? -1 : known - shared_.begin());
    if (kReads) value = nullptr;
    if (number < 0) return;
    if (number > next) return static_cast<void>(Fail());
    if (number < next) {
      if (kReads) value = std::static_pointer_cast<T>(shared_[static_cast<size_t>(number)]);
      return;
    }
    if (kReads) value = std::make_shared<T>();
    shared_.push_back(value);
    Visit(*value);
  }

  std::string* out_ = nullptr;
  absl::string_view rest_;
  bool ok_ = true;
  std::vector<std::shared_ptr<void>> shared_;  // of one type
};

using PlainReader = PlainCodec<true>;  // into values that are as they were constructed

template <class... T>
void AppendPlain(std::string* out, const T&... values) {
  PlainCodec<false> writer(out);
  (writer.Visit(const_cast<T&>(values)), ...);
}

}  // namespace atl

#endif  // ATOLL_COMMON_PLAIN_FIELDS_H_
