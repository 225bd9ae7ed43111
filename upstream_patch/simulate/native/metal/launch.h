// The call of a Metal kernel: what each of its parameters is, the lowering has read from their attributes.
#pragma once

#include "types.h"

namespace lane_sim {

// Of a parameter: the number of its buffer, or one of these.
enum BuiltIn : int {
  threadgroup_position_in_grid = -1,
  thread_position_in_grid = -2,
  thread_position_in_threadgroup = -3,
  thread_index_in_threadgroup = -4,
  simdgroup_index_in_threadgroup = -5,
  thread_index_in_simdgroup = -6,
  quadgroup_index_in_threadgroup = -7,
  thread_index_in_quadgroup = -8,
};

inline Dim3 built_in(int which) {
  const Dim3 thread_at = thread_index(), group = block_index(), size = block_size();
  const unsigned number = (thread_at.z * size.y + thread_at.y) * size.x + thread_at.x;
  switch (which) {
    case threadgroup_position_in_grid:
      return group;
    case thread_position_in_grid:
      return {group.x * size.x + thread_at.x, group.y * size.y + thread_at.y, group.z * size.z + thread_at.z};
    case thread_position_in_threadgroup:
      return thread_at;
    case thread_index_in_threadgroup:
      return {number, 0, 0};
    case simdgroup_index_in_threadgroup:
      return {number / kWarp, 0, 0};
    case thread_index_in_simdgroup:
      return {number % kWarp, 0, 0};
    case quadgroup_index_in_threadgroup:
      return {number / 4, 0, 0};
    default:
      return {number % 4, 0, 0};
  }
}

template <typename T, int kCount>
constexpr bool is_vector_of =
    std::is_same_v<T, metal::vec<ushort, kCount>> || std::is_same_v<T, metal::vec<uint, kCount>>;

template <typename T>
T parameter(int kind, void* const* arguments) {
  if constexpr (std::is_pointer_v<T>) {
    return (T)*static_cast<void* const*>(arguments[kind]);
  } else if constexpr (std::is_reference_v<T>) {
    return *(std::remove_reference_t<T>*)arguments[kind];
  } else {
    const Dim3 v = built_in(kind);
    if constexpr (std::is_same_v<T, ushort> || std::is_same_v<T, uint>) {
      return static_cast<T>(v.x);
    } else if constexpr (is_vector_of<T, 2>) {
      return metal::lane_sim_vector<T>(v.x, v.y);
    } else {
      static_assert(is_vector_of<T, 3>, "a built-in value is a ushort or uint, or two or three of them");
      return metal::lane_sim_vector<T>(v.x, v.y, v.z);
    }
  }
}

template <typename T, T... kNumbers>
struct Numbers {};

template <typename... A, unsigned... I>
void call_with(void (*kernel)(A...), const int (&kinds)[sizeof...(A)], void* const* arguments, Numbers<unsigned, I...>) {
  kernel(parameter<A>(kinds[I], arguments)...);
}
template <typename... A>
void call(void (*kernel)(A...), const int (&kinds)[sizeof...(A)], void* const* arguments) {
  call_with(kernel, kinds, arguments, __make_integer_seq<Numbers, unsigned, sizeof...(A)>{});
}

} // namespace lane_sim
