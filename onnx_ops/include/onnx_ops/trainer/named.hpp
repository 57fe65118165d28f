// Named: values by name.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "errors.hpp"

namespace onnx_ops {

/// Values by name, in the order in which they were added.
template <class T>
class Named {
 public:
  using Entry = std::pair<std::string, T>;

  Named() = default;
  Named(std::initializer_list<Entry> entries) {
    for (const Entry &entry : entries) set(entry.first, entry.second);
  }

  T &set(const std::string &name, T value) {
    auto [place, added] = places_.emplace(name, entries_.size());
    if (added) entries_.emplace_back(name, std::move(value));
    else entries_[place->second].second = std::move(value);
    return entries_[place->second].second;
  }
  bool has(const std::string &name) const { return places_.count(name) != 0; }
  const T *find(const std::string &name) const {
    const auto place = places_.find(name);
    return place == places_.end() ? nullptr : &entries_[place->second].second;
  }
  /// The value of a name; StepError if there is none.
  const T &at(const std::string &name) const {
    if (const T *found = find(name)) return *found;
    throw StepError("there is no '" + name + "'");
  }
  std::size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> places_;
};

}  // namespace onnx_ops
