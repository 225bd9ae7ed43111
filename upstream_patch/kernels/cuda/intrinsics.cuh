// The device instructions of the small-M kernels, each behind one name; nothing else in them is device specific.
// Everything here assembles for plain sm_80 and later; no instruction needs an architecture-specific ("a") target.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace upstream_patch {

using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

struct alignas(8) u32x2 {
  u32 x, y;
};
struct alignas(16) u32x4 {
  u32 x, y, z, w;
};
struct alignas(16) f32x4 {
  float x, y, z, w;
};

// d = a * b + c on one m16n8k16 tile. Lane 4g+t holds rows g, g+8 of A, column g of B, columns 2t, 2t+1 of C and D; a
// register of A or B holds two neighbours in K.
template <typename U>
__device__ __forceinline__ f32x4 mma_m16n8k16(const u32 (&a)[4], u32 b0, u32 b1, f32x4 c);

template <>
__device__ __forceinline__ f32x4 mma_m16n8k16<__nv_bfloat16>(const u32 (&a)[4], u32 b0, u32 b1, f32x4 c) {
  f32x4 d;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d.x), "=f"(d.y), "=f"(d.z), "=f"(d.w)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c.x), "f"(c.y), "f"(c.z), "f"(c.w));
  return d;
}

template <>
__device__ __forceinline__ f32x4 mma_m16n8k16<__half>(const u32 (&a)[4], u32 b0, u32 b1, f32x4 c) {
  f32x4 d;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d.x), "=f"(d.y), "=f"(d.z), "=f"(d.w)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c.x), "f"(c.y), "f"(c.z), "f"(c.w));
  return d;
}

// d = a * b + c on one m16n8k8 tile of tf32, which holds every bf16 and f16 value exactly. Bits below the 10th of a
// significand are ignored. Lane 4g+t holds rows g, g+8 of A at columns t, t+4, and rows t, t+4 of B at column g.
__device__ __forceinline__ f32x4 mma_m16n8k8_tf32(const float (&a)[4], float b0, float b1, f32x4 c) {
  f32x4 d;
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d.x), "=f"(d.y), "=f"(d.z), "=f"(d.w)
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)), "f"(c.x), "f"(c.y), "f"(c.z), "f"(c.w));
  return d;
}

// The value that lane `from` holds; every lane of the warp takes part.
__device__ __forceinline__ float shuffle(float v, int from) {
  return __shfl_sync(0xFFFFFFFF, v, from);
}

// (a & mask) | base in one instruction.
__device__ __forceinline__ u32 and_or(u32 a, u32 mask, u32 base) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(r) : "r"(a), "r"(mask), "r"(base));
  return r;
}

// Bytes of {b, a} picked by the four low nibbles of `selector`.
__device__ __forceinline__ u32 byte_permute(u32 a, u32 b, u32 selector) {
  return __byte_perm(a, b, selector);
}

// The low 32 bits of {high, low} >> by, 0 <= by < 32.
__device__ __forceinline__ u32 funnel_shift(u32 low, u32 high, u32 by) {
  return __funnelshift_r(low, high, by);
}

// Of two bf16 in each half: |a| or b, the larger; a number where only one of the two is NaN.
__device__ __forceinline__ u32 max_abs_bf16(u32 a, u32 b) {
  u32 r;
  asm("{ .reg .b32 size; abs.bf16x2 size, %1; max.bf16x2 %0, size, %2; }" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

// a * b + c of bf16 in each half; subnormal numbers are kept.
__device__ __forceinline__ u32 fma_bf16(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
__device__ __forceinline__ u32 multiply_bf16(u32 a, u32 b) {
  return fma_bf16(a, b, 0x80008000); // -0
}

// a * b + c and a * b of f16 in each half; subnormal numbers are kept.
__device__ __forceinline__ u32 fma_f16(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
__device__ __forceinline__ u32 multiply_f16(u32 a, u32 b) {
  u32 r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

// Two E4M3, the low bytes, to f16 in each half.
__device__ __forceinline__ u32 f16_from_e4m3(u32 two) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
  // By placement, which is 2^-8 of it. NaN has the code of 480 there, and only that is infinite times 36000.
  const u32 high = byte_permute(two, 0, 0x1404);
  const u32 placed = and_or(high >> 1, 0x3F803F80, high & 0x80008000);
  return fma_f16(multiply_f16(placed, 0x78657865), 0, multiply_f16(placed, 0x5C005C00));
#else
  u32 r;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(static_cast<unsigned short>(two)));
  return r;
#endif
}

// Shared memory is addressed by 32-bit offsets, so that address arithmetic stays in one register.
__device__ __forceinline__ u32 shared_address(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ u32 load_shared_2(u32 address) {
  unsigned short v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ u32 load_shared_4(u32 address) {
  u32 v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ u32x2 load_shared_8(u32 address) {
  u32x2 v;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}
__device__ __forceinline__ f32x4 load_shared_16(u32 address) {
  f32x4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address));
  return v;
}
__device__ __forceinline__ u32x4 load_shared_words_16(u32 address) {
  u32x4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address));
  return v;
}
__device__ __forceinline__ void store_shared_16(u32 address, f32x4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}

// The same value, but one the compiler keeps in a register instead of computing it again in every iteration.
__device__ __forceinline__ u32 kept(u32 v) {
  asm volatile("" : "+r"(v));
  return v;
}

// Asynchronous copies from global to shared memory. 16 bytes bypass L1; 4 bytes go through it.
__device__ __forceinline__ void copy_async_16(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_async_4(u32 to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending of this lane's committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ bool is_aligned(const void* p, int bytes) {
  return (reinterpret_cast<unsigned long long>(p) & (bytes - 1)) == 0;
}

} // namespace upstream_patch
