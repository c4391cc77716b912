// Plain structs as bytes, every field of them, without a list of fields: structured bindings name
// as many as an aggregate takes. What is written by one build is read by the same build alone: the
// layout is the code's, and no number of a version is in the bytes.
//
// Numbers, enums, times, texts, std containers, optionals, variants, shared pointers, absl::Status
// and absl::StatusOr are written; functions are left out, and read as they are. A class with
// private fields, or with others than are written, has
//
//   template <class V, class Self>  // Self: the class or the class const
//   static void VisitFields(V& v, Self& self) { v(self.a_, self.b_); }

#ifndef ATOLL_COMMON_PLAIN_FIELDS_H_
#define ATOLL_COMMON_PLAIN_FIELDS_H_

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
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
  &T::template VisitFields<std::monostate, T>;
};
template <class T>
inline constexpr bool kIsTime = std::is_same_v<T, Duration> || std::is_same_v<T, Instant>;
inline int64_t CountOf(Duration time) { return time.count(); }
inline int64_t CountOf(Instant time) { return time.time_since_epoch().count(); }
template <class T>
concept IsKeyed = requires {
  typename T::key_type;
};

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

template <class V, class Value, class T = std::remove_const_t<Value>>
void VisitAggregate(V& v, Value& value) {
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

// For VisitFields of a struct with these bases.
template <class... Base, class V, class Self>
void VisitBases(V& v, Self& self) {
  (v(static_cast<std::conditional_t<std::is_const_v<Self>, const Base, Base>&>(self)), ...);
}

// What writers and readers have in common: which fields a value has.
template <class Self>
class PlainVisitor {
 public:
  template <class... T>
  void operator()(T&... fields) {
    (self().Visit(fields), ...);
  }

 protected:
  template <class T>
  void VisitStruct(T& value) {
    using Plain = std::remove_const_t<T>;
    if constexpr (plain_fields::HasVisitFields<Plain>) {
      Plain::VisitFields(self(), value);
    } else {
      plain_fields::VisitAggregate(self(), value);
    }
  }

 private:
  Self& self() { return static_cast<Self&>(*this); }
};

class PlainWriter : public PlainVisitor<PlainWriter> {
 public:
  // Appends to `out`, which outlives it.
  explicit PlainWriter(std::string* out) : out_(*out) {}

  template <class T>
  void Visit(const T& value) {
    using namespace plain_fields;  // NOLINT
    if constexpr (std::is_enum_v<T>) {
      Number(static_cast<int64_t>(value));
    } else if constexpr (std::is_integral_v<T>) {
      Number(static_cast<int64_t>(value));
    } else if constexpr (std::is_floating_point_v<T>) {
      out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    } else if constexpr (kIsTime<T>) {
      Number(CountOf(value));
    } else if constexpr (std::is_same_v<T, std::string>) {
      Number(std::ssize(value));
      out_.append(value);
    } else if constexpr (kIs<T, std::optional>) {
      Visit(value.has_value());
      if (value) Visit(*value);
    } else if constexpr (kIs<T, std::shared_ptr>) {
      VisitShared(value);
    } else if constexpr (kIs<T, std::variant>) {
      Number(static_cast<int64_t>(value.index()));
      std::visit([this](const auto& held) { Visit(held); }, value);
    } else if constexpr (kIs<T, std::pair>) {
      Visit(value.first);
      Visit(value.second);
    } else if constexpr (kIsArray<T>) {
      for (const auto& entry : value) Visit(entry);
    } else if constexpr (std::is_same_v<T, absl::Status>) {
      Number(static_cast<int64_t>(value.code()));
      Visit(std::string(value.message()));
    } else if constexpr (kIs<T, absl::StatusOr>) {
      Visit(value.status());
      if (value.ok()) Visit(*value);
    } else if constexpr (kIs<T, std::function>) {
    } else if constexpr (requires { typename T::value_type; }) {
      Number(std::ssize(value));
      for (const auto& entry : value) Visit(entry);
    } else {
      VisitStruct(value);
    }
  }

 private:
  // Seven bits a byte; small numbers of either sign are short.
  void Number(int64_t number) {
    auto rest = (static_cast<uint64_t>(number) << 1) ^ static_cast<uint64_t>(number >> 63);
    for (; rest >= 0x80; rest >>= 7) out_.push_back(static_cast<char>(rest | 0x80));
    out_.push_back(static_cast<char>(rest));
  }
  template <class T>
  void VisitShared(const std::shared_ptr<T>& value) {
    if (value == nullptr) return Number(0);
    const auto [known, is_new] = shared_.try_emplace(value.get(), std::ssize(shared_) + 1);
    Number(known->second);
    if (is_new) Visit(*value);
  }

  std::string& out_;
  std::map<const void*, int64_t> shared_;
};

template <class... T>
void AppendPlain(std::string* out, const T&... values) {
  PlainWriter writer(out);
  (writer.Visit(values), ...);
}

// Reads into values that are as they were constructed.
class PlainReader : public PlainVisitor<PlainReader> {
 public:
  explicit PlainReader(absl::string_view bytes) : rest_(bytes) {}

  // False: the bytes are not those of the values that were read, which mean nothing then.
  bool ok() const { return ok_ && rest_.empty(); }

  template <class T>
  void Visit(T& value) {
    using namespace plain_fields;  // NOLINT
    if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) {
      value = static_cast<T>(Number());
    } else if constexpr (std::is_floating_point_v<T>) {
      const absl::string_view bytes = Take(sizeof(value));
      if (ok_) std::memcpy(&value, bytes.data(), sizeof(value));
    } else if constexpr (kIsTime<T>) {
      value = T(Duration(Number()));
    } else if constexpr (std::is_same_v<T, std::string>) {
      value = std::string(Take(Size()));
    } else if constexpr (kIs<T, std::optional>) {
      value.reset();
      if (Number() != 0) Visit(value.emplace());
    } else if constexpr (kIs<T, std::shared_ptr>) {
      VisitShared(value);
    } else if constexpr (kIs<T, std::variant>) {
      VisitVariant(value, static_cast<size_t>(Number()));
    } else if constexpr (kIs<T, std::pair>) {
      Visit(value.first);
      Visit(value.second);
    } else if constexpr (kIsArray<T>) {
      for (auto& entry : value) Visit(entry);
    } else if constexpr (std::is_same_v<T, absl::Status>) {
      const auto code = static_cast<absl::StatusCode>(Number());
      std::string message;
      Visit(message);
      value = absl::Status(code, message);
    } else if constexpr (kIs<T, absl::StatusOr>) {
      absl::Status status;
      Visit(status);
      if (status.ok()) Visit(value.emplace());
      if (!status.ok()) value = status;
    } else if constexpr (kIs<T, std::function>) {
    } else if constexpr (requires { typename T::value_type; }) {
      VisitContainer(value);
    } else {
      VisitStruct(value);
    }
  }

 private:
  void Fail() {
    ok_ = false;
    rest_ = {};
  }
  absl::string_view Take(size_t size) {
    if (size > rest_.size()) Fail();
    const absl::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  int64_t Number() {
    uint64_t bits = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const absl::string_view byte = Take(1);
      if (byte.empty()) return 0;
      bits |= static_cast<uint64_t>(byte[0] & 0x7f) << shift;
      if ((byte[0] & 0x80) == 0) {
        return static_cast<int64_t>(bits >> 1) ^ -static_cast<int64_t>(bits & 1);
      }
    }
    Fail();
    return 0;
  }
  // Of a text or container: no entry is shorter than a byte.
  size_t Size() {
    const int64_t size = Number();
    if (size >= 0 && size <= std::ssize(rest_)) return static_cast<size_t>(size);
    Fail();
    return 0;
  }
  template <class T>
  void VisitContainer(T& value) {
    value.clear();
    for (size_t left = Size(); left > 0 && ok_; --left) {
      if constexpr (requires { typename T::mapped_type; }) {
        typename T::key_type key{};
        Visit(key);
        Visit(value[std::move(key)]);
      } else {
        typename T::value_type entry{};
        Visit(entry);
        if constexpr (plain_fields::IsKeyed<T>) value.insert(std::move(entry));
        if constexpr (!plain_fields::IsKeyed<T>) value.push_back(std::move(entry));
      }
    }
  }
  template <size_t i = 0, class... T>
  void VisitVariant(std::variant<T...>& value, size_t index) {
    if constexpr (i == sizeof...(T)) {
      Fail();
    } else if (index != i) {
      VisitVariant<i + 1>(value, index);
    } else {
      Visit(value.template emplace<i>());
    }
  }
  template <class T>
  void VisitShared(std::shared_ptr<T>& value) {
    const int64_t number = Number(), next = std::ssize(shared_) + 1;
    value = nullptr;
    if (number < 0 || number > next) return Fail();
    if (number == 0) return;
    if (number == next) {
      value = std::make_shared<T>();
      shared_.push_back(value);
      return Visit(*value);
    }
    value = std::static_pointer_cast<T>(shared_[static_cast<size_t>(number) - 1]);
  }

  absl::string_view rest_;
  bool ok_ = true;
  std::vector<std::shared_ptr<void>> shared_;  // of one type
};

}  // namespace atl

#endif  // ATOLL_COMMON_PLAIN_FIELDS_H_
