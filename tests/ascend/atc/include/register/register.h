// A stub of CANN's header: registrations are kept by the type of the node in ONNX.
#pragma once
#include <map>
#include <string>

#include "graph/graph.h"
#include "graph/operator.h"
#include "onnx/proto/ge_onnx.pb.h"

namespace domi {
using Status = uint32_t;
constexpr Status SUCCESS = 0;
constexpr Status FAILED = 1;
enum Framework { CAFFE, TENSORFLOW, ONNX };
enum class ImplyType { BUILDIN, TVM, CUSTOM };
using ParseParamFunc = Status (*)(const google::protobuf::Message *, ge::Operator &);
using ParseOpToGraphFunc = Status (*)(const ge::Operator &, ge::Graph &);

struct OpRegistrationData {
  std::string type;
  ParseParamFunc parse = nullptr;
  ParseOpToGraphFunc build = nullptr;
  std::string origin;
  Framework framework = CAFFE;
  explicit OpRegistrationData(const char *own) : type(own) {}
  OpRegistrationData &FrameworkType(Framework own) { return framework = own, *this; }
  OpRegistrationData &OriginOpType(const char *own) { return origin = own, *this; }
  OpRegistrationData &ParseParamsFn(ParseParamFunc own) { return parse = own, *this; }
  OpRegistrationData &ParseOpToGraphFn(ParseOpToGraphFunc own) { return build = own, *this; }
  OpRegistrationData &ImplyType(domi::ImplyType) { return *this; }
};

inline std::map<std::string, OpRegistrationData> &Registered() {
  static std::map<std::string, OpRegistrationData> all;
  return all;
}

struct Receiver {
  Receiver(const OpRegistrationData &own) { Registered().emplace(own.origin, own); }
};
}  // namespace domi

#define ATC_JOIN_(a, b) a##b
#define ATC_JOIN(a, b) ATC_JOIN_(a, b)
#define REGISTER_CUSTOM_OP(name) static domi::Receiver ATC_JOIN(receiver_, __COUNTER__) = domi::OpRegistrationData(name)
