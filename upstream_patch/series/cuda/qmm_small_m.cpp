#include "mlx/backend/cuda/quantized/qmm/qmm_small_m.h"
#include "mlx/backend/cuda/jit_module.h"
#include "mlx/backend/cuda/quantized/qmm/qmm_small_m_launch.h"
#include "mlx/dtype_utils.h"

#include "cuda_jit_sources.h"

namespace mlx::core {

namespace {

// How the rows of x meet the weights; strides count rows.
struct Rows {
  int64_t m; // for each matrix of weights
  int64_t batch; // matrices of weights
  int64_t stride;
  int64_t batch_stride;
};

// The first axis of |w| that is not expanded with stride 0, if from there on
// |w| is row contiguous; else nothing.
std::optional<int> first_distinct_axis(const array& w) {
  int64_t size = 1;
  int axis = w.ndim();
  for (; axis > 0; --axis) {
    int64_t length = w.shape(axis - 1);
    if (length != 1 && w.strides()[axis - 1] != size) {
      break;
    }
    size *= length;
  }
  for (int i = 0; i < axis; ++i) {
    if (w.shape(i) != 1 && w.strides()[i] != 0) {
      return std::nullopt;
    }
  }
  return axis + 2 <= int(w.ndim()) ? std::make_optional(axis) : std::nullopt;
}

std::optional<Rows> get_rows(
    const array& x,
    const array& w,
    const array& scales,
    const std::optional<array>& biases) {
  auto axis = first_distinct_axis(w);
  if (!axis || first_distinct_axis(scales) != axis ||
      (biases && first_distinct_axis(*biases) != axis)) {
    return std::nullopt;
  }
  int64_t rows = x.size() / x.shape(-1);
  int64_t batch = 1;
  for (int i = *axis; i < int(w.ndim()) - 2; ++i) {
    batch *= w.shape(i);
  }
  if (batch == 1) {
    return Rows{rows, 1, 1, 0};
  }
  if (w.ndim() != x.ndim()) {
    return std::nullopt;
  }
  int64_t m = x.shape(-2);
  if (rows == m * batch) {
    return Rows{m, batch, 1, m};
  }
  // The same weights for each of several steps of decoding.
  if (m == 1) {
    return Rows{rows / batch, batch, batch, 1};
  }
  return std::nullopt;
}

small_m::Format get_format(int bits, int group_size, QuantizationMode mode) {
  return {bits, group_size, mode == QuantizationMode::Affine};
}

std::string weights_type(int bits, int group_size, QuantizationMode mode) {
  switch (mode) {
    case QuantizationMode::Mxfp4:
      return "mlx::core::cu::Mxfp4";
    case QuantizationMode::Mxfp8:
      return "mlx::core::cu::Mxfp8";
    case QuantizationMode::Nvfp4:
      return "mlx::core::cu::Nvfp4";
    default:
      return fmt::format("mlx::core::cu::Affine<{}, {}>", bits, group_size);
  }
}

int multiprocessor_count(cu::Device& device) {
  int count;
  CHECK_CUDA_ERROR(cudaDeviceGetAttribute(
      &count, cudaDevAttrMultiProcessorCount, device.cuda_device()));
  return count;
}

} // namespace

bool supports_qmm_small_m(
    const array& x,
    const array& w,
    const array& scales,
    const std::optional<array>& biases,
    const array& out,
    bool transpose,
    int bits,
    int group_size,
    QuantizationMode mode,
    cu::Device& device) {
  if (!transpose) {
    return false;
  }
  if (x.dtype() != float16 && x.dtype() != bfloat16) {
    return false;
  }
  bool affine = mode == QuantizationMode::Affine;
  if (affine != biases.has_value()) {
    return false;
  }
  if (scales.dtype() != (affine ? x.dtype() : uint8)) {
    return false;
  }
  if (x.size() == 0 || out.size() == 0 || !x.flags().row_contiguous) {
    return false;
  }
  auto rows = get_rows(x, w, scales, biases);
  if (!rows) {
    return false;
  }
  return small_m::supports(
      device.compute_capability_major(),
      device.compute_capability_minor(),
      get_format(bits, group_size, mode),
      rows->m,
      out.shape(-1),
      x.shape(-1),
      rows->batch);
}

void qmm_small_m(
    const array& x,
    const array& w,
    const array& scales,
    const std::optional<array>& biases,
    array& out,
    int bits,
    int group_size,
    QuantizationMode mode,
    cu::CommandEncoder& encoder) {
  auto rows = *get_rows(x, w, scales, biases);
  int m = rows.m;
  int n = out.shape(-1);
  int k = x.shape(-1);
  auto& device = encoder.device();
  auto launch = small_m::get_launch(
      *small_m::find_device(
          device.compute_capability_major(), device.compute_capability_minor()),
      multiprocessor_count(device),
      get_format(bits, group_size, mode),
      m,
      n,
      k,
      rows.batch);
  const auto& instance = launch.instance;

  std::string module_name = fmt::format(
      "qmm_small_m_{}_{}_b{}_g{}_r{}_w{}_s{}_t{}",
      dtype_to_string(x.dtype()),
      quantization_mode_to_string(mode),
      bits,
      group_size,
      instance.rows,
      instance.warps,
      instance.stages,
      instance.tiles);
  std::string kernel_name = fmt::format(
      "mlx::core::cu::qmm_small_m<{}, {}, {}, {}, {}, {}>",
      dtype_to_cuda_type(x.dtype()),
      weights_type(bits, group_size, mode),
      instance.rows,
      instance.warps,
      instance.stages,
      instance.tiles);

  cu::JitModule& mod = cu::get_jit_module(device, module_name, [&]() {
    return std::make_tuple(
        false, jit_source_qmm_small_m, std::vector{kernel_name});
  });

  encoder.set_input_array(x);
  encoder.set_input_array(w);
  encoder.set_input_array(scales);
  if (biases) {
    encoder.set_input_array(*biases);
  }
  encoder.set_output_array(out);

  auto kernel = mod.get_kernel(kernel_name, [&](CUfunction kernel) {
    CHECK_CUDA_ERROR(cuFuncSetAttribute(
        kernel,
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        instance.shared_bytes));
  });
  const void* biases_ptr = biases ? gpu_ptr<void>(*biases) : nullptr;
  int64_t x_stride = rows.stride * k;
  int64_t x_batch_stride = rows.batch_stride * k;
  int64_t out_stride = rows.stride * n;
  int64_t out_batch_stride = rows.batch_stride * n;
  encoder.add_kernel_node_ex(
      kernel,
      dim3(launch.blocks, launch.row_blocks, rows.batch),
      dim3(32 * instance.warps),
      {},
      instance.shared_bytes,
      gpu_ptr<void>(x),
      gpu_ptr<void>(w),
      gpu_ptr<void>(scales),
      biases_ptr,
      gpu_ptr<void>(out),
      m,
      n,
      k,
      x_stride,
      x_batch_stride,
      out_stride,
      out_batch_stride);
}

} // namespace mlx::core
