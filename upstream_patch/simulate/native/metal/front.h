// The Metal Shading Language as a CPU compiler takes it. What is not here does not compile, and the error names it.
#pragma once

#include "types.h"

#include "simdgroup.h"

#include "launch.h"
