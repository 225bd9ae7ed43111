// A matrix product of one warp, once its operands are gathered: exact products, and the order of the sums is a choice,
// since no vendor states it.
#pragma once

#include "engine.h"

#include <math.h>
#include <string.h>

namespace lane_sim {

// Mirrored in upstream_patch/simulate/api.py.
enum Sums { kAscending, kDescending, kPairwise, kExact, kTruncating };

inline float from_bits(uint32_t bits) {
  float v;
  memcpy(&v, &bits, 4);
  return v;
}

inline float from_half(uint32_t h) {
  const uint32_t sign = (h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3FF;
  if (exponent == 31) {
    return from_bits(sign | 0x7F800000 | fraction << 13);
  }
  if (exponent != 0) {
    return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
  }
  const float small = static_cast<float>(fraction) * 0x1p-24f;
  return sign != 0 ? -small : small;
}

inline float element(Element type, uint32_t bits) {
  switch (type) {
    case Element::bf16:
      return from_bits(bits << 16);
    case Element::f16:
      return from_half(bits);
    default:
      return from_bits(bits);
  }
}

template <int kRows, int kColumns, int kDepth>
struct Tile {
  float a[kRows][kDepth], b[kDepth][kColumns], c[kRows][kColumns];

  // One step of the sum for a whole tile: the compiler turns the inner loop into vector code.
  void step(int k) {
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kColumns; ++j) {
        c[i][j] += a[i][k] * b[k][j];
      }
    }
  }

  void pairwise() {
    for (int i = 0; i < kRows; ++i) {
      float terms[kDepth][kColumns];
      for (int k = 0; k < kDepth; ++k) {
        for (int j = 0; j < kColumns; ++j) {
          terms[k][j] = a[i][k] * b[k][j];
        }
      }
      for (int width = kDepth / 2; width > 0; width /= 2) {
        for (int k = 0; k < width; ++k) {
          for (int j = 0; j < kColumns; ++j) {
            terms[k][j] += terms[k + width][j];
          }
        }
      }
      for (int j = 0; j < kColumns; ++j) {
        c[i][j] += terms[0][j];
      }
    }
  }

  // In fp64, rounded once.
  void exact() {
    for (int i = 0; i < kRows; ++i) {
      double sums[kColumns];
      for (int j = 0; j < kColumns; ++j) {
        sums[j] = c[i][j];
      }
      for (int k = 0; k < kDepth; ++k) {
        for (int j = 0; j < kColumns; ++j) {
          sums[j] += static_cast<double>(a[i][k]) * b[k][j];
        }
      }
      for (int j = 0; j < kColumns; ++j) {
        c[i][j] = static_cast<float>(sums[j]);
      }
    }
  }

  // As an H200's matrix unit does, by the outputs that records hold: every term cut to the last bit, two past a float's,
  // of the term with the greatest exponent, and their sum cut to a float. A product's exponent is the sum of its
  // factors', though the product itself may have carried into the next one.
  void truncating() {
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kColumns; ++j) {
        double terms[kDepth + 1], greatest = leading(c[i][j]), plain = c[i][j];
        terms[kDepth] = c[i][j];
        for (int k = 0; k < kDepth; ++k) {
          terms[k] = static_cast<double>(a[i][k]) * b[k][j];
          greatest = fmax(greatest, leading(a[i][k]) * leading(b[k][j]));
          plain += terms[k];
        }
        if (greatest == 0 || !isfinite(plain)) {
          c[i][j] = static_cast<float>(plain);
          continue;
        }
        const double unit = greatest * 0x1p-25, per_unit = 1 / unit; // powers of two, so exact
        double sum = 0;
        for (double term : terms) {
          sum += trunc(term * per_unit);
        }
        sum *= unit;
        const double last = sum == 0 ? 1.0 : leading(sum) * 0x1p-23;
        c[i][j] = static_cast<float>(trunc(sum / last) * last);
      }
    }
  }

  // The value of the highest bit that is set: 0 for 0, Inf for Inf and NaN. No float, nor a product of two, is subnormal
  // in fp64.
  static double leading(double x) {
    uint64_t bits;
    memcpy(&bits, &x, 8);
    bits &= 0x7FF0000000000000;
    memcpy(&x, &bits, 8);
    return x;
  }

  void multiply() {
    switch (engine.config.sums) {
      case kAscending:
        for (int k = 0; k < kDepth; ++k) {
          step(k);
        }
        break;
      case kDescending:
        for (int k = kDepth; k-- > 0;) {
          step(k);
        }
        break;
      case kPairwise:
        return pairwise();
      case kTruncating:
        return truncating();
      default:
        return exact();
    }
  }
};

} // namespace lane_sim
