// How a plain struct and its protobuf message are walked together, once for both directions:
// Fields(v, s, m), which third_party/proto/plain.py generates (proto/plain.proto).
//
// With a MessageWriter, s is const and m is filled; with a MessageReader, m is what came in and s
// is filled. The MessageReader trusts nothing: every string, list and number is checked against its
// limit before it is taken, and the first fault is kept with the field's name. What it refuses the
// MessageWriter refuses, too: nothing is sent or stored that cannot be read. Only wire.cc files
// include this.

#ifndef ATOLL_COMMON_PROTOCOL_WIRE_VISITOR_H_
#define ATOLL_COMMON_PROTOCOL_WIRE_VISITOR_H_

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/protocol/limits.h"
#include "common/time.h"
#include "common/utf8.h"

namespace atl {

template <class V, class T>
using Plain = std::conditional_t<V::kEncodes, const T, T>;

// The first fault that a conversion finds, with its field's name, and what both directions refuse.
class FaultFinder {
 public:
  const absl::Status& status() const { return status_; }

 protected:
  void Fault(absl::string_view field, absl::string_view what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
  }
  bool IsIn(absl::string_view field, int64_t value, int64_t least, int64_t most) {
    if (value >= least && value <= most) return true;
    Fault(field, absl::StrCat(value, " is out of range"));
    return false;
  }
  template <class T>
  bool IsGood(absl::string_view field, const T& value) {
    if constexpr (std::is_floating_point_v<T>) {
      if (!std::isfinite(value)) Fault(field, absl::StrCat(value, " is not a finite number"));
    } else if constexpr (std::is_same_v<T, std::string>) {
      IsShort(field, value, kMaxTextBytes);
    }
    return status_.ok();
  }
  bool IsShort(absl::string_view field, const std::string& text, size_t limit) {
    if (text.size() <= limit) return true;
    Fault(field, absl::StrCat("text of ", text.size(), " bytes"));
    return false;
  }
  bool Fits(absl::string_view field, size_t entries, int limit) {
    if (entries <= static_cast<size_t>(limit)) return true;
    Fault(field, absl::StrCat(entries, " entries, at most ", limit));
    return false;
  }
  template <class IsValid>
  bool IsName(absl::string_view field, const std::string& name, IsValid is_valid) {
    if (is_valid(name)) return true;
    Fault(field, absl::StrCat("\"", name.substr(0, 80), "\" is no name"));
    return false;
  }
  template <class IsValid>
  bool IsChoice(absl::string_view field, int number, IsValid is_valid) {
    if (number != 0 && is_valid(number)) return true;
    Fault(field, absl::StrCat(number, " is no known choice"));
    return false;
  }
  template <class Find>
  bool IsWhole(Find fault) {
    const std::string found = fault();
    if (!found.empty()) Fault("message", found);
    return found.empty();
  }

 private:
  absl::Status status_;
};

// Converts everything, also what a MessageReader would refuse: then status() is an error, and the
// message must be neither sent nor stored.
class MessageWriter : public FaultFinder {
 public:
  static constexpr bool kEncodes = true;

  template <class T, class P, class Set>
  void Number(absl::string_view field, const T& plain, P, Set set, int64_t least, int64_t most) {
    if constexpr (std::is_same_v<T, Duration>) {
      IsIn(field, plain.count(), least, most);
    } else {
      IsIn(field, static_cast<int64_t>(plain), least, most);
    }
    set(plain);
  }
  template <class T, class P, class Set>
  void Copy(absl::string_view field, const T& plain, const P&, Set set) {
    IsGood(field, plain);
    set(plain);
  }
  // Texts quote files and other machines' words: what is written can always be read.
  template <class Set>
  void Copy(absl::string_view, const std::string& plain, const std::string&, Set set) {
    set(WellFormed(plain, kMaxTextBytes));
  }
  template <class Set>
  void Bytes(absl::string_view field, const std::string& plain, const std::string&, Set set) {
    IsShort(field, plain, kMaxTextBytes);
    set(plain);
  }
  template <class T, class P, class Set>
  void Any(absl::string_view, const T& plain, const P&, Set set) {
    set(plain);
  }
  template <class Set>
  void Name(absl::string_view field, const std::string& plain, const std::string&, Set set,
            size_t limit) {
    IsShort(field, plain, limit);
    set(WellFormed(plain, limit));
  }
  template <class T, class Present, class Set>
  void Optional(absl::string_view field, const T& plain, Present, T, Set set) {
    IsGood(field, plain);
    if constexpr (std::is_same_v<T, std::string>) {
      set(WellFormed(plain, kMaxTextBytes));
    } else {
      set(plain);
    }
  }
  template <class T, class Present, class Set>
  void Optional(absl::string_view field, const T& plain, Present, T, Set set, int64_t least,
                int64_t most) {
    IsIn(field, plain, least, most);
    set(plain);
  }
  template <class T, class P, class IsValid, class Set>
  void Enum(absl::string_view field, const T& plain, P, IsValid is_valid, Set set) {
    const int number = static_cast<int>(plain) + 1;
    IsChoice(field, number, is_valid);
    set(static_cast<P>(number));
  }
  template <class List, class Repeated>
  void Messages(absl::string_view field, const List& plain, Repeated* repeated, int limit) {
    Fits(field, plain.size(), limit);
    repeated->Reserve(static_cast<int>(plain.size()));
    for (const auto& item : plain) Fields(*this, item, *repeated->Add());
  }
  template <class List, class Repeated>
  void Numbers(absl::string_view field, const List& plain, Repeated* repeated, int limit,
               int64_t least, int64_t most) {
    Fits(field, plain.size(), limit);
    for (const auto value : plain) IsIn(field, value, least, most);
    repeated->Assign(plain.begin(), plain.end());
  }
  template <class List, class Repeated>
  void Values(absl::string_view field, const List& plain, Repeated* repeated, int limit) {
    for (const auto& value : plain) IsGood(field, value);
    AnyValues(field, plain, repeated, limit);
  }
  template <class List, class Repeated>
  void AnyValues(absl::string_view field, const List& plain, Repeated* repeated, int limit) {
    Fits(field, plain.size(), limit);
    if constexpr (std::is_same_v<typename List::value_type, std::string>) {
      for (const std::string& text : plain) *repeated->Add() = WellFormed(text, kMaxTextBytes);
    } else {
      repeated->Assign(plain.begin(), plain.end());
    }
  }
  template <class List, class Repeated, class IsValid>
  void Names(absl::string_view field, const List& plain, Repeated* repeated, int limit,
             IsValid is_valid) {
    for (const std::string& name : plain) IsName(field, name, is_valid);
    AnyValues(field, plain, repeated, limit);
  }
  template <class T, class Mutable>
  void Maybe(const std::optional<T>& plain, bool, Mutable message) {
    if (plain) Fields(*this, *plain, *message());
  }
  template <class T, class Variant, class Mutable>
  void Alternative(const Variant& variant, bool, Mutable message) {
    if (const T* plain = std::get_if<T>(&variant)) Fields(*this, *plain, *message());
  }
  template <class Find>
  bool Check(Find) {
    return true;
  }
  // Checks the message that was made.
  template <class Find>
  void CheckMade(Find fault) {
    IsWhole(fault);
  }
};

class MessageReader : public FaultFinder {
 public:
  static constexpr bool kEncodes = false;

