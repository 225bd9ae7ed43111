#pragma once

#include "mlx/array.h"

namespace mlx::core {
array contiguous_copy_gpu(const array& array, const Stream& s);
} // namespace mlx::core
