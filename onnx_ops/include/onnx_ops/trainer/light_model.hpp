// Model files without the contents of large initializers: onnx_ops/graph/light.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "files.hpp"
#include "onnx_messages.hpp"

namespace onnx_ops::detail {

/// A part of a file with the contents of a tensor.
struct Extent {
  std::uint64_t offset = 0, length = 0;
};

/// A model file without the contents of large initializers.
struct LightModel {
  std::string bytes;
  std::shared_ptr<File> file;
  std::unordered_map<std::string, Extent> contents;  // of these initializers
};

/// Finds the fields of messages in a file.
class Scanner {
 public:
  struct Place {
    int number = 0;
    int wire_type = 0;
    std::uint64_t start = 0, value = 0, end = 0;  // of a length-delimited field `value` is the first byte after the length
  };

  explicit Scanner(File &file) : file_(file) {}

  std::vector<Place> fields(std::uint64_t at, std::uint64_t end) {
    std::vector<Place> found;
    while (at < end) {
      Place one;
      one.start = at;
      const std::uint64_t tag = varint(at);
      one.number = static_cast<int>(tag >> 3), one.wire_type = static_cast<int>(tag & 7);
      one.value = at;
      if (one.wire_type == VARINT) {
        varint(at);
      } else if (one.wire_type == DELIMITED) {
        const std::uint64_t length = varint(at);
        one.value = at;
        if (length > end - at) throw Damaged("a field ends after its message");
        at += length;
      } else if (one.wire_type == FIXED64 || one.wire_type == FIXED32) {
        at += one.wire_type == FIXED64 ? 8 : 4;
      } else {
        throw Damaged("no field has the wire type " + std::to_string(one.wire_type));
      }
      if (at > end) throw Damaged("a field ends after its message");
      one.end = at;
      found.push_back(one);
    }
    return found;
  }

 private:
  static constexpr std::uint64_t WINDOW = 1 << 16;  // bytes that are read at once

  std::uint64_t varint(std::uint64_t &at) {
    if (at < start_ || at + 10 > start_ + window_.size()) {
      window_ = at < file_.size() ? file_.read(at, static_cast<std::size_t>(std::min(WINDOW, file_.size() - at))) : "";
      start_ = at;
    }
    std::size_t within = static_cast<std::size_t>(at - start_);
    const std::uint64_t found = read_varint(window_, within);
    at = start_ + within;
    return found;
  }

  File &file_;
  std::string window_;
  std::uint64_t start_ = 0;
};

/// Reads a model; the contents of initializers of more than LARGE_TENSOR bytes stay in the file.
inline LightModel read_light(const Path &path) {
  constexpr std::uint64_t LARGE_TENSOR = 1 << 15;
  LightModel found;
  found.file = std::make_shared<File>(path);
  File &file = *found.file;
  const auto part = [&](std::uint64_t start, std::uint64_t end) { return file.read(start, static_cast<std::size_t>(end - start)); };
  try {
    Scanner scanner(file);
    std::optional<Scanner::Place> graph;
    for (const Scanner::Place &one : scanner.fields(0, file.size())) {
      if (one.number != field::MODEL_GRAPH) continue;
      if (graph || one.wire_type != DELIMITED) throw Damaged("there are several graphs in it");
      graph = one;
    }
    if (!graph) throw Damaged("there is no graph in it");
    std::string inner;
    std::uint64_t copied = graph->value;
    for (const Scanner::Place &one : scanner.fields(graph->value, graph->end)) {
      if (one.number != field::GRAPH_INITIALIZERS || one.end - one.value < LARGE_TENSOR) continue;
      std::vector<Scanner::Place> raw;
      bool external = false;
      for (const Scanner::Place &member : scanner.fields(one.value, one.end)) {
        if (member.number == field::TENSOR_RAW) raw.push_back(member);
        external = external || member.number == field::TENSOR_LOCATION;
      }
      if (raw.size() != 1 || external || raw[0].end - raw[0].value < LARGE_TENSOR) continue;
      const std::string own = part(one.value, raw[0].start) + part(raw[0].end, one.end);
      found.contents[Message(own).text(field::TENSOR_NAME)] = {raw[0].value, raw[0].end - raw[0].value};
      inner += part(copied, one.start) + delimited_bytes(field::GRAPH_INITIALIZERS, own);
      copied = one.end;
    }
    inner += part(copied, graph->end);
    found.bytes = part(0, graph->start) + delimited_bytes(field::MODEL_GRAPH, inner) + part(graph->end, file.size());
    const Message model(found.bytes);  // refuses damaged fields
  } catch (const Damaged &error) {
    throw ModelError(path.string() + " is no ONNX model: " + error.what());
  }
  return found;
}

}  // namespace onnx_ops::detail
