// Graphs that Python has prepared for the trainer: onnx_ops/training/prepared.py.
#pragma once

#include <optional>
#include <string>

#include "graphs.hpp"

namespace onnx_ops::detail {

/// A prepared graph, and the names of its inputs and outputs that are not those of the step.
struct Prepared {
  Graph graph;
  Named<std::string> names;
  Named<std::string> means;  // by the names of gradients
};

/// A prepared graph, which a step carries as the constant of a function.
inline std::optional<Prepared> prepared_graph(const Message &model, const std::string &name) {
  for (const Message &function : model.messages(field::MODEL_FUNCTIONS)) {
    if (function.text(field::FUNCTION_DOMAIN) != CARRIED_DOMAIN || function.text(field::FUNCTION_NAME) != name) continue;
    Prepared found;
    for (const Message &node : function.messages(field::FUNCTION_NODES)) {
      for (const Message &attribute : node.messages(field::NODE_ATTRIBUTES)) {
        for (const Message &tensor : attribute.messages(field::ATTRIBUTE_TENSOR)) {
          for (const Field &content : tensor.of(field::TENSOR_RAW)) found.graph.bytes = content.bytes;
        }
      }
    }
    const Message own(found.graph.bytes);
    for (const Message &graph : own.messages(field::MODEL_GRAPH)) {
      found.graph.inputs = types_of(graph.messages(field::GRAPH_INPUTS));
      found.graph.outputs = types_of(graph.messages(field::GRAPH_OUTPUTS));
    }
    try {
      const Json record = JsonReader::read(metadata_of(own, PREPARED_METADATA).value_or("{}"));
      for (const auto &[key, value] : record.entries) {
        if (value.is(Json::Kind::text)) found.names.set(key, value.text);
        for (const auto &[gradient, mean] : value.entries) found.means.set(gradient, mean.text);
      }
    } catch (const ValueError &error) {
      throw StepError(std::string("the entry '") + PREPARED_METADATA + "' of the metadata of the graph '" + name + "' cannot be read: " + error.what());
    }
    return found;
  }
  return std::nullopt;
}

}  // namespace onnx_ops::detail
