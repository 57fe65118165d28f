// Graphs of a step as models of their own: those that it carries, and the part that computes what it reports.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "onnx_messages.hpp"
#include "step_record.hpp"

namespace onnx_ops::detail {

/// The name of a function, or of the operator that a node calls: the fields with name, domain and overload.
inline std::string key_of(const Message &message, int name, int domain, int overload) {
  return message.text(domain) + '\0' + message.text(name) + '\0' + message.text(overload);
}

constexpr int DEEPEST_GRAPH = 100;  // nested graphs, so that the stack does not overflow

inline std::vector<Message> subgraphs(const Message &node, int depth) {
  std::vector<Message> found;
  for (const Message &attribute : node.messages(field::NODE_ATTRIBUTES)) {
    for (int number : {field::ATTRIBUTE_GRAPH, field::ATTRIBUTE_GRAPHS}) {
      for (Message &graph : attribute.messages(number)) found.push_back(std::move(graph));
    }
  }
  if (!found.empty() && depth >= DEEPEST_GRAPH) throw Damaged("graphs in it are nested more than " + std::to_string(DEEPEST_GRAPH) + " deep");
  return found;
}

/// Adds the keys of the operators of nodes and of those in their subgraphs.
inline void add_called(const std::vector<Message> &nodes, std::vector<std::string> &keys, int depth = 0) {
  for (const Message &node : nodes) {
    keys.push_back(key_of(node, field::NODE_OPERATOR, field::NODE_DOMAIN, field::NODE_OVERLOAD));
    for (const Message &graph : subgraphs(node, depth)) add_called(graph.messages(field::GRAPH_NODES), keys, depth + 1);
  }
}

/// The bytes of the functions that nodes call, also within functions, in their order in the model.
inline std::string called_functions(const Message &model, const std::vector<Message> &nodes) {
  struct Function {
    std::string_view whole;
    Message message;
    bool needed = false;
  };
  std::vector<Function> functions;
  std::unordered_map<std::string, std::size_t> places;
  for (const Field &one : model.of(field::MODEL_FUNCTIONS)) {
    functions.push_back({one.whole, Message(one.bytes)});
    places[key_of(functions.back().message, field::FUNCTION_NAME, field::FUNCTION_DOMAIN, field::FUNCTION_OVERLOAD)] = functions.size() - 1;
  }
  std::vector<std::string> pending;
  add_called(nodes, pending);
  while (!pending.empty()) {
    const auto place = places.find(pending.back());
    pending.pop_back();
    if (place == places.end() || functions[place->second].needed) continue;
    functions[place->second].needed = true;
    add_called(functions[place->second].message.messages(field::FUNCTION_NODES), pending);
  }
  std::string found;
  for (const Function &function : functions) found += function.needed ? function.whole : "";
  return found;
}

/// The values that a node and its subgraphs read from the graph around it.
inline void add_values_read(const Message &node, std::set<std::string> &read, int depth = 0) {
  for (const std::string &name : node.texts(field::NODE_INPUTS)) read.insert(name);
  for (const Message &graph : subgraphs(node, depth)) {
    std::set<std::string> inner, own;
    for (int number : {field::GRAPH_INPUTS, field::GRAPH_INITIALIZERS}) {
      for (const Message &value : graph.messages(number)) {
        own.insert(value.text(number == field::GRAPH_INPUTS ? field::VALUE_NAME : field::TENSOR_NAME));
      }
    }
    for (const Message &one : graph.messages(field::GRAPH_NODES)) {
      add_values_read(one, inner, depth + 1);
      for (const std::string &name : one.texts(field::NODE_OUTPUTS)) own.insert(name);
    }
    for (const Message &value : graph.messages(field::GRAPH_OUTPUTS)) inner.insert(value.text(field::VALUE_NAME));
    for (const std::string &name : inner) {
      if (!own.count(name)) read.insert(name);
    }
  }
}

/// A model: its bytes, and the types of its inputs and outputs.
struct Graph {
  std::string bytes;
  Named<TensorType> inputs, outputs;
};

/// A graph that a step carries as a function, as a model whose inputs are the state that it reads, then the batch.
inline std::optional<Graph> carried_graph(const Message &model, const std::string &name) {
  std::optional<Message> function;
  for (Message &one : model.messages(field::MODEL_FUNCTIONS)) {
    if (one.text(field::FUNCTION_DOMAIN) == CARRIED_DOMAIN && one.text(field::FUNCTION_NAME) == name) function = std::move(one);
  }
  if (!function) return std::nullopt;
  std::unordered_map<std::string, std::string_view> infos;
  for (const Field &one : function->of(field::FUNCTION_TYPES)) infos[Message(one.bytes).text(field::VALUE_NAME)] = one.bytes;
  Graph found;
  std::string graph;
  for (const Field &node : function->of(field::FUNCTION_NODES)) graph += delimited_bytes(field::GRAPH_NODES, node.bytes);
  graph += delimited_bytes(field::GRAPH_NAME, name);
  for (const auto &[own, number, types] : {std::tuple(field::FUNCTION_INPUTS, field::GRAPH_INPUTS, &found.inputs),
                                           std::tuple(field::FUNCTION_OUTPUTS, field::GRAPH_OUTPUTS, &found.outputs)}) {
    std::vector<Message> values;
    for (const std::string &value : function->texts(own)) {
      if (!infos.count(value)) throw StepError("'" + value + "' of the " + name + " graph has no type");
      graph += delimited_bytes(number, infos[value]);
      values.emplace_back(infos[value]);
    }
    *types = types_of(values);
  }
  std::set<std::string> imported = {CARRIED_DOMAIN};
  for (const Message &one : function->messages(field::FUNCTION_IMPORTS)) imported.insert(one.text(field::IMPORT_DOMAIN));
  for (const Field &one : model.fields()) {
    const bool described = one.number == field::MODEL_IR_VERSION || one.number == field::MODEL_PRODUCER || one.number == field::MODEL_PRODUCER_VERSION;
    if (described) found.bytes += one.whole;
    if (one.number == field::MODEL_IMPORTS && !imported.count(Message(one.bytes).text(field::IMPORT_DOMAIN))) found.bytes += one.whole;
    if (one.number == field::MODEL_METADATA) {
      const std::string key = Message(one.bytes).text(field::KEY);
      if (key != STEP_METADATA && key != WEIGHTS_METADATA) found.bytes += one.whole;
    }
  }
  for (const Field &one : function->of(field::FUNCTION_IMPORTS)) found.bytes += delimited_bytes(field::MODEL_IMPORTS, one.bytes);
  found.bytes += called_functions(model, function->messages(field::FUNCTION_NODES));
  found.bytes += delimited_bytes(field::MODEL_GRAPH, graph);
  return found;
}

/// The part of a step that computes the reported outputs, without gradients; the batch is among its inputs.
inline Graph reporting_part(const Graph &step, const Record &record) {
  const Message model(step.bytes);
  const Message graph = model.messages(field::MODEL_GRAPH).at(0);
  Graph found;
  std::set<std::string> needed;
  for (const auto &[name, type] : step.outputs) {
    if (starts_with(name, NEXT) || starts_with(name, GRADIENT)) continue;
    found.outputs.set(name, type);
    needed.insert(name);
  }
  if (found.outputs.empty()) throw StepError("the step reports nothing that could be evaluated, expected the loss");
  std::vector<Field> nodes = graph.of(field::GRAPH_NODES);
  std::vector<Message> kept;
  for (std::size_t i = nodes.size(); i-- > 0;) {
    Message node(nodes[i].bytes);
    const auto made = node.texts(field::NODE_OUTPUTS);
    if (std::none_of(made.begin(), made.end(), [&](auto &name) { return needed.count(name) && !step.inputs.has(name); })) {
      nodes.erase(nodes.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    add_values_read(node, needed);
    kept.push_back(std::move(node));
  }
  std::string own;
  for (const Field &node : nodes) own += node.whole;
  for (const Field &one : graph.fields()) {
    if (one.number == field::GRAPH_NODES || one.number == field::GRAPH_TYPES) continue;
    const bool by_name = one.number == field::GRAPH_INITIALIZERS || one.number == field::GRAPH_INPUTS || one.number == field::GRAPH_OUTPUTS;
    if (by_name) {
      const Message message(one.bytes);
      const std::string name = message.text(one.number == field::GRAPH_INITIALIZERS ? field::TENSOR_NAME : field::VALUE_NAME);
      const bool is_batch = one.number == field::GRAPH_INPUTS && !record.roles.has(name);
      if (one.number == field::GRAPH_OUTPUTS ? !found.outputs.has(name) : !needed.count(name) && !is_batch) continue;
      if (one.number == field::GRAPH_INPUTS) found.inputs.set(name, step.inputs.at(name));
    }
    own += one.whole;
  }
  for (const Field &one : model.fields()) {
    if (one.number != field::MODEL_GRAPH && one.number != field::MODEL_FUNCTIONS) found.bytes += one.whole;
  }
  found.bytes += called_functions(model, kept) + delimited_bytes(field::MODEL_GRAPH, own);
  return found;
}

}  // namespace onnx_ops::detail
