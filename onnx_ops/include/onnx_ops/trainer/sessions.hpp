// Sessions of onnxruntime, their inputs and outputs.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../onnxruntime.hpp"
#include "graphs.hpp"

namespace onnx_ops::detail {

inline ort::Owned<ort::Value> value_of(const Tensor &tensor) {
  static const ort::Owned<ort::MemoryInfo> cpu = ort::made<ort::MemoryInfo>(ort::api().CreateCpuMemoryInfo, ort::DEVICE_ALLOCATOR, ort::DEFAULT_MEMORY);
  return ort::made<ort::Value>(ort::api().CreateTensorWithDataAsOrtValue, static_cast<const ort::MemoryInfo *>(cpu.get()), tensor.memory(),
                               tensor.bytes(), tensor.shape().data(), tensor.shape().size(), static_cast<int>(tensor.type()));
}

/// A copy of a value of onnxruntime.
inline Tensor tensor_of(ort::Value *value) {
  const auto info = ort::made<ort::TensorInfo>(ort::api().GetTensorTypeAndShape, static_cast<const ort::Value *>(value));
  int element = 0;
  std::size_t rank = 0;
  ort::check(ort::api().GetTensorElementType(info.get(), &element));
  ort::check(ort::api().GetDimensionsCount(info.get(), &rank));
  Shape shape(rank);
  ort::check(ort::api().GetDimensions(info.get(), shape.data(), rank));
  void *memory = nullptr;
  ort::check(ort::api().GetTensorMutableData(value, &memory));
  Tensor found(static_cast<ElementType>(element), shape);
  if (found.bytes()) std::memcpy(found.memory(), memory, found.bytes());
  return found;
}

/// A tensor of the state, and the value of onnxruntime with its memory.
struct StateTensor {
  Tensor tensor;
  ort::Owned<ort::Value> value;

  explicit StateTensor(Tensor given) : tensor(std::move(given)), value(value_of(tensor)) {}
};

using StateSet = Named<std::shared_ptr<StateTensor>>;

/// A session of onnxruntime.
class Session {
 public:
  Session(const Graph &graph, const ort::Options *options) : outputs_(graph.outputs) {
    for (const auto &entry : graph.inputs) inputs_.push_back(entry.first);
    session_ = ort::made<ort::Session>(ort::api().CreateSessionFromArray, ort::environment(), static_cast<const void *>(graph.bytes.data()),
                                       graph.bytes.size(), options);
  }

  /// Runs the session.
  ///
  /// bound, batch: the inputs, by name. written: tensors that outputs are written to, by their names. Returns copies of
  /// the other outputs.
  Tensors run(const StateSet &bound, const Tensors &batch, const StateSet &written = {}) {
    std::vector<const char *> input_names, output_names;
    std::vector<const ort::Value *> inputs;
    std::vector<ort::Owned<ort::Value>> own;
    for (const std::string &name : inputs_) {
      input_names.push_back(name.c_str());
      if (const auto *found = bound.find(name)) {
        inputs.push_back((*found)->value.get());
      } else {
        own.push_back(value_of(batch.at(name)));
        inputs.push_back(own.back().get());
      }
    }
    std::vector<ort::Value *> outputs;
    for (const auto &entry : outputs_) {
      const auto *found = written.find(entry.first);
      output_names.push_back(entry.first.c_str());
      outputs.push_back(found ? (*found)->value.get() : nullptr);
    }
    ort::Status *status = ort::api().Run(session_.get(), nullptr, input_names.data(), inputs.data(), inputs.size(), output_names.data(),
                                         output_names.size(), outputs.data());
    std::vector<ort::Owned<ort::Value>> allocated(outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!written.has(output_names[i])) allocated[i].reset(outputs[i]);
    }
    ort::check(status);
    Tensors reported;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (allocated[i]) reported.set(output_names[i], tensor_of(allocated[i].get()));
    }
    return reported;
  }

 private:
  std::vector<std::string> inputs_;
  Named<TensorType> outputs_;
  ort::Owned<ort::Session> session_;
};

}  // namespace onnx_ops::detail
