// Operators with a kernel of their own: memory, copies, and what only CUDA has.
#pragma once

#include "kernels.h"

#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>

namespace emulated {

using at::Tensor;
using Device = std::optional<at::Device>;
using Type = std::optional<at::ScalarType>;

inline c10::DeviceIndex index_of(const Device& device) {
  const auto index = device && device->has_index() ? device->index() : current_device;
  TORCH_CHECK(index < device_count, "CUDA error: invalid device ordinal ", int(index));
  return index;
}

inline Tensor empty(
    at::IntArrayRef size, Type type, std::optional<at::Layout>, Device device, std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  const auto before = current_device;
  current_device = index_of(device);
  auto made = at::detail::empty_generic(
      size, &device_allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(type), format);
  current_device = before;
  return made;
}

inline Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, Type type, std::optional<at::Layout>, Device device,
    std::optional<bool>) {
  return empty_on(index_of(device), size, stride, c10::dtype_or_default(type));
}

// ------------------------------------------------------------------------------------------------------------- copies

inline void copy_in(const Tensor& to, const Tensor& from, bool non_blocking) {
  const int64_t key = current_key(to.device().index());
  const bool is_pinned = from.numel() == 0 || from.is_pinned();
  Locked guard(lock);
  const auto now = tick(key);
  use(to.storage().data(), true, key, now);
  settle(clocks[key]);  // what the stream itself has yet to write into the source
  counts.copies++;
  counts.copied_bytes += to.nbytes();
  if (!is_pinned) counts.unpinned_copies++;
  if (!sizes_only) {
    Open open;
    stand_in(to, open).copy_(from);
  }
  if (!non_blocking) {
    counts.blocking_copies++;
    wait_for_stream(key);
  } else if (is_pinned && from.numel() && from.is_contiguous()) {
    const auto* begin = static_cast<const char*>(from.const_data_ptr());
    copies_in.push_back({from.storage(), begin, from.nbytes(), hash_of(begin, from.nbytes()), key, now});
  }
}

inline void copy_out(const Tensor& to, const Tensor& from, bool non_blocking) {
  const int64_t key = current_key(from.device().index());
  Locked guard(lock);
  const auto now = tick(key);
  use(from.storage().data(), false, key, now);
  if (sizes_only) {
    if (!non_blocking || !to.is_pinned()) note_read("copy to the host");
    to.fill_(1);
    return;
  }
  Open open;
  auto value = stand_in(from, open);
  if (non_blocking && to.numel() && to.is_pinned()) {
    copies_out.push_back({to, value.to(to.scalar_type(), false, true), key, now});
    if (to.is_contiguous()) std::memset(to.mutable_data_ptr(), 0xff, to.nbytes());
    return;
  }
  note_read("copy to the host");
  wait_for_stream(key);
  to.copy_(value);
}

inline Tensor& copy_(Tensor& self, const Tensor& from, bool non_blocking) {
  if (self.is_cuda() && from.is_cuda()) {
    const int64_t key = current_key(self.device().index());
    {
      Locked guard(lock);
      const int64_t source = current_key(from.device().index());
      join(key, source);  // between devices, each one's stream waits for the other's, before the copy and after it
      const auto now = tick(key);
      use(self.storage().data(), true, key, now);
      use(from.storage().data(), false, key, now);
      join(key, source);
    }
    const bool half = self.scalar_type() == at::kHalf || from.scalar_type() == at::kHalf;
    note_kernel("aten::copy_", extent(self) + extent(from), 0, half);
    if (sizes_only) return self;
    Open open;
    stand_in(self, open).copy_(stand_in(from, open));
  } else if (self.is_cuda()) {
    copy_in(self, self.sizes().equals(from.sizes()) ? from : from.expand(self.sizes()), non_blocking);
  } else {
    copy_out(self, self.sizes().equals(from.sizes()) ? from : from.expand(self.sizes()), non_blocking);
  }
  return self;
}

inline Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  Tensor target = to;
  copy_(target, self, non_blocking);
  return to;
}

inline Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  if (!self.sizes().equals(to.sizes())) set_size(to, self.sizes());
  return copy_from(self, to, false);
}

