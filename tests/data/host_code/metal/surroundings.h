// What stands around the series' lines in MLX's backend/metal/quantized.cpp, as
// far as they use it: declarations of ours, so that a compiler can read them on
// any machine. Arrays are MLX's own where its headers are looked into, or those
// of the stand_ins, which recorder.h runs.
#pragma once

#include "mlx/array.h"
#include "mlx/backend/gpu/copy.h"
#include "mlx/backend/metal/qmm_nax_routing.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

namespace MTL {
struct Size {
  size_t width, height, depth;
  Size(size_t w, size_t h, size_t d) : width(w), height(h), depth(d) {}
};
struct ComputePipelineState;
} // namespace MTL

namespace mlx::core {

namespace metal {
struct Device;
bool is_nax_available();
struct CommandEncoder {
  void add_temporary(array);
  void set_compute_pipeline_state(MTL::ComputePipelineState*);
  void set_input_array(const array&, int);
  void set_output_array(array&, int);
  template <typename T>
  void set_bytes(const T&, int);
  void dispatch_threadgroups(MTL::Size, MTL::Size);
  void dispatch_threads(MTL::Size, MTL::Size);
};
CommandEncoder& get_command_encoder(Stream);
} // namespace metal

std::string get_type_string(const Dtype&);
std::string type_to_name(const array&);
template <typename... Parts>
void concatenate(std::string&, const Parts&...);
template <typename... Args>
MTL::ComputePipelineState* get_qmm_nax_kernel_wrapped(
    metal::Device&,
    const std::string&,
    const std::string&,
    const std::string&,
    const std::string&,
    int,
    int,
    Args...);
MTL::ComputePipelineState* get_steel_gemm_splitk_accum_kernel(
    metal::Device&,
    const std::string&,
    const array&,
    const array&,
    bool);
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
    metal::Device& d,
    const Stream& s,
    const std::string& mode);

// What eval_gpu does where our route returned nothing.
void other_route();

} // namespace mlx::core
