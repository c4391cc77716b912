#include "common/model/unknown_fields.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace atl {
namespace {

using Json = nlohmann::json;

// Fields of generation, of how a file was made, of heads of classes, of poolers, of how operations
// are computed, and of dropout, which Atoll does not do.
constexpr char kHarmless[] = R"(
architectures attention_dropout attention_probs_dropout_prob _attn_implementation
attn_implementation _attn_implementation_autoset _attn_implementation_internal attn_pdrop auto_map
bad_words_ids begin_suppress_tokens bos_token cache_implementation chunk_size_feed_forward
classifier_dropout cls_token_id _commit_hash decoder_start_token_id directionality
diversity_penalty do_sample drop_connect_rate dropout_rate dtype early_stopping embd_pdrop
encoder_no_repeat_ngram_size eos_token eos_token_ids exponential_decay_length_penalty
finetuning_task _flash_attn_2_enabled forced_bos_token_id forced_decoder_ids forced_eos_token_id
gradient_checkpointing hidden_dropout_prob id2label is_decoder is_llama_config
keys_to_ignore_at_inference label2id length_penalty logits_to_keep max_length max_seq_len
max_sequence_length min_length model_max_length model_type n_ctx n_special _name_or_path
no_repeat_ngram_size num_beam_groups num_beams num_labels _num_labels num_logits_to_keep
num_return_sequences output_attentions output_hidden_states output_past output_scores pad_token
predict_special_tokens prefix pretraining_tp problem_type remove_invalid_values
reorder_and_upcast_attn repetition_penalty resid_pdrop return_dict return_dict_in_generate
sep_token_id seq_length suppress_tokens task_specific_params temperature tf_legacy_loss
tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config transformers_version
typical_p unk_token_id use_bfloat16 use_cache use_flash_attention_2 use_flash_attn vocab_file
)";
constexpr char kHarmlessPrefixes[] = "summary_ pooler_ unsloth_";

constexpr char kActivations[] = R"(
act_fn activation activation_fn afn activation_function hidden_act hidden_activation
mlp_activation
)";

// Words of fields that other classes have for what changes a model: all but 0, false and nothing
// does.
constexpr char kChangingWords[] = R"(
alibi attention_window bias clip_qkv cross_attention encoder_decoder head_type expert layer_types
linear_attention local_attention lora_ mamba moe_ multi_query nextn no_rope parallel_attn
parallel_residual position_embedding post_norm pruned_heads qk_layernorm qk_norm sandwich_norm
sink rmsnorm_type norm_type sliding_window soft_cap softcap ssm_ vision_config audio_config
window_pattern
)";
// The same of factors, which 1 leaves as they are.
constexpr char kChangingFactors[] = R"(
_multiplier dim_model_base groups logit_scale logits_scaling rope rotary scale_depth scale_emb
embedding_scale
)";
// Fields that are off while true.
constexpr char kChangingFalse[] = R"(
causal is_causal do_layer_norm_before scale_attn_weights use_rope use_rotary
)";

// Returns whether `is` is true of one of the words.
bool Any(const char* words, const auto& is) {
  const std::vector<absl::string_view> list =
      absl::StrSplit(words, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  return std::any_of(list.begin(), list.end(), is);
}

bool HasWord(const std::string& name, const char* words) {
  return Any(words, [&](absl::string_view word) { return absl::StrContains(name, word); });
}

bool IsOneOf(const std::string& name, const char* words) {
  return Any(words, [&](absl::string_view word) { return name == word; });
}

bool IsHarmless(const std::string& name) {
  return IsOneOf(name, kHarmless) || Any(kHarmlessPrefixes, [&](absl::string_view prefix) {
           return absl::StartsWith(name, prefix);
         });
}

bool IsOff(const Json& value) {
  return value.is_null() || value == Json(false) || (value.is_number() && value == Json(0)) ||
         ((value.is_string() || value.is_structured()) && value.empty()) ||
         (value.is_string() && value.get_ref<const std::string&>().empty());
}

bool ListsOnly(const Json& value, const Json& element) {
  return value.is_array() &&
         std::all_of(value.begin(), value.end(), [&](const Json& own) { return own == element; });
}

}  // namespace

FieldUse ClassifyField(const std::string& name, const Json& value) {
  if (IsHarmless(name) || value.is_null()) return FieldUse::kNone;
  if (IsOneOf(name, kChangingFalse)) {
    return value == Json(true) ? FieldUse::kNone : FieldUse::kChangesModel;
  }
  if (IsOff(value) && !value.is_number()) return FieldUse::kNone;
  if (name == "position_embedding_type") {
    const bool rotary = value == Json("rope") || value == Json("rotary");
    return rotary ? FieldUse::kNone : FieldUse::kChangesModel;
  }
  if ((name == "layer_types" && ListsOnly(value, Json("full_attention"))) ||
      (name == "no_rope_layers" && ListsOnly(value, Json(1)))) {  // 1: the layer has them
    return FieldUse::kNone;
  }
  if (HasWord(name, kChangingFactors)) {
    const bool is_flag = value == Json(true) && !absl::StrContains(name, "scal");
    return value == Json(1) || is_flag ? FieldUse::kNone : FieldUse::kChangesModel;
  }
  if (IsOff(value)) return FieldUse::kNone;
  if (absl::StrContains(name, "quant") || name == "compression_config") {
    return FieldUse::kQuantisation;
  }
  if (IsOneOf(name, kActivations)) return FieldUse::kActivation;
  return HasWord(name, kChangingWords) ? FieldUse::kChangesModel : FieldUse::kUnknown;
}

std::string ValueText(const Json& value) {
  constexpr size_t kLongest = 60;
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= kLongest ? text : absl::StrCat(text.substr(0, kLongest), "...");
}

}  // namespace atl
