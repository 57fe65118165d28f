// The options of a Trainer.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace onnx_ops {

/// How a Trainer is made.
struct TrainerOptions {
  /// Whether a step whose loss is NaN or infinite throws a StepError and leaves the state as it was. The loss is the first
  /// reported output, if it is one floating number. Steps that scale their loss are not checked: they skip the update.
  bool check_finite = true;
  /// Threads of an operator; 0 for all cores.
  int threads = 0;
  /// The least severe messages that onnxruntime logs: 0 verbose, 1 information, 2 warnings, 3 errors, 4 fatal errors.
  int log_severity = 2;
  /// A library with custom ops, such as the kernels of onnx_ops; without one the function bodies in the file are run.
  std::filesystem::path kernels;
  /// Session configuration entries of onnxruntime, by key.
  std::map<std::string, std::string> session_config;
  /// Whether steps write to a second set of tensors, which needs the memory of what they change once more.
  bool keep_previous = false;
  /// Name of the dimension whose size is the number of samples; needed by `accumulate` if the first axes of the batch's inputs
  /// have different names.
  std::string batch_dimension;
};

}  // namespace onnx_ops
