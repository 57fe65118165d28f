// The types of inputs and outputs: element types, and shapes whose sizes may be unknown.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensors.hpp"

namespace onnx_ops {

/// A dimension of an input: its size, or its name, which is empty for an unknown one.
struct Dimension {
  std::int64_t size = -1;
  std::string name;

  bool operator==(const Dimension &other) const { return size == other.size && name == other.name; }
  std::string text() const { return size >= 0 ? std::to_string(size) : name.empty() ? "?" : name; }
};

/// The type of an input or output; without `shape` its rank is unknown.
struct TensorType {
  ElementType type = ElementType::undefined;
  std::optional<std::vector<Dimension>> shape;

  bool operator==(const TensorType &other) const { return type == other.type && shape == other.shape; }

  /// Such as "float32 (N, 3)".
  std::string text() const {
    const detail::TypeRow *row = detail::find_row(type);
    const std::string name = row ? row->name : "element type " + std::to_string(static_cast<int>(type));
    if (!shape) return name + " of unknown shape";
    return name + " " + detail::shape_text(*shape, [](const Dimension &dimension) { return dimension.text(); });
  }

  /// Whether a shape is this one, which has sizes alone.
  bool is(ElementType other, const Shape &sizes) const {
    if (other != type || !shape || shape->size() != sizes.size()) return false;
    return std::equal(sizes.begin(), sizes.end(), shape->begin(), [](auto size, auto &own) { return size == own.size; });
  }
};

}  // namespace onnx_ops
