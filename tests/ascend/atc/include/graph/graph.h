// A stub of CANN's header.
#pragma once
#include "graph/operator.h"

namespace ge {
struct Graph {
  std::vector<Operator> inputs;
  std::vector<std::pair<Operator, std::vector<size_t>>> outputs;
  Graph &SetInputs(const std::vector<Operator> &own) {
    inputs = own;
    return *this;
  }
  Graph &SetOutputs(const std::vector<std::pair<Operator, std::vector<size_t>>> &own) {
    outputs = own;
    return *this;
  }
};
}  // namespace ge
