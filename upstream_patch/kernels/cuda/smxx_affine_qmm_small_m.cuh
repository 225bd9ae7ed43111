// y[M, N] = x[M, K] @ dequantize(w[N, K])^T for few rows: 4-bit affine weights, group size 64, every weight read once.
//
// Weights are the A operand of m16n8k16 (16 output columns), x is B (8 rows a tile), so M = 1..8 cost the same.
// The warps of a block split K: each keeps its slice of x in registers and streams its slice of the weights, one
// 16-column tile after the other, through a private ring in shared memory, so no barrier stands in the stream.
// Integers stay exact (128 + q in bf16, 64 + q in f16); scale and bias act once per group in fp32:
//   y = sum over groups of  s * (sum of (offset + q) * x)  +  s * (-offset * sum of x)  +  b * (sum of x),
// the last two as one tf32 product whose right side is split in two, which keeps 22 bits of the sums.
// The order of a sum depends on K and the tuning, never on M or the row: a row gets the same bits in any batch.
#pragma once

#include "intrinsics.cuh"

namespace upstream_patch {

template <typename T>
struct Nibbles;

// The lowest bit of the bf16 significand of 128 is worth 1, so 0x4300 | q is 128 + q.
template <>
struct Nibbles<__nv_bfloat16> {
  static constexpr float kOffset = 128.f;
  static constexpr u32 kOnes = 0x3F803F80;
  // Pair i holds the nibbles i (low half) and i + 4 (high half) of w.
  __device__ static void expand(u32 w, u32 (&pair)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pair[i] = and_or(w >> (4 * i), 0x000F000F, 0x43004300);
    }
  }
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

// Bit 4 of the f16 significand of 64 is worth 1, so 0x5400 | q << 4 is 64 + q.
template <>
struct Nibbles<__half> {
  static constexpr float kOffset = 64.f;
  static constexpr u32 kOnes = 0x3C003C00;
  __device__ static void expand(u32 w, u32 (&pair)[4]) {
    pair[0] = and_or(w << 4, 0x00F000F0, 0x54005400);
#pragma unroll
    for (int i = 1; i < 4; ++i) {
      pair[i] = and_or(w >> (4 * i - 4), 0x00F000F0, 0x54005400);
    }
  }
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

// Rows: 8 or 16 (M is at most that). Warps: how many ways a block splits K. Stages: depth of a warp's ring, in chunks
// (16 columns x 256 of K). Batch: tiles whose partial sums wait for one reduction over the warps.
template <typename T, int kRows, int kWarps, int kStages, int kBatch>
struct AffineQmmSmallM {
  using N4 = Nibbles<T>;
  static constexpr int kGroup = 64;
  static constexpr int kTile = 16;
  static constexpr int kSlice = 4; // groups of x a warp holds at a time
  static constexpr int kRowTiles = kRows / 8;
  static constexpr int kChunkBytes = kTile * kSlice * kGroup / 2;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kBlockGroups = kWarps * kSlice; // groups of one pass over K
  static_assert(kWarps == 4 || kWarps == 8 || kWarps == 16, "rows of scales would share banks");
  static constexpr int kScaleRow = kBlockGroups + 8; // eight lanes read eight rows and meet no bank twice
  // Scales are fetched this many phases ahead, so that the waits of the weight ring cover them.
  static constexpr int kScaleAhead = (kStages + kBatch - 1) / kBatch;

  struct Shared {
    u32x4 ring[kWarps][kStages][kChunkBytes / 16];
    T scale[kScaleAhead + 1][kBatch][2][kTile][kScaleRow]; // scales, then biases
    f32x4 partial[kWarps][kBatch][kRowTiles][32];
  };

  struct XSlice {
    u32 x[kSlice][kRowTiles][8];
    float sum[kRowTiles][2][2]; // of row g and group t: [high or low part][times -offset or 1]
  };

