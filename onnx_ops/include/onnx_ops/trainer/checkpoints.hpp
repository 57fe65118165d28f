// Checkpoints: safetensors files with format version and checksum; onnx_ops/training/checkpoints.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "safetensors.hpp"
#include "sha256.hpp"
#include "step_format.hpp"

namespace onnx_ops::detail {

/// SHA-256 of names, types, shapes and bytes of the tensors, and of the metadata.
inline std::string checksum(const Sources &tensors, const Metadata &metadata) {
  std::map<std::string, const Source *> sorted;
  for (const auto &[name, tensor] : tensors) sorted[name] = &tensor;
  const std::string types = joined(sorted, [](auto &entry) {
    const auto number = [](std::int64_t size) { return std::to_string(size); };
    return "[" + json_text(entry.first, true) + ", \"" + row_of(entry.second->type).name + "\", [" +
           joined(entry.second->shape, number) + "]]";
  });
  const std::string texts = joined(metadata, [](auto &entry) {
    return "[" + json_text(entry.first, true) + ", " + json_text(entry.second, true) + "]";
  });
  const std::string described = "[[" + types + "], [" + texts + "]]";
  Sha256 found;
  found.update(described.data(), described.size());
  for (const auto &[name, tensor] : sorted) {
    tensor->blocks([&](std::size_t, const char *block, std::size_t count) { found.update(block, count); });
  }
  return found.hexadecimal();
}

/// The metadata of a checkpoint: those given, format version and checksum.
inline Metadata checkpoint_metadata(const Sources &tensors, Metadata metadata) {
  metadata[FORMAT_METADATA] = UNCONDITIONAL;
  metadata[CHECKSUM_METADATA] = checksum(tensors, metadata);
  return metadata;
}

/// Writes tensors, and strings as metadata, with format version and checksum.
inline void write_checkpoint(const Path &path, const Sources &tensors, const Metadata &metadata) {
  ReplacingFiles files({path});
  write_safetensors(files, tensors, checkpoint_metadata(tensors, metadata));
  files.finish();
}

/// The tensors of a safetensors file, and its metadata without checksum and format version, which are checked.
inline Safetensors open_checkpoint(const Path &path) {
  Safetensors found = open_safetensors(path);
  const auto version = found.metadata.find(FORMAT_METADATA);
  try {
    Json text;
    text.kind = Json::Kind::text;
    if (version != found.metadata.end()) text.text = version->second;
    check_format(version == found.metadata.end() ? nullptr : &text);
  } catch (const ValueError &error) {
    throw StepError(path.string() + " cannot be read: " + error.what());
  }
  const auto entry = found.metadata.find(CHECKSUM_METADATA);
  if (entry != found.metadata.end()) {
    const std::string expected = entry->second;
    found.metadata.erase(entry);
    if (checksum(found.tensors, found.metadata) != expected) {
      throw StepError(path.string() + " is damaged: its contents do not have the checksum that it was written with");
    }
  }
  found.metadata.erase(FORMAT_METADATA);
  return found;
}

}  // namespace onnx_ops::detail
