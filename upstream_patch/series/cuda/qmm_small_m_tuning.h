// How qmm_small_m is cut for each device.

#pragma once

namespace mlx::core::small_m {

inline constexpr int kTile = 16; // columns
inline constexpr int kSlice = 256; // of K, that a warp holds of x
inline constexpr int kBlockRows = 16; // of x, at most, to a block
inline constexpr int kMaxRows = 32; // of x
inline constexpr int kMaxBatch = 65535; // of weights
inline constexpr int kMaxColumns = 1073741824; // of weights
inline constexpr int kReservedShared = 1024; // by CUDA, for each block

struct Format {
  int bits;
  int group_size;
  bool affine;
};

inline constexpr Format kFormats[] = {
    {2, 32, true}, // affine
    {2, 64, true}, // affine
    {2, 128, true}, // affine
    {3, 32, true}, // affine
    {3, 64, true}, // affine
    {3, 128, true}, // affine
    {4, 32, true}, // affine
    {4, 64, true}, // affine
    {4, 128, true}, // affine
    {5, 32, true}, // affine
    {5, 64, true}, // affine
    {5, 128, true}, // affine
    {6, 32, true}, // affine
    {6, 64, true}, // affine
    {6, 128, true}, // affine
    {8, 32, true}, // affine
    {8, 64, true}, // affine
    {8, 128, true}, // affine
    {4, 32, false}, // mxfp4
    {4, 16, false}, // nvfp4
    {8, 32, false}, // mxfp8
};

// Stages of a warp's ring, tiles that wait for one reduction, and how many
// tiles a block must have for it.
struct Pick {
  int stages;
  int tiles;
  int least;
};

inline constexpr int kMaxPicks = 3;

// Picks are sorted, the best first; no stages end them. The first list is for
// blocks of 8 rows, the second for 16. Those of |narrow| come first, for
// weights of 2 and 3 bits.
struct DeviceClass {
  int major;
  int minor;
  int shared_per_block;
  int shared_per_multiprocessor;
  Pick picks[2][kMaxPicks];
  Pick narrow[2][kMaxPicks];
};

inline constexpr DeviceClass kDevices[] = {
    {8,
     0,
     166912,
     167936,
     {{{3, 2, 1}, {2, 2, 1}}, {{2, 2, 1}, {2, 1, 1}}},
     {{}, {}}},
    {8,
     6,
     101376,
     102400,
     {{{2, 2, 1}, {2, 1, 1}}, {{2, 2, 1}, {2, 1, 1}}},
     {{}, {}}},
    {8,
     7,
     166912,
     167936,
     {{{3, 2, 1}, {2, 2, 1}}, {{2, 2, 1}, {2, 1, 1}}},
     {{}, {}}},
    {8,
     9,
     101376,
     102400,
     {{{2, 2, 1}, {2, 1, 1}}, {{2, 2, 1}, {2, 1, 1}}},
     {{}, {}}},
    {9,
     0,
     232448,
     233472,
     {{{3, 4, 12}, {2, 4, 3}, {2, 2, 1}}, {{2, 4, 1}, {2, 2, 1}}},
     {{{2, 8, 4}}, {}}},
    {10,
     0,
     232448,
     233472,
     {{{3, 4, 12}, {2, 4, 3}, {2, 2, 1}}, {{2, 4, 1}, {2, 2, 1}}},
     {{{2, 8, 4}}, {}}},
    {10,
     3,
     232448,
     233472,
     {{{3, 4, 12}, {2, 4, 3}, {2, 2, 1}}, {{2, 4, 1}, {2, 2, 1}}},
     {{{2, 8, 4}}, {}}},
    {11,
     0,
     232448,
     233472,
     {{{3, 4, 12}, {2, 4, 3}, {2, 2, 1}}, {{2, 4, 1}, {2, 2, 1}}},
     {{{2, 8, 4}}, {}}},
    {12,
     0,
     101376,
     102400,
     {{{2, 2, 1}, {2, 1, 1}}, {{2, 2, 1}, {2, 1, 1}}},
     {{}, {}}},
    {12,
     1,
     101376,
     102400,
     {{{2, 2, 1}, {2, 1, 1}}, {{2, 2, 1}, {2, 1, 1}}},
     {{}, {}}},
};

} // namespace mlx::core::small_m
