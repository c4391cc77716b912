// Decoders of what stores and web servers answer, and of the keys for them.

#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/object_store/credentials.h"
#include "common/object_store/hub.h"
#include "common/object_store/s3_store.h"
#include "common/object_store/web_store.h"
#include "common/object_store/xml.h"
#include "tests/fuzz/decoder.h"

namespace atl::fuzz {
namespace {

constexpr size_t kReadBytes = 64;  // more than a string keeps in itself

// Answers out of an input: the status, and the head and body behind their length.
RetryOptions Answering(Input* input) {
  RetryOptions retry;
  retry.tries = 2;
  retry.sleep = [](int64_t) {};
  retry.send = [input](const WebRequest& request) -> absl::StatusOr<WebAnswer> {
    if (input->Rest().empty()) return absl::UnavailableError("no answer");
    WebAnswer answer;
    answer.status = input->Take<uint16_t>();
    const std::string bytes = input->TakeText(input->Take<uint16_t>());
    const size_t head = std::min(bytes.find("\n\n"), bytes.size());
    for (const absl::string_view line : absl::StrSplit(bytes.substr(0, head), '\n')) {
      AddHeadLine(line, &answer);
    }
    if (head < bytes.size()) answer.body = bytes.substr(head + 2);
    if (std::ssize(answer.body) > request.answer_bytes_max) {
      return absl::InvalidArgumentError("too long");
    }
    return answer;
  };
  return retry;
}

bool AcceptsHttpAnswer(std::string_view bytes) {
  constexpr int64_t kMost = 2;
  Input input(bytes);
  const int which = input.Take<uint8_t>() % 6;
  S3Options options;
  options.bucket = "b";
  options.prefix = "p";
  options.access.key_id = options.access.secret = "k";
  options.part_bytes = 4;
  options.retry = Answering(&input);
  options.unix_seconds = [] { return int64_t{1'700'000'000}; };
  const std::unique_ptr<ObjectStore> store =
      which % 2 == 0 ? NewS3Store(options)
                     : NewWebStore({.url = "http://h/d", .retry = Answering(&input)});
  if (which < 2) {
    const auto info = store->Stat("a", {});
    ATOLL_CHECK(!info.ok() || (info->bytes >= 0 && !info->tag.empty()));
    return info.ok();
  }
  if (which < 4) {
    std::vector<std::byte> out(kReadBytes);
    return store->Read("a", 4, out, {.tag = "\"t\""}).ok();
  }
  if (which == 4) {
    const auto listed = store->List("s", kMost, {});
    ATOLL_CHECK(!listed.ok() || std::ssize(*listed) <= kMost);
    for (const ObjectInfo& info : listed.ok() ? *listed : std::vector<ObjectInfo>()) {
      ATOLL_CHECK(info.bytes >= 0, info.bytes);
    }
    return listed.ok();
  }
  const std::string object = "six bytes and more";
  const ByteSpan buffer = std::as_bytes(std::span(object));
  return NewS3Store(options)->Write("a", {&buffer, 1}).ok();
}

std::vector<std::string> HttpAnswerSeeds() {
  const auto answer = [](uint16_t status, const std::string& head, const std::string& body) {
    const std::string bytes = head + "\n\n" + body;
    return ToBytes(status) + ToBytes(static_cast<uint16_t>(bytes.size())) + bytes;
  };
  const std::string has = "HTTP/1.1 200 OK\nContent-Length: 9\nETag: \"t\"";
  const auto page = [](const std::string& key, const std::string& more) {
    return "<L><Contents><Key>p/" + key +
           "</Key><ETag>&quot;t&quot;</ETag><Size>9</Size></Contents>" + more + "</L>";
  };
  const std::string next = "<NextContinuationToken>n</NextContinuationToken>";
  std::string written = '\5' + answer(200, has, "<U><UploadId>u</UploadId></U>");
  for (int part = 0; part < 5; ++part) written += answer(200, has, "");
  written += answer(200, has, "<CompleteMultipartUploadResult/>");
  return {'\0' + answer(503, has, "") + answer(200, has, ""),
          '\1' + answer(200, has, ""),
          '\2' + answer(206, has, std::string(kReadBytes, 'x')),
          '\3' + answer(206, has, std::string(kReadBytes, 'x')),
          '\4' + answer(200, has, page("s1", next)) + answer(200, has, page("s2", "")),
          written};
}

const Registration kHttpAnswer({"http_answer", HttpAnswerSeeds, AcceptsHttpAnswer});

bool AcceptsHubAnswer(std::string_view bytes) {
  Input input(bytes);
  const auto store = OpenHubStore("hf://datasets/o/n/d", Answering(&input));
  ATOLL_CHECK(store.ok());
  const auto listed = (*store)->List("a", 3, {});
  if (!listed.ok()) return false;
  ATOLL_CHECK(std::ssize(*listed) <= 3);
  for (const ObjectInfo& info : *listed) {
    ATOLL_CHECK(info.bytes >= 0 && CheckObjectName(info.name).ok(), info.name);
  }
  return !listed->empty();
}

std::vector<std::string> HubAnswerSeeds() {
  const std::string head =
      "HTTP/1.1 200 OK\nLink: <https://huggingface.co/api/x>; rel=\"next\"\n\n";
  const auto answer = [](const std::string& text) {
    return ToBytes(uint16_t{200}) + ToBytes(static_cast<uint16_t>(text.size())) + text;
  };
  const std::string file =
      R"({"type": "file", "oid": "1", "size": 9, "path": "d/a.txt", "lfs": {"oid": "2"}})";
  return {answer("HTTP/1.1 200 OK\n\n[" + file + R"(, {"type": "directory", "path": "d"}])"),
          answer(head + "[" + file + "]") + answer("HTTP/1.1 200 OK\n\n[" + file + "]")};
}

const Registration kHubAnswer({"hub_answer", HubAnswerSeeds, AcceptsHubAnswer});

// The texts of AWS's two files, behind the length of the first.
bool AcceptsCredentials(std::string_view bytes) {
  Input input(bytes);
  const std::string config = input.TakeText(input.Take<uint16_t>());
  const std::string credentials(input.Rest());
  const auto access = FindS3Access(
      [](const std::string& name) -> std::optional<std::string> {
        if (name == "AWS_PROFILE") return "me";
        if (name == "AWS_CONFIG_FILE") return "config";
        return std::nullopt;
      },
      [&](const std::string& path) -> std::optional<std::string> {
        return path == "config" ? config : credentials;
      });
  if (!access.ok()) return false;
  ATOLL_CHECK(!access->key_id.empty() && !access->secret.empty());
  ATOLL_CHECK(access->key_id.find('\n') == std::string::npos, access->key_id);
  return true;
}

std::vector<std::string> CredentialsSeeds() {
  const std::string config = "# mine\n[profile me]\nregion = eu-1\nendpoint_url = http://h:1/\n";
  return {ToBytes(static_cast<uint16_t>(config.size())) + config +
          "[default]\n[me]\naws_access_key_id = k\naws_secret_access_key = s=\n; end\n"};
}

const Registration kCredentials({"aws_credentials", CredentialsSeeds, AcceptsCredentials});

bool AcceptsXml(std::string_view bytes) {
  size_t size = 0;
  for (const std::string_view contents : XmlElements(bytes, "Contents")) {
    size += XmlText(contents, "Key").size();
  }
  return size > 0;
}

std::vector<std::string> XmlSeeds() {
  return {"<L><Contents><Key>a&amp;b</Key></Contents><Contents><Key>c</Key></Contents></L>"};
}

const Registration kXml({"s3_xml", XmlSeeds, AcceptsXml});

}  // namespace
}  // namespace atl::fuzz
