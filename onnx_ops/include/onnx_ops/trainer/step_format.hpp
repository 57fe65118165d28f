// The names in step files and checkpoints, and the version of their format: onnx_ops/core/step_format.py.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <string>

#include "json.hpp"

namespace onnx_ops::detail {

constexpr const char *FORMAT = "2.0", *UNCONDITIONAL = "1.1", *UNVERSIONED = "1.0";
constexpr const char *STEP_METADATA = "onnx_ops.step", *WEIGHTS_METADATA = "onnx_ops.weights";
constexpr const char *FORMAT_METADATA = "onnx_ops.format", *CHECKSUM_METADATA = "onnx_ops.sha256";
constexpr const char *CARRIED_DOMAIN = "onnx_ops.training", *INFERENCE = "inference", *EVALUATION = "evaluation";
constexpr const char *PARAMETER = "parameter", *BUFFER = "buffer", *OPTIMIZER = "optimizer", *SEED = "seed",
                     *SETTING = "setting";
constexpr const char *LEARNING_RATE = "learning_rate", *GRAD_SCALE = "grad_scaler.scale", *AVERAGED = "averaged.";
constexpr const char *IN_PLACE = "in_place", *ACCUMULATION = "accumulation", *COUNTERS = "counters", *UPDATE = "update";
constexpr const char *PREPARED_METADATA = "onnx_ops.prepared", *CHECK_FINITE = "onnx_ops.check_finite";
constexpr const char *CONDITIONS = "condition.holds", *CONDITION_NUMBERS = "condition.numbers";
constexpr const char *NEXT = "next.", *GRADIENT = "grad.";

inline std::string next_name(const std::string &name) { return NEXT + name; }
inline bool is_shared(const std::string &role) { return role == PARAMETER || role == BUFFER; }
inline bool is_rate(const std::string &name) {
  return name == LEARNING_RATE || starts_with(name, std::string(LEARNING_RATE) + ".");
}

/// Throws a ValueError for the version in a file if it is invalid or its major version is newer; null for one without.
inline void check_format(const Json *version) {
  const std::string found = version == nullptr ? UNVERSIONED : version->text;
  const std::size_t point = found.find('.');
  const auto digits = [](const std::string &text) {
    return !text.empty() && text.size() <= 9 && text.find_first_not_of("0123456789") == std::string::npos;
  };
  const bool valid = (version == nullptr || version->is(Json::Kind::text)) && point != std::string::npos && found[0] != '0' &&
                     digits(found.substr(0, point)) && digits(found.substr(point + 1));
  if (!valid) {
    throw ValueError("its format version is " + json_text(*version) + ", expected a string such as \"" + FORMAT + "\"");
  }
  if (std::atoi(found.c_str()) > std::atoi(FORMAT)) {
    throw ValueError("its format version is " + found + ", expected at most " + FORMAT + ": update onnx_ops");
  }
}

}  // namespace onnx_ops::detail
