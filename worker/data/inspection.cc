#include "worker/data/inspection.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "common/bytes_text.h"
#include "common/file_kind.h"
#include "common/object_store/hub.h"
#include "common/paths.h"
#include "common/plural.h"
#include "worker/data/held_out.h"
#include "worker/data/inputs.h"
#include "worker/data/text_input.h"
#include "worker/data/token_stream.h"
#include "worker/data/tokenize.h"

namespace atl {
namespace {

constexpr size_t kHeadImages = 64;
constexpr int64_t kSamples = 256, kRemoteSamples = 32;

// One of the paths of a job's data, and what a worker takes from it.
struct DataPart {
  std::string name;  // "" of the only one
  std::string path;
  double held_out = 0;     // a share of it
  bool is_source = false;  // of a mixture, whose held-out parts count together
};

// The sequences that a worker packs these documents into, which have so many tokens.
// INVALID_ARGUMENT: there are none to train on, or to validate with.
absl::StatusOr<std::string> PackedText(const DataSpec& spec, const DataPart& part,
                                       std::span<const Document> documents) {
  DocumentPacker packer(spec.sequence_length + 1);
  std::vector<DocumentPacker::Sequence> packed;
  int64_t tokens = 0;
  for (const Document& document : documents) {
    packer.Add(document, &packed);
    tokens += document.tokens;
  }
  packer.End(&packed);
  const bool pairs = spec.documents == Documents::kPairs;
  const int64_t sequences = pairs ? std::ssize(documents) / 2 : std::ssize(packed);
  const int64_t held_out = HeldOut(sequences, part.held_out);
  const bool lacks_held_out = part.held_out > 0 && !part.is_source && held_out == 0;
  if (sequences - held_out == 0 || lacks_held_out) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data path ", part.path, ": ", CountText(std::ssize(documents), "document"), " with ",
        CountText(tokens, "token"), " fill ", CountText(sequences, "sequence"), " of data.",
        "sequence_length = ", spec.sequence_length, ", and data.validation_fraction = ",
        part.held_out, " leaves none to ", lacks_held_out ? "validate with" : "train on",
        ": use more data, shorter sequences or another fraction"));
  }
  return absl::StrCat(CountText(tokens, "token"), ", ",
                      CountText(std::ssize(documents), "document"), " in ",
                      CountText(sequences - held_out, "sequence"),
                      held_out > 0 ? absl::StrCat(" and ", held_out, " held out") : "");
}

// The sequences that a worker makes of so many tokens. INVALID_ARGUMENT: there are none.
absl::StatusOr<std::string> SequencesText(const DataSpec& spec, const DataPart& part,
                                          int64_t tokens) {
  const int64_t held_out = HeldOut(tokens, part.held_out);
  const int64_t sequences = SequencesIn(tokens - held_out, spec.sequence_length);
  const int64_t held_out_sequences = SequencesIn(held_out, spec.sequence_length);
  if (sequences == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data path ", part.path, ": ", CountText(tokens - held_out, "token"),
        " to train on, less than one sequence of data.sequence_length = ", spec.sequence_length,
        " and its last target: use more data, a smaller data.sequence_length or another data.",
        "validation_fraction"));
  }
  if (part.held_out > 0 && !part.is_source && held_out_sequences == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("data path ", part.path, ": data.validation_fraction = ", part.held_out,
                     " holds out ", held_out, " of ", CountText(tokens, "token"),
                     ", less than one sequence of data.sequence_length = ", spec.sequence_length));
  }
  return absl::StrCat(CountText(tokens, "token"), ", ", CountText(sequences, "sequence"),
                      held_out > 0 ? absl::StrCat(" and ", held_out_sequences, " held out") : "");
}

