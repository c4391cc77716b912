#include "coordinator/tracing/otlp.h"

#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/logging.h"
#include "common/version.h"

namespace atl {
namespace {

using Json = nlohmann::json;
using Pairs = std::vector<std::pair<std::string, std::string>>;
using Variable = std::function<const char*(const char*)>;

constexpr char kPart[] = "otlp";

// "%2C" is a comma.
std::string Unescaped(absl::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    std::string byte;
    if (text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) &&
        absl::ascii_isxdigit(text[i + 2])) {
      byte = absl::HexStringToBytes(text.substr(i + 1, 2));
      i += 2;
    }
    result += byte.empty() ? std::string(1, text[i]) : byte;
  }
  return result;
}

// "a=1,b=2".
absl::StatusOr<Pairs> ReadPairs(const Variable& variable, const char* name) {
  Pairs pairs;
  const char* const text = variable(name);
  if (text == nullptr) return pairs;
  for (const absl::string_view entry : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(entry, absl::MaxSplits('=', 1));
    const std::string key(absl::StripAsciiWhitespace(pair.first));
    const std::string value = Unescaped(absl::StripAsciiWhitespace(pair.second));
    const auto is_control = [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 127; };
    const bool printable = std::none_of(key.begin(), key.end(), is_control) &&
                           std::none_of(value.begin(), value.end(), is_control);
    if (key.empty() || entry.find('=') == absl::string_view::npos || !printable) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": must be NAME=VALUE,NAME=VALUE, without line breaks"));
    }
    pairs.emplace_back(key, value);
  }
  return pairs;
}

absl::Status ReadNumber(const Variable& variable, const char* name, int64_t* number) {
  const char* const text = variable(name);
  if (text == nullptr || *text == '\0') return absl::OkStatus();
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 1 || value > 1000000) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "=", text, ": must be a whole number from 1 to 1000000"));
  }
  *number = value;
  return absl::OkStatus();
}

std::string GetVariable(const Variable& variable, const char* name) {
  const char* const text = variable(name);
  return text == nullptr ? "" : text;
}

// That of traces, else the common one.
std::string OfTraces(const Variable& variable, const std::string& rest) {
  const std::string own = GetVariable(variable, ("OTEL_EXPORTER_OTLP_TRACES_" + rest).c_str());
  return own.empty() ? GetVariable(variable, ("OTEL_EXPORTER_OTLP_" + rest).c_str()) : own;
}

Json ToOtlpValue(const SpanValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return {{"stringValue", *text}};
  if (const auto* flag = std::get_if<bool>(&value)) return {{"boolValue", *flag}};
  if (const auto* real = std::get_if<double>(&value)) return {{"doubleValue", *real}};
  // Numbers of 64 bits are text in protobuf's JSON.
  return {{"intValue", std::to_string(std::get<int64_t>(value))}};
}

std::string Nanoseconds(int64_t unix_ms) { return std::to_string(unix_ms) + "000000"; }

}  // namespace

