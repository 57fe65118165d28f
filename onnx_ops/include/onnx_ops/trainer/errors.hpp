// The exceptions of the trainer.
#pragma once

#include <stdexcept>

namespace onnx_ops {

/// Base class of all exceptions of this namespace.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// An error of onnxruntime; the message is that of its exceptions in Python.
struct OnnxruntimeError : Error {
  using Error::Error;
};

/// A model that is no training step, or a state, batch or checkpoint that does not fit one.
struct StepError : Error {
  using Error::Error;
};

/// A state that a step has updated only in part before it failed; another one must be loaded.
struct StateLostError : StepError {
  using StepError::StepError;
};

/// A file that cannot be read or written.
struct FileError : Error {
  using Error::Error;
};

/// A file that is no ONNX model.
struct ModelError : Error {
  using Error::Error;
};

}  // namespace onnx_ops
