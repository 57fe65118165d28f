// A stub of CANN's header, with what parser plugins use: operators keep their attributes and inputs.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace ge {
using graphStatus = uint32_t;
constexpr graphStatus GRAPH_SUCCESS = 0;
constexpr graphStatus GRAPH_FAILED = 1;

class AscendString {
 public:
  AscendString() = default;
  explicit AscendString(const char *text) : text_(text) {}
  const char *GetString() const { return text_.c_str(); }

 private:
  std::string text_;
};

using Value = std::variant<bool, int64_t, float, AscendString, std::vector<int64_t>>;

class Operator {
 public:
  Operator(std::string name, std::string type) : state_(std::make_shared<State>()) {
    state_->name = std::move(name);
    state_->type = std::move(type);
  }
  Operator &SetAttr(const char *name, bool value) { return Set(name, value); }
  Operator &SetAttr(const char *name, int64_t value) { return Set(name, value); }
  Operator &SetAttr(const char *name, float value) { return Set(name, value); }
  Operator &SetAttr(const char *name, const AscendString &value) { return Set(name, value); }
  Operator &SetAttr(const char *name, const std::vector<int64_t> &value) { return Set(name, value); }
  template <typename T>
  graphStatus GetAttr(const char *name, T &value) const {
    const auto found = state_->attributes.find(name);
    if (found == state_->attributes.end() || !std::holds_alternative<T>(found->second)) {
      return GRAPH_FAILED;
    }
    value = std::get<T>(found->second);
    return GRAPH_SUCCESS;
  }
  Operator &SetInput(const char *name, const Operator &source, const char *output) {
    state_->inputs.emplace_back(name, source);
    (void)output;
    return *this;
  }
  void DynamicInputRegister(const char *, uint32_t count) { state_->input_count = count; }
  void DynamicOutputRegister(const char *, uint32_t) {}
  size_t GetInputsSize() const { return state_->input_count; }

  struct State {
    std::string name, type;
    std::map<std::string, Value> attributes;
    std::vector<std::pair<std::string, Operator>> inputs;
    size_t input_count = 0;
  };
  const State &state() const { return *state_; }

 private:
  Operator &Set(const char *name, Value value) {
    state_->attributes[name] = std::move(value);
    return *this;
  }
  std::shared_ptr<State> state_;
};
}  // namespace ge
