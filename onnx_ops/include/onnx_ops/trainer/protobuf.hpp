// The wire format of protobuf.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "text.hpp"

namespace onnx_ops::detail {

constexpr int VARINT = 0, FIXED64 = 1, DELIMITED = 2, FIXED32 = 5;  // wire types
constexpr std::uint64_t MOST_BYTES = (std::uint64_t{1} << 31) - 1;  // of a message

/// Bytes that are no message.
struct Damaged : ModelError {
  using ModelError::ModelError;
};

/// A field of a message: the number of a varint, or the bytes of another field; and all bytes of the field.
struct Field {
  int number = 0;
  int wire_type = 0;
  std::uint64_t integer = 0;
  std::string_view bytes, whole;
};

/// Reads a varint from a position, which is moved behind it.
inline std::uint64_t read_varint(std::string_view bytes, std::size_t &at) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (at >= bytes.size()) throw Damaged("the bytes end too early");
    const auto byte = static_cast<unsigned char>(bytes[at++]);
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
  throw Damaged("a number has more than 10 bytes");
}

/// A message, as the list of its fields, whose bytes it refers to.
class Message {
 public:
  explicit Message(std::string_view bytes) {
    for (std::size_t at = 0; at < bytes.size();) {
      Field one;
      const std::size_t start = at;
      const std::uint64_t tag = read_varint(bytes, at);
      one.number = static_cast<int>(tag >> 3), one.wire_type = static_cast<int>(tag & 7);
      if (one.wire_type == VARINT) {
        one.integer = read_varint(bytes, at);
      } else {
        const bool known = one.wire_type == FIXED64 || one.wire_type == FIXED32 || one.wire_type == DELIMITED;
        if (!known) throw Damaged("no field has the wire type " + std::to_string(one.wire_type));
        const std::uint64_t count = one.wire_type == DELIMITED ? read_varint(bytes, at) : one.wire_type == FIXED64 ? 8 : 4;
        if (count > bytes.size() - at) throw Damaged("the bytes end too early");
        one.bytes = bytes.substr(at, static_cast<std::size_t>(count));
        at += static_cast<std::size_t>(count);
      }
      one.whole = bytes.substr(start, at - start);
      fields_.push_back(one);
    }
  }

  const std::vector<Field> &fields() const { return fields_; }

  std::vector<Field> of(int number) const {
    std::vector<Field> found;
    std::copy_if(fields_.begin(), fields_.end(), std::back_inserter(found), [&](auto &one) { return one.number == number; });
    return found;
  }
  bool has(int number) const { return !of(number).empty(); }
  std::vector<Message> messages(int number) const {
    std::vector<Message> found;
    for (const Field &one : of(number)) found.emplace_back(one.bytes);
    return found;
  }
  std::vector<std::string> texts(int number) const {
    std::vector<std::string> found;
    for (const Field &one : of(number)) {
      try {
        check_utf8(one.bytes);
      } catch (const ValueError &error) {
        throw Damaged(std::string("there is a name in it that is no text: ") + error.what());
      }
      found.emplace_back(one.bytes);
    }
    return found;
  }
  std::string text(int number) const {
    const auto found = texts(number);
    return found.empty() ? "" : found.back();
  }
  std::vector<std::int64_t> integers(int number) const {
    std::vector<std::int64_t> found;
    for (const Field &one : of(number)) {
      if (one.wire_type == VARINT) found.push_back(static_cast<std::int64_t>(one.integer));
      for (std::size_t at = 0; at < one.bytes.size();) found.push_back(static_cast<std::int64_t>(read_varint(one.bytes, at)));
    }
    return found;
  }
  std::int64_t integer(int number) const {
    const auto found = integers(number);
    return found.empty() ? 0 : found.back();
  }

 private:
  std::vector<Field> fields_;
};

inline std::string varint_bytes(std::uint64_t value) {
  std::string found;
  for (; value >= 0x80; value >>= 7) found += static_cast<char>((value & 0x7f) | 0x80);
  return found + static_cast<char>(value);
}

inline std::string integer_bytes(int number, std::uint64_t value) {
  return varint_bytes(static_cast<std::uint64_t>(number) << 3 | VARINT) + varint_bytes(value);
}

/// The bytes before those of a length-delimited field.
inline std::string prefix_bytes(int number, std::uint64_t length) {
  return varint_bytes(static_cast<std::uint64_t>(number) << 3 | DELIMITED) + varint_bytes(length);
}

inline std::string delimited_bytes(int number, std::string_view content) {
  return prefix_bytes(number, content.size()).append(content);
}

}  // namespace onnx_ops::detail
