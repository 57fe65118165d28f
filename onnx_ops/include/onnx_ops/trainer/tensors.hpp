// Tensors and their element types.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "named.hpp"

namespace onnx_ops {

/// Element types, with the numbers of TensorProto.DataType.
enum class ElementType : std::int32_t {
  undefined = 0, float32 = 1, uint8 = 2, int8 = 3, uint16 = 4, int16 = 5, int32 = 6, int64 = 7, boolean = 9, float16 = 10,
  float64 = 11, uint32 = 12, uint64 = 13, bfloat16 = 16,
};

using Shape = std::vector<std::int64_t>;

namespace detail {

struct TypeRow {
  ElementType type;
  const char *name;         // as in NumPy
  const char *safetensors;  // as in safetensors files
  std::size_t size;         // bytes of an element
};

/// In the order in which safetensors files of onnx_ops have them, from the last to the first.
constexpr TypeRow TYPES[] = {
    {ElementType::boolean, "bool", "BOOL", 1},     {ElementType::uint8, "uint8", "U8", 1},
    {ElementType::int8, "int8", "I8", 1},          {ElementType::int16, "int16", "I16", 2},
    {ElementType::uint16, "uint16", "U16", 2},     {ElementType::float16, "float16", "F16", 2},
    {ElementType::bfloat16, "bfloat16", "BF16", 2}, {ElementType::int32, "int32", "I32", 4},
    {ElementType::uint32, "uint32", "U32", 4},     {ElementType::float32, "float32", "F32", 4},
    {ElementType::float64, "float64", "F64", 8},   {ElementType::int64, "int64", "I64", 8},
    {ElementType::uint64, "uint64", "U64", 8},
};

inline const TypeRow *find_row(ElementType type) {
  for (const TypeRow &row : TYPES) {
    if (row.type == type) return &row;
  }
  return nullptr;
}

inline const TypeRow &row_of(ElementType type) {
  if (const TypeRow *row = find_row(type)) return *row;
  throw StepError("element type " + std::to_string(static_cast<int>(type)) + " of TensorProto.DataType is not supported");
}

inline bool is_floating(ElementType type) {
  return type == ElementType::float16 || type == ElementType::bfloat16 || type == ElementType::float32 ||
         type == ElementType::float64;
}

template <class T>
constexpr bool fits(ElementType type) {
  switch (type) {
    case ElementType::float32: return std::is_same_v<T, float>;
    case ElementType::float64: return std::is_same_v<T, double>;
    case ElementType::int8: return std::is_same_v<T, std::int8_t>;
    case ElementType::int16: return std::is_same_v<T, std::int16_t>;
    case ElementType::int32: return std::is_same_v<T, std::int32_t>;
    case ElementType::int64: return std::is_integral_v<T> && std::is_signed_v<T> && sizeof(T) == 8;
    case ElementType::uint8: return std::is_same_v<T, std::uint8_t>;
    case ElementType::uint16: case ElementType::float16: case ElementType::bfloat16: return std::is_same_v<T, std::uint16_t>;
    case ElementType::uint32: return std::is_same_v<T, std::uint32_t>;
    case ElementType::uint64: return std::is_integral_v<T> && std::is_unsigned_v<T> && sizeof(T) == 8;
    case ElementType::boolean: return std::is_same_v<T, bool> || std::is_same_v<T, std::uint8_t>;
    default: return false;
  }
}

inline std::uint64_t count_of(const Shape &shape) {
  std::uint64_t count = 1;
  for (std::int64_t size : shape) count *= static_cast<std::uint64_t>(size);
  return count;
}

template <class Sizes, class Text>
std::string shape_text(const Sizes &sizes, Text text) {
  std::string found = "(";
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) found += (axis ? ", " : "") + text(sizes[axis]);
  return found + (sizes.size() == 1 ? ",)" : ")");
}

/// Such as "float32 (4, 3)".
inline std::string tensor_text(ElementType type, const Shape &shape) {
  return std::string(row_of(type).name) + " " + shape_text(shape, [](std::int64_t size) { return std::to_string(size); });
}

}  // namespace detail

/// A tensor: element type, shape and contiguous memory, which copies of this object share. 16-bit floating numbers are
/// uint16_t with their bits.
class Tensor {
 public:
  Tensor() : Tensor(ElementType::float32, {0}) {}

  /// A tensor of zeros. Memory of large ones is not touched until it is written.
  Tensor(ElementType type, Shape shape) : type_(type), shape_(std::move(shape)) {
    void *memory = std::calloc(std::max<std::size_t>(bytes(), 1), 1);
    if (memory == nullptr) throw std::bad_alloc();
    memory_ = std::shared_ptr<void>(memory, std::free);
  }

  /// A copy of elements.
  template <class T>
  Tensor(ElementType type, Shape shape, const std::vector<T> &elements) : Tensor(type, std::move(shape)) {
    static_assert(!std::is_same_v<T, bool>, "std::vector<bool> has no elements in memory: use std::uint8_t");
    if (elements.size() != size()) {
      throw StepError("a tensor is " + text() + ", but " + std::to_string(elements.size()) + " elements are given");
    }
    std::copy(elements.begin(), elements.end(), data<T>());
  }

  /// A tensor without dimensions.
  template <class T>
  static Tensor scalar(ElementType type, T value) {
    return Tensor(type, {}, std::vector<T>{value});
  }

  /// A tensor in the memory of another object, which must exist as long as the tensor is used.
  static Tensor view(ElementType type, Shape shape, void *memory) {
    Tensor found(type, {0});
    found.shape_ = std::move(shape);
    found.memory_ = std::shared_ptr<void>(memory, [](void *) {});
    return found;
  }

  ElementType type() const { return type_; }
  const Shape &shape() const { return shape_; }
  std::size_t size() const { return static_cast<std::size_t>(detail::count_of(shape_)); }
  std::size_t bytes() const { return size() * detail::row_of(type_).size; }
  void *memory() const { return memory_.get(); }

  /// The elements; StepError if they are not of type T.
  template <class T>
  T *data() const {
    if (!detail::fits<T>(type_)) throw StepError("a tensor is " + text() + ", which has other elements than are accessed");
    return static_cast<T *>(memory());
  }

  /// The only element; StepError if there are others, or if it is not of type T.
  template <class T>
  T item() const {
    if (size() != 1) throw StepError("a tensor is " + text() + ", expected one element");
    return *data<T>();
  }

  /// A tensor with a copy of the memory.
  Tensor clone() const {
    Tensor copy(type_, shape_);
    std::memcpy(copy.memory(), memory(), bytes());
    return copy;
  }

  /// Type and shape, such as "float32 (4, 3)".
  std::string text() const { return detail::tensor_text(type_, shape_); }

 private:
  ElementType type_;
  Shape shape_;
  std::shared_ptr<void> memory_;
};

using Tensors = Named<Tensor>;
using Metadata = std::map<std::string, std::string>;

}  // namespace onnx_ops
