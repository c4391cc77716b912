// Makes one file operation fail: the library replaces the C library's calls in a test that links
// it, and in a program that is started with it in LD_PRELOAD. Operations on paths below one folder
// are counted, and the one with the chosen number fails.
//
// A program reads what it is to do from its environment:
//   ATOLL_IO_FAULT_FOLDER   operations below this absolute path count
//   ATOLL_IO_FAULT_AT       the number of the one that fails, from 1 on; 0: none
//   ATOLL_IO_FAULT_ERROR    EIO, EMFILE, ENOSPC, EINTR or "short": a read or write of half of the
//   bytes ATOLL_IO_FAULT_LOG      file that gets a line "NUMBER CALL PATH" for each operation
//   counted

#ifndef ATOLL_TESTS_FAULTS_IO_FAULTS_H_
#define ATOLL_TESTS_FAULTS_IO_FAULTS_H_

#include <cerrno>  // for IoFault::error
#include <string>

namespace atl {

struct IoFault {
  std::string folder;  // absolute
  std::string call;    // "readdir", "stat", ...: others do not count; empty: all do
  int error = 0;       // errno
  long at = 1;         // number of the first operation that fails
  long count = 1;      // and of how many do, one after the other
};

// In this process, while it exists. One at a time.
class InjectedFault {
 public:
  explicit InjectedFault(const IoFault& fault);
  ~InjectedFault();
  InjectedFault(const InjectedFault&) = delete;
  InjectedFault& operator=(const InjectedFault&) = delete;

  long operations() const;  // counted so far
};

}  // namespace atl

#endif  // ATOLL_TESTS_FAULTS_IO_FAULTS_H_
