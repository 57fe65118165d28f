// The conditions on numbers that a step reads from tensors: onnx_ops/training/conditions.py.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "step_format.hpp"
#include "tensors.hpp"

namespace onnx_ops::detail {

/// A condition on numbers of the batch and the state.
struct Condition {
  struct Number {
    std::int64_t place = 0;
    std::string kind, captured;

    std::string text(double number) const {
      if (!std::isfinite(number) || kind == "float") return float_text(number);
      if (kind == "bool") return number != 0 ? "True" : "False";
      char digits[400];
      std::snprintf(digits, sizeof digits, "%.0f", std::trunc(number) + 0.0);
      return digits;
    }
  };

  std::string line, code, expected;
  std::vector<Number> numbers;

  std::string problem(const double *values) const {
    std::vector<std::string> known;
    for (const Number &number : numbers) {
      if (!number.captured.empty()) known.push_back(number.captured);
    }
    const auto own = [](const std::string &text) { return text; };
    const std::string came = joined(numbers, [&](auto &number) { return number.text(values[number.place]); });
    const std::string captured = joined(known, own);
    return line + (code.empty() ? "" : " (" + code + ")") + " reads " + came + " from tensors" +
           (captured.empty() ? "" : ", and read " + captured + " in the example of the capture") + ". The step is valid only for " +
           (expected.empty() ? captured : expected) + ", and the state is as before";
  }
};

/// The outputs without those of the conditions; StepError if one is violated.
inline Tensors checked_conditions(const std::vector<Condition> &conditions, const Tensors &found) {
  const Tensor *holds = found.find(CONDITIONS), *numbers = found.find(CONDITION_NUMBERS);
  if (holds == nullptr || numbers == nullptr) return found;
  for (std::size_t i = 0; i < conditions.size(); ++i) {
    if (!holds->data<std::uint8_t>()[i]) throw StepError(conditions[i].problem(numbers->data<double>()));
  }
  Tensors others;
  for (const auto &[name, tensor] : found) {
    if (name != CONDITIONS && name != CONDITION_NUMBERS) others.set(name, tensor);
  }
  return others;
}

}  // namespace onnx_ops::detail
