#include "worker/data/tokenize.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "common/bytes_text.h"
#include "common/files.h"
#include "common/masked_tokens.h"
#include "common/paths.h"
#include "common/status.h"
#include "common/tokenizer/unicode.h"
#include "worker/data/data_file.h"
#include "worker/data/formats/json_line.h"
#include "worker/data/formats/text_share.h"
#include "worker/data/inputs.h"
#include "worker/data/ordered_exchange.h"

namespace atl {
namespace {

using Json = nlohmann::json;

constexpr int64_t kBatchBytes = 256 << 10;
constexpr int64_t kReadBytes = 64 << 10;
constexpr size_t kBatchesPerThread = 4;
constexpr size_t kCharacterBytesMax = 4;
constexpr int64_t kShortHeadBytes = 4096;
constexpr int64_t kSamples = 64, kRemoteSamples = 4, kSampleBytes = 4096;
constexpr int64_t kUnpackedBytesMax = 512 << 20;

// A part of one file: whole lines, unless a line is longer than a batch of text.
struct Batch {
  int64_t number = 0;
  const std::string* file = nullptr;
  int64_t first_line = 1;
  std::string text;
  // A text file is its first part, or its last one.
  bool begins_document = true;
  bool ends_document = false;
};

struct Encoded {
  std::vector<int32_t> tokens;
  std::vector<size_t> conversation_ends;
  int64_t documents = 0;
  SkippedDocuments skipped;
  int64_t text_bytes = 0;  // without what frames documents
};

using Exchange = OrderedExchange<Batch, Encoded>;

TextOptions GetTextOptions(const TokenizeOptions& options) {
  TextOptions text{.cancelled = options.cancelled, .jsonl = options.jsonl};
  if (options.jsonl) text.wanted = "JSONL";
  // Conversations may have further columns.
  if (options.chat_sequence_length == 0) {
    text.columns = {options.field};
  } else {
    text.used_columns = ChatFields();
  }
  return text;
}

// Behind the last line end that no white space follows, which would belong to the same token; 0:
// there is none.
size_t LineBegin(const std::string& text) {
  size_t at = text.size();
  while (at > 0) {
    const size_t line_end = text.rfind('\n', at - 1);
    if (line_end == std::string::npos) return 0;
    const size_t begin = line_end + 1;
    if (begin + kCharacterBytesMax <= text.size() &&
        !tokenizer::IsWhiteSpace(tokenizer::CharacterAt(text, begin).code)) {
      return begin;
    }
    at = line_end;
  }
  return 0;
}

// Where `text` is cut: between lines; in text without line ends before a space, else between two
// characters; 0: a JSONL line goes on.
size_t CutPosition(const std::string& text, bool jsonl) {
  const size_t line_end = text.rfind('\n');
  if (jsonl) return line_end == std::string::npos ? 0 : line_end + 1;
  if (const size_t begin = LineBegin(text); begin > 0) return begin;
  if (line_end != std::string::npos) return line_end + 1;
  const size_t word_end = text.find_last_not_of(' ', text.rfind(' '));
  if (text.find(' ') != std::string::npos && word_end != std::string::npos) return word_end + 1;
  size_t cut = text.size();
  while (cut > 0 && text.size() - cut < kCharacterBytesMax && (text[cut - 1] & 0xc0) == 0x80) --cut;
  return cut > 1 ? cut - 1 : text.size();
}

class Reader {
 public:
  Reader(const TokenizeOptions& options, Exchange* exchange)
      : options_(options), exchange_(exchange) {}

  absl::Status Run() {
    for (const std::string& path : options_.files) {
      ATOLL_ASSIGN_OR_RETURN(const auto file, OpenDataFile(path, options_.cancelled));
      bytes_total_ += file->bytes();
    }
    for (const std::string& path : options_.files) ATOLL_RETURN_IF_ERROR(ReadOne(path));
    return absl::OkStatus();
  }
  int64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }
  int64_t bytes_total() const { return bytes_total_.load(std::memory_order_relaxed); }

