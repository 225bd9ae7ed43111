// y[M, N] = x[M, K] @ dequantize(w[N, K])^T for few rows: affine weights of 2, 3, 4, 5, 6 or 8 bits, groups of 32, 64 or
// 128, every weight read once.
//
// Weights are the A operand of m16n8k16 (16 output columns), x is B (8 rows a tile), so M = 1..8 cost the same.
// The warps of a block split K: each keeps its slice of x in registers and streams its slice of the weights, one
// 16-column tile after the other, through a private ring in shared memory, so no barrier stands in the stream.
// Integers stay exact (offset + q in 16 bits); scale and bias act once per group in fp32:
//   y = sum over groups of  s * (sum of (offset + q) * x)  -  s * (sum of offset * x)  +  b * (sum of x),
// the last two as one tf32 product whose right side is split in two, which keeps 22 bits of the sums.
// Above 4 bits, x in bf16 goes to f16, whose significand holds such integers, times a power of two of each row and slice:
// exact, but for what is 2^-30 of the row's largest.
// The order of a sum depends on K, the weights' format and the device, never on M up to 16 or on the row: up to there a
// row gets the same bits in any batch.
#pragma once

#include "unpack.cuh"

namespace upstream_patch {

template <typename T>
struct Sixteen;

template <>
struct Sixteen<__nv_bfloat16> {
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

// What the matrix unit multiplies.
template <typename T, bool kMoreThanFourBits>
struct Multiplied {
  using U = T;
  static constexpr bool kScaled = false;
};
template <>
struct Multiplied<__nv_bfloat16, true> {
  using U = __half;
  static constexpr bool kScaled = true; // the exponents of bf16 do not fit
};

// What is split to fit tf32: the part it holds, and of the rest the part it holds.
__device__ __forceinline__ float tf32_part(float v) {
  return __uint_as_float(__float_as_uint(v) & 0xFFFFE000);
}

// Rows: 8 or 16 (M is at most that). Warps: how many ways a block splits K. Stages: depth of a warp's ring, in
// chunks (16 columns x 256 of K). Tiles: how many wait for one reduction over the warps.
template <typename T, int kBits, int kGroup, int kRows, int kWarps, int kStages, int kTiles>
struct AffineQmmSmallM {
  using V = Sixteen<T>;
  using U = typename Multiplied<T, (kBits > 4)>::U;
  static constexpr bool kScaled = Multiplied<T, (kBits > 4)>::kScaled;
  static constexpr int kTile = 16;
  static constexpr int kBlock = 64; // of K: a lane's 16 integers, in one run, or in two where a group is 32
  static constexpr int kSlice = 4 * kBlock; // of K: what a warp holds of x at a time
  static constexpr int kRuns = kGroup == 32 ? 2 : 1;
  static constexpr int kPairs = 8 / kRuns; // registers of a run
  static constexpr int kGroups = kSlice / kGroup; // of a slice
  static constexpr int kSets = kGroups > 4 ? kGroups / 4 : 1; // of four groups, which one tf32 product takes
  using R = Run<U, kBits, 16 / kRuns, V::kFrom>;
  static constexpr int kRowTiles = kRows / 8;
  static constexpr int kRowBytes = kSlice * kBits / 8; // of a chunk
  // Rows that are powers of two are swizzled, the others padded, so that eight rows share no bank.
  static constexpr bool kSwizzled = (kBits & (kBits - 1)) == 0;
  static constexpr int kPitch = kRowBytes + (kSwizzled ? 0 : 16);
  static constexpr int kChunkBytes = kTile * kPitch;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kBlockGroups = kWarps * kGroups; // groups of one pass over K
  static_assert(kGroup == 32 || kGroup == 64 || kGroup == 128, "MLX has no such group");
  static_assert(kWarps == 4 || kWarps == 8 || kWarps == 16, "rows of scales would share banks");
  static_assert(kStages >= 2, "a chunk is filled while another is read");
  static constexpr int kScaleRow = kBlockGroups + 8; // eight lanes read eight rows and meet no bank twice
  // Scales are fetched this many phases ahead, so that the waits of the weight ring cover them.
  static constexpr int kScaleAhead = (kStages + kTiles - 1) / kTiles;

