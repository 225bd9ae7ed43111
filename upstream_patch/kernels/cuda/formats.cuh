// How weights are stored, and how a lane turns its run of them into pairs that the matrix unit multiplies.
//
// Affine integers keep an offset (unpack.cuh) that the sums over x take out; E2M1 and E4M3 are f16 numbers already.
// U is what the matrix unit multiplies, and kFactor what a product still lacks:
//   y = kFactor * unscale of x * sum of scale * (sum of the group's products), with offset and bias for affine weights.
#pragma once

#include "unpack.cuh"

namespace upstream_patch {

template <typename T>
struct Sixteen;

template <>
struct Sixteen<__nv_bfloat16> {
  static constexpr bool kHalf = false;
  static constexpr int kFrom = 0;
  __device__ static float low(u32 v) {
    return __uint_as_float(v << 16);
  }
  __device__ static float high(u32 v) {
    return __uint_as_float(v & 0xFFFF0000);
  }
  __device__ static __nv_bfloat16 from_float(float v) {
    return __float2bfloat16(v);
  }
};

template <>
struct Sixteen<__half> {
  static constexpr bool kHalf = true;
  static constexpr int kFrom = 4; // its outputs show errors that those of bf16 hide
  __device__ static float low(u32 v) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(v)));
  }
  __device__ static float high(u32 v) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(v >> 16)));
  }
  __device__ static __half from_float(float v) {
    return __float2half(v);
  }
};

// The type of the products: bf16 while its significand holds the integers, f16 otherwise.
template <typename T, bool kHalf>
struct Product {
  using U = T;
};
template <>
struct Product<__nv_bfloat16, true> {
  using U = __half;
};

// q * scale + bias: the scales and biases have the type of x.
template <int kBits_, int kGroup_>
struct Affine {
  static_assert(kGroup_ == 32 || kGroup_ == 64 || kGroup_ == 128, "MLX has no such group");
  static constexpr int kBits = kBits_, kGroup = kGroup_;
  static constexpr bool kAffine = true, kHalf = kBits > 4, kScaleWeights = false, kFinite = true;
  static constexpr float kFactor = 1;
  template <typename T>
  using Scale = T;

  template <typename T, typename R>
  __device__ static void unpack(const u32 (&v)[R::kWords], u32 (&pair)[R::kPairs]) {
    upstream_patch::unpack<R>(v, pair);
  }
  // Of the scales of two groups.
  template <typename T>
  __device__ static void scales(u32 two, float& low, float& high) {
    low = Sixteen<T>::low(two);
    high = Sixteen<T>::high(two);
  }
};

// Eight E2M1 to f16 times 2^-14: the sign to bit 15, exponent and significand to bits 11 to 9.
template <typename R>
__device__ __forceinline__ void unpack_e2m1(const u32 (&v)[R::kWords], u32 (&pair)[R::kPairs]) {
#pragma unroll
  for (int p = 0; p < R::kPairs; ++p) {
    const u32 word = v[p / 4];
    const int at = p % 4 * 4; // of the element in its half
    const u32 magnitude = (at < 12 ? word << (9 - at) : word >> 3) & 0x0E000E00;
    pair[p] = and_or(word << (12 - at), 0x80008000, magnitude);
  }
}

// E2M1 or E4M3 with one scale a group, a power of two.
template <int kBits_>
struct Microscaled {
  static constexpr int kBits = kBits_, kGroup = 32;
  static constexpr bool kAffine = false, kHalf = true, kScaleWeights = false;
  static constexpr bool kFinite = kBits == 4; // E4M3 has NaN
  static constexpr float kFactor = kBits == 4 ? 16384 : 1;
  template <typename T>
  using Scale = unsigned char;

  template <typename T, typename R>
  __device__ static void unpack(const u32 (&v)[R::kWords], u32 (&pair)[R::kPairs]) {
    if constexpr (kBits == 4) {
      unpack_e2m1<R>(v, pair);
    } else {
#pragma unroll
      for (int p = 0; p < R::kPairs; ++p) {
        pair[p] = f16_from_e4m3(p % 2 ? v[p / 2] >> 16 : v[p / 2]);
      }
    }
  }
  // E8M0 is the exponent of a bf16, but for 0, which is 2^-127, and 255, which is NaN. `two` are the low bytes.
  template <typename T>
  __device__ static void scales(u32 two, float& low, float& high) {
    const u32 exponents = byte_permute(two, 0, 0x1404) >> 1;
    const u32 bf16 = max_abs_bf16(exponents, 0x00400040);
    const u32 v = fma_bf16(bf16, 0, bf16); // Inf * 0 is NaN
    low = Sixteen<__nv_bfloat16>::low(v);
    high = Sixteen<__nv_bfloat16>::high(v);
  }
};
struct Mxfp4 : Microscaled<4> {};
struct Mxfp8 : Microscaled<8> {};

// E2M1 with an E4M3 scale for 16 of them, which are a lane's run. Their product is an f16, exactly: six bits of
// significand, and no bit below 2^-10, times 2^-14.
struct Nvfp4 {
  static constexpr int kBits = 4, kGroup = 16;
  static constexpr bool kAffine = false, kHalf = true, kScaleWeights = true, kFinite = true;
  static constexpr float kFactor = 16384;
  template <typename T>
  using Scale = unsigned char;

  template <typename T, typename R>
  __device__ static void unpack(const u32 (&v)[R::kWords], u32 (&pair)[R::kPairs]) {
    unpack_e2m1<R>(v, pair);
  }
};

} // namespace upstream_patch
