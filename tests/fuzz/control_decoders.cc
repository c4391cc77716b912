// Decoders of what daemons send to the coordinator and back, and of what shows who they are.

#include <sys/stat.h>

#include <CLI/CLI.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/flag_sources.h"
#include "common/net/codec.h"
#include "common/net/security.h"
#include "common/parse_bytes.h"
#include "common/protocol/wire.h"
#include "common/trust/pki.h"
#include "coordinator/plan_io/plan_message.h"
#include "coordinator/tracing/otlp.h"
#include "kernels/deltas.h"
#include "proto/control.pb.h"
#include "tests/fuzz/decoder.h"
#include "tests/fuzz/scratch.h"

namespace atl::fuzz {
namespace {

// ---------------------------------------------------------------------------- control messages

// Writes what was read, and reads it again.
template <class Wire>
bool SurvivesAgain(std::string_view bytes) {
  Wire wire;
  if (!wire.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return false;
  const auto message = Decode(&wire);
  if (!message.ok()) return false;
  Wire again;
  const absl::Status status = Encode(*message, &again);
  ATOLL_CHECK(status.ok(), status.message());
  const auto second = Decode(&again);
  ATOLL_CHECK(second.ok(), second.status().message());
  return true;
}

bool AcceptsControl(std::string_view bytes) {
  Input input(bytes);
  switch (input.Take<uint8_t>() % 4) {
    case 0:
      return SurvivesAgain<v1::FromWorker>(input.Rest());
    case 1:
      return SurvivesAgain<v1::ToWorker>(input.Rest());
    case 2:
      return SurvivesAgain<v1::FromServer>(input.Rest());
    default:
      return SurvivesAgain<v1::ToServer>(input.Rest());
  }
}

template <class Wire, class Message, class Kind>
std::string Envelope(char which, Message envelope, Kind kind) {
  envelope.message = std::move(kind);
  Wire wire;
  ATOLL_CHECK(Encode(envelope, &wire).ok());
  return which + wire.SerializeAsString();
}

template <class Kind>
std::string OfWorker(Kind kind) {
  FromWorker envelope;
  envelope.worker = "w1";
  return Envelope<v1::FromWorker>('\0', envelope, std::move(kind));
}
template <class Kind>
std::string ForWorker(Kind kind) {
  ToWorker envelope;
  envelope.worker = "w1";
  return Envelope<v1::ToWorker>('\1', envelope, std::move(kind));
}
template <class Kind>
std::string OfServer(Kind kind) {
  FromServer envelope;
  envelope.server = "s1";
  return Envelope<v1::FromServer>('\2', envelope, std::move(kind));
}
template <class Kind>
std::string ForServer(Kind kind) {
  ToServer envelope;
  envelope.server = "s1";
  return Envelope<v1::ToServer>('\3', envelope, std::move(kind));
}

std::vector<std::string> ControlSeeds() {
  IslandOrder order;
  order.job = "j-1";
  order.spec.name = "j";
  order.plan.number = 1;
  order.plan.members = {{"w1", 1, "tcp://127.0.0.1:1", "", "", ""}};
  order.shards = {{.shard = 1, .layer = 2, .elements = 64}};
  PushRequest push;
  push.job = "j-1";
  push.consumed = {{0, 8}};
  Statistics statistics;
  statistics.job = "j-1";
  statistics.contributions = {{1, 2, 3, 4}};
  statistics.layers = {{.layer = 0, .values = {1}}};
  StepTraced traced;
  traced.job = "j-1";
  return {OfWorker(WorkerHello{}),   OfWorker(WorkerHeartbeat{}),
          OfWorker(JobPrepared{}),   OfWorker(push),
          OfWorker(LinksMeasured{}), OfWorker(traced),
          ForWorker(Welcome{}),      ForWorker(order),
          ForWorker(PushGrant{}),    ForWorker(LeaseGrant{}),
          OfServer(ServerHello{}),   OfServer(statistics),
          ForServer(Welcome{}),      ForServer(Refused{"no", true})};
}

const Registration kControl({"control_wire", ControlSeeds, AcceptsControl});

bool AcceptsJobSpec(std::string_view bytes) {
  v1::JobSpec wire;
  if (!wire.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return false;
  const auto spec = Decode(&wire);
  return spec.ok() && Validate(*spec).ok();
}

std::vector<std::string> JobSpecSeeds() {
  JobSpec spec;
  spec.name = "tiny";
  spec.model.hidden = 64, spec.model.layers = 2, spec.model.heads = 4;
  spec.data.path = "/d/corpus.txt";
  spec.schedule.train_tokens = 1'000'000;
  v1::JobSpec wire;
  ATOLL_CHECK(Encode(spec, &wire).ok());
  return {wire.SerializeAsString()};
}

const Registration kJobSpec({"job_spec", JobSpecSeeds, AcceptsJobSpec});

bool AcceptsPinnedPlan(std::string_view bytes) {
  const auto pinned = PinnedJson({bytes.data(), bytes.size()}, "plan.json");
  if (!pinned.ok()) return false;
  const auto again = PinnedJson(*pinned, "again");
  ATOLL_CHECK(again.ok(), again.status().message());
  ATOLL_CHECK(*again == *pinned, *pinned, " becomes ", *again);
  return true;
}

std::vector<std::string> PinnedPlanSeeds() {
  return {
      R"({"islands": [{"replicas": [{"sample_share": 0.5, "micro_batch_sequences": 1, "micro_batches": 2, "stages": [
      {"first_layer": 0, "layers": 3, "devices": ["w1/0", "w1/1"]}]}], "tensor_split_ratios": [1, 2]}]})",
      R"({"islands": [{"replicas": [{"micro_batch_sequences": 1, "micro_batches": 1, "stages": [
      {"first_layer": 0, "layers": 3, "devices": ["w1/0", "w1/1"]}]}], "programs": [
      {"device": "w1/0", "operations": [{"kind": "OPERATION_KIND_FORWARD"}, {"kind": 2}, {"kind": 3},
      {"kind": "OPERATION_KIND_OPTIMIZER"}]}, {"device": "w1/1", "operations": [{"kind": 1}, {"kind": 2}]}]}]})"};
}

