// A job that real programs finish within seconds.

#ifndef ATOLL_TESTS_SECURITY_TINY_JOB_H_
#define ATOLL_TESTS_SECURITY_TINY_JOB_H_

#include <filesystem>
#include <fstream>
#include <string>

namespace atl {

// Writes FOLDER/job.toml, which reads FOLDER/corpus.txt; `more`: at the end of the job file. The
// folder is made if it is not there.
inline void WriteTinyJob(const std::string& folder, const std::string& more = "") {
  std::filesystem::create_directories(folder);
  std::ofstream corpus(folder + "/corpus.txt");
  for (int i = 0; i < 2000; ++i) corpus << "line " << i * i << "\n";
  corpus.close();
  std::ofstream(folder + "/job.toml") << R"(name = "tiny"
[model]
hidden = 16
layers = 1
heads = 2
[data]
path = "corpus.txt"
sequence_length = 32
[inner]
batch_sequences = 2
[outer]
steps_per_round = 8
grace_seconds = 0.0
[schedule]
train_tokens = 1536
validation_sequences = 4
)" << more;
}

}  // namespace atl

#endif  // ATOLL_TESTS_SECURITY_TINY_JOB_H_
