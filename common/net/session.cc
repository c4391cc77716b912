#include "common/net/session.h"

#include <zmq.h>

#include <cstring>

#include "absl/strings/match.h"
#include "common/check.h"

namespace atl {
namespace {

// The name of this handshake; whatever is derived depends on it.
constexpr char kProtocol[] = "atoll link 1 ";

absl::string_view Text(const Secret& secret) {
  return {reinterpret_cast<const char*>(secret.data()), secret.size()};
}

Secret FromText(absl::string_view text) {
  Secret secret;
  ATOLL_CHECK(text.size() == secret.size(), text.size());
  std::memcpy(secret.data(), text.data(), text.size());
  return secret;
}

Secret FromZ85(const std::string& key) {
  ATOLL_CHECK(IsCurveKey(key));
  Secret secret;
  zmq_z85_decode(secret.data(), key.c_str());
  return secret;
}

std::string Number(uint64_t number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof number);
}

// The part of a handshake that both ends know so far. The text has fixed lengths, so it has one
// reading.
struct Transcript {
  std::string shared;  // results of key agreements
  std::string said;    // public keys and choices, in order

  Secret Derive(absl::string_view what) const {
    return DeriveSecret(shared, absl::StrCat(kProtocol, what, " ", said));
  }
  // A tag that only those can make who know what is shared.
  std::string Prove(absl::string_view what) const {
    return Seal({SealCipher::kChaCha20Poly1305, Derive(what)}, 0, "", {}, nullptr);
  }
  bool IsProven(absl::string_view what, absl::string_view tag) const {
    return Open({SealCipher::kChaCha20Poly1305, Derive(what)}, 0, "", {}, tag, nullptr);
  }
};

constexpr char kHello[] = "hello", kWelcome[] = "welcome", kRefusal[] = "refusal";

std::string Said(const Secret& client, const Secret& server, const v1::LinkHello& hello) {
  return absl::StrCat(Text(client), Text(server), hello.once(), hello.has_aes() ? "a" : "-");
}

void AddWelcome(const v1::LinkWelcome& welcome, Transcript* transcript) {
  absl::StrAppend(&transcript->said, welcome.once(), welcome.has_aes() ? "a" : "-");
}

Session NewSession(const Transcript& transcript, bool aes, bool is_client) {
  Session::Secrets secrets;
  secrets.name = std::string(Text(transcript.Derive("name")).substr(0, kSessionNameBytes));
  secrets.cipher = aes ? SealCipher::kAes256Gcm : SealCipher::kChaCha20Poly1305;
  const Secret headers[] = {transcript.Derive("client headers"),
                            transcript.Derive("server headers")};
  const Secret chunks[] = {transcript.Derive("client chunks"), transcript.Derive("server chunks")};
  secrets.headers_out = headers[is_client ? 0 : 1];
  secrets.headers_in = headers[is_client ? 1 : 0];
  secrets.chunks_out = chunks[is_client ? 0 : 1];
  secrets.chunks_in = chunks[is_client ? 1 : 0];
  return Session(std::move(secrets));
}

}  // namespace

Session::Session(Secrets secrets, uint64_t frames_a_key)
    : name_(std::move(secrets.name)),
      cipher_(secrets.cipher),
      frames_a_key_(frames_a_key),
      headers_out_(secrets.headers_out),
      headers_in_(secrets.headers_in),
      chunks_out_(secrets.chunks_out),
      chunks_in_(secrets.chunks_in) {
  ATOLL_CHECK(name_.size() == kSessionNameBytes, name_.size());
}

const Secret& Session::Keys::At(uint64_t epoch) {
  if (epoch_ != epoch) {
    key_ = DeriveSecret(Text(secret_), absl::StrCat(kProtocol, "key ", Number(epoch)));
    epoch_ = epoch;
  }
  return key_;
}

std::string Session::SealHeader(absl::string_view header) {
  std::string sealed = absl::StrCat(name_, header);
  std::byte* const text = reinterpret_cast<std::byte*>(sealed.data()) + name_.size();
  const std::string tag =
      Seal(At(headers_out_, headers_sent_), headers_sent_, name_, {text, header.size()}, text);
  return absl::StrCat(sealed, tag);
}

bool Session::IsNamed(absl::string_view sealed) const { return absl::StartsWith(sealed, name_); }

absl::StatusOr<std::string> Session::OpenHeader(absl::string_view sealed) {
  bool opened = false;
  std::string header;
  if (!broken_ && IsNamed(sealed) && sealed.size() >= kSealedHeaderCost) {
    const absl::string_view tag = sealed.substr(sealed.size() - kSealTagBytes);
    header = std::string(sealed.substr(name_.size(), sealed.size() - kSealedHeaderCost));
    const auto text = std::as_writable_bytes(std::span(header));
    opened = Open(At(headers_in_, headers_opened_), headers_opened_, name_, text, tag, text.data());
  }
  if (!opened) {
    broken_ = true;
    return absl::DataLossError(
        absl::StrCat("frame ", headers_opened_,
                     " of the session does not open: it was changed on its way, or "
                     "another one came in its place"));
  }
  ++headers_opened_;
  return header;
}