 private:
  absl::Status ReadOne(const std::string& path) {
    ATOLL_ASSIGN_OR_RETURN(const auto reader, TextReader::Open(path, GetTextOptions(options_)));
    const int64_t before = bytes_read();
    Batch batch;
    batch.file = &path;
    while (true) {
      ATOLL_RETURN_IF_ERROR(reader->Read(kReadBytes, &batch.text));
      bytes_read_ = before + reader->file_bytes_read();
      if (reader->ended()) break;
      if (static_cast<int64_t>(batch.text.size()) < kBatchBytes) continue;
      const size_t cut = CutPosition(batch.text, options_.jsonl);
      if (cut == 0) {
        if (batch.text.size() > kMaxTextBytes) {
          return absl::InvalidArgumentError(absl::StrCat("data file ", path, ":", batch.first_line,
                                                         ": a line is longer than ", kMaxTextBytes,
                                                         " bytes"));
        }
        continue;
      }
      Batch rest;
      rest.file = &path;
      rest.begins_document = false;
      rest.text = batch.text.substr(cut);
      batch.text.resize(cut);
      rest.first_line = batch.first_line + std::ranges::count(batch.text, '\n');
      if (!Send(std::move(batch))) return absl::OkStatus();
      batch = std::move(rest);
    }
    batch.ends_document = true;
    Send(std::move(batch));
    return absl::OkStatus();
  }
  bool Send(Batch batch) {
    batch.number = next_++;
    return exchange_->Offer(std::move(batch));
  }

  const TokenizeOptions& options_;
  Exchange* exchange_;
  std::atomic<int64_t> bytes_total_ = 0;
  std::atomic<int64_t> bytes_read_ = 0;
  int64_t next_ = 0;
};

class BatchEncoder {
 public:
  explicit BatchEncoder(const TokenizeOptions& options) : options_(options) {
    if (options.tokenizer != nullptr) encoder_.emplace(*options.tokenizer);
    if (options.chat != nullptr) chat_.emplace(*options.chat);
  }

  absl::StatusOr<Encoded> Encode(const Batch& batch) {
    Encoded result;
    if (!options_.jsonl) {
      if (batch.begins_document) BeginDocument(&result);
      ATOLL_RETURN_IF_ERROR(Add(batch.text, !batch.begins_document, &result));
      const bool whole = options_.tokenizer != nullptr || options_.document_tokens_max > 0;
      if (batch.ends_document && whole) EndDocument(&result);
      return result;
    }
    int64_t line = batch.first_line;
    for (size_t at = 0; at < batch.text.size(); ++line) {
      const size_t end = std::min(batch.text.find('\n', at), batch.text.size());
      const std::string_view json = std::string_view(batch.text).substr(at, end - at);
      at = end + 1;
      const size_t tokens = result.tokens.size();
      const int64_t text_bytes = result.text_bytes;
      const absl::Status status = chat_.has_value() ? AddChat(json, *batch.file, line, &result)
                                                    : AddLine(json, *batch.file, line, &result);
      if (status.ok()) continue;
      if (!options_.skip_bad_documents || !absl::IsInvalidArgument(status)) return status;
      result.tokens.resize(tokens);
      result.text_bytes = text_bytes;
      result.skipped.Add({1, std::string(status.message())});
    }
    return result;
  }

 private:
  absl::Status AddLine(std::string_view json, const std::string& file, int64_t line, Encoded* out) {
    ATOLL_ASSIGN_OR_RETURN(const auto text, JsonlText(json, options_.field, file, line));
    if (!text.has_value()) return absl::OkStatus();
    const size_t begin = out->tokens.size();
    BeginDocument(out);
    ATOLL_RETURN_IF_ERROR(
        Annotate(Add(*text, false, out), absl::StrCat("data file ", file, ":", line)));
    EndDocument(out);
    Mark(begin, out);
    return absl::OkStatus();
  }
  // Marks the document that begins there, if any.
  void Mark(size_t begin, Encoded* out) const {
    if (!options_.mark_documents || begin == out->tokens.size()) return;
    out->tokens[begin] = MarkDocument(out->tokens[begin]);
  }
  absl::Status AddPair(std::string_view json, const std::string& file, int64_t line, Encoded* out) {
    ATOLL_ASSIGN_OR_RETURN(const ChatPair pair, ParsePair(json, file, line));
    if (pair.chosen.messages.empty()) return absl::OkStatus();
    std::array<size_t, 2> ends;
    ATOLL_RETURN_IF_ERROR(
        Annotate(chat_->EncodePair(pair, options_.pair_tokens_max, &out->tokens, &ends),
                 absl::StrCat("data file ", file, ":", line)));
    out->conversation_ends.insert(out->conversation_ends.end(), ends.begin(), ends.end());
    out->documents += 2;
    out->text_bytes += std::ssize(json);
    return absl::OkStatus();
  }
  absl::Status AddChat(std::string_view json, const std::string& file, int64_t line, Encoded* out) {
    if (options_.pair_tokens_max > 0) return AddPair(json, file, line, out);
    ATOLL_ASSIGN_OR_RETURN(const Conversation chat, ParseChat(json, file, line));
    if (chat.messages.empty()) return absl::OkStatus();
    const size_t begin = out->tokens.size();
    ATOLL_RETURN_IF_ERROR(
        Annotate(chat_->Encode(chat, &out->tokens), absl::StrCat("data file ", file, ":", line)));
    Mark(begin, out);
    out->conversation_ends.push_back(out->tokens.size());
    ++out->documents;
    out->text_bytes += std::ssize(json);
    return absl::OkStatus();
  }
  absl::Status Add(std::string_view text, bool continues, Encoded* out) {
    out->text_bytes += std::ssize(text);
    if (encoder_.has_value()) return encoder_->Encode(text, &out->tokens, continues);
    const bool by_lines = options_.document_tokens_max > 0 && !options_.jsonl;
    for (const char c : text) {
      out->tokens.push_back(by_lines && c == '\n' ? kDocumentEnd : static_cast<unsigned char>(c));
    }
    return absl::OkStatus();
  }
  // A document is framed as texts are when the model is used (`generate`, `predict`): one that
  // never saw the token that its tokenizer puts before a text would begin with an untrained one.
  void BeginDocument(Encoded* out) const {
    if (options_.tokenizer == nullptr || options_.document_tokens_max > 0) return;
    const std::span<const int32_t> before = options_.tokenizer->before();
    out->tokens.insert(out->tokens.end(), before.begin(), before.end());
  }
  void EndDocument(Encoded* out) const {
    if (options_.document_tokens_max > 0) {
      out->tokens.push_back(kDocumentEnd);
    } else if (options_.end_of_text.has_value()) {
      out->tokens.push_back(*options_.end_of_text);
    }
    ++out->documents;
  }

