// Checks of the names of tensors, of the state, of losses and of learning rates.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "sources.hpp"
#include "tensor_types.hpp"
#include "text.hpp"

namespace onnx_ops::detail {

/// Throws a StepError for missing and unknown names; the message begins with `what`.
template <class T>
void check_names(const std::string &what, const Named<TensorType> &wanted, const Named<T> &given) {
  std::vector<std::string> missing, unknown, known;
  for (const auto &[name, type] : wanted) {
    known.push_back(quoted(name));
    if (!given.has(name)) missing.push_back(quoted(name) + " (" + type.text() + ")");
  }
  for (const auto &entry : given) {
    if (!wanted.has(entry.first)) unknown.push_back(quoted(entry.first));
  }
  std::sort(unknown.begin(), unknown.end());
  const auto own = [](const std::string &text) { return text; };
  const auto listed = [&](std::vector<std::string> names) {  // at most ten of them
    const std::size_t more = names.size() > 10 ? names.size() - 10 : 0;
    names.resize(names.size() - more);
    return joined(names, own) + (more ? " and " + std::to_string(more) + " more" : "");
  };
  std::vector<std::string> problems;
  if (!missing.empty()) problems.push_back("lacks " + listed(missing));
  if (!unknown.empty()) problems.push_back("has " + listed(unknown) + ", where the step wants " + (known.empty() ? "nothing" : listed(known)));
  if (!problems.empty()) throw StepError(what + " " + joined(problems, own, " and "));
}

/// Throws a StepError unless the state has a tensor of the right type for each name, and no other names.
inline void check_state(const Named<TensorType> &wanted, const Sources &state) {
  check_names("the state", wanted, state);
  for (const auto &[name, type] : wanted) {
    const Source &tensor = state.at(name);
    if (!type.is(tensor.type, tensor.shape)) throw StepError(quoted(name) + " is " + tensor.text() + ", expected " + type.text());
  }
}

/// The floating number at the beginning of memory; of 16-bit ones only whether they are NaN or infinite is exact.
inline double floating(ElementType type, const void *memory) {
  if (type == ElementType::float64) return *static_cast<const double *>(memory);
  if (type == ElementType::float32) return *static_cast<const float *>(memory);
  const std::uint16_t bits = *static_cast<const std::uint16_t *>(memory), exponent = type == ElementType::float16 ? 0x7c00 : 0x7f80;
  if ((bits & exponent) != exponent) return 0;
  const double infinite = std::numeric_limits<double>::infinity();
  return bits & 0x7fff & ~exponent ? std::numeric_limits<double>::quiet_NaN() : bits >> 15 ? -infinite : infinite;
}

inline void check_loss(const std::string &name, const Tensor &loss) {
  if (loss.size() != 1) return;
  const double number = floating(loss.type(), loss.memory());
  if (std::isfinite(number)) return;
  throw StepError(quoted(name) + " is " + float_text(number) +
                  ", and the state is as before the step: expected a finite number; look for NaN and infinity in the batch, or lower the"
                  " learning rate. Steps with such a loss are made with TrainerOptions::check_finite = false");
}

/// A learning rate in the type of its setting; StepError unless it is finite and at least 0.
inline double cast_rate(double rate, ElementType type) {
  const double cast = type == ElementType::float32 ? static_cast<double>(static_cast<float>(rate)) : rate;
  if (std::isfinite(cast) && cast >= 0) return cast;
  const bool overflows = std::isfinite(rate) && !std::isfinite(cast);
  throw StepError("a learning rate is " + float_text(rate) + (overflows ? ", which is " + float_text(cast) + " in float32" : "") +
                  ", expected a finite number of at least 0");
}

/// Throws a StepError for a learning rate of the state that is not finite or less than 0.
inline void check_rates(const std::vector<std::string> &names, const Sources &state) {
  for (const std::string &name : names) {
    const Source *source = state.find(name);
    if (source == nullptr) continue;
    const Tensor rate = source->tensor();
    try {
      cast_rate(floating(rate.type(), rate.memory()), rate.type());
    } catch (const StepError &error) {
      throw StepError(quoted(name) + ": " + error.what());
    }
  }
}

}  // namespace onnx_ops::detail
