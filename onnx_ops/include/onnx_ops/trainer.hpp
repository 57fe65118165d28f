// Trains in C++ with the training steps that onnx_ops captures from PyTorch. It needs C++17 and onnxruntime's library; the
// counterpart of onnx_ops.Trainer in Python, whose files it reads and writes.
//
//     onnx_ops::Trainer trainer("step.onnx");
//     trainer.set_learning_rate(1e-3);
//     onnx_ops::Tensors reported = trainer.step({{"x", images}, {"labels", labels}});
//     float loss = reported.at("loss").item<float>();
//     trainer.save("checkpoint.safetensors");
//     trainer.export_model("trained.onnx");
//
// Programs use what is declared here and in errors.hpp, named.hpp, options.hpp, tensor_types.hpp and tensors.hpp of the folder
// `trainer`. The other headers of the folder implement it, in the namespace detail.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "trainer/errors.hpp"
#include "trainer/named.hpp"
#include "trainer/options.hpp"
#include "trainer/tensor_types.hpp"
#include "trainer/tensors.hpp"

namespace onnx_ops {

namespace detail {
struct Step;
}

/// The result of loading a state.
struct IncompatibleKeys {
  std::vector<std::string> missing;     // names that the loaded state lacks; their values have not changed
  std::vector<std::string> unexpected;  // names that the step does not have
};

/// A step of a Trainer with several steps, as `trainer["generator"]` returns it.
class TrainerStep {
 public:
  /// The types of the tensors of `step`, by name.
  const Named<TensorType> &batch_inputs() const;
  bool has_inference_graph() const;
  bool has_evaluation_graph() const;

  /// Makes one step; returns the reported outputs, the loss among them. After `accumulate` the batch may be empty.
  ///
  /// Throws StepError: tensors of wrong names, types or shapes; dimensions of one name with different sizes, or with sizes
  /// outside the bounds of the capture; indices out of range; a condition of the step that is violated; a loss that is not
  /// finite. OnnxruntimeError: a run that fails. After these the state is as before. StateLostError: a run that has failed
  /// during the update of a state in place, now or before.
  Tensors step(const Tensors &batch);

  /// Adds the gradients of a batch to those that the next `step` applies: it makes one update, from the mean of the gradients
  /// over the samples of all their batches. The loss must be the mean over the samples of a batch.
  ///
  /// Returns the reported outputs that do not depend on the gradients. Throws as `step`, after which the accumulated gradients
  /// are as before; StepError also for a batch that failed while its gradients were added, after which there are none, and for
  /// a step file without the graphs of Capture.save(..., prepared=True).
  Tensors accumulate(const Tensors &batch);

  /// The loss and the further reported outputs on the current state, which does not change.
  ///
  /// mode: "eval" for the loss in evaluation mode, of a step captured with evaluation=True; "train" for the loss as the step
  /// computes it. Throws StepError as `step`, and for a step without evaluation graph.
  Tensors evaluate(const Tensors &batch, const std::string &mode = "eval");

  /// The outputs of the inference graph on the current state.
  Tensors infer(const Tensors &inputs);

  /// Writes the inference graph with the current parameters and buffers, as an ONNX model; above 2 GiB they are external data,
  /// in a file with ".data" appended to its name. `averaged` writes the averages of weights that the step updates in place of
  /// the weights.
  void export_model(const std::filesystem::path &path, bool averaged = false) const;

  /// The learning rates of the parameter groups, or of the only one.
  std::vector<double> learning_rates() const;
  double learning_rate() const;
  /// Sets one learning rate for each parameter group, or the same for all; StepError for one that is not finite or less than 0.
  void set_learning_rates(const std::vector<double> &rates);
  void set_learning_rate(double rate);

  /// The seed of the random numbers of the next step.
  std::int64_t seed() const;
  void set_seed(std::int64_t seed);

  /// Copies of the state of this step, by the names of its inputs.
  Tensors state() const;

  TrainerStep(TrainerStep &&) noexcept;
  ~TrainerStep();