// The same of documents that are padded, some of which are cut.
absl::StatusOr<std::string> DocumentsText(const DataSpec& spec, const DataPart& part,
                                          int64_t documents, int64_t cut) {
  const int64_t held_out = HeldOut(documents, part.held_out);
  const bool lacks_held_out = part.held_out > 0 && !part.is_source && held_out == 0;
  if (documents - held_out == 0 || lacks_held_out) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data path ", part.path, ": ", CountText(documents, "document"), " with data.",
        "validation_fraction = ", part.held_out, " leave none to ",
        lacks_held_out ? "validate with" : "train on", ": use more data or another fraction"));
  }
  return absl::StrCat(CountText(documents - held_out, "document"),
                      held_out > 0 ? absl::StrCat(" and ", held_out, " held out") : "", ", ", cut,
                      " of them cut at ", CountText(DocumentTokensMax(spec), "token"));
}

// Adds what is known of the documents of a part that was read to its end, or not.
absl::Status AddDocumentsText(const DataSpec& spec, const DataPart& part, bool whole,
                              int64_t documents, int64_t cut, Inspection* found) {
  if (!whole) {
    absl::StrAppend(&found->text, cut, " of the first ", CountText(documents, "document"),
                    " cut at ", CountText(DocumentTokensMax(spec), "token"));
    return absl::OkStatus();
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string text, DocumentsText(spec, part, documents, cut));
  found->text += text;
  return absl::OkStatus();
}

void WarnOfLeftOut(const std::string& path, const LeftOut& left_out, Inspection* found) {
  const std::string text = left_out.Text();
  if (!text.empty()) found->warnings.push_back(absl::StrCat("data path ", path, ": ", text));
}

absl::Status InspectText(const DataSpec& spec, const DataPart& part, int64_t vocabulary,
                         const InspectionDepth& depth, Inspection* found) {
  ATOLL_ASSIGN_OR_RETURN(const TextInput input, FindText(spec, part.path, vocabulary, {}));
  WarnOfLeftOut(part.path, input.left_out, found);
  ATOLL_ASSIGN_OR_RETURN(const TextHeads heads,
                         TokenizeHeads(OptionsFor(spec, input), depth.head_bytes));
  const std::string skipped = heads.skipped.count > 0 ? SkippedText(heads.skipped) : "";
  if (heads.text_bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data path ", part.path, ": there is no text in it", skipped.empty() ? "" : "; ", skipped));
  }
  if (!skipped.empty()) {
    found->warnings.push_back(absl::StrCat("data path ", part.path, ": ", skipped));
  }
  found->warnings.insert(found->warnings.end(), heads.warnings.begin(), heads.warnings.end());
  ATOLL_ASSIGN_OR_RETURN(const bool direct, ReadsDirectly(spec, input.files, {}));
  absl::StrAppend(&found->text, CountText(std::ssize(input.files), "file"), " of ",
                  BytesText(heads.file_bytes));
  const bool whole = heads.unread.empty();
  if (spec.pad_documents) {
    found->text += ", ";
    ATOLL_RETURN_IF_ERROR(
        AddDocumentsText(spec, part, whole, heads.documents, heads.documents_cut, found));
    found->unread.insert(found->unread.end(), heads.unread.begin(), heads.unread.end());
  } else if (whole && IsPacked(spec)) {
    ATOLL_ASSIGN_OR_RETURN(const std::string packed, PackedText(spec, part, heads.packed));
    absl::StrAppend(&found->text, ", ", packed);
  } else if (direct || whole) {
    const int64_t tokens = direct ? heads.file_bytes : heads.tokens + heads.filler;
    ATOLL_ASSIGN_OR_RETURN(const std::string sequences, SequencesText(spec, part, tokens));
    absl::StrAppend(&found->text, ", ", sequences);
  } else {
    found->unread.insert(found->unread.end(), heads.unread.begin(), heads.unread.end());
  }
  const auto tokens = static_cast<double>(heads.tokens);
  absl::StrAppendFormat(&found->text, ", %.2f bytes a token",
                        static_cast<double>(heads.text_bytes) / tokens);
  if (spec.format == DataFormat::kChat) {
    absl::StrAppendFormat(&found->text, ", template %s, %.0f%% of the tokens are of answers",
                          input.chat->name(), 100 * static_cast<double>(heads.counted) / tokens);
    if (!input.chat->warning().empty()) found->warnings.push_back(input.chat->warning());
  }
  if (input.tokenizer != nullptr && !input.tokenizer->warning().empty()) {
    found->warnings.push_back(input.tokenizer->warning());
  }
  return absl::OkStatus();
}

