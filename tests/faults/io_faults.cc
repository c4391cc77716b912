#include "tests/faults/io_faults.h"

// This file defines the 64-bit names of calls by itself.
#undef _FILE_OFFSET_BITS

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kShort = -1;  // in place of an errno
constexpr int kDescriptorsMax = 1 << 16;

struct Plan {
  char folder[512] = "";  // empty: nothing counts
  size_t length = 0;
  char call[32] = "";
  int error = 0;
  long at = 0, count = 1;
  int log = -1;
};

Plan plan;
std::atomic<bool> active = false;
std::atomic<long> counted = 0;
std::atomic<bool> tracked[kDescriptorsMax];  // open files and folders below plan.folder

int ErrorByName(const char* name) {
  if (std::strcmp(name, "EMFILE") == 0) return EMFILE;
  if (std::strcmp(name, "ENOSPC") == 0) return ENOSPC;
  if (std::strcmp(name, "EINTR") == 0) return EINTR;
  return std::strcmp(name, "short") == 0 ? kShort : EIO;
}

__attribute__((constructor)) void ReadEnvironment() {
  const char* const folder = std::getenv("ATOLL_IO_FAULT_FOLDER");
  if (folder == nullptr || std::strlen(folder) >= sizeof plan.folder) return;
  std::strcpy(plan.folder, folder);
  plan.length = std::strlen(folder);
  const char* const at = std::getenv("ATOLL_IO_FAULT_AT");
  const char* const error = std::getenv("ATOLL_IO_FAULT_ERROR");
  plan.at = at == nullptr ? 0 : std::atol(at);
  plan.error = error == nullptr ? EIO : ErrorByName(error);
  if (const char* const log = std::getenv("ATOLL_IO_FAULT_LOG")) {
    plan.log = static_cast<int>(
        syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  }
  active = true;
}

bool IsBelow(const char* path) {
  return active && path != nullptr && std::strncmp(path, plan.folder, plan.length) == 0;
}
bool IsTracked(int fd) { return active && fd >= 0 && fd < kDescriptorsMax && tracked[fd]; }
void Track(int fd, bool below) {
  if (fd >= 0 && fd < kDescriptorsMax) tracked[fd] = below;
}

// Counts an operation. True: it is to fail; errno is set, or is kShort where it may be short.
bool Fails(const char* call, const char* path, int fd, bool may_be_short = false) {
  if (plan.call[0] != '\0' && std::strcmp(plan.call, call) != 0) return false;
  const long number = ++counted;
  if (plan.log >= 0) {
    char name[700];
    char link[64];
    if (path == nullptr) {
      std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
      const long got = syscall(SYS_readlink, link, name, sizeof name - 1);
      name[got > 0 ? got : 0] = '\0';
      path = name;
    }
    char line[800];
    const int size = std::snprintf(line, sizeof line, "%ld %s %s\n", number, call, path);
    (void)syscall(SYS_write, plan.log, line, static_cast<size_t>(size));
  }
  if (plan.at <= 0 || number < plan.at || number >= plan.at + plan.count) return false;
  if (plan.error == kShort && !may_be_short) return false;
  errno = plan.error;
  return true;
}

template <class Function>
Function* Next(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

#define NEXT(name) static auto* const next = Next(&name, #name)

extern "C" {

#define DEFINE_OPEN(name)                            \
  int name(const char* path, int flags, ...) {       \
    NEXT(name);                                      \
    va_list rest;                                    \
    va_start(rest, flags);                           \
    const mode_t mode = va_arg(rest, mode_t);        \
    va_end(rest);                                    \
    const bool below = IsBelow(path);                \
    if (below && Fails("open", path, -1)) return -1; \
    const int fd = next(path, flags, mode);          \
    Track(fd, below);                                \
    return fd;                                       \
  }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)

#define DEFINE_OPENAT(name)                                \
  int name(int folder, const char* path, int flags, ...) { \
    NEXT(name);                                            \
    va_list rest;                                          \
    va_start(rest, flags);                                 \
    const mode_t mode = va_arg(rest, mode_t);              \
    va_end(rest);                                          \
    const bool below = IsBelow(path) || IsTracked(folder); \
    if (below && Fails("open", path, -1)) return -1;       \
    const int fd = next(folder, path, flags, mode);        \
    Track(fd, below);                                      \
    return fd;                                             \
  }
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)

#define DEFINE_FOPEN(name)                                \
  FILE* name(const char* path, const char* mode) {        \
    NEXT(name);                                           \
    const bool below = IsBelow(path);                     \
    if (below && Fails("open", path, -1)) return nullptr; \
    FILE* const file = next(path, mode);                  \
    if (file != nullptr) Track(fileno(file), below);      \
    return file;                                          \
  }
DEFINE_FOPEN(fopen)
DEFINE_FOPEN(fopen64)

int close(int fd) {
  NEXT(close);
  Track(fd, false);
  return next(fd);
}

DIR* opendir(const char* path) {
  NEXT(opendir);
  const bool below = IsBelow(path);
  if (below && Fails("opendir", path, -1)) return nullptr;
  DIR* const folder = next(path);
  if (folder != nullptr) Track(dirfd(folder), below);
  return folder;
}

int closedir(DIR* folder) {
  NEXT(closedir);
  Track(dirfd(folder), false);
  return next(folder);
}

#define DEFINE_READDIR(name, type)                                                            \
  struct type* name(DIR* folder) {                                                            \
    NEXT(name);                                                                               \
    if (IsTracked(dirfd(folder)) && Fails("readdir", nullptr, dirfd(folder))) return nullptr; \
    return next(folder);                                                                      \
  }
DEFINE_READDIR(readdir, dirent)
DEFINE_READDIR(readdir64, dirent64)

#define DEFINE_BY_PATH(name, parameters, arguments)         \
  int name parameters {                                     \
    NEXT(name);                                             \
    if (IsBelow(path) && Fails(#name, path, -1)) return -1; \
    return next arguments;                                  \
  }
DEFINE_BY_PATH(mkdir, (const char* path, mode_t mode), (path, mode))
DEFINE_BY_PATH(rmdir, (const char* path), (path))
DEFINE_BY_PATH(unlink, (const char* path), (path))
DEFINE_BY_PATH(remove, (const char* path), (path))
DEFINE_BY_PATH(rename, (const char* path, const char* to), (path, to))
DEFINE_BY_PATH(access, (const char* path, int mode), (path, mode))
DEFINE_BY_PATH(stat, (const char* path, struct stat* info), (path, info))
DEFINE_BY_PATH(lstat, (const char* path, struct stat* info), (path, info))
DEFINE_BY_PATH(stat64, (const char* path, struct stat64* info), (path, info))
DEFINE_BY_PATH(lstat64, (const char* path, struct stat64* info), (path, info))

char* mkdtemp(char* path) {
  NEXT(mkdtemp);
  if (IsBelow(path) && Fails("mkdtemp", path, -1)) return nullptr;
  return next(path);
}

#define DEFINE_BY_DESCRIPTOR(name, parameters, arguments)      \
  int name parameters {                                        \
    NEXT(name);                                                \
    if (IsTracked(fd) && Fails(#name, nullptr, fd)) return -1; \
    return next arguments;                                     \
  }
DEFINE_BY_DESCRIPTOR(fsync, (int fd), (fd))
DEFINE_BY_DESCRIPTOR(fdatasync, (int fd), (fd))
DEFINE_BY_DESCRIPTOR(ftruncate, (int fd, off_t size), (fd, size))
DEFINE_BY_DESCRIPTOR(ftruncate64, (int fd, off64_t size), (fd, size))
DEFINE_BY_DESCRIPTOR(fstat, (int fd, struct stat* info), (fd, info))
DEFINE_BY_DESCRIPTOR(fstat64, (int fd, struct stat64* info), (fd, info))
DEFINE_BY_DESCRIPTOR(flock, (int fd, int operation), (fd, operation))

// A call of `size` bytes, or of half of them.
#define DEFINE_TRANSFER(name, parameters, arguments)            \
  ssize_t name parameters {                                     \
    NEXT(name);                                                 \
    if (IsTracked(fd) && Fails(#name, nullptr, fd, size > 1)) { \
      if (errno != kShort) return -1;                           \
      size /= 2;                                                \
    }                                                           \
    return next arguments;                                      \
  }
DEFINE_TRANSFER(read, (int fd, void* to, size_t size), (fd, to, size))
DEFINE_TRANSFER(write, (int fd, const void* from, size_t size), (fd, from, size))
DEFINE_TRANSFER(pread, (int fd, void* to, size_t size, off_t at), (fd, to, size, at))
DEFINE_TRANSFER(pread64, (int fd, void* to, size_t size, off64_t at), (fd, to, size, at))
DEFINE_TRANSFER(pwrite, (int fd, const void* from, size_t size, off_t at), (fd, from, size, at))
DEFINE_TRANSFER(pwrite64, (int fd, const void* from, size_t size, off64_t at), (fd, from, size, at))

ssize_t writev(int fd, const struct iovec* parts, int count) {
  NEXT(writev);
  if (IsTracked(fd) && Fails("writev", nullptr, fd, count > 0 && parts[0].iov_len > 1)) {
    if (errno != kShort) return -1;
    const struct iovec half = {parts[0].iov_base, parts[0].iov_len / 2};
    return next(fd, &half, 1);
  }
  return next(fd, parts, count);
}

}  // extern "C"

namespace atl {

InjectedFault::InjectedFault(const IoFault& fault) {
  std::strncpy(plan.folder, fault.folder.c_str(), sizeof plan.folder - 1);
  plan.length = std::strlen(plan.folder);
  std::strncpy(plan.call, fault.call.c_str(), sizeof plan.call - 1);
  plan.error = fault.error;
  plan.at = fault.at;
  plan.count = fault.count;
  counted = 0;
  active = true;
}

InjectedFault::~InjectedFault() {
  active = false;
  plan = Plan();
}

long InjectedFault::operations() const { return counted; }

}  // namespace atl
