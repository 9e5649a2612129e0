// A CUDA device for a CPU build of PyTorch; README.md says what it does and what it does not.

#include "operators.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <pthread.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

using namespace emulated;

namespace {

c10::Stream make_stream(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, device), id);
}

c10::Stream new_stream(c10::DeviceIndex device) {
  Locked guard(lock);
  return make_stream(device, ++stream_ids[device]);
}

int64_t key_of(const c10::Stream& stream) { return stream_key(stream.device_index(), stream.id()); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = current_device;
    setDevice(device);
    return {c10::kCUDA, before};
  }
  c10::Device getDevice() const override { return {c10::kCUDA, current_device}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < device_count, "CUDA error: invalid device ordinal");
    if (device.has_index()) current_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count; }

  c10::Stream getStream(c10::Device device) const override {
    return make_stream(device.index(), current_stream(device.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return make_stream(device.index(), 0); }
  c10::Stream getNewStream(c10::Device device, int) const override { return new_stream(device.index()); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return new_stream(device.index()); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override {
    synchronizeStream(stream);  // who is told that work is done may rely on it
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override { wait_for_stream(key_of(stream)); }
  void synchronizeDevice(const c10::DeviceIndex device) const override { wait_for_device(device); }

  // An event is what a stream had waited for when it was recorded.
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    Locked guard(lock);
    if (!*event) *event = new Clock;
    *static_cast<Clock*>(*event) = clocks[key_of(stream)];
  }
  void block(void* event, const c10::Stream& stream) const override {
    Locked guard(lock);
    if (event) merge(clocks[key_of(stream)], *static_cast<Clock*>(event));
  }
  bool queryEvent(void* event) const override {
    synchronizeEvent(event);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event) wait_for_event(*static_cast<Clock*>(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Clock*>(event); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return device_count; }
  int getNumGPUs() const override { return device_count; }
  c10::DeviceIndex current_device() const override { return emulated::current_device; }
  c10::DeviceIndex getCurrentDevice() const override { return emulated::current_device; }
  void setCurrentDevice(c10::DeviceIndex device) const override { emulated::current_device = device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto before = emulated::current_device;
    emulated::current_device = device;
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? emulated::current_device : exchangeDevice(device);
  }
  bool isPinnedPtr(const void* pointer) const override {
    Locked guard(lock);
    for (auto& [begin, bytes] : pinned)
      if (pointer >= begin && pointer < static_cast<const char*>(begin) + bytes) return true;
    return false;
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  at::Allocator* getCUDADeviceAllocator() const override { return &device_allocator; }
  at::Device getDeviceFromPtr(void* pointer) const override {
    Locked guard(lock);
    const auto block = block_of(pointer);
    TORCH_CHECK(block != blocks.end(), "emulated CUDA: no device memory is at this address");
    return {c10::kCUDA, block->second.device};
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<DeviceGenerator>(); }
  void deviceSynchronize(c10::DeviceIndex device) const override { wait_for_device(device); }
};

// DistributedDataParallel wants to time its devices.
struct Timer final : c10d::Timer {
  explicit Timer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto from = getTimestamp(start), to = getTimestamp(end);
    return from && to ? std::optional(*to - *from) : std::nullopt;
  }
};

}  // namespace

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, ::Timer);
}

// PyTorch makes its hooks when it is first asked about CUDA: this library is to be loaded before.
C10_REGISTER_GUARD_IMPL(CUDA, Guard);
namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks);
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &emulated::empty);
  m.impl("empty_strided", &emulated::empty_strided);
  m.impl("resize_", &emulated::set_size);
  m.impl("copy_", &emulated::copy_);
  m.impl("_foreach_copy_", &copy_all);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("as_strided", &emulated::as_strided);
  m.impl("view", &emulated::view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("_softmax", &emulated::softmax<false>);
  m.impl("_log_softmax", &emulated::softmax<true>);
  m.impl("_softmax_backward_data", &softmax_backward<false>);
  m.impl("_log_softmax_backward_data", &softmax_backward<true>);
  m.impl("mm.dtype", &product_in_float);
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_scaled_dot_product_efficient_attention", &attention);
  m.impl("_scaled_dot_product_efficient_attention_backward", &attention_backward);
}

// What Python calls, by ctypes. A function that can fail gives null, or why it failed.
namespace {
thread_local std::string said;

template <typename Body>
const char* trying(Body body) {
  try {
    body();
    return nullptr;
  } catch (const c10::Error& error) {
    said = error.what_without_backtrace();
    return said.c_str();
  }
}

const char* lines(const std::unordered_map<std::string, int64_t>& numbers) {
  said.clear();
  for (auto& [name, number] : numbers) said += name + " " + std::to_string(number) + "\n";
  return said.c_str();
}
}  // namespace

extern "C" {

// 1 where PyTorch has been asked about CUDA before, and was told that there is none.
int connect_device(int count) {
  if (!at::detail::getCUDAHooks().hasCUDA()) return 1;
  device_count = count;
  usage.resize(count);
  stream_ids.resize(count);
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
  c10::SetAllocator(c10::kCUDA, &device_allocator);
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_attention);
  return 0;
}

int get_device() { return current_device; }
void set_device(int device) { current_device = static_cast<c10::DeviceIndex>(device); }
const char* synchronize() {
  return trying([] { wait_for_device(current_device); });
}

int64_t new_stream_id(int device) { return new_stream(device).id(); }
int64_t get_stream(int device) { return current_stream(device); }
void set_stream(int device, int64_t id) { current_streams[device] = id; }
const char* synchronize_stream(int device, int64_t id) {
  return trying([&] { wait_for_stream(stream_key(device, id)); });
}

void* new_event() { return new Clock; }
void delete_event(void* event) { delete static_cast<Clock*>(event); }
void record_event(void* event, int device, int64_t id) {
  Locked guard(lock);
  *static_cast<Clock*>(event) = clocks[stream_key(device, id)];
}
void stream_waits(void* event, int device, int64_t id) {
  Locked guard(lock);
  merge(clocks[stream_key(device, id)], *static_cast<Clock*>(event));
}
const char* host_waits(void* event) {
  return trying([&] { wait_for_event(*static_cast<Clock*>(event)); });
}

// Reads, copies, their bytes, those that block, those from memory that is not pinned, kernels.
void get_counts(int64_t* into) {
  Locked guard(lock);
  const int64_t numbers[] = {counts.reads, counts.copies, counts.copied_bytes, counts.blocking_copies,
                             counts.unpinned_copies, counts.kernels};
  std::copy(std::begin(numbers), std::end(numbers), into);
}

int64_t live_bytes(int device) { Locked guard(lock); return usage.at(device).live; }
int64_t peak_bytes(int device) { Locked guard(lock); return usage.at(device).peak; }
void reset_peak(int device) { Locked guard(lock); usage.at(device).peak = usage.at(device).live; }

const char* kernel_counts() { Locked guard(lock); return lines(kernels_by_name); }
const char* read_counts() { Locked guard(lock); return lines(reads_by_name); }

void trace(int on) {
  Locked guard(lock);
  tracing = on;
  traced.clear();
}
// A line for each kernel: name, bytes, operations, 1 for half precision.
const char* traced_kernels() {
  Locked guard(lock);
  said.clear();
  for (auto& k : traced)
    said += k.name + " " + std::to_string(k.bytes) + " " + std::to_string(k.operations) + (k.half ? " 1\n" : " 0\n");
  return said.c_str();
}

void set_sizes_only(int on) { sizes_only = on; }

}  // extern "C"
