// As much of an MLX array as the series' Metal host code uses: a label, and no
// data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mlx::core {

struct Dtype {
  int number;
  bool operator==(const Dtype& other) const {
    return number == other.number;
  }
};
inline constexpr Dtype float16{0}, bfloat16{1}, float32{2};
using Shape = std::vector<int>;
using Strides = std::vector<int64_t>;
struct Stream {};

namespace allocator {
struct Buffer {};
Buffer malloc(size_t bytes);
} // namespace allocator

class array {
 public:
  array(Shape shape, Dtype dtype, std::nullptr_t, std::vector<array>)
      : array("new", std::move(shape), dtype) {}
  array(
      std::string label,
      Shape shape,
      Dtype dtype,
      Strides strides = {},
      int64_t offset = 0)
      : label(std::move(label)),
        shape_(std::move(shape)),
        dtype_(dtype),
        strides_(std::move(strides)),
        offset_(offset) {}

  const Shape& shape() const {
    return shape_;
  }
  size_t ndim() const {
    return shape_.size();
  }
  const Strides& strides() const {
    return strides_;
  }
  int64_t offset() const {
    return offset_;
  }
  Dtype dtype() const {
    return dtype_;
  }
  size_t itemsize() const {
    return dtype_ == float32 ? 4 : 2;
  }
  size_t size() const {
    size_t found = 1;
    for (int each : shape_) {
      found *= each;
    }
    return found;
  }
  size_t nbytes() const {
    return size() * itemsize();
  }
  void set_data(allocator::Buffer) {}

  std::string label;

 private:
  Shape shape_;
  Dtype dtype_;
  Strides strides_;
  int64_t offset_;
};

} // namespace mlx::core
