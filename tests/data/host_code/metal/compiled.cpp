#include "surroundings.h"

namespace mlx::core {
#include "calls.inc"
} // namespace mlx::core
