// A stub of CANN's header.
#pragma once
#include "graph/operator.h"

namespace ge {
struct OperatorFactory {
  static Operator CreateOperator(const char *name, const char *type) { return Operator(name, type); }
};
}  // namespace ge
