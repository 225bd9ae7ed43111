// y[M, N] = x[M, K] @ dequantize(w[N, K])^T for few rows: affine weights of 2, 3, 4, 5, 6 or 8 bits, groups of 32, 64 or
// 128, and mxfp4, nvfp4, mxfp8; every weight read once for 16 rows.
//
// Weights are the A operand of m16n8k16 (16 output columns), x is B (8 rows a tile), so M = 1..8 cost the same.
// The warps of a block split K: each keeps its slice of x in registers and streams its slice of the weights, one
// 16-column tile after the other, through a private ring in shared memory, so no barrier stands in the stream.
// Affine integers stay exact (offset + q in 16 bits); scale and bias act once per group in fp32:
//   y = sum over groups of  s * (sum of (offset + q) * x)  -  s * (sum of offset * x)  +  b * (sum of x),
// the last two as one tf32 product whose right side is split in two, which keeps 22 bits of the sums.
// The order of a sum depends on K, the weights' format and the device, never on M up to 32 or on the row: up to there a
// row gets the same bits in any batch.
// The grid: blocks that share the tiles of N; blocks of rows; entries of a batch of weights, each with its own x.
#pragma once

#include "activations.cuh"
#include "streams.cuh"

namespace upstream_patch {

template <typename T, typename F>
struct Operands {
  const u32* w; // [batch, N, K * bits / 32]
  const typename Layout<T, F>::Scale* scales; // [batch, N, K / group]
  const T* biases; // like scales; null for floating-point weights
  const T* x;
  T* out;
  int m, n, k;
  i64 x_row, x_batch, out_row, out_batch; // elements from one to the next
};

// Rows: 8 or 16, those of a block. Warps: how many ways a block splits K. Stages: depth of a warp's ring, in chunks (16
// columns x 256 of K). Tiles: how many wait for one reduction over the warps.
template <typename T, typename F, int kRows, int kWarps, int kStages, int kTiles>
struct QmmSmallM {
  using V = Sixteen<T>;
  using L = Layout<T, F>;
  using U = typename L::U;
  using R = typename L::R;
  using X = XSlice<T, F, kRows>;
  using Weights = F;
  static constexpr int kRowTiles = kRows / 8;
  static constexpr int kTilesABatch = kTiles, kRing = kStages;
  static constexpr int kRowBytes = L::kSlice * F::kBits / 8; // of a chunk
  // Rows that are powers of two are swizzled, the others padded, so that eight rows share no bank.
  static constexpr bool kSwizzled = (F::kBits & (F::kBits - 1)) == 0;
  static constexpr int kPitch = kRowBytes + (kSwizzled ? 0 : 16);
  static constexpr int kChunkBytes = L::kTile * kPitch;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kBlockGroups = kWarps * L::kGroups; // groups of one pass over K
  static_assert(kWarps == 4 || kWarps == 8 || kWarps == 16, "rows of scales would share banks");
  static_assert(kStages >= 2, "a chunk is filled while another is read");
  // A row of scales; the last 16 bytes are why eight lanes that read eight rows meet no bank twice.
  static constexpr int kScaleRow = kBlockGroups + 16 / static_cast<int>(sizeof(typename L::Scale));
  // Scales are fetched this many phases ahead, so that the waits of the weight ring cover them.
  static constexpr int kScaleAhead = (kStages + kTiles - 1) / kTiles;
  static constexpr int kScaleRing = kScaleAhead + 1;
  static constexpr bool kRescaled = L::kScaled || F::kFactor != 1;

  struct Shared {
    alignas(256) u32x4 ring[kWarps][kStages][kChunkBytes / 16];
    typename L::Scale scale[kScaleRing][kTiles][L::kPlanes][L::kTile][kScaleRow];
    f32x4 partial[kWarps][kTiles][kRowTiles][32];
  };

  const u32* w;
  const typename L::Scale* scales;
  const T* biases;
  Rows<T> x;
  T* out;
  i64 out_row;
  int n, k;
  Shared& shared;
  int warp, lane, g, t;
  int groups, passes, tiles, row_bytes;