 private:
  friend class Trainer;
  explicit TrainerStep(std::unique_ptr<detail::Step> own);
  std::unique_ptr<detail::Step> own_;
};

/// Trains with a training step, or with several that share one state.
///
/// With kernels, and a step file that has the graphs of Capture.save(..., prepared=True), steps update the state in place. One
/// that is refused leaves it as it was; one that fails during its update throws a StateLostError, and another state must be
/// loaded. Else there are two sets of tensors, of which a step reads one and writes the other: no step that fails changes the
/// state. A trainer is not thread-safe.
///
/// Steps that are captured from one model share parameters and buffers of the same name. Optimizer state, seed and learning
/// rates are of each step, and have its name before their own in the state:
///
///     onnx_ops::Trainer trainer({{"generator", "generator.onnx"}, {"discriminator", "discriminator.onnx"}});
///     trainer["generator"].step({{"noise", noise}});
class Trainer {
 public:
  /// Reads the file of a step, and the external data beside it.
  ///
  /// Throws FileError, ModelError, StepError: a file that cannot be read; no model; no training step, or one that
  /// onnxruntime refuses; steps that do not fit one state.
  explicit Trainer(const std::filesystem::path &path, const TrainerOptions &options = {});
  /// Reads the files of several steps, by their names.
  explicit Trainer(const Named<std::filesystem::path> &steps, const TrainerOptions &options = {});
  Trainer(Trainer &&) noexcept;
  Trainer &operator=(Trainer &&) noexcept;
  ~Trainer();

  /// The step of a name; StepError if there is none.
  TrainerStep &operator[](const std::string &step);
  /// The step of a trainer that has one; StepError for a trainer with several.
  TrainerStep &only() const;

  // Those of the only step, as of TrainerStep.
  const Named<TensorType> &batch_inputs() const { return only().batch_inputs(); }
  bool has_inference_graph() const { return only().has_inference_graph(); }
  bool has_evaluation_graph() const { return only().has_evaluation_graph(); }
  Tensors step(const Tensors &batch) { return only().step(batch); }
  Tensors accumulate(const Tensors &batch) { return only().accumulate(batch); }
  Tensors evaluate(const Tensors &batch, const std::string &mode = "eval") { return only().evaluate(batch, mode); }
  Tensors infer(const Tensors &inputs) { return only().infer(inputs); }
  void export_model(const std::filesystem::path &path, bool averaged = false) const { only().export_model(path, averaged); }
  std::vector<double> learning_rates() const { return only().learning_rates(); }
  double learning_rate() const { return only().learning_rate(); }
  void set_learning_rates(const std::vector<double> &rates) { only().set_learning_rates(rates); }
  void set_learning_rate(double rate) { only().set_learning_rate(rate); }
  std::int64_t seed() const { return only().seed(); }
  void set_seed(std::int64_t seed) { only().set_seed(seed); }

  /// Whether steps write to a second set of tensors.
  bool keeps_previous() const;

  /// Copies of the whole state, by name.
  Tensors state() const;

  /// Replaces the state, and discards accumulated gradients; with `strict` the names must be those of the whole state. StepError
  /// for names, types or shapes that do not fit, tied names with different values, and invalid learning rates; the state is
  /// then as it was.
  IncompatibleKeys load_state(const Tensors &state, bool strict = true);

  /// Writes the state to a safetensors file, which onnx_ops.Trainer.load reads too; without `frozen` only what the steps
  /// change, for `load` with strict = false. The old or the new file is complete, whenever the process ends.
  void save(const std::filesystem::path &path, const Metadata &metadata = {}, bool frozen = true) const;

  /// Replaces the state by that in a file of `save` or onnx_ops.Trainer.save; returns the metadata of the file.
  Metadata load(const std::filesystem::path &path, bool strict = true);

 private:
  struct Own;
  std::unique_ptr<Own> own_;
};

/// The tensors of a safetensors file, such as a checkpoint.
Tensors read_tensors(const std::filesystem::path &path);

}  // namespace onnx_ops

#include "trainer/definitions.hpp"