const Registration kPinnedPlan({"plan_json", PinnedPlanSeeds, AcceptsPinnedPlan});

// --------------------------------------------------------------------------- pseudo-gradients

bool AcceptsDelta(std::string_view bytes) {
  Input input(bytes);
  const auto encoding = static_cast<Encoding>(input.Take<uint8_t>() % kEncodingCount);
  const int64_t elements = 1 + input.Take<uint16_t>() % 9000;
  const auto size = static_cast<size_t>(EncodedBytes(encoding, elements));
  // The buffer has exactly that size: what is read or written beyond it is seen.
  std::vector<std::byte> encoded(size);
  const std::string_view rest = input.Rest().substr(0, size);
  if (!rest.empty()) std::memcpy(encoded.data(), rest.data(), rest.size());
  std::vector<float> values(static_cast<size_t>(elements));
  if (!IsQuantized(encoding)) return rest.size() == size;
  static ThreadPool pool(1);
  const DeltaView view{encoded.data(), encoding, elements};
  const bool good = CheckDelta(view).ok();
  DecodeDelta(view, values, pool);  // of any bytes
  return good && rest.size() == size;
}

std::vector<std::string> DeltaSeeds() {
  std::vector<std::string> seeds;
  ThreadPool pool(1);
  for (int number = 0; number < kEncodingCount; ++number) {
    const auto encoding = static_cast<Encoding>(number);
    for (const uint16_t elements : {uint16_t{3}, uint16_t{300}, uint16_t{4200}}) {
      std::vector<float> values(elements);
      for (size_t i = 0; i < elements; ++i) values[i] = 0.5f * static_cast<float>(i % 7) - 1;
      std::vector<std::byte> encoded(static_cast<size_t>(EncodedBytes(encoding, elements)));
      if (IsQuantized(encoding)) {
        EncodeDelta(encoding, values, {}, encoded, pool);
      } else {
        EncodeTensor(encoding, values, encoded);
      }
      seeds.push_back(static_cast<char>(number) + ToBytes(static_cast<uint16_t>(elements - 1)) +
                      std::string(reinterpret_cast<const char*>(encoded.data()), encoded.size()));
    }
  }
  return seeds;
}

