// Streams, events, and copies between the host and a device that are late.
//
// Kernels run when they are called. What may be late on a GPU and goes wrong where nobody waits is checked:
//  - an asynchronous copy to the host is done when the host waits for it; until then its target holds bytes of 0xff;
//  - the host may not change pinned memory that is being copied to the device before it has waited for the copy;
//  - work on a stream may use what another stream wrote only after it has waited for that stream.
#pragma once

#include "memory.h"

#include <c10/core/Stream.h>

#include <functional>
#include <string_view>

namespace emulated {

using Clock = std::unordered_map<int64_t, int64_t>;  // of each stream, how much of its work has been waited for

inline int64_t stream_key(c10::DeviceIndex device, c10::StreamId id) { return device * 1000000L + id; }

inline std::vector<int64_t> stream_ids(1, 0);  // streams made so far, by device
inline thread_local std::unordered_map<int, c10::StreamId> current_streams;
inline std::unordered_map<int64_t, Clock> clocks;  // what each stream has waited for, itself included
inline Clock host_clock;                           // what the host has waited for

inline c10::StreamId current_stream(c10::DeviceIndex device) { return current_streams[device]; }
inline int64_t current_key(c10::DeviceIndex device) { return stream_key(device, current_stream(device)); }

inline void merge(Clock& into, const Clock& other) {
  for (auto& [key, tick] : other) {
    auto& mine = into[key];
    mine = std::max(mine, tick);
  }
}

// A step of work on the device's current stream; its number.
inline int64_t tick(int64_t key) {
  merge(clocks[key], host_clock);
  return ++clocks[key][key];
}

struct CopyIn {  // to the device, from pinned memory
  c10::Storage host;
  const char* from;
  size_t bytes, hash;
  int64_t stream, tick;
};

struct CopyOut {  // from the device
  at::Tensor host, value;
  int64_t stream, tick;
};

inline std::vector<CopyIn> copies_in;
inline std::vector<CopyOut> copies_out;

inline size_t hash_of(const char* from, size_t bytes) { return std::hash<std::string_view>()({from, bytes}); }

// From here on, two streams know what either has waited for and done.
inline void join(int64_t one, int64_t other) {
  merge(clocks[one], clocks[other]);
  merge(clocks[other], clocks[one]);
}

// Do what of the pending copies `known` has waited for.
inline void settle(const Clock& known) {
  auto is_past = [&](int64_t stream, int64_t tick) {
    auto found = known.find(stream);
    return found != known.end() && found->second >= tick;
  };
  std::vector<CopyOut> waiting;
  for (auto& copy : copies_out) {
    if (is_past(copy.stream, copy.tick))
      copy.host.copy_(copy.value);
    else
      waiting.push_back(copy);
  }
  copies_out.swap(waiting);
}

inline void check_copies_in() {
  std::vector<CopyIn> waiting;
  bool changed = false;
  for (auto& copy : copies_in) {
    auto found = host_clock.find(copy.stream);
    changed |= hash_of(copy.from, copy.bytes) != copy.hash;
    if (found == host_clock.end() || found->second < copy.tick) waiting.push_back(copy);
  }
  copies_in.swap(waiting);
  if (changed) copies_in.clear();
  TORCH_CHECK(!changed, "emulated CUDA: pinned memory was changed before its copy to the device was waited for");
}

// The host waits for what an event, a stream or a device has done so far.
inline void wait_for_event(const Clock& event) {
  Locked guard(lock);
  merge(host_clock, event);
  settle(host_clock);
  check_copies_in();
}

inline void wait_for_stream(int64_t key) {
  Locked guard(lock);
  wait_for_event(clocks[key]);
}

inline void wait_for_device(c10::DeviceIndex device) {
  Locked guard(lock);
  for (int64_t id = 0; id <= stream_ids[device]; id++) wait_for_stream(stream_key(device, id));
}

// A kernel on a stream uses a block: what other streams did to it must have been waited for.
inline void use(const void* pointer, bool write, int64_t key, int64_t now) {
  if (!pointer) return;
  Locked guard(lock);
  auto block = block_of(pointer);
  if (block == blocks.end()) return;
  auto& past = block->second;
  auto& known = clocks[key];
  auto waited = [&](const Use& earlier) { return earlier.stream < 0 || known[earlier.stream] >= earlier.tick; };
  bool good = waited(past.written);
  if (write) {
    for (auto& earlier : past.read) good &= waited(earlier);
    past.written = {key, now};
    past.read.clear();
  } else {
    auto own = std::find_if(past.read.begin(), past.read.end(), [&](auto& earlier) { return earlier.stream == key; });
    if (own == past.read.end())
      past.read.push_back({key, now});
    else
      own->tick = now;
  }
  TORCH_CHECK(good, "emulated CUDA: a stream uses memory that another stream works on, without having waited for it");
}

}  // namespace emulated
