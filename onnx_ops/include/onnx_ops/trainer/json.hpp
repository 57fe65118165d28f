// JSON, with the messages and the texts of Python's module json.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text.hpp"

namespace onnx_ops::detail {

/// A value of JSON.
struct Json {
  enum class Kind { null, boolean, integer, number, text, list, object };

  Kind kind = Kind::null;
  bool truth = false;
  std::int64_t integer = 0;
  double number = 0;
  std::string text;
  std::vector<Json> list;
  std::vector<std::pair<std::string, Json>> entries;

  bool is(Kind other) const { return kind == other; }
  const Json *find(std::string_view key) const {
    for (const auto &[name, value] : entries) {
      if (name == key) return &value;
    }
    return nullptr;
  }
  /// Whether this is an object with all the `needed` keys, and no others but `more`.
  bool has_keys(const std::vector<std::string> &needed, const std::vector<std::string> &more = {}) const {
    if (kind != Kind::object) return false;
    const auto listed = [](auto &names, auto &name) { return std::find(names.begin(), names.end(), name) != names.end(); };
    return std::all_of(needed.begin(), needed.end(), [&](auto &key) { return find(key) != nullptr; }) &&
           std::all_of(entries.begin(), entries.end(), [&](auto &entry) {
             return listed(needed, entry.first) || listed(more, entry.first);
           });
  }
};

/// Reads JSON; the messages of ValueErrors are those of Python 3.11 and 3.12.
class JsonReader {
 public:
  static Json read(std::string_view text) {
    check_utf8(text);
    JsonReader reader(text);
    Json found = reader.value();
    reader.skip();
    if (reader.at_ < text.size()) reader.fail("Extra data", reader.at_);
    return found;
  }

 private:
  static constexpr int DEEPEST = 500;  // so that the stack does not overflow

  explicit JsonReader(std::string_view text) : text_(text) {}