  __device__ QmmSmallM(const Operands<T, F>& o, void* smem)
      : w(o.w), scales(o.scales), biases(o.biases), n(o.n), k(o.k), shared(*static_cast<Shared*>(smem)) {
    warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
    g = lane / 4;
    t = lane % 4;
    groups = k / F::kGroup;
    row_bytes = static_cast<int>(static_cast<i64>(k) * F::kBits / 8);
    passes = (k + kWarps * L::kSlice - 1) / (kWarps * L::kSlice);
    const int all = (n + L::kTile - 1) / L::kTile;
    tiles = (all - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
    const i64 entry = blockIdx.z;
    const int row = static_cast<int>(blockIdx.y) * kRows;
    w += entry * n * (row_bytes / 4);
    scales += entry * n * groups;
    if constexpr (F::kAffine) {
      biases += entry * n * groups;
    }
    x = {o.x + entry * o.x_batch + row * o.x_row, o.x_row, min(o.m - row, kRows), k};
    out = o.out + entry * o.out_batch + row * o.out_row;
    out_row = o.out_row;
  }

  // This warp's slice of a pass.
  __device__ int slice(int pass) const {
    return pass * kWarps + warp;
  }

  __device__ int first_column(int i) const {
    return (static_cast<int>(blockIdx.x) + i * static_cast<int>(gridDim.x)) * L::kTile;
  }

  __device__ static int swizzle(int row) {
    return !kSwizzled ? 0 : F::kBits == 2 ? row / 2 % 4 : F::kBits == 4 ? row % 4 * 2 : row % 2 * 4;
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
  template <int kWords>
  __device__ static void load_scales(u32 (&v)[kWords], u32 row) {
    if constexpr (kWords == 4) {
      const u32x4 four = load_shared_words_16(row);
      v[0] = four.x;
      v[1] = four.y;
      v[2] = four.z;
      v[3] = four.w;
    } else if constexpr (kWords == 2) {
      const u32x2 two = load_shared_8(row);
      v[0] = two.x;
      v[1] = two.y;
    } else {
      v[0] = load_shared_4(row);
    }
  }

  // acc += biases times the sums of x, and scales times what takes the offsets out; `scale` is this lane's row of them.
  __device__ static void add_sums(u32 scale, const X& xs, f32x4 (&acc)[kRowTiles]) {
    constexpr u32 kEight = 8 * kScaleRow * sizeof(T); // eight columns further
    constexpr u32 kBias = L::kTile * kScaleRow * sizeof(T);
    const u32 mine = scale + 2 * (L::kGroups == 2 ? threadIdx.x % 2 : threadIdx.x % 4);
#pragma unroll
    for (int set = 0; set < L::kSets; ++set) {
      const u32 at = mine + 8 * set;
      const float sb[4] = {V::low(load_shared_2(at)), V::low(load_shared_2(at + kEight)),
                           V::low(load_shared_2(at + kBias)), V::low(load_shared_2(at + kBias + kEight))};
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
        acc[j] = mma_m16n8k8_tf32(sb, xs.sum[j][set][0][0], xs.sum[j][set][0][1], acc[j]);
        acc[j] = mma_m16n8k8_tf32(sb, xs.sum[j][set][1][0], xs.sum[j][set][1][1], acc[j]);
      }
    }
  }

  // acc = the chunk at `words` (this lane's first word) times the slice of x.
  __device__ void multiply(u32 words, u32 shift, u32 second, u32 scale, const X& xs, f32x4 (&acc)[kRowTiles]) const {
    constexpr u32 kEight = 8 * kScaleRow * sizeof(typename L::Scale);
    constexpr int kScaleWords = L::kGroups * static_cast<int>(sizeof(typename L::Scale)) / 4;
    u32 s0[kScaleWords], s1[kScaleWords];
    load_scales(s0, scale);
    load_scales(s1, scale + kEight);
    if constexpr (F::kAffine) {
      add_sums(scale, xs, acc);
    }
    f32x4 dot[kRowTiles] = {};
#pragma unroll
    for (int i = 0; i < L::kAllRuns; ++i) {
      const int q = i / L::kRuns, run = i % L::kRuns;
      const u32 at = (kSwizzled ? words ^ (8 * F::kBits * q) : words + 8 * F::kBits * q) + 4 * F::kBits * run;
      u32 v0[R::kWords], v1[R::kWords], p0[L::kPairs], p1[L::kPairs];
      load_run(v0, at, shift, second);
      load_run(v1, at + 8 * kPitch, shift, second);
      F::template unpack<T, R>(v0, p0);
      F::template unpack<T, R>(v1, p1);
      if constexpr (F::kScaleWeights) {
        const u32 mine = t * 0x11; // byte t of the block's word, twice
        const u32 f0 = f16_from_e4m3(byte_permute(s0[q], 0, mine)), f1 = f16_from_e4m3(byte_permute(s1[q], 0, mine));
#pragma unroll
        for (int h = 0; h < L::kPairs; ++h) {
          p0[h] = multiply_f16(p0[h], f0);
          p1[h] = multiply_f16(p1[h], f1);
        }
      }
#pragma unroll
      for (int h = 0; h < L::kPairs; h += 2) {
        const u32 a[4] = {p0[h], p1[h], p0[h + 1], p1[h + 1]};
#pragma unroll
        for (int j = 0; j < kRowTiles; ++j) {
          const u32* b = &xs.x[q][j][run * L::kPairs + h];
          dot[j] = mma_m16n8k16<U>(a, b[0], b[1], dot[j]);
        }
      }
      if constexpr (!F::kScaleWeights) {
        if (L::ended_group(i) >= 0) {
          add_group(L::ended_group(i), s0, s1, dot, acc);
        }
      }
    }
    if constexpr (F::kScaleWeights) {
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
        acc[j] = dot[j];
      }
    }
  }

