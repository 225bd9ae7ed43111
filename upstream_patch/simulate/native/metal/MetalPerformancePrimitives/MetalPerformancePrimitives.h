// Metal's matmul2d on cooperative tensors of one simdgroup, in the one shape that MLX's kernels use.
#pragma once

#include "../front.h"

namespace mpp::tensor_ops {

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;
  constexpr matmul2d_descriptor(
      int rows, int columns, int depth, bool left = false, bool right = false, bool relaxed = false,
      mode how = mode::multiply)
      : m(rows), n(columns), k(depth), transpose_left(left), transpose_right(right), relaxed_precision(relaxed),
        matmul_mode(how) {}
};

// A lane's elements. They begin as NaN, so that one the kernel forgets shows in the result.
template <typename T, int kCount>
struct cooperative_tensor {
  using element_type = T;
  T elements[kCount];

  cooperative_tensor() {
    for (T& each : elements) {
      each = static_cast<T>(__builtin_nanf(""));
    }
  }
  T& operator[](int i) {
    return elements[i];
  }
  static constexpr int get_capacity() {
    return kCount;
  }
};

template <matmul2d_descriptor kDescriptor, typename Scope>
struct matmul2d {
  static_assert(metal::is_same_v<Scope, metal::execution_simdgroup>, "matmul2d: only simdgroup scope is simulated");
  static_assert(
      kDescriptor.m == 16 && kDescriptor.n == 32 && kDescriptor.k == 16 &&
          kDescriptor.matmul_mode == matmul2d_descriptor::mode::multiply_accumulate,
      "matmul2d: only 16 x 32 x 16 with accumulation is simulated");

  template <typename L, typename R, typename D>
  cooperative_tensor<L, 8> get_left_input_cooperative_tensor() {
    return {};
  }
  template <typename L, typename R, typename D>
  cooperative_tensor<R, 16> get_right_input_cooperative_tensor() {
    return {};
  }
  template <typename L, typename R, typename D>
  cooperative_tensor<D, 16> get_destination_cooperative_tensor() {
    static_assert(metal::is_same_v<D, float>, "matmul2d: only a float destination is simulated");
    return {};
  }

  template <typename L, typename R, typename D>
  void run(L& left, R& right, D& destination, LANE_SIM_SITE) {
    lane_sim::multiply_16x32x16(
        metal::lane_sim_fragment(left.elements), kDescriptor.transpose_left,
        metal::lane_sim_fragment(right.elements), kDescriptor.transpose_right, destination.elements, site);
  }
};

} // namespace mpp::tensor_ops
