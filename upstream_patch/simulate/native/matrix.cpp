// What a warp computes together: shuffles and matrix products. Products are exact; the order of the sums is a choice,
// since no vendor states it.
#include "engine.h"

#include <math.h>
#include <string.h>

namespace lane_sim {

namespace {

// Mirrored in upstream_patch/simulate/api.py.
enum Sums { kAscending, kDescending, kPairwise, kExact, kTruncating };

float from_bits(uint32_t bits) {
  float v;
  memcpy(&v, &bits, 4);
  return v;
}

float from_half(uint32_t h) {
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

float element(Element type, uint32_t bits) {
  return type == Element::bf16 ? from_bits(bits << 16) : from_half(bits);
}

constexpr int kRows = 16, kColumns = 8;

template <int kDepth>
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

  // All terms cut to the last bit, two past a float's, of the greatest one; their sum cut to a float. What published
  // experiments find on recent matrix units.
  void truncating() {
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kColumns; ++j) {
        double terms[kDepth + 1], greatest = 0, plain = 0;
        for (int k = 0; k <= kDepth; ++k) {
          terms[k] = k == kDepth ? c[i][j] : static_cast<double>(a[i][k]) * b[k][j];
          greatest = fmax(greatest, fabs(terms[k]));
          plain += terms[k];
        }
        if (greatest == 0 || !isfinite(plain)) {
          c[i][j] = static_cast<float>(plain);
          continue;
        }
        const double unit = ldexp(1.0, ilogb(greatest) - 25);
        double sum = 0;
        for (double term : terms) {
          sum += trunc(term / unit) * unit;
        }
        const double last = sum == 0 ? 1.0 : ldexp(1.0, ilogb(sum) - 23);
        c[i][j] = static_cast<float>(trunc(sum / last) * last);
      }
    }
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

struct Operands {
  Element type;
  uint32_t a[4], b[2];
  float c[4];
};

// Lane 4g + t holds rows g and g + 8 and columns 2t and 2t + 1 of C.
template <typename TileType>
void move_c(TileType& tile, void* const (&slots)[kWarp], bool out) {
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    float* c = static_cast<Operands*>(slots[lane])->c;
    const unsigned g = lane / 4, t = lane % 4;
    for (unsigned i = 0; i < 4; ++i) {
      float& element = tile.c[g + i / 2 * 8][2 * t + i % 2];
      (out ? c[i] : element) = out ? element : c[i];
    }
  }
}

// A: two neighbours of row g + 8 (i % 2), columns from 2t + 8 (i / 2). B: two of column g, rows from 2t + 8 i.
void multiply_16x8x16(void* const (&slots)[kWarp], unsigned) {
  Tile<16> tile;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    const auto& in = *static_cast<const Operands*>(slots[lane]);
    const unsigned g = lane / 4, t = lane % 4;
    for (unsigned half = 0; half < 2; ++half) {
      for (unsigned i = 0; i < 4; ++i) {
        tile.a[g + i % 2 * 8][2 * t + i / 2 * 8 + half] = element(in.type, in.a[i] >> 16 * half & 0xFFFF);
      }
      for (unsigned i = 0; i < 2; ++i) {
        tile.b[2 * t + i * 8 + half][g] = element(in.type, in.b[i] >> 16 * half & 0xFFFF);
      }
    }
  }
  move_c(tile, slots, false);
  tile.multiply();
  move_c(tile, slots, true);
}

// A: row g + 8 (i % 2), column t + 4 (i / 2). B: row t + 4 i, column g. tf32 ignores the low 13 bits.
void multiply_16x8x8(void* const (&slots)[kWarp], unsigned) {
  Tile<8> tile;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    const auto& in = *static_cast<const Operands*>(slots[lane]);
    const unsigned g = lane / 4, t = lane % 4;
    for (unsigned i = 0; i < 4; ++i) {
      tile.a[g + i % 2 * 8][t + i / 2 * 4] = from_bits(in.a[i] & 0xFFFFE000);
    }
    for (unsigned i = 0; i < 2; ++i) {
      tile.b[t + i * 4][g] = from_bits(in.b[i] & 0xFFFFE000);
    }
  }
  move_c(tile, slots, false);
  tile.multiply();
  move_c(tile, slots, true);
}

// What a GPU leaves undefined where a warp has fewer lanes.
void need_whole_warp(const char* what, Site site) {
  const unsigned lanes = engine.lane_count - engine.current->warp * kWarp;
  if (lanes < kWarp) {
    fail("partial warp", site, "%s in a warp of %u lanes", what, lanes);
  }
}

Quad multiply(const char* what, Collective act, Element type, const uint32_t* a, const uint32_t* b, Quad c, Site site) {
  need_whole_warp(what, site);
  Operands mine = {type, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {c.v[0], c.v[1], c.v[2], c.v[3]}};
  warp_collective(what, act, &mine, site);
  return {{mine.c[0], mine.c[1], mine.c[2], mine.c[3]}};
}

struct Shuffle {
  uint32_t value, from, result;
};

void shuffle(void* const (&slots)[kWarp], unsigned) {
  for (unsigned i = 0; i < kWarp; ++i) {
    auto* mine = static_cast<Shuffle*>(slots[i]);
    mine->result = static_cast<const Shuffle*>(slots[mine->from % kWarp])->value;
  }
}

} // namespace

Quad mma_16x8x16(Element type, const uint32_t (&a)[4], const uint32_t (&b)[2], Quad c, Site site) {
  return multiply("mma 16x8x16", multiply_16x8x16, type, a, b, c, site);
}

Quad mma_16x8x8_tf32(const uint32_t (&a)[4], const uint32_t (&b)[2], Quad c, Site site) {
  return multiply("mma 16x8x8 tf32", multiply_16x8x8, Element::bf16, a, b, c, site);
}

uint32_t warp_shuffle(uint32_t value, unsigned from, Site site) {
  need_whole_warp("shuffle", site);
  Shuffle mine = {value, from, 0};
  warp_collective("shuffle", shuffle, &mine, site);
  return mine.result;
}

} // namespace lane_sim