  const TokenizeOptions& options_;
  std::optional<Encoder> encoder_;
  std::optional<ChatEncoder> chat_;
};

// The masked ends of text in front of a conversation of so many tokens, which would not fit into
// what is left of its sequence. Sequence i has tokens [i T, i T + T]: its first one is the target
// of none of its own.
int64_t FillerBefore(const TokenizeOptions& options, int64_t position, size_t tokens) {
  if (options.mark_documents) return 0;
  const int64_t sequence_length = options.chat_sequence_length;
  const int64_t used = position % sequence_length;
  const bool fits = used + static_cast<int64_t>(tokens) - 1 <= sequence_length;
  return used == 0 || fits ? 0 : sequence_length - used;
}

absl::Status AppendConversations(const TokenizeOptions& options, const Encoded& encoded,
                                 ShardWriter* writer) {
  const int64_t length = options.chat_sequence_length;
  const std::vector<int32_t> filler(static_cast<size_t>(length),
                                    MaskToken(options.end_of_text.value_or(0)));
  size_t begin = 0;
  for (const size_t end : encoded.conversation_ends) {
    const int64_t before = FillerBefore(options, writer->tokens(), end - begin);
    ATOLL_RETURN_IF_ERROR(writer->Append(std::span(filler).first(static_cast<size_t>(before))));
    ATOLL_RETURN_IF_ERROR(writer->Append(std::span(encoded.tokens).subspan(begin, end - begin)));
    begin = end;
  }
  return absl::OkStatus();
}

void AddDocuments(const TokenizeOptions& options, std::span<const int32_t> tokens,
                  TextHeads* heads) {
  DocumentSplitter splitter(GetDocumentMarks(options));
  std::vector<Document> documents;
  splitter.Add(tokens, &documents);
  splitter.End(&documents);
  if (options.mark_documents) {
    heads->packed.insert(heads->packed.end(), documents.begin(), documents.end());
    return;
  }
  heads->documents += std::ssize(documents);
  heads->documents_cut += CountLonger(documents, options.document_tokens_max);
}

void AddHead(const TokenizeOptions& options, const Encoded& encoded, TextHeads* heads) {
  size_t begin = 0;
  int64_t position = heads->tokens + heads->filler;
  for (const size_t end : encoded.conversation_ends) {
    const int64_t before = FillerBefore(options, position, end - begin);
    heads->filler += before;
    position += before + static_cast<int64_t>(end - begin);
    begin = end;
  }
  if (options.document_tokens_max > 0 || options.mark_documents) {
    AddDocuments(options, encoded.tokens, heads);
  }
  heads->skipped.Add(encoded.skipped);
  heads->text_bytes += encoded.text_bytes;
  heads->tokens += std::ssize(encoded.tokens);
  heads->counted += std::ranges::count_if(encoded.tokens, [](int32_t token) { return token >= 0; });
}

// The file's head, as a batch that begins and ends its document.
absl::StatusOr<Batch> ReadHead(TextReader& reader, const std::string& path, bool jsonl,
                               int64_t bytes_max) {
  Batch batch;
  batch.file = &path;
  const auto goes_on = [&] {
    return jsonl && batch.text.size() < kMaxTextBytes &&
           batch.text.rfind('\n') == std::string::npos;
  };
  while (!reader.ended() && (std::ssize(batch.text) < bytes_max || goes_on())) {
    ATOLL_RETURN_IF_ERROR(reader.Read(bytes_max, &batch.text));
  }
  batch.ends_document = reader.ended();
  if (jsonl && !reader.ended()) batch.text.resize(batch.text.rfind('\n') + 1);  // npos + 1 is 0
  return batch;
}

// Warns of what may not be text, by the head and by samples of the rest of a plain file.
absl::Status WarnOfText(const TokenizeOptions& options, const std::string& path,
                        const TextReader& reader, std::string_view text, TextHeads* heads) {
  if (reader.kind().kind == FileKind::kMarkup) {
    heads->warnings.push_back(absl::StrCat("data file ", path, ": is ", reader.kind().name,
                                           reader.kind().remedy.empty() ? "" : ": ",
                                           reader.kind().remedy));
  }
  const std::string_view line = text.substr(0, text.find('\n'));
  if (!options.jsonl && !line.empty() && line.size() < text.size() && line.front() == '{' &&
      Json::accept(line.begin(), line.end())) {
    heads->warnings.push_back(
        absl::StrCat("data file ", path,
                     ": its first line is a JSON object, and is trained on as it stands: "
                     "data.format = \"jsonl\" or \"chat\" takes the texts out of it"));
  }
  TextShare share;
  share.Add(text, 0);
  const int64_t rest = reader.file_bytes() - std::ssize(text) - kSampleBytes;
  if (reader.is_plain() && rest > 0) {
    ATOLL_ASSIGN_OR_RETURN(const auto file, OpenDataFile(path, options.cancelled));
    const int64_t samples = IsRemotePath(path) ? kRemoteSamples : kSamples;
    for (int64_t i = 1; i <= samples; ++i) {
      const int64_t at = std::ssize(text) + rest / samples * i;
      std::string sample(kSampleBytes, '\0');
      ATOLL_RETURN_IF_ERROR(file->Read(at, sample.data(), kSampleBytes, options.cancelled));
      share.Add(sample, at);
    }
  }
  if (!share.IsSuspicious()) return absl::OkStatus();
  heads->warnings.push_back(absl::StrCat("data file ", path, ": ", share.Text(),
                                         "; if it is text in another encoding: iconv -f latin1 "
                                         "(gbk, koi8-r, ...) -t utf-8, if it is no "
                                         "text: data.format"));
  return absl::OkStatus();
}

// Finds what breaks off, is damaged or is followed by something else. `left`: of all files, bytes
// that are still unpacked for that.
absl::Status ReadToEnd(TextReader& reader, int64_t* left) {
  if (reader.is_plain() || reader.file_bytes() > *left) return absl::OkStatus();
  for (std::string text; !reader.ended() && *left > 0; text.clear()) {
    ATOLL_RETURN_IF_ERROR(reader.Read(kReadBytes, &text));
    *left -= std::ssize(text);
  }
  return absl::OkStatus();
}

// Returns whether it took all of the file.
absl::StatusOr<bool> TokenizeHead(const TokenizeOptions& options, const std::string& path,
                                  int64_t bytes_max, BatchEncoder* encoder, TextHeads* heads,
                                  int64_t* unpacked_left) {
  ATOLL_ASSIGN_OR_RETURN(const auto reader, TextReader::Open(path, GetTextOptions(options)));
  heads->file_bytes += reader->file_bytes();
  ATOLL_ASSIGN_OR_RETURN(const Batch batch, ReadHead(*reader, path, options.jsonl, bytes_max));
  ATOLL_RETURN_IF_ERROR(WarnOfText(options, path, *reader, batch.text, heads));
  ATOLL_ASSIGN_OR_RETURN(const Encoded encoded, encoder->Encode(batch));
  AddHead(options, encoded, heads);
  if (!IsRemotePath(path)) ATOLL_RETURN_IF_ERROR(ReadToEnd(*reader, unpacked_left));
  return batch.ends_document;
}

absl::Status WriteAll(const TokenizeOptions& options, const Reader& reader, Exchange* exchange,
                      ShardWriter* writer, bool* has_text) {
  while (auto encoded = exchange->Next()) {
    *has_text = *has_text || encoded->text_bytes > 0;
    ATOLL_RETURN_IF_ERROR(options.chat_sequence_length > 0
                              ? AppendConversations(options, *encoded, writer)
                              : writer->Append(encoded->tokens));
    writer->AddDocuments(encoded->documents, encoded->skipped);
    if (options.progress) {
      options.progress({reader.bytes_read(), reader.bytes_total(), writer->tokens()});
    }
  }
  return absl::OkStatus();
}

}  // namespace

