// Device memory that the host cannot read, and pinned host memory.
//
// A block is a private mapping without access rights: a read by the host is a segmentation fault, as it is (at best) with
// a GPU. A kernel opens the blocks of its arguments for its duration.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace emulated {

inline int device_count = 1;
inline thread_local c10::DeviceIndex current_device = 0;
inline std::recursive_mutex lock;
using Locked = std::lock_guard<std::recursive_mutex>;

struct Use {  // of a block, by a step of work on a stream (streams.h)
  int64_t stream = -1, tick = 0;
};

struct Block {
  size_t mapped;  // bytes, whole pages
  size_t bytes;   // as CUDA's allocator counts them: rounded up to 512
  c10::DeviceIndex device;
  int open = 0;  // kernels that are using it
  Use written = {};
  std::vector<Use> read = {};
};

struct Usage {
  int64_t live = 0, peak = 0, allocations = 0;
};

inline std::map<uintptr_t, Block> blocks;
inline std::vector<Usage> usage(1);  // of each device
inline std::unordered_map<const void*, size_t> pinned;  // beginnings of host blocks, and their sizes

inline std::map<uintptr_t, Block>::iterator block_of(const void* pointer) {
  auto found = blocks.upper_bound(reinterpret_cast<uintptr_t>(pointer));
  if (found == blocks.begin()) return blocks.end();
  --found;
  return reinterpret_cast<uintptr_t>(pointer) < found->first + found->second.mapped ? found : blocks.end();
}

inline bool forked = false;  // whether this process was forked from one that had the device

inline void* allocate(size_t bytes, c10::DeviceIndex device) {
  TORCH_CHECK(!forked,
      "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
      "method");
  static const size_t page = sysconf(_SC_PAGESIZE);
  const size_t mapped = (std::max<size_t>(bytes, 1) + page - 1) / page * page;
  void* pointer = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(pointer != MAP_FAILED, "emulated CUDA: the host has no memory for ", bytes, " bytes more");
  Locked guard(lock);
  const size_t rounded = (bytes + 511) / 512 * 512;
  blocks[reinterpret_cast<uintptr_t>(pointer)] = {mapped, rounded, device};
  auto& used = usage[device];
  used.live += rounded;
  used.peak = std::max(used.peak, used.live);
  used.allocations++;
  return pointer;
}

inline void release(void* pointer) {
  Locked guard(lock);
  auto found = blocks.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == blocks.end()) return;
  usage[found->second.device].live -= found->second.bytes;
  munmap(pointer, found->second.mapped);
  blocks.erase(found);
}

// The blocks that a kernel may read and write while it runs.
class Open {
 public:
  void add(const void* pointer) {
    if (!pointer) return;
    Locked guard(lock);
    auto found = block_of(pointer);
    if (found == blocks.end()) return;
    if (found->second.open++ == 0)
      mprotect(reinterpret_cast<void*>(found->first), found->second.mapped, PROT_READ | PROT_WRITE);
    held_.push_back(found->first);
  }
  ~Open() {
    Locked guard(lock);
    for (auto begin : held_) {
      auto found = blocks.find(begin);
      if (found != blocks.end() && --found->second.open == 0)
        mprotect(reinterpret_cast<void*>(begin), found->second.mapped, PROT_NONE);
    }
  }

 private:
  std::vector<uintptr_t> held_;
};

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* pointer = bytes ? emulated::allocate(bytes, current_device) : nullptr;
    return {pointer, pointer, &release, c10::Device(c10::kCUDA, current_device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    Open open;
    open.add(to);
    open.add(from);
    std::memcpy(to, from, bytes);
  }
};

inline void release_pinned(void* pointer) {
  {
    Locked guard(lock);
    pinned.erase(pointer);
  }
  std::free(pointer);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* pointer = nullptr;
    if (bytes) {
      pointer = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
      Locked guard(lock);
      pinned[pointer] = bytes;
    }
    return {pointer, pointer, &release_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

inline DeviceAllocator device_allocator;
inline PinnedAllocator pinned_allocator;

}  // namespace emulated
