// The metadata of a step: onnx_ops/training/step.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "conditions.hpp"
#include "ranges.hpp"
#include "tensor_types.hpp"

namespace onnx_ops::detail {

/// What the inputs of a step are.
struct Record {
  Named<std::string> roles, tied;
  Named<Bounds> bounds;
  std::vector<IndexRange> ranges;
  std::vector<Condition> conditions;

  static Record read(const std::string &text) {
    const Json found = JsonReader::read(text);
    const std::string expected = "expected an object {\"format\": ..., \"roles\": ..., \"tied\": ...}";
    if (!found.is(Json::Kind::object)) throw ValueError(expected);
    check_format(found.find("format"));
    Record record;
    for (const auto &[key, names] : {std::pair("roles", &record.roles), std::pair("tied", &record.tied)}) {
      const Json *entries = found.find(key);
      if (!found.find("roles") || !found.find("tied")) throw ValueError(expected);
      for (const auto &[name, value] : entries->entries) {
        if (!value.is(Json::Kind::text)) throw ValueError(quoted(key) + " is not an object of strings");
        names->set(name, value.text);
      }
      if (!entries->is(Json::Kind::object)) throw ValueError(quoted(key) + " is not an object of strings");
    }
    for (const auto &[name, role] : record.roles) {
      const std::set<std::string> known = {PARAMETER, BUFFER, OPTIMIZER, SEED, SETTING};
      if (known.count(role)) continue;
      throw ValueError(quoted(name) + " has the role '" + role + "', expected one of " + joined(known, [](auto &one) { return one; }));
    }
    if (const Json *bounds = found.find("bounds")) {
      if (!bounds->is(Json::Kind::object)) throw ValueError("'bounds' is not an object");
      for (const auto &[name, entry] : bounds->entries) record.bounds.set(name, bounds_of(name, entry));
    }
    for (const char *key : {"ranges", "conditions"}) {
      if (found.find(key) && !found.find(key)->is(Json::Kind::list)) throw ValueError(quoted(key) + " is no list");
    }
    if (const Json *ranges = found.find("ranges")) {
      for (const Json &entry : ranges->list) record.ranges.push_back(range_of(entry));
    }
    if (const Json *conditions = found.find("conditions")) {
      for (const Json &entry : conditions->list) record.conditions.push_back(condition_of(entry));
    }
    return record;
  }

  /// Throws a StepError if the inputs and outputs of the model do not fit.
  void check(const Named<TensorType> &inputs, const Named<TensorType> &outputs) const {
    for (const auto &[kind, values] : {std::pair("input", &inputs), std::pair("output", &outputs)}) {
      for (const auto &[name, tensor] : *values) {
        if (tensor.type == ElementType::undefined) throw StepError(std::string(kind) + " '" + name + "' is no tensor of a known dtype");
      }
    }
    for (const auto &[name, role] : roles) {
      if (!inputs.has(name)) throw StepError(quoted(name) + " has the role '" + role + "', but the step has no input of that name");
      check_role(name, role, inputs.at(name));
    }
    for (const auto &[name, tensor] : outputs) {
      if (!starts_with(name, NEXT)) continue;
      const std::string before = name.substr(std::strlen(NEXT));
      if (!roles.has(before)) throw StepError("output '" + name + "' is the next value of '" + before + "', which is no state of the step");
      check_next(name, tensor, inputs.at(before));
    }
    for (const auto &[other, first] : tied) {
      if (!roles.has(first) || !is_shared(roles.at(first))) {
        throw StepError(quoted(other) + " is tied to '" + first + "', which is no parameter and no buffer of the step");
      }
      if (inputs.has(other)) throw StepError(quoted(other) + " is tied to '" + first + "', but is an input of its own");
    }
    for (const IndexRange &range : ranges) {
      if (!inputs.has(range.input) || roles.has(range.input)) throw StepError(quoted(range.input) + " has a range of indices, but is no input of the batch");
      const TensorType &tensor = inputs.at(range.input);
      const bool integers = find_row(tensor.type) && !is_floating(tensor.type) && tensor.type != ElementType::boolean;
      if (!integers || !range.fits(tensor.shape ? tensor.shape->size() : 0)) {
        throw StepError("input '" + range.input + "' is " + tensor.text() + ", which does not fit its range of indices");
      }
    }
    check_conditions(outputs);
  }

 private:
  static bool is_size(const Json *value) { return value && value->is(Json::Kind::integer) && value->integer >= 0; }

  static Bounds bounds_of(const std::string &name, const Json &entry) {
    const Json *min = entry.find("min"), *max = entry.find("max"), *worker_min = entry.find("worker_min");
    const bool open = max && max->is(Json::Kind::null);
    const bool alike = !worker_min || worker_min->is(Json::Kind::null);
    if (is_size(min) && (open || (is_size(max) && max->integer >= min->integer)) &&
        (alike || (is_size(worker_min) && worker_min->integer <= min->integer))) {
      return {min->integer, open ? std::nullopt : std::optional(max->integer),
              alike ? std::nullopt : std::optional(worker_min->integer)};
    }
    throw ValueError("'bounds' has " + json_text(entry) + " for '" + name + "', expected {\"min\": ..., \"max\": ...}");
  }

