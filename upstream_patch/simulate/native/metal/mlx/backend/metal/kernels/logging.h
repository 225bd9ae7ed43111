// Stands in for a header that logs from the GPU; the matmul kernels do not.
#pragma once
