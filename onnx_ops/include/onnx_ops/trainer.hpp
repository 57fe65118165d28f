// Trains in C++ with the training steps that onnx_ops captures from PyTorch. It needs C++17, onnxruntime's library and
// onnxruntime.hpp beside it; the counterpart of onnx_ops.Trainer in Python, whose files it reads and writes.
//
//     onnx_ops::Trainer trainer("step.onnx");
//     trainer.set_learning_rate(1e-3);
//     onnx_ops::Tensors reported = trainer.step({{"x", images}, {"labels", labels}});
//     float loss = reported.at("loss").item<float>();
//     trainer.save("checkpoint.safetensors");
//     trainer.export_model("trained.onnx");
//
// The sections `errors`, `tensors` and `the trainer` are what programs use.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "onnxruntime.hpp"

#if defined(__unix__) || defined(__APPLE__)
#define ONNX_OPS_POSIX
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#endif

namespace onnx_ops {

// --- errors ----------------------------------------------------------------------------------------------------------

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

// --- tensors ---------------------------------------------------------------------------------------------------------

/// Element types, with the numbers of TensorProto.DataType.
enum class ElementType : std::int32_t {
  undefined = 0, float32 = 1, uint8 = 2, int8 = 3, uint16 = 4, int16 = 5, int32 = 6, int64 = 7, boolean = 9, float16 = 10,
  float64 = 11, uint32 = 12, uint64 = 13, bfloat16 = 16,
};

using Shape = std::vector<std::int64_t>;

namespace detail {

struct TypeRow {
  ElementType type;
  const char *name;         // as in NumPy
  const char *safetensors;  // as in safetensors files
  std::size_t size;         // bytes of an element
};

/// In the order in which safetensors files of onnx_ops have them, from the last to the first.
constexpr TypeRow TYPES[] = {
    {ElementType::boolean, "bool", "BOOL", 1},     {ElementType::uint8, "uint8", "U8", 1},
    {ElementType::int8, "int8", "I8", 1},          {ElementType::int16, "int16", "I16", 2},
    {ElementType::uint16, "uint16", "U16", 2},     {ElementType::float16, "float16", "F16", 2},
    {ElementType::bfloat16, "bfloat16", "BF16", 2}, {ElementType::int32, "int32", "I32", 4},
    {ElementType::uint32, "uint32", "U32", 4},     {ElementType::float32, "float32", "F32", 4},
    {ElementType::float64, "float64", "F64", 8},   {ElementType::int64, "int64", "I64", 8},
    {ElementType::uint64, "uint64", "U64", 8},
};

inline const TypeRow *find_row(ElementType type) {
  for (const TypeRow &row : TYPES) {
    if (row.type == type) return &row;
  }
  return nullptr;
}

inline const TypeRow &row_of(ElementType type) {
  if (const TypeRow *row = find_row(type)) return *row;
  throw StepError("element type " + std::to_string(static_cast<int>(type)) + " of TensorProto.DataType is not supported");
}

inline bool is_floating(ElementType type) {
  return type == ElementType::float16 || type == ElementType::bfloat16 || type == ElementType::float32 ||
         type == ElementType::float64;
}

template <class T>
constexpr bool fits(ElementType type) {
  switch (type) {
    case ElementType::float32: return std::is_same_v<T, float>;
    case ElementType::float64: return std::is_same_v<T, double>;
    case ElementType::int8: return std::is_same_v<T, std::int8_t>;
    case ElementType::int16: return std::is_same_v<T, std::int16_t>;
    case ElementType::int32: return std::is_same_v<T, std::int32_t>;
    case ElementType::int64: return std::is_integral_v<T> && std::is_signed_v<T> && sizeof(T) == 8;
    case ElementType::uint8: return std::is_same_v<T, std::uint8_t>;
    case ElementType::uint16: case ElementType::float16: case ElementType::bfloat16: return std::is_same_v<T, std::uint16_t>;
    case ElementType::uint32: return std::is_same_v<T, std::uint32_t>;
    case ElementType::uint64: return std::is_integral_v<T> && std::is_unsigned_v<T> && sizeof(T) == 8;
    case ElementType::boolean: return std::is_same_v<T, bool> || std::is_same_v<T, std::uint8_t>;
    default: return false;
  }
}

inline std::uint64_t count_of(const Shape &shape) {
  std::uint64_t count = 1;
  for (std::int64_t size : shape) count *= static_cast<std::uint64_t>(size);
  return count;
}

template <class Sizes, class Text>
std::string shape_text(const Sizes &sizes, Text text) {
  std::string found = "(";
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) found += (axis ? ", " : "") + text(sizes[axis]);
  return found + (sizes.size() == 1 ? ",)" : ")");
}

}  // namespace detail

/// A tensor: element type, shape and contiguous memory, which copies of this object share. 16-bit floating numbers are
/// uint16_t with their bits.
class Tensor {
 public:
  Tensor() : Tensor(ElementType::float32, {0}) {}

  /// A tensor of zeros. Memory of large ones is not touched until it is written.
  Tensor(ElementType type, Shape shape) : type_(type), shape_(std::move(shape)) {
    void *memory = std::calloc(std::max<std::size_t>(bytes(), 1), 1);
    if (memory == nullptr) throw std::bad_alloc();
    memory_ = std::shared_ptr<void>(memory, std::free);
  }

  /// A copy of elements.
  template <class T>
  Tensor(ElementType type, Shape shape, const std::vector<T> &elements) : Tensor(type, std::move(shape)) {
    static_assert(!std::is_same_v<T, bool>, "std::vector<bool> has no elements in memory: use std::uint8_t");
    if (elements.size() != size()) {
      throw StepError("a tensor is " + text() + ", but " + std::to_string(elements.size()) + " elements are given");
    }
    std::copy(elements.begin(), elements.end(), data<T>());
  }

  /// A tensor without dimensions.
  template <class T>
  static Tensor scalar(ElementType type, T value) {
    return Tensor(type, {}, std::vector<T>{value});
  }

  /// A tensor in the memory of another object, which must exist as long as the tensor is used.
  static Tensor view(ElementType type, Shape shape, void *memory) {
    Tensor found(type, {0});
    found.shape_ = std::move(shape);
    found.memory_ = std::shared_ptr<void>(memory, [](void *) {});
    return found;
  }

  ElementType type() const { return type_; }
  const Shape &shape() const { return shape_; }
  std::size_t size() const { return static_cast<std::size_t>(detail::count_of(shape_)); }
  std::size_t bytes() const { return size() * detail::row_of(type_).size; }
  void *memory() const { return memory_.get(); }

  /// The elements; StepError if they are not of type T.
  template <class T>
  T *data() const {
    if (!detail::fits<T>(type_)) throw StepError("a tensor is " + text() + ", which has other elements than are accessed");
    return static_cast<T *>(memory());
  }

  /// The only element; StepError if there are others, or if it is not of type T.
  template <class T>
  T item() const {
    if (size() != 1) throw StepError("a tensor is " + text() + ", expected one element");
    return *data<T>();
  }

  /// A tensor with a copy of the memory.
  Tensor clone() const {
    Tensor copy(type_, shape_);
    std::memcpy(copy.memory(), memory(), bytes());
    return copy;
  }

  /// Type and shape, such as "float32 (4, 3)".
  std::string text() const {
    return std::string(detail::row_of(type_).name) + " " +
           detail::shape_text(shape_, [](std::int64_t size) { return std::to_string(size); });
  }

 private:
  ElementType type_;
  Shape shape_;
  std::shared_ptr<void> memory_;
};

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

using Tensors = Named<Tensor>;
using Metadata = std::map<std::string, std::string>;

/// A dimension of an input: its size, or its name, which is empty for an unknown one.
struct Dimension {
  std::int64_t size = -1;
  std::string name;

  bool operator==(const Dimension &other) const { return size == other.size && name == other.name; }
  std::string text() const { return size >= 0 ? std::to_string(size) : name.empty() ? "?" : name; }
};

/// The type of an input or output; without `shape` its rank is unknown.
struct TensorType {
  ElementType type = ElementType::undefined;
  std::optional<std::vector<Dimension>> shape;

  bool operator==(const TensorType &other) const { return type == other.type && shape == other.shape; }

  /// Such as "float32 (N, 3)".
  std::string text() const {
    const detail::TypeRow *row = detail::find_row(type);
    const std::string name = row ? row->name : "element type " + std::to_string(static_cast<int>(type));
    if (!shape) return name + " of unknown shape";
    return name + " " + detail::shape_text(*shape, [](const Dimension &dimension) { return dimension.text(); });
  }

  /// Whether a shape is this one, which has sizes alone.
  bool is(ElementType other, const Shape &sizes) const {
    if (other != type || !shape || shape->size() != sizes.size()) return false;
    return std::equal(sizes.begin(), sizes.end(), shape->begin(), [](auto size, auto &own) { return size == own.size; });
  }
};

// --- the trainer ------------------------------------------------------------------------------------------------------

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
  struct Own;
  explicit TrainerStep(std::unique_ptr<Own> own);
  std::unique_ptr<Own> own_;
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

// --- definitions ------------------------------------------------------------------------------------------------------
// What follows is not needed to use the trainer: text and JSON, SHA-256, files, protobuf, the metadata of a step, graphs,
// sessions, checks, the state, the update and accumulated gradients, and at the end the functions above.

namespace detail {

template <class Names, class Text>
std::string joined(const Names &names, Text text, const char *separator = ", ") {
  std::string found;
  bool first = true;
  for (const auto &name : names) {
    found += (first ? "" : separator) + text(name);
    first = false;
  }
  return found;
}

inline std::string quoted(const std::string &name) { return "'" + name + "'"; }

inline bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

// --- names and version of the format: onnx_ops/core/step_format.py ----------------------------------------------------

constexpr const char *FORMAT = "2.0", *UNCONDITIONAL = "1.1", *UNVERSIONED = "1.0";
constexpr const char *STEP_METADATA = "onnx_ops.step", *WEIGHTS_METADATA = "onnx_ops.weights";
constexpr const char *FORMAT_METADATA = "onnx_ops.format", *CHECKSUM_METADATA = "onnx_ops.sha256";
constexpr const char *CARRIED_DOMAIN = "onnx_ops.training", *INFERENCE = "inference", *EVALUATION = "evaluation";
constexpr const char *PARAMETER = "parameter", *BUFFER = "buffer", *OPTIMIZER = "optimizer", *SEED = "seed",
                     *SETTING = "setting";
constexpr const char *LEARNING_RATE = "learning_rate", *GRAD_SCALE = "grad_scaler.scale", *AVERAGED = "averaged.";
constexpr const char *IN_PLACE = "in_place", *ACCUMULATION = "accumulation", *COUNTERS = "counters", *UPDATE = "update";
constexpr const char *PREPARED_METADATA = "onnx_ops.prepared", *CHECK_FINITE = "onnx_ops.check_finite";
constexpr const char *CONDITIONS = "condition.holds", *CONDITION_NUMBERS = "condition.numbers";
constexpr const char *NEXT = "next.", *GRADIENT = "grad.";

inline std::string next_name(const std::string &name) { return NEXT + name; }
inline bool is_shared(const std::string &role) { return role == PARAMETER || role == BUFFER; }
inline bool is_rate(const std::string &name) {
  return name == LEARNING_RATE || starts_with(name, std::string(LEARNING_RATE) + ".");
}

// --- numbers as text --------------------------------------------------------------------------------------------------

/// A number as `str` of a float in Python.
inline std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char text[40];
  for (int digits = 0; digits < 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*e", digits, number);
    if (std::strtod(text, nullptr) == number) break;
  }
  const std::string whole(text);
  const std::size_t mark = whole.find('e');
  const int exponent = std::atoi(whole.c_str() + mark + 1);
  const std::string sign = whole[0] == '-' ? "-" : "";
  std::string digits;
  for (char one : whole.substr(0, mark)) digits += one >= '0' && one <= '9' ? std::string(1, one) : "";
  const int count = static_cast<int>(digits.size());
  if (number != 0 && (exponent < -4 || exponent >= 16)) {
    std::string power = std::to_string(std::abs(exponent));
    if (power.size() < 2) power = "0" + power;
    return sign + digits[0] + (count > 1 ? "." + digits.substr(1) : "") + (exponent < 0 ? "e-" : "e+") + power;
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) return sign + digits + std::string(static_cast<std::size_t>(exponent + 1 - count), '0') + ".0";
  return sign + digits.substr(0, static_cast<std::size_t>(exponent + 1)) + "." + digits.substr(static_cast<std::size_t>(exponent + 1));
}

inline std::string hex_text(std::uint32_t number, const char *format = "\\u%04x") {
  char text[16];
  std::snprintf(text, sizeof text, format, static_cast<unsigned>(number));
  return text;
}

// --- JSON -------------------------------------------------------------------------------------------------------------

/// Text that is no JSON, or not the JSON that is expected.
struct ValueError : Error {
  using Error::Error;
};

/// The next character of UTF-8 text from a position, which is moved behind it; ValueError if it is none.
inline std::uint32_t next_character(std::string_view text, std::size_t &at) {
  const unsigned char first = static_cast<unsigned char>(text[at]);
  const std::size_t length = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : first >> 3 == 30 ? 4 : 0;
  static constexpr std::uint32_t LEAST[] = {0, 0, 0x80, 0x800, 0x10000};
  std::uint32_t found = length == 1 ? first : first & (0x7fu >> length);
  bool valid = length > 0 && at + length <= text.size();
  for (std::size_t i = 1; valid && i < length; ++i) {
    const unsigned char byte = static_cast<unsigned char>(text[at + i]);
    valid = byte >> 6 == 2;
    found = found << 6 | (byte & 0x3f);
  }
  if (!valid || found < LEAST[length] || found > 0x10ffff || found >> 11 == 0x1b) {
    throw ValueError("'utf-8' codec can't decode byte " + hex_text(first, "0x%02x") + " in position " + std::to_string(at));
  }
  at += length;
  return found;
}

/// Text on one line.
inline std::string one_line(const char *text) {
  std::string line;
  for (; *text; ++text) {
    const bool blank = std::strchr(" \t\r\n", *text) != nullptr;
    if (!blank || (!line.empty() && line.back() != ' ')) line += blank ? ' ' : *text;
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

inline void check_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) next_character(text, at);
}

inline void append_utf8(std::string &text, std::uint32_t character) {
  static constexpr unsigned char FIRST[] = {0, 0xc0, 0xe0, 0xf0};
  const int more = character < 0x80 ? 0 : character < 0x800 ? 1 : character < 0x10000 ? 2 : 3;
  text += static_cast<char>(FIRST[more] | character >> 6 * more);
  for (int part = more - 1; part >= 0; --part) text += static_cast<char>(0x80 | (character >> 6 * part & 0x3f));
}

/// A value of JSON.
struct Json {
  enum class Kind { null, boolean, integer, number, text, list, object };

  Kind kind = Kind::null;
  bool truth = false;
  std::int64_t integer = 0;
  double number = 0;
  std::string text;
  std::vector<Json> list;
  std::vector<std::pair<std::string, Json>> entries;

  bool is(Kind other) const { return kind == other; }
  const Json *find(std::string_view key) const {
    for (const auto &[name, value] : entries) {
      if (name == key) return &value;
    }
    return nullptr;
  }
  /// Whether this is an object with all the `needed` keys, and no others but `more`.
  bool has_keys(const std::vector<std::string> &needed, const std::vector<std::string> &more = {}) const {
    if (kind != Kind::object) return false;
    const auto listed = [](auto &names, auto &name) { return std::find(names.begin(), names.end(), name) != names.end(); };
    return std::all_of(needed.begin(), needed.end(), [&](auto &key) { return find(key) != nullptr; }) &&
           std::all_of(entries.begin(), entries.end(), [&](auto &entry) {
             return listed(needed, entry.first) || listed(more, entry.first);
           });
  }
};

/// Reads JSON; the messages of ValueErrors are those of Python 3.11 and 3.12.
class JsonReader {
 public:
  static Json read(std::string_view text) {
    check_utf8(text);
    JsonReader reader(text);
    Json found = reader.value();
    reader.skip();
    if (reader.at_ < text.size()) reader.fail("Extra data", reader.at_);
    return found;
  }

 private:
  static constexpr int DEEPEST = 500;  // so that the stack does not overflow

  explicit JsonReader(std::string_view text) : text_(text) {}

