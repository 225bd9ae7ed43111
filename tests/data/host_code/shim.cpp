// What test_series_host_code.py asks of the host code: the predicate, the rows it sees, and the launch, on MLX's own
// arrays without data. Built with -fno-access-control: a device without a GPU is only its compute capability.
#include "qmm_small_m.cpp"

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

array make(const Layout& l, int dtype) {
  array a(Shape(l.shape, l.shape + l.axes), dtype_of(dtype), nullptr, {});
  array::Flags flags{true, true, false};
  a.set_data(
      allocator::Data(allocator::Buffer(nullptr), [](allocator::Buffer) {}),
      a.size(),
      Strides(l.strides, l.strides + l.axes),
      flags);
  return a;
}

} // namespace

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

} // extern "C"
