// Kernels: every operator that reaches the device runs PyTorch's CPU kernel over the device's memory, and is counted.
#pragma once

#include "streams.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <atomic>
#include <string>
#include <unordered_set>

namespace emulated {

struct Kernel {
  std::string name;
  int64_t bytes = 0, operations = 0;
  bool half = false;
};

struct Counts {
  int64_t reads = 0;            // the host waits for what the device has computed
  int64_t copies = 0;           // to the device
  int64_t copied_bytes = 0;     //
  int64_t blocking_copies = 0;  // of these, those that the host waits for
  int64_t unpinned_copies = 0;  // of these, those from memory that is not pinned
  int64_t kernels = 0;
};

inline Counts counts;
inline std::unordered_map<std::string, int64_t> kernels_by_name, reads_by_name;
inline std::vector<Kernel> traced;
inline std::atomic<bool> tracing{false};
// Nothing is computed: kernels give outputs of the right size in memory that nobody touches.
inline std::atomic<bool> sizes_only{false};

inline void note_read(const std::string& name) {
  Locked guard(lock);
  counts.reads++;
  reads_by_name[name]++;
}

inline void note_kernel(const std::string& name, int64_t bytes, int64_t operations, bool half) {
  Locked guard(lock);
  counts.kernels++;
  kernels_by_name[name]++;
  if (tracing) traced.push_back({name, bytes, operations, half});
}

inline int64_t extent(const at::Tensor& t) {  // the bytes that a kernel moves for a tensor: an expanded one is read once
  int64_t n = t.numel() ? 1 : 0;
  for (int64_t i = 0; n && i < t.dim(); i++)
    if (t.stride(i) != 0) n *= t.size(i);
  return n * static_cast<int64_t>(t.element_size());
}

inline at::Tensor empty_on(c10::DeviceIndex device, at::IntArrayRef size, at::IntArrayRef stride, at::ScalarType dtype) {
  const auto before = current_device;
  current_device = device;
  auto made = at::detail::empty_strided_generic(
      size, stride, &device_allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA), dtype);
  current_device = before;
  return made;
}

// A tensor of the host (or, with `sizes_only`, of no device) over the memory of a tensor of the device.
inline at::Tensor stand_in(const at::Tensor& t, Open& open) {
  if (sizes_only) return at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta));
  if (!t.is_cuda()) return t;
  open.add(t.storage().data());
  auto made = at::from_blob(
      t.numel() ? t.mutable_data_ptr() : nullptr, t.sizes(), t.strides(), t.options().device(at::kCPU));
  if (t.is_conj()) made._set_conj(true);
  if (t.is_neg()) made._set_neg(true);
  return made;
}