absl::StatusOr<std::optional<OtlpSettings>> ReadOtlpSettings(const Variable& variable,
                                                             const std::string& service) {
  OtlpSettings settings;
  settings.url = GetVariable(variable, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
  if (const std::string base = GetVariable(variable, "OTEL_EXPORTER_OTLP_ENDPOINT");
      settings.url.empty() && !base.empty()) {
    settings.url = absl::StrCat(absl::StripSuffix(base, "/"), "/v1/traces");
  }
  if (settings.url.empty() || GetVariable(variable, "OTEL_SDK_DISABLED") == "true" ||
      GetVariable(variable, "OTEL_TRACES_EXPORTER") == "none") {
    return std::nullopt;
  }
  if (!absl::StartsWith(settings.url, "http://") && !absl::StartsWith(settings.url, "https://")) {
    return absl::InvalidArgumentError(absl::StrCat("OTEL_EXPORTER_OTLP_ENDPOINT=", settings.url,
                                                   ": must begin with http:// or https://"));
  }
  if (const std::string protocol = OfTraces(variable, "PROTOCOL");
      !protocol.empty() && !absl::StartsWith(protocol, "http/")) {
    return absl::InvalidArgumentError(
        absl::StrCat("OTEL_EXPORTER_OTLP_PROTOCOL=", protocol,
                     ": Atoll sends http/json alone; name the collector's HTTP port"));
  }
  const bool own_headers = !GetVariable(variable, "OTEL_EXPORTER_OTLP_TRACES_HEADERS").empty();
  ATOLL_ASSIGN_OR_RETURN(settings.headers,
                         ReadPairs(variable, own_headers ? "OTEL_EXPORTER_OTLP_TRACES_HEADERS"
                                                         : "OTEL_EXPORTER_OTLP_HEADERS"));
  ATOLL_ASSIGN_OR_RETURN(settings.resource, ReadPairs(variable, "OTEL_RESOURCE_ATTRIBUTES"));
  const std::string name = GetVariable(variable, "OTEL_SERVICE_NAME");
  const bool named = std::any_of(settings.resource.begin(), settings.resource.end(),
                                 [](const auto& pair) { return pair.first == "service.name"; });
  if (!name.empty()) {
    std::erase_if(settings.resource, [](const auto& pair) { return pair.first == "service.name"; });
  }
  if (!name.empty() || !named) {
    settings.resource.emplace_back("service.name", name.empty() ? service : name);
  }
  ATOLL_RETURN_IF_ERROR(ReadNumber(variable, "OTEL_EXPORTER_OTLP_TIMEOUT", &settings.timeout_ms));
  ATOLL_RETURN_IF_ERROR(
      ReadNumber(variable, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", &settings.timeout_ms));
  ATOLL_RETURN_IF_ERROR(ReadNumber(variable, "OTEL_BSP_SCHEDULE_DELAY", &settings.delay_ms));
  ATOLL_RETURN_IF_ERROR(ReadNumber(variable, "OTEL_BSP_MAX_QUEUE_SIZE", &settings.queue_max));
  ATOLL_RETURN_IF_ERROR(
      ReadNumber(variable, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", &settings.batch_max));
  return settings;
}

std::string OtlpJson(const Pairs& resource, const std::vector<Span>& spans) {
  Json of_resource = Json::array();
  for (const auto& [key, value] : resource) {
    of_resource.push_back({{"key", key}, {"value", ToOtlpValue(value)}});
  }
  Json list = Json::array();
  for (const Span& span : spans) {
    Json attributes = Json::array();
    for (const auto& [key, value] : span.attributes) {
      attributes.push_back({{"key", key}, {"value", ToOtlpValue(value)}});
    }
    Json one = {{"traceId", span.trace_id},
                {"spanId", span.span_id},
                {"name", span.name},
                {"kind", 1},  // internal
                {"startTimeUnixNano", Nanoseconds(span.begin_unix_ms)},
                {"endTimeUnixNano", Nanoseconds(span.end_unix_ms)},
                {"attributes", attributes}};
    if (!span.parent_id.empty()) one["parentSpanId"] = span.parent_id;
    if (!span.error.empty()) one["status"] = {{"code", 2}, {"message", span.error}};
    list.push_back(std::move(one));
  }
  const Json scope = {{"name", "atoll"}, {"version", kSoftwareVersion}};
  const Json body = {{"resourceSpans",
                      {{{"resource", {{"attributes", of_resource}}},
                        {"scopeSpans", {{{"scope", scope}, {"spans", list}}}}}}}};
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

OtlpExporter::OtlpExporter(OtlpSettings settings) : settings_(std::move(settings)) {
  curl_global_init(CURL_GLOBAL_DEFAULT);
  thread_ = std::thread([this] { Run(); });
  LogInfo(kPart, "traces of rounds go to ", settings_.url);
}

OtlpExporter::~OtlpExporter() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void OtlpExporter::Export(std::vector<Span> spans) {
  if (spans.empty()) return;
  const std::lock_guard lock(mutex_);
  for (Span& span : spans) {
    if (std::ssize(queue_) >= settings_.queue_max) {
      if (!dropping_) LogWarning(kPart, "spans are dropped: ", settings_.url, " is too slow");
      dropping_ = true;
      break;
    }
    queue_.push_back(std::move(span));
  }
  if (std::ssize(queue_) >= settings_.batch_max) changed_.notify_all();
}

void OtlpExporter::Run() {
  bool failing = false;
  std::unique_lock lock(mutex_);
  for (bool last = false; !last;) {
    changed_.wait_for(lock, std::chrono::milliseconds(settings_.delay_ms),
                      [this] { return ending_ || std::ssize(queue_) >= settings_.batch_max; });
    last = ending_ && (std::ssize(queue_) <= settings_.batch_max || failing);
    if (queue_.empty()) continue;
    const auto count = std::min<int64_t>(settings_.batch_max, std::ssize(queue_));
    const std::vector<Span> batch(std::make_move_iterator(queue_.begin()),
                                  std::make_move_iterator(queue_.begin() + count));
    queue_.erase(queue_.begin(), queue_.begin() + count);
    dropping_ = false;
    lock.unlock();
    const absl::Status sent = Post(OtlpJson(settings_.resource, batch));
    if (!sent.ok() && !failing) {
      LogWarning(kPart, settings_.url, ": ", sent.message(), "; ", count, " spans are lost");
    }
    failing = !sent.ok();
    lock.lock();
  }
}

absl::Status OtlpExporter::Post(const std::string& body) const {
  const std::unique_ptr<CURL, void (*)(CURL*)> curl(curl_easy_init(), curl_easy_cleanup);
  if (curl == nullptr) return absl::ResourceExhaustedError("libcurl has no memory");
  curl_slist* lines = curl_slist_append(nullptr, "Content-Type: application/json");
  for (const auto& [name, value] : settings_.headers) {
    lines = curl_slist_append(lines, absl::StrCat(name, ": ", value).c_str());
  }
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(lines, curl_slist_free_all);
  char error[CURL_ERROR_SIZE] = "";
  const auto ignore = +[](char*, size_t size, size_t count, void*) { return size * count; };
  curl_easy_setopt(curl.get(), CURLOPT_URL, settings_.url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, body.data());
  curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT_MS, static_cast<long>(settings_.timeout_ms));
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, ignore);
  curl_easy_setopt(curl.get(), CURLOPT_ERRORBUFFER, error);
  const CURLcode code = curl_easy_perform(curl.get());
  if (code != CURLE_OK) {
    return absl::UnavailableError(*error != '\0' ? error : curl_easy_strerror(code));
  }
  long status = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status);
  if (status / 100 == 2) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the collector answers ", status));
}

}  // namespace atl