// CUDA copies the tensors of a list together if all are on one device, each pair has the same layout, and each list has
// one type; otherwise one by one.
inline void copy_all(at::TensorList self, at::TensorList from, bool non_blocking) {
  TORCH_CHECK(self.size() == from.size(), "tensor lists must have the same length");
  bool together = !self.empty() && self[0].is_cuda();
  for (size_t i = 0; together && i < self.size(); i++)
    together = self[i].device() == self[0].device() && from[i].device() == self[0].device() &&
        self[i].scalar_type() == self[0].scalar_type() && from[i].scalar_type() == from[0].scalar_type() &&
        self[i].sizes().equals(from[i].sizes()) && self[i].strides().equals(from[i].strides()) &&
        self[i].is_non_overlapping_and_dense();
  if (!together) {
    for (size_t i = 0; i < self.size(); i++) self[i].copy_(from[i], non_blocking);
    return;
  }
  int64_t bytes = 0;
  const int64_t key = current_key(self[0].device().index());
  {
    Locked guard(lock);
    const auto now = tick(key);
    for (size_t i = 0; i < self.size(); i++) {
      use(self[i].storage().data(), true, key, now);
      use(from[i].storage().data(), false, key, now);
      bytes += extent(self[i]) + extent(from[i]);
    }
  }
  note_kernel("aten::_foreach_copy_", bytes, 0, self[0].element_size() == 2 || from[0].element_size() == 2);
  if (sizes_only) return;
  Open open;
  for (size_t i = 0; i < self.size(); i++) stand_in(self[i], open).copy_(stand_in(from[i], open));
}

inline at::Scalar local_scalar(const Tensor& self) {
  note_read("item");
  wait_for_stream(current_key(self.device().index()));
  if (sizes_only) return self.scalar_type() == at::kBool ? at::Scalar(true) : at::Scalar(1);
  Open open;
  return stand_in(self, open).item();
}

// -------------------------------------------------------------------------------------------------------------- views

