// The sizes and indices that a step is valid for: onnx_ops/training/ranges.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensors.hpp"
#include "text.hpp"

namespace onnx_ops::detail {

struct Bounds {
  std::int64_t min = 0;
  std::optional<std::int64_t> max;
  std::optional<std::int64_t> worker_min;  // the least size where batch norm has other statistics than those of the batch

  Bounds of_other_statistics() const { return {worker_min.value_or(min), max, std::nullopt}; }
  bool hold(std::int64_t size) const { return min <= size && (!max || size <= *max); }
  std::string text() const {
    return max ? "from " + std::to_string(min) + " to " + std::to_string(*max) : ">= " + std::to_string(min);
  }
};

/// The indices that are valid in an input: low <= index < high, or `ignored`.
struct IndexRange {
  std::string input;
  std::int64_t low = 0, high = 0;
  std::optional<std::int64_t> ignored;
  std::vector<std::vector<std::int64_t>> cuts;  // each is (axis, start, stop, step), or (axis, index)

  bool fits(std::size_t rank) const {
    for (const auto &cut : cuts) {
      if (cut[0] < 0 || static_cast<std::size_t>(cut[0]) >= rank || (cut.size() == 4 && cut[3] == 0)) return false;
      rank -= cut.size() == 2;
    }
    return true;
  }

  /// Throws a StepError for the first element that is out of range.
  void check(const Tensor &tensor) const {
    struct Axis {
      std::int64_t size, stride;
    };
    std::vector<Axis> axes;
    std::int64_t stride = 1, first = 0;
    for (std::size_t axis = tensor.shape().size(); axis-- > 0; stride *= tensor.shape()[axis]) axes.insert(axes.begin(), {tensor.shape()[axis], stride});
    for (const auto &cut : cuts) {
      const auto place = axes.begin() + cut[0];
      const std::int64_t size = place->size;
      if (cut.size() == 2) {
        if (cut[1] < -size || cut[1] >= size) return;
        first += place->stride * (cut[1] < 0 ? cut[1] + size : cut[1]);
        axes.erase(place);
        continue;
      }
      const std::int64_t step = cut[3], least = step > 0 ? 0 : -1, most = step > 0 ? size : size - 1;
      const auto within = [&](std::int64_t bound) { return std::clamp(bound < 0 ? bound + size : bound, least, most); };
      const std::int64_t begin = within(cut[1]), span = step > 0 ? within(cut[2]) - begin : begin - within(cut[2]);
      const std::uint64_t stepped = step > 0 ? static_cast<std::uint64_t>(step) : 0 - static_cast<std::uint64_t>(step);
      first += place->stride * begin;
      place->size = span <= 0 ? 0 : 1 + static_cast<std::int64_t>(static_cast<std::uint64_t>(span - 1) / stepped);
      if (place->size > 1) place->stride *= step;  // else it may overflow
    }
    walk(tensor, axes.data(), axes.data() + axes.size(), first);
  }

 private:
  template <class Axis>
  void walk(const Tensor &tensor, const Axis *axis, const Axis *end, std::int64_t place) const {
    if (axis == end) return check_element(tensor, place);
    for (std::int64_t i = 0; i < axis->size; ++i) walk(tensor, axis + 1, end, place + i * axis->stride);
  }

  void check_element(const Tensor &tensor, std::int64_t place) const {
    std::int64_t index = 0;
    bool huge = false;  // beyond int64
    switch (tensor.type()) {
      case ElementType::int8: index = tensor.data<std::int8_t>()[place]; break;
      case ElementType::int16: index = tensor.data<std::int16_t>()[place]; break;
      case ElementType::int32: index = tensor.data<std::int32_t>()[place]; break;
      case ElementType::int64: index = tensor.data<std::int64_t>()[place]; break;
      case ElementType::uint8: index = tensor.data<std::uint8_t>()[place]; break;
      case ElementType::uint16: index = tensor.data<std::uint16_t>()[place]; break;
      case ElementType::uint32: index = tensor.data<std::uint32_t>()[place]; break;
      default:
        index = static_cast<std::int64_t>(tensor.data<std::uint64_t>()[place]);
        huge = index < 0;
    }
    if (!huge && ((low <= index && index < high) || (ignored && index == *ignored))) return;
    std::string at;
    for (std::size_t axis = tensor.shape().size(); axis-- > 0; place /= tensor.shape()[axis]) {
      at = std::to_string(place % tensor.shape()[axis]) + (at.empty() ? "" : ", ") + at;
    }
    const std::string number = huge ? std::to_string(static_cast<std::uint64_t>(index)) : std::to_string(index);
    throw StepError(quoted(input) + (tensor.shape().empty() ? "" : "[" + at + "]") + " is " + number + ", expected an index of " +
                    std::to_string(low) + " to " + std::to_string(high - 1) +
                    (ignored ? ", or " + std::to_string(*ignored) + ", which is ignored" : ""));
  }
};

}  // namespace onnx_ops::detail
