#include "common/tokenizer/tokenizer_config.h"

#include <filesystem>

#include "common/file_kind.h"
#include "common/files.h"
#include "common/object_store/hub.h"
#include "common/paths.h"
#include "common/tokenizer/json_fields.h"

namespace atl {
namespace {

namespace fs = std::filesystem;
using tokenizer::Json;

constexpr int64_t kBytesMax = int64_t{64} << 20;  // it lists every added token
constexpr int64_t kTemplateBytesMax = int64_t{1} << 20;

absl::StatusOr<std::string> ReadFile(const fs::path& path, int64_t bytes_max) {
  const auto file = InputFile::Open(path.string());
  auto text = file.ok() ? file->ReadAll(bytes_max) : file.status();
  ATOLL_RETURN_IF_ERROR(Annotate(text.status(), "tokenizer"));
  ATOLL_RETURN_IF_ERROR(CheckFileKind(path.string(), *text, "text"));
  return text;
}

// An object; an empty one where the file is not there.
absl::StatusOr<Json> ReadObject(const fs::path& path) {
  ATOLL_ASSIGN_OR_RETURN(const auto found, FindPath(path.string()));
  if (!found) return Json::object();
  ATOLL_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kBytesMax));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return absl::InvalidArgumentError(absl::StrCat(path.string(), ": is not a JSON object"));
}

// Tokens are texts, or objects with a field "content".
void AddSpecialTokens(const Json& json, std::map<std::string, std::string>* tokens) {
  for (const auto& [name, value] : json.items()) {
    if (!name.ends_with("_token")) continue;
    const Json& text = value.is_object() ? tokenizer::Member(value, "content") : value;
    if (text.is_string()) tokens->emplace(name, text.get<std::string>());
  }
}

absl::Status AddTemplates(const Json& field, TokenizerConfig* config) {
  const auto bad = [&](const char* problem) {
    return absl::InvalidArgumentError(
        absl::StrCat(config->path, ": field \"chat_template\" ", problem));
  };
  if (field.is_null()) return absl::OkStatus();
  config->chat_template_path = config->path;
  if (field.is_string()) {
    config->chat_templates["default"] = field.get<std::string>();
    return absl::OkStatus();
  }
  if (!field.is_array()) return bad("is neither text nor a list of templates");
  for (const Json& entry : field) {
    const Json &name = tokenizer::Member(entry, "name"),
               &text = tokenizer::Member(entry, "template");
    if (!name.is_string() || !text.is_string()) return bad("has an entry without name or template");
    config->chat_templates[name.get<std::string>()] = text.get<std::string>();
  }
  return absl::OkStatus();
}

}  // namespace

std::string TokenizerConfig::SpecialToken(const std::string& name) const {
  const auto found = special_tokens.find(name);
  return found == special_tokens.end() ? "" : found->second;
}

absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const std::string& path) {
  auto local = FetchFromHub(path, HubFiles::kTokenizer);
  if (!local.ok()) return Annotate(local.status(), "tokenizer");
  ATOLL_ASSIGN_OR_RETURN(const auto found, FindPath(*local));
  const bool is_folder = found && found->is_folder;
  const fs::path folder = is_folder ? fs::path(*local) : fs::path(*local).parent_path();
  TokenizerConfig config;
  config.path = (folder / "tokenizer_config.json").string();
  ATOLL_ASSIGN_OR_RETURN(const Json json, ReadObject(config.path));
  ATOLL_ASSIGN_OR_RETURN(config.tokenizer_class,
                         tokenizer::StringField(json, "tokenizer_class", config.path));
  for (const auto& [name, flag] :
       {std::pair("add_bos_token", &config.add_bos), std::pair("add_eos_token", &config.add_eos)}) {
    if (tokenizer::Member(json, name).is_null()) continue;
    ATOLL_ASSIGN_OR_RETURN(*flag, tokenizer::BoolField(json, name, config.path, false));
  }
  AddSpecialTokens(json, &config.special_tokens);
  ATOLL_ASSIGN_OR_RETURN(const Json map, ReadObject(folder / "special_tokens_map.json"));
  AddSpecialTokens(map, &config.special_tokens);  // what the first one has stays
  ATOLL_RETURN_IF_ERROR(AddTemplates(tokenizer::Member(json, "chat_template"), &config));
  const fs::path own = folder / "chat_template.jinja";
  ATOLL_ASSIGN_OR_RETURN(const auto own_found, FindPath(own.string()));
  if (own_found) {
    ATOLL_ASSIGN_OR_RETURN(config.chat_templates["default"], ReadFile(own, kTemplateBytesMax));
    config.chat_template_path = own.string();
  }
  return config;
}

}  // namespace atl
