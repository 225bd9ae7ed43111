// Stands in for {fmt} where its headers are not installed: MLX's headers and our host code name only fmt::format, with
// "{}" and values that a stream prints.
#pragma once

#include <sstream>
#include <string>
#include <string_view>

namespace fmt {

template <typename... Args>
std::string format(std::string_view text, const Args&... args) {
  std::ostringstream out;
  const auto put = [&](const auto& value) {
    const auto at = text.find("{}");
    out << text.substr(0, at) << value;
    text.remove_prefix(at == text.npos ? text.size() : at + 2);
  };
  (put(args), ...);
  out << text;
  return out.str();
}

} // namespace fmt
