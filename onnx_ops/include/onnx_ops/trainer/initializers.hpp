// The contents of initializers: in a model, in its file, or external data.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "light_model.hpp"
#include "safetensors.hpp"
#include "step_format.hpp"

namespace onnx_ops::detail {

/// The external data of the initializers of a model, and the contents of large ones in its own file.
class Contents {
 public:
  Contents(const Path &path, const LightModel &model) : path_(path), model_(model) {}

  /// The contents of an initializer.
  Source source(const Message &tensor) {
    const std::string name = tensor.text(field::TENSOR_NAME);
    Source found{static_cast<ElementType>(tensor.integer(field::TENSOR_TYPE)), tensor.integers(field::TENSOR_DIMS), nullptr, 0, nullptr};
    const auto own = model_.contents.find(name);
    std::uint64_t length = 0;
    if (own != model_.contents.end()) {
      found.file = model_.file, found.offset = own->second.offset, length = own->second.length;
    } else if (is_external(tensor)) {
      const auto [file, extent] = external(tensor);
      found.file = file, found.offset = extent.offset, length = extent.length;
    } else {
      return Source::of(kept_.emplace_back(embedded(tensor, found)));
    }
    const bool valid = std::all_of(found.shape.begin(), found.shape.end(), [](auto size) { return size >= 0; });
    if (!valid || found.bytes() != length) throw unreadable(name);
    return found;
  }

  /// The bytes of an initializer with its contents.
  std::string whole(const Message &tensor, std::string_view bytes) {
    const std::string name = tensor.text(field::TENSOR_NAME);
    const auto own = model_.contents.find(name);
    if (own == model_.contents.end() && !is_external(tensor)) return std::string(bytes);
    const auto [file, extent] = own == model_.contents.end() ? external(tensor) : std::pair(model_.file, own->second);
    std::string found;
    for (const Field &one : tensor.fields()) {
      if (one.number != field::TENSOR_EXTERNAL && one.number != field::TENSOR_LOCATION) found += one.whole;
    }
    return found + delimited_bytes(field::TENSOR_RAW, file->read(extent.offset, static_cast<std::size_t>(extent.length)));
  }

  /// Checks that external data exist, and that the safetensors file of a model is the one that was written with it.
  void check_files(const Message &model, const Message &graph) {
    for (const Message &tensor : graph.messages(field::GRAPH_INITIALIZERS)) {
      if (is_external(tensor)) external(tensor);
    }
    const auto text = metadata_of(model, WEIGHTS_METADATA);
    if (!text) return;
    Json record;
    try {
      record = JsonReader::read(*text);
    } catch (const ValueError &error) {
      throw unreadable_entry(WEIGHTS_METADATA, error.what());
    }
    const Json *file = record.find("file"), *expected = record.find("sha256");
    if (!file || !expected) throw unreadable_entry(WEIGHTS_METADATA, "expected file and sha256");
    std::vector<Message> external;
    for (const Message &tensor : graph.messages(field::GRAPH_INITIALIZERS)) {
      if (is_external(tensor) && entries(tensor)["location"] == file->text) external.push_back(tensor);
    }
    if (external.empty()) return;
    const Path path = path_.parent_path() / file->text;
    const Safetensors weights = open_safetensors(path);
    const auto checksum = weights.metadata.find(CHECKSUM_METADATA);
    bool same = checksum == weights.metadata.end() ? expected->is(Json::Kind::null) : expected->text == checksum->second;
    for (const auto &entry : weights.tensors) files_[file->text] = entry.second.file;
    for (const Message &tensor : external) {
      const Source *found = weights.tensors.find(tensor.text(field::TENSOR_NAME));
      same = same && found && found->same_place(source(tensor));
    }
    if (!same) throw StepError(path.string() + " does not belong to " + path_.string() + ", expected the weights that were saved with it");
  }