absl::Status CheckImageKind(const std::string& path) {
  ATOLL_ASSIGN_OR_RETURN(const auto file, OpenDataFile(path));
  ATOLL_ASSIGN_OR_RETURN(const std::string head, ReadFileHead(*file));
  return CheckFileKind(absl::StrCat("data file ", path), head, "a JPEG or PNG",
                       {FileKind::kJpeg, FileKind::kPng});
}

// Lists all, reads some of them, spread evenly, and the first bytes of more.
absl::Status InspectFolder(const DataSpec& spec, const std::string& path, int64_t classes,
                           Inspection* found) {
  ATOLL_ASSIGN_OR_RETURN(const ImageFolder folder,
                         CheckedImageFolder(path, spec.image_size, classes));
  WarnOfLeftOut(path, folder.left_out, found);
  const size_t tried = std::min(folder.files.size(), kHeadImages);
  std::vector<uint8_t> pixels(
      static_cast<size_t>(spec.image_size * spec.image_size * kImageChannels));
  Problems problems;
  const size_t looked_at = IsRemotePath(path) ? 0 : std::min(folder.files.size(), kHeadFiles);
  for (size_t i = 0; i < looked_at; ++i) {
    const ImageFolder::File& file = folder.files[i * folder.files.size() / looked_at];
    ATOLL_RETURN_IF_ERROR(problems.Take(CheckImageKind(file.path)));
  }
  ATOLL_RETURN_IF_ERROR(problems.Status(std::ssize(folder.files)));
  for (size_t i = 0; i < tried; ++i) {
    const ImageFolder::File* const file = &folder.files[i * folder.files.size() / tried];
    ATOLL_RETURN_IF_ERROR(problems.Take(ReadImageFiles({file, 1}, spec.image_size, {}, pixels)));
  }
  ATOLL_RETURN_IF_ERROR(problems.Status(std::ssize(folder.files)));
  absl::StrAppend(&found->text, CountText(std::ssize(folder.files), "image"), " of ",
                  CountText(std::ssize(folder.classes), "class"), ", made ", spec.image_size, " x ",
                  spec.image_size, " (", tried, " of them tried)");
  if (tried < folder.files.size()) {
    found->unread.push_back(absl::StrCat(
        CountText(static_cast<int64_t>(folder.files.size() - tried), "image"), " of ", path));
  }
  return absl::OkStatus();
}

absl::Status InspectPart(const DataSpec& spec, const DataPart& part, int64_t vocabulary,
                         const std::optional<ImageShape>& model, const DataOptions& options,
                         const InspectionDepth& depth, Inspection* found) {
  if (IsText(spec.format)) return InspectText(spec, part, vocabulary, depth, found);
  if (spec.format == DataFormat::kImageFolder) {
    return InspectFolder(spec, part.path, vocabulary, found);
  }
  if (IsImages(spec.format)) {
    ATOLL_ASSIGN_OR_RETURN(const ImageSet images, ImageSet::Open(spec, part.path, vocabulary));
    const ImageShape& shape = images.shape();
    if (model.has_value()) ATOLL_RETURN_IF_ERROR(CheckImageShape(shape, *model));
    absl::StrAppend(&found->text, CountText(images.images(), "image"), " of ", shape.height, " x ",
                    shape.width, " with ", CountText(shape.channels, "channel"));
    return absl::OkStatus();
  }
  ATOLL_ASSIGN_OR_RETURN(const TokenStream stream,
                         TokenStream::Open(spec, part.path, vocabulary, options));
  if (spec.format != DataFormat::kShards) {
    const int64_t samples = IsRemotePath(part.path) ? kRemoteSamples : kSamples;
    ATOLL_RETURN_IF_ERROR(stream.CheckSamples(vocabulary, samples, {}, &found->warnings));
  }
  std::vector<int32_t> head(static_cast<size_t>(std::min(stream.tokens(), depth.head_bytes)));
  ATOLL_RETURN_IF_ERROR(stream.Read(0, vocabulary, head));
  const bool whole = std::ssize(head) == stream.tokens();
  if (spec.pad_documents) {
    DocumentSplitter splitter(stream.marks());
    std::vector<Document> documents;
    splitter.Add(head, &documents);
    if (whole) splitter.End(&documents);
    ATOLL_RETURN_IF_ERROR(AddDocumentsText(spec, part, whole, std::ssize(documents),
                                           CountLonger(documents, DocumentTokensMax(spec)), found));
  } else if (IsPacked(spec)) {
    if (whole) {
      DocumentSplitter splitter(stream.marks());
      std::vector<Document> documents;
      splitter.Add(head, &documents);
      splitter.End(&documents);
      ATOLL_ASSIGN_OR_RETURN(const std::string packed, PackedText(spec, part, documents));
      found->text += packed;
    } else {
      found->text += CountText(stream.tokens(), "token");
    }
  } else {
    ATOLL_ASSIGN_OR_RETURN(const std::string sequences, SequencesText(spec, part, stream.tokens()));
    found->text += sequences;
  }
  if (!whole) {
    found->unread.push_back(
        absl::StrCat(part.path, " after its first ", CountText(std::ssize(head), "token")));
  }
  return absl::OkStatus();
}

