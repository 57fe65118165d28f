// A stub of what protoc makes of CANN's ge_onnx.proto.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace google {
namespace protobuf {
struct Message {
  virtual ~Message() = default;
};
}  // namespace protobuf
}  // namespace google

namespace ge {
namespace onnx {
struct AttributeProto {
  std::string name_;
  float f_ = 0;
  int64_t i_ = 0;
  std::vector<int64_t> ints_;
  const std::string &name() const { return name_; }
  float f() const { return f_; }
  int64_t i() const { return i_; }
  const std::vector<int64_t> &ints() const { return ints_; }
};
struct NodeProto : google::protobuf::Message {
  std::string name_;
  std::vector<std::string> inputs_, outputs_;
  std::vector<AttributeProto> attributes_;
  const std::string &name() const { return name_; }
  const std::vector<std::string> &input() const { return inputs_; }
  const std::string &input(int i) const { return inputs_[i]; }
  int input_size() const { return static_cast<int>(inputs_.size()); }
  const std::string &output(int i) const { return outputs_[i]; }
  int output_size() const { return static_cast<int>(outputs_.size()); }
  const std::vector<AttributeProto> &attribute() const { return attributes_; }
};
}  // namespace onnx
}  // namespace ge