  [[noreturn]] void fail(const std::string &what, std::size_t at) const {
    std::size_t characters = 0, line = 1, column = 1;
    for (std::size_t i = 0; i < at && i < text_.size(); ++i) {
      if ((static_cast<unsigned char>(text_[i]) & 0xc0) == 0x80) continue;
      ++characters;
      column = text_[i] == '\n' ? 1 : column + 1;
      line += text_[i] == '\n';
    }
    throw ValueError(what + ": line " + std::to_string(line) + " column " + std::to_string(column) + " (char " +
                     std::to_string(characters) + ")");
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip() {
    while (at_ < text_.size() && std::strchr(" \t\n\r", text_[at_]) && text_[at_]) ++at_;
  }

  Json value() {
    skip();
    if (++depth_ > DEEPEST) throw ValueError("maximum recursion depth exceeded while decoding a JSON object from a unicode string");
    Json found;
    const std::size_t start = at_;
    if (peek() == '{') {
      found = object();
    } else if (peek() == '[') {
      found.kind = Json::Kind::list;
      ++at_;
      skip();
      while (peek() != ']' || at_ >= text_.size()) {
        found.list.push_back(value());
        skip();
        if (peek() == ']') break;
        if (peek() != ',') fail("Expecting ',' delimiter", at_);
        ++at_;
        skip();
        if (peek() == ']') fail("Expecting value", at_);
      }
      ++at_;
    } else if (peek() == '"') {
      found.kind = Json::Kind::text;
      found.text = string();
    } else if (literal("true") || literal("false")) {
      found.kind = Json::Kind::boolean;
      found.truth = text_[start] == 't';
    } else if (!literal("null")) {
      found = number();
    }
    --depth_;
    return found;
  }

  bool literal(std::string_view name) {
    if (text_.substr(at_, name.size()) != name) return false;
    at_ += name.size();
    return true;
  }

  Json object() {
    Json found;
    found.kind = Json::Kind::object;
    std::unordered_map<std::string, std::size_t> places;
    ++at_;
    skip();
    if (peek() == '}') {
      ++at_;
      return found;
    }
    while (true) {
      skip();
      if (peek() != '"') fail("Expecting property name enclosed in double quotes", at_);
      std::string key = string();
      skip();
      if (peek() != ':') fail("Expecting ':' delimiter", at_);
      ++at_;
      Json one = value();
      const auto [place, added] = places.emplace(key, found.entries.size());
      if (added) found.entries.emplace_back(std::move(key), std::move(one));
      else found.entries[place->second].second = std::move(one);
      skip();
      if (peek() == '}') break;
      if (peek() != ',') fail("Expecting ',' delimiter", at_);
      ++at_;
    }
    ++at_;
    return found;
  }

  Json number() {
    const std::size_t start = at_;
    std::size_t end = start + (peek() == '-');
    const auto digits = [&] {
      const std::size_t first = end;
      while (end < text_.size() && text_[end] >= '0' && text_[end] <= '9') ++end;
      return end > first;
    };
    Json found;
    found.kind = Json::Kind::integer;
    if (end < text_.size() && text_[end] == '0') ++end;
    else if (!digits()) fail("Expecting value", start);
    for (const char *mark : {".", "eE"}) {
      const std::size_t before = end;
      if (end >= text_.size() || !std::strchr(mark, text_[end])) continue;
      ++end;
      if (*mark == 'e' && end < text_.size() && (text_[end] == '-' || text_[end] == '+')) ++end;
      if (digits()) found.kind = Json::Kind::number;
      else end = before;
    }
    const std::string text(text_.substr(start, end - start));
    at_ = end;
    errno = 0;
    found.integer = std::strtoll(text.c_str(), nullptr, 10);
    if (found.is(Json::Kind::integer) && errno == ERANGE) throw ValueError(text + " is no integer of 64 bits");
    found.number = std::strtod(text.c_str(), nullptr);
    return found;
  }

  std::uint32_t escaped_unit() {
    const std::string_view digits = text_.substr(at_ + 1, 4);
    const bool valid = digits.size() == 4 && digits.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
    if (!valid) fail("Invalid \\uXXXX escape", at_);
    at_ += 5;
    return static_cast<std::uint32_t>(std::strtoul(std::string(digits).c_str(), nullptr, 16));
  }

  std::string string() {
    const std::size_t start = at_++;
    std::string found;
    while (true) {
      if (at_ >= text_.size()) fail("Unterminated string starting at", start);
      const char one = text_[at_];
      if (one == '"') break;
      if (static_cast<unsigned char>(one) < 0x20) fail("Invalid control character at", at_);
      if (one != '\\') {
        found += one;
        ++at_;
        continue;
      }
      if (++at_ >= text_.size()) fail("Unterminated string starting at", start);
      static constexpr char NAMES[] = "\"\\/bfnrt", MEANT[] = "\"\\/\b\f\n\r\t";
      if (text_[at_] == 'u') {
        std::uint32_t unit = escaped_unit();
        if (unit >> 10 == 0x36 && text_.substr(at_, 2) == "\\u") {
          ++at_;
          const std::uint32_t low = escaped_unit();
          if (low >> 10 != 0x37) throw ValueError("a text has half of a surrogate pair");
          unit = 0x10000 + ((unit & 0x3ff) << 10 | (low & 0x3ff));
        } else if (unit >> 11 == 0x1b) {
          throw ValueError("a text has half of a surrogate pair");
        }
        append_utf8(found, unit);
      } else if (const char *name = text_[at_] ? std::strchr(NAMES, text_[at_]) : nullptr) {
        found += MEANT[name - NAMES];
        ++at_;
      } else {
        fail("Invalid \\escape", at_ - 1);
      }
    }
    ++at_;
    return found;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

/// A string as `json.dumps` of Python writes it, with or without `ensure_ascii`.
inline std::string json_text(const std::string &text, bool ascii) {
  std::string found = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    const std::uint32_t character = next_character(text, at);
    static constexpr char ESCAPED[] = "\"\\\b\f\n\r\t", NAMES[] = "\"\\bfnrt";
    const char *name = character && character < 0x80 ? std::strchr(ESCAPED, static_cast<int>(character)) : nullptr;
    if (name) found += std::string("\\") + NAMES[name - ESCAPED];
    else if (character >= 0x10000 && ascii) found += hex_text(0xd7c0 + (character >> 10)) + hex_text(0xdc00 | (character & 0x3ff));
    else if (character < 0x20 || (ascii && character >= 0x7f)) found += hex_text(character);
    else found += text.substr(start, at - start);
  }
  return found + "\"";
}

/// A value as `json.dumps` of Python writes it.
inline std::string json_text(const Json &value) {
  switch (value.kind) {
    case Json::Kind::boolean: return value.truth ? "true" : "false";
    case Json::Kind::integer: return std::to_string(value.integer);
    case Json::Kind::number: return float_text(value.number);
    case Json::Kind::text: return json_text(value.text, true);
    case Json::Kind::list: return "[" + joined(value.list, [](auto &one) { return json_text(one); }) + "]";
    case Json::Kind::object:
      return "{" + joined(value.entries, [](auto &one) { return json_text(one.first, true) + ": " + json_text(one.second); }) + "}";
    default: return "null";
  }
}

/// A value as `repr` of Python writes it, but for characters of strings that cannot be printed.
inline std::string repr(const Json &value) {
  const auto text = [](const std::string &given) {
    const bool doubled = given.find('\'') != std::string::npos && given.find('"') == std::string::npos;
    const std::string json = json_text(given, false);
    if (doubled) return json;
    std::string found = "'";
    for (std::size_t at = 1; at + 1 < json.size(); ++at) {
      if (json[at] == '\\' && json[at + 1] == '"') continue;
      found += json[at] == '\'' ? "\\'" : std::string(1, json[at]);
    }
    return found + "'";
  };
  switch (value.kind) {
    case Json::Kind::null: return "None";
    case Json::Kind::boolean: return value.truth ? "True" : "False";
    case Json::Kind::text: return text(value.text);
    case Json::Kind::list: return "[" + joined(value.list, repr) + "]";
    case Json::Kind::object:
      return "{" + joined(value.entries, [&](auto &one) { return text(one.first) + ": " + repr(one.second); }) + "}";
    default: return json_text(value);
  }
}

}  // namespace onnx_ops::detail
