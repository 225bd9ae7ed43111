// What a CUDA warp computes together: shuffles and matrix products.
#include "tile.h"

namespace lane_sim {

namespace {

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
  Tile<16, 8, 16> tile;
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
  Tile<16, 8, 8> tile;
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

Quad multiply(const char* what, Collective act, Element type, const uint32_t* a, const uint32_t* b, Quad c, Site site) {
  need_whole_warp(what, site);
  Operands mine = {type, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {c.v[0], c.v[1], c.v[2], c.v[3]}};
  warp_collective(what, act, &mine, site);
  return {{mine.c[0], mine.c[1], mine.c[2], mine.c[3]}};
}

struct Values {
  uint32_t mine;
  uint32_t* all;
};

void exchange(void* const (&slots)[kWarp], unsigned) {
  for (void* slot : slots) {
    for (unsigned i = 0; i < kWarp; ++i) {
      static_cast<const Values*>(slot)->all[i] = static_cast<const Values*>(slots[i])->mine;
    }
  }
}

} // namespace

void need_whole_warp(const char* what, Site site) {
  const unsigned lanes = engine.lane_count - engine.current->warp * kWarp;
  if (lanes < kWarp) {
    fail("partial warp", site, "%s in a warp of %u lanes", what, lanes);
  }
}

void need_mask(const char* what, uint32_t mask, Site site) {
  need_whole_warp(what, site);
  if (mask != 0xFFFFFFFF) {
    fail("warp mask", site, "%s with mask %#x: the simulator knows whole warps only", what, mask);
  }
}

Quad mma_16x8x16(Element type, const uint32_t (&a)[4], const uint32_t (&b)[2], Quad c, Site site) {
  return multiply("mma 16x8x16", multiply_16x8x16, type, a, b, c, site);
}

Quad mma_16x8x8_tf32(const uint32_t (&a)[4], const uint32_t (&b)[2], Quad c, Site site) {
  return multiply("mma 16x8x8 tf32", multiply_16x8x8, Element::bf16, a, b, c, site);
}

void warp_values(const char* what, uint32_t value, uint32_t (&all)[kWarp], Site site) {
  need_whole_warp(what, site);
  Values mine = {value, all};
  warp_collective(what, exchange, &mine, site);
}

uint32_t warp_shuffle(const char* what, uint32_t value, unsigned from, Site site) {
  if (from >= kWarp) {
    fail("shuffle source", site, "%s from lane %d of a warp of %u", what, static_cast<int>(from), kWarp);
  }
  uint32_t all[kWarp];
  warp_values(what, value, all, site);
  return all[from];
}

} // namespace lane_sim
