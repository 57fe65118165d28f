// The fields of onnx.proto that are needed, by their numbers, and what is read from several messages.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "protobuf.hpp"
#include "tensor_types.hpp"

namespace onnx_ops::detail {

namespace field {
constexpr int MODEL_GRAPH = 7, MODEL_IMPORTS = 8, MODEL_METADATA = 14, MODEL_FUNCTIONS = 25;
constexpr int MODEL_IR_VERSION = 1, MODEL_PRODUCER = 2, MODEL_PRODUCER_VERSION = 3;
constexpr int GRAPH_NODES = 1, GRAPH_NAME = 2, GRAPH_INITIALIZERS = 5, GRAPH_INPUTS = 11, GRAPH_OUTPUTS = 12, GRAPH_TYPES = 13,
              GRAPH_SPARSE = 15;
constexpr int NODE_INPUTS = 1, NODE_OUTPUTS = 2, NODE_OPERATOR = 4, NODE_ATTRIBUTES = 5, NODE_DOMAIN = 7, NODE_OVERLOAD = 8;
constexpr int ATTRIBUTE_TENSOR = 5, ATTRIBUTE_GRAPH = 6, ATTRIBUTE_GRAPHS = 11;
constexpr int FUNCTION_NAME = 1, FUNCTION_INPUTS = 4, FUNCTION_OUTPUTS = 5, FUNCTION_NODES = 7, FUNCTION_IMPORTS = 9,
              FUNCTION_DOMAIN = 10, FUNCTION_TYPES = 12, FUNCTION_OVERLOAD = 13;
constexpr int TENSOR_DIMS = 1, TENSOR_TYPE = 2, TENSOR_FLOATS = 4, TENSOR_INT32S = 5, TENSOR_INT64S = 7, TENSOR_NAME = 8,
              TENSOR_RAW = 9, TENSOR_DOUBLES = 10, TENSOR_UINT64S = 11, TENSOR_EXTERNAL = 13, TENSOR_LOCATION = 14;
constexpr int VALUE_NAME = 1, VALUE_TYPE = 2, TYPE_TENSOR = 1, TENSOR_TYPE_ELEMENT = 1, TENSOR_TYPE_SHAPE = 2, SHAPE_DIMENSIONS = 1,
              DIMENSION_SIZE = 1, DIMENSION_NAME = 2;
constexpr int KEY = 1, VALUE = 2;                  // of StringStringEntryProto
constexpr int IMPORT_DOMAIN = 1;
}  // namespace field

/// The types in ValueInfoProto messages, by name.
inline Named<TensorType> types_of(const std::vector<Message> &values) {
  Named<TensorType> found;
  for (const Message &value : values) {
    TensorType tensor;
    for (const Message &type : value.messages(field::VALUE_TYPE)) {
      for (const Message &described : type.messages(field::TYPE_TENSOR)) {
        tensor.type = static_cast<ElementType>(described.integer(field::TENSOR_TYPE_ELEMENT));
        for (const Message &shape : described.messages(field::TENSOR_TYPE_SHAPE)) {
          tensor.shape.emplace();
          for (const Message &dimension : shape.messages(field::SHAPE_DIMENSIONS)) {
            const bool known = dimension.has(field::DIMENSION_SIZE);
            tensor.shape->push_back({known ? dimension.integer(field::DIMENSION_SIZE) : -1, known ? "" : dimension.text(field::DIMENSION_NAME)});
          }
        }
      }
    }
    found.set(value.text(field::VALUE_NAME), tensor);
  }
  return found;
}

/// The error for an entry of the metadata of a model.
inline StepError unreadable_entry(const std::string &key, const std::string &problem) {
  return StepError("the entry '" + key + "' of the model's metadata cannot be read: " + problem);
}

/// The value of a key in the metadata of a model.
inline std::optional<std::string> metadata_of(const Message &model, const std::string &key) {
  std::optional<std::string> found;
  for (const Message &entry : model.messages(field::MODEL_METADATA)) {
    if (entry.text(field::KEY) == key) found = entry.text(field::VALUE);
  }
  return found;
}

}  // namespace onnx_ops::detail
