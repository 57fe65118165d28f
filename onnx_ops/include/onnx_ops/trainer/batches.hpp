// Checks of batches: onnx_ops/training/batches.py, batch_axis.py.
#pragma once

#include <algorithm>
#include <cctype>
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

/// The sizes factor * root + offset of a dimension, root being the size of another one.
struct Multiple {
  std::string root;
  std::int64_t factor = 1, offset = 0;
};

/// The sizes that the name of a dimension says, such as "2*pairs + 1"; none for one that is not in terms of another.
inline std::optional<Multiple> multiple_of(const std::string &dimension) {
  constexpr std::size_t most_digits = 9;
  const auto digits = [&](std::size_t from) {
    std::size_t end = from;
    while (end < dimension.size() && std::isdigit(static_cast<unsigned char>(dimension[end]))) ++end;
    return dimension.substr(from, end - from);
  };
  Multiple found;
  std::string rest = dimension;
  if (const std::string factor = digits(0); !factor.empty()) {
    if (factor.size() > most_digits || factor[0] == '0' || rest[factor.size()] != '*') return std::nullopt;
    found.factor = std::stoll(factor);
    rest = rest.substr(factor.size() + 1);
  }
  if (rest.size() > 3) {
    const std::size_t space = rest.find(' ');
    if (space != std::string::npos && (rest.compare(space, 3, " + ") == 0 || rest.compare(space, 3, " - ") == 0)) {
      const std::size_t begin = dimension.size() - rest.size() + space + 3;
      const std::string offset = digits(begin);
      if (offset.empty() || offset.size() > most_digits || begin + offset.size() != dimension.size()) return std::nullopt;
      found.offset = std::stoll(offset) * (rest[space + 1] == '-' ? -1 : 1);
      rest = rest.substr(0, space);
    }
  }
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  if (rest.empty() || rest == dimension || std::isdigit(static_cast<unsigned char>(rest[0]))) return std::nullopt;
  if (!std::all_of(rest.begin(), rest.end(), is_word)) return std::nullopt;
  found.root = rest;
  return found;
}

/// Checks batches against the inputs of a graph.
struct Batches {
  Named<TensorType> inputs;
  Named<Bounds> bounds;
  std::vector<IndexRange> ranges;
  Counted counted;

  Batches() = default;
  Batches(const Named<TensorType> &all, const Record &record, const Named<Bounds> &sizes, const Counted &samples) : bounds(sizes) {
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
          const auto enter = [&, &name = name](const std::string &own, std::int64_t given) {
            const auto &[known, other] = sizes.emplace(own, std::pair(given, name)).first->second;
            if (known != given) refuse(" with " + own + " = " + std::to_string(known) + " as in '" + other + "'");
          };
          enter(dimension.name, size);
          if (const auto multiple = multiple_of(dimension.name)) {
            const std::int64_t more = size - multiple->offset;
            if (more < 0 || more % multiple->factor != 0) refuse(" for a number " + multiple->root);
            enter(multiple->root, more / multiple->factor);
          }
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