  // The order of work: batches of tiles; in a batch, passes over K (a phase each); in a phase, the tiles of the batch.
  struct Phase {
    int batch = 0, pass = 0;
    __device__ void advance(int passes) {
      if (++pass == passes) {
        pass = 0;
        batch += kBatch;
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
  int groups, passes, tiles;

  __device__ AffineQmmSmallM(
      const u32* w, const T* scales, const T* biases, const T* x, T* out, int m, int n, int k, void* smem)
      : w(w), scales(scales), biases(biases), x(x), out(out), m(m), n(n), k(k), shared(*static_cast<Shared*>(smem)) {
    warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
    g = lane / 4;
    t = lane % 4;
    groups = k / kGroup;
    passes = (groups + kBlockGroups - 1) / kBlockGroups;
    const int all = (n + kTile - 1) / kTile;
    tiles = (all - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
  }

  // Rows of an MLX array may start anywhere. True where 16-byte copies reach everything and no tile is cut off by N.
  __device__ bool is_regular() const {
    return n % kTile == 0 && groups % 8 == 0 && is_aligned(w, 16) && is_aligned(scales, 16) && is_aligned(biases, 16) &&
        is_aligned(x, 16);
  }

  __device__ int first_group(int pass) const {
    return (pass * kWarps + warp) * kSlice;
  }

  __device__ int first_column(int i) const {
    return (static_cast<int>(blockIdx.x) + i * static_cast<int>(gridDim.x)) * kTile;
  }

  // The stream of this warp's chunks: where the next one comes from and which slot it fills.
  // Lane l moves unit l % 8 of rows l / 8 + 4j; unit c of row r lies at c ^ 2 (r % 4), so that neither these writes nor
  // the reads of multiply() meet a bank twice.
  template <bool kRegular>
  struct WeightStream {
    const AffineQmmSmallM& op;
    Phase phase;
    int tile = 0;
    bool in_k;
    const char* from;
    u32 to;
    const u32 first, last;
    const u32 four_rows;
    const i64 step;

    __device__ explicit WeightStream(const AffineQmmSmallM& op)
        : op(op),
          first(kept(shared_address(op.shared.ring[op.warp]) + (op.lane / 8) * 128 +
                     ((op.lane % 8) ^ (2 * (op.lane / 8))) * 16)),
          last(first + (kStages - 1) * kChunkBytes),
          four_rows(2 * op.k),
          step(static_cast<i64>(gridDim.x) * kTile * (op.k / 2)) {
      to = first;
      locate();
    }

    __device__ void locate() {
      const int g0 = op.first_group(phase.pass);
      const int c = op.lane % 8;
      in_k = g0 + (kRegular ? 0 : c / 2) < op.groups;
      from = reinterpret_cast<const char*>(op.w) + g0 * (kGroup / 2) + c * 16 +
          static_cast<i64>(op.first_column(tile) + op.lane / 8) * (op.k / 2);
    }

    __device__ void fetch() {
      if (tile < op.tiles) {
        if (in_k) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            if (kRegular) {
              copy_async_16(to + j * 512, from + static_cast<i64>(j) * four_rows);
            } else {
              // Columns past N repeat the last one; they are never stored.
              const int column = op.first_column(tile) + op.lane / 8 + 4 * j;
              const i64 past = max(column - (op.n - 1), 0) * static_cast<i64>(op.k / 2);
              const char* row = from + static_cast<i64>(j) * four_rows - past;
              for (int b = 0; b < 16; b += 4) {
                copy_async_4(to + j * 512 + b, row + b);
              }
            }
          }
        }
        from += step;
        if (++tile == min(phase.batch + kBatch, op.tiles)) {
          phase.advance(op.passes);
          tile = phase.batch;
          locate();
        }
      }
      copy_async_commit(); // an empty group too: the waits count groups
      to = to == last ? first : to + kChunkBytes;
    }
  };

  // The stream of scales and biases, a phase at a time, by the whole block: thread e moves unit e % (W / 2) of one row,
  // scales before biases, of every second tile.
  template <bool kRegular>
  struct ScaleStream {
    static constexpr int kUnits = kBlockGroups / 8; // 16-byte units of a row
    static_assert(kThreads == 2 * (2 * kTile * kUnits), "two tiles at a time");
    static constexpr int kRing = kScaleAhead + 1;
    const AffineQmmSmallM& op;
    Phase phase;
    int buffer = 0;
    const int tile, which, column, unit;

    __device__ explicit ScaleStream(const AffineQmmSmallM& op)
        : op(op),
          tile(threadIdx.x / (kThreads / 2)),
          which(threadIdx.x / (kThreads / 4) % 2),
          column(threadIdx.x / kUnits % kTile),
          unit(threadIdx.x % kUnits) {}

    __device__ void fetch() {
      if (phase.batch < op.tiles) {
        const int g0 = phase.pass * kBlockGroups + unit * 8;
        const int count = min(kBatch, op.tiles - phase.batch);
        const T* from = (which ? op.biases : op.scales) + g0;
        T* to = &op.shared.scale[buffer][tile][which][column][unit * 8];
        if (g0 < op.groups) {
          for (int i = tile; i < count; i += 2, to += sizeof(op.shared.scale[0][0]) / sizeof(T) * 2) {
            const i64 row = op.first_column(phase.batch + i) + column;
            if (kRegular) {
              copy_async_16(shared_address(to), from + row * op.groups);
            } else {
              const T* at = from + min(row, static_cast<i64>(op.n - 1)) * op.groups;
              for (int q = 0; q < 8; ++q) {
                to[q] = g0 + q < op.groups ? at[q] : N4::from_float(0.f);
              }
            }
          }
        }
        phase.advance(op.passes);
        buffer = buffer + 1 == kRing ? 0 : buffer + 1;
      }
    }
  };

  // Loads this warp's slice of x, K permuted as expand() permutes the weights, and its sums per group. Rows past M and
  // groups past K are zero, so whatever the weights hold there adds nothing.
  template <bool kRegular>
  __device__ void load_x(XSlice& to, int pass) const {
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      const int row = j * 8 + g;
      u32x4 v[kSlice][2] = {};
#pragma unroll
      for (int q = 0; q < kSlice; ++q) {
        const int group = first_group(pass) + q;
        if (row < m && group < groups) {
          const T* from = x + static_cast<i64>(row) * k + group * kGroup + t * 16;
          if (kRegular) {
            v[q][0] = reinterpret_cast<const u32x4*>(from)[0];
            v[q][1] = reinterpret_cast<const u32x4*>(from)[1];
          } else {
            T* each = reinterpret_cast<T*>(v[q]);
#pragma unroll
            for (int i = 0; i < 16; ++i) {
              each[i] = from[i];
            }
          }
        }
      }
      float sum = 0.f;
#pragma unroll
      for (int q = 0; q < kSlice; ++q) {
        u32(&p)[8] = to.x[q][j];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          p[4 * h] = byte_permute(v[q][h].x, v[q][h].z, 0x5410);
          p[4 * h + 1] = byte_permute(v[q][h].x, v[q][h].z, 0x7632);
          p[4 * h + 2] = byte_permute(v[q][h].y, v[q][h].w, 0x5410);
          p[4 * h + 3] = byte_permute(v[q][h].y, v[q][h].w, 0x7632);
        }
        // A product with ones sums each row over the group: lane 4g + t gets rows 2t and 2t + 1, and wants row g.
        const u32 ones[4] = {N4::kOnes, N4::kOnes, N4::kOnes, N4::kOnes};
        f32x4 s = {};
#pragma unroll
        for (int h = 0; h < 8; h += 2) {
          s = mma_m16n8k16<T>(ones, p[h], p[h + 1], s);
        }
        const float even = shuffle(s.x, g / 2), odd = shuffle(s.y, g / 2);
        if (q == t) {
          sum = g % 2 ? odd : even;
        }
      }
      const float high = __uint_as_float(__float_as_uint(sum) & 0xFFFFE000); // what tf32 holds
      to.sum[j][0][0] = -N4::kOffset * high;
      to.sum[j][0][1] = high;
      to.sum[j][1][0] = -N4::kOffset * (sum - high);
      to.sum[j][1][1] = sum - high;
    }
  }