 private:
  static bool is_external(const Message &tensor) { return tensor.integer(field::TENSOR_LOCATION) == 1; }
  static StepError unreadable(const std::string &name) {
    return StepError("the start of '" + name + "' cannot be read: it does not have the bytes of its dtype and shape");
  }
  static std::map<std::string, std::string> entries(const Message &tensor) {
    std::map<std::string, std::string> found;
    for (const Message &entry : tensor.messages(field::TENSOR_EXTERNAL)) found[entry.text(field::KEY)] = entry.text(field::VALUE);
    return found;
  }

  std::pair<std::shared_ptr<File>, Extent> external(const Message &tensor) {
    auto found = entries(tensor);
    const std::string name = quoted(tensor.text(field::TENSOR_NAME)), location = found["location"];
    const Path relative(location);
    if (location.empty() || relative.is_absolute() || std::find(relative.begin(), relative.end(), "..") != relative.end()) {
      throw ModelError("tensor " + name + " has its data in '" + location + "', expected a file below the model's folder");
    }
    const Path path = path_.parent_path() / relative;
    auto &file = files_[location];
    if (!file) {
      std::error_code ignored;
      if (!std::filesystem::is_regular_file(path, ignored)) {
        throw ModelError("tensor " + name + " has its data in " + path.string() + ", which does not exist");
      }
      file = std::make_shared<File>(path);
    }
    Extent extent;
    const auto number = [&](const std::string &text) {
      if (text.empty() || text.size() > 18 || text.find_first_not_of("0123456789") != std::string::npos) {
        throw ModelError("tensor " + name + " has an invalid extent of external data: '" + text + "'");
      }
      return static_cast<std::uint64_t>(std::strtoull(text.c_str(), nullptr, 10));
    };
    if (found.count("offset")) extent.offset = number(found["offset"]);
    const std::uint64_t rest = file->size() - std::min(extent.offset, file->size());
    extent.length = found.count("length") ? number(found["length"]) : rest;
    if (extent.length > rest) {
      throw ModelError("tensor " + name + " has its data in " + path.string() + " up to byte " +
                       std::to_string(extent.offset + extent.length) + ", which ends at " + std::to_string(file->size()));
    }
    return {file, extent};
  }

  /// A tensor whose contents are in its message.
  static Tensor embedded(const Message &tensor, const Source &described) {
    const std::string name = tensor.text(field::TENSOR_NAME);
    const bool valid = std::all_of(described.shape.begin(), described.shape.end(), [](auto size) { return size >= 0; });
    if (!valid || count_of(described.shape) > MOST_BYTES) throw unreadable(name);
    Tensor found(described.type, described.shape);
    std::string bytes;
    if (tensor.has(field::TENSOR_RAW)) {
      bytes = tensor.of(field::TENSOR_RAW).back().bytes;
    } else if (found.type() == ElementType::float32 || found.type() == ElementType::float64) {
      for (const Field &one : tensor.of(found.type() == ElementType::float32 ? field::TENSOR_FLOATS : field::TENSOR_DOUBLES)) bytes += one.bytes;
    } else {
      const bool is_unsigned = found.type() == ElementType::uint32 || found.type() == ElementType::uint64;
      const int number = is_unsigned ? field::TENSOR_UINT64S : found.type() == ElementType::int64 ? field::TENSOR_INT64S : field::TENSOR_INT32S;
      const std::size_t size = row_of(found.type()).size;
      for (std::int64_t value : tensor.integers(number)) {
        for (std::size_t i = 0; i < size; ++i) bytes += static_cast<char>(static_cast<std::uint64_t>(value) >> 8 * i);
      }
    }
    if (bytes.size() != found.bytes()) throw unreadable(name);
    std::memcpy(found.memory(), bytes.data(), bytes.size());
    return found;
  }

  Path path_;
  const LightModel &model_;
  std::unordered_map<std::string, std::shared_ptr<File>> files_;
  std::vector<Tensor> kept_;
};

}  // namespace onnx_ops::detail