  [[noreturn]] void fail(const std::string &what, std::size_t at) const {
    std::size_t characters = 0, line = 1, column = 1;
    for (std::size_t i = 0; i < at && i < text_.size(); ++i) {
      if ((static_cast<unsigned char>(text_[i]) & 0xc0) == 0x80) continue;
      ++characters;
      column = text_[i] == '\n' ? 1 : column + 1;
      line += text_[i] == '\n';
    }
    throw ValueError(what + ": line " + std::to_string(line) + " column " + std::to_string(column) + " (char " +
                     std::to_string(characters) + ")");
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip() {
    while (at_ < text_.size() && std::strchr(" \t\n\r", text_[at_]) && text_[at_]) ++at_;
  }

  Json value() {
    skip();
    if (++depth_ > DEEPEST) throw ValueError("maximum recursion depth exceeded while decoding a JSON object from a unicode string");
    Json found;
    const std::size_t start = at_;
    if (peek() == '{') {
      found = object();
    } else if (peek() == '[') {
      found.kind = Json::Kind::list;
      ++at_;
      skip();
      while (peek() != ']' || at_ >= text_.size()) {
        found.list.push_back(value());
        skip();
        if (peek() == ']') break;
        if (peek() != ',') fail("Expecting ',' delimiter", at_);
        ++at_;
        skip();
        if (peek() == ']') fail("Expecting value", at_);
      }
      ++at_;
    } else if (peek() == '"') {
      found.kind = Json::Kind::text;
      found.text = string();
    } else if (literal("true") || literal("false")) {
      found.kind = Json::Kind::boolean;
      found.truth = text_[start] == 't';
    } else if (!literal("null")) {
      found = number();
    }
    --depth_;
    return found;
  }

  bool literal(std::string_view name) {
    if (text_.substr(at_, name.size()) != name) return false;
    at_ += name.size();
    return true;
  }

  Json object() {
    Json found;
    found.kind = Json::Kind::object;
    std::unordered_map<std::string, std::size_t> places;
    ++at_;
    skip();
    if (peek() == '}') {
      ++at_;
      return found;
    }
    while (true) {
      skip();
      if (peek() != '"') fail("Expecting property name enclosed in double quotes", at_);
      std::string key = string();
      skip();
      if (peek() != ':') fail("Expecting ':' delimiter", at_);
      ++at_;
      Json one = value();
      const auto [place, added] = places.emplace(key, found.entries.size());
      if (added) found.entries.emplace_back(std::move(key), std::move(one));
      else found.entries[place->second].second = std::move(one);
      skip();
      if (peek() == '}') break;
      if (peek() != ',') fail("Expecting ',' delimiter", at_);
      ++at_;
    }
    ++at_;
    return found;
  }

  Json number() {
    const std::size_t start = at_;
    std::size_t end = start + (peek() == '-');
    const auto digits = [&] {
      const std::size_t first = end;
      while (end < text_.size() && text_[end] >= '0' && text_[end] <= '9') ++end;
      return end > first;
    };
    Json found;
    found.kind = Json::Kind::integer;
    if (end < text_.size() && text_[end] == '0') ++end;
    else if (!digits()) fail("Expecting value", start);
    for (const char *mark : {".", "eE"}) {
      const std::size_t before = end;
      if (end >= text_.size() || !std::strchr(mark, text_[end])) continue;
      ++end;
      if (*mark == 'e' && end < text_.size() && (text_[end] == '-' || text_[end] == '+')) ++end;
      if (digits()) found.kind = Json::Kind::number;
      else end = before;
    }
    const std::string text(text_.substr(start, end - start));
    at_ = end;
    errno = 0;
    found.integer = std::strtoll(text.c_str(), nullptr, 10);
    if (found.is(Json::Kind::integer) && errno == ERANGE) throw ValueError(text + " is no integer of 64 bits");
    found.number = std::strtod(text.c_str(), nullptr);
    return found;
  }

  std::uint32_t escaped_unit() {
    const std::string_view digits = text_.substr(at_ + 1, 4);
    const bool valid = digits.size() == 4 && digits.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
    if (!valid) fail("Invalid \\uXXXX escape", at_);
    at_ += 5;
    return static_cast<std::uint32_t>(std::strtoul(std::string(digits).c_str(), nullptr, 16));
  }

  std::string string() {
    const std::size_t start = at_++;
    std::string found;
    while (true) {
      if (at_ >= text_.size()) fail("Unterminated string starting at", start);
      const char one = text_[at_];
      if (one == '"') break;
      if (static_cast<unsigned char>(one) < 0x20) fail("Invalid control character at", at_);
      if (one != '\\') {
        found += one;
        ++at_;
        continue;
      }
      if (++at_ >= text_.size()) fail("Unterminated string starting at", start);
      static constexpr char NAMES[] = "\"\\/bfnrt", MEANT[] = "\"\\/\b\f\n\r\t";
      if (text_[at_] == 'u') {
        std::uint32_t unit = escaped_unit();
        if (unit >> 10 == 0x36 && text_.substr(at_, 2) == "\\u") {
          ++at_;
          const std::uint32_t low = escaped_unit();
          if (low >> 10 != 0x37) throw ValueError("a text has half of a surrogate pair");
          unit = 0x10000 + ((unit & 0x3ff) << 10 | (low & 0x3ff));
        } else if (unit >> 11 == 0x1b) {
          throw ValueError("a text has half of a surrogate pair");
        }
        append_utf8(found, unit);
      } else if (const char *name = text_[at_] ? std::strchr(NAMES, text_[at_]) : nullptr) {
        found += MEANT[name - NAMES];
        ++at_;
      } else {
        fail("Invalid \\escape", at_ - 1);
      }
    }
    ++at_;
    return found;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

/// A string as `json.dumps` of Python writes it, with or without `ensure_ascii`.
inline std::string json_text(const std::string &text, bool ascii) {
  std::string found = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    const std::uint32_t character = next_character(text, at);
    static constexpr char ESCAPED[] = "\"\\\b\f\n\r\t", NAMES[] = "\"\\bfnrt";
    const char *name = character && character < 0x80 ? std::strchr(ESCAPED, static_cast<int>(character)) : nullptr;
    if (name) found += std::string("\\") + NAMES[name - ESCAPED];
    else if (character >= 0x10000 && ascii) found += hex_text(0xd7c0 + (character >> 10)) + hex_text(0xdc00 | (character & 0x3ff));
    else if (character < 0x20 || (ascii && character >= 0x7f)) found += hex_text(character);
    else found += text.substr(start, at - start);
  }
  return found + "\"";
}

/// A value as `json.dumps` of Python writes it.
inline std::string json_text(const Json &value) {
  switch (value.kind) {
    case Json::Kind::boolean: return value.truth ? "true" : "false";
    case Json::Kind::integer: return std::to_string(value.integer);
    case Json::Kind::number: return float_text(value.number);
    case Json::Kind::text: return json_text(value.text, true);
    case Json::Kind::list: return "[" + joined(value.list, [](auto &one) { return json_text(one); }) + "]";
    case Json::Kind::object:
      return "{" + joined(value.entries, [](auto &one) { return json_text(one.first, true) + ": " + json_text(one.second); }) + "}";
    default: return "null";
  }
}

/// A value as `repr` of Python writes it, but for characters of strings that cannot be printed.
inline std::string repr(const Json &value) {
  const auto text = [](const std::string &given) {
    const bool doubled = given.find('\'') != std::string::npos && given.find('"') == std::string::npos;
    const std::string json = json_text(given, false);
    if (doubled) return json;
    std::string found = "'";
    for (std::size_t at = 1; at + 1 < json.size(); ++at) {
      if (json[at] == '\\' && json[at + 1] == '"') continue;
      found += json[at] == '\'' ? "\\'" : std::string(1, json[at]);
    }
    return found + "'";
  };
  switch (value.kind) {
    case Json::Kind::null: return "None";
    case Json::Kind::boolean: return value.truth ? "True" : "False";
    case Json::Kind::text: return text(value.text);
    case Json::Kind::list: return "[" + joined(value.list, repr) + "]";
    case Json::Kind::object:
      return "{" + joined(value.entries, [&](auto &one) { return text(one.first) + ": " + repr(one.second); }) + "}";
    default: return json_text(value);
  }
}

/// Throws a ValueError for the version in a file if it is invalid or its major version is newer; null for one without.
inline void check_format(const Json *version) {
  const std::string found = version == nullptr ? UNVERSIONED : version->text;
  const std::size_t point = found.find('.');
  const auto digits = [](const std::string &text) {
    return !text.empty() && text.size() <= 9 && text.find_first_not_of("0123456789") == std::string::npos;
  };
  const bool valid = (version == nullptr || version->is(Json::Kind::text)) && point != std::string::npos && found[0] != '0' &&
                     digits(found.substr(0, point)) && digits(found.substr(point + 1));
  if (!valid) {
    throw ValueError("its format version is " + json_text(*version) + ", expected a string such as \"" + FORMAT + "\"");
  }
  if (std::atoi(found.c_str()) > std::atoi(FORMAT)) {
    throw ValueError("its format version is " + found + ", expected at most " + FORMAT + ": update onnx_ops");
  }
}

// --- SHA-256 (FIPS 180-4) ---------------------------------------------------------------------------------------------

class Sha256 {
 public:
  void update(const void *bytes, std::size_t count) {
    const auto *next = static_cast<const unsigned char *>(bytes);
    length_ += count;
    while (count > 0) {
      const std::size_t taken = std::min(count, sizeof block_ - used_);
      std::memcpy(block_ + used_, next, taken);
      used_ += taken, next += taken, count -= taken;
      if (used_ == sizeof block_) compress();
    }
  }

  std::string hexadecimal() {
    const std::uint64_t bits = length_ * 8;
    const unsigned char mark = 0x80, zero = 0;
    update(&mark, 1);
    while (used_ != 56) update(&zero, 1);
    for (int shift = 56; shift >= 0; shift -= 8) {
      const auto byte = static_cast<unsigned char>(bits >> shift);
      update(&byte, 1);
    }
    std::string found;
    for (std::uint32_t word : state_) found += hex_text(word, "%08x");
    return found;
  }

 private:
  static std::uint32_t rotated(std::uint32_t word, int count) { return word >> count | word << (32 - count); }

  void compress() {
    static constexpr std::uint32_t K[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
        0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
        0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
        0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
        0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
        0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    std::uint32_t w[64];
    for (int i = 0; i < 16; ++i) {
      w[i] = std::uint32_t{block_[4 * i]} << 24 | std::uint32_t{block_[4 * i + 1]} << 16 | std::uint32_t{block_[4 * i + 2]} << 8 |
             block_[4 * i + 3];
    }
    for (int i = 16; i < 64; ++i) {
      const std::uint32_t s0 = rotated(w[i - 15], 7) ^ rotated(w[i - 15], 18) ^ w[i - 15] >> 3;
      const std::uint32_t s1 = rotated(w[i - 2], 17) ^ rotated(w[i - 2], 19) ^ w[i - 2] >> 10;
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (int i = 0; i < 64; ++i) {
      const std::uint32_t first = h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i];
      const std::uint32_t second = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
    }
    const std::uint32_t added[] = {a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < 8; ++i) state_[i] += added[i];
    used_ = 0;
  }

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  unsigned char block_[64] = {};
  std::size_t used_ = 0;
  std::uint64_t length_ = 0;
};

// --- files ------------------------------------------------------------------------------------------------------------

using Path = std::filesystem::path;

inline FileError file_error(int code, const Path &path) {
  return FileError("[Errno " + std::to_string(code) + "] " + std::strerror(code) + ": '" + path.string() + "'");
}

/// A file that stays open for reading.
class File {
 public:
  explicit File(const Path &path) : path_(path) {
    errno = 0;
    std::error_code found;
    if (std::filesystem::is_directory(path, found)) throw file_error(EISDIR, path);
    stream_.open(path, std::ios::binary | std::ios::ate);
    if (!stream_) throw file_error(errno ? errno : EIO, path);
    size_ = static_cast<std::uint64_t>(stream_.tellg());
  }

  const Path &path() const { return path_; }
  std::uint64_t size() const { return size_; }

  void read_into(std::uint64_t offset, void *memory, std::size_t count) {
    if (count == 0) return;
    stream_.clear();
    stream_.seekg(static_cast<std::streamoff>(offset));
    stream_.read(static_cast<char *>(memory), static_cast<std::streamsize>(count));
    if (static_cast<std::size_t>(stream_.gcount()) != count) {
      throw FileError("[Errno " + std::to_string(EIO) + "] the file was shortened while it was read: '" + path_.string() + "'");
    }
  }

  std::string read(std::uint64_t offset, std::size_t count) {
    std::string found(count, '\0');
    read_into(offset, found.data(), count);
    return found;
  }

 private:
  Path path_;
  std::ifstream stream_;
  std::uint64_t size_ = 0;
};

/// A new folder next to a file that is being written: onnx_ops/graph/staging.py. Folders that ended processes have left there
/// are removed first; a lock shows which these are, where the system has locks.
class StagingFolder {
 public:
  explicit StagingFolder(const Path &parent) {
    std::error_code found;
    for (const auto &entry : std::filesystem::directory_iterator(parent, found)) {
      const std::string name = entry.path().filename().string();
      const bool own = name.size() == PREFIX.size() + 8 && starts_with(name, PREFIX) && name.find_first_not_of(LETTERS, PREFIX.size()) == std::string::npos;
      if (!own || !entry.is_directory(found) || entry.is_symlink(found)) continue;
      const int lock = locked(entry.path());
      if (lock < 0) continue;
      std::filesystem::remove_all(entry.path(), found);
      release(lock);
    }
    std::random_device random;
    do {  // until no other process has removed it as one that was left
      path_ = parent / (std::string(PREFIX) + hex_text(random(), "%08x"));
      if (!std::filesystem::create_directory(path_, found) && found) throw std::filesystem::filesystem_error("", path_, found);
      lock_ = locked(path_);
    } while (!std::filesystem::exists(path_, found));
  }
  StagingFolder(const StagingFolder &) = delete;
  StagingFolder &operator=(const StagingFolder &) = delete;
  ~StagingFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
    release(lock_);
  }

  const Path &path() const { return path_; }

  /// Flushes a file, or the entries of a folder, to disk; on Windows the system does it later.
  static void to_disk(const Path &path) {
#ifdef ONNX_OPS_POSIX
    const int handle = ::open(path.c_str(), O_RDONLY);
    const bool done = handle >= 0 && ::fsync(handle) == 0;
    const int error = errno;
    release(handle);
    if (!done) throw std::filesystem::filesystem_error("", path, std::error_code(error, std::generic_category()));
#else
    static_cast<void>(path);
#endif
  }

 private:
  static constexpr std::string_view PREFIX = ".onnx_ops_", LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789_";

  /// A descriptor that holds the lock of a folder; negative if another process has it, or if there are no locks.
  static int locked(const Path &folder) {
#ifdef ONNX_OPS_POSIX
    const int handle = ::open(folder.c_str(), O_RDONLY);
    if (handle >= 0 && ::flock(handle, LOCK_EX | LOCK_NB) == 0) return handle;
    release(handle);
#else
    static_cast<void>(folder);
#endif
    return -1;
  }

  static void release(int handle) {
#ifdef ONNX_OPS_POSIX
    if (handle >= 0) ::close(handle);
#else
    static_cast<void>(handle);
#endif
  }

  Path path_;
  int lock_ = -1;
};

/// Writes files, which take the places of others at the end: of each the old or the new one is complete, and on disk.
class ReplacingFiles {
 public:
  /// paths: in one folder, in the order in which they are replaced.
  explicit ReplacingFiles(std::vector<Path> paths) : paths_(std::move(paths)) {
    for (const Path &path : paths_) {
      std::error_code found;
      const auto status = std::filesystem::symlink_status(path, found);
      if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
        throw StepError("cannot write " + path.string() + ": it is no regular file");
      }
    }
    named([&] { folder_ = std::make_unique<StagingFolder>(parent()); });
  }

  /// Begins the next file.
  void next() {
    named([&] {
      if (stream_.is_open()) stream_.close();
      check();
      errno = 0;
      stream_.open(folder_->path() / paths_.at(begun_++).filename(), std::ios::binary);
      check();
    });
  }

  void write(const void *bytes, std::size_t count) {
    stream_.write(static_cast<const char *>(bytes), static_cast<std::streamsize>(count));
    named([&] { check(); });
  }
  void write(const std::string &bytes) { write(bytes.data(), bytes.size()); }

  /// Puts all files in their places.
  void finish() {
    named([&] {
      stream_.close();
      check();
      for (const Path &path : paths_) {
        const Path staged = folder_->path() / path.filename();
        if (std::filesystem::exists(path)) std::filesystem::permissions(staged, std::filesystem::status(path).permissions());
        StagingFolder::to_disk(staged);
        std::filesystem::rename(staged, path);
      }
      StagingFolder::to_disk(parent());
    });
  }

 private:
  Path parent() const { return paths_.front().has_parent_path() ? paths_.front().parent_path() : Path("."); }

  void check() {
    if (!stream_) throw std::filesystem::filesystem_error("", std::error_code(errno ? errno : EIO, std::generic_category()));
  }

  /// Throws errors of some work as those of the last path, not of a temporary file.
  template <class Work>
  void named(Work work) const {
    try {
      work();
    } catch (const std::filesystem::filesystem_error &error) {
      throw file_error(error.code().value(), paths_.back());
    }
  }

  std::vector<Path> paths_;
  std::unique_ptr<StagingFolder> folder_;
  std::size_t begun_ = 0;
  std::ofstream stream_;
};

constexpr std::size_t BLOCK = 1 << 20;  // bytes that are processed at once

/// A tensor in memory or in a file, from which it is read when it is needed.
struct Source {
  ElementType type = ElementType::undefined;
  Shape shape;
  std::shared_ptr<File> file;
  std::uint64_t offset = 0;
  void *memory = nullptr;