const Registration kDelta({"delta", DeltaSeeds, AcceptsDelta});

// -------------------------------------------------------------------------------- certificates

// The bytes within PEM, which are what a fuzzer can change.
std::string ToPem(std::string_view kind, std::string_view der) {
  return absl::StrCat("-----BEGIN ", std::string(kind), "-----\n",
                      absl::Base64Escape({der.data(), der.size()}), "\n-----END ",
                      std::string(kind), "-----\n");
}

std::string FromPem(const std::string& pem) {
  std::string base64, der;
  for (size_t at = pem.find('\n') + 1; pem.compare(at, 5, "-----") != 0;) {
    const size_t end = pem.find('\n', at);
    base64 += pem.substr(at, end - at);
    at = end + 1;
  }
  ATOLL_CHECK(absl::Base64Unescape(base64, &der), pem);
  return der;
}

bool AcceptsCertificate(std::string_view bytes) {
  Input input(bytes);
  if (input.Take<uint8_t>() % 2 == 1) {
    return RequestKeyDigest(ToPem("CERTIFICATE REQUEST", input.Rest())).ok();
  }
  const std::string pem = ToPem("CERTIFICATE", input.Rest());
  const auto facts = ReadCertificate(pem);
  if (!facts.ok()) return false;
  ATOLL_CHECK(facts->fingerprint.size() == 32, facts->fingerprint.size());
  ATOLL_CHECK(FindCertificate(pem, facts->fingerprint).has_value());
  if (facts->identity.ok()) {
    // The identity is read as it was written, and it covers itself.
    const auto again = IdentityFromUri(UriFrom(*facts->identity));
    ATOLL_CHECK(again.ok() && *again == *facts->identity, UriFrom(*facts->identity));
  }
  NamesHost(pem, "localhost");
  NamesHost(pem, "::1");
  IsSignedBy(pem, pem);
  return true;
}

std::vector<std::string> CertificateSeeds() {
  const int64_t from = 1'700'000'000, until = 2'000'000'000;
  const auto authority = MakeAuthority("0123456789abcdef", from, until);
  const auto key = MakePrivateKey();
  ATOLL_CHECK(authority.ok() && key.ok());
  const auto request = MakeRequest(*key);
  ATOLL_CHECK(request.ok(), request.status().message());
  CertificateContents contents;
  contents.identity = {Role::kWorker, "w1"};
  contents.hosts = {"localhost", "127.0.0.1"};
  contents.curve_public_key = std::string(40, 'a');
  contents.from_unix_s = from, contents.until_unix_s = until;
  const auto signed_one = SignRequest(*authority, *request, contents);
  ATOLL_CHECK(signed_one.ok(), signed_one.status().message());
  return {'\0' + FromPem(authority->certificate), '\0' + FromPem(*signed_one),
          '\1' + FromPem(*request)};
}

const Registration kCertificate({"certificate", CertificateSeeds, AcceptsCertificate});

bool AcceptsCurveKeys(std::string_view bytes) {
  Input input(bytes);
  const bool secret = input.Take<uint8_t>() % 2 == 1;
  const std::string path = Folder().Write("keys", input.Rest());
  if (!secret) {
    const auto keys = ReadCurveClients(path);
    if (!keys.ok()) return false;
    for (const std::string& key : *keys) ATOLL_CHECK(IsCurveKey(key), key);
    return true;
  }
  ATOLL_CHECK(chmod(path.c_str(), 0600) == 0);
  const auto pair = ReadCurveKey(path);
  if (!pair.ok()) return false;
  ATOLL_CHECK(IsCurveKey(pair->public_key), pair->public_key);
  return true;
}

