// A warp's slice of x in registers, in the order in which the weights of a slice come out of their words.
//
// In bf16, for products in f16, x goes to f16 times a power of two of each row and slice: exact, but for what is below
// 2^-30 of the row's largest, which loses bits.
#pragma once

#include "layout.cuh"

namespace upstream_patch {

// What is split to fit tf32: the part it holds, and of the rest the part it holds.
__device__ __forceinline__ float tf32_part(float v) {
  return __uint_as_float(__float_as_uint(v) & 0xFFFFE000);
}

// From bf16 to f16 times a power of two, which brings the row's largest element to 2^15..2^16. Returns what takes it out
// again. A bf16 whose exponent field is below 31 has an f16's bits, but for three zeros at the end.
__device__ __forceinline__ float scale_to_f16(u32 (&v)[4][2][4], int lane) {
  u32 four[4] = {};
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    four[i % 4] = max_abs_bf16(v[i / 8][i / 4 % 2][i % 4], four[i % 4]);
  }
  const u32 both = max_abs_bf16(max_abs_bf16(four[0], four[1]), max_abs_bf16(four[2], four[3]));
  float largest = fmaxf(__uint_as_float(both << 16), __uint_as_float(both & 0xFFFF0000));
  largest = fmaxf(largest, shuffle(largest, lane ^ 1));
  largest = fmaxf(largest, shuffle(largest, lane ^ 2));
  const u32 field = max(__float_as_uint(largest) >> 23, 16u);
  const u32 far = field > 150 ? 120 : 0; // 2^-120 first, where one factor would not be a bf16
  if (far != 0) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      u32& each = v[i / 8][i / 4 % 2][i % 4];
      each = multiply_bf16(each, 0x03800380);
    }
  }
  const u32 factor = (157 + far - field) * 0x00800080;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    u32& each = v[i / 8][i / 4 % 2][i % 4];
    const u32 small = multiply_bf16(each, factor);
    each = and_or(small << 3, 0x7FF87FF8, small & 0x80008000);
  }
  return __uint_as_float((field - 15) << 23);
}

template <typename T>
struct Rows {
  const T* x;
  i64 stride; // elements from one row to the next
  int m, k;

  __device__ bool whole() const { // 16 bytes at a time
    return is_aligned(x, 16) && stride * static_cast<int>(sizeof(T)) % 16 == 0;
  }
};

template <typename T, typename F, int kRows>
struct XSlice {
  using L = Layout<T, F>;
  using U = typename L::U;
  using R = typename L::R;
  static constexpr int kRowTiles = kRows / 8;
  static constexpr int kSumSets = F::kAffine ? L::kSets : 1;

  u32 x[4][kRowTiles][8];
  float sum[kRowTiles][kSumSets][2][2]; // of row g and group 4 set + t: [high or low part][times -offset or 1]
  float unscale[kRowTiles][2]; // of rows 2t and 2t + 1: what a sum of products still lacks

  // This lane's 64 elements of row tile j's row: of block q, in two halves, the 16 that its weights of the block meet.
  // Rows past M repeat the last one; what comes of them is never stored. Elements past K are zero, so whatever the
  // weights hold there adds nothing.
  __device__ static void read(u32 (&v)[4][2][4], const Rows<T>& rows, int j, int slice, int lane) {
    constexpr int kHalf = L::kRuns == 2 ? 32 : 8; // from one half to the other
    const int start = slice * L::kSlice + lane % 4 * (L::kRuns == 2 ? 8 : 16);
    const T* from = rows.x + min(j * 8 + lane / 4, rows.m - 1) * rows.stride + start;
    if (rows.whole() && (slice + 1) * L::kSlice <= rows.k) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        keep(v[i / 2][i % 2], *reinterpret_cast<const u32x4*>(from + i / 2 * L::kBlock + i % 2 * kHalf));
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int at = i / 2 * L::kBlock + i % 2 * kHalf;
        u32x4 eight = {};
        if (start + at < rows.k) {
          T* each = reinterpret_cast<T*>(&eight);
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            each[e] = from[at + e];
          }
        }
        keep(v[i / 2][i % 2], eight);
      }
    }
  }
  __device__ static void keep(u32 (&v)[4], const u32x4& eight) {
    v[0] = eight.x;
    v[1] = eight.y;
    v[2] = eight.z;
    v[3] = eight.w;
  }

  __device__ void load(const Rows<T>& rows, int slice, int lane) {
    const int t = lane % 4;
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      u32 v[4][2][4];
      read(v, rows, j, slice, lane);
      if constexpr (L::kScaled) {
        const float lacks = scale_to_f16(v, lane) * F::kFactor;
        unscale[j][0] = shuffle(lacks, 8 * t);
        unscale[j][1] = shuffle(lacks, 8 * t + 4);
      } else {
        unscale[j][0] = unscale[j][1] = F::kFactor;
      }
      order(v, j, lane);
    }
  }

  // Permutes K as unpacking permutes the weights, and sums each group where there is an offset to take out.
  __device__ void order(const u32 (&v)[4][2][4], int j, int lane) {
    float group_sum[kSumSets] = {}, offsets[kSumSets] = {};
    f32x4 s = {};
#pragma unroll
    for (int i = 0; i < L::kAllRuns; ++i) {
      const int q = i / L::kRuns, run = i % L::kRuns;
      u32* p = &x[q][j][run * L::kPairs];
#pragma unroll
      for (int pair = 0; pair < L::kPairs; ++pair) {
        const int low = run * 8 + R::low(pair), high = run * 8 + R::high(pair);
        const u32 a = v[q][low / 8][low % 8 / 2], b = v[q][high / 8][high % 8 / 2];
        p[pair] = byte_permute(a, b, (low % 2 ? 0x32 : 0x10) | (high % 2 ? 0x7600 : 0x5400));
      }
      if constexpr (F::kAffine) {
        // A product with ones and with the offsets sums each row over the group: lane 4g + t gets rows 2t and 2t + 1,
        // and wants row g.
#pragma unroll
        for (int h = 0; h < L::kPairs; h += 2) {
          const u32 a[4] = {Significand<U>::kOnes, R::offset(h), Significand<U>::kOnes, R::offset(h + 1)};
          s = mma_m16n8k16<U>(a, p[h], p[h + 1], s);
        }
        const int group = L::ended_group(i);
        if (group >= 0) {
          const int g = lane / 4;
          const float even = shuffle(s.x, g / 2), odd = shuffle(s.y, g / 2);
          const float even_offset = shuffle(s.z, g / 2), odd_offset = shuffle(s.w, g / 2);
          if (group % 4 == lane % 4) {
            group_sum[group / 4] = g % 2 ? odd : even;
            offsets[group / 4] = g % 2 ? -odd_offset : -even_offset;
          }
          s = {};
        }
      }
    }
    if constexpr (F::kAffine) {
#pragma unroll
      for (int set = 0; set < L::kSets; ++set) {
        const float high = tf32_part(group_sum[set]), high_offset = tf32_part(offsets[set]);
        sum[j][set][0][0] = high_offset;
        sum[j][set][0][1] = high;
        sum[j][set][1][0] = tf32_part(offsets[set] - high_offset);
        sum[j][set][1][1] = tf32_part(group_sum[set] - high);
      }
    }
  }
};

} // namespace upstream_patch