  static IndexRange range_of(const Json &entry) {
    const auto integer = [](const Json &value) { return value.is(Json::Kind::integer); };
    if (!entry.has_keys({"input", "low", "high"}, {"ignored", "cuts"})) {
      throw ValueError("a range is " + repr(entry) + ", expected an object with input, low and high");
    }
    const Json *ignored = entry.find("ignored"), *cuts = entry.find("cuts");
    const bool lists = !cuts || (cuts->is(Json::Kind::list) && std::all_of(cuts->list.begin(), cuts->list.end(), [](const Json &cut) {
                                   return cut.is(Json::Kind::list) && (cut.list.size() == 2 || cut.list.size() == 4);
                                 }));
    if (!lists) throw ValueError("a range has the cuts " + repr(*cuts) + ", expected lists of 2 or 4 numbers");
    bool valid = entry.find("input")->is(Json::Kind::text) && integer(*entry.find("low")) && integer(*entry.find("high")) && (!ignored || integer(*ignored));
    IndexRange found;
    for (const Json &cut : cuts ? cuts->list : std::vector<Json>()) {
      auto &own = found.cuts.emplace_back();
      for (const Json &number : cut.list) {
        valid = valid && integer(number);
        own.push_back(number.integer);
      }
    }
    if (!valid) throw ValueError("a range is " + repr(entry) + ", expected the name of an input, and whole numbers");
    found.input = entry.find("input")->text, found.low = entry.find("low")->integer, found.high = entry.find("high")->integer;
    if (ignored) found.ignored = ignored->integer;
    return found;
  }

  static Condition condition_of(const Json &entry) {
    if (!entry.has_keys({"line", "code", "numbers", "expected"})) {
      throw ValueError("a condition is " + repr(entry) + ", expected an object with line, code, numbers and expected");
    }
    const auto text = [](const Json *value) { return value && value->is(Json::Kind::text); };
    if (!entry.find("numbers")->is(Json::Kind::list) || !text(entry.find("line")) || !text(entry.find("code")) || !text(entry.find("expected"))) {
      throw ValueError("a condition is " + repr(entry) + ", expected texts and a list of numbers");
    }
    Condition found{entry.find("line")->text, entry.find("code")->text, entry.find("expected")->text, {}};
    for (const Json &number : entry.find("numbers")->list) {
      const Json *kind = number.find("kind");
      const bool valid = number.has_keys({"place", "kind", "captured"}) && is_size(number.find("place")) && text(number.find("captured")) &&
                         text(kind) && (kind->text == "bool" || kind->text == "int" || kind->text == "float");
      if (!valid) throw ValueError("a condition has the number " + repr(number) + ", expected an object with place, kind and captured");
      found.numbers.push_back({number.find("place")->integer, kind->text, number.find("captured")->text});
    }
    return found;
  }

  static void check_role(const std::string &name, const std::string &role, const TensorType &tensor) {
    const bool fixed = tensor.shape && std::all_of(tensor.shape->begin(), tensor.shape->end(), [](auto &size) { return size.size >= 0; });
    const std::string came = "input '" + name + "' has the role '" + role + "' and is " + tensor.text() + ", expected ";
    if (!fixed) throw StepError(came + "a fixed shape");
    const bool seed = role == SEED && (tensor.type != ElementType::int64 || !tensor.shape->empty());
    const bool real = tensor.type == ElementType::float32 || tensor.type == ElementType::float64;
    if (seed) throw StepError(came + "int64 ()");
    if (role == SETTING && (!real || !tensor.shape->empty())) throw StepError(came + "float32 () or float64 ()");
  }

  static void check_next(const std::string &name, const TensorType &tensor, const TensorType &before) {
    bool fits = tensor.type == before.type;
    if (fits && tensor.shape) {
      fits = tensor.shape->size() == before.shape->size() &&
             std::equal(tensor.shape->begin(), tensor.shape->end(), before.shape->begin(), [](auto &size, auto &own) { return size.size < 0 || size == own; });
    }
    if (!fits) throw StepError("output '" + name + "' is " + tensor.text() + ", expected that of the input, " + before.text());
  }

  void check_conditions(const Named<TensorType> &outputs) const {
    std::set<std::int64_t> places;
    for (const Condition &condition : conditions) {
      for (const auto &number : condition.numbers) places.insert(number.place);
    }
    const auto sized = [](ElementType type, std::size_t size) {
      return TensorType{type, std::vector<Dimension>{{static_cast<std::int64_t>(size), ""}}};
    };
    for (const auto &[name, wanted] : {std::pair(CONDITIONS, sized(ElementType::boolean, conditions.size())),
                                       std::pair(CONDITION_NUMBERS, sized(ElementType::float64, places.size()))}) {
      if (conditions.empty() && !outputs.has(CONDITIONS)) break;
      const TensorType *tensor = outputs.find(name);
      if (tensor && *tensor == wanted) continue;
      throw StepError(std::string("output '") + name + "' is " + (tensor ? tensor->text() : "missing") + ", expected " + wanted.text() + " for the step's conditions");
    }
    if (!places.empty() && *places.rbegin() != static_cast<std::int64_t>(places.size()) - 1) {
      const auto number = [](std::int64_t place) { return std::to_string(place); };
      throw StepError("the step's conditions depend on the numbers [" + joined(places, number) + "], expected all from 0 on");
    }
  }
};

}  // namespace onnx_ops::detail