SealKey Session::KeyForChunk(v1::Frame* frame) {
  frame->mutable_chunk()->set_number(chunks_sealed_);
  return At(chunks_out_, chunks_sealed_++);
}

SealKey Session::GetChunkKey(const v1::Chunk& chunk) { return At(chunks_in_, chunk.number()); }

std::string Session::ChunkContext(const v1::Frame& frame) {
  return absl::StrCat(Number(frame.transfer()),
                      Number(static_cast<uint64_t>(frame.chunk().index())));
}

Handshake::Handshake(const KeyPair& own, const std::string& server_key, bool has_aes)
    : own_(AgreementKey::FromSecret(FromZ85(own.secret_key))),
      once_(AgreementKey::Generate()),
      server_(FromZ85(server_key)),
      has_aes_(has_aes) {
  hello_.set_key(std::string(Text(own_.public_key())));
  hello_.set_once(std::string(Text(once_.public_key())));
  hello_.set_has_aes(has_aes_);
  const absl::StatusOr<std::string> es = once_.Agree(server_), ss = own_.Agree(server_);
  if (!es.ok() || !ss.ok()) return;  // without a tag it is refused
  const Transcript transcript{absl::StrCat(*es, *ss), Said(own_.public_key(), server_, hello_)};
  hello_.set_tag(transcript.Prove(kHello));
}

absl::StatusOr<Session> Handshake::OnWelcome(const v1::LinkWelcome& welcome) const {
  const Secret theirs = FromText(welcome.once());
  ATOLL_ASSIGN_OR_RETURN(const std::string es, once_.Agree(server_));
  ATOLL_ASSIGN_OR_RETURN(const std::string ss, own_.Agree(server_));
  ATOLL_ASSIGN_OR_RETURN(const std::string ee, once_.Agree(theirs));
  ATOLL_ASSIGN_OR_RETURN(const std::string se, own_.Agree(theirs));
  Transcript transcript{absl::StrCat(es, ss, ee, se), Said(own_.public_key(), server_, hello_)};
  AddWelcome(welcome, &transcript);
  if (!transcript.IsProven(kWelcome, welcome.tag())) {
    return absl::InvalidArgumentError("the welcome is not of the holder of the server's key");
  }
  return NewSession(transcript, has_aes_ && welcome.has_aes(), /*is_client=*/true);
}

bool Handshake::IsRefusal(const v1::LinkRefusal& refusal) const {
  const absl::StatusOr<std::string> es = once_.Agree(server_);
  return es.ok() && Transcript{*es, Said(own_.public_key(), server_, hello_)}.IsProven(
                        kRefusal, refusal.tag());
}

std::string ReadHelloKey(const v1::LinkHello& hello) {
  char text[41];
  const Secret key = FromText(hello.key());
  zmq_z85_encode(text, key.data(), key.size());
  return text;
}

absl::StatusOr<Session> AcceptHello(const KeyPair& own, const v1::LinkHello& hello,
                                    v1::LinkWelcome* welcome, bool has_aes) {
  const AgreementKey server = AgreementKey::FromSecret(FromZ85(own.secret_key));
  const Secret client = FromText(hello.key()), client_once = FromText(hello.once());
  ATOLL_ASSIGN_OR_RETURN(const std::string es, server.Agree(client_once));
  ATOLL_ASSIGN_OR_RETURN(const std::string ss, server.Agree(client));
  Transcript transcript{absl::StrCat(es, ss), Said(client, server.public_key(), hello)};
  if (!transcript.IsProven(kHello, hello.tag())) {
    return absl::InvalidArgumentError("the hello is not of its key's holder, or not for this key");
  }
  const AgreementKey once = AgreementKey::Generate();
  ATOLL_ASSIGN_OR_RETURN(const std::string ee, once.Agree(client_once));
  ATOLL_ASSIGN_OR_RETURN(const std::string se, once.Agree(client));
  absl::StrAppend(&transcript.shared, ee, se);
  welcome->set_once(std::string(Text(once.public_key())));
  welcome->set_has_aes(has_aes);
  AddWelcome(*welcome, &transcript);
  welcome->set_tag(transcript.Prove(kWelcome));
  return NewSession(transcript, has_aes && hello.has_aes(), /*is_client=*/false);
}

absl::StatusOr<v1::LinkRefusal> RefuseHello(const KeyPair& own, const v1::LinkHello& hello) {
  const AgreementKey server = AgreementKey::FromSecret(FromZ85(own.secret_key));
  const Secret client = FromText(hello.key());
  ATOLL_ASSIGN_OR_RETURN(const std::string es, server.Agree(FromText(hello.once())));
  v1::LinkRefusal refusal;
  refusal.set_code(v1::LinkRefusal::UNKNOWN_KEY);
  refusal.set_tag(Transcript{es, Said(client, server.public_key(), hello)}.Prove(kRefusal));
  return refusal;
}

}  // namespace atl
