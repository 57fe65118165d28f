// Updates of the state: onnx_ops/training/step_runner.py.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checks.hpp"
#include "sessions.hpp"

namespace onnx_ops::detail {

/// A run that has failed after it began to update the state in place.
struct UpdateFailed : Error {
  using Error::Error;
};

/// A tensor of a type with a fixed shape.
inline std::shared_ptr<StateTensor> tensor_of_type(const TensorType &type) {
  Shape shape;
  for (const Dimension &dimension : type.shape.value_or(std::vector<Dimension>{{}})) shape.push_back(dimension.size);
  if (!type.is(type.type, shape) || std::any_of(shape.begin(), shape.end(), [](auto size) { return size < 0; })) {
    throw StepError("a prepared graph has a tensor of type " + type.text() + ", expected a fixed shape");
  }
  return std::make_shared<StateTensor>(Tensor(type.type, shape));
}

/// The checks of outputs: the loss, if any, and conditions.
struct Checks {
  std::string loss;
  const std::vector<Condition> *conditions;

  /// Tensors for those outputs of a graph that are checked, so that they are there after a run that has failed.
  StateSet tensors(const Graph &graph) const {
    StateSet found;
    for (const auto &[name, type] : graph.outputs) {
      if (name != loss && name != CONDITIONS && name != CONDITION_NUMBERS) continue;
      found.set(name, tensor_of_type(name == loss && type.shape ? TensorType{type.type, std::vector<Dimension>(type.shape->size(), {1, ""})} : type));
    }
    return found;
  }

  /// The outputs without those of the conditions; StepError for what is refused.
  Tensors checked(const Tensors &found) const {
    Tensors others = checked_conditions(*conditions, found);
    if (const Tensor *value = found.find(loss)) check_loss(loss, *value);
    return others;
  }
};

/// Gives tensors of outputs the values of outputs that are not refused, for a run that ends before it computes them.
inline void reset(const StateSet &checked) {
  for (const auto &[name, tensor] : checked) std::memset(tensor->tensor.memory(), name == CONDITIONS, tensor->tensor.bytes());
}

/// A tensor of one number.
template <class T>
std::shared_ptr<StateTensor> number_of(ElementType type, T value, Shape shape = {}) {
  return std::make_shared<StateTensor>(Tensor(type, std::move(shape), std::vector<T>{value}));
}

inline Tensors tensors_of(const StateSet &set) {
  Tensors found;
  for (const auto &[name, tensor] : set) found.set(name, tensor->tensor);
  return found;
}

/// A set with the tensors of another one, in place of its own of the same names.
inline StateSet joined_sets(StateSet set, const StateSet &other) {
  for (const auto &[name, tensor] : other) set.set(name, tensor);
  return set;
}

/// A session that computes the next values of the state.
class UpdateSession {
 public:
  /// session, graph: of a step, or of the part of it with the updates. passed: its output that is 1 once the state may be
  /// written, if it has one. inputs: for both turns what is read. written: what is written. in_place: whether these are one.
  UpdateSession(std::unique_ptr<Session> session, const Graph &graph, const std::string &passed, std::array<StateSet, 2> inputs,
                std::array<StateSet, 2> written, const Checks &checks, bool in_place)
      : session_(std::move(session)), inputs_(std::move(inputs)), written_(std::move(written)), checks_(checks), in_place_(in_place) {
    for (const auto &entry : graph.outputs) {
      if (!starts_with(entry.first, NEXT) && entry.first != passed) order_.push_back(entry.first);
    }
    if (passed.empty()) return;
    passed_ = number_of(ElementType::float32, 0.0f, {1});
    checked_ = checks.tensors(graph);
    for (StateSet &set : written_) {
      set = joined_sets(set, checked_);
      set.set(passed, passed_);
    }
  }

  /// Runs the session in a turn; returns the reported outputs. UpdateFailed if the state has been updated in part; after other
  /// errors it is as it was.
  Tensors run(std::size_t turn, const Tensors &batch) {
    if (passed_) *passed_->tensor.data<float>() = 0;
    reset(checked_);
    Tensors found;
    try {
      found = session_->run(inputs_[turn], batch, written_[turn]);
    } catch (const OnnxruntimeError &error) {
      if (!passed_) throw;
      if (in_place_ && *passed_->tensor.data<float>() != 0) throw UpdateFailed(error.what());
      checks_.checked(tensors_of(checked_));
      throw;
    }
    for (const auto &[name, tensor] : checked_) found.set(name, tensor->tensor.clone());
    found = checks_.checked(found);
    Tensors ordered;
    for (const std::string &name : order_) {
      if (const Tensor *tensor = found.find(name)) ordered.set(name, *tensor);
    }
    return ordered;
  }

 private:
  std::unique_ptr<Session> session_;
  std::array<StateSet, 2> inputs_, written_;
  Checks checks_;
  bool in_place_;
  std::vector<std::string> order_;  // of the reported outputs
  std::shared_ptr<StateTensor> passed_;
  StateSet checked_;
};

}  // namespace onnx_ops::detail