  static Source of(const Tensor &tensor) { return {tensor.type(), tensor.shape(), nullptr, 0, tensor.memory()}; }

  std::size_t bytes() const { return static_cast<std::size_t>(count_of(shape)) * row_of(type).size; }
  bool same_place(const Source &other) const {
    return file == other.file && offset == other.offset && type == other.type && shape == other.shape;
  }
  std::string text() const {
    return std::string(row_of(type).name) + " " + shape_text(shape, [](std::int64_t size) { return std::to_string(size); });
  }

  /// Calls a function with each block: its offset, memory and number of bytes.
  template <class Visit>
  void blocks(Visit visit) const {
    std::string buffer(file ? std::min(BLOCK, bytes()) : 0, '\0');
    for (std::size_t at = 0; at < bytes(); at += BLOCK) {
      const std::size_t count = std::min(BLOCK, bytes() - at);
      if (file) file->read_into(offset + at, buffer.data(), count);
      visit(at, file ? buffer.data() : static_cast<const char *>(memory) + at, count);
    }
  }

  void read_into(void *target) const {
    if (file) file->read_into(offset, target, bytes());
    else if (bytes()) std::memmove(target, memory, bytes());
  }

  /// A tensor with the contents; pages of zeros take no memory.
  Tensor tensor() const {
    Tensor found(type, shape);
    blocks([&](std::size_t at, const char *block, std::size_t count) {
      if (std::any_of(block, block + count, [](char byte) { return byte != 0; })) {
        std::memcpy(static_cast<char *>(found.memory()) + at, block, count);
      }
    });
    return found;
  }

  /// Whether another tensor has the same type, shape and bytes.
  bool same(const Source &other) const {
    if (type != other.type || shape != other.shape) return false;
    bool equal = true;
    std::string second(std::min(BLOCK, bytes()), '\0');
    blocks([&](std::size_t at, const char *block, std::size_t count) {
      if (other.file) other.file->read_into(other.offset + at, second.data(), count);
      const char *mine = other.file ? second.data() : static_cast<const char *>(other.memory) + at;
      equal = equal && std::memcmp(block, mine, count) == 0;
    });
    return equal;
  }
};

using Sources = Named<Source>;

// --- safetensors files: onnx_ops/training/safetensors_format.py, checkpoints.py ---------------------------------------

constexpr std::size_t LENGTH = 8;                          // bytes of the header's length
constexpr std::uint64_t LONGEST_HEADER = 100'000'000;      // bytes
constexpr const char *SAFETENSORS_METADATA = "__metadata__";

struct Safetensors {
  Sources tensors;
  Metadata metadata;
};

/// The tensors of a file, which are not read yet, and its metadata.
inline Safetensors open_safetensors(const Path &path) {
  const auto file = std::make_shared<File>(path);
  const auto require = [](bool holds, const std::string &problem) {
    if (!holds) throw ValueError(problem);
  };
  const auto sizes = [](const Json *value) {
    return value && value->is(Json::Kind::list) && std::all_of(value->list.begin(), value->list.end(), [](const Json &size) {
             return size.is(Json::Kind::integer) && size.integer >= 0;
           });
  };
  Safetensors found;
  try {
    require(file->size() >= LENGTH, "it is too short for a header");
    std::uint64_t length = 0;
    const std::string prefix = file->read(0, LENGTH);
    for (std::size_t i = LENGTH; i-- > 0;) length = length << 8 | static_cast<unsigned char>(prefix[i]);
    require(length <= std::min(file->size() - LENGTH, LONGEST_HEADER), "its header would have " + std::to_string(length) + " bytes");
    Json header;
    try {
      header = JsonReader::read(file->read(LENGTH, static_cast<std::size_t>(length)));
    } catch (const ValueError &error) {
      throw ValueError(std::string("its header is no JSON: ") + error.what());
    }
    require(header.is(Json::Kind::object), "its header is no object");
    std::vector<std::array<std::uint64_t, 2>> extents;
    for (const auto &[name, entry] : header.entries) {
      if (name == SAFETENSORS_METADATA) {
        const std::string problem = std::string("its '") + SAFETENSORS_METADATA + "' is no object of strings";
        require(entry.is(Json::Kind::object) || entry.is(Json::Kind::null), problem);
        for (const auto &[key, text] : entry.entries) {
          require(text.is(Json::Kind::text), problem);
          found.metadata[key] = text.text;
        }
        continue;
      }
      const Json *dtype = entry.find("dtype"), *shape = entry.find("shape"), *offsets = entry.find("data_offsets");
      const bool valid = dtype && dtype->is(Json::Kind::text) && sizes(shape) && sizes(offsets) && offsets->list.size() == 2;
      require(valid, "'" + name + "' is " + json_text(entry) + ", expected dtype, shape and data_offsets");
      const TypeRow *row = nullptr;
      for (const TypeRow &one : TYPES) row = dtype->text == one.safetensors ? &one : row;
      if (row == nullptr) {
        throw StepError("'" + name + "' in " + path.string() + " is of dtype " + dtype->text + ", which NumPy does not have");
      }
      Shape dims;
      for (const Json &size : shape->list) dims.push_back(size.integer);
      const auto begin = static_cast<std::uint64_t>(offsets->list[0].integer), end = static_cast<std::uint64_t>(offsets->list[1].integer);
      Source source{row->type, dims, file, LENGTH + length + begin, nullptr};
      require(end - begin == source.bytes(), "'" + name + "' has " + std::to_string(static_cast<std::int64_t>(end - begin)) + " bytes");
      extents.push_back({source.offset, source.offset + source.bytes()});
      found.tensors.set(name, std::move(source));
    }
    std::sort(extents.begin(), extents.end());
    std::uint64_t end = LENGTH + length;
    for (const auto &[first, last] : extents) {
      require(first == end, "its tensors do not follow one another");
      end = last;
    }
    require(end == file->size(), "its tensors end at byte " + std::to_string(end) + ", the file at " + std::to_string(file->size()));
  } catch (const ValueError &error) {
    throw StepError(path.string() + " is no safetensors file: " + error.what());
  }
  return found;
}

/// SHA-256 of names, types, shapes and bytes of the tensors, and of the metadata.
inline std::string checksum(const Sources &tensors, const Metadata &metadata) {
  std::map<std::string, const Source *> sorted;
  for (const auto &[name, tensor] : tensors) sorted[name] = &tensor;
  const std::string types = joined(sorted, [](auto &entry) {
    const auto number = [](std::int64_t size) { return std::to_string(size); };
    return "[" + json_text(entry.first, true) + ", \"" + row_of(entry.second->type).name + "\", [" +
           joined(entry.second->shape, number) + "]]";
  });
  const std::string texts = joined(metadata, [](auto &entry) {
    return "[" + json_text(entry.first, true) + ", " + json_text(entry.second, true) + "]";
  });
  const std::string described = "[[" + types + "], [" + texts + "]]";
  Sha256 found;
  found.update(described.data(), described.size());
  for (const auto &[name, tensor] : sorted) {
    tensor->blocks([&](std::size_t, const char *block, std::size_t count) { found.update(block, count); });
  }
  return found.hexadecimal();
}

/// The metadata of a checkpoint: those given, format version and checksum.
inline Metadata checkpoint_metadata(const Sources &tensors, Metadata metadata) {
  metadata[FORMAT_METADATA] = UNCONDITIONAL;
  metadata[CHECKSUM_METADATA] = checksum(tensors, metadata);
  return metadata;
}

/// Writes the next file, a safetensors file; returns the offsets of the tensors in it.
inline Named<std::uint64_t> write_safetensors(ReplacingFiles &files, const Sources &tensors, const Metadata &metadata) {
  std::vector<std::pair<std::string, const Source *>> order;
  for (const auto &[name, tensor] : tensors) order.emplace_back(name, &tensor);
  std::sort(order.begin(), order.end(), [](auto &one, auto &other) {
    const TypeRow *first = find_row(one.second->type), *second = find_row(other.second->type);
    return first == second ? one.first < other.first : first > second;
  });
  std::string header = std::string("{\"") + SAFETENSORS_METADATA + "\":{" +
                       joined(metadata, [](auto &entry) { return json_text(entry.first, false) + ":" + json_text(entry.second, false); }, ",") + "}";
  Named<std::uint64_t> offsets;
  std::uint64_t end = 0;
  for (const auto &[name, tensor] : order) {
    const auto number = [](auto value) { return std::to_string(value); };
    const std::uint64_t start = end;
    end += tensor->bytes();
    offsets.set(name, start);
    header += "," + json_text(name, false) + ":{\"dtype\":\"" + row_of(tensor->type).safetensors + "\",\"shape\":[" +
              joined(tensor->shape, number, ",") + "],\"data_offsets\":[" + number(start) + "," + number(end) + "]}";
  }
  header += "}";
  header.resize((header.size() + LENGTH - 1) / LENGTH * LENGTH, ' ');
  std::string prefix;
  for (std::size_t i = 0; i < LENGTH; ++i) prefix += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> 8 * i);
  files.next();
  files.write(prefix + header);
  for (const auto &entry : order) {
    entry.second->blocks([&](std::size_t, const char *block, std::size_t count) { files.write(block, count); });
    offsets.set(entry.first, offsets.at(entry.first) + LENGTH + header.size());
  }
  return offsets;
}

/// Writes tensors, and strings as metadata, with format version and checksum.
inline void write_checkpoint(const Path &path, const Sources &tensors, const Metadata &metadata) {
  ReplacingFiles files({path});
  write_safetensors(files, tensors, checkpoint_metadata(tensors, metadata));
  files.finish();
}

/// The tensors of a safetensors file, and its metadata without checksum and format version, which are checked.
inline Safetensors open_checkpoint(const Path &path) {
  Safetensors found = open_safetensors(path);
  const auto version = found.metadata.find(FORMAT_METADATA);
  try {
    Json text;
    text.kind = Json::Kind::text;
    if (version != found.metadata.end()) text.text = version->second;
    check_format(version == found.metadata.end() ? nullptr : &text);
  } catch (const ValueError &error) {
    throw StepError(path.string() + " cannot be read: " + error.what());
  }
  const auto entry = found.metadata.find(CHECKSUM_METADATA);
  if (entry != found.metadata.end()) {
    const std::string expected = entry->second;
    found.metadata.erase(entry);
    if (checksum(found.tensors, found.metadata) != expected) {
      throw StepError(path.string() + " is damaged: its contents do not have the checksum that it was written with");
    }
  }
  found.metadata.erase(FORMAT_METADATA);
  return found;
}

// --- protobuf ---------------------------------------------------------------------------------------------------------
// The fields that are needed, by the numbers of onnx.proto.

namespace field {
constexpr int MODEL_GRAPH = 7, MODEL_IMPORTS = 8, MODEL_METADATA = 14, MODEL_FUNCTIONS = 25;
constexpr int MODEL_IR_VERSION = 1, MODEL_PRODUCER = 2, MODEL_PRODUCER_VERSION = 3;
constexpr int GRAPH_NODES = 1, GRAPH_NAME = 2, GRAPH_INITIALIZERS = 5, GRAPH_INPUTS = 11, GRAPH_OUTPUTS = 12, GRAPH_TYPES = 13,
              GRAPH_SPARSE = 15;
constexpr int NODE_INPUTS = 1, NODE_OUTPUTS = 2, NODE_OPERATOR = 4, NODE_ATTRIBUTES = 5, NODE_DOMAIN = 7, NODE_OVERLOAD = 8;
constexpr int ATTRIBUTE_TENSOR = 5, ATTRIBUTE_GRAPH = 6, ATTRIBUTE_GRAPHS = 11;
constexpr int FUNCTION_NAME = 1, FUNCTION_INPUTS = 4, FUNCTION_OUTPUTS = 5, FUNCTION_NODES = 7, FUNCTION_IMPORTS = 9,
              FUNCTION_DOMAIN = 10, FUNCTION_TYPES = 12, FUNCTION_OVERLOAD = 13;
constexpr int TENSOR_DIMS = 1, TENSOR_TYPE = 2, TENSOR_FLOATS = 4, TENSOR_INT32S = 5, TENSOR_INT64S = 7, TENSOR_NAME = 8,
              TENSOR_RAW = 9, TENSOR_DOUBLES = 10, TENSOR_UINT64S = 11, TENSOR_EXTERNAL = 13, TENSOR_LOCATION = 14;
constexpr int VALUE_NAME = 1, VALUE_TYPE = 2, TYPE_TENSOR = 1, TENSOR_TYPE_ELEMENT = 1, TENSOR_TYPE_SHAPE = 2, SHAPE_DIMENSIONS = 1,
              DIMENSION_SIZE = 1, DIMENSION_NAME = 2;
constexpr int KEY = 1, VALUE = 2;                  // of StringStringEntryProto
constexpr int IMPORT_DOMAIN = 1;
}  // namespace field

constexpr int VARINT = 0, FIXED64 = 1, DELIMITED = 2, FIXED32 = 5;  // wire types
constexpr std::uint64_t MOST_BYTES = (std::uint64_t{1} << 31) - 1;  // of a message

/// Bytes that are no message.
struct Damaged : ModelError {
  using ModelError::ModelError;
};

/// A field of a message: the number of a varint, or the bytes of another field; and all bytes of the field.
struct Field {
  int number = 0;
  int wire_type = 0;
  std::uint64_t integer = 0;
  std::string_view bytes, whole;
};

/// Reads a varint from a position, which is moved behind it.
inline std::uint64_t read_varint(std::string_view bytes, std::size_t &at) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (at >= bytes.size()) throw Damaged("the bytes end too early");
    const auto byte = static_cast<unsigned char>(bytes[at++]);
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
  throw Damaged("a number has more than 10 bytes");
}

/// A message, as the list of its fields, whose bytes it refers to.
class Message {
 public:
  explicit Message(std::string_view bytes) {
    for (std::size_t at = 0; at < bytes.size();) {
      Field one;
      const std::size_t start = at;
      const std::uint64_t tag = read_varint(bytes, at);
      one.number = static_cast<int>(tag >> 3), one.wire_type = static_cast<int>(tag & 7);
      if (one.wire_type == VARINT) {
        one.integer = read_varint(bytes, at);
      } else {
        const bool known = one.wire_type == FIXED64 || one.wire_type == FIXED32 || one.wire_type == DELIMITED;
        if (!known) throw Damaged("no field has the wire type " + std::to_string(one.wire_type));
        const std::uint64_t count = one.wire_type == DELIMITED ? read_varint(bytes, at) : one.wire_type == FIXED64 ? 8 : 4;
        if (count > bytes.size() - at) throw Damaged("the bytes end too early");
        one.bytes = bytes.substr(at, static_cast<std::size_t>(count));
        at += static_cast<std::size_t>(count);
      }
      one.whole = bytes.substr(start, at - start);
      fields_.push_back(one);
    }
  }

  const std::vector<Field> &fields() const { return fields_; }

  std::vector<Field> of(int number) const {
    std::vector<Field> found;
    std::copy_if(fields_.begin(), fields_.end(), std::back_inserter(found), [&](auto &one) { return one.number == number; });
    return found;
  }
  bool has(int number) const { return !of(number).empty(); }
  std::vector<Message> messages(int number) const {
    std::vector<Message> found;
    for (const Field &one : of(number)) found.emplace_back(one.bytes);
    return found;
  }
  std::vector<std::string> texts(int number) const {
    std::vector<std::string> found;
    for (const Field &one : of(number)) {
      try {
        check_utf8(one.bytes);
      } catch (const ValueError &error) {
        throw Damaged(std::string("there is a name in it that is no text: ") + error.what());
      }
      found.emplace_back(one.bytes);
    }
    return found;
  }
  std::string text(int number) const {
    const auto found = texts(number);
    return found.empty() ? "" : found.back();
  }
  std::vector<std::int64_t> integers(int number) const {
    std::vector<std::int64_t> found;
    for (const Field &one : of(number)) {
      if (one.wire_type == VARINT) found.push_back(static_cast<std::int64_t>(one.integer));
      for (std::size_t at = 0; at < one.bytes.size();) found.push_back(static_cast<std::int64_t>(read_varint(one.bytes, at)));
    }
    return found;
  }
  std::int64_t integer(int number) const {
    const auto found = integers(number);
    return found.empty() ? 0 : found.back();
  }

 private:
  std::vector<Field> fields_;
};

inline std::string varint_bytes(std::uint64_t value) {
  std::string found;
  for (; value >= 0x80; value >>= 7) found += static_cast<char>((value & 0x7f) | 0x80);
  return found + static_cast<char>(value);
}

inline std::string integer_bytes(int number, std::uint64_t value) {
  return varint_bytes(static_cast<std::uint64_t>(number) << 3 | VARINT) + varint_bytes(value);
}

/// The bytes before those of a length-delimited field.
inline std::string prefix_bytes(int number, std::uint64_t length) {
  return varint_bytes(static_cast<std::uint64_t>(number) << 3 | DELIMITED) + varint_bytes(length);
}

inline std::string delimited_bytes(int number, std::string_view content) {
  return prefix_bytes(number, content.size()).append(content);
}

// --- the model of a step ----------------------------------------------------------------------------------------------

