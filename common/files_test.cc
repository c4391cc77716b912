#include "common/files.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "common/path_pattern.h"
#include "common/paths.h"
#include "common/testing/files_simulated.h"
#include "tests/faults/io_faults.h"

namespace atl {
namespace {

std::string Text(const absl::StatusOr<std::vector<std::byte>>& bytes) {
  REQUIRE(bytes.ok());
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

absl::Status Write(Files& files, const std::string& path, const std::string& text) {
  const ByteSpan buffer = AsBytes(text);
  return WriteFileAtomically(files, path, std::span(&buffer, 1));
}

std::string FreshFolder() {
  std::string name = std::filesystem::temp_directory_path() / "atoll-files-XXXXXX";
  REQUIRE(mkdtemp(name.data()) != nullptr);
  return name;
}

TEST_CASE("file_whose_folder_was_deleted_or_moved_is_not_synced") {
  Files& files = RealFiles();
  const std::string folder = FreshFolder() + "/a";
  REQUIRE(files.MakeFolder(folder).ok());
  const auto file = files.OpenAppend(folder + "/log");
  REQUIRE(file.ok());
  const ByteSpan buffer = AsBytes("one");
  REQUIRE((*file)->Append(std::span(&buffer, 1)).ok());
  REQUIRE((*file)->Sync().ok());
  SECTION("deleted") { std::filesystem::remove_all(folder); }
  SECTION("replaced") {
    std::filesystem::remove(folder + "/log");
    REQUIRE(Write(files, folder + "/log", "two").ok());
  }
  SECTION("moved") {
    std::filesystem::rename(folder, folder + "-moved");
    CHECK(absl::IsFailedPrecondition((*file)->Sync()));
    std::filesystem::rename(folder + "-moved", folder);
    CHECK((*file)->Sync().ok());
    return;
  }
  CHECK(absl::IsFailedPrecondition((*file)->Sync()));
}

TEST_CASE("fifo_is_no_file_to_read_and_opening_it_does_not_wait") {
  const std::string fifo = FreshFolder() + "/fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0644) == 0);
  CHECK(absl::IsInvalidArgument(InputFile::Open(fifo).status()));
  CHECK(absl::IsInvalidArgument(RealFiles().Read(fifo, 100).status()));
  CHECK(absl::IsInvalidArgument(InputFile::Open("/tmp").status()));
  CHECK(absl::IsNotFound(InputFile::Open(fifo + "/beyond").status()));
}

TEST_CASE("real files: written, replaced, listed, appended to, read within a limit") {
  Files& files = RealFiles();
  const std::string folder = FreshFolder() + "/a/b";
  REQUIRE(files.List(folder)->empty());
  REQUIRE(files.MakeFolder(folder).ok());
  REQUIRE(files.MakeFolder(folder).ok());
  REQUIRE(Write(files, folder + "/x", "one").ok());
  REQUIRE(Write(files, folder + "/x", "number two").ok());
  REQUIRE(Text(files.Read(folder + "/x", 100)) == "number two");
  const auto too_large = files.Read(folder + "/x", 9);
  REQUIRE(too_large.status().message() == folder + "/x: has 10 bytes; at most 9 are expected");
  auto file = files.OpenAppend(folder + "/y");
  REQUIRE(file.ok());
  const std::string parts[] = {"ab", "", "cde"};
  const ByteSpan buffers[] = {AsBytes(parts[0]), AsBytes(parts[1]), AsBytes(parts[2])};
  REQUIRE((*file)->Append(buffers).ok());
  REQUIRE((*file)->Append(buffers).ok());
  REQUIRE((*file)->Sync().ok());
  REQUIRE((*file)->Truncate(7).ok());
  REQUIRE((*file)->size() == 7);
  REQUIRE(Text(files.Read(folder + "/y", 100)) == "abcdeab");
  REQUIRE(*files.List(folder) == std::vector<std::string>{"x", "y"});
  REQUIRE(files.Remove(folder + "/x").ok());
  REQUIRE(files.Read(folder + "/x", 9).status().code() == absl::StatusCode::kNotFound);
  REQUIRE(files.Read(folder, 9).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a full device is named as such") {
  const auto file = RealFiles().OpenAppend("/dev/full");
  REQUIRE(file.ok());
  const std::string text = "x";
  const ByteSpan buffer = AsBytes(text);
  const absl::Status status = (*file)->Append(std::span(&buffer, 1));
  REQUIRE(status.code() == absl::StatusCode::kResourceExhausted);
  REQUIRE(status.message() == "/dev/full: cannot write: No space left on device; free some space");
}

TEST_CASE("a file written atomically is the old or the new one, wherever the disk dies") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    int64_t die_at = 1;
    for (bool died = true; died; ++die_at) {
      SimulatedFiles disk(seed);
      REQUIRE(Write(disk, "d/x", "the old text").ok());
      disk.die_at = disk.operations + die_at;
      const bool written = Write(disk, "d/x", "the new text").ok();
      died = disk.operations >= disk.die_at;
      disk.Restart();
      const std::string text = Text(disk.Read("d/x", 100));
      REQUIRE((text == "the new text" || (!written && text == "the old text")));
    }
    REQUIRE(die_at > 5);
  }
}

TEST_CASE("the simulated disk loses what was not synced, and runs full") {
  int lost = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SimulatedFiles disk(seed);
    auto file = disk.OpenAppend("d/log");
    const std::string text = "0123456789";
    const ByteSpan buffer = AsBytes(text);
    REQUIRE((*file)->Append(std::span(&buffer, 1)).ok());
    REQUIRE((*file)->Sync().ok());
    REQUIRE(disk.SyncFolder("d").ok());
    REQUIRE((*file)->Append(std::span(&buffer, 1)).ok());
    disk.space_bytes = 25;
    REQUIRE((*file)->Append(std::span(&buffer, 1)).code() == absl::StatusCode::kResourceExhausted);
    disk.Restart();
    const std::string left = Text(disk.Read("d/log", 100));
    REQUIRE(left.substr(0, 10) == text);
    lost += left.size() < 20;
  }
  REQUIRE(lost > 10);
}

TEST_CASE("folder_that_cannot_be_read_to_its_end_is_an_error_and_not_a_short_list") {
  Files& files = RealFiles();
  const std::string folder = FreshFolder();
  for (const char* name : {"a", "b", "c"}) REQUIRE(Write(files, folder + "/" + name, "x").ok());
  for (int at = 1; at <= 6; ++at) {  // ".", ".." and the end are read too
    const InjectedFault fault({folder, "readdir", EIO, at});
    CHECK(absl::IsUnavailable(files.List(folder).status()));
  }
  CHECK(files.List(folder)->size() == 3);
}

TEST_CASE("what_cannot_be_looked_at_is_not_absent") {
  const std::string folder = FreshFolder();
  REQUIRE(Write(RealFiles(), folder + "/a", "x").ok());
  CHECK((*FindPath(folder + "/a"))->is_file);
  CHECK((*FindPath(folder))->is_folder);
  CHECK_FALSE(FindPath(folder + "/b")->has_value());
  CHECK_FALSE(FindPath(folder + "/a/b")->has_value());
  const InjectedFault fault({folder, "stat", EIO});
  CHECK(absl::IsUnavailable(FindPath(folder + "/a").status()));
}

TEST_CASE("pattern_finds_what_fits_in_every_part_and_misses_nothing_in_silence") {
  Files& files = RealFiles();
  const std::string folder = FreshFolder();
  for (const char* name : {"x1", "x2", "y1"}) {
    REQUIRE(files.MakeFolder(folder + "/" + name).ok());
    REQUIRE(Write(files, folder + "/" + name + "/a.txt", "x").ok());
    REQUIRE(Write(files, folder + "/" + name + "/.a.txt", "x").ok());
  }
  CHECK(*ExpandPattern(files, folder + "/x?/*.txt") ==
        std::vector<std::string>{folder + "/x1/a.txt", folder + "/x2/a.txt"});
  CHECK(*ExpandPattern(files, folder + "/[xy]1/a.txt") ==
        std::vector<std::string>{folder + "/x1/a.txt", folder + "/y1/a.txt"});
  CHECK(ExpandPattern(files, folder + "/z*/a.txt")->empty());
  CHECK(ExpandPattern(files, folder + "/*/a.txt/*")->empty());
  const InjectedFault fault({folder, "readdir", EIO, /*at=*/8});
  CHECK(absl::IsUnavailable(ExpandPattern(files, folder + "/*/*").status()));
}

TEST_CASE("file_beyond_the_limit_on_sizes_is_an_error_that_names_the_limit") {
  const std::string path = FreshFolder() + "/large";
  rlimit before;
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const absl::Status written = Write(RealFiles(), path, std::string(2000, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  CHECK(absl::IsResourceExhausted(written));
  CHECK_FALSE(FindPath(path)->has_value());
}

}  // namespace
}  // namespace atl
