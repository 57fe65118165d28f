// Safetensors files: onnx_ops/training/safetensors_format.py.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "json.hpp"
#include "sources.hpp"
#include "staging.hpp"

namespace onnx_ops::detail {

constexpr std::size_t LENGTH = 8;                          // bytes of the header's length
constexpr std::uint64_t LONGEST_HEADER = 100'000'000;      // bytes
constexpr const char *SAFETENSORS_METADATA = "__metadata__";

struct Safetensors {
  Sources tensors;
  Metadata metadata;
};

/// The tensors of a file, which are not read yet, and its metadata.
inline Safetensors open_safetensors(const Path &path) {
  const auto file = std::make_shared<File>(path);
  const auto require = [](bool holds, const std::string &problem) {
    if (!holds) throw ValueError(problem);
  };
  const auto sizes = [](const Json *value) {
    return value && value->is(Json::Kind::list) && std::all_of(value->list.begin(), value->list.end(), [](const Json &size) {
             return size.is(Json::Kind::integer) && size.integer >= 0;
           });
  };
  Safetensors found;
  try {
    require(file->size() >= LENGTH, "it is too short for a header");
    std::uint64_t length = 0;
    const std::string prefix = file->read(0, LENGTH);
    for (std::size_t i = LENGTH; i-- > 0;) length = length << 8 | static_cast<unsigned char>(prefix[i]);
    require(length <= std::min(file->size() - LENGTH, LONGEST_HEADER), "its header would have " + std::to_string(length) + " bytes");
    Json header;
    try {
      header = JsonReader::read(file->read(LENGTH, static_cast<std::size_t>(length)));
    } catch (const ValueError &error) {
      throw ValueError(std::string("its header is no JSON: ") + error.what());
    }
    require(header.is(Json::Kind::object), "its header is no object");
    std::vector<std::array<std::uint64_t, 2>> extents;
    for (const auto &[name, entry] : header.entries) {
      if (name == SAFETENSORS_METADATA) {
        const std::string problem = std::string("its '") + SAFETENSORS_METADATA + "' is no object of strings";
        require(entry.is(Json::Kind::object) || entry.is(Json::Kind::null), problem);
        for (const auto &[key, text] : entry.entries) {
          require(text.is(Json::Kind::text), problem);
          found.metadata[key] = text.text;
        }
        continue;
      }
      const Json *dtype = entry.find("dtype"), *shape = entry.find("shape"), *offsets = entry.find("data_offsets");
      const bool valid = dtype && dtype->is(Json::Kind::text) && sizes(shape) && sizes(offsets) && offsets->list.size() == 2;
      require(valid, "'" + name + "' is " + json_text(entry) + ", expected dtype, shape and data_offsets");
      const TypeRow *row = nullptr;
      for (const TypeRow &one : TYPES) row = dtype->text == one.safetensors ? &one : row;
      if (row == nullptr) {
        throw StepError("'" + name + "' in " + path.string() + " is of dtype " + dtype->text + ", which NumPy does not have");
      }
      Shape dims;
      for (const Json &size : shape->list) dims.push_back(size.integer);
      const auto begin = static_cast<std::uint64_t>(offsets->list[0].integer), end = static_cast<std::uint64_t>(offsets->list[1].integer);
      Source source{row->type, dims, file, LENGTH + length + begin, nullptr};
      require(end - begin == source.bytes(), "'" + name + "' has " + std::to_string(static_cast<std::int64_t>(end - begin)) + " bytes");
      extents.push_back({source.offset, source.offset + source.bytes()});
      found.tensors.set(name, std::move(source));
    }
    std::sort(extents.begin(), extents.end());
    std::uint64_t end = LENGTH + length;
    for (const auto &[first, last] : extents) {
      require(first == end, "its tensors do not follow one another");
      end = last;
    }
    require(end == file->size(), "its tensors end at byte " + std::to_string(end) + ", the file at " + std::to_string(file->size()));
  } catch (const ValueError &error) {
    throw StepError(path.string() + " is no safetensors file: " + error.what());
  }
  return found;
}

/// Writes the next file, a safetensors file; returns the offsets of the tensors in it.
inline Named<std::uint64_t> write_safetensors(ReplacingFiles &files, const Sources &tensors, const Metadata &metadata) {
  std::vector<std::pair<std::string, const Source *>> order;
  for (const auto &[name, tensor] : tensors) order.emplace_back(name, &tensor);
  std::sort(order.begin(), order.end(), [](auto &one, auto &other) {
    const TypeRow *first = find_row(one.second->type), *second = find_row(other.second->type);
    return first == second ? one.first < other.first : first > second;
  });
  std::string header = std::string("{\"") + SAFETENSORS_METADATA + "\":{" +
                       joined(metadata, [](auto &entry) { return json_text(entry.first, false) + ":" + json_text(entry.second, false); }, ",") + "}";
  Named<std::uint64_t> offsets;
  std::uint64_t end = 0;
  for (const auto &[name, tensor] : order) {
    const auto number = [](auto value) { return std::to_string(value); };
    const std::uint64_t start = end;
    end += tensor->bytes();
    offsets.set(name, start);
    header += "," + json_text(name, false) + ":{\"dtype\":\"" + row_of(tensor->type).safetensors + "\",\"shape\":[" +
              joined(tensor->shape, number, ",") + "],\"data_offsets\":[" + number(start) + "," + number(end) + "]}";
  }
  header += "}";
  header.resize((header.size() + LENGTH - 1) / LENGTH * LENGTH, ' ');
  std::string prefix;
  for (std::size_t i = 0; i < LENGTH; ++i) prefix += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> 8 * i);
  files.next();
  files.write(prefix + header);
  for (const auto &entry : order) {
    entry.second->blocks([&](std::size_t, const char *block, std::size_t count) { files.write(block, count); });
    offsets.set(entry.first, offsets.at(entry.first) + LENGTH + header.size());
  }
  return offsets;
}

}  // namespace onnx_ops::detail