  template <class T, class P, class Set>
  void Number(absl::string_view field, T& plain, P value, Set, int64_t least, int64_t most) {
    if (IsIn(field, static_cast<int64_t>(value), least, most)) plain = static_cast<T>(value);
  }
  void Bytes(absl::string_view field, std::string& plain, const std::string& value, auto set) {
    Copy(field, plain, value, set);
  }
  template <class T, class P>
  void Copy(absl::string_view field, T& plain, const P& value, auto) {
    if (IsGood(field, value)) plain = value;
  }
  template <class T, class P>
  void Any(absl::string_view, T& plain, const P& value, auto) {
    plain = value;
  }
  void Name(absl::string_view field, std::string& plain, const std::string& value, auto,
            size_t limit) {
    if (IsShort(field, value, limit)) plain = value;
  }
  template <class T, class Present>
  void Optional(absl::string_view field, T& plain, Present present, T value, auto set) {
    if (present) Copy(field, plain, value, set);
  }
  template <class T, class Present>
  void Optional(absl::string_view field, T& plain, Present present, T value, auto set,
                int64_t least, int64_t most) {
    if (present) Number(field, plain, value, set, least, most);
  }
  template <class T, class P, class IsValid>
  void Enum(absl::string_view field, T& plain, P value, IsValid is_valid, auto) {
    const int number = static_cast<int>(value);
    if (IsChoice(field, number, is_valid)) plain = static_cast<T>(number - 1);
  }
  template <class List, class Repeated>
  void Messages(absl::string_view field, List& plain, Repeated* repeated, int limit) {
    if (!Fits(field, static_cast<size_t>(repeated->size()), limit)) return;
    plain.resize(repeated->size());
    for (int i = 0; i < repeated->size() && status().ok(); ++i) {
      Fields(*this, plain[i], *repeated->Mutable(i));
    }
  }
  template <class List, class Repeated>
  void Numbers(absl::string_view field, List& plain, Repeated* repeated, int limit, int64_t least,
               int64_t most) {
    if (!Fits(field, static_cast<size_t>(repeated->size()), limit)) return;
    for (const auto value : *repeated) {
      if (!IsIn(field, value, least, most)) return;
    }
    plain.assign(repeated->begin(), repeated->end());
  }
  template <class List, class Repeated>
  void Values(absl::string_view field, List& plain, Repeated* repeated, int limit) {
    for (const auto& value : *repeated) {
      if (!IsGood(field, value)) return;
    }
    AnyValues(field, plain, repeated, limit);
  }
  template <class List, class Repeated>
  void AnyValues(absl::string_view field, List& plain, Repeated* repeated, int limit) {
    if (!Fits(field, static_cast<size_t>(repeated->size()), limit)) return;
    plain.assign(repeated->begin(), repeated->end());
  }
  template <class List, class Repeated, class IsValid>
  void Names(absl::string_view field, List& plain, Repeated* repeated, int limit,
             IsValid is_valid) {
    if (!Fits(field, static_cast<size_t>(repeated->size()), limit)) return;
    for (const std::string& name : *repeated) {
      if (!IsName(field, name, is_valid)) return;
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
  // Returns whether nothing is wrong, by fault(): if there is, the message must not be read on.
  template <class Find>
  bool Check(Find fault) {
    return IsWhole(fault);
  }
  template <class Find>
  void CheckMade(Find) {}
};

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_WIRE_VISITOR_H_