// Returns whether the data may be where they are wanted, though not for this machine.
bool IsElsewhere(const absl::Status& status, const std::string& path) {
  if (absl::IsNotFound(status)) {
    const auto found = FindPath(path);
    return found.ok() && !*found;
  }
  // A web server refuses every machine, a store those without its keys.
  const bool refused = absl::IsPermissionDenied(status) && !absl::StartsWith(path, "http");
  return IsRemotePath(path) &&
         (absl::IsUnavailable(status) || absl::IsUnauthenticated(status) || refused);
}

std::vector<DataPart> ListDataParts(const DataSpec& spec) {
  const double held_out = spec.validation_path.empty() ? spec.validation_fraction : 0;
  std::vector<DataPart> parts;
  if (!spec.path.empty()) parts.push_back({"", spec.path, held_out});
  for (const DataSource& source : spec.sources) {
    parts.push_back({source.path, source.path, held_out, /*is_source=*/true});
  }
  for (const SiteData& site : spec.sites) {
    const bool is_split = site.validation_path.empty();
    parts.push_back({site.site, site.path, is_split ? spec.validation_fraction : 0});
    if (!is_split) parts.push_back({site.site + "'s validation", site.validation_path});
  }
  for (const ValidationSet& set : spec.validation) {
    parts.push_back({absl::StrCat("validation set ", set.name), set.path});
  }
  if (!spec.validation_path.empty()) parts.push_back({"validation", spec.validation_path});
  return parts;
}

}  // namespace

absl::StatusOr<Inspection> InspectData(const DataSpec& spec, int64_t vocabulary,
                                       const std::optional<ImageShape>& images,
                                       const std::optional<DocumentFrame>& frame,
                                       const InspectionDepth& depth) {
  Inspection found;
  DataOptions options;
  options.frame = frame;
  for (const DataPart& part : ListDataParts(spec)) {
    absl::StrAppend(&found.text, found.text.empty() ? "" : "; ", part.name,
                    part.name.empty() ? "" : ": ");
    if (!depth.remote && IsRemotePath(part.path)) {
      found.unread.push_back(part.path);
      continue;
    }
    bool lacks_tokenizer = false;
    if (!spec.tokenizer_path.empty() && !IsHubPath(spec.tokenizer_path)) {
      ATOLL_ASSIGN_OR_RETURN(const auto tokenizer, FindPath(spec.tokenizer_path));
      lacks_tokenizer = !tokenizer;
    }
    const std::string& missing = lacks_tokenizer ? spec.tokenizer_path : part.path;
    const absl::Status status = InspectPart(spec, part, vocabulary, images, options, depth, &found);
    if (status.ok()) continue;
    if (!IsElsewhere(status, missing)) return status;
    absl::StrAppend(&found.text, "not looked at: ", status.message());
    found.unread.push_back(part.path);
    found.missing.push_back(missing);
  }
  return found;
}

}  // namespace atl