inline Tensor as_strided(
    const Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
inline Tensor view(const Tensor& self, at::IntArrayRef size) { return at::native::view(self, size); }
inline Tensor reshape_alias(const Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

inline Tensor& set_storage(
    Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  if (stride.empty() && !size.empty())
    impl->set_sizes_contiguous(size);
  else
    impl->set_sizes_and_strides(size, stride);
  return self;
}
inline Tensor& set_whole_storage(Tensor& self, at::Storage storage) {
  const int64_t size = storage.nbytes() / self.element_size();
  return set_storage(self, std::move(storage), 0, {size}, {});
}
inline Tensor& set_tensor(Tensor& self, const Tensor& from) {
  return set_storage(self, from.storage(), from.storage_offset(), from.sizes(), from.strides());
}

// --------------------------------------------------------------------------------------------- one kernel, CUDA's own

// Runs `body` on stand-ins of `inputs`, as one kernel; its results go to the device. With `sizes_only` they are on meta.
template <typename Body>
std::vector<Tensor> one_kernel(const char* name, std::vector<Tensor> inputs, int64_t operations, Body body) {
  c10::DeviceIndex device = current_device;
  int64_t bytes = 0;
  bool half = false;
  for (auto& t : inputs)
    if (t.defined() && t.is_cuda()) {
      device = t.device().index();
      bytes += extent(t);
      half |= t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16;
    }
  const int64_t key = current_key(device);
  {
    Locked guard(lock);
    const auto now = tick(key);
    for (auto& t : inputs)
      if (t.defined()) use(t.storage().data(), false, key, now);
  }
  Open open;
  for (auto& t : inputs)
    if (t.defined()) t = stand_in(t, open);
  std::vector<Tensor> results = body(inputs);
  for (auto& t : results)
    if (t.defined()) {
      t = to_device(t, device);
      bytes += extent(t);
    }
  note_kernel(name, bytes, operations, half);
  return results;
}

inline Tensor wide(const Tensor& t) {
  return t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16 ? t.to(at::kFloat) : t;
}

// A matrix product of half precision that is written as it was summed, in float32.
inline Tensor product_in_float(const Tensor& a, const Tensor& b, at::ScalarType type) {
  const bool half = a.scalar_type() == at::kHalf || a.scalar_type() == at::kBFloat16;
  TORCH_CHECK(half && type == at::kFloat, "out_dtype is float32, of factors of half precision");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "mat1 and mat2 must have the same dtype");
  return one_kernel("aten::mm", {a, b}, 2 * a.size(0) * a.size(1) * b.size(1), [](std::vector<Tensor>& in) {
    return std::vector<Tensor>{at::mm(wide(in[0]), wide(in[1]))};
  })[0];
}

// Softmax adds up in float32, and can read half precision and write float32.
template <bool logarithm>
Tensor softmax(const Tensor& self, int64_t dim, bool half_to_float) {
  return one_kernel(logarithm ? "aten::_log_softmax" : "aten::_softmax", {self}, 0, [&](std::vector<Tensor>& in) {
    auto x = wide(in[0]);
    auto y = logarithm ? at::_log_softmax(x, dim, false) : at::_softmax(x, dim, false);
    return std::vector<Tensor>{half_to_float ? y : y.to(in[0].scalar_type())};
  })[0];
}

template <bool logarithm>
Tensor softmax_backward(const Tensor& gradient, const Tensor& output, int64_t dim, at::ScalarType type) {
  const char* name = logarithm ? "aten::_log_softmax_backward_data" : "aten::_softmax_backward_data";
  return one_kernel(name, {gradient, output}, 0, [&](std::vector<Tensor>& in) {
    auto g = wide(in[0]), y = wide(in[1]);
    auto x = logarithm ? at::_log_softmax_backward_data(g, y, dim, y.scalar_type())
                       : at::_softmax_backward_data(g, y, dim, y.scalar_type());
    return std::vector<Tensor>{x.to(type)};
  })[0];
}

inline std::tuple<Tensor, Tensor, Tensor> lstm_cell(
    const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cell, const std::optional<Tensor>& input_bias,
    const std::optional<Tensor>& hidden_bias) {
  auto bias = input_bias && input_bias->defined() ? *input_bias : Tensor();
  auto other = hidden_bias && hidden_bias->defined() ? *hidden_bias : Tensor();
  auto out = one_kernel(
      "aten::_thnn_fused_lstm_cell", {input_gates, hidden_gates, cell, bias, other}, 0, [](std::vector<Tensor>& in) {
        auto gates = in[0] + in[1];
        if (in[3].defined()) gates = gates + in[3] + in[4];
        auto parts = gates.chunk(4, 1);
        auto i = parts[0].sigmoid(), f = parts[1].sigmoid(), z = parts[2].tanh(), o = parts[3].sigmoid();
        auto next = f * in[2] + i * z;
        return std::vector<Tensor>{o * next.tanh(), next, at::cat({i, f, z, o}, 1)};
      });
  return {out[0], out[1], out[2]};
}

inline std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(
    const std::optional<Tensor>& gradient, const std::optional<Tensor>& cell_gradient, const Tensor& before,
    const Tensor& after, const Tensor& workspace, bool has_bias) {
  auto g = gradient && gradient->defined() ? *gradient : Tensor();
  auto c = cell_gradient && cell_gradient->defined() ? *cell_gradient : Tensor();
  if (!g.defined() && !c.defined()) return {};
  auto out = one_kernel(
      "aten::_thnn_fused_lstm_cell_backward_impl", {g, c, before, after, workspace}, 0, [&](std::vector<Tensor>& in) {
        auto parts = in[4].chunk(4, 1);
        auto i = parts[0], f = parts[1], z = parts[2], o = parts[3], t = in[3].tanh();
        auto gh = in[0].defined() ? in[0] : at::zeros_like(in[3]);
        auto gc = in[1].defined() ? in[1] : at::zeros_like(in[3]);
        auto d = gc + gh * o * (1 - t * t);
        auto gates = at::cat(
            {d * z * i * (1 - i), d * in[2] * f * (1 - f), d * i * (1 - z * z), gh * t * o * (1 - o)}, 1);
        return std::vector<Tensor>{gates, d * f, has_bias ? gates.sum(0) : Tensor()};
      });
  return {out[0], out[1], out[2]};
}

// Attention in one kernel, which keeps no scores. The gradient makes the same dropout again, from a seed.
struct Attention {
  Tensor weights, dropped;  // [B, H, T, S]
  Attention(
      const Tensor& q, const Tensor& k, const Tensor& bias, double dropout, bool causal, double scale, int64_t seed) {
    auto scores = at::matmul(q, k.transpose(-2, -1)) * scale;
    if (bias.defined()) scores = scores + wide(bias);
    if (causal) {
      auto allowed = at::ones({q.size(-2), k.size(-2)}, q.options().dtype(at::kBool)).tril();
      scores = scores.masked_fill(allowed.logical_not(), -INFINITY);
    }
    weights = scores.softmax(-1);
    dropped = weights;
    if (dropout > 0) {
      auto generator = at::detail::createCPUGenerator(seed);
      factor_ = at::empty_like(weights);
      if (!sizes_only) factor_.bernoulli_(1 - dropout, generator).div_(1 - dropout);
      dropped = weights * factor_;
    }
  }
  Tensor undropped(const Tensor& gradient) const { return factor_.defined() ? gradient * factor_ : gradient; }

 private:
  Tensor factor_;
};

inline double scale_of(const std::optional<double>& scale, const Tensor& q) {
  return scale ? *scale : 1 / std::sqrt(double(q.size(-1)));
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor> attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& bias, bool, double dropout,
    bool causal, std::optional<double> scale) {
  auto given = bias && bias->defined() ? *bias : Tensor();
  const int64_t seed = dropout > 0 ? at::randint(1L << 40, {1}, at::kLong).item<int64_t>() : 0;
  const int64_t operations = 4 * q.numel() * k.size(-2);
  auto out = one_kernel("aten::_scaled_dot_product_efficient_attention", {q, k, v, given}, operations,
      [&](std::vector<Tensor>& in) {
        auto a = Attention(wide(in[0]), wide(in[1]), in[3], dropout, causal, scale_of(scale, q), seed);
        auto made = at::matmul(a.dropped, wide(in[2])).to(in[2].scalar_type());
        // laid out as its kernel does it: [B, T, H, d]
        made = made.transpose(1, 2).contiguous().transpose(1, 2);
        auto sums = at::zeros({q.size(0), q.size(1), q.size(2)}, made.options().dtype(at::kFloat));
        return std::vector<Tensor>{made, sums};
      });
  return {out[0], out[1], at::scalar_tensor(seed, at::kLong), at::scalar_tensor(0, at::kLong)};
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& gradient, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias, const Tensor& output,
    const Tensor& sums, const Tensor& seed, const Tensor&, double dropout, std::array<bool, 4> wanted, bool causal,
    std::optional<double> scale) {
  if (!gradient.defined()) return {};
  const int64_t number = seed.item<int64_t>();
  const int64_t operations = 10 * q.numel() * k.size(-2);
  auto out = one_kernel("aten::_scaled_dot_product_efficient_attention_backward",
      {gradient, q, k, v, bias.defined() ? bias : Tensor(), output, sums}, operations, [&](std::vector<Tensor>& in) {
        auto g = wide(in[0]), query = wide(in[1]), key = wide(in[2]), value = wide(in[3]);
        const double factor = scale_of(scale, q);
        auto a = Attention(query, key, in[4], dropout, causal, factor, number);
        auto dv = at::matmul(a.dropped.transpose(-2, -1), g);
        auto dw = a.undropped(at::matmul(g, value.transpose(-2, -1)));
        auto ds = a.weights * (dw - (dw * a.weights).sum(-1, true));
        auto dq = at::matmul(ds, key) * factor, dk = at::matmul(ds.transpose(-2, -1), query) * factor;
        auto type = in[1].scalar_type();
        return std::vector<Tensor>{
            dq.to(type), dk.to(type), dv.to(type), wanted[3] ? at::sum_to(ds, in[4].sizes()).to(type) : Tensor()};
      });
  return {out[0], out[1], out[2], out[3]};
}

// The fused form where CUDA has one: four dimensions, no gradient in double precision.
inline int64_t choose_attention(
    const Tensor& q, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool, std::optional<double>,
    bool) {
  constexpr int64_t plain = 0, fused = 2;  // at::SDPBackend
  return q.dim() == 4 && q.scalar_type() != at::kDouble ? fused : plain;
}

}  // namespace emulated
