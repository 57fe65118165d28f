// Checks of batches: onnx_ops/training/batches.py, batch_axis.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checks.hpp"
#include "step_record.hpp"

namespace onnx_ops::detail {

using Counted = std::optional<std::pair<std::string, std::size_t>>;

/// The input, and its axis, whose size is the number of samples, none if the step fixes that number. StepError
/// for a name that no dimension has, and for several candidates without a name.
inline Counted counted_axis(const Named<TensorType> &inputs, const std::string &batch_dimension) {
  Named<std::string> names;
  Counted named, unknown;
  for (const auto &[name, type] : inputs) {
    for (std::size_t axis = 0; type.shape && !batch_dimension.empty() && axis < type.shape->size(); ++axis) {
      if ((*type.shape)[axis].name == batch_dimension) return std::pair(name, axis);
    }
    if (type.shape && type.shape->empty()) continue;
    const Dimension first = type.shape ? type.shape->front() : Dimension();
    if (first.size >= 0) continue;
    if (!first.name.empty()) names.set(first.name, name);
    Counted &found = first.name.empty() ? unknown : named;
    if (!found) found = {name, 0};
  }
  if (!batch_dimension.empty()) throw StepError("no input has a dimension named '" + batch_dimension + "'");
  if (names.size() > 1) {
    throw StepError("the first dimensions of the inputs have different names, " +
                    joined(names, [](auto &entry) { return quoted(entry.first) + " of '" + entry.second + "'"; }) + ": name the batch dimension");
  }
  return named ? named : unknown;
}

/// Checks batches against the inputs of a graph.
struct Batches {
  Named<TensorType> inputs;
  Named<Bounds> bounds;
  std::vector<IndexRange> ranges;
  Counted counted;

  Batches() = default;
  Batches(const Named<TensorType> &all, const Record &record, const Counted &samples) : bounds(record.bounds) {
    for (const auto &[name, type] : all) {
      if (!record.roles.has(name)) inputs.set(name, type);
    }
    for (const IndexRange &range : record.ranges) {
      if (inputs.has(range.input)) ranges.push_back(range);
    }
    if (samples && inputs.has(samples->first)) counted = samples;
  }

  void check(const Tensors &batch) const {
    check_names("the batch", inputs, batch);
    std::unordered_map<std::string, std::pair<std::int64_t, std::string>> sizes;
    for (const auto &[name, wanted] : inputs) {
      const Tensor &tensor = batch.at(name);
      const auto refuse = [&, &name = name, &wanted = wanted](const std::string &more = "") {
        throw StepError(quoted(name) + " is " + tensor.text() + ", expected " + wanted.text() + more);
      };
      if (tensor.type() != wanted.type) refuse();
      if (!wanted.shape) continue;
      if (tensor.shape().size() != wanted.shape->size()) refuse();
      for (std::size_t axis = 0; axis < wanted.shape->size(); ++axis) {
        const Dimension &dimension = (*wanted.shape)[axis];
        const std::int64_t size = tensor.shape()[axis];
        if (!dimension.name.empty()) {
          const auto &[known, other] = sizes.emplace(dimension.name, std::pair(size, name)).first->second;
          if (known != size) refuse(" with " + dimension.name + " = " + std::to_string(known) + " as in '" + other + "'");
        } else if (dimension.size >= 0 && dimension.size != size) {
          refuse();
        }
      }
    }
    if (counted) {
      const Tensor &tensor = batch.at(counted->first);
      if (tensor.shape().at(counted->second) == 0) {
        throw StepError("the batch has no samples: '" + counted->first + "' is " + tensor.text() + "; expected at least 1");
      }
    }
    for (const auto &[dimension, own] : bounds) {
      const auto found = sizes.find(dimension);
      if (found == sizes.end() || own.hold(found->second.first)) continue;
      const std::string &name = found->second.second;
      throw StepError(quoted(name) + " is " + batch.at(name).text() + ", expected " + inputs.at(name).text() + " with " + dimension + " " + own.text());
    }
    for (const IndexRange &range : ranges) range.check(batch.at(range.input));
  }
};

}  // namespace onnx_ops::detail
