// The handshake of the two ends of one connection, and how their frames are sealed.
//
// The end that connects sends LinkHello, the other answers LinkWelcome (proto/frame.proto): each
// proves that it holds the secret key whose public key the other one expects. The keys of a session
// follow from both ends' own keys and from two that are made for this session alone, so a frame of
// another connection, direction, pair or incarnation opens under none of them, and a secret key
// that is stolen later opens nothing that was recorded. The pattern is that of Noise IK.
//
// Headers are sealed under their position in the stream: one that is repeated, left out, cut or out
// of order does not open, and ends the session. The payload of a chunk is sealed under a number of
// its own, so that several can be sealed and opened at a time; its number and tag are in its
// header. Keys are replaced after `frames_a_key` frames. Pure; one thread at a time.

#ifndef ATOLL_COMMON_NET_SESSION_H_
#define ATOLL_COMMON_NET_SESSION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "common/net/frame.h"
#include "common/net/seal.h"
#include "common/net/security.h"
#include "common/status.h"

namespace atl {

inline constexpr size_t kSessionNameBytes = 8;
inline constexpr size_t kSealedHeaderCost = kSessionNameBytes + kSealTagBytes;

class Session {
 public:
  // Few enough that no key seals more than 2^34 blocks of 16 bytes, far below what AES bears.
  static constexpr uint64_t kFramesAKey = uint64_t{1} << 16;

  struct Secrets {
    std::string name;  // kSessionNameBytes, in front of each header
    SealCipher cipher = SealCipher::kAes256Gcm;
    Secret headers_out = {}, headers_in = {}, chunks_out = {}, chunks_in = {};
  };
  explicit Session(Secrets secrets, uint64_t frames_a_key = kFramesAKey);

  // The next header to send. It is sealed anew, under the same number, unless HeaderSent follows.
  std::string SealHeader(absl::string_view header);
  void HeaderSent() { ++headers_sent_; }

  // Returns whether a frame claims to be of this session.
  bool IsNamed(absl::string_view sealed) const;
  // The next header that has come. DataLoss: it is not the one that must come now, or has been
  // changed; no later one opens either.
  absl::StatusOr<std::string> OpenHeader(absl::string_view sealed);

  // Returns the key with which to seal the payload of this frame, whose chunk gets a number.
  SealKey KeyForChunk(v1::Frame* frame);
  // Returns the key with which to open the payload of a frame that has come.
  SealKey GetChunkKey(const v1::Chunk& chunk);
  // Returns the additional data that the payload's tag authenticates.
  static std::string ChunkContext(const v1::Frame& frame);

 private:
  // A key for every `frames_a_key` numbers.
  class Keys {
   public:
    explicit Keys(const Secret& secret) : secret_(secret) {}
    const Secret& At(uint64_t epoch);

   private:
    Secret secret_;
    std::optional<uint64_t> epoch_;
    Secret key_ = {};
  };

  SealKey At(Keys& keys, uint64_t number) const {
    return {cipher_, keys.At(number / frames_a_key_)};
  }

  const std::string name_;
  const SealCipher cipher_;
  const uint64_t frames_a_key_;
  Keys headers_out_, headers_in_, chunks_out_, chunks_in_;
  uint64_t headers_sent_ = 0, headers_opened_ = 0, chunks_sealed_ = 0;
  bool broken_ = false;
};

// ---- How a session begins. Keys are Z85 and have been checked; frames have passed ParseFrame.

// The end that connects: one handshake.
class Handshake {
 public:
  Handshake(const KeyPair& own, const std::string& server_key, bool has_aes = HasAes());

  const v1::LinkHello& hello() const { return hello_; }
  // InvalidArgument: it does not come from the holder of the server's key, or answers another
  // hello.
  absl::StatusOr<Session> OnWelcome(const v1::LinkWelcome& welcome) const;
  // Returns whether the holder of the server's key has refused us.
  bool IsRefusal(const v1::LinkRefusal& refusal) const;

 private:
  const AgreementKey own_;
  const AgreementKey once_;  // for this session alone
  Secret server_ = {};
  bool has_aes_;
  v1::LinkHello hello_;
};

// The end that is connected to. The key that a hello names.
std::string ReadHelloKey(const v1::LinkHello& hello);
// Answers a hello whose key may connect. InvalidArgument: it does not come from that key's holder,
// or was meant for another server.
absl::StatusOr<Session> AcceptHello(const KeyPair& own, const v1::LinkHello& hello,
                                    v1::LinkWelcome* welcome, bool has_aes = HasAes());
// Refuses a hello of a key that may not. It is proof that the holder of `own` refuses.
absl::StatusOr<v1::LinkRefusal> RefuseHello(const KeyPair& own, const v1::LinkHello& hello);

}  // namespace atl

#endif  // ATOLL_COMMON_NET_SESSION_H_
