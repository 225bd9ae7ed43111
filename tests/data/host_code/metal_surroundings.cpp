// What stands around the series' lines in MLX's backend/metal/quantized.cpp, as
// far as they use it: declarations of ours, so that a compiler can read them on
// any machine. MLX's own are in the headers that its wheel carries.
#include "mlx/array.h"
#include "mlx/backend/gpu/copy.h"
#include "mlx/backend/metal/qmm_nax_routing.h"

#include <algorithm>
#include <optional>
#include <string>

namespace MTL {
struct Size {
  Size(size_t, size_t, size_t) {}
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
using metal::CommandEncoder;

std::string get_type_string(const Dtype&);
std::string type_to_name(const array&);
template <typename... Parts>
void concatenate(std::string&, const Parts&...);
int add_strides_and_shapes(
    CommandEncoder&,
    bool,
    const array&,
    const array&,
    const array&,
    const std::optional<array>&,
    int);
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

#include "qmm_nax_staged.inc"

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
    const std::string& mode) {
  if (metal::is_nax_available()) {
#include "qmm_nax_schedule.inc"
  }
}

void eval_gpu(
    array x,
    const array& w,
    const array& scales,
    const std::optional<array>& biases,
    array& out,
    bool transpose_,
    int group_size_,
    int bits_,
    int M,
    int N,
    int K,
    int vector_limit,
    metal::Device& d,
    const Stream& s,
    const std::string& mode) {
#include "qmm_nax_route.inc"
}

} // namespace mlx::core
