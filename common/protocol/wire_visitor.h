// How a plain struct and its protobuf message are walked together, once for both directions:
// Fields(v, s, m), which third_party/proto/plain.py generates (proto/plain.proto).
//
// With an Encoder, s is const and m is filled; with a Decoder, m is what came in and s is filled.
// The Decoder trusts nothing: every string, list and number is checked against its limit before it
// is taken, and the first fault is kept with the field's name. Only wire.cc files include this.

#ifndef ATOLL_COMMON_PROTOCOL_WIRE_VISITOR_H_
#define ATOLL_COMMON_PROTOCOL_WIRE_VISITOR_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/time.h"
#include "common/utf8.h"

namespace atl {

inline constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kMinInt = std::numeric_limits<int64_t>::min();
inline constexpr int64_t kMaxIsland = 1 << 20;
inline constexpr int64_t kMaxShards = 1 << 20;
inline constexpr int64_t kMaxElements = int64_t{1} << 48;
inline constexpr int kMaxListLength = 1 << 20;
inline constexpr size_t kMaxTextBytes = 64 << 10;
inline constexpr int64_t kMaxIntervalNs = int64_t{24} * 3600 * 1'000'000'000;

template <class V, class T>
using Plain = std::conditional_t<V::kEncodes, const T, T>;

class Encoder {
 public:
  static constexpr bool kEncodes = true;

  template <class T, class P, class Set>
  void Number(absl::string_view, const T& plain, P, Set set, int64_t, int64_t) {
    set(plain);
  }
  template <class T, class P, class Set>
  void Copy(absl::string_view, const T& plain, const P&, Set set) {
    set(plain);
  }
  // Texts quote files and other machines' words: what is written can always be read.
  template <class Set>
  void Copy(absl::string_view, const std::string& plain, const std::string&, Set set) {
    set(WellFormed(plain, kMaxTextBytes));
  }
  template <class Set>
  void Bytes(absl::string_view, const std::string& plain, const std::string&, Set set) {
    set(plain);
  }
  template <class T, class Present, class Set>
  void Optional(absl::string_view, const T& plain, Present, T, Set set) {
    set(plain);
  }
  template <class T, class P, class IsValid, class Set>
  void Enum(absl::string_view, const T& plain, P, IsValid, Set set) {
    set(static_cast<P>(static_cast<int>(plain) + 1));
  }
  template <class List, class Repeated>
  void Messages(absl::string_view, const List& plain, Repeated* repeated, int) {
    repeated->Reserve(static_cast<int>(plain.size()));
    for (const auto& item : plain) Fields(*this, item, *repeated->Add());
  }
  template <class List, class Repeated>
  void Values(absl::string_view, const List& plain, Repeated* repeated, int) {
    repeated->Assign(plain.begin(), plain.end());
  }
  template <class List, class Repeated, class IsValid>
  void Names(absl::string_view, const List& plain, Repeated* repeated, int, IsValid) {
    repeated->Assign(plain.begin(), plain.end());
  }
  template <class T, class Mutable>
  void Maybe(const std::optional<T>& plain, bool, Mutable message) {
    if (plain) Fields(*this, *plain, *message());
  }
  template <class T, class Variant, class Mutable>
  void Alternative(const Variant& variant, bool, Mutable message) {
    if (const T* plain = std::get_if<T>(&variant)) Fields(*this, *plain, *message());
  }
  template <class Fault>
  bool Check(Fault) {
    return true;
  }
};

class Decoder {
 public:
  static constexpr bool kEncodes = false;

  const absl::Status& status() const { return status_; }

  template <class T, class P, class Set>
  void Number(absl::string_view field, T& plain, P value, Set, int64_t low, int64_t high) {
    const int64_t wide = static_cast<int64_t>(value);
    if (wide < low || wide > high) return Fault(field, absl::StrCat(wide, " is out of range"));
    plain = static_cast<T>(value);
  }
  void Copy(absl::string_view field, std::string& plain, const std::string& value, auto) {
    if (value.size() > kMaxTextBytes) {
      return Fault(field, absl::StrCat("text of ", value.size(), " bytes"));
    }
    plain = value;
  }
  void Bytes(absl::string_view field, std::string& plain, const std::string& value, auto set) {
    Copy(field, plain, value, set);
  }
  template <class T, class P>
  void Copy(absl::string_view, T& plain, const P& value, auto) {
    plain = value;
  }
  template <class T, class Present>
  void Optional(absl::string_view field, T& plain, Present present, T value, auto set) {
    if (present) Copy(field, plain, value, set);
  }
  template <class T, class P, class IsValid>
  void Enum(absl::string_view field, T& plain, P value, IsValid is_valid, auto) {
    const int number = static_cast<int>(value);
    if (number == 0 || !is_valid(number)) {
      return Fault(field, absl::StrCat(number, " is no known choice"));
    }
    plain = static_cast<T>(number - 1);
  }
  template <class List, class Repeated>
  void Messages(absl::string_view field, List& plain, Repeated* repeated, int limit) {
    if (repeated->size() > limit) {
      return Fault(field, absl::StrCat(repeated->size(), " entries, at most ", limit));
    }
    plain.resize(repeated->size());
    for (int i = 0; i < repeated->size() && status_.ok(); ++i) {
      Fields(*this, plain[i], *repeated->Mutable(i));
    }
  }
  template <class List, class Repeated>
  void Values(absl::string_view field, List& plain, Repeated* repeated, int limit) {
    if (repeated->size() > limit) {
      return Fault(field, absl::StrCat(repeated->size(), " entries, at most ", limit));
    }
    plain.assign(repeated->begin(), repeated->end());
  }
  template <class List, class Repeated, class IsValid>
  void Names(absl::string_view field, List& plain, Repeated* repeated, int limit,
             IsValid is_valid) {
    if (repeated->size() > limit) {
      return Fault(field, absl::StrCat(repeated->size(), " entries, at most ", limit));
    }
    for (const std::string& name : *repeated) {
      if (!is_valid(name))
        return Fault(field, absl::StrCat("\"", name.substr(0, 80), "\" is no name"));
    }
    plain.assign(repeated->begin(), repeated->end());
  }
  template <class T, class Mutable>
  void Maybe(std::optional<T>& plain, bool present, Mutable message) {
    plain.reset();
    if (present) Fields(*this, plain.emplace(), *message());
  }
  template <class T, class Variant, class Mutable>
  void Alternative(Variant& variant, bool present, Mutable message) {
    if (present) Fields(*this, variant.template emplace<T>(), *message());
  }
  // Whether nothing is wrong, by fault(): if there is, the message must not be read on.
  template <class Find>
  bool Check(Find fault) {
    const std::string found = fault();
    if (!found.empty()) Fault("message", found);
    return found.empty();
  }

 private:
  void Fault(absl::string_view field, absl::string_view what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
  }

  absl::Status status_;
};

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_WIRE_VISITOR_H_