/// The types in ValueInfoProto messages, by name.
inline Named<TensorType> types_of(const std::vector<Message> &values) {
  Named<TensorType> found;
  for (const Message &value : values) {
    TensorType tensor;
    for (const Message &type : value.messages(field::VALUE_TYPE)) {
      for (const Message &described : type.messages(field::TYPE_TENSOR)) {
        tensor.type = static_cast<ElementType>(described.integer(field::TENSOR_TYPE_ELEMENT));
        for (const Message &shape : described.messages(field::TENSOR_TYPE_SHAPE)) {
          tensor.shape.emplace();
          for (const Message &dimension : shape.messages(field::SHAPE_DIMENSIONS)) {
            const bool known = dimension.has(field::DIMENSION_SIZE);
            tensor.shape->push_back({known ? dimension.integer(field::DIMENSION_SIZE) : -1, known ? "" : dimension.text(field::DIMENSION_NAME)});
          }
        }
      }
    }
    found.set(value.text(field::VALUE_NAME), tensor);
  }
  return found;
}

/// The value of a key in the metadata of a model.
inline std::optional<std::string> metadata_of(const Message &model, const std::string &key) {
  std::optional<std::string> found;
  for (const Message &entry : model.messages(field::MODEL_METADATA)) {
    if (entry.text(field::KEY) == key) found = entry.text(field::VALUE);
  }
  return found;
}

/// A part of a file with the contents of a tensor.
struct Extent {
  std::uint64_t offset = 0, length = 0;
};

/// A model file without the contents of large initializers.
struct LightModel {
  std::string bytes;
  std::shared_ptr<File> file;
  std::unordered_map<std::string, Extent> contents;  // of these initializers
};

/// Finds the fields of messages in a file.
class Scanner {
 public:
  struct Place {
    int number = 0;
    int wire_type = 0;
    std::uint64_t start = 0, value = 0, end = 0;  // of a length-delimited field `value` is the first byte after the length
  };

  explicit Scanner(File &file) : file_(file) {}

  std::vector<Place> fields(std::uint64_t at, std::uint64_t end) {
    std::vector<Place> found;
    while (at < end) {
      Place one;
      one.start = at;
      const std::uint64_t tag = varint(at);
      one.number = static_cast<int>(tag >> 3), one.wire_type = static_cast<int>(tag & 7);
      one.value = at;
      if (one.wire_type == VARINT) {
        varint(at);
      } else if (one.wire_type == DELIMITED) {
        const std::uint64_t length = varint(at);
        one.value = at;
        if (length > end - at) throw Damaged("a field ends after its message");
        at += length;
      } else if (one.wire_type == FIXED64 || one.wire_type == FIXED32) {
        at += one.wire_type == FIXED64 ? 8 : 4;
      } else {
        throw Damaged("no field has the wire type " + std::to_string(one.wire_type));
      }
      if (at > end) throw Damaged("a field ends after its message");
      one.end = at;
      found.push_back(one);
    }
    return found;
  }

 private:
  static constexpr std::uint64_t WINDOW = 1 << 16;  // bytes that are read at once

  std::uint64_t varint(std::uint64_t &at) {
    if (at < start_ || at + 10 > start_ + window_.size()) {
      window_ = at < file_.size() ? file_.read(at, static_cast<std::size_t>(std::min(WINDOW, file_.size() - at))) : "";
      start_ = at;
    }
    std::size_t within = static_cast<std::size_t>(at - start_);
    const std::uint64_t found = read_varint(window_, within);
    at = start_ + within;
    return found;
  }

  File &file_;
  std::string window_;
  std::uint64_t start_ = 0;
};

/// Reads a model; the contents of initializers of more than LARGE_TENSOR bytes stay in the file.
inline LightModel read_light(const Path &path) {
  constexpr std::uint64_t LARGE_TENSOR = 1 << 15;
  LightModel found;
  found.file = std::make_shared<File>(path);
  File &file = *found.file;
  const auto part = [&](std::uint64_t start, std::uint64_t end) { return file.read(start, static_cast<std::size_t>(end - start)); };
  try {
    Scanner scanner(file);
    std::optional<Scanner::Place> graph;
    for (const Scanner::Place &one : scanner.fields(0, file.size())) {
      if (one.number != field::MODEL_GRAPH) continue;
      if (graph || one.wire_type != DELIMITED) throw Damaged("there are several graphs in it");
      graph = one;
    }
    if (!graph) throw Damaged("there is no graph in it");
    std::string inner;
    std::uint64_t copied = graph->value;
    for (const Scanner::Place &one : scanner.fields(graph->value, graph->end)) {
      if (one.number != field::GRAPH_INITIALIZERS || one.end - one.value < LARGE_TENSOR) continue;
      std::vector<Scanner::Place> raw;
      bool external = false;
      for (const Scanner::Place &member : scanner.fields(one.value, one.end)) {
        if (member.number == field::TENSOR_RAW) raw.push_back(member);
        external = external || member.number == field::TENSOR_LOCATION;
      }
      if (raw.size() != 1 || external || raw[0].end - raw[0].value < LARGE_TENSOR) continue;
      const std::string own = part(one.value, raw[0].start) + part(raw[0].end, one.end);
      found.contents[Message(own).text(field::TENSOR_NAME)] = {raw[0].value, raw[0].end - raw[0].value};
      inner += part(copied, one.start) + delimited_bytes(field::GRAPH_INITIALIZERS, own);
      copied = one.end;
    }
    inner += part(copied, graph->end);
    found.bytes = part(0, graph->start) + delimited_bytes(field::MODEL_GRAPH, inner) + part(graph->end, file.size());
    const Message model(found.bytes);  // refuses damaged fields
  } catch (const Damaged &error) {
    throw ModelError(path.string() + " is no ONNX model: " + error.what());
  }
  return found;
}

/// The external data of the initializers of a model, and the contents of large ones in its own file.
class Contents {
 public:
  Contents(const Path &path, const LightModel &model) : path_(path), model_(model) {}

  /// The contents of an initializer.
  Source source(const Message &tensor) {
    const std::string name = tensor.text(field::TENSOR_NAME);
    Source found{static_cast<ElementType>(tensor.integer(field::TENSOR_TYPE)), tensor.integers(field::TENSOR_DIMS), nullptr, 0, nullptr};
    const auto own = model_.contents.find(name);
    std::uint64_t length = 0;
    if (own != model_.contents.end()) {
      found.file = model_.file, found.offset = own->second.offset, length = own->second.length;
    } else if (is_external(tensor)) {
      const auto [file, extent] = external(tensor);
      found.file = file, found.offset = extent.offset, length = extent.length;
    } else {
      return Source::of(kept_.emplace_back(embedded(tensor, found)));
    }
    const bool valid = std::all_of(found.shape.begin(), found.shape.end(), [](auto size) { return size >= 0; });
    if (!valid || found.bytes() != length) throw unreadable(name);
    return found;
  }

  /// The bytes of an initializer with its contents.
  std::string whole(const Message &tensor, std::string_view bytes) {
    const std::string name = tensor.text(field::TENSOR_NAME);
    const auto own = model_.contents.find(name);
    if (own == model_.contents.end() && !is_external(tensor)) return std::string(bytes);
    const auto [file, extent] = own == model_.contents.end() ? external(tensor) : std::pair(model_.file, own->second);
    std::string found;
    for (const Field &one : tensor.fields()) {
      if (one.number != field::TENSOR_EXTERNAL && one.number != field::TENSOR_LOCATION) found += one.whole;
    }
    return found + delimited_bytes(field::TENSOR_RAW, file->read(extent.offset, static_cast<std::size_t>(extent.length)));
  }

  /// Checks that external data exist, and that the safetensors file of a model is the one that was written with it.
  void check_files(const Message &model, const Message &graph) {
    for (const Message &tensor : graph.messages(field::GRAPH_INITIALIZERS)) {
      if (is_external(tensor)) external(tensor);
    }
    const auto text = metadata_of(model, WEIGHTS_METADATA);
    if (!text) return;
    Json record;
    try {
      record = JsonReader::read(*text);
    } catch (const ValueError &error) {
      throw StepError(std::string("the entry '") + WEIGHTS_METADATA + "' of the model's metadata cannot be read: " + error.what());
    }
    const Json *file = record.find("file"), *expected = record.find("sha256");
    if (!file || !expected) {
      throw StepError(std::string("the entry '") + WEIGHTS_METADATA + "' of the model's metadata cannot be read: expected file and sha256");
    }
    std::vector<Message> external;
    for (const Message &tensor : graph.messages(field::GRAPH_INITIALIZERS)) {
      if (is_external(tensor) && entries(tensor)["location"] == file->text) external.push_back(tensor);
    }
    if (external.empty()) return;
    const Path path = path_.parent_path() / file->text;
    const Safetensors weights = open_safetensors(path);
    const auto checksum = weights.metadata.find(CHECKSUM_METADATA);
    bool same = checksum == weights.metadata.end() ? expected->is(Json::Kind::null) : expected->text == checksum->second;
    for (const auto &entry : weights.tensors) files_[file->text] = entry.second.file;
    for (const Message &tensor : external) {
      const Source *found = weights.tensors.find(tensor.text(field::TENSOR_NAME));
      same = same && found && found->same_place(source(tensor));
    }
    if (!same) throw StepError(path.string() + " does not belong to " + path_.string() + ", expected the weights that were saved with it");
  }

 private:
  static bool is_external(const Message &tensor) { return tensor.integer(field::TENSOR_LOCATION) == 1; }
  static StepError unreadable(const std::string &name) {
    return StepError("the start of '" + name + "' cannot be read: it does not have the bytes of its dtype and shape");
  }
  static std::map<std::string, std::string> entries(const Message &tensor) {
    std::map<std::string, std::string> found;
    for (const Message &entry : tensor.messages(field::TENSOR_EXTERNAL)) found[entry.text(field::KEY)] = entry.text(field::VALUE);
    return found;
  }

  std::pair<std::shared_ptr<File>, Extent> external(const Message &tensor) {
    auto found = entries(tensor);
    const std::string name = quoted(tensor.text(field::TENSOR_NAME)), location = found["location"];
    const Path relative(location);
    if (location.empty() || relative.is_absolute() || std::find(relative.begin(), relative.end(), "..") != relative.end()) {
      throw ModelError("tensor " + name + " has its data in '" + location + "', expected a file below the model's folder");
    }
    const Path path = path_.parent_path() / relative;
    auto &file = files_[location];
    if (!file) {
      std::error_code ignored;
      if (!std::filesystem::is_regular_file(path, ignored)) {
        throw ModelError("tensor " + name + " has its data in " + path.string() + ", which does not exist");
      }
      file = std::make_shared<File>(path);
    }
    Extent extent;
    const auto number = [&](const std::string &text) {
      if (text.empty() || text.size() > 18 || text.find_first_not_of("0123456789") != std::string::npos) {
        throw ModelError("tensor " + name + " has an invalid extent of external data: '" + text + "'");
      }
      return static_cast<std::uint64_t>(std::strtoull(text.c_str(), nullptr, 10));
    };
    if (found.count("offset")) extent.offset = number(found["offset"]);
    const std::uint64_t rest = file->size() - std::min(extent.offset, file->size());
    extent.length = found.count("length") ? number(found["length"]) : rest;
    if (extent.length > rest) {
      throw ModelError("tensor " + name + " has its data in " + path.string() + " up to byte " +
                       std::to_string(extent.offset + extent.length) + ", which ends at " + std::to_string(file->size()));
    }
    return {file, extent};
  }

  /// A tensor whose contents are in its message.
  static Tensor embedded(const Message &tensor, const Source &described) {
    const std::string name = tensor.text(field::TENSOR_NAME);
    const bool valid = std::all_of(described.shape.begin(), described.shape.end(), [](auto size) { return size >= 0; });
    if (!valid || count_of(described.shape) > MOST_BYTES) throw unreadable(name);
    Tensor found(described.type, described.shape);
    std::string bytes;
    if (tensor.has(field::TENSOR_RAW)) {
      bytes = tensor.of(field::TENSOR_RAW).back().bytes;
    } else if (found.type() == ElementType::float32 || found.type() == ElementType::float64) {
      for (const Field &one : tensor.of(found.type() == ElementType::float32 ? field::TENSOR_FLOATS : field::TENSOR_DOUBLES)) bytes += one.bytes;
    } else {
      const bool is_unsigned = found.type() == ElementType::uint32 || found.type() == ElementType::uint64;
      const int number = is_unsigned ? field::TENSOR_UINT64S : found.type() == ElementType::int64 ? field::TENSOR_INT64S : field::TENSOR_INT32S;
      const std::size_t size = row_of(found.type()).size;
      for (std::int64_t value : tensor.integers(number)) {
        for (std::size_t i = 0; i < size; ++i) bytes += static_cast<char>(static_cast<std::uint64_t>(value) >> 8 * i);
      }
    }
    if (bytes.size() != found.bytes()) throw unreadable(name);
    std::memcpy(found.memory(), bytes.data(), bytes.size());
    return found;
  }

  Path path_;
  const LightModel &model_;
  std::unordered_map<std::string, std::shared_ptr<File>> files_;
  std::vector<Tensor> kept_;
};

// --- the metadata of a step: onnx_ops/training/step.py, ranges.py, conditions.py --------------------------------------

struct Bounds {
  std::int64_t min = 0;
  std::optional<std::int64_t> max;

  bool hold(std::int64_t size) const { return min <= size && (!max || size <= *max); }
  std::string text() const {
    return max ? "from " + std::to_string(min) + " to " + std::to_string(*max) : ">= " + std::to_string(min);
  }
};

/// The indices that are valid in an input: low <= index < high, or `ignored`.
struct IndexRange {
  std::string input;
  std::int64_t low = 0, high = 0;
  std::optional<std::int64_t> ignored;
  std::vector<std::vector<std::int64_t>> cuts;  // each is (axis, start, stop, step), or (axis, index)

  bool fits(std::size_t rank) const {
    for (const auto &cut : cuts) {
      if (cut[0] < 0 || static_cast<std::size_t>(cut[0]) >= rank || (cut.size() == 4 && cut[3] == 0)) return false;
      rank -= cut.size() == 2;
    }
    return true;
  }

  /// Throws a StepError for the first element that is out of range.
  void check(const Tensor &tensor) const {
    struct Axis {
      std::int64_t size, stride;
    };
    std::vector<Axis> axes;
    std::int64_t stride = 1, first = 0;
    for (std::size_t axis = tensor.shape().size(); axis-- > 0; stride *= tensor.shape()[axis]) axes.insert(axes.begin(), {tensor.shape()[axis], stride});
    for (const auto &cut : cuts) {
      const auto place = axes.begin() + cut[0];
      const std::int64_t size = place->size;
      if (cut.size() == 2) {
        if (cut[1] < -size || cut[1] >= size) return;
        first += place->stride * (cut[1] < 0 ? cut[1] + size : cut[1]);
        axes.erase(place);
        continue;
      }
      const std::int64_t step = cut[3], least = step > 0 ? 0 : -1, most = step > 0 ? size : size - 1;
      const auto within = [&](std::int64_t bound) { return std::clamp(bound < 0 ? bound + size : bound, least, most); };
      const std::int64_t begin = within(cut[1]), span = step > 0 ? within(cut[2]) - begin : begin - within(cut[2]);
      const std::uint64_t stepped = step > 0 ? static_cast<std::uint64_t>(step) : 0 - static_cast<std::uint64_t>(step);
      first += place->stride * begin;
      place->size = span <= 0 ? 0 : 1 + static_cast<std::int64_t>(static_cast<std::uint64_t>(span - 1) / stepped);
      if (place->size > 1) place->stride *= step;  // else it may overflow
    }
    walk(tensor, axes.data(), axes.data() + axes.size(), first);
  }

 private:
  template <class Axis>
  void walk(const Tensor &tensor, const Axis *axis, const Axis *end, std::int64_t place) const {
    if (axis == end) return check_element(tensor, place);
    for (std::int64_t i = 0; i < axis->size; ++i) walk(tensor, axis + 1, end, place + i * axis->stride);
  }

  void check_element(const Tensor &tensor, std::int64_t place) const {
    std::int64_t index = 0;
    bool huge = false;  // beyond int64
    switch (tensor.type()) {
      case ElementType::int8: index = tensor.data<std::int8_t>()[place]; break;
      case ElementType::int16: index = tensor.data<std::int16_t>()[place]; break;
      case ElementType::int32: index = tensor.data<std::int32_t>()[place]; break;
      case ElementType::int64: index = tensor.data<std::int64_t>()[place]; break;
      case ElementType::uint8: index = tensor.data<std::uint8_t>()[place]; break;
      case ElementType::uint16: index = tensor.data<std::uint16_t>()[place]; break;
      case ElementType::uint32: index = tensor.data<std::uint32_t>()[place]; break;
      default:
        index = static_cast<std::int64_t>(tensor.data<std::uint64_t>()[place]);
        huge = index < 0;
    }
    if (!huge && ((low <= index && index < high) || (ignored && index == *ignored))) return;
    std::string at;
    for (std::size_t axis = tensor.shape().size(); axis-- > 0; place /= tensor.shape()[axis]) {
      at = std::to_string(place % tensor.shape()[axis]) + (at.empty() ? "" : ", ") + at;
    }
    const std::string number = huge ? std::to_string(static_cast<std::uint64_t>(index)) : std::to_string(index);
    throw StepError(quoted(input) + (tensor.shape().empty() ? "" : "[" + at + "]") + " is " + number + ", expected an index of " +
                    std::to_string(low) + " to " + std::to_string(high - 1) +
                    (ignored ? ", or " + std::to_string(*ignored) + ", which is ignored" : ""));
  }
};

