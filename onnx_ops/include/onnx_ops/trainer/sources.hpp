// The contents of tensors in memory or in files.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "files.hpp"
#include "tensors.hpp"

namespace onnx_ops::detail {

constexpr std::size_t BLOCK = 1 << 20;  // bytes that are processed at once

/// A tensor in memory or in a file, from which it is read when it is needed.
struct Source {
  ElementType type = ElementType::undefined;
  Shape shape;
  std::shared_ptr<File> file;
  std::uint64_t offset = 0;
  void *memory = nullptr;

  static Source of(const Tensor &tensor) { return {tensor.type(), tensor.shape(), nullptr, 0, tensor.memory()}; }

  std::size_t bytes() const { return static_cast<std::size_t>(count_of(shape)) * row_of(type).size; }
  bool same_place(const Source &other) const {
    return file == other.file && offset == other.offset && type == other.type && shape == other.shape;
  }
  std::string text() const { return tensor_text(type, shape); }

  /// Calls a function with each block: its offset, memory and number of bytes.
  template <class Visit>
  void blocks(Visit visit) const {
    std::string buffer(file ? std::min(BLOCK, bytes()) : 0, '\0');
    for (std::size_t at = 0; at < bytes(); at += BLOCK) {
      const std::size_t count = std::min(BLOCK, bytes() - at);
      if (file) file->read_into(offset + at, buffer.data(), count);
      visit(at, file ? buffer.data() : static_cast<const char *>(memory) + at, count);
    }
  }

  void read_into(void *target) const {
    if (file) file->read_into(offset, target, bytes());
    else if (bytes()) std::memmove(target, memory, bytes());
  }

  /// A tensor with the contents; pages of zeros take no memory.
  Tensor tensor() const {
    Tensor found(type, shape);
    blocks([&](std::size_t at, const char *block, std::size_t count) {
      if (std::any_of(block, block + count, [](char byte) { return byte != 0; })) {
        std::memcpy(static_cast<char *>(found.memory()) + at, block, count);
      }
    });
    return found;
  }

  /// Whether another tensor has the same type, shape and bytes.
  bool same(const Source &other) const {
    if (type != other.type || shape != other.shape) return false;
    bool equal = true;
    std::string second(std::min(BLOCK, bytes()), '\0');
    blocks([&](std::size_t at, const char *block, std::size_t count) {
      if (other.file) other.file->read_into(other.offset + at, second.data(), count);
      const char *mine = other.file ? second.data() : static_cast<const char *>(other.memory) + at;
      equal = equal && std::memcmp(block, mine, count) == 0;
    });
    return equal;
  }
};

using Sources = Named<Source>;

}  // namespace onnx_ops::detail
