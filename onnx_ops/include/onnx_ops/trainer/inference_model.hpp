// Writing the inference graph with its weights: onnx_ops/training/inference.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "checkpoints.hpp"
#include "graphs.hpp"

namespace onnx_ops::detail {

/// Writes a graph with weights, which are inputs of it, as a model. A model above 2 GiB has the
/// large ones as external data, in a safetensors file with ".data" appended to its name.
inline void write_inference_model(const Path &path, const Graph &graph, const Sources &weights, std::uint64_t most = MOST_BYTES) {
  constexpr std::uint64_t LARGE = 1024;  // elements
  const Message model(graph.bytes);
  const Field inner = model.of(field::MODEL_GRAPH).at(0);
  std::string own;
  const Message own_graph(inner.bytes);
  for (const Field &one : own_graph.fields()) {
    const bool is_weight = one.number == field::GRAPH_INPUTS && weights.has(Message(one.bytes).text(field::VALUE_NAME));
    if (!is_weight) own += one.whole;
  }
  std::string others;
  for (const Field &one : model.fields()) {
    if (one.number != field::MODEL_GRAPH) others += one.whole;
  }
  const auto head_of = [](const std::string &name, const Source &source) {
    std::string head;
    for (std::int64_t size : source.shape) head += integer_bytes(field::TENSOR_DIMS, static_cast<std::uint64_t>(size));
    return head + integer_bytes(field::TENSOR_TYPE, static_cast<std::uint64_t>(source.type)) + delimited_bytes(field::TENSOR_NAME, name);
  };
  std::vector<std::pair<std::string, const Source *>> parts;  // bytes, and the contents after them
  std::uint64_t length = own.size();
  const auto add = [&](const std::string &name, const Source &source) {
    const std::string head = head_of(name, source) + prefix_bytes(field::TENSOR_RAW, source.bytes());
    parts.emplace_back(prefix_bytes(field::GRAPH_INITIALIZERS, head.size() + source.bytes()) + head, &source);
    length += parts.back().first.size() + source.bytes();
  };
  for (const auto &[name, source] : weights) add(name, source);
  const bool external = length + others.size() > most;
  const Path data = path.string() + ".data";
  ReplacingFiles files(external ? std::vector<Path>{data, path} : std::vector<Path>{path});
  if (external) {
    Sources large;
    for (const auto &[name, source] : weights) {
      if (count_of(source.shape) > LARGE) large.set(name, source);
    }
    const Metadata metadata = checkpoint_metadata(large, {{"format", "pt"}});
    const Named<std::uint64_t> offsets = write_safetensors(files, large, metadata);
    const auto entry = [](int number, const std::string &key, const std::string &value) {
      return delimited_bytes(number, delimited_bytes(field::KEY, key) + delimited_bytes(field::VALUE, value));
    };
    parts.clear();
    length = own.size();
    for (const auto &[name, source] : weights) {
      if (!large.has(name)) {
        add(name, source);
        continue;
      }
      const std::string head = head_of(name, source) + entry(field::TENSOR_EXTERNAL, "location", data.filename().string()) +
                               entry(field::TENSOR_EXTERNAL, "offset", std::to_string(offsets.at(name))) +
                               entry(field::TENSOR_EXTERNAL, "length", std::to_string(source.bytes())) + integer_bytes(field::TENSOR_LOCATION, 1);
      parts.emplace_back(delimited_bytes(field::GRAPH_INITIALIZERS, head), nullptr);
      length += parts.back().first.size();
    }
    if (length + others.size() > most) {
      throw FileError("cannot write " + path.string() + ": its constants alone exceed 2 GiB, which is protobuf's limit");
    }
    others += entry(field::MODEL_METADATA, WEIGHTS_METADATA, "{\"file\": " + json_text(data.filename().string(), true) + ", \"sha256\": \"" +
                                                                  metadata.at(CHECKSUM_METADATA) + "\"}");
  }
  files.next();
  files.write(others + prefix_bytes(field::MODEL_GRAPH, length) + own);
  for (const auto &[bytes, source] : parts) {
    files.write(bytes);
    if (source) source->blocks([&](std::size_t, const char *block, std::size_t count) { files.write(block, count); });
  }
  files.finish();
}

}  // namespace onnx_ops::detail
