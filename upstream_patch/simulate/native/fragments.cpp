// Matrix products of Metal's simdgroups. Where a lane's elements lie follows what MLX's kernels assume of the hardware:
// a product shows that a kernel is consistent with that map, not that the hardware has it.
#include "tile.h"

namespace lane_sim {

namespace {

struct Place {
  unsigned row, column;
};

// Of element i of a lane in a block of 8 x 8: two neighbours in a row.
Place in_8x8(unsigned lane, unsigned i) {
  const unsigned quad = lane / 4;
  return {(quad & 4) + lane / 2 % 4, (quad & 2) * 2 + lane % 2 * 2 + i};
}

// In a stack of blocks of 16 x 16: four neighbours in a row, and four more eight rows below; block i / 8 lies to the
// right, or below where the stack is higher than wide.
Place in_16x16(unsigned lane, unsigned i, bool upright) {
  const unsigned quad = lane / 4, block = i / 8;
  const unsigned row = (quad & 4) + lane / 2 % 4 + i / 4 % 2 * 8, column = ((quad & 2) + lane % 2) * 4 + i % 4;
  return upright ? Place{row + 16 * block, column} : Place{row, column + 16 * block};
}

struct Product {
  Fragment a, b;
  bool a_transposed, b_transposed;
  float* c;
};

float value(const Fragment& fragment, unsigned i) {
  const char* at = static_cast<const char*>(fragment.elements);
  if (fragment.type == Element::f32) {
    float wide;
    memcpy(&wide, at + 4 * i, 4);
    return wide;
  }
  uint16_t bits;
  memcpy(&bits, at + 2 * i, 2);
  return element(fragment.type, bits);
}

void act_8x8x8(void* const (&slots)[kWarp], unsigned) {
  Tile<8, 8, 8> tile;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    const auto& in = *static_cast<const Product*>(slots[lane]);
    for (unsigned i = 0; i < 2; ++i) {
      const Place at = in_8x8(lane, i);
      tile.a[at.row][at.column] = value(in.a, i);
      tile.b[at.row][at.column] = value(in.b, i);
      tile.c[at.row][at.column] = in.c[i];
    }
  }
  tile.multiply();
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    for (unsigned i = 0; i < 2; ++i) {
      const Place at = in_8x8(lane, i);
      static_cast<const Product*>(slots[lane])->c[i] = tile.c[at.row][at.column];
    }
  }
}

void act_16x32x16(void* const (&slots)[kWarp], unsigned) {
  Tile<16, 32, 16> tile;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    const auto& in = *static_cast<const Product*>(slots[lane]);
    for (unsigned i = 0; i < 8; ++i) {
      const Place at = in_16x16(lane, i, false);
      (in.a_transposed ? tile.a[at.column][at.row] : tile.a[at.row][at.column]) = value(in.a, i);
    }
    for (unsigned i = 0; i < 16; ++i) {
      const Place at = in_16x16(lane, i, in.b_transposed), to = in_16x16(lane, i, false);
      (in.b_transposed ? tile.b[at.column][at.row] : tile.b[at.row][at.column]) = value(in.b, i);
      tile.c[to.row][to.column] = in.c[i];
    }
  }
  tile.multiply();
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    for (unsigned i = 0; i < 16; ++i) {
      const Place at = in_16x16(lane, i, false);
      static_cast<const Product*>(slots[lane])->c[i] = tile.c[at.row][at.column];
    }
  }
}

void multiply(const char* what, Collective act, Product mine, unsigned a_count, unsigned b_count, Site site) {
  need_whole_warp(what, site);
  if (mine.a.count != a_count || mine.b.count != b_count) {
    fail("fragment", site, "%s takes %u and %u elements of a lane, not %u and %u", what, a_count, b_count, mine.a.count,
         mine.b.count);
  }
  warp_collective(what, act, &mine, site);
}

} // namespace

void multiply_8x8x8(Fragment a, Fragment b, float* c, Site site) {
  multiply("simdgroup_multiply_accumulate", act_8x8x8, {a, b, false, false, c}, 2, 2, site);
}

void multiply_16x32x16(Fragment a, bool a_transposed, Fragment b, bool b_transposed, float* c, Site site) {
  multiply("matmul2d", act_16x32x16, {a, b, a_transposed, b_transposed, c}, 8, 16, site);
}

} // namespace lane_sim
