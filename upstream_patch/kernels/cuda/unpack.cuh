// From packed integers to pairs of f16 or bf16 that hold `offset + q` exactly, for about one instruction a pair.
//
// The significand of an f16 has 10 bits below the first: in 1024 the lowest is worth 1, in 2^(10 - p) bit p is. So a
// field that lies at bit p of a 16-bit half, with everything else masked away, becomes 2^(10 - p) + q by an OR, and
// fields at several places need no shift. In bf16 it is 7 bits and 2^(7 - p). The sums over x take the offsets out.
#pragma once

#include "intrinsics.cuh"

namespace upstream_patch {

template <typename U>
struct Significand;
template <>
struct Significand<__half> {
  static constexpr int kBits = 10;
  static constexpr u32 kWhole = 0x6400; // 1024
  static constexpr u32 kOnes = 0x3C003C00;
};
template <>
struct Significand<__nv_bfloat16> {
  static constexpr int kBits = 7;
  static constexpr u32 kWhole = 0x4300; // 128
  static constexpr u32 kOnes = 0x3F803F80;
};

// A lane's run of kRun consecutive integers of one row: kRun * kBits bits, lowest first; U is what they become. A field is
// put at bit kFrom or higher, where that leaves room for it: 4 costs some shifts and keeps the offsets of f16 below 128.
template <typename U, int kBits, int kRun, int kFrom>
struct Run {
  static_assert(kBits >= 2 && kBits <= 8 && kBits != 7, "MLX has no such width");
  static_assert(kBits <= Significand<U>::kBits, "an integer must fit the significand");
  static_assert(kRun == 8 || kRun == 16, "a quarter of a group of 32, or of 64");
  static constexpr int kWidth = kBits;
  static constexpr int kPairs = kRun / 2;
  static constexpr int kRunBits = kRun * kBits;
  static constexpr int kWords = (kRunBits + 31) / 32;
  static constexpr bool kWhole = kRunBits % 32 == 0; // the runs of all lanes start at whole words
  // Words that a run touches wherever it starts: at every 16th bit of a word, or at every 8th.
  static constexpr int kTouched = kWhole ? kWords : ((kRunBits % 16 == 0 ? 16 : 24) + kRunBits + 31) / 32;
  // A pair holds integers i and i + kHalf of a unit; of whole bytes, neighbours.
  static constexpr bool kBytes = kBits == 8;
  static constexpr int kUnit = kBits == 4 ? 8 : kRun;
  static constexpr int kHalf = kUnit / 2;
  static constexpr int kHighest = Significand<U>::kBits - kBits; // where a field may start at most
  static constexpr int kLowest = kFrom < kHighest ? kFrom : kHighest;

  __device__ static constexpr int low(int pair) {
    return kBytes ? 2 * pair : pair / kHalf * kUnit + pair % kHalf;
  }
  __device__ static constexpr int high(int pair) {
    return kBytes ? 2 * pair + 1 : low(pair) + kHalf;
  }
  // The byte of the half unit at which the 16-bit window of its integer i starts: the last one, as long as it will do.
  // All of them in one number, four bits each, so that nothing is left to compute when the kernel runs.
  __device__ static constexpr unsigned long long make_windows() {
    unsigned long long all = 0;
    int at = 0;
    for (int i = 0; i < kHalf; ++i) {
      if (i * kBits - 8 * at > kHighest) {
        at = i * kBits / 8;
      }
      all |= static_cast<unsigned long long>(at) << (4 * i);
    }
    return all;
  }
  static constexpr unsigned long long kWindows = make_windows();
  __device__ static constexpr int window(int i) {
    return static_cast<int>(kWindows >> (4 * i) & 15);
  }
  __device__ static constexpr int found(int i) {
    return i * kBits - 8 * window(i);
  }
  // Where the field is put.
  __device__ static constexpr int place(int i) {
    return found(i) < kLowest ? kLowest : found(i) < kHighest ? found(i) : kHighest;
  }
  // What is added to both integers of a pair, in each half.
  __device__ static constexpr u32 offset(int pair) {
    const u32 lower = kBytes ? 0 : static_cast<u32>(place(pair % kHalf)) << Significand<U>::kBits; // the exponent
    return (Significand<U>::kWhole - lower) * 0x10001;
  }
};

// 32 bits of v from a bit on; bits past the end are anything.
template <int kWords>
__device__ __forceinline__ u32 bits_from(const u32 (&v)[kWords], int bit) {
  const int word = bit / 32, next = word + 1 < kWords ? word + 1 : word;
  return bit % 32 == 0 ? v[word] : funnel_shift(v[word], v[next], bit % 32);
}

// The 16 bits of v from `low` on, and those from `high` on in the upper half.
template <int kWords>
__device__ __forceinline__ u32 two_windows(const u32 (&v)[kWords], int low, int high) {
  const int word = low / 32, next = word + 1 < kWords ? word + 1 : word;
  const int last = high / 8 + 1 - 4 * word; // the last byte, counted from `word`
  if (low % 32 == 0 && high == low + 16) {
    return v[word];
  }
  if (low % 8 == 0 && high % 8 == 0 && (last < 8 || next == word)) {
    const u32 first = low / 8 % 4, third = high / 8 - 4 * word;
    const u32 fourth = last < 8 ? last : 7;
    return byte_permute(v[word], v[next], first | (first + 1) << 4 | third << 8 | fourth << 12);
  }
  return byte_permute(bits_from(v, low), bits_from(v, high), 0x5410);
}

// The pairs of a run.
template <typename R>
__device__ __forceinline__ void unpack(const u32 (&v)[R::kWords], u32 (&pair)[R::kPairs]) {
  if constexpr (R::kBytes) {
#pragma unroll
    for (int p = 0; p < R::kPairs; ++p) {
      pair[p] = byte_permute(v[p / 2], 0x64646464, p % 2 ? 0x4342 : 0x4140);
    }
    return;
  }
  constexpr u32 kField = (1u << R::kWidth) - 1;
  u32 both = 0;
#pragma unroll
  for (int p = 0; p < R::kPairs; ++p) {
    const int i = p % R::kHalf, start = p / R::kHalf * R::kUnit * R::kWidth;
    if (i == 0 || R::window(i) != R::window(i - 1)) {
      const int low = start + 8 * R::window(i);
      both = two_windows(v, low, low + R::kHalf * R::kWidth);
    }
    const int place = R::place(i), right = R::found(i) - place;
    pair[p] = and_or(right < 0 ? both << -right : both >> right, (kField << place) * 0x10001u, R::offset(p));
  }
}

} // namespace upstream_patch
