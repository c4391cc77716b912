// Files of tests that read data: a folder of their own, and compressed text.

#ifndef ATOLL_WORKER_DATA_TESTING_DATA_FOLDER_H_
#define ATOLL_WORKER_DATA_TESTING_DATA_FOLDER_H_

#include <zlib.h>
#include <zstd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/protocol/control.h"
#include "worker/data/token_stream.h"

namespace atl::testing {

namespace fs = std::filesystem;

// Is removed with what is in it; the cache of tokenized data is in it, too.
class DataFolder {
 public:
  DataFolder() {
    std::string name = (fs::temp_directory_path() / "atoll_tokenize_test_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
    setenv("ATOLL_DATA_CACHE", (path_ / "cache").c_str(), 1);
  }
  ~DataFolder() { fs::remove_all(path_); }
  std::string at(const std::string& name) const { return (path_ / name).string(); }
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return at(name);
  }
  // Three words, and "." after each document.
  std::string Tokenizer() const {
    return Write("tokenizer.json",
                 R"({"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2, "</s>": 3},
                    "unk_token": "?"}, "pre_tokenizer": {"type": "WhitespaceSplit"}})");
  }

 private:
  fs::path path_;
};

inline std::string Gzipped(const std::string& text) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(text.size() + 1000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

inline std::string Zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

inline std::string LongText(int words) {
  std::string text;
  for (int i = 0; i < words; ++i) text += i % 3 == 0 ? "a " : i % 7 == 0 ? "c\n" : "b ";
  return text;
}

inline DataSpec Spec(DataFormat format, const std::string& path) {
  DataSpec spec;
  spec.format = format;
  spec.path = path;
  spec.sequence_length = 4;
  spec.validation_fraction = 0.25;
  return spec;
}

inline std::vector<int32_t> AllTokens(const std::string& folder) {
  DataSpec spec;
  spec.format = DataFormat::kShards;
  const auto stream = TokenStream::Open(spec, folder, 1 << 20);
  INFO(stream.status().message());
  REQUIRE(stream.ok());
  std::vector<int32_t> tokens(static_cast<size_t>(stream->tokens()));
  REQUIRE(stream->Read(0, 1 << 20, tokens).ok());
  return tokens;
}

}  // namespace atl::testing

#endif  // ATOLL_WORKER_DATA_TESTING_DATA_FOLDER_H_