/// A condition on numbers of the batch and the state.
struct Condition {
  struct Number {
    std::int64_t place = 0;
    std::string kind, captured;

    std::string text(double number) const {
      if (!std::isfinite(number) || kind == "float") return float_text(number);
      if (kind == "bool") return number != 0 ? "True" : "False";
      char digits[400];
      std::snprintf(digits, sizeof digits, "%.0f", std::trunc(number) + 0.0);
      return digits;
    }
  };

  std::string line, code, expected;
  std::vector<Number> numbers;

  std::string problem(const double *values) const {
    std::vector<std::string> known;
    for (const Number &number : numbers) {
      if (!number.captured.empty()) known.push_back(number.captured);
    }
    const auto own = [](const std::string &text) { return text; };
    const std::string came = joined(numbers, [&](auto &number) { return number.text(values[number.place]); });
    const std::string captured = joined(known, own);
    return line + (code.empty() ? "" : " (" + code + ")") + " reads " + came + " from tensors" +
           (captured.empty() ? "" : ", and read " + captured + " in the example of the capture") + ". The step is valid only for " +
           (expected.empty() ? captured : expected) + ", and the state is as before";
  }
};

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
    const Json *min = entry.find("min"), *max = entry.find("max");
    const bool open = max && max->is(Json::Kind::null);
    if (is_size(min) && (open || (is_size(max) && max->integer >= min->integer))) {
      return {min->integer, open ? std::nullopt : std::optional(max->integer)};
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

/// Throws a StepError for missing and unknown names; the message begins with `what`.
template <class T>
void check_names(const std::string &what, const Named<TensorType> &wanted, const Named<T> &given) {
  std::vector<std::string> missing, unknown, known;
  for (const auto &[name, type] : wanted) {
    known.push_back(quoted(name));
    if (!given.has(name)) missing.push_back(quoted(name) + " (" + type.text() + ")");
  }
  for (const auto &entry : given) {
    if (!wanted.has(entry.first)) unknown.push_back(quoted(entry.first));
  }
  std::sort(unknown.begin(), unknown.end());
  const auto own = [](const std::string &text) { return text; };
  const auto listed = [&](std::vector<std::string> names) {  // at most ten of them
    const std::size_t more = names.size() > 10 ? names.size() - 10 : 0;
    names.resize(names.size() - more);
    return joined(names, own) + (more ? " and " + std::to_string(more) + " more" : "");
  };
  std::vector<std::string> problems;
  if (!missing.empty()) problems.push_back("lacks " + listed(missing));
  if (!unknown.empty()) problems.push_back("has " + listed(unknown) + ", where the step wants " + (known.empty() ? "nothing" : listed(known)));
  if (!problems.empty()) throw StepError(what + " " + joined(problems, own, " and "));
}

/// Throws a StepError unless the state has a tensor of the right type for each name, and no other names.
inline void check_state(const Named<TensorType> &wanted, const Sources &state) {
  check_names("the state", wanted, state);
  for (const auto &[name, type] : wanted) {
    const Source &tensor = state.at(name);
    if (!type.is(tensor.type, tensor.shape)) throw StepError(quoted(name) + " is " + tensor.text() + ", expected " + type.text());
  }
}

// --- graphs -----------------------------------------------------------------------------------------------------------

/// The name of a function, or of the operator that a node calls: the fields with name, domain and overload.
inline std::string key_of(const Message &message, int name, int domain, int overload) {
  return message.text(domain) + '\0' + message.text(name) + '\0' + message.text(overload);
}

constexpr int DEEPEST_GRAPH = 100;  // nested graphs, so that the stack does not overflow

inline std::vector<Message> subgraphs(const Message &node, int depth) {
  std::vector<Message> found;
  for (const Message &attribute : node.messages(field::NODE_ATTRIBUTES)) {
    for (int number : {field::ATTRIBUTE_GRAPH, field::ATTRIBUTE_GRAPHS}) {
      for (Message &graph : attribute.messages(number)) found.push_back(std::move(graph));
    }
  }
  if (!found.empty() && depth >= DEEPEST_GRAPH) throw Damaged("graphs in it are nested more than " + std::to_string(DEEPEST_GRAPH) + " deep");
  return found;
}

/// Adds the keys of the operators of nodes and of those in their subgraphs.
inline void add_called(const std::vector<Message> &nodes, std::vector<std::string> &keys, int depth = 0) {
  for (const Message &node : nodes) {
    keys.push_back(key_of(node, field::NODE_OPERATOR, field::NODE_DOMAIN, field::NODE_OVERLOAD));
    for (const Message &graph : subgraphs(node, depth)) add_called(graph.messages(field::GRAPH_NODES), keys, depth + 1);
  }
}

/// The bytes of the functions that nodes call, also within functions, in their order in the model.
inline std::string called_functions(const Message &model, const std::vector<Message> &nodes) {
  struct Function {
    std::string_view whole;
    Message message;
    bool needed = false;
  };
  std::vector<Function> functions;
  std::unordered_map<std::string, std::size_t> places;
  for (const Field &one : model.of(field::MODEL_FUNCTIONS)) {
    functions.push_back({one.whole, Message(one.bytes)});
    places[key_of(functions.back().message, field::FUNCTION_NAME, field::FUNCTION_DOMAIN, field::FUNCTION_OVERLOAD)] = functions.size() - 1;
  }
  std::vector<std::string> pending;
  add_called(nodes, pending);
  while (!pending.empty()) {
    const auto place = places.find(pending.back());
    pending.pop_back();
    if (place == places.end() || functions[place->second].needed) continue;
    functions[place->second].needed = true;
    add_called(functions[place->second].message.messages(field::FUNCTION_NODES), pending);
  }
  std::string found;
  for (const Function &function : functions) found += function.needed ? function.whole : "";
  return found;
}

/// The values that a node and its subgraphs read from the graph around it.
inline void add_values_read(const Message &node, std::set<std::string> &read, int depth = 0) {
  for (const std::string &name : node.texts(field::NODE_INPUTS)) read.insert(name);
  for (const Message &graph : subgraphs(node, depth)) {
    std::set<std::string> inner, own;
    for (int number : {field::GRAPH_INPUTS, field::GRAPH_INITIALIZERS}) {
      for (const Message &value : graph.messages(number)) {
        own.insert(value.text(number == field::GRAPH_INPUTS ? field::VALUE_NAME : field::TENSOR_NAME));
      }
    }
    for (const Message &one : graph.messages(field::GRAPH_NODES)) {
      add_values_read(one, inner, depth + 1);
      for (const std::string &name : one.texts(field::NODE_OUTPUTS)) own.insert(name);
    }
    for (const Message &value : graph.messages(field::GRAPH_OUTPUTS)) inner.insert(value.text(field::VALUE_NAME));
    for (const std::string &name : inner) {
      if (!own.count(name)) read.insert(name);
    }
  }
}

/// A model: its bytes, and the types of its inputs and outputs.
struct Graph {
  std::string bytes;
  Named<TensorType> inputs, outputs;
};

/// A graph that a step carries as a function, as a model whose inputs are the state that it reads, then the batch.
inline std::optional<Graph> carried_graph(const Message &model, const std::string &name) {
  std::optional<Message> function;
  for (Message &one : model.messages(field::MODEL_FUNCTIONS)) {
    if (one.text(field::FUNCTION_DOMAIN) == CARRIED_DOMAIN && one.text(field::FUNCTION_NAME) == name) function = std::move(one);
  }
  if (!function) return std::nullopt;
  std::unordered_map<std::string, std::string_view> infos;
  for (const Field &one : function->of(field::FUNCTION_TYPES)) infos[Message(one.bytes).text(field::VALUE_NAME)] = one.bytes;
  Graph found;
  std::string graph;
  for (const Field &node : function->of(field::FUNCTION_NODES)) graph += delimited_bytes(field::GRAPH_NODES, node.bytes);
  graph += delimited_bytes(field::GRAPH_NAME, name);
  for (const auto &[own, number, types] : {std::tuple(field::FUNCTION_INPUTS, field::GRAPH_INPUTS, &found.inputs),
                                           std::tuple(field::FUNCTION_OUTPUTS, field::GRAPH_OUTPUTS, &found.outputs)}) {
    std::vector<Message> values;
    for (const std::string &value : function->texts(own)) {
      if (!infos.count(value)) throw StepError("'" + value + "' of the " + name + " graph has no type");
      graph += delimited_bytes(number, infos[value]);
      values.emplace_back(infos[value]);
    }
    *types = types_of(values);
  }
  std::set<std::string> imported = {CARRIED_DOMAIN};
  for (const Message &one : function->messages(field::FUNCTION_IMPORTS)) imported.insert(one.text(field::IMPORT_DOMAIN));
  for (const Field &one : model.fields()) {
    const bool described = one.number == field::MODEL_IR_VERSION || one.number == field::MODEL_PRODUCER || one.number == field::MODEL_PRODUCER_VERSION;
    if (described) found.bytes += one.whole;
    if (one.number == field::MODEL_IMPORTS && !imported.count(Message(one.bytes).text(field::IMPORT_DOMAIN))) found.bytes += one.whole;
    if (one.number == field::MODEL_METADATA) {
      const std::string key = Message(one.bytes).text(field::KEY);
      if (key != STEP_METADATA && key != WEIGHTS_METADATA) found.bytes += one.whole;
    }
  }
  for (const Field &one : function->of(field::FUNCTION_IMPORTS)) found.bytes += delimited_bytes(field::MODEL_IMPORTS, one.bytes);
  found.bytes += called_functions(model, function->messages(field::FUNCTION_NODES));
  found.bytes += delimited_bytes(field::MODEL_GRAPH, graph);
  return found;
}

/// A graph that Python has prepared for the trainer, and the names of inputs and outputs that are not those of the step:
/// onnx_ops/training/prepared.py.
struct Prepared {
  Graph graph;
  Named<std::string> names;
  Named<std::string> means;  // by the names of gradients
};

/// A prepared graph, which a step carries as the constant of a function.
inline std::optional<Prepared> prepared_graph(const Message &model, const std::string &name) {
  for (const Message &function : model.messages(field::MODEL_FUNCTIONS)) {
    if (function.text(field::FUNCTION_DOMAIN) != CARRIED_DOMAIN || function.text(field::FUNCTION_NAME) != name) continue;
    Prepared found;
    for (const Message &node : function.messages(field::FUNCTION_NODES)) {
      for (const Message &attribute : node.messages(field::NODE_ATTRIBUTES)) {
        for (const Message &tensor : attribute.messages(field::ATTRIBUTE_TENSOR)) {
          for (const Field &content : tensor.of(field::TENSOR_RAW)) found.graph.bytes = content.bytes;
        }
      }
    }
    const Message own(found.graph.bytes);
    for (const Message &graph : own.messages(field::MODEL_GRAPH)) {
      found.graph.inputs = types_of(graph.messages(field::GRAPH_INPUTS));
      found.graph.outputs = types_of(graph.messages(field::GRAPH_OUTPUTS));
    }
    try {
      const Json record = JsonReader::read(metadata_of(own, PREPARED_METADATA).value_or("{}"));
      for (const auto &[key, value] : record.entries) {
        if (value.is(Json::Kind::text)) found.names.set(key, value.text);
        for (const auto &[gradient, mean] : value.entries) found.means.set(gradient, mean.text);
      }
    } catch (const ValueError &error) {
      throw StepError(std::string("the entry '") + PREPARED_METADATA + "' of the metadata of the graph '" + name + "' cannot be read: " + error.what());
    }
    return found;
  }
  return std::nullopt;
}

/// The part of a step that computes the reported outputs, without gradients; the batch is among its inputs.
inline Graph reporting_part(const Graph &step, const Record &record) {
  const Message model(step.bytes);
  const Message graph = model.messages(field::MODEL_GRAPH).at(0);
  Graph found;
  std::set<std::string> needed;
  for (const auto &[name, type] : step.outputs) {
    if (starts_with(name, NEXT) || starts_with(name, GRADIENT)) continue;
    found.outputs.set(name, type);
    needed.insert(name);
  }
  if (found.outputs.empty()) throw StepError("the step reports nothing that could be evaluated, expected the loss");
  std::vector<Field> nodes = graph.of(field::GRAPH_NODES);
  std::vector<Message> kept;
  for (std::size_t i = nodes.size(); i-- > 0;) {
    Message node(nodes[i].bytes);
    const auto made = node.texts(field::NODE_OUTPUTS);
    if (std::none_of(made.begin(), made.end(), [&](auto &name) { return needed.count(name) && !step.inputs.has(name); })) {
      nodes.erase(nodes.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    add_values_read(node, needed);
    kept.push_back(std::move(node));
  }
  std::string own;
  for (const Field &node : nodes) own += node.whole;
  for (const Field &one : graph.fields()) {
    if (one.number == field::GRAPH_NODES || one.number == field::GRAPH_TYPES) continue;
    const bool by_name = one.number == field::GRAPH_INITIALIZERS || one.number == field::GRAPH_INPUTS || one.number == field::GRAPH_OUTPUTS;
    if (by_name) {
      const Message message(one.bytes);
      const std::string name = message.text(one.number == field::GRAPH_INITIALIZERS ? field::TENSOR_NAME : field::VALUE_NAME);
      const bool is_batch = one.number == field::GRAPH_INPUTS && !record.roles.has(name);
      if (one.number == field::GRAPH_OUTPUTS ? !found.outputs.has(name) : !needed.count(name) && !is_batch) continue;
      if (one.number == field::GRAPH_INPUTS) found.inputs.set(name, step.inputs.at(name));
    }
    own += one.whole;
  }
  for (const Field &one : model.fields()) {
    if (one.number != field::MODEL_GRAPH && one.number != field::MODEL_FUNCTIONS) found.bytes += one.whole;
  }
  found.bytes += called_functions(model, kept) + delimited_bytes(field::MODEL_GRAPH, own);
  return found;
}

/// Writes a graph with weights, which are inputs of it, as a model: onnx_ops/training/inference.py. A model above 2 GiB has the
/// large ones as external data, in a safetensors file with ".data" appended to its name.
inline void write_inference_model(const Path &path, const Graph &graph, const Sources &weights, std::uint64_t most = MOST_BYTES) {
  constexpr std::uint64_t LARGE = 1024;  // elements
  const Message model(graph.bytes);
  const Field inner = model.of(field::MODEL_GRAPH).at(0);
  std::string own;
  const Message own_graph(inner.bytes);
  for (const Field &one : own_graph.fields()) {
    const bool is_weight = one.number == field::GRAPH_INPUTS && weights.has(Message(one.bytes).text(field::VALUE_NAME));
    if (!is_weight) own += one.whole;
  }
  std::string others;
  for (const Field &one : model.fields()) {
    if (one.number != field::MODEL_GRAPH) others += one.whole;
  }
  const auto head_of = [](const std::string &name, const Source &source) {
    std::string head;
    for (std::int64_t size : source.shape) head += integer_bytes(field::TENSOR_DIMS, static_cast<std::uint64_t>(size));
    return head + integer_bytes(field::TENSOR_TYPE, static_cast<std::uint64_t>(source.type)) + delimited_bytes(field::TENSOR_NAME, name);
  };
  std::vector<std::pair<std::string, const Source *>> parts;  // bytes, and the contents after them
  std::uint64_t length = own.size();
  const auto add = [&](const std::string &name, const Source &source) {
    const std::string head = head_of(name, source) + prefix_bytes(field::TENSOR_RAW, source.bytes());
    parts.emplace_back(prefix_bytes(field::GRAPH_INITIALIZERS, head.size() + source.bytes()) + head, &source);
    length += parts.back().first.size() + source.bytes();
  };
  for (const auto &[name, source] : weights) add(name, source);
  const bool external = length + others.size() > most;
  const Path data = path.string() + ".data";
  ReplacingFiles files(external ? std::vector<Path>{data, path} : std::vector<Path>{path});
  if (external) {
    Sources large;
    for (const auto &[name, source] : weights) {
      if (count_of(source.shape) > LARGE) large.set(name, source);
    }
    const Metadata metadata = checkpoint_metadata(large, {{"format", "pt"}});
    const Named<std::uint64_t> offsets = write_safetensors(files, large, metadata);
    const auto entry = [](int number, const std::string &key, const std::string &value) {
      return delimited_bytes(number, delimited_bytes(field::KEY, key) + delimited_bytes(field::VALUE, value));
    };
    parts.clear();
    length = own.size();
    for (const auto &[name, source] : weights) {
      if (!large.has(name)) {
        add(name, source);
        continue;
      }
      const std::string head = head_of(name, source) + entry(field::TENSOR_EXTERNAL, "location", data.filename().string()) +
                               entry(field::TENSOR_EXTERNAL, "offset", std::to_string(offsets.at(name))) +
                               entry(field::TENSOR_EXTERNAL, "length", std::to_string(source.bytes())) + integer_bytes(field::TENSOR_LOCATION, 1);
      parts.emplace_back(delimited_bytes(field::GRAPH_INITIALIZERS, head), nullptr);
      length += parts.back().first.size();
    }
    if (length + others.size() > most) {
      throw FileError("cannot write " + path.string() + ": its constants alone exceed 2 GiB, which is protobuf's limit");
    }
    others += entry(field::MODEL_METADATA, WEIGHTS_METADATA, "{\"file\": " + json_text(data.filename().string(), true) + ", \"sha256\": \"" +
                                                                  metadata.at(CHECKSUM_METADATA) + "\"}");
  }
  files.next();
  files.write(others + prefix_bytes(field::MODEL_GRAPH, length) + own);
  for (const auto &[bytes, source] : parts) {
    files.write(bytes);
    if (source) source->blocks([&](std::size_t, const char *block, std::size_t count) { files.write(block, count); });
  }
  files.finish();
}

// --- sessions ---------------------------------------------------------------------------------------------------------

inline ort::Owned<ort::Value> value_of(const Tensor &tensor) {
  static const ort::Owned<ort::MemoryInfo> cpu = ort::made<ort::MemoryInfo>(ort::api().CreateCpuMemoryInfo, ort::DEVICE_ALLOCATOR, ort::DEFAULT_MEMORY);
  return ort::made<ort::Value>(ort::api().CreateTensorWithDataAsOrtValue, static_cast<const ort::MemoryInfo *>(cpu.get()), tensor.memory(),
                               tensor.bytes(), tensor.shape().data(), tensor.shape().size(), static_cast<int>(tensor.type()));
}

/// A copy of a value of onnxruntime.
inline Tensor tensor_of(ort::Value *value) {
  const auto info = ort::made<ort::TensorInfo>(ort::api().GetTensorTypeAndShape, static_cast<const ort::Value *>(value));
  int element = 0;
  std::size_t rank = 0;
  ort::check(ort::api().GetTensorElementType(info.get(), &element));
  ort::check(ort::api().GetDimensionsCount(info.get(), &rank));
  Shape shape(rank);
  ort::check(ort::api().GetDimensions(info.get(), shape.data(), rank));
  void *memory = nullptr;
  ort::check(ort::api().GetTensorMutableData(value, &memory));
  Tensor found(static_cast<ElementType>(element), shape);
  if (found.bytes()) std::memcpy(found.memory(), memory, found.bytes());
  return found;
}

/// A tensor of the state, and the value of onnxruntime with its memory.
struct StateTensor {
  Tensor tensor;
  ort::Owned<ort::Value> value;

  explicit StateTensor(Tensor given) : tensor(std::move(given)), value(value_of(tensor)) {}
};

using StateSet = Named<std::shared_ptr<StateTensor>>;

/// A session of onnxruntime.
class Session {
 public:
  Session(const Graph &graph, const ort::Options *options) : outputs_(graph.outputs) {
    for (const auto &entry : graph.inputs) inputs_.push_back(entry.first);
    session_ = ort::made<ort::Session>(ort::api().CreateSessionFromArray, ort::environment(), static_cast<const void *>(graph.bytes.data()),
                                       graph.bytes.size(), options);
  }

  /// Runs the session.
  ///
  /// bound, batch: the inputs, by name. written: tensors that outputs are written to, by their names. Returns copies of
  /// the other outputs.
  Tensors run(const StateSet &bound, const Tensors &batch, const StateSet &written = {}) {
    std::vector<const char *> input_names, output_names;
    std::vector<const ort::Value *> inputs;
    std::vector<ort::Owned<ort::Value>> own;
    for (const std::string &name : inputs_) {
      input_names.push_back(name.c_str());
      if (const auto *found = bound.find(name)) {
        inputs.push_back((*found)->value.get());
      } else {
        own.push_back(value_of(batch.at(name)));
        inputs.push_back(own.back().get());
      }
    }
    std::vector<ort::Value *> outputs;
    for (const auto &entry : outputs_) {
      const auto *found = written.find(entry.first);
      output_names.push_back(entry.first.c_str());
      outputs.push_back(found ? (*found)->value.get() : nullptr);
    }
    ort::Status *status = ort::api().Run(session_.get(), nullptr, input_names.data(), inputs.data(), inputs.size(), output_names.data(),
                                         output_names.size(), outputs.data());
    std::vector<ort::Owned<ort::Value>> allocated(outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!written.has(output_names[i])) allocated[i].reset(outputs[i]);
    }
    ort::check(status);
    Tensors reported;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (allocated[i]) reported.set(output_names[i], tensor_of(allocated[i].get()));
    }
    return reported;
  }

 private:
  std::vector<std::string> inputs_;
  Named<TensorType> outputs_;
  ort::Owned<ort::Session> session_;
};

// --- checks of batches and outputs ------------------------------------------------------------------------------------

using Counted = std::optional<std::pair<std::string, std::size_t>>;

/// The input, and its axis, whose size is the number of samples, none if the step fixes that number: batch_axis.py. StepError
/// for a name that no dimension has, and for several candidates without a name.
inline Counted counted_axis(const Named<TensorType> &inputs, const std::string &batch_dimension) {
  Named<std::string> names;
  Counted named, unknown;
  for (const auto &[name, type] : inputs) {
    for (std::size_t axis = 0; type.shape && !batch_dimension.empty() && axis < type.shape->size(); ++axis) {
      if ((*type.shape)[axis].name == batch_dimension) return std::pair(name, axis);
    }
    if (type.shape && type.shape->empty()) continue;
    const Dimension first = type.shape ? type.shape->front() : Dimension();
    if (first.size >= 0) continue;
    if (!first.name.empty()) names.set(first.name, name);
    Counted &found = first.name.empty() ? unknown : named;
    if (!found) found = {name, 0};
  }
  if (!batch_dimension.empty()) throw StepError("no input has a dimension named '" + batch_dimension + "'");
  if (names.size() > 1) {
    throw StepError("the first dimensions of the inputs have different names, " +
                    joined(names, [](auto &entry) { return quoted(entry.first) + " of '" + entry.second + "'"; }) + ": name the batch dimension");
  }
  return named ? named : unknown;
}

/// Checks batches against the inputs of a graph: onnx_ops/training/batches.py.
struct Batches {
  Named<TensorType> inputs;
  Named<Bounds> bounds;
  std::vector<IndexRange> ranges;
  Counted counted;

  Batches() = default;
  Batches(const Named<TensorType> &all, const Record &record, const Counted &samples) : bounds(record.bounds) {
    for (const auto &[name, type] : all) {
      if (!record.roles.has(name)) inputs.set(name, type);
    }
    for (const IndexRange &range : record.ranges) {
      if (inputs.has(range.input)) ranges.push_back(range);
    }
    if (samples && inputs.has(samples->first)) counted = samples;
  }

  void check(const Tensors &batch) const {
    check_names("the batch", inputs, batch);
    std::unordered_map<std::string, std::pair<std::int64_t, std::string>> sizes;
    for (const auto &[name, wanted] : inputs) {
      const Tensor &tensor = batch.at(name);
      const auto refuse = [&, &name = name, &wanted = wanted](const std::string &more = "") {
        throw StepError(quoted(name) + " is " + tensor.text() + ", expected " + wanted.text() + more);
      };
      if (tensor.type() != wanted.type) refuse();
      if (!wanted.shape) continue;
      if (tensor.shape().size() != wanted.shape->size()) refuse();
      for (std::size_t axis = 0; axis < wanted.shape->size(); ++axis) {
        const Dimension &dimension = (*wanted.shape)[axis];
        const std::int64_t size = tensor.shape()[axis];
        if (!dimension.name.empty()) {
          const auto &[known, other] = sizes.emplace(dimension.name, std::pair(size, name)).first->second;
          if (known != size) refuse(" with " + dimension.name + " = " + std::to_string(known) + " as in '" + other + "'");
        } else if (dimension.size >= 0 && dimension.size != size) {
          refuse();
        }
      }
    }
    if (counted) {
      const Tensor &tensor = batch.at(counted->first);
      if (tensor.shape().at(counted->second) == 0) {
        throw StepError("the batch has no samples: '" + counted->first + "' is " + tensor.text() + "; expected at least 1");
      }
    }
    for (const auto &[dimension, own] : bounds) {
      const auto found = sizes.find(dimension);
      if (found == sizes.end() || own.hold(found->second.first)) continue;
      const std::string &name = found->second.second;
      throw StepError(quoted(name) + " is " + batch.at(name).text() + ", expected " + inputs.at(name).text() + " with " + dimension + " " + own.text());
    }
    for (const IndexRange &range : ranges) range.check(batch.at(range.input));
  }
};

/// The outputs without those of the conditions; StepError if one is violated.
inline Tensors checked_conditions(const std::vector<Condition> &conditions, const Tensors &found) {
  const Tensor *holds = found.find(CONDITIONS), *numbers = found.find(CONDITION_NUMBERS);
  if (holds == nullptr || numbers == nullptr) return found;
  for (std::size_t i = 0; i < conditions.size(); ++i) {
    if (!holds->data<std::uint8_t>()[i]) throw StepError(conditions[i].problem(numbers->data<double>()));
  }
  Tensors others;
  for (const auto &[name, tensor] : found) {
    if (name != CONDITIONS && name != CONDITION_NUMBERS) others.set(name, tensor);
  }
  return others;
}

/// The floating number at the beginning of memory; of 16-bit ones only whether they are NaN or infinite is exact.
inline double floating(ElementType type, const void *memory) {
  if (type == ElementType::float64) return *static_cast<const double *>(memory);
  if (type == ElementType::float32) return *static_cast<const float *>(memory);
  const std::uint16_t bits = *static_cast<const std::uint16_t *>(memory), exponent = type == ElementType::float16 ? 0x7c00 : 0x7f80;
  if ((bits & exponent) != exponent) return 0;
  const double infinite = std::numeric_limits<double>::infinity();
  return bits & 0x7fff & ~exponent ? std::numeric_limits<double>::quiet_NaN() : bits >> 15 ? -infinite : infinite;
}

inline void check_loss(const std::string &name, const Tensor &loss) {
  if (loss.size() != 1) return;
  const double number = floating(loss.type(), loss.memory());
  if (std::isfinite(number)) return;
  throw StepError(quoted(name) + " is " + float_text(number) +
                  ", and the state is as before the step: expected a finite number; look for NaN and infinity in the batch, or lower the"
                  " learning rate. Steps with such a loss are made with TrainerOptions::check_finite = false");
}

/// A learning rate in the type of its setting; StepError unless it is finite and at least 0.
inline double cast_rate(double rate, ElementType type) {
  const double cast = type == ElementType::float32 ? static_cast<double>(static_cast<float>(rate)) : rate;
  if (std::isfinite(cast) && cast >= 0) return cast;
  const bool overflows = std::isfinite(rate) && !std::isfinite(cast);
  throw StepError("a learning rate is " + float_text(rate) + (overflows ? ", which is " + float_text(cast) + " in float32" : "") +
                  ", expected a finite number of at least 0");
}

/// Throws a StepError for a learning rate of the state that is not finite or less than 0.
inline void check_rates(const std::vector<std::string> &names, const Sources &state) {
  for (const std::string &name : names) {
    const Source *source = state.find(name);
    if (source == nullptr) continue;
    const Tensor rate = source->tensor();
    try {
      cast_rate(floating(rate.type(), rate.memory()), rate.type());
    } catch (const StepError &error) {
      throw StepError(quoted(name) + ": " + error.what());
    }
  }
}

// --- numbers of accumulated batches -----------------------------------------------------------------------------------

/// The seed of the random numbers in a batch before which others were accumulated: onnx_ops/training/seeds.py, by NumPy's
/// SeedSequence (O'Neill 2015).
inline std::int64_t derived_seed(std::int64_t seed, int batch) {
  if (batch == 0) return seed;
  const auto whole = static_cast<std::uint64_t>(seed);
  std::vector<std::uint32_t> entropy = {static_cast<std::uint32_t>(whole)};
  if (whole >> 32) entropy.push_back(static_cast<std::uint32_t>(whole >> 32));
  entropy.push_back(0);  // the rank of the worker
  entropy.push_back(static_cast<std::uint32_t>(batch));
  std::uint32_t constant = 0x43b0d7e5;
  const auto hashed = [&](std::uint32_t value, std::uint32_t factor) {
    value ^= constant;
    constant *= factor;
    value *= constant;
    return value ^ value >> 16;
  };
  const auto mixed = [](std::uint32_t x, std::uint32_t y) {
    const std::uint32_t found = 0xca01f9dd * x - 0x4973f715 * y;
    return found ^ found >> 16;
  };
  std::array<std::uint32_t, 4> pool{};
  for (std::size_t i = 0; i < 4; ++i) pool[i] = hashed(i < entropy.size() ? entropy[i] : 0, 0x931e8875);
  for (std::size_t source = 0; source < std::max<std::size_t>(4, entropy.size()); ++source) {
    for (std::size_t target = 0; target < 4; ++target) {
      if (source != target) pool[target] = mixed(pool[target], hashed(source < 4 ? pool[source] : entropy[source], 0x931e8875));
    }
  }
  constant = 0x8b51f9dd;
  const std::uint64_t low = hashed(pool[0], 0x58f38ded), high = hashed(pool[1], 0x58f38ded);
  return static_cast<std::int64_t>(high << 32 | low);
}

/// The bits of a number in bfloat16, or in float16, rounded to nearest, ties to even.
inline std::uint16_t rounded_bits(ElementType type, float number) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (type == ElementType::bfloat16) {
    if (magnitude > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7fc0);
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  if (magnitude > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000) return static_cast<std::uint16_t>(sign | 0x7c00);  // from 65520 on
  if (magnitude >= 0x38800000) return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13));
  return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(std::nearbyint(std::fabs(number) * 0x1p24f)));  // abs(x) < 2**-14
}

