#include "common/file_kind.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>

namespace atl {
namespace {

using namespace std::string_literals;

std::string Name(const std::string& head) { return DetectFileKind(head).name; }

std::string Body() {
  std::string bytes;
  std::minstd_rand random(5);
  for (int i = 0; i < 600; ++i) bytes += static_cast<char>(random());
  return bytes;
}

TEST_CASE("files_are_named_by_their_first_bytes") {
  const std::pair<std::string, const char*> cases[] = {
      {"\x1f\x8b\x08\0\0\0\0\0\0\x03"s, "a gzip file"},
      {"\x1f\x8b\x08\x04\0\0\0\0\0\xff"s, "a gzip file"},  // bgzip
      {"\x1f\x8b\x08\0\0\0\0\0\x01\x63"s, "a gzip file"},  // of an odd writer
      {"\x28\xb5\x2f\xfd"s, "a zstd file"},
      {"\x50\x2a\x4d\x18\x08\0\0\0metadata\x28\xb5\x2f\xfd"s, "a zstd file"},
      {"\x5f\x2a\x4d\x18\0\0\1\0"s, "a zstd file"},  // what follows is further on
      {"\x50\x2a\x4d\x18\x02\0\0\0ab\x04\x22\x4d\x18"s, "an lz4 file"},
      {"\x50\x2a\x4d\x18\x02\0\0\0abno frame"s, "a zstd file"},  // a damaged one
      {"\x27\xb5\x2f\xfd"s, "a zstd file of before 0.8"},
      {"\xfd"s + "7zXZ\0"s, "an xz file"},
      {"\x5d\0\0\x80\0\xff\xff\xff\xff\xff\xff\xff\xff\0"s, "an .lzma file"},
      {"BZh91AY&SY"s, "a bzip2 file"},
      {"PK\3\4"s + Body(), "a zip archive"},
      {"PK\3\4..............archive/data.pkl"s, "a PyTorch checkpoint"},
      {"PK\3\4..............arr_0.npy"s, "a NumPy archive"},
      {"PK\3\4....[Content_Types].xml"s, "an Office document"},
      {"\x04\x22\x4d\x18"s, "an lz4 file"},
      {"\xff\x06\0\0sNaPpY"s, "a snappy file"},
      {"PAR1" + Body(), "a Parquet file"},
      {"ARROW1\0\0"s + Body(), "an Arrow file"},
      {"\xff\xff\xff\xff\x78\0\0\0\x10\0\0\0"s + Body(), "an Arrow stream"},
      {"%PDF-1.7\n" + Body(), "a PDF document"},
      {"\x93NUMPY\1\0v\0"s, "a NumPy file"},
      {"\x40\0\0\0\0\0\0\0{\"a\":{\"dtype\""s, "a safetensors file"},
      {"\xff\xd8\xff\xe0"s + Body(), "a JPEG image"},
      {"\x89PNG\r\n\x1a\n"s + Body(), "a PNG image"},
      {"MMIDIDX\0\0"s, "Megatron's index"},
      {"\x08\x08\x12\x07pytorch\x1a\x03"s + Body(), "an ONNX model"},
      {"lmgg\0\x7d"s + Body(), "a GGML file"},
      {"LITPKDS\1\0"s, "a packed data set of lit-gpt (LITPKDS)"},
      {std::string(60, 'a') + "BOOKMOBI\0\0"s, "a Mobipocket book"},
      {"MATLAB 5.0 MAT-file\0\1"s, "a MATLAB file"},
      {std::string(257, 'a') + "ustar", "a tar archive"},
      {"\x80\4\x95"s + Body(), "a Python pickle"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0", "a Git LFS pointer"},
      {"outs:\n- md5: 0123\n  size: 4\n", "a DVC pointer"},
      {"Salted__" + Body(), "a file encrypted by openssl"},
      {"age-encryption.org/v1\n-> X25519 a", "a file encrypted by age"},
      {"WARC/1.0\r\nWARC-Type: conversion", "a WARC file (of Common Crawl)"},
      {"\n<!DOCTYPE html><html>", "an HTML page"},
      {"<HTML><head>", "an HTML page"},
      {"<!-- saved -->\n<html>", "an HTML page"},
      {"<mediawiki xmlns=\"http://www.mediawiki.org/xml/\">", "an XML file"},
      {"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>",
       "an error answer of an object store (AccessDenied)"},
      {"<Error><Code>NoSuchKey</Code></Error>", "an error answer of an object store (NoSuchKey)"},
      {"<?xml version=\"1.0\"?><doc/>", "an XML file"},
      {"{\"error\":\"Repository not found\"}\n", "an error answer of a server in JSON"},
      {"\xff\xfeh\0i\0"s, "text in UTF-16LE"},
      {"\xfe\xff\0h\0i"s, "text in UTF-16BE"},
      {"\xff\xfe\0\0h\0\0\0"s, "text in UTF-32LE"},
      {"\0\0\xfe\xff\0\0\0h"s, "text in UTF-32BE"},
  };
  for (const auto& [head, name] : cases) {
    INFO(name);
    CHECK(Name(head) == name);
  }
}

TEST_CASE("wide_text_without_a_mark_is_named_by_its_zeros") {
  std::string narrow, wide;
  for (int i = 0; i < 100; ++i) narrow += "a line of text\n";
  for (const char c : narrow) (wide += c) += '\0';
  CHECK(Name(wide) == "text in UTF-16LE");
  CHECK(Name('\0' + wide.substr(0, wide.size() - 1)) == "text in UTF-16BE");
  std::string letters;  // numbers below 65, 2 bytes each: tokens of a model of letters
  for (int i = 0; i < 500; ++i) (letters += static_cast<char>(i * 7 % 65)) += '\0';
  CHECK(Name(letters).empty());
}

TEST_CASE("a_text_is_of_no_kind_whatever_word_it_begins_with") {
  for (const char* word : {"BZh", "PAR1", "ORC", "MZ", "GIF8", "ID3", "RIFF", "GGUF", "FEA1", "<a>",
                           "PK", "{\"text\": \"error\"}", "\xef\xbb\xbftext", "", "a"}) {
    const std::string text = word + std::string(" is how this text begins.\n");
    INFO(text);
    CHECK(Name(text).empty());
  }
  CHECK(Name("{\"error\": \"a\", \"text\": \"b\"}\n").empty());
}

TEST_CASE("numbers_are_of_no_kind") {
  std::minstd_rand random(7);
  for (int file = 0; file < 2000; ++file) {
    std::string tokens;
    for (int i = 0; i < 256; ++i) {
      const auto token = static_cast<uint16_t>(random() % 50257);
      tokens.append(reinterpret_cast<const char*>(&token), 2);
    }
    INFO(file);
    CHECK(Name(tokens).empty());
  }
}

TEST_CASE("formats_without_first_bytes_of_their_own_are_no_text") {
  const auto name = [](std::string_view path, const std::string& head) {
    return FindNoText(path, head).name;
  };
  CHECK(name("a/c.txt.br", "") == "a brotli file by its name");
  CHECK(name("https://host/c.txt.br?sig=a/b.txt", "") == "a brotli file by its name");
  CHECK(name("c.snappy", "") == "a snappy file by its name");
  CHECK(name("c", "\x78\x9c" + Body()) == "data packed by zlib");
  CHECK(name("c", "MZ" + Body()) == "a program (Windows)");
  CHECK(name("C.ZIP", Body()) == "packed by its name (.zip)");
  for (const char* path : {"c.txt", "c.gz"}) CHECK(name(path, "a text that is not packed").empty());
  CHECK(name("c.txt", Body()).empty());
}

TEST_CASE("a_wrong_kind_is_refused_with_its_name_and_the_remedy") {
  CHECK(CheckFileKind("data file f", "%PDF-1.4", "text").message() ==
        "data file f: is a PDF document, not text: take its text out: pdftotext");
  CHECK(CheckFileKind("f", "\x28\xb5\x2f\xfd", "text", {FileKind::kZstd}).ok());
  CHECK(CheckFileKind("f", "text", "tokens").ok());
}

}  // namespace
}  // namespace atl
