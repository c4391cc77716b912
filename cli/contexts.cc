#include "cli/contexts.h"

#include <cstdlib>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/text/output.h"
#include "cli/text/table.h"
#include "common/files.h"
#include "common/toml_message.h"
#include "common/toml_text.h"
#include "common/trust/member_access.h"

namespace atl::cli {
namespace {

constexpr int64_t kConfigBytesMax = 1 << 20;

std::string ConfigFolder() {
  const char* base = std::getenv("XDG_CONFIG_HOME");
  if (base != nullptr && *base == '/') return absl::StrCat(base, "/atoll");
  const char* home = std::getenv("HOME");
  return absl::StrCat(home == nullptr ? "" : home, "/.config/atoll");
}

absl::Status WriteConfig(const v1::ClientConfig& config) {
  ATOLL_RETURN_IF_ERROR(RealFiles().MakeFolder(ConfigFolder()));
  return WriteFileWithMode(ConfigPath(), FormatConfig(config), 0600);
}

v1::ClientContext* Find(v1::ClientConfig* config, const std::string& name) {
  for (v1::ClientContext& one : *config->mutable_contexts()) {
    if (one.name() == name) return &one;
  }
  return nullptr;
}

// In good time: no daemon renews a person's certificate.
void RenewInTime(const IdentityFolder& folder, const std::string& coordinator) {
  const auto facts = folder.Certificate();
  const int64_t now = absl::ToUnixSeconds(absl::Now());
  if (!facts.ok() || now > facts->until_unix_s) return;
  if (now - facts->from_unix_s < (facts->until_unix_s - facts->from_unix_s) / 2) return;
  const absl::Status renewed = RenewCertificate(folder, coordinator);
  if (!renewed.ok()) {
    std::cerr << "atoll: your certificate is not renewed: " << renewed.message() << "\n";
  }
}

}  // namespace

std::string ConfigPath() { return ConfigFolder() + "/config.toml"; }

absl::Status CheckContextName(const std::string& name) {
  if (CheckUserName(name).ok() && name.front() != '.') return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, ": must be 1 to 63 letters, digits, '.', '_', '@' and '-', and not begin with '.'"));
}

IdentityFolder ContextFolder(const std::string& name) {
  return IdentityFolder(absl::StrCat(ConfigFolder(), "/contexts/", name));
}

absl::StatusOr<v1::ClientConfig> ReadConfig() {
  const auto bytes = RealFiles().Read(ConfigPath(), kConfigBytesMax);
  if (absl::IsNotFound(bytes.status())) return v1::ClientConfig();
  ATOLL_RETURN_IF_ERROR(bytes.status());
  return ParseConfig({reinterpret_cast<const char*>(bytes->data()), bytes->size()}, ConfigPath());
}

absl::StatusOr<v1::ClientConfig> ParseConfig(absl::string_view text, const std::string& path) {
  v1::ClientConfig config;
  ATOLL_RETURN_IF_ERROR(TomlMessage(path).Read(text, &config));
  return config;
}

std::string FormatConfig(const v1::ClientConfig& config) {
  std::string text = absl::StrCat("context = ", TomlString(config.context()), "\n");
  for (const v1::ClientContext& one : config.contexts()) {
    absl::StrAppend(&text, "\n[[contexts]]\nname = ", TomlString(one.name()),
                    "\ncoordinator = ", TomlString(one.coordinator()),
                    "\nidentity = ", TomlString(one.identity()), "\n");
  }
  return text;
}

absl::Status AddContext(const std::string& name, const std::string& coordinator) {
  ATOLL_ASSIGN_OR_RETURN(v1::ClientConfig config, ReadConfig());
  v1::ClientContext* context = Find(&config, name);
  if (context == nullptr) context = config.add_contexts();
  context->set_name(name);
  context->set_coordinator(coordinator);
  context->set_identity(ContextFolder(name).path());
  config.set_context(name);
  return WriteConfig(config);
}

absl::Status UseContext(const std::string& name, bool coordinator_given, Global* global) {
  const TlsOptions& tls = global->tls;
  if (!tls.ca_path.empty() || !tls.cert_path.empty() || !tls.key_path.empty()) {
    return absl::OkStatus();
  }
  ATOLL_ASSIGN_OR_RETURN(v1::ClientConfig config, ReadConfig());
  const std::string wanted = name.empty() ? config.context() : name;
  if (wanted.empty()) return absl::OkStatus();
  const v1::ClientContext* context = Find(&config, wanted);
  if (context == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(ConfigPath(), ": there is no context ", wanted, "; see atoll context"));
  }
  if (coordinator_given && global->coordinator != context->coordinator()) return absl::OkStatus();
  global->coordinator = context->coordinator();
  const IdentityFolder folder(context->identity());
  ATOLL_ASSIGN_OR_RETURN(const bool there, folder.Exists());
  if (!there) return absl::OkStatus();
  RenewInTime(folder, global->coordinator);
  const bool insecure = tls.insecure;
  global->tls = folder.tls();
  global->tls.insecure = insecure;
  global->curve_key_path = folder.curve_key_path();
  return absl::OkStatus();
}

int Contexts(const Global& global, const ContextFlags& flags) {
  auto config = ReadConfig();
  if (!config.ok()) return Fail(config.status());
  if (!flags.name.empty()) {
    absl::Status status =
        absl::NotFoundError(absl::StrCat(ConfigPath(), ": there is no context ", flags.name));
    if (Find(&*config, flags.name) != nullptr) {
      config->set_context(flags.name);
      status = WriteConfig(*config);
    }
    return ExitCode(status);
  }
  if (global.structured) {
    std::cout << Document(*config);
    return 0;
  }
  Table table({"in use", "context", "coordinator", "identity"});
  for (const v1::ClientContext& one : config->contexts()) {
    table.Add({one.name() == config->context() ? "*" : "", one.name(), one.coordinator(),
               one.identity()});
  }
  std::cout << (table.empty()
                    ? "no contexts: commands go to 127.0.0.1:7000, or where --coordinator "
                      "says; `atoll join` and `atoll init` add one\n"
                    : table.Text());
  return 0;
}

}  // namespace atl::cli
