// Prints the rows of a Parquet file as lines of JSON: read_rows FILE [COLUMN]...

#include <iostream>

#include "common/files.h"
#include "common/status.h"
#include "worker/data/parquet/rows.h"

namespace atl {
namespace {

absl::Status PrintRows(const std::string& path, const std::vector<std::string>& columns) {
  ATOLL_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  ATOLL_ASSIGN_OR_RETURN(const auto rows, parquet::Rows::Open(
                                              [&](int64_t offset, char* out, int64_t bytes) {
                                                return file.Read(offset, out, bytes);
                                              },
                                              file.bytes(), columns));
  std::string lines;
  while (!rows->ended()) ATOLL_RETURN_IF_ERROR(rows->AppendRow(&lines));
  std::cout << lines;
  return absl::OkStatus();
}

}  // namespace
}  // namespace atl

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const absl::Status status =
      atl::PrintRows(argv[1], std::vector<std::string>(argv + 2, argv + argc));
  if (status.ok()) return 0;
  std::cerr << status.message() << "\n";
  return 1;
}