DocumentMarks GetDocumentMarks(const TokenizeOptions& options) {
  if (options.mark_documents) return {.whole = true, .pairs = options.pair_tokens_max > 0};
  const bool lines = options.tokenizer == nullptr && !options.jsonl;
  return {.end = kDocumentEnd, .behind = lines ? std::optional<int32_t>('\r') : std::nullopt};
}

absl::StatusOr<ShardIndex> Tokenize(const TokenizeOptions& options, const std::string& folder) {
  ShardIndex index;
  index.vocabulary = options.tokenizer == nullptr ? 256 : options.tokenizer->vocabulary();
  index.tokenizer_digest = options.tokenizer == nullptr ? 0 : options.tokenizer->digest();
  index.end_of_text = options.end_of_text;
  index.masked =
      options.chat_sequence_length > 0 || options.document_tokens_max > 0 || options.mark_documents;
  ATOLL_ASSIGN_OR_RETURN(const auto writer,
                         ShardWriter::Create(folder, index, options.shard_tokens_max));
  const auto threads = static_cast<size_t>(std::max(1, options.threads));
  Exchange exchange(kBatchesPerThread * threads);
  Reader reader(options, &exchange);
  std::vector<std::jthread> running;
  running.emplace_back([&] {
    if (const absl::Status status = reader.Run(); !status.ok()) exchange.Fail(status);
    exchange.EndOffers();
  });
  for (size_t i = 0; i < threads; ++i) {
    running.emplace_back([&] {
      BatchEncoder encoder(options);
      while (const auto batch = exchange.Take()) {
        auto encoded = encoder.Encode(*batch);
        if (!encoded.ok()) return exchange.Fail(encoded.status());
        exchange.Give(batch->number, *std::move(encoded));
      }
    });
  }
  bool has_text = false;
  if (const absl::Status status = WriteAll(options, reader, &exchange, writer.get(), &has_text);
      !status.ok()) {
    exchange.Fail(status);
  }
  running.clear();  // joins
  ATOLL_RETURN_IF_ERROR(exchange.status());
  if (!has_text) {
    const SkippedDocuments& skipped = writer->skipped();
    return absl::InvalidArgumentError(
        absl::StrCat("data file ", options.files.empty() ? "" : options.files[0],
                     ": there is no text in it", options.files.size() > 1 ? " or the others" : "",
                     skipped.count > 0 ? "; " + SkippedText(skipped) : ""));
  }
  return writer->Finish();
}