/// Rounds a tensor of float32 into one of 16 bits.
inline void round_into(const Tensor &target, const Tensor &source) {
  for (std::size_t i = 0; i < source.size(); ++i) target.data<std::uint16_t>()[i] = rounded_bits(target.type(), source.data<float>()[i]);
}

}  // namespace detail

// --- the state: onnx_ops/training/state.py, shared_state.py -----------------------------------------------------------

namespace detail {

/// The state of all steps of a trainer: one set of tensors, which steps update in place, or two, of which a step reads one
/// and writes the other; tensors without a next value are in both.
struct State {
  Named<TensorType> types;
  Named<std::string> roles, tied;
  std::set<std::string> changing;  // names with a next value
  std::array<StateSet, 2> sets;
  std::size_t turn = 0;  // the current set
  bool keeps_previous = false;
  std::string lost;       // why, after a step has failed during its update in place
  Path checkpoint;        // the last one that was written or loaded
  Named<std::string> first;  // for each name the step that has brought it

  /// Adds the state of a step; returns the names in the whole state, by those of the step.
  Named<std::string> add(const std::string &step, const Record &record, const Graph &graph, const Sources &start) {
    Named<std::string> names;
    for (const auto &[own, role] : record.roles) {
      const std::string name = is_shared(role) || step.empty() ? own : step + "." + own;
      const TensorType &type = graph.inputs.at(own);
      names.set(own, name);
      if (graph.outputs.has(next_name(own))) changing.insert(name);
      if (first.has(name)) {
        check_same(step, name, type, role, start.at(own));
        continue;
      }
      types.set(name, type);
      roles.set(name, role);
      first.set(name, step);
      sets[0].set(name, std::make_shared<StateTensor>(start.at(own).tensor()));
    }
    for (const auto &[other, name] : record.tied) {
      if (!tied.has(other)) tied.set(other, name);
      if (tied.at(other) == name) continue;
      throw StepError(quoted(other) + " is tied to '" + name + "' in the step '" + step + "', and to '" + tied.at(other) +
                      "' in another; expected steps of the same model");
    }
    for (const auto &[other, name] : tied) {
      if (!types.has(other)) continue;
      throw StepError(quoted(other) + " is tied to '" + name + "' in one step, but is a tensor of its own in the step '" + first.at(other) +
                      "'; expected steps of the same model");
    }
    return names;
  }

  /// Makes the second set: of the same tensors, or where they change of new ones.
  void make_second_set(bool previous) {
    keeps_previous = previous;
    for (const auto &[name, tensor] : sets[0]) {
      const bool added = previous && changing.count(name);
      sets[1].set(name, added ? std::make_shared<StateTensor>(Tensor(tensor->tensor.type(), tensor->tensor.shape())) : tensor);
    }
  }

  /// The current set; StateLostError after a step that has failed during its update.
  const StateSet &now() const {
    if (!lost.empty()) throw StateLostError(lost);
    return sets[turn];
  }

