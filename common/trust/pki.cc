#include "common/trust/pki.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <array>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/check.h"

namespace atl {
namespace {

constexpr char kCurveScheme[] = "atollcurve:";
constexpr char kAuthorityName[] = "Atoll authority of ";
constexpr int kSerialBytes = 16;
constexpr int kChainMax = 16;

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free>>;
using Cert = std::unique_ptr<X509, Deleter<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;
using Request = std::unique_ptr<X509_REQ, Deleter<X509_REQ_free>>;
using DigestContext = std::unique_ptr<EVP_MD_CTX, Deleter<EVP_MD_CTX_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Deleter<GENERAL_NAMES_free>>;

// OpenSSL's newest error, which holds no secret.
absl::Status SslError(absl::string_view what) {
  std::array<char, 256> text = {};
  ERR_error_string_n(ERR_get_error(), text.data(), text.size());
  ERR_clear_error();
  return absl::InternalError(absl::StrCat(what, ": ", text.data()));
}

Bio Reader(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// Texts are small; secret memory of OpenSSL's is wiped when it is freed.
template <class Write>
absl::StatusOr<std::string> Written(Write write) {
  const Bio bio(BIO_new(BIO_s_secmem()));
  if (bio == nullptr || write(bio.get()) != 1) return SslError("cannot write PEM");
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

absl::StatusOr<std::string> ToPem(EVP_PKEY* key) {
  return Written([&](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
}
absl::StatusOr<std::string> ToPem(X509* certificate) {
  return Written([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

int NoPassword(char*, int, int, void*) { return 0; }  // else OpenSSL prompts on the terminal

Key ReadKey(const std::string& pem) {
  return Key(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, NoPassword, nullptr));
}
Cert ReadCert(const std::string& pem) {
  Cert cert(PEM_read_bio_X509(Reader(pem).get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  return cert;
}
Request ReadRequest(const std::string& pem) {
  Request request(PEM_read_bio_X509_REQ(Reader(pem).get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  return request;
}

std::string ComputeKeyDigest(const unsigned char* der, int size) {
  return absl::BytesToHexString(
      Sha256({reinterpret_cast<const char*>(der), static_cast<size_t>(size)}));
}

std::string ComputeKeyDigest(EVP_PKEY* key) {
  unsigned char* der = nullptr;
  const int size = i2d_PUBKEY(key, &der);
  const std::string digest = size <= 0 ? "" : ComputeKeyDigest(der, size);
  OPENSSL_free(der);
  return digest;
}

std::string ComputeFingerprint(X509* certificate) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest = {};
  X509_digest(certificate, EVP_sha256(), digest.data(), nullptr);
  return std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
}

int64_t UnixSeconds(const ASN1_TIME* time) {
  std::tm fields{};
  return ASN1_TIME_to_tm(time, &fields) == 1 ? timegm(&fields) : 0;
}

// A certificate with a random serial number, these dates, this subject and key; unsigned.
absl::StatusOr<Cert> Begin(const std::string& subject, EVP_PKEY* key, int64_t from_unix_s,
                           int64_t until_unix_s) {
  Cert cert(X509_new());
  ATOLL_ASSIGN_OR_RETURN(std::string serial, RandomBytes(kSerialBytes));
  serial[0] = static_cast<char>(serial[0] & 0x7f);
  BIGNUM* number = BN_bin2bn(reinterpret_cast<const unsigned char*>(serial.data()),
                             static_cast<int>(serial.size()), nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(cert.get()));
  BN_free(number);
  X509_NAME* name = X509_get_subject_name(cert.get());
  if (X509_set_version(cert.get(), X509_VERSION_3) != 1 ||
      ASN1_TIME_set(X509_getm_notBefore(cert.get()), from_unix_s) == nullptr ||
      ASN1_TIME_set(X509_getm_notAfter(cert.get()), until_unix_s) == nullptr ||
      X509_set_pubkey(cert.get(), key) != 1 ||
      X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>(subject.data()),
                                 static_cast<int>(subject.size()), -1, 0) != 1) {
    return SslError("cannot make a certificate");
  }
  return cert;
}

bool AddExtension(X509* cert, X509* issuer, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, cert, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value);
  if (extension == nullptr) return false;
  const bool added = X509_add_ext(cert, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added;
}

bool AddName(GENERAL_NAMES* names, int kind, absl::string_view text) {
  ASN1_STRING* value = nullptr;
  if (kind == GEN_IPADD) {
    value = a2i_IPADDRESS(std::string(text).c_str());
  } else {
    value = ASN1_IA5STRING_new();
    ASN1_STRING_set(value, text.data(), static_cast<int>(text.size()));
  }
  if (value == nullptr) return false;
  GENERAL_NAME* name = GENERAL_NAME_new();
  GENERAL_NAME_set0_value(name, kind, value);
  return sk_GENERAL_NAME_push(names, name) > 0;
}

bool IsAddress(const std::string& host) {
  ASN1_OCTET_STRING* address = a2i_IPADDRESS(host.c_str());
  ERR_clear_error();
  const bool is = address != nullptr;
  ASN1_OCTET_STRING_free(address);
  return is;
}

// Built from values, not from OpenSSL's syntax: no name can add another one.
absl::Status AddNames(X509* cert, const CertificateContents& contents) {
  const Names names(sk_GENERAL_NAME_new_null());
  bool added = AddName(names.get(), GEN_URI, UriFrom(contents.identity));
  if (!contents.curve_public_key.empty()) {
    added &= AddName(names.get(), GEN_URI, absl::StrCat(kCurveScheme, contents.curve_public_key));
  }
  for (const std::string& host : contents.hosts) {
    added &= AddName(names.get(), IsAddress(host) ? GEN_IPADD : GEN_DNS, host);
  }
  if (added && X509_add1_ext_i2d(cert, NID_subject_alt_name, names.get(), 0, 0) == 1) {
    return absl::OkStatus();
  }
  return SslError("cannot name the holder of a certificate");
}

std::vector<std::string> ListUris(X509* cert) {
  std::vector<std::string> uris;
  const Names names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(cert, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    int kind = 0;
    const void* value = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names.get(), i), &kind);
    if (kind != GEN_URI) continue;
    const auto* text = static_cast<const ASN1_STRING*>(value);
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                      static_cast<size_t>(ASN1_STRING_length(text)));
  }
  return uris;
}

std::string CommonName(X509* cert) {
  X509_NAME* subject = X509_get_subject_name(cert);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at < 0) return "";
  const ASN1_STRING* text = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
  return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                     static_cast<size_t>(ASN1_STRING_length(text)));
}

}  // namespace

std::string Sha256(std::initializer_list<absl::string_view> texts) {
  const DigestContext context(EVP_MD_CTX_new());
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest = {};
  bool done = EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  for (const absl::string_view text : texts) {
    done = done && EVP_DigestUpdate(context.get(), text.data(), text.size()) == 1;
  }
  done = done && EVP_DigestFinal_ex(context.get(), digest.data(), nullptr) == 1;
  ATOLL_CHECK(done);
  return std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
}

absl::StatusOr<std::string> RandomBytes(int count) {
  std::string bytes(static_cast<size_t>(count), '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), count) != 1) {
    return SslError("the system gives no random numbers");
  }
  return bytes;
}

bool EqualSecrets(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string FormatUtc(int64_t unix_s) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixSeconds(unix_s),
                          absl::UTCTimeZone());
}

absl::Status CheckUserName(absl::string_view name) {
  const bool good = !name.empty() && name.size() <= 63 &&
                    name.find_first_not_of(
                        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                        "0123456789._@-") == absl::string_view::npos;
  return good ? absl::OkStatus()
              : absl::InvalidArgumentError(
                    absl::StrCat("name \"", name.substr(0, 100),
                                 "\": must be 1 to 63 letters, digits, '.', '_', '@' and '-'"));
}

absl::StatusOr<std::string> MakePrivateKey() {
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return SslError("cannot make a key");
  return ToPem(key.get());
}

absl::StatusOr<KeyAndCertificate> MakeAuthority(const std::string& cluster, int64_t from_unix_s,
                                                int64_t until_unix_s) {
  KeyAndCertificate made;
  ATOLL_ASSIGN_OR_RETURN(made.key, MakePrivateKey());
  const Key key = ReadKey(made.key);
  ATOLL_ASSIGN_OR_RETURN(const Cert cert, Begin(absl::StrCat(kAuthorityName, cluster), key.get(),
                                                from_unix_s, until_unix_s));
  X509_set_issuer_name(cert.get(), X509_get_subject_name(cert.get()));
  if (!AddExtension(cert.get(), cert.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !AddExtension(cert.get(), cert.get(), NID_key_usage, "critical,keyCertSign") ||
      !AddExtension(cert.get(), cert.get(), NID_subject_key_identifier, "hash") ||
      X509_sign(cert.get(), key.get(), EVP_sha256()) == 0) {
    return SslError("cannot make an authority");
  }
  ATOLL_ASSIGN_OR_RETURN(made.certificate, ToPem(cert.get()));
  return made;
}

absl::StatusOr<std::string> MakeRequest(const std::string& key_pem) {
  const Key key = ReadKey(key_pem);
  if (key == nullptr) return absl::InvalidArgumentError("is no private key that can be read");
  const Request request(X509_REQ_new());
  if (X509_REQ_set_version(request.get(), X509_REQ_VERSION_1) != 1 ||
      X509_REQ_set_pubkey(request.get(), key.get()) != 1 ||
      X509_REQ_sign(request.get(), key.get(), EVP_sha256()) == 0) {
    return SslError("cannot make a certificate request");
  }
  return Written([&](BIO* bio) { return PEM_write_bio_X509_REQ(bio, request.get()); });
}

namespace {

// The key that a request proves possession of.
absl::StatusOr<Key> ProvenKey(const std::string& request_pem) {
  const Request request = ReadRequest(request_pem);
  if (request == nullptr) {
    return absl::InvalidArgumentError("the certificate request cannot be read");
  }
  Key key(X509_REQ_get_pubkey(request.get()));
  if (key == nullptr || X509_REQ_verify(request.get(), key.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError("the certificate request does not prove its key");
  }
  if (EVP_PKEY_get_base_id(key.get()) != EVP_PKEY_EC || EVP_PKEY_get_bits(key.get()) != 256) {
    return absl::InvalidArgumentError("the certificate request's key is not a P-256 key");
  }
  return key;
}

}  // namespace

absl::StatusOr<std::string> RequestKeyDigest(const std::string& request_pem) {
  ATOLL_ASSIGN_OR_RETURN(const Key key, ProvenKey(request_pem));
  return ComputeKeyDigest(key.get());
}

absl::StatusOr<std::string> SignRequest(const KeyAndCertificate& authority,
                                        const std::string& request_pem,
                                        const CertificateContents& contents) {
  ATOLL_ASSIGN_OR_RETURN(const Key key, ProvenKey(request_pem));
  const Key signing = ReadKey(authority.key);
  const Cert issuer = ReadCert(authority.certificate);
  if (signing == nullptr || issuer == nullptr) {
    return absl::FailedPreconditionError("the authority's key or certificate cannot be read");
  }
  ATOLL_ASSIGN_OR_RETURN(const Cert cert, Begin(contents.identity.name, key.get(),
                                                contents.from_unix_s, contents.until_unix_s));
  X509_set_issuer_name(cert.get(), X509_get_subject_name(issuer.get()));
  ATOLL_RETURN_IF_ERROR(AddNames(cert.get(), contents));
  if (!AddExtension(cert.get(), issuer.get(), NID_basic_constraints, "critical,CA:FALSE") ||
      !AddExtension(cert.get(), issuer.get(), NID_key_usage, "critical,digitalSignature") ||
      !AddExtension(cert.get(), issuer.get(), NID_ext_key_usage, "serverAuth,clientAuth") ||
      !AddExtension(cert.get(), issuer.get(), NID_authority_key_identifier, "keyid") ||
      X509_sign(cert.get(), signing.get(), EVP_sha256()) == 0) {
    return SslError("cannot sign a certificate");
  }
  return ToPem(cert.get());
}

absl::StatusOr<CertificateFacts> ReadCertificate(const std::string& pem) {
  const Cert cert = ReadCert(pem);
  if (cert == nullptr) return absl::InvalidArgumentError("holds no certificate that can be read");
  CertificateFacts facts;
  facts.identity = absl::NotFoundError("the certificate names no role");
  for (const std::string& uri : ListUris(cert.get())) {
    absl::string_view rest = uri;
    if (absl::StartsWith(uri, "atoll:")) {
      facts.identity = IdentityFromUri(uri);
    } else if (absl::ConsumePrefix(&rest, kCurveScheme)) {
      facts.curve_public_key = std::string(rest);
    }
  }
  const std::string name = CommonName(cert.get());
  if (absl::StartsWith(name, kAuthorityName)) {
    facts.cluster = name.substr(sizeof kAuthorityName - 1);
  }
  // The key is read as it stands there, which is how i2d_PUBKEY would encode it, after looking for
  // an encoder.
  unsigned char* der = nullptr;
  const int size = i2d_X509_PUBKEY(X509_get_X509_PUBKEY(cert.get()), &der);
  if (size > 0) facts.key_digest = ComputeKeyDigest(der, size);
  OPENSSL_free(der);
  facts.fingerprint = ComputeFingerprint(cert.get());
  facts.from_unix_s = UnixSeconds(X509_get0_notBefore(cert.get()));
  facts.until_unix_s = UnixSeconds(X509_get0_notAfter(cert.get()));
  return facts;
}

bool IsSignedBy(const std::string& certificate_pem, const std::string& authority_pem) {
  const Cert cert = ReadCert(certificate_pem), authority = ReadCert(authority_pem);
  if (cert == nullptr || authority == nullptr) return false;
  EVP_PKEY* key = X509_get0_pubkey(authority.get());
  // An authority among those who call would be one that it has signed, which it never does.
  const bool is = key != nullptr && X509_check_ca(cert.get()) == 0 &&
                  X509_check_issued(authority.get(), cert.get()) == X509_V_OK &&
                  X509_verify(cert.get(), key) == 1;
  ERR_clear_error();
  return is;
}

bool NamesHost(const std::string& certificate_pem, const std::string& host) {
  const Cert cert = ReadCert(certificate_pem);
  if (cert == nullptr || host.empty()) return false;
  const bool names = IsAddress(host)
                         ? X509_check_ip_asc(cert.get(), host.c_str(), 0) == 1
                         : X509_check_host(cert.get(), host.data(), host.size(),
                                           X509_CHECK_FLAG_NEVER_CHECK_SUBJECT, nullptr) == 1;
  ERR_clear_error();
  return names;
}

std::optional<std::string> FindCertificate(const std::string& pem, const std::string& fingerprint) {
  const Bio bio = Reader(pem);
  for (int i = 0; i < kChainMax; ++i) {
    const Cert cert(PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr));
    if (cert == nullptr) break;
    if (!EqualSecrets(ComputeFingerprint(cert.get()), fingerprint)) continue;
    const absl::StatusOr<std::string> text = ToPem(cert.get());
    if (text.ok()) return *text;
  }
  ERR_clear_error();
  return std::nullopt;
}

absl::StatusOr<KeyAndCertificate> KeyFromSeed(const std::string& seed) {
  const Key key(EVP_PKEY_new_raw_private_key(
      EVP_PKEY_ED25519, nullptr, reinterpret_cast<const unsigned char*>(seed.data()), seed.size()));
  if (key == nullptr) return SslError("cannot make a token's key");
  // Dates mean nothing here: the coordinator knows how long the token is valid.
  ATOLL_ASSIGN_OR_RETURN(const Cert cert, Begin("Atoll join token", key.get(), 0, 4102444800));
  X509_set_issuer_name(cert.get(), X509_get_subject_name(cert.get()));
  if (X509_sign(cert.get(), key.get(), nullptr) == 0) return SslError("cannot sign");
  KeyAndCertificate made;
  ATOLL_ASSIGN_OR_RETURN(made.key, ToPem(key.get()));
  ATOLL_ASSIGN_OR_RETURN(made.certificate, ToPem(cert.get()));
  return made;
}

namespace {

// Ed25519 has a hash of its own.
const EVP_MD* SignatureHash(EVP_PKEY* key) {
  return EVP_PKEY_get_base_id(key) == EVP_PKEY_ED25519 ? nullptr : EVP_sha256();
}

}  // namespace

absl::StatusOr<std::string> SignText(const std::string& key_pem, absl::string_view text) {
  const Key key = ReadKey(key_pem);
  if (key == nullptr) return absl::InvalidArgumentError("is no private key that can be read");
  const DigestContext context(EVP_MD_CTX_new());
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  size_t size = 0;
  std::string signature;
  if (EVP_DigestSignInit(context.get(), nullptr, SignatureHash(key.get()), nullptr, key.get()) !=
          1 ||
      EVP_DigestSign(context.get(), nullptr, &size, bytes, text.size()) != 1) {
    return SslError("cannot sign");
  }
  signature.resize(size);
  if (EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                     bytes, text.size()) != 1) {
    return SslError("cannot sign");
  }
  signature.resize(size);
  return signature;
}

bool HasSigned(const std::string& certificate_pem, absl::string_view text,
               absl::string_view signature) {
  const Cert cert = ReadCert(certificate_pem);
  if (cert == nullptr) return false;
  EVP_PKEY* const key = X509_get0_pubkey(cert.get());
  const DigestContext context(EVP_MD_CTX_new());
  const bool good =
      key != nullptr &&
      EVP_DigestVerifyInit(context.get(), nullptr, SignatureHash(key), nullptr, key) == 1 &&
      EVP_DigestVerify(context.get(), reinterpret_cast<const unsigned char*>(signature.data()),
                       signature.size(), reinterpret_cast<const unsigned char*>(text.data()),
                       text.size()) == 1;
  ERR_clear_error();
  return good;
}

}  // namespace atl
