// What test_series_host_code.py asks of the host code: the predicate, the rows it sees, and the launch, on MLX's own
// arrays without data. Built with -fno-access-control: a device without a GPU is only its compute capability.
#include "fold_batch.h"
#include "qmm_small_m.cpp"

#include <cstring>
#include <new>

using namespace mlx::core;

namespace {

struct Layout {
  int axes;
  int shape[8];
  long strides[8];
};

Dtype dtype_of(int code) {
  return code == 0 ? bfloat16 : code == 1 ? float16 : code == 2 ? float32 : code == 3 ? uint8 : uint32;
}

array make(const Layout& l, int dtype, cu::CudaBuffer* buffer = nullptr) {
  array a(Shape(l.shape, l.shape + l.axes), dtype_of(dtype), nullptr, {});
  array::Flags flags{true, true, false};
  a.set_data(
      allocator::Data(allocator::Buffer(buffer), [](allocator::Buffer) {}),
      a.size(),
      Strides(l.strides, l.strides + l.axes),
      flags);
  return a;
}

// What the launcher asked MLX for.
struct Asked {
  std::string module, kernel;
  std::vector<std::uintptr_t> inputs;
  std::uintptr_t output = 0;
  unsigned dims[7] = {}; // grid, block, shared bytes
  int shared_limit = 0;
  void* pointers[5] = {};
  int sizes[3] = {};
  int64_t strides[4] = {};
} asked;

std::uintptr_t address(const array& a) {
  return reinterpret_cast<std::uintptr_t>(gpu_ptr<void>(a));
}

} // namespace

// Stand-ins for what the launcher calls.
namespace mlx::core {

const char* dtype_to_string(Dtype dtype) {
  return dtype == bfloat16 ? "bfloat16" : "float16";
}

const char* dtype_to_cuda_type(const Dtype& dtype) {
  return dtype == bfloat16 ? "__nv_bfloat16" : "__half";
}

std::string quantization_mode_to_string(QuantizationMode mode) {
  const char* const names[] = {"affine", "mxfp4", "mxfp8", "nvfp4"};
  return names[static_cast<int>(mode)];
}

void check_cuda_error(const char* name, CUresult error) {
  if (error != CUDA_SUCCESS) {
    throw std::runtime_error(name);
  }
}

void check_cuda_error(const char* name, cudaError_t error) {
  if (error != cudaSuccess) {
    throw std::runtime_error(name);
  }
}

namespace cu {

JitModule& get_jit_module(Device&, const std::string& name, const KernelBuilder& builder, bool use_disk_cache) {
  const auto [precompiled, source, kernels] = builder();
  asked.module = name;
  asked.kernel = kernels.at(0);
  if (precompiled || !use_disk_cache || source.find("QmmSmallM") == source.npos) {
    throw std::runtime_error("not the kernel's source");
  }
  static std::byte memory[sizeof(JitModule)];
  return *reinterpret_cast<JitModule*>(memory);
}

CUfunction JitModule::get_kernel(const std::string& name, std::function<void(CUfunction)> configure) {
  configure(nullptr);
  return name == asked.kernel ? reinterpret_cast<CUfunction>(&asked) : nullptr;
}

void CommandEncoder::set_input_array(const array& a) {
  asked.inputs.push_back(address(a));
}

void CommandEncoder::set_output_array(const array& a) {
  asked.output = address(a);
}

void CommandEncoder::add_kernel_node_raw(
    CUfunction kernel, dim3 grid, dim3 block, dim3, uint32_t shared_bytes, void** parameters) {
  if (kernel != reinterpret_cast<CUfunction>(&asked)) {
    throw std::runtime_error("another kernel");
  }
  const unsigned dims[7] = {grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes};
  std::copy(dims, dims + 7, asked.dims);
  for (int i = 0; i < 12; ++i) {
    void* const to = i < 5 ? static_cast<void*>(&asked.pointers[i])
        : i < 8            ? static_cast<void*>(&asked.sizes[i - 5])
                           : static_cast<void*>(&asked.strides[i - 8]);
    std::memcpy(to, parameters[i], i < 5 ? sizeof(void*) : i < 8 ? sizeof(int) : sizeof(int64_t));
  }
}

} // namespace cu
} // namespace mlx::core

extern "C" cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  *value = attribute == cudaDevAttrMultiProcessorCount && device == 3 ? 132 : 0;
  return cudaSuccess;
}

extern "C" CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute attribute, int value) {
  asked.shared_limit = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ? value : 0;
  return CUDA_SUCCESS;
}

