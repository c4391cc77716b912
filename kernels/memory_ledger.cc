#include "kernels/memory_ledger.h"

#include <algorithm>

#include "common/bytes_text.h"
#include "common/check.h"

namespace atl {

bool MemoryBound::Take(int64_t bytes) {
  int64_t before = in_use_bytes_;
  do {
    if (limit_bytes_ > 0 && bytes > limit_bytes_ - before) return false;
  } while (!in_use_bytes_.compare_exchange_weak(before, before + bytes));
  return true;
}

absl::Status MemoryLedger::Take(int64_t bytes) {
  ATOLL_CHECK(bytes >= 0, "a buffer of ", bytes, " bytes");
  if (!bound_->Take(bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "out of memory on ", device_, ": ", BytesText(bytes), " wanted, ",
        BytesText(bound_->in_use_bytes()), " of ", BytesText(bound_->limit_bytes()), " held"));
  }
  in_use_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, in_use_bytes_);
  return absl::OkStatus();
}

absl::Status MemoryLedger::Refused(int64_t bytes, int64_t device_free_bytes) {
  in_use_bytes_ -= bytes;
  bound_->GiveBack(bytes);
  return absl::ResourceExhaustedError(absl::StrCat(
      "out of memory on ", device_, ": ", BytesText(bytes), " wanted, ",
      BytesText(bound_->in_use_bytes()), " held by this process, ", BytesText(device_free_bytes),
      " free on the device (fragmented, or in use by other processes)"));
}

void MemoryLedger::GiveBack(void* data) {
  const auto buffer = buffers_.find(data);
  ATOLL_CHECK(buffer != buffers_.end(), "not a buffer of this device");
  in_use_bytes_ -= buffer->second;
  bound_->GiveBack(buffer->second);
  buffers_.erase(buffer);
}

}  // namespace atl