  struct Shared {
    alignas(256) u32x4 ring[kWarps][kStages][kChunkBytes / 16];
    T scale[kScaleAhead + 1][kTiles][2][kTile][kScaleRow]; // scales, then biases
    f32x4 partial[kWarps][kTiles][kRowTiles][32];
  };

  struct XSlice {
    u32 x[4][kRowTiles][8];
    float sum[kRowTiles][kSets][2][2]; // of row g and group 4 set + t: [high or low part][times -offset or 1]
    float unscale[kRowTiles][2]; // of rows 2t and 2t + 1
  };

  // The order of work: batches of tiles; in a batch, passes over K (a phase each); in a phase, the tiles of the batch.
  struct Phase {
    int batch = 0, pass = 0;
    __device__ void advance(int passes) {
      if (++pass == passes) {
        pass = 0;
        batch += kTiles;
      }
    }
  };

  const u32* w;
  const T* scales;
  const T* biases;
  const T* x;
  T* out;
  int m, n, k;
  Shared& shared;
  int warp, lane, g, t;
  int groups, passes, tiles, row_bytes;

  __device__ AffineQmmSmallM(
      const u32* w, const T* scales, const T* biases, const T* x, T* out, int m, int n, int k, void* smem)
      : w(w), scales(scales), biases(biases), x(x), out(out), m(m), n(n), k(k), shared(*static_cast<Shared*>(smem)) {
    warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
    g = lane / 4;
    t = lane % 4;
    groups = k / kGroup;
    row_bytes = static_cast<int>(static_cast<i64>(k) * kBits / 8);
    passes = (k + kWarps * kSlice - 1) / (kWarps * kSlice);
    const int all = (n + kTile - 1) / kTile;
    tiles = (all - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
  }

  // This warp's slice of a pass.
  __device__ int slice(int pass) const {
    return pass * kWarps + warp;
  }

  __device__ int first_column(int i) const {
    return (static_cast<int>(blockIdx.x) + i * static_cast<int>(gridDim.x)) * kTile;
  }

  __device__ static int swizzle(int row) {
    return !kSwizzled ? 0 : kBits == 2 ? row / 2 % 4 : kBits == 4 ? row % 4 * 2 : row % 2 * 4;
  }

  // The stream of this warp's chunks: where the next one comes from and which slot it fills.
  // A copy moves 16 bytes: lane l those of unit l % L of row l / L, then of the rows and units that follow.
  struct WeightStream {
    static constexpr int kUnits = kRowBytes / 16;
    static constexpr int kLanes = kUnits & -kUnits; // of a row at a time: the largest power of two
    static constexpr int kRowsAtOnce = 32 / kLanes;
    const AffineQmmSmallM& op;
    Phase phase;
    int tile = 0;
    int words_left; // of this lane's rows, from its first unit on
    const char* from;
    u32 to;
    const u32 first, last;
    const u32 rows_step;
    const i64 tile_step;
    const bool whole; // 16 bytes at a time; rows of an MLX array may start anywhere

    __device__ explicit WeightStream(const AffineQmmSmallM& op)
        : op(op),
          first(kept(shared_address(op.shared.ring[op.warp]) + (op.lane / kLanes) * kPitch +
                     ((op.lane % kLanes) ^ swizzle(op.lane / kLanes)) * 16)),
          last(first + (kStages - 1) * kChunkBytes),
          rows_step(kRowsAtOnce * op.row_bytes),
          tile_step(static_cast<i64>(gridDim.x) * kTile * op.row_bytes),
          whole(op.row_bytes % 16 == 0 && is_aligned(op.w, 16)) {
      to = first;
      locate();
    }

    __device__ void locate() {
      const int at = op.slice(phase.pass) * kRowBytes + op.lane % kLanes * 16;
      words_left = (op.row_bytes - at) / 4;
      from = reinterpret_cast<const char*>(op.w) + at +
          static_cast<i64>(op.first_column(tile) + op.lane / kLanes) * op.row_bytes;
    }

    __device__ void fetch() {
      if (tile < op.tiles) {
        if (whole && op.first_column(tile) + kTile <= op.n) {
#pragma unroll
          for (int c = 0; c < kUnits; c += kLanes) {
            if (4 * c < words_left) {
#pragma unroll
              for (int r = 0; r < kTile; r += kRowsAtOnce) {
                copy_async_16(
                    to + r * kPitch + c * 16, from + static_cast<i64>(r / kRowsAtOnce) * rows_step + c * 16);
              }
            }
          }
        } else {
          fetch_words();
        }
        from += tile_step;
        if (++tile == min(phase.batch + kTiles, op.tiles)) {
          phase.advance(op.passes);
          tile = phase.batch;
          locate();
        }
      }
      copy_async_commit(); // an empty group too: the waits count groups
      to = to == last ? first : to + kChunkBytes;
    }

    // 4 bytes at a time. Columns past N repeat the last one; they are never stored.
    __device__ void fetch_words() const {
      const int column = op.first_column(tile) + op.lane / kLanes;
#pragma unroll 1
      for (int r = 0; r < kTile; r += kRowsAtOnce) {
        const i64 past = max(column + r - (op.n - 1), 0);
        const char* row = from + static_cast<i64>(r / kRowsAtOnce) * rows_step - past * op.row_bytes;
#pragma unroll 1
        for (int i = 0; i < kUnits / kLanes * 4; ++i) {
          const int at = i / 4 * kLanes * 4 + i % 4; // in words
          if (at < words_left) {
            copy_async_4(to + r * kPitch + at * 4, row + at * 4);
          }
        }
      }
    }
  };

  // The stream of scales and biases, a phase at a time, by the whole block: a thread moves one unit of one row, of
  // scales or of biases, of every kTogether-th tile.
  struct ScaleStream {
    static constexpr int kUnits = kBlockGroups / 8; // 16-byte units of a row
    static constexpr int kTogether = kThreads / (2 * kTile * kUnits);
    static_assert(kTogether * 2 * kTile * kUnits == kThreads, "whole tiles at a time");
    static constexpr int kRing = kScaleAhead + 1;
    const AffineQmmSmallM& op;
    Phase phase;
    int buffer = 0;
    const int tile, which, column, unit;
    const bool whole;

    __device__ explicit ScaleStream(const AffineQmmSmallM& op)
        : op(op),
          tile(threadIdx.x / (kThreads / kTogether)),
          which(threadIdx.x / (kTile * kUnits) % 2),
          column(threadIdx.x / kUnits % kTile),
          unit(threadIdx.x % kUnits),
          whole(op.groups % 8 == 0 && is_aligned(op.scales, 16) && is_aligned(op.biases, 16)) {}

    __device__ void fetch() {
      if (phase.batch < op.tiles) {
        const int g0 = phase.pass * kBlockGroups + unit * 8;
        const int count = min(kTiles, op.tiles - phase.batch);
        const T* from = (which ? op.biases : op.scales) + g0;
        if (g0 < op.groups) {
          for (int i = tile; i < count; i += kTogether) {
            T* to = &op.shared.scale[buffer][i][which][column][unit * 8];
            const T* at = from + static_cast<i64>(min(op.first_column(phase.batch + i) + column, op.n - 1)) * op.groups;
            if (whole) {
              copy_async_16(shared_address(to), at);
            } else {
              for (int q = 0; q < 8; ++q) {
                to[q] = g0 + q < op.groups ? at[q] : V::from_float(0.f);
              }
            }
          }
        }
        phase.advance(op.passes);
        buffer = buffer + 1 == kRing ? 0 : buffer + 1;
      }
    }
  };

  // This lane's 64 elements of one row of x: of block q, the 16 that its integers of the block meet.
  __device__ void read_x(u32 (&v)[4][2][4], int row, int pass, bool whole) const {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int at = slice(pass) * kSlice + q * kBlock + (kRuns == 2 ? h * 32 + t * 8 : t * 16 + h * 8);
        u32x4 eight = {};
        if (row < m && at < k) {
          const T* from = x + static_cast<i64>(row) * k + at;
          if (whole) {
            eight = *reinterpret_cast<const u32x4*>(from);
          } else {
            T* each = reinterpret_cast<T*>(&eight);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
              each[i] = from[i];
            }
          }
        }
        v[q][h][0] = eight.x;
        v[q][h][1] = eight.y;
        v[q][h][2] = eight.z;
        v[q][h][3] = eight.w;
      }
    }
  }