absl::StatusOr<TextHeads> TokenizeHeads(const TokenizeOptions& options, int64_t bytes_max) {
  TextHeads heads;
  BatchEncoder encoder(options);
  Problems problems;
  int64_t unpacked_left = kUnpackedBytesMax;
  size_t cut = 0;
  for (size_t i = 0; i < options.files.size(); ++i) {
    const std::string& path = options.files[i];
    const int64_t bytes = i < kLongHeads ? bytes_max : std::min(bytes_max, kShortHeadBytes);
    if (i < kHeadFiles) {
      auto whole = TokenizeHead(options, path, bytes, &encoder, &heads, &unpacked_left);
      ATOLL_RETURN_IF_ERROR(problems.Take(whole.status()));
      if (!whole.ok() || *whole || ++cut > 1) continue;
      heads.unread.push_back(absl::StrCat(path, " after its first ", BytesText(bytes)));
    } else {
      ATOLL_ASSIGN_OR_RETURN(const auto file, OpenDataFile(path, options.cancelled));
      heads.file_bytes += file->bytes();
    }
  }
  ATOLL_RETURN_IF_ERROR(problems.Status(std::ssize(options.files)));
  if (cut > 1) heads.unread = {absl::StrCat("what follows the heads of ", cut, " files")};
  if (options.files.size() > kHeadFiles) {
    heads.unread.push_back(absl::StrCat("files after ", options.files[kHeadFiles - 1]));
  }
  return heads;
}

}  // namespace atl