  // acc += the chunk at `words` (this lane's first word) times the slice of x; `scale` is this lane's row of scales.
  __device__ void multiply(u32 words, u32 scale, const XSlice& xs, f32x4 (&acc)[kRowTiles]) const {
    constexpr u32 kEight = 8 * kScaleRow * sizeof(T); // eight columns further
    constexpr u32 kBias = kTile * kScaleRow * sizeof(T);
    const u32x2 s0 = load_shared_8(scale);
    const u32x2 s1 = load_shared_8(scale + kEight);
    const u32 mine = scale + 2 * t;
    const float sb[4] = {N4::low(load_shared_2(mine)), N4::low(load_shared_2(mine + kEight)),
                         N4::low(load_shared_2(mine + kBias)), N4::low(load_shared_2(mine + kBias + kEight))};
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      acc[j] = mma_m16n8k8_tf32(sb, xs.sum[j][0][0], xs.sum[j][0][1], acc[j]);
      acc[j] = mma_m16n8k8_tf32(sb, xs.sum[j][1][0], xs.sum[j][1][1], acc[j]);
    }
#pragma unroll
    for (int q = 0; q < kSlice; ++q) {
      const u32x2 w0 = load_shared_8(words ^ (32 * q));
      const u32x2 w1 = load_shared_8((words ^ (32 * q)) + 8 * 128);
      f32x4 dot[kRowTiles] = {};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        u32 p0[4], p1[4];
        N4::expand(h ? w0.y : w0.x, p0);
        N4::expand(h ? w1.y : w1.x, p1);
        const u32 a0[4] = {p0[0], p1[0], p0[1], p1[1]};
        const u32 a1[4] = {p0[2], p1[2], p0[3], p1[3]};
#pragma unroll
        for (int j = 0; j < kRowTiles; ++j) {
          const u32* b = &xs.x[q][j][4 * h];
          dot[j] = mma_m16n8k16<T>(a0, b[0], b[1], dot[j]);
          dot[j] = mma_m16n8k16<T>(a1, b[2], b[3], dot[j]);
        }
      }
      const u32 pair0 = q < 2 ? s0.x : s0.y, pair1 = q < 2 ? s1.x : s1.y;
      const float f0 = q % 2 ? N4::high(pair0) : N4::low(pair0);
      const float f1 = q % 2 ? N4::high(pair1) : N4::low(pair1);
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
        acc[j].x = fmaf(f0, dot[j].x, acc[j].x);
        acc[j].y = fmaf(f0, dot[j].y, acc[j].y);
        acc[j].z = fmaf(f1, dot[j].z, acc[j].z);
        acc[j].w = fmaf(f1, dot[j].w, acc[j].w);
      }
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
          to[0] = N4::from_float(sum.x);
        }
        if (row + 1 < m) {
          to[n] = N4::from_float(sum.y);
        }
      }
    }
  }

  template <bool kRegular>
  __device__ void run() const {
    WeightStream<kRegular> weights(*this);
    ScaleStream<kRegular> scales(*this);
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
    const u32 words_first =
        kept(shared_address(shared.ring[warp]) + g * 128 + ((t / 2) ^ (2 * (g % 4))) * 16 + t % 2 * 8);
    const u32 words_last = words_first + (kStages - 1) * kChunkBytes;
    const u32 scale_first = kept(shared_address(&shared.scale[0][0][0][g][warp * kSlice]));
    const u32 partial_first = kept(shared_address(&shared.partial[warp][0][0][lane]));
    u32 words = words_first, scale_buffer = scale_first;
    int buffer = 0, loaded = -1;
    XSlice xs;

    for (Phase phase; phase.batch < tiles; phase.advance(passes)) {
      const int count = min(kBatch, tiles - phase.batch);
      if (loaded != phase.pass) {
        loaded = phase.pass;
        load_x<kRegular>(xs, loaded);
      }
      if (phase.batch + phase.pass == 0) {
        copy_async_wait<kStages - 2>(); // the first scales; later ones are covered by the waits for weights
      }
      __syncthreads(); // this phase's scales are seen by all, and the last reduction is over
      const bool in_k = first_group(phase.pass) < groups;
      u32 scale = scale_buffer, partial = partial_first;
      for (int i = 0; i < count; ++i) {
        copy_async_wait<kStages - 2>();
        __syncwarp(); // the chunk is whole, and every lane has left the slot that is filled next
        if (i == 0) {
          scales.fetch();
        }
        weights.fetch();
        f32x4 acc[kRowTiles] = {};
        if (phase.pass > 0) {
#pragma unroll
          for (int j = 0; j < kRowTiles; ++j) {
            acc[j] = load_shared_16(partial + 512 * j);
          }
        }
        if (in_k) {
          multiply(words, scale, xs, acc);
        }
#pragma unroll
        for (int j = 0; j < kRowTiles; ++j) {
          store_shared_16(partial + 512 * j, acc[j]);
        }
        words = words == words_last ? words_first : words + kChunkBytes;
        scale += sizeof(shared.scale[0][0]);
        partial += sizeof(shared.partial[0][0]);
      }
      if (count < kBatch) {
        copy_async_wait<0>(); // too few chunks went by to cover the next scales
      }
      buffer = buffer == kScaleAhead ? 0 : buffer + 1;
      scale_buffer = scale_first + buffer * sizeof(shared.scale[0]);
      __syncthreads(); // every warp is done with this phase
      if (phase.pass + 1 == passes) {
        reduce(phase.batch, count);
      }
    }
  }

  __device__ void run() const {
    if (is_regular()) {
      run<true>();
    } else {
      run<false>();
    }
  }
};

} // namespace upstream_patch