  // From bf16 to f16 times a power of two, which brings the row's largest element to 2^15..2^16. Returns what takes it out
  // again. A bf16 whose exponent field is below 31 has an f16's bits, but for three zeros at the end.
  __device__ float to_f16(u32 (&v)[4][2][4]) const {
    u32 four[4] = {};
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      four[i % 4] = max_abs_bf16(v[i / 8][i / 4 % 2][i % 4], four[i % 4]);
    }
    const u32 both = max_abs_bf16(max_abs_bf16(four[0], four[1]), max_abs_bf16(four[2], four[3]));
    float largest = fmaxf(V::low(both), V::high(both));
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

  // Loads this warp's slice of x, K permuted as unpack() permutes the weights, and its sums per group. Rows past M and
  // groups past K are zero, so whatever the weights hold there adds nothing.
  __device__ void load_x(XSlice& to, int pass) const {
    const bool whole = is_aligned(x, 16);
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      u32 v[4][2][4];
      read_x(v, j * 8 + g, pass, whole);
      if (kScaled) {
        const float unscale = to_f16(v);
        to.unscale[j][0] = shuffle(unscale, 8 * t);
        to.unscale[j][1] = shuffle(unscale, 8 * t + 4);
      }
      float sum[kSets] = {}, offsets[kSets] = {};
      f32x4 s = {};
#pragma unroll
      for (int i = 0; i < 4 * kRuns; ++i) {
        const int q = i / kRuns, run = i % kRuns;
        u32* p = &to.x[q][j][run * kPairs];
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          const int low = run * 8 + R::low(pair), high = run * 8 + R::high(pair);
          const u32 a = v[q][low / 8][low % 8 / 2], b = v[q][high / 8][high % 8 / 2];
          p[pair] = byte_permute(a, b, (low % 2 ? 0x32 : 0x10) | (high % 2 ? 0x7600 : 0x5400));
        }
        // A product with ones and with the offsets sums each row over the group: lane 4g + t gets rows 2t and 2t + 1,
        // and wants row g.
#pragma unroll
        for (int h = 0; h < kPairs; h += 2) {
          const u32 a[4] = {Significand<U>::kOnes, R::offset(h), Significand<U>::kOnes, R::offset(h + 1)};
          s = mma_m16n8k16<U>(a, p[h], p[h + 1], s);
        }
        if ((i + 1) * kGroups % (4 * kRuns) == 0) {
          const int group = ((i + 1) * kGroups - 1) / (4 * kRuns);
          const float even = shuffle(s.x, g / 2), odd = shuffle(s.y, g / 2);
          const float even_offset = shuffle(s.z, g / 2), odd_offset = shuffle(s.w, g / 2);
          if (group % 4 == t) {
            sum[group / 4] = g % 2 ? odd : even;
            offsets[group / 4] = g % 2 ? -odd_offset : -even_offset;
          }
          s = {};
        }
      }
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        const float high = tf32_part(sum[set]), high_offset = tf32_part(offsets[set]);
        to.sum[j][set][0][0] = high_offset;
        to.sum[j][set][0][1] = high;
        to.sum[j][set][1][0] = tf32_part(offsets[set] - high_offset);
        to.sum[j][set][1][1] = tf32_part(sum[set] - high);
      }
    }
  }

  // A run of this lane: `at` is its first word, `shift` where it starts in there, `second` how far the next word is
  // (nowhere, where the run does not reach it).
  __device__ static void load_run(u32 (&v)[R::kWords], u32 at, u32 shift, u32 second) {
    if constexpr (!R::kWhole) {
      u32 touched[R::kTouched];
#pragma unroll
      for (int i = 0; i < R::kTouched; ++i) {
        touched[i] = load_shared_4(at + (i == 1 ? second : 4 * i));
      }
#pragma unroll
      for (int i = 0; i < R::kWords; ++i) {
        v[i] = funnel_shift(touched[i], touched[i + 1 < R::kTouched ? i + 1 : i], shift);
      }
    } else if constexpr (R::kWords == 4) {
      const u32x4 four = load_shared_words_16(at);
      v[0] = four.x;
      v[1] = four.y;
      v[2] = four.z;
      v[3] = four.w;
    } else if constexpr (R::kWords == 2) {
      const u32x2 two = load_shared_8(at);
      v[0] = two.x;
      v[1] = two.y;
    } else {
#pragma unroll
      for (int i = 0; i < R::kWords; ++i) {
        v[i] = load_shared_4(at + 4 * i);
      }
    }
  }

  // The scales of this lane's row for the groups of a slice.
  __device__ static void load_scales(u32 (&v)[kGroups / 2], u32 row) {
    if constexpr (kGroups == 8) {
      const u32x4 four = load_shared_words_16(row);
      v[0] = four.x;
      v[1] = four.y;
      v[2] = four.z;
      v[3] = four.w;
    } else if constexpr (kGroups == 4) {
      const u32x2 two = load_shared_8(row);
      v[0] = two.x;
      v[1] = two.y;
    } else {
      v[0] = load_shared_4(row);
    }
  }

  // acc = the chunk at `words` (this lane's first word) times the slice of x; `scale` is this lane's row of scales.
  __device__ void multiply(u32 words, u32 shift, u32 second, u32 scale, const XSlice& xs, f32x4 (&acc)[kRowTiles]) const {
    constexpr u32 kEight = 8 * kScaleRow * sizeof(T); // eight columns further
    constexpr u32 kBias = kTile * kScaleRow * sizeof(T);
    u32 s0[kGroups / 2], s1[kGroups / 2];
    load_scales(s0, scale);
    load_scales(s1, scale + kEight);
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      const u32 mine = scale + 8 * set + 2 * (kGroups == 2 ? t % 2 : t);
      const float sb[4] = {V::low(load_shared_2(mine)), V::low(load_shared_2(mine + kEight)),
                           V::low(load_shared_2(mine + kBias)), V::low(load_shared_2(mine + kBias + kEight))};
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
        acc[j] = mma_m16n8k8_tf32(sb, xs.sum[j][set][0][0], xs.sum[j][set][0][1], acc[j]);
        acc[j] = mma_m16n8k8_tf32(sb, xs.sum[j][set][1][0], xs.sum[j][set][1][1], acc[j]);
      }
    }
    f32x4 dot[kRowTiles] = {};