  // acc += scale * dot of a group, which is then 0.
  template <int kWords>
  __device__ static void add_group(
      int group, const u32 (&s0)[kWords], const u32 (&s1)[kWords], f32x4 (&dot)[kRowTiles], f32x4 (&acc)[kRowTiles]) {
    constexpr int kInWord = 4 / static_cast<int>(sizeof(typename L::Scale));
    const int word = group / kInWord, two = group % kInWord / 2 * 16;
    float low0, high0, low1, high1;
    F::template scales<T>(s0[word] >> two, low0, high0);
    F::template scales<T>(s1[word] >> two, low1, high1);
    const float f0 = group % 2 ? high0 : low0, f1 = group % 2 ? high1 : low1;
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      acc[j].x = fmaf(f0, dot[j].x, acc[j].x);
      acc[j].y = fmaf(f0, dot[j].y, acc[j].y);
      acc[j].z = fmaf(f1, dot[j].z, acc[j].z);
      acc[j].w = fmaf(f1, dot[j].w, acc[j].w);
      dot[j] = {};
    }
  }

  // This lane's partial sums of the tile, plus the chunk at `words` times the slice of x.
  __device__ void add_chunk(u32 partial, u32 words, u32 shift, u32 second, u32 scale, const X& xs, bool first, bool in_k)
      const {
    f32x4 sum[kRowTiles] = {}, scaled[kRowTiles] = {};
    if (!first) {
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
        sum[j] = load_shared_16(partial + 512 * j);
      }
    }
    if (in_k) {
      multiply(words, shift, second, scale, xs, kRescaled || F::kScaleWeights ? scaled : sum);
    }
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      if constexpr (kRescaled || F::kScaleWeights) {
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
    constexpr int kPerTile = kRowTiles * 64, kTogether = kThreads / kPerTile;
    const int e = threadIdx.x % kPerTile, l = e % 64 / 2; // of lane l, the columns l / 4 and, where e is odd, l / 4 + 8
    const int row = e / 64 * 8 + l % 4 * 2;
    for (int i = threadIdx.x / kPerTile; i < count; i += kTogether) {
      const u32 partial = shared_address(&shared.partial[0][i][0][0]) + 8 * e;
      float2 sum = {};
#pragma unroll
      for (int p = 0; p < kWarps; ++p) {
        const u32x2 v = load_shared_8(partial + p * sizeof(shared.partial[0]));
        sum.x += __uint_as_float(v.x);
        sum.y += __uint_as_float(v.y);
      }
      const int column = first_column(batch + i) + l / 4 + e % 2 * 8;
      if (column < n) {
        T* to = out + row * out_row + column;
        if (row < x.m) {
          to[0] = V::from_float(sum.x);
        }
        if (row + 1 < x.m) {
          to[out_row] = V::from_float(sum.y);
        }
      }
    }
  }

  __device__ void run() const {
    WeightStream<QmmSmallM> weights(*this);
    ScaleStream<QmmSmallM> scales(*this);
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
    const u32 scale_first = kept(shared_address(&shared.scale[0][0][0][g][warp * L::kGroups]));
    const u32 partial_first = kept(shared_address(&shared.partial[warp][0][0][lane]));
    u32 words = words_first, scale_buffer = scale_first;
    int buffer = 0, loaded = -1;
    X xs;

    for (Phase<kTiles> phase; phase.batch < tiles; phase.advance(passes)) {
      const int count = min(kTiles, tiles - phase.batch);
      if (loaded != phase.pass) {
        loaded = phase.pass;
        xs.load(x, slice(loaded), lane);
      }
      if (phase.batch + phase.pass == 0) {
        copy_async_wait<kStages - 2>(); // the first scales; later ones are covered by the waits for weights
      }
      // All see this phase's scales, and have left those of the phase before and the last reduction.
      __syncthreads();
      const bool in_k = slice(phase.pass) * L::kSlice < k;
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
      if (count < kStages) {
        copy_async_wait<0>(); // too few chunks went by to cover what the next phase needs
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