extern "C" {

// rows: m, batch, stride, batch_stride
int shim_supports(
    const Layout* x, const Layout* w, const Layout* scales, int biased, int n, int dtype, int scale_dtype, int transpose,
    int bits, int group_size, int mode, int major, int minor, long (&rows)[4]) {
  alignas(cu::Device) std::byte memory[sizeof(cu::Device)] = {};
  auto& device = *reinterpret_cast<cu::Device*>(memory);
  device.compute_capability_major_ = major;
  device.compute_capability_minor_ = minor;
  array ax = make(*x, dtype), aw = make(*w, 4), as = make(*scales, scale_dtype);
  std::optional<array> biases;
  if (biased) {
    biases = as;
  }
  auto shape = ax.shape();
  shape.back() = n;
  array out(shape, ax.dtype(), nullptr, {});
  if (!supports_qmm_small_m(
          ax, aw, as, biases, out, transpose, bits, group_size, static_cast<QuantizationMode>(mode), device)) {
    return 0;
  }
  auto found = *get_rows(ax, aw, as, biases);
  rows[0] = found.m;
  rows[1] = found.batch;
  rows[2] = found.stride;
  rows[3] = found.batch_stride;
  return 1;
}

int shim_takes(int major, int minor, int bits, int group_size, int affine, long m, long n, long k, long batch) {
  return small_m::supports(major, minor, {bits, group_size, affine != 0}, m, n, k, batch);
}

// into: rows, warps, stages, tiles, shared bytes, blocks, row blocks
void shim_launch(
    int major, int minor, int multiprocessors, int bits, int group_size, int affine, int m, int n, int k, int batch,
    int (&into)[7]) {
  auto l = small_m::get_launch(
      *small_m::find_device(major, minor), multiprocessors, {bits, group_size, affine != 0}, m, n, k, batch);
  const int all[7] = {
      l.instance.rows, l.instance.warps, l.instance.stages, l.instance.tiles, l.instance.shared_bytes,
      l.blocks, l.row_blocks};
  std::copy(all, all + 7, into);
}

// Whether the launcher did on the H200 what it must: null, or what not. x, w, scales, biases and out lie at 1000, 2000,
// and so on. into: grid, block, shared bytes, m, n, k, and the four strides.
const char* shim_run(
    const Layout* x, const Layout* w, const Layout* scales, int biased, int n, int dtype, int bits, int group_size,
    int mode, const char* module, const char* kernel, long (&into)[14]) {
  static std::string why;
  alignas(cu::Device) std::byte device_memory[sizeof(cu::Device)] = {};
  auto& device = *reinterpret_cast<cu::Device*>(device_memory);
  device.device_ = 3;
  device.compute_capability_major_ = 9;
  alignas(cu::CommandEncoder) std::byte encoder_memory[sizeof(cu::CommandEncoder)] = {};
  auto& encoder = *reinterpret_cast<cu::CommandEncoder*>(encoder_memory);
  const auto held = &device;  // a reference is kept as a pointer
  std::memcpy(encoder_memory, &held, sizeof(held));
  asked = {};
  cu::CudaBuffer buffers[5];
  for (int i = 0; i < 5; ++i) {
    buffers[i] = {reinterpret_cast<void*>((i + 1) * 1000), 1, 3};
  }
  array ax = make(*x, dtype, &buffers[0]), aw = make(*w, 4, &buffers[1]);
  array as = make(*scales, biased ? dtype : 3, &buffers[2]);
  std::optional<array> biases;
  if (biased) {
    biases = make(*scales, dtype, &buffers[3]);
  }
  auto shape = ax.shape();
  shape.back() = n;
  Layout whole{static_cast<int>(shape.size()), {}, {}};
  std::copy(shape.begin(), shape.end(), whole.shape);
  array out = make(whole, dtype, &buffers[4]);
  qmm_small_m(ax, aw, as, biases, out, bits, group_size, static_cast<QuantizationMode>(mode), encoder);

  std::vector<std::uintptr_t> inputs{1000, 2000, 3000};
  if (biased) {
    inputs.push_back(4000);
  }
  const void* const pointers[] = {
      buffers[0].data, buffers[1].data, buffers[2].data, biased ? buffers[3].data : nullptr, buffers[4].data};
  why = &encoder.device() != &device ? "the shim's encoder"
      : asked.module != module       ? "module " + asked.module
      : asked.kernel != kernel       ? "kernel " + asked.kernel
      : asked.inputs != inputs || asked.output != 5000 ? "inputs and output of the graph"
      : !std::equal(pointers, pointers + 5, asked.pointers) ? "order of the kernel's pointers"
      : asked.shared_limit != static_cast<int>(asked.dims[6]) ? "limit of shared memory"
                                                             : "";
  std::copy(asked.dims, asked.dims + 7, into);
  std::copy(asked.sizes, asked.sizes + 3, into + 7);
  std::copy(asked.strides, asked.strides + 4, into + 10);
  return why.empty() ? nullptr : why.c_str();
}

// Folds x, gives an output of its rows back; into: whether it folds, then the rows' shape and strides, then the output's
// shape and strides. 0 where the memory is not the same, offsets included.
int shim_fold(const Layout* x, const Layout* w, long (&into)[11]) {
  cu::CudaBuffer buffer{reinterpret_cast<void*>(1000), 1, 3};
  array whole = make(*x, 0, &buffer);
  array ax(whole.shape(), whole.dtype(), nullptr, {});
  ax.copy_shared_buffer(whole, whole.strides(), whole.flags(), whole.data_size(), 5);
  into[0] = can_fold_batch(ax, make(*w, 4));
  if (!into[0]) {
    return 1;
  }
  array rows = fold_batch(ax);
  array out({ax.shape(0), 1, ax.shape(2)}, ax.dtype(), nullptr, {});
  unfold_batch(rows, out);
  long* to = into + 1;
  for (const array* a : {&rows, &out}) {
    to = std::copy(a->shape().begin(), a->shape().end(), to);
    to = std::copy(a->strides().begin(), a->strides().end(), to);
  }
  return address(rows) == 1010 && address(out) == 1010 && rows.flags().row_contiguous == ax.flags().row_contiguous;
}

} // extern "C"