  /// Makes the set that a step has written the current one; `written` are the names that the step changes.
  void stepped(const std::set<std::string> &written) {
    for (const std::string &name : changing) {
      if (keeps_previous && !written.count(name)) Source::of(sets[turn].at(name)->tensor).read_into(sets[1 - turn].at(name)->tensor.memory());
    }
    turn = 1 - turn;
  }

  /// Replaces the values of some names; `known` has those of all names, unless it is a part of the state.
  void load(const Sources &known) {
    const std::size_t target = keeps_previous ? 1 - turn : turn;
    const auto read = [&](bool changes) {
      for (const auto &[name, tensor] : sets[turn]) {
        if ((keeps_previous && changing.count(name) != 0) != changes) continue;
        const Source *source = known.find(name);
        if (source) source->read_into(sets[target].at(name)->tensor.memory());
        else if (changes) Source::of(tensor->tensor).read_into(sets[target].at(name)->tensor.memory());
      }
    };
    read(true);  // into the other set
    lost = "the state is lost, as another one could not be read as a whole; " + how_to_load();
    read(false);
    lost.clear();
    turn = target;
  }

  void lose(const std::string &reason) { lost = "the state is lost, as a step has failed during its update: " + reason + "; " + how_to_load(); }

 private:
  std::string how_to_load() const {
    return "give the trainer a state by " + (checkpoint.empty() ? "load_state" : "load, the last one is " + checkpoint.string());
  }

  void check_same(const std::string &step, const std::string &name, const TensorType &type, const std::string &role, const Source &start) {
    if (!(type == types.at(name)) || role != roles.at(name)) {
      throw StepError(quoted(name) + " is a " + role + ", " + type.text() + ", in the step '" + step + "', and a " + roles.at(name) + ", " +
                      types.at(name).text() + ", in the step '" + first.at(name) +
                      "'; expected one tensor, as steps share parameters and buffers of the same name");
    }
    if (!start.same(Source::of(sets[0].at(name)->tensor))) {
      throw StepError(quoted(name) + ", " + start.text() + ", has other start values in the step '" + step + "' than in '" + first.at(name) +
                      "', expected the same, as steps share parameters and buffers of the same name: capture all steps from the"
                      " same model before it is trained");
    }
  }
};

/// The tensors of a set by the names of a step.
inline StateSet part_of(const StateSet &whole, const Named<std::string> &names) {
  StateSet found;
  for (const auto &[own, name] : names) found.set(own, whole.at(name));
  return found;
}

// --- updates and accumulated gradients: onnx_ops/training/step_runner.py, accumulation.py ------------------------------

/// A run that has failed after it began to update the state in place.
struct UpdateFailed : Error {
  using Error::Error;
};

/// A tensor of a type with a fixed shape.
inline std::shared_ptr<StateTensor> tensor_of_type(const TensorType &type) {
  Shape shape;
  for (const Dimension &dimension : type.shape.value_or(std::vector<Dimension>{{}})) shape.push_back(dimension.size);
  if (!type.is(type.type, shape) || std::any_of(shape.begin(), shape.end(), [](auto size) { return size < 0; })) {
    throw StepError("a prepared graph has a tensor of type " + type.text() + ", expected a fixed shape");
  }
  return std::make_shared<StateTensor>(Tensor(type.type, shape));
}

/// The checks of outputs: the loss, if any, and conditions.
struct Checks {
  std::string loss;
  const std::vector<Condition> *conditions;

  /// Tensors for those outputs of a graph that are checked, so that they are there after a run that has failed.
  StateSet tensors(const Graph &graph) const {
    StateSet found;
    for (const auto &[name, type] : graph.outputs) {
      if (name != loss && name != CONDITIONS && name != CONDITION_NUMBERS) continue;
      found.set(name, tensor_of_type(name == loss && type.shape ? TensorType{type.type, std::vector<Dimension>(type.shape->size(), {1, ""})} : type));
    }
    return found;
  }

  /// The outputs without those of the conditions; StepError for what is refused.
  Tensors checked(const Tensors &found) const {
    Tensors others = checked_conditions(*conditions, found);
    if (const Tensor *value = found.find(loss)) check_loss(loss, *value);
    return others;
  }
};

/// Gives tensors of outputs the values of outputs that are not refused, for a run that ends before it computes them.
inline void reset(const StateSet &checked) {
  for (const auto &[name, tensor] : checked) std::memset(tensor->tensor.memory(), name == CONDITIONS, tensor->tensor.bytes());
}

/// A tensor of one number.
template <class T>
std::shared_ptr<StateTensor> number_of(ElementType type, T value, Shape shape = {}) {
  return std::make_shared<StateTensor>(Tensor(type, std::move(shape), std::vector<T>{value}));
}

inline Tensors tensors_of(const StateSet &set) {
  Tensors found;
  for (const auto &[name, tensor] : set) found.set(name, tensor->tensor);
  return found;
}

/// A set with the tensors of another one, in place of its own of the same names.
inline StateSet joined_sets(StateSet set, const StateSet &other) {
  for (const auto &[name, tensor] : other) set.set(name, tensor);
  return set;
}

/// A session that computes the next values of the state.
class UpdateSession {
 public:
  /// session, graph: of a step, or of the part of it with the updates. passed: its output that is 1 once the state may be
  /// written, if it has one. inputs: for both turns what is read. written: what is written. in_place: whether these are one.
  UpdateSession(std::unique_ptr<Session> session, const Graph &graph, const std::string &passed, std::array<StateSet, 2> inputs,
                std::array<StateSet, 2> written, const Checks &checks, bool in_place)
      : session_(std::move(session)), inputs_(std::move(inputs)), written_(std::move(written)), checks_(checks), in_place_(in_place) {
    for (const auto &entry : graph.outputs) {
      if (!starts_with(entry.first, NEXT) && entry.first != passed) order_.push_back(entry.first);
    }
    if (passed.empty()) return;
    passed_ = number_of(ElementType::float32, 0.0f, {1});
    checked_ = checks.tensors(graph);
    for (StateSet &set : written_) {
      set = joined_sets(set, checked_);
      set.set(passed, passed_);
    }
  }

  /// Runs the session in a turn; returns the reported outputs. UpdateFailed if the state has been updated in part; after other
  /// errors it is as it was.
  Tensors run(std::size_t turn, const Tensors &batch) {
    if (passed_) *passed_->tensor.data<float>() = 0;
    reset(checked_);
    Tensors found;
    try {
      found = session_->run(inputs_[turn], batch, written_[turn]);
    } catch (const OnnxruntimeError &error) {
      if (!passed_) throw;
      if (in_place_ && *passed_->tensor.data<float>() != 0) throw UpdateFailed(error.what());
      checks_.checked(tensors_of(checked_));
      throw;
    }
    for (const auto &[name, tensor] : checked_) found.set(name, tensor->tensor.clone());
    found = checks_.checked(found);
    Tensors ordered;
    for (const std::string &name : order_) {
      if (const Tensor *tensor = found.find(name)) ordered.set(name, *tensor);
    }
    return ordered;
  }

 private:
  std::unique_ptr<Session> session_;
  std::array<StateSet, 2> inputs_, written_;
  Checks checks_;
  bool in_place_;
  std::vector<std::string> order_;  // of the reported outputs
  std::shared_ptr<StateTensor> passed_;
  StateSet checked_;
};

/// The graphs of a step for the accumulation of gradients, and what they are run with.
struct AccumulationParts {
  const Prepared *averaging, *update;
  const Prepared *counters;  // null if no buffer counts batches
  std::array<StateSet, 2> sets, written;
  const Record *record;
  Counted counted;
  Checks checks;
  std::shared_ptr<StateTensor> check_finite;
  bool in_place;
};

/// The gradients of the batches since the last update, and the update from their mean.
class Accumulation {
 public:
  template <class MakeSession>
  Accumulation(const AccumulationParts &parts, MakeSession session) : parts_(parts) {
    const Graph &graph = parts.averaging->graph, &update = parts.update->graph;
    samples_ = number_of(ElementType::float64, 0.0), count_ = number_of(ElementType::float64, 0.0);
    checked_ = number_of(ElementType::float64, 0.0), value_ = number_of(ElementType::float64, 0.0);
    StateSet given, averages;
    for (const auto &[gradient, name] : parts.averaging->means) {
      const auto mean = means_.emplace_back(tensor_of_type(graph.inputs.at(name)));
      given.set(name, mean);
      const TensorType &own = update.inputs.at(gradient);
      if (own.type != mean->tensor.type()) rounded_.emplace_back(tensor_of_type(own), mean);
      averages.set(gradient, own.type == mean->tensor.type() ? mean : rounded_.back().first);
    }
    given.set(parts.averaging->names.at("samples"), samples_);
    StateSet written = conditions_ = Checks{"", parts.checks.conditions}.tensors(graph);
    for (const auto &[name, tensor] : given) written.set(next_name(name), tensor);
    written.set(parts.averaging->names.at("checked"), checked_);
    written.set(parts.averaging->names.at("value"), value_);
    written_ = {written, written};
    given.set(parts.averaging->names.at("count"), count_);
    given.set(CHECK_FINITE, parts.check_finite);
    averages.set(CHECK_FINITE, parts.check_finite);
    for (const auto &[name, role] : parts.record->roles) {
      if (role != SEED) continue;
      seed_name_ = name, seed_ = number_of<std::int64_t>(ElementType::int64, 0);
      given.set(name, seed_);
    }
    for (const auto &entry : graph.outputs) {
      if (starts_with(entry.first, NEXT) && !written.has(entry.first)) buffers_.push_back(entry.first.substr(std::strlen(NEXT)));
    }
    for (std::size_t turn : {0, 1}) inputs_[turn] = joined_sets(parts.sets[turn], given);
    averaging_ = session(graph);
    if (parts.counters) counters_ = session(parts.counters->graph);
    std::array<StateSet, 2> read = {joined_sets(parts.sets[0], averages), joined_sets(parts.sets[1], averages)};
    const std::string *passed = parts.update->names.find("passed");
    update_ = std::make_unique<UpdateSession>(session(update), update, passed ? *passed : "", read, parts.written,
                                              Checks{update.outputs.has(parts.checks.loss) ? parts.checks.loss : "", parts.checks.conditions},
                                              parts.in_place);
  }

  int batches() const { return batches_; }
  void discard() { batches_ = 0; }

  /// Adds the gradients of a batch, and changes the buffers; returns the reported outputs that do not depend on the gradients.
  Tensors add(std::size_t turn, const Tensors &batch) {
    Tensors changed, found = added(turn, batch, changed);
    if (counters_) {
      for (const auto &[name, tensor] : counters_->run(parts_.sets[turn], {})) changed.set(name.substr(std::strlen(NEXT)), tensor);
    }
    write(changed, parts_.sets[turn]);
    return found;
  }

  /// Computes the update from the mean of the gradients, and forgets them; `batch` is a last one, null for no further one.
  Tensors update(std::size_t turn, const Tensors *batch) {
    Tensors changed, found;
    if (batch) found = added(turn, *batch, changed);
    for (const std::string &name : buffers_) {
      if (!changed.has(name)) changed.set(name, parts_.sets[turn].at(name)->tensor);
    }
    for (const auto &[rounded, mean] : rounded_) round_into(rounded->tensor, mean->tensor);
    for (const auto &[name, tensor] : update_->run(turn, {})) found.set(name, tensor);
    batches_ = 0;
    write(changed, parts_.sets[1 - turn]);
    return found;
  }

 private:
  static void write(const Tensors &changed, const StateSet &set) {
    for (const auto &[name, tensor] : changed) Source::of(tensor).read_into(set.at(name)->tensor.memory());
  }

  /// Adds the gradients of a batch; returns the reported outputs, and adds the next values of buffers to `changed`.
  Tensors added(std::size_t turn, const Tensors &batch, Tensors &changed) {
    if (batches_ == 0) {
      for (const auto &mean : means_) std::memset(mean->tensor.memory(), 0, mean->tensor.bytes());
      *samples_->tensor.data<double>() = 0;
    }
    if (seed_) *seed_->tensor.data<std::int64_t>() = derived_seed(*parts_.sets[turn].at(seed_name_)->tensor.data<std::int64_t>(), batches_);
    const Counted &counted = parts_.counted;
    *count_->tensor.data<double>() = counted ? static_cast<double>(batch.at(counted->first).shape().at(counted->second)) : 1;
    *checked_->tensor.data<double>() = *value_->tensor.data<double>() = 0;
    reset(conditions_);
    Tensors found;
    try {
      found = averaging_->run(inputs_[turn], batch, written_[turn]);
    } catch (const OnnxruntimeError &error) {
      if (*checked_->tensor.data<double>() != 0) {
        discard();
        throw StepError("the accumulated gradients are lost, as a batch has failed while its gradients were added: " + one_line(error.what()));
      }
      checked_conditions(*parts_.checks.conditions, tensors_of(conditions_));
      if (!parts_.checks.loss.empty()) check_loss(parts_.checks.loss, value_->tensor);
      throw;
    }
    ++batches_;
    Tensors reported;
    for (const auto &[name, tensor] : found) {
      if (starts_with(name, NEXT)) changed.set(name.substr(std::strlen(NEXT)), tensor);
      else reported.set(name, tensor);
    }
    return reported;
  }

  AccumulationParts parts_;
  std::vector<std::shared_ptr<StateTensor>> means_;
  std::vector<std::pair<std::shared_ptr<StateTensor>, std::shared_ptr<StateTensor>>> rounded_;  // 16-bit gradients, with their means
  std::shared_ptr<StateTensor> samples_, count_, checked_, value_, seed_;
  std::string seed_name_;
  StateSet conditions_;
  std::array<StateSet, 2> inputs_, written_;
  std::vector<std::string> buffers_;
  std::unique_ptr<Session> averaging_, counters_;
  std::unique_ptr<UpdateSession> update_;
  int batches_ = 0;
};

}  // namespace detail

// --- a step -----------------------------------------------------------------------------------------------------------

struct TrainerStep::Own {
  struct Forward {
    std::unique_ptr<detail::Session> session;
    detail::Batches batches;
  };

  detail::Record record;
  detail::Graph step;                                   // without the state
  std::array<std::optional<detail::Graph>, 2> carried;  // for inference and evaluation
  Named<detail::Prepared> prepared;
  detail::State *state = nullptr;
  Named<std::string> names;       // in the whole state, by those of the step
  std::set<std::string> written;  // names in the whole state that the step changes
  const ort::Options *options = nullptr;
  std::string batch_dimension;
  detail::Batches batches;
  detail::Checks checks;
  std::shared_ptr<detail::StateTensor> check_finite;
  std::unique_ptr<detail::UpdateSession> updates;
  std::unique_ptr<detail::Accumulation> accumulation;
  std::array<Forward, 3> forward;  // inference, evaluation, the reporting part

  /// Reads a step file, and adds its state to that of the trainer.
  void read(const detail::Path &path, const std::string &name, detail::State &whole, const TrainerOptions &given) {
    using namespace detail;
    state = &whole, batch_dimension = given.batch_dimension;
    const LightModel light = read_light(path);
    const Message model(light.bytes);
    const Message graph = model.messages(field::MODEL_GRAPH).at(0);
    Contents contents(path, light);
    contents.check_files(model, graph);
    const auto text = metadata_of(model, STEP_METADATA);
    if (!text) throw StepError(std::string("the model is no training step: its metadata have no entry '") + STEP_METADATA + "'");
    try {
      record = Record::read(*text);
    } catch (const ValueError &error) {
      throw StepError(std::string("the entry '") + STEP_METADATA + "' of the model's metadata cannot be read: " + error.what());
    }
    step.inputs = types_of(graph.messages(field::GRAPH_INPUTS));
    step.outputs = types_of(graph.messages(field::GRAPH_OUTPUTS));
    record.check(step.inputs, step.outputs);
    Sources start;
    std::string own;
    for (const Field &one : graph.fields()) {
      if (one.number == field::GRAPH_INITIALIZERS) {
        const Message tensor(one.bytes);
        const std::string initializer = tensor.text(field::TENSOR_NAME);
        if (record.roles.has(initializer)) start.set(initializer, contents.source(tensor));
        else own += delimited_bytes(field::GRAPH_INITIALIZERS, contents.whole(tensor, one.bytes));
      } else {
        own += one.whole;
      }
    }
    for (const Field &one : model.fields()) {
      const bool is_carried = one.number == field::MODEL_FUNCTIONS && Message(one.bytes).text(field::FUNCTION_DOMAIN) == CARRIED_DOMAIN;
      if (is_carried) continue;
      step.bytes += one.number == field::MODEL_GRAPH ? delimited_bytes(field::MODEL_GRAPH, own) : std::string(one.whole);
    }
    Named<TensorType> types;
    for (const auto &entry : record.roles) types.set(entry.first, step.inputs.at(entry.first));
    check_state(types, start);
    check_rates(rates(), start);
    carried[0] = carried_graph(model, INFERENCE);
    carried[1] = carried_graph(model, EVALUATION);
    for (const char *one : {IN_PLACE, ACCUMULATION, COUNTERS, UPDATE}) {
      if (auto found = prepared_graph(model, one)) prepared.set(one, std::move(*found));
    }
    names = whole.add(name, record, step, start);
    for (const auto &[input, in_state] : names) {
      if (step.outputs.has(next_name(input))) written.insert(in_state);
    }
    batches = Batches(step.inputs, record, std::nullopt);
    try {
      batches.counted = counted_axis(batches.inputs, batch_dimension);
    } catch (const StepError &) {  // `accumulate` needs it
      if (!batch_dimension.empty()) throw;
    }
    checks.conditions = &record.conditions;
    for (const auto &[output, type] : step.outputs) {
      if (starts_with(output, NEXT)) continue;
      if (given.check_finite && !record.roles.has(GRAD_SCALE) && is_floating(type.type)) checks.loss = output;
      break;
    }
    check_finite = number_of<std::uint8_t>(ElementType::boolean, !checks.loss.empty());
  }