// The same numbers on the device.
inline at::Tensor to_device(const at::Tensor& from, c10::DeviceIndex device) {
  const bool dense = from.is_non_overlapping_and_dense();
  auto source = dense ? from : from.contiguous();
  auto made = empty_on(device, source.sizes(), source.strides(), source.scalar_type());
  if (!sizes_only && source.numel()) {
    Open open;
    open.add(made.storage().data());
    std::memcpy(made.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
  }
  return made;
}

inline const at::Tensor& set_size(
    const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format = std::nullopt) {
  auto* impl = self.unsafeGetTensorImpl();
  const size_t needed = (c10::multiply_integers(size) + impl->storage_offset()) * self.element_size();
  auto storage = impl->unsafe_storage();
  if (needed > storage.nbytes()) {
    const auto before = current_device;
    current_device = self.device().index();
    auto memory = device_allocator.allocate(needed);
    current_device = before;
    if (storage.nbytes() && !sizes_only) device_allocator.copy_data(memory.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(memory));
    storage.set_nbytes(needed);
  }
  impl->set_sizes_contiguous(size);
  if (format) impl->empty_tensor_restride(*format);
  return self;
}

// How often the host waits: for operators whose result has a size that it does not know, or is a value of the host, once.
inline int waits(const std::string& name, const std::string& full_name, at::ArrayRef<c10::IValue> args) {
  static const std::unordered_set<std::string> always = {
      "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
      "aten::is_nonzero", "aten::equal", "aten::bincount", "aten::_linalg_check_errors"};
  if (always.count(name)) return 1;
  if (name == "aten::multinomial")  // looks for values below 0 or infinite, then for a row of zeros
    return !args[2].toBool() || args[1].toInt() == 1 ? 2 : 0;
  if (full_name == "aten::repeat_interleave.Tensor") return args[1].isNone();  // without output_size
  auto by_mask = [&](const c10::IValue& indices) {
    for (const c10::IValue& index : indices.toListRef()) {
      if (!index.isTensor() || !index.toTensor().defined()) continue;
      const auto type = index.toTensor().scalar_type();
      if (index.toTensor().is_cuda() && (type == at::kBool || type == at::kByte)) return true;
    }
    return false;
  };
  if (name == "aten::index_put_" || name == "aten::_index_put_impl_" || name == "aten::index_put") {
    const auto& value = args[2].toTensor();
    const bool fills = value.numel() == 1 && value.is_cpu() && !args[3].toBool();  // done by masked_fill_
    return !fills && by_mask(args[1]);
  }
  return 0;
}

// Floating-point operations of a matrix product; for all else, bytes decide.
inline int64_t operations_of(const std::string& name, at::ArrayRef<c10::IValue> args) {
  int first = -1;
  if (name == "aten::mm" || name == "aten::bmm" || name == "aten::_scaled_mm") first = 0;
  if (name == "aten::addmm" || name == "aten::baddbmm" || name == "aten::addbmm") first = 1;
  if (first < 0 || !args[first + 1].isTensor()) return 0;
  return 2 * args[first].toTensor().numel() * args[first + 1].toTensor().size(-1);
}

// CUDA's kernels refuse tensors of the host, numbers without a dimension apart, and tensors of another device.
inline c10::DeviceIndex check_devices(
    const c10::FunctionSchema& schema, const std::string& name, at::ArrayRef<c10::IValue> args) {
  int device = -1;
  auto check = [&](const at::Tensor& t, const std::string& argument, bool host_may, bool written) {
    if (!t.defined()) return;
    if (t.is_cuda()) {
      TORCH_CHECK(device < 0 || device == t.device().index(),
          "Expected all tensors to be on the same device, but found at least two devices, cuda:", device, " and ",
          t.device(), " (emulated CUDA: ", argument, " of ", name, ")");
      device = t.device().index();
    } else {
      const bool number = t.dim() == 0 && argument != "index" && argument != "indices" && !written;
      TORCH_CHECK(host_may || number,
          "Expected all tensors to be on the same device, but found at least two devices, cuda and cpu (emulated CUDA: ",
          argument, " of ", name, ")");
    }
  };
  const bool takes_host_indices = name == "aten::index" || name.rfind("aten::index_put", 0) == 0 ||
      name == "aten::_index_put_impl_" || name == "aten::_unsafe_index";
  for (size_t i = 0; i < args.size(); i++) {
    const auto& argument = schema.arguments()[i];
    const bool written = argument.alias_info() && argument.alias_info()->isWrite();
    if (args[i].isTensor()) {
      check(args[i].toTensor(), argument.name(), false, written);
    } else if (args[i].isList() && !args[i].isIntList() && !args[i].isDoubleList() && !args[i].isBoolList()) {
      for (const c10::IValue& item : args[i].toListRef())
        if (item.isTensor()) check(item.toTensor(), argument.name(), takes_host_indices, written);
    }
  }
  if (device < 0)
    for (auto& arg : args)
      if (arg.isDevice() && arg.toDevice().is_cuda()) device = arg.toDevice().has_index() ? arg.toDevice().index() : -1;
  return device < 0 ? current_device : device;
}

// A generator that was made for the device; its numbers are those of the host's.
struct DeviceGenerator final : at::CPUGeneratorImpl {};

// CUDA's kernels refuse generators of the host, and have no matrix products of integers.
inline void check_types(const std::string& name, at::ArrayRef<c10::IValue> args) {
  static const std::unordered_set<std::string> products = {
      "aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::addmm", "aten::addmv", "aten::baddbmm", "aten::addbmm"};
  for (auto& arg : args) {
    if (arg.isGenerator() && arg.toGenerator().defined()) {
      const auto* generator = arg.toGenerator().unsafeGetGeneratorImpl();
      TORCH_CHECK(generator == at::detail::getDefaultCPUGenerator().unsafeGetGeneratorImpl() ||
              dynamic_cast<const DeviceGenerator*>(generator),
          "Expected a 'cuda' device type for generator but found 'cpu' (emulated CUDA: ", name, ")");
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        !products.count(name) || !arg.isTensor() || !at::isIntegralType(arg.toTensor().scalar_type(), true),
        "not implemented for integers (emulated CUDA: ", name, ")");
  }
}

// An operator over the device: what the dispatcher calls for all that has no kernel below.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op_(op), schema_(op.schema()), stack_(stack), name_(schema_.operator_name().name) {
    const auto& overload = schema_.operator_name().overload_name;
    full_name_ = overload.empty() ? name_ : name_ + "." + overload;
    auto args = torch::jit::last(stack, schema_.arguments().size());
    args_.assign(args.begin(), args.end());
  }

  void run() {
    device_ = check_devices(schema_, name_, args_);
    check_types(name_, args_);
    for (int reads = waits(name_, full_name_, args_); reads > 0; reads--) {
      note_read(full_name_);
      wait_for_stream(current_key(device_));
    }
    const int64_t key = current_key(device_);
    {
      Locked guard(lock);
      now_ = tick(key);
    }
    const size_t begin = stack_->size() - args_.size();
    for (size_t i = 0; i < args_.size(); i++) {
      const auto& argument = schema_.arguments()[i];
      const bool written = argument.alias_info() && argument.alias_info()->isWrite();
      (*stack_)[begin + i] = replaced(args_[i], argument.is_out(), written, key);
    }
    const int64_t operations = operations_of(name_, args_);
    op_.redispatchBoxed(
        c10::DispatchKeySet(sizes_only ? c10::DispatchKey::Meta : c10::DispatchKey::CPU), stack_);
    const size_t results = stack_->size() - schema_.returns().size();
    for (size_t i = 0; i < schema_.returns().size(); i++) {
      auto& value = (*stack_)[results + i];
      value = returned(value, schema_.returns()[i]);
    }
    for (auto& [tensor, made] : outs_) {
      if (!tensor.sizes().equals(made.sizes())) set_size(tensor, made.sizes());
      Open open;
      if (!sizes_only) stand_in(tensor, open).copy_(made);
    }
    note_kernel(full_name_, bytes_, operations, half_);
  }

 private:
  // A kernel that gathers rows reads as much as it writes, and one that scatters writes what it reads: not their table.
  bool gathers() const {
    static const std::unordered_set<std::string> names = {
        "aten::embedding", "aten::index_select", "aten::index", "aten::gather", "aten::_embedding_bag",
        "aten::index_put_", "aten::_index_put_impl_", "aten::index_add_", "aten::scatter_", "aten::scatter_add_"};
    return names.count(name_);
  }

  at::Tensor replaced(const at::Tensor& t, bool out, bool written, int64_t key) {
    if (!t.defined()) return t;
    if (t.is_cuda()) {
      use(t.storage().data(), written, key, now_);
      if (!gathers() || replaced_.size()) bytes_ += extent(t) * ((written && !out) || gathers() ? 2 : 1);
      half_ |= t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16;
    } else if (t.dim() > 0 && name_ != "aten::index") {  // indices of the host, which are copied; index() did it itself
      Locked guard(lock);
      counts.copies++, counts.unpinned_copies++, counts.blocking_copies++;
      counts.copied_bytes += t.nbytes();
    } else if (!sizes_only || t.dim() == 0) {
      return t;
    }
    if (out && t.numel() == 0) {  // its kernel gives it a size
      auto made = at::empty_strided(t.sizes(), t.strides(), t.options().device(sizes_only ? at::kMeta : at::kCPU));
      outs_.emplace_back(t, made);
      return made;
    }
    auto made = stand_in(t, open_);
    replaced_.emplace_back(made, t);
    return made;
  }

  c10::IValue replaced(const c10::IValue& arg, bool out, bool written, int64_t key) {
    if (arg.isTensor()) return replaced(arg.toTensor(), out, written, key);
    if (arg.isTensorList()) {
      c10::List<at::Tensor> made;
      for (const at::Tensor& t : arg.toTensorVector()) made.push_back(replaced(t, out, written, key));
      return made;
    }
    if (arg.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> made;
      for (const c10::IValue& item : arg.toListRef())
        made.push_back(item.isTensor() ? std::optional(replaced(item.toTensor(), out, written, key)) : std::nullopt);
      return made;
    }
    if (arg.isDevice()) return c10::Device(sizes_only ? at::kMeta : at::kCPU);
    return arg;
  }

  at::Tensor returned(const at::Tensor& t) {
    if (!t.defined() || t.is_cuda()) return t;
    for (auto& [host, original] : replaced_)
      if (t.storage().unsafeGetStorageImpl() == host.storage().unsafeGetStorageImpl() && original.is_cuda()) {  // a view
        auto view = at::detail::make_tensor<c10::TensorImpl>(
            c10::TensorImpl::VIEW, c10::Storage(original.storage()), original.key_set(), t.dtype());
        const int64_t offset = original.storage_offset() * original.element_size() / t.element_size();
        view.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), offset + t.storage_offset());
        return view;
      }
    auto made = to_device(t, device_);
    bytes_ += extent(made);
    half_ |= made.scalar_type() == at::kHalf || made.scalar_type() == at::kBFloat16;
    if (gathers()) bytes_ += extent(made);
    use(made.storage().data(), true, current_key(device_), now_);
    return made;
  }

  c10::IValue returned(const c10::IValue& value, const c10::Argument& result) {
    if (const auto* alias = result.alias_info(); alias && alias->isWrite())
      for (size_t i = 0; i < args_.size(); i++) {
        const auto* other = schema_.arguments()[i].alias_info();
        if (other && *other == *alias) return args_[i];
      }
    if (value.isTensor()) return returned(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> made;
      for (const at::Tensor& t : value.toTensorVector()) made.push_back(returned(t));
      return made;
    }
    return value;
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  torch::jit::Stack* stack_;
  std::string name_, full_name_;
  std::vector<c10::IValue> args_;
  Open open_;
  std::vector<std::pair<at::Tensor, at::Tensor>> replaced_;  // what the CPU's kernel gets, and for what
  std::vector<std::pair<at::Tensor, at::Tensor>> outs_;
  c10::DeviceIndex device_ = 0;
  int64_t now_ = 0, bytes_ = 0;
  bool half_ = false;
};

inline void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Call(op, stack).run(); }

}  // namespace emulated
