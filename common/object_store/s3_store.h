// Objects in S3 and what speaks its protocol. Buckets are part of the path ("path style"), which
// all servers take.

#ifndef ATOLL_COMMON_OBJECT_STORE_S3_STORE_H_
#define ATOLL_COMMON_OBJECT_STORE_S3_STORE_H_

#include <functional>
#include <memory>
#include <string>

#include "common/object_store/credentials.h"
#include "common/object_store/http.h"
#include "common/object_store/object_store.h"

namespace atl {

struct S3Options {
  std::string bucket, prefix;  // prefix: empty, or parts joined by '/'
  S3Access access;
  S3Keys::Find renew;                      // absent: the keys stay as they are
  int64_t part_bytes = int64_t{16} << 20;  // larger objects go up in parts of this; S3 wants 5 MB
  RetryOptions retry;
  std::function<int64_t()> unix_seconds;  // absent: the system's clock
};

std::unique_ptr<ObjectStore> NewS3Store(S3Options options);

}  // namespace atl

#endif  // ATOLL_COMMON_OBJECT_STORE_S3_STORE_H_