  std::unique_ptr<detail::Session> session(const detail::Graph &graph) const {
    try {
      return std::make_unique<detail::Session>(graph, options);
    } catch (const OnnxruntimeError &error) {
      throw StepError("the step cannot be run: " + detail::one_line(error.what()));
    }
  }

  /// The session of the step in place; null if the file has no graph for it, or if a kernel is missing.
  std::unique_ptr<detail::Session> session_in_place() const {
    const detail::Prepared *found = prepared.find(detail::IN_PLACE);
    if (found == nullptr) return nullptr;
    try {
      return std::make_unique<detail::Session>(found->graph, options);
    } catch (const OnnxruntimeError &) {  // it has no function bodies, which need not read the state before they write it
      return nullptr;
    }
  }

  /// Makes the session of the updates, once the sets of the state are there.
  void make_updates(std::unique_ptr<detail::Session> in_place) {
    using namespace detail;
    const Prepared *found = prepared.find(IN_PLACE);
    auto read = sets();
    for (StateSet &set : read) set.set(CHECK_FINITE, check_finite);
    updates = in_place ? std::make_unique<UpdateSession>(std::move(in_place), found->graph, found->names.at("passed"), read, next_sets(), checks, true)
                       : std::make_unique<UpdateSession>(session(step), step, "", read, next_sets(), checks, false);
    if (found) prepared.set(IN_PLACE, Prepared());  // its bytes
  }

  /// Both sets of tensors, by the names of the step.
  std::array<detail::StateSet, 2> sets() const { return {detail::part_of(state->sets[0], names), detail::part_of(state->sets[1], names)}; }

  /// For each set the tensors that the step writes, by the names of outputs.
  std::array<detail::StateSet, 2> next_sets() const {
    std::array<detail::StateSet, 2> found;
    for (const auto &[input, in_state] : names) {
      if (!written.count(in_state)) continue;
      for (std::size_t turn : {0, 1}) found[turn].set(detail::next_name(input), state->sets[1 - turn].at(in_state));
    }
    return found;
  }

  /// The tensor of an input of the state now.
  const Tensor &now(const std::string &input) const { return state->now().at(names.at(input))->tensor; }

  detail::Accumulation &accumulating() {
    using namespace detail;
    if (accumulation) return *accumulation;
    const Prepared *averaging = prepared.find(ACCUMULATION), *update = prepared.find(UPDATE);
    if (averaging && averaging->names.has("refused")) throw StepError(averaging->names.at("refused"));
    if (!averaging || !update) {
      throw StepError("the step file has no graphs for the accumulation of gradients: write it by Capture.save(..., prepared=True), or by"
                      " onnx-ops prepare");
    }
    const AccumulationParts parts{averaging, update, prepared.find(COUNTERS), sets(), next_sets(), &record, counted_axis(batches.inputs, batch_dimension),
                                  checks, check_finite, !state->keeps_previous};
    accumulation = std::make_unique<Accumulation>(parts, [&](const Graph &graph) { return session(graph); });
    return *accumulation;
  }

  /// The inference graph (0) or the evaluation graph (1).
  const detail::Graph &graph_of(std::size_t number) const {
    if (carried[number]) return *carried[number];
    const std::string name = number == 0 ? detail::INFERENCE : detail::EVALUATION;
    throw StepError("the step has no " + name + " graph: there is no function " + detail::CARRIED_DOMAIN + "." + name +
                    " in its model; capture it with " + (number == 0 ? "inference=, a function of the model" : "evaluation=True"));
  }

  Tensors run_forward(std::size_t number, const Tensors &batch) {
    using namespace detail;
    const StateSet own = part_of(state->now(), names);
    if (!forward[number].session) {
      const Graph graph = number == 2 ? reporting_part(step, record) : graph_of(number);
      forward[number] = {session(graph), Batches(graph.inputs, record, number == 0 ? std::nullopt : batches.counted)};
    }
    forward[number].batches.check(batch);
    return checked_conditions(record.conditions, forward[number].session->run(own, batch));
  }

  /// The settings that are learning rates.
  std::vector<std::string> rates() const {
    std::vector<std::string> found;
    for (const auto &entry : record.roles) {
      if (detail::is_rate(entry.first)) found.push_back(entry.first);
    }
    return found;
  }

  /// The same; StepError if there are none.
  std::vector<std::string> rate_names() const {
    const std::vector<std::string> found = rates();
    if (found.empty()) throw StepError(std::string("the step has no setting '") + detail::LEARNING_RATE + "'");
    return found;
  }

  const Tensor &seed_tensor() const {
    for (const auto &[name, role] : record.roles) {
      if (role == detail::SEED) return now(name);
    }
    throw StepError("the step has no seed: it draws no random numbers");
  }
};

inline TrainerStep::TrainerStep(std::unique_ptr<Own> own) : own_(std::move(own)) {}
inline TrainerStep::TrainerStep(TrainerStep &&) noexcept = default;
inline TrainerStep::~TrainerStep() = default;

inline const Named<TensorType> &TrainerStep::batch_inputs() const { return own_->batches.inputs; }
inline bool TrainerStep::has_inference_graph() const { return own_->carried[0].has_value(); }
inline bool TrainerStep::has_evaluation_graph() const { return own_->carried[1].has_value(); }

inline Tensors TrainerStep::step(const Tensors &batch) {
  detail::State &state = *own_->state;
  state.now();
  const bool accumulated = own_->accumulation && own_->accumulation->batches() > 0;
  if (!accumulated || !batch.empty()) own_->batches.check(batch);
  Tensors reported;
  try {
    if (accumulated) {
      const bool last = !batch.empty() || own_->batches.inputs.empty();
      const Tensors found = own_->accumulation->update(state.turn, last ? &batch : nullptr);
      for (const auto &entry : own_->step.outputs) {
        if (const Tensor *tensor = found.find(entry.first)) reported.set(entry.first, *tensor);
      }
    } else {
      reported = own_->updates->run(state.turn, batch);
    }
  } catch (const detail::UpdateFailed &error) {
    state.lose(error.what());
    state.now();
  }
  state.stepped(own_->written);
  return reported;
}

inline Tensors TrainerStep::accumulate(const Tensors &batch) {
  own_->state->now();
  own_->batches.check(batch);
  return own_->accumulating().add(own_->state->turn, batch);
}

inline Tensors TrainerStep::evaluate(const Tensors &batch, const std::string &mode) {
  if (mode != "eval" && mode != "train") throw StepError("the mode is '" + mode + "', expected 'eval' or 'train'");
  return own_->run_forward(mode == "eval" ? 1 : 2, batch);
}

inline Tensors TrainerStep::infer(const Tensors &inputs) { return own_->run_forward(0, inputs); }

inline void TrainerStep::export_model(const std::filesystem::path &path, bool averaged) const {
  using namespace detail;
  const Graph &graph = own_->graph_of(0);
  const Named<std::string> &roles = own_->record.roles;
  const auto average = [&](const std::string &name) { return std::string(AVERAGED) + "module." + name; };
  const auto has_average = [&](auto &entry) { return roles.has(average(entry.first)); };
  if (averaged && std::none_of(roles.begin(), roles.end(), has_average)) {
    throw StepError("the step has no averages of weights: capture it with training_step(..., averaged=)");
  }
  Sources weights;
  for (const auto &entry : graph.inputs) {
    if (!roles.has(entry.first)) continue;
    weights.set(entry.first, Source::of(own_->now(averaged && has_average(entry) ? average(entry.first) : entry.first)));
  }
  write_inference_model(path, graph, weights);
}

inline std::vector<double> TrainerStep::learning_rates() const {
  std::vector<double> found;
  for (const std::string &name : own_->rate_names()) {
    const Tensor &tensor = own_->now(name);
    found.push_back(detail::floating(tensor.type(), tensor.memory()));
  }
  return found;
}
inline double TrainerStep::learning_rate() const { return learning_rates().at(0); }

inline void TrainerStep::set_learning_rates(const std::vector<double> &rates) {
  const std::vector<std::string> names = own_->rate_names();
  if (rates.size() != names.size()) {
    throw StepError(std::to_string(rates.size()) + " learning rates are given, expected " + std::to_string(names.size()) + ", one for each group");
  }
  for (std::size_t i = 0; i < rates.size(); ++i) detail::cast_rate(rates[i], own_->now(names[i]).type());
  for (std::size_t i = 0; i < rates.size(); ++i) {
    const Tensor &tensor = own_->now(names[i]);
    if (tensor.type() == ElementType::float32) *tensor.data<float>() = static_cast<float>(rates[i]);
    else *tensor.data<double>() = rates[i];
  }
}
inline void TrainerStep::set_learning_rate(double rate) { set_learning_rates(std::vector<double>(own_->rate_names().size(), rate)); }

inline std::int64_t TrainerStep::seed() const { return *own_->seed_tensor().data<std::int64_t>(); }
inline void TrainerStep::set_seed(std::int64_t seed) { *own_->seed_tensor().data<std::int64_t>() = seed; }

inline Tensors TrainerStep::state() const {
  Tensors found;
  for (const auto &[own, tensor] : detail::part_of(own_->state->now(), own_->names)) found.set(own, tensor->tensor.clone());
  return found;
}

// --- the trainer ------------------------------------------------------------------------------------------------------

struct Trainer::Own {
  detail::State state;
  ort::Owned<ort::Options> options;
  std::vector<std::pair<std::string, TrainerStep>> steps;

  Own(const Named<std::filesystem::path> &files, const TrainerOptions &given) {
    using namespace detail;
    if (files.size() != 1 && (files.empty() || files.has(""))) {
      throw StepError("the steps are [" + joined(files, [](auto &entry) { return quoted(entry.first); }) + "], expected at least one, each with a name");
    }
    make_options(given);
    for (const auto &[name, path] : files) {
      auto own = std::make_unique<TrainerStep::Own>();
      own->options = options.get();
      try {
        own->read(path, name, state, given);
      } catch (const Damaged &error) {
        throw ModelError(path.string() + " is no ONNX model: " + error.what());
      }
      steps.emplace_back(name, TrainerStep(std::move(own)));
    }
    std::vector<std::unique_ptr<Session>> in_place;
    for (auto &[name, step] : steps) {
      in_place.push_back(given.keep_previous || given.kernels.empty() ? nullptr : step.own_->session_in_place());
      if (!in_place.back()) {
        in_place.clear();
        break;
      }
    }
    state.make_second_set(in_place.empty());
    in_place.resize(steps.size());
    for (std::size_t i = 0; i < steps.size(); ++i) steps[i].second.own_->make_updates(std::move(in_place[i]));
  }

  void make_options(const TrainerOptions &given) {
    options = ort::made<ort::Options>(ort::api().CreateSessionOptions);
    ort::check(ort::api().DisableMemPattern(options.get()));  // else a block for all values is added to what the first run has used
    ort::check(ort::api().SetIntraOpNumThreads(options.get(), given.threads));
    ort::check(ort::api().SetSessionLogSeverityLevel(options.get(), given.log_severity));
    for (const auto &[key, value] : given.session_config) ort::check(ort::api().AddSessionConfigEntry(options.get(), key.c_str(), value.c_str()));
    if (!given.kernels.empty()) ort::check(ort::api().RegisterCustomOpsLibrary_V2(options.get(), given.kernels.c_str()));
  }

  IncompatibleKeys load(const detail::Sources &given, bool strict) {
    using namespace detail;
    Sources untied;
    for (const auto &[name, source] : given) {
      if (!state.tied.has(name)) untied.set(name, source);
    }
    for (const auto &[other, first] : state.tied) {
      const Source *own = given.find(other);
      if (own == nullptr) continue;
      if (!untied.has(first)) untied.set(first, *own);
      if (!untied.at(first).same(*own)) throw StepError(quoted(other) + " differs from '" + first + "', to which it is tied");
    }
    IncompatibleKeys keys;
    Sources known;
    Named<TensorType> wanted;
    for (const auto &[name, type] : state.types) {
      if (!untied.has(name)) keys.missing.push_back(name);
      if (strict || untied.has(name)) wanted.set(name, type);
    }
    for (const auto &[name, source] : untied) {
      if (!state.types.has(name)) keys.unexpected.push_back(name);
      if (strict || state.types.has(name)) known.set(name, source);
    }
    check_state(wanted, known);
    for (const auto &step : steps) {
      std::vector<std::string> rates = step.second.own_->rates();
      for (std::string &rate : rates) rate = step.second.own_->names.at(rate);
      check_rates(rates, known);
    }
    if (!strict) state.now();  // what is missing must be there
    for (const auto &step : steps) {
      if (step.second.own_->accumulation) step.second.own_->accumulation->discard();
    }
    state.load(known);
    return keys;
  }
};

inline Trainer::Trainer(const std::filesystem::path &path, const TrainerOptions &options) : Trainer(Named<std::filesystem::path>{{"", path}}, options) {}
inline Trainer::Trainer(const Named<std::filesystem::path> &steps, const TrainerOptions &options) : own_(std::make_unique<Own>(steps, options)) {}
inline Trainer::Trainer(Trainer &&) noexcept = default;
inline Trainer &Trainer::operator=(Trainer &&) noexcept = default;
inline Trainer::~Trainer() = default;

inline TrainerStep &Trainer::operator[](const std::string &step) {
  std::string known;
  for (auto &[name, found] : own_->steps) {
    if (name == step && !name.empty()) return found;
    known += name.empty() ? "one step, which has no name" : (known.empty() ? "" : ", ") + detail::quoted(name);
  }
  throw StepError("there is no step '" + step + "': the trainer has " + known);
}

inline TrainerStep &Trainer::only() const {
  if (own_->steps.size() == 1) return own_->steps.front().second;
  throw StepError("the trainer has the steps " + detail::joined(own_->steps, [](auto &entry) { return detail::quoted(entry.first); }) +
                  ", expected one of them by its name, such as trainer['" + own_->steps.front().first + "'].step(...)");
}

inline bool Trainer::keeps_previous() const { return own_->state.keeps_previous; }

inline Tensors Trainer::state() const {
  Tensors found;
  for (const auto &[name, tensor] : own_->state.now()) found.set(name, tensor->tensor.clone());
  return found;
}

inline IncompatibleKeys Trainer::load_state(const Tensors &state, bool strict) {
  detail::Sources sources;
  for (const auto &[name, tensor] : state) sources.set(name, detail::Source::of(tensor));
  return own_->load(sources, strict);
}

inline void Trainer::save(const std::filesystem::path &path, const Metadata &metadata, bool frozen) const {
  const detail::State &state = own_->state;
  detail::Sources sources;
  for (const auto &[name, tensor] : state.now()) {
    if (frozen || state.changing.count(name) || !detail::is_shared(state.roles.at(name))) sources.set(name, detail::Source::of(tensor->tensor));
  }
  detail::write_checkpoint(path, sources, metadata);
  own_->state.checkpoint = path;
}

inline Metadata Trainer::load(const std::filesystem::path &path, bool strict) {
  using namespace detail;
  const State &state = own_->state;
  const Safetensors found = open_checkpoint(path);
  const auto known = [&](auto &entry) { return state.roles.has(entry.first) || state.tied.has(entry.first); };
  if (!found.tensors.empty() && !strict && std::none_of(found.tensors.begin(), found.tensors.end(), known)) {
    throw StepError(path.string() + " has no name of the step: it has '" + found.tensors.begin()->first + "' and " +
                    std::to_string(found.tensors.size() - 1) + " others, expected names such as '" + state.roles.begin()->first + "'");
  }
  std::vector<std::string> others;
  for (const auto &[name, role] : state.roles) {
    if (!is_shared(role)) others.push_back(name);
  }
  const bool weights = std::none_of(others.begin(), others.end(), [&](auto &name) { return found.tensors.has(name); });
  if (strict && !found.tensors.empty() && !others.empty() && weights) {
    throw StepError(path.string() + " has neither optimizer state nor settings, such as '" + others[0] +
                    "': a file of weights is loaded with strict = false");
  }
  try {
    own_->load(found.tensors, strict);
  } catch (const StateLostError &error) {
    throw StateLostError(path.string() + ": " + error.what());
  } catch (const StepError &error) {
    throw StepError(path.string() + ": " + error.what());
  }
  own_->state.checkpoint = path;
  return found.metadata;
}

inline Tensors read_tensors(const std::filesystem::path &path) {
  Tensors found;
  for (const auto &[name, source] : detail::open_checkpoint(path).tensors) found.set(name, source.tensor());
  return found;
}

}  // namespace onnx_ops