std::vector<std::string> CurveKeysSeeds() {
  const std::string key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
  return {'\0' + ("# of all\n" + key + " w1\n" + key + "\n"), '\1' + ("# secret\n" + key + "\n")};
}

const Registration kCurveKeys({"curve_keys", CurveKeysSeeds, AcceptsCurveKeys});

// ------------------------------------------------------------------------------------ settings

bool AcceptsFlags(std::string_view bytes) {
  CLI::App app("a daemon");
  std::string listen, joined;
  std::vector<std::string> roots;
  int64_t bytes_max = 0;
  app.add_option("--listen", listen);
  app.add_option("--data-root", roots);
  app.add_option("--memory-bytes", joined);
  app.add_option("--bytes-max", bytes_max);
  const auto arguments = FlagsFromElsewhere(
      app, {"--listen=a"}, [](const char*) -> const char* { return nullptr; }, "worker.toml",
      std::string(bytes));
  if (!arguments.ok()) return false;
  for (const std::string& argument : *arguments) {
    ATOLL_CHECK(argument.rfind("--", 0) == 0 && argument.rfind("--listen=", 0) != 0, argument);
  }
  return true;
}

std::vector<std::string> FlagsSeeds() {
  return {
      "data-root = [\"/srv/data\", \"s3://bucket\"]\nmemory-bytes = \"4GiB\"\nlisten = \"b\"\n"
      "bytes-max = 7 # of all\n"};
}

const Registration kFlags({"flags_toml", FlagsSeeds, AcceptsFlags});

bool AcceptsByteSize(std::string_view bytes) {
  const auto size = ParseBytes({bytes.data(), bytes.size()});
  if (size.ok()) ATOLL_CHECK(*size >= 0, *size);
  return size.ok();
}

const Registration kByteSize({"byte_size",
                              [] {
                                return std::vector<std::string>{"512MiB", "0", "8388607TiB"};
                              },
                              AcceptsByteSize});

// The settings of traces, a line each.
bool AcceptsOtlpSettings(std::string_view bytes) {
  const std::string text(bytes);
  std::vector<std::string> lines(5);
  for (size_t at = 0, line = 0; line < lines.size() && at <= text.size(); ++line) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines[line] = text.substr(at, end - at);
    at = end + 1;
  }
  const char* const names[] = {"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS",
                               "OTEL_RESOURCE_ATTRIBUTES", "OTEL_EXPORTER_OTLP_TIMEOUT",
                               "OTEL_BSP_SCHEDULE_DELAY"};
  const auto settings = ReadOtlpSettings(
      [&](const char* name) -> const char* {
        for (size_t i = 0; i < lines.size(); ++i) {
          if (std::string_view(name) == names[i]) return lines[i].c_str();
        }
        return nullptr;
      },
      "atoll");
  if (!settings.ok() || !settings->has_value()) return false;
  for (const auto& [name, value] : (*settings)->headers) {
    ATOLL_CHECK(value.find('\n') == std::string::npos && name.find('\n') == std::string::npos,
                name);
  }
  ATOLL_CHECK((*settings)->timeout_ms > 0, (*settings)->timeout_ms);
  OtlpJson((*settings)->resource, {});
  return true;
}

std::vector<std::string> OtlpSettingsSeeds() {
  return {"http://localhost:4318\nauthorization=Bearer%20a%2Cb,x=1\nservice.name=a\n1000\n50"};
}

const Registration kOtlpSettings({"otlp_settings", OtlpSettingsSeeds, AcceptsOtlpSettings});

}  // namespace
}  // namespace atl::fuzz
