// Stands in for a header that overloads members by the address space of `this`, which no CPU compiler knows. The
// matmul kernels name the type and compute nothing with it.
#pragma once

template <typename T>
struct complex_t {
  T real, imag;
  constexpr complex_t(T re, T im = 0) : real(re), imag(im) {}
};
using complex64_t = complex_t<float>;