#pragma unroll
    for (int i = 0; i < 4 * kRuns; ++i) {
      const int q = i / kRuns, run = i % kRuns;
      const u32 at = (kSwizzled ? words ^ (8 * kBits * q) : words + 8 * kBits * q) + 4 * kBits * run;
      u32 v0[R::kWords], v1[R::kWords], p0[kPairs], p1[kPairs];
      load_run(v0, at, shift, second);
      load_run(v1, at + 8 * kPitch, shift, second);
      unpack<R>(v0, p0);
      unpack<R>(v1, p1);
#pragma unroll
      for (int h = 0; h < kPairs; h += 2) {
        const u32 a[4] = {p0[h], p1[h], p0[h + 1], p1[h + 1]};
#pragma unroll
        for (int j = 0; j < kRowTiles; ++j) {
          const u32* b = &xs.x[q][j][run * kPairs + h];
          dot[j] = mma_m16n8k16<U>(a, b[0], b[1], dot[j]);
        }
      }
      if ((i + 1) * kGroups % (4 * kRuns) == 0) {
        const int group = ((i + 1) * kGroups - 1) / (4 * kRuns);
        const float f0 = group % 2 ? V::high(s0[group / 2]) : V::low(s0[group / 2]);
        const float f1 = group % 2 ? V::high(s1[group / 2]) : V::low(s1[group / 2]);
#pragma unroll
        for (int j = 0; j < kRowTiles; ++j) {
          acc[j].x = fmaf(f0, dot[j].x, acc[j].x);
          acc[j].y = fmaf(f0, dot[j].y, acc[j].y);
          acc[j].z = fmaf(f1, dot[j].z, acc[j].z);
          acc[j].w = fmaf(f1, dot[j].w, acc[j].w);
          dot[j] = {};
        }
      }
    }
  }

  // This lane's partial sums of the tile, plus the chunk at `words` times the slice of x.
  __device__ void add_chunk(u32 partial, u32 words, u32 shift, u32 second, u32 scale, const XSlice& xs, bool first, bool in_k) const {
    f32x4 sum[kRowTiles] = {}, scaled[kRowTiles] = {};
    if (!first) {
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
        sum[j] = load_shared_16(partial + 512 * j);
      }
    }
    if (in_k) {
      multiply(words, shift, second, scale, xs, kScaled ? scaled : sum);
    }
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      if (kScaled) {
        sum[j].x = fmaf(scaled[j].x, xs.unscale[j][0], sum[j].x);
        sum[j].y = fmaf(scaled[j].y, xs.unscale[j][1], sum[j].y);
        sum[j].z = fmaf(scaled[j].z, xs.unscale[j][0], sum[j].z);
        sum[j].w = fmaf(scaled[j].w, xs.unscale[j][1], sum[j].w);
      }
      store_shared_16(partial + 512 * j, sum[j]);
    }
  }

  // Adds the warps' partial sums of a batch, in warp order, and stores them: two rows of one column a thread.
  __device__ void reduce(int batch, int count) const {
    constexpr int kPerTile = kRowTiles * 64;
    const u32 partial = shared_address(&shared.partial[0][0][0][0]);
    for (int e = threadIdx.x; e < count * kPerTile; e += kThreads) {
      float2 sum = {};
#pragma unroll
      for (int p = 0; p < kWarps; ++p) {
        const u32x2 v = load_shared_8(partial + p * sizeof(shared.partial[0]) + 8 * e);
        sum.x += __uint_as_float(v.x);
        sum.y += __uint_as_float(v.y);
      }
      const int l = e % 64 / 2; // of lane l, the columns l / 4 and, where e is odd, l / 4 + 8
      const int row = e % kPerTile / 64 * 8 + l % 4 * 2;
      const int column = first_column(batch + e / kPerTile) + l / 4 + e % 2 * 8;
      if (column < n) {
        T* to = out + static_cast<i64>(row) * n + column;
        if (row < m) {
          to[0] = V::from_float(sum.x);
        }
        if (row + 1 < m) {
          to[n] = V::from_float(sum.y);
        }
      }
    }
  }

  __device__ void run() const {
    WeightStream weights(*this);
    ScaleStream scales(*this);
    weights.fetch();
#pragma unroll 1
    for (int i = 0; i < kScaleAhead; ++i) {
      scales.fetch();
    }
    copy_async_commit();
#pragma unroll 1
    for (int i = 1; i < kStages - 1; ++i) {
      weights.fetch();
    }
    // This lane's first word of a chunk, its row of scales and its partial sums.
    const int start = t * R::kRunBits, first_byte = start / 32 * 4; // of its run in a block
    const u32 shift = start % 32, second = R::kRunBits == 24 && shift <= 8 ? 0 : 4;
    const u32 words_first =
        kept(shared_address(shared.ring[warp]) + g * kPitch + ((first_byte / 16) ^ swizzle(g)) * 16 + first_byte % 16);
    const u32 words_last = words_first + (kStages - 1) * kChunkBytes;
    const u32 scale_first = kept(shared_address(&shared.scale[0][0][0][g][warp * kGroups]));
    const u32 partial_first = kept(shared_address(&shared.partial[warp][0][0][lane]));
    u32 words = words_first, scale_buffer = scale_first;
    int buffer = 0, loaded = -1;
    XSlice xs;

    for (Phase phase; phase.batch < tiles; phase.advance(passes)) {
      const int count = min(kTiles, tiles - phase.batch);
      if (loaded != phase.pass) {
        loaded = phase.pass;
        load_x(xs, loaded);
      }
      if (phase.batch + phase.pass == 0) {
        copy_async_wait<kStages - 2>(); // the first scales; later ones are covered by the waits for weights
      }
      // All see this phase's scales, and have left those of the phase before and the last reduction.
      __syncthreads();
      const bool in_k = slice(phase.pass) * kSlice < k;
      u32 scale = scale_buffer, partial = partial_first;
      for (int i = 0; i < count; ++i) {
        copy_async_wait<kStages - 2>();
        __syncwarp(); // the chunk is whole, and every lane has left the slot that is filled next
        if (i == 0) {
          scales.fetch();
        }
        weights.fetch();
        add_chunk(partial, words, shift, second, scale, xs, phase.pass == 0, in_k);
        words = words == words_last ? words_first : words + kChunkBytes;
        scale += sizeof(shared.scale[0][0]);
        partial += sizeof(shared.partial[0][0]);
      }
      if (count < kTiles) {
        copy_async_wait<0>(); // too few chunks went by to cover the next scales
      }
      buffer = buffer == kScaleAhead ? 0 : buffer + 1;
      scale_buffer = scale_first + buffer * sizeof(shared.scale[0]);
      if (phase.pass + 1 == passes) {
        __syncthreads(); // the partial sums of every warp are there
        reduce(phase.batch, count);
      }
    }
  }
};

} // namespace upstream_patch
