// Writes down, a line each, what the series' Metal host code asks MLX for.
#pragma once

#include "surroundings.h"

#include <cstring>
#include <sstream>

struct MTL::ComputePipelineState {
  std::string said;
};

namespace mlx::core {

struct metal::Device {};

namespace {

std::ostringstream log_;
bool nax_ = true;
metal::Device device_;

std::string named(const Dtype& dtype) {
  return dtype == float16 ? "float16"
      : dtype == bfloat16 ? "bfloat16"
                          : "float32";
}

// Label, offset and what a kernel would take it for.
std::string said(const array& a) {
  std::ostringstream text;
  text << a.label << " " << named(a.dtype()) << " [";
  for (size_t i = 0; i < a.ndim(); ++i) {
    text << (i ? ", " : "") << a.shape()[i];
  }
  text << "]";
  if (a.offset()) {
    text << " at " << a.offset();
  }
  return text.str();
}

template <typename... Args>
MTL::ComputePipelineState* kernel(const Args&... args) {
  static MTL::ComputePipelineState made;
  std::ostringstream text;
  text << std::boolalpha;
  const char* before = "";
  ((text << before << args, before = ", "), ...);
  made.said = text.str();
  return &made;
}

} // namespace

bool metal::is_nax_available() {
  return nax_;
}
metal::CommandEncoder& metal::get_command_encoder(Stream) {
  static CommandEncoder encoder;
  return encoder;
}
void metal::CommandEncoder::add_temporary(array a) {
  log_ << "temporary " << said(a) << "\n";
}
void metal::CommandEncoder::set_compute_pipeline_state(
    MTL::ComputePipelineState* state) {
  log_ << "kernel " << state->said << "\n";
}
void metal::CommandEncoder::set_input_array(const array& a, int index) {
  log_ << "in " << index << " " << said(a) << "\n";
}
void metal::CommandEncoder::set_output_array(array& a, int index) {
  log_ << "out " << index << " " << said(a) << "\n";
}
template <typename T>
void metal::CommandEncoder::set_bytes(const T& value, int index) {
  unsigned char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  log_ << "bytes " << index << " ";
  for (unsigned char each : bytes) {
    log_ << "0123456789abcdef"[each / 16] << "0123456789abcdef"[each % 16];
  }
  log_ << "\n";
}
void metal::CommandEncoder::dispatch_threadgroups(
    MTL::Size grid,
    MTL::Size group) {
  log_ << "threadgroups " << grid.width << " " << grid.height << " "
       << grid.depth;
  log_ << " of " << group.width << " " << group.height << " " << group.depth
       << "\n";
}
void metal::CommandEncoder::dispatch_threads(MTL::Size grid, MTL::Size group) {
  log_ << "threads " << grid.width << " " << grid.height << " " << grid.depth;
  log_ << " by " << group.width << " " << group.height << " " << group.depth
       << "\n";
}

allocator::Buffer allocator::malloc(size_t bytes) {
  log_ << "allocate " << bytes << "\n";
  return {};
}
array contiguous_copy_gpu(const array& a, const Stream&) {
  log_ << "copy " << said(a) << "\n";
  return array("copy", a.shape(), a.dtype(), a.strides());
}
std::string get_type_string(const Dtype& dtype) {
  return dtype == float32 ? "float" : named(dtype) + "_t";
}
std::string type_to_name(const array& a) {
  return named(a.dtype());
}
template <typename... Parts>
void concatenate(std::string& text, const Parts&... parts) {
  std::ostringstream all;
  (all << ... << parts);
  const size_t reserved = text.capacity();
  text += all.str();
  if (text.size() > reserved) {
    log_ << "reserved " << reserved << "\n";
  }
}
template <typename... Args>
MTL::ComputePipelineState* get_qmm_nax_kernel_wrapped(
    metal::Device&,
    const std::string& name,
    const std::string& function,
    const std::string& mode,
    const std::string& type,
    int group_size,
    int bits,
    Args... args) {
  return kernel(name, mode + "_" + function, type, group_size, bits, args...);
}
MTL::ComputePipelineState* get_steel_gemm_splitk_accum_kernel(
    metal::Device&,
    const std::string& name,
    const array& in,
    const array& out,
    bool axpby) {
  return kernel(name, in.label, out.label, axpby);
}
void qmm(
    const array& x,
    const array& w,
    const array& scales,
    const std::optional<array>& biases,
    array& out,
    bool transpose,
    int group_size,
    int bits,
    int M,
    int N,
    int K,
    metal::Device&,
    const Stream&,
    const std::string& mode) {
  log_ << "qmm " << said(x) << ", " << w.label << ", " << scales.label << ", "
       << biases->label << ", " << out.label;
  log_ << std::boolalpha << ", " << transpose << " " << group_size << " "
       << bits;
  log_ << " " << M << " " << N << " " << K << " " << mode << "\n";
}
void other_route() {
  log_ << "other\n";
}

struct Asked {
  int dtype, transpose, affine, nax, bits, group_size, m, n, k, limit, axes;
  int x_shape[8];
  int64_t x_strides[8];
  int64_t x_offset;
};

// The lines of a call of eval_gpu, then whether qmm_nax takes N for aligned.
template <typename Eval, typename Aligned>
const char* record(const Asked& a, Eval eval, Aligned aligned) {
  static std::string text;
  log_.str("");
  nax_ = a.nax;
  const Dtype dtype{a.dtype};
  Shape shape(a.x_shape, a.x_shape + a.axes);
  const array x(
      "x",
      shape,
      dtype,
      Strides(a.x_strides, a.x_strides + a.axes),
      a.x_offset);
  shape.back() = a.n;
  array out("out", shape, dtype);
  const array w("w", {a.n}, dtype), scales("scales", {a.n}, dtype),
      biases("biases", {a.n}, dtype);
  const std::string mode = a.affine ? "affine" : "mxfp8";
  eval(
      x,
      w,
      scales,
      biases,
      out,
      a.transpose,
      a.group_size,
      a.bits,
      a.m,
      a.n,
      a.k,
      a.limit,
      device_,
      Stream{},
      mode);
  log_ << (aligned(x, out, a.transpose, a.group_size, a.m, a.n, a.k, mode)
               ? "aligned"
               : "unaligned")
       << "\n";
  text = log_.str();
  return text.c_str();
}

} // namespace mlx::core
