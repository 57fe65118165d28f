// Text: lists of names, numbers as Python writes them, UTF-8.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "errors.hpp"

namespace onnx_ops::detail {

template <class Names, class Text>
std::string joined(const Names &names, Text text, const char *separator = ", ") {
  std::string found;
  bool first = true;
  for (const auto &name : names) {
    found += (first ? "" : separator) + text(name);
    first = false;
  }
  return found;
}

inline std::string quoted(const std::string &name) { return "'" + name + "'"; }

inline bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

/// A number as `str` of a float in Python.
inline std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char text[40];
  for (int digits = 0; digits < 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*e", digits, number);
    if (std::strtod(text, nullptr) == number) break;
  }
  const std::string whole(text);
  const std::size_t mark = whole.find('e');
  const int exponent = std::atoi(whole.c_str() + mark + 1);
  const std::string sign = whole[0] == '-' ? "-" : "";
  std::string digits;
  for (char one : whole.substr(0, mark)) digits += one >= '0' && one <= '9' ? std::string(1, one) : "";
  const int count = static_cast<int>(digits.size());
  if (number != 0 && (exponent < -4 || exponent >= 16)) {
    std::string power = std::to_string(std::abs(exponent));
    if (power.size() < 2) power = "0" + power;
    return sign + digits[0] + (count > 1 ? "." + digits.substr(1) : "") + (exponent < 0 ? "e-" : "e+") + power;
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) return sign + digits + std::string(static_cast<std::size_t>(exponent + 1 - count), '0') + ".0";
  return sign + digits.substr(0, static_cast<std::size_t>(exponent + 1)) + "." + digits.substr(static_cast<std::size_t>(exponent + 1));
}

inline std::string hex_text(std::uint32_t number, const char *format = "\\u%04x") {
  char text[16];
  std::snprintf(text, sizeof text, format, static_cast<unsigned>(number));
  return text;
}

/// Text on one line.
inline std::string one_line(const char *text) {
  std::string line;
  for (; *text; ++text) {
    const bool blank = std::strchr(" \t\r\n", *text) != nullptr;
    if (!blank || (!line.empty() && line.back() != ' ')) line += blank ? ' ' : *text;
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

/// Text that is no JSON, or not the JSON that is expected.
struct ValueError : Error {
  using Error::Error;
};

/// The next character of UTF-8 text from a position, which is moved behind it; ValueError if it is none.
inline std::uint32_t next_character(std::string_view text, std::size_t &at) {
  const unsigned char first = static_cast<unsigned char>(text[at]);
  const std::size_t length = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : first >> 3 == 30 ? 4 : 0;
  static constexpr std::uint32_t LEAST[] = {0, 0, 0x80, 0x800, 0x10000};
  std::uint32_t found = length == 1 ? first : first & (0x7fu >> length);
  bool valid = length > 0 && at + length <= text.size();
  for (std::size_t i = 1; valid && i < length; ++i) {
    const unsigned char byte = static_cast<unsigned char>(text[at + i]);
    valid = byte >> 6 == 2;
    found = found << 6 | (byte & 0x3f);
  }
  if (!valid || found < LEAST[length] || found > 0x10ffff || found >> 11 == 0x1b) {
    throw ValueError("'utf-8' codec can't decode byte " + hex_text(first, "0x%02x") + " in position " + std::to_string(at));
  }
  at += length;
  return found;
}

inline void check_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) next_character(text, at);
}

inline void append_utf8(std::string &text, std::uint32_t character) {
  static constexpr unsigned char FIRST[] = {0, 0xc0, 0xe0, 0xf0};
  const int more = character < 0x80 ? 0 : character < 0x800 ? 1 : character < 0x10000 ? 2 : 3;
  text += static_cast<char>(FIRST[more] | character >> 6 * more);
  for (int part = more - 1; part >= 0; --part) text += static_cast<char>(0x80 | (character >> 6 * part & 0x3f));
}

}  // namespace onnx_ops::detail
