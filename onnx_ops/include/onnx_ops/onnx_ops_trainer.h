/* C functions of trainer.hpp, for other languages. One C++17 file of a program compiles them:

       #define ONNX_OPS_TRAINER_IMPLEMENTATION
       #include <onnx_ops/onnx_ops_trainer.h>

   Functions that return an onnx_ops_status return ONNX_OPS_OK or the kind of error, of which onnx_ops_error_message has the
   text. Texts and paths are UTF-8. A trainer may be used by one thread at a time. */
#ifndef ONNX_OPS_TRAINER_H
#define ONNX_OPS_TRAINER_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && defined(ONNX_OPS_TRAINER_IMPLEMENTATION)
#define ONNX_OPS_API __declspec(dllexport)
#elif defined(__GNUC__)
#define ONNX_OPS_API __attribute__((visibility("default")))
#else
#define ONNX_OPS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct onnx_ops_trainer onnx_ops_trainer;
typedef struct onnx_ops_tensors onnx_ops_tensors; /* tensors by name, which the library has allocated */

typedef enum onnx_ops_status {
  ONNX_OPS_OK = 0,
  ONNX_OPS_STEP_ERROR = 1,        /* a file, state or batch that does not fit; the state is as it was */
  ONNX_OPS_FILE_ERROR = 2,        /* a file that cannot be read or written */
  ONNX_OPS_MODEL_ERROR = 3,       /* a file that is no ONNX model */
  ONNX_OPS_ONNXRUNTIME_ERROR = 4, /* a run that has failed; the state is as it was */
  ONNX_OPS_OTHER_ERROR = 5,       /* such as a lack of memory */
  ONNX_OPS_STATE_LOST = 6         /* a run that has failed during the update of the state, now or before */
} onnx_ops_status;

typedef struct onnx_ops_tensor {
  const char *name;
  int32_t type; /* TensorProto.DataType: 1 float, 7 int64, 9 bool, 11 double, ... */
  int32_t rank;
  const int64_t *shape; /* of `rank` sizes */
  void *data;           /* contiguous elements */
} onnx_ops_tensor;

/* As TrainerOptions of trainer.hpp. */
typedef struct onnx_ops_trainer_options {
  int32_t check_finite;
  int32_t threads;
  int32_t log_severity;
  const char *kernels; /* path of a library with custom ops; NULL for none */
  int32_t keep_previous;
  const char *batch_dimension; /* NULL for none */
} onnx_ops_trainer_options;

/* The message of the last call of this thread that has failed. */
ONNX_OPS_API const char *onnx_ops_error_message(void);

/* Without options (NULL) they are those of a new TrainerOptions. */
ONNX_OPS_API onnx_ops_status onnx_ops_trainer_create(const char *path, const onnx_ops_trainer_options *options,
                                                     onnx_ops_trainer **trainer);
/* Of `count` steps that share one state. */
ONNX_OPS_API onnx_ops_status onnx_ops_trainer_create_steps(const char *const *names, const char *const *paths, size_t count,
                                                           const onnx_ops_trainer_options *options, onnx_ops_trainer **trainer);
/* One of several steps: the functions below that concern one step concern this one, the others the whole state. It is released
   as a trainer, and may outlive the one that it is taken from. */
ONNX_OPS_API onnx_ops_status onnx_ops_trainer_get_step(const onnx_ops_trainer *trainer, const char *name, onnx_ops_trainer **step);
ONNX_OPS_API void onnx_ops_trainer_release(onnx_ops_trainer *trainer);

/* The inputs of `step`: tensors without data, in whose shapes dynamic dimensions are -1. */
ONNX_OPS_API onnx_ops_status onnx_ops_trainer_batch_inputs(const onnx_ops_trainer *trainer, onnx_ops_tensors **inputs);
ONNX_OPS_API int32_t onnx_ops_trainer_has_inference_graph(const onnx_ops_trainer *trainer);
ONNX_OPS_API int32_t onnx_ops_trainer_has_evaluation_graph(const onnx_ops_trainer *trainer);

/* The tensors that are passed are only read. */
ONNX_OPS_API onnx_ops_status onnx_ops_trainer_step(onnx_ops_trainer *trainer, const onnx_ops_tensor *batch, size_t count,
                                                   onnx_ops_tensors **reported);
ONNX_OPS_API onnx_ops_status onnx_ops_trainer_accumulate(onnx_ops_trainer *trainer, const onnx_ops_tensor *batch, size_t count,
                                                         onnx_ops_tensors **reported);
ONNX_OPS_API onnx_ops_status onnx_ops_trainer_evaluate(onnx_ops_trainer *trainer, const char *mode, const onnx_ops_tensor *batch,
                                                       size_t count, onnx_ops_tensors **reported);
ONNX_OPS_API onnx_ops_status onnx_ops_trainer_infer(onnx_ops_trainer *trainer, const onnx_ops_tensor *inputs, size_t count,
                                                    onnx_ops_tensors **outputs);

/* Whether steps write to a second set of tensors. */
ONNX_OPS_API int32_t onnx_ops_trainer_keeps_previous(const onnx_ops_trainer *trainer);
ONNX_OPS_API onnx_ops_status onnx_ops_trainer_state(const onnx_ops_trainer *trainer, onnx_ops_tensors **state);
ONNX_OPS_API onnx_ops_status onnx_ops_trainer_load_state(onnx_ops_trainer *trainer, const onnx_ops_tensor *state, size_t count,
                                                         int32_t strict);
/* Metadata are `pairs` keys, each followed by its value. */
ONNX_OPS_API onnx_ops_status onnx_ops_trainer_save(const onnx_ops_trainer *trainer, const char *path, const char *const *metadata,
                                                   size_t pairs, int32_t frozen);
ONNX_OPS_API onnx_ops_status onnx_ops_trainer_load(onnx_ops_trainer *trainer, const char *path, int32_t strict);
/* A value of the metadata of the file that was loaded last; NULL if it has none of that key. */
ONNX_OPS_API const char *onnx_ops_trainer_metadata(const onnx_ops_trainer *trainer, const char *key);
ONNX_OPS_API onnx_ops_status onnx_ops_trainer_export(const onnx_ops_trainer *trainer, const char *path, int32_t averaged);

/* Writes up to `capacity` learning rates; `count` is their number. */
ONNX_OPS_API onnx_ops_status onnx_ops_trainer_learning_rates(const onnx_ops_trainer *trainer, double *rates, size_t capacity,
                                                             size_t *count);
/* One learning rate for each parameter group, or one for all of them. */
ONNX_OPS_API onnx_ops_status onnx_ops_trainer_set_learning_rates(onnx_ops_trainer *trainer, const double *rates, size_t count);
ONNX_OPS_API onnx_ops_status onnx_ops_trainer_seed(const onnx_ops_trainer *trainer, int64_t *seed);
ONNX_OPS_API onnx_ops_status onnx_ops_trainer_set_seed(onnx_ops_trainer *trainer, int64_t seed);

ONNX_OPS_API size_t onnx_ops_tensors_count(const onnx_ops_tensors *tensors);
/* The tensor of an index less than the count; its memory is that of `tensors`. */
ONNX_OPS_API onnx_ops_tensor onnx_ops_tensors_at(const onnx_ops_tensors *tensors, size_t index);
ONNX_OPS_API void onnx_ops_tensors_release(onnx_ops_tensors *tensors);

#ifdef __cplusplus
}
#endif

#ifdef ONNX_OPS_TRAINER_IMPLEMENTATION
#include <algorithm>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainer.hpp"

struct onnx_ops_trainer {
  std::shared_ptr<onnx_ops::Trainer> trainer;
  std::string name;  // of one of several steps; empty for the only one
  onnx_ops::Metadata metadata;

  onnx_ops::TrainerStep &step() const { return name.empty() ? trainer->only() : (*trainer)[name]; }
};

struct onnx_ops_tensors {
  std::vector<std::pair<std::string, onnx_ops_tensor>> entries;
  std::vector<onnx_ops::Tensor> memory;
  std::vector<onnx_ops::Shape> shapes;
};

namespace onnx_ops::detail {

inline std::string &last_error() {
  static thread_local std::string message;
  return message;
}

/// The status of some work; its exceptions do not leave C functions.
template <class Work>
onnx_ops_status status_of(Work work) noexcept {
  onnx_ops_status found = ONNX_OPS_OTHER_ERROR;
  const char *message = "unknown";
  try {
    try {
      work();
      return ONNX_OPS_OK;
    } catch (const std::exception &error) {
      const bool lost = dynamic_cast<const StateLostError *>(&error), step = dynamic_cast<const StepError *>(&error), file = dynamic_cast<const FileError *>(&error);
      const bool model = dynamic_cast<const ModelError *>(&error), run = dynamic_cast<const OnnxruntimeError *>(&error);
      found = lost ? ONNX_OPS_STATE_LOST : step ? ONNX_OPS_STEP_ERROR : file ? ONNX_OPS_FILE_ERROR : model ? ONNX_OPS_MODEL_ERROR : run ? ONNX_OPS_ONNXRUNTIME_ERROR : found;
      last_error() = error.what();
    } catch (...) {
      last_error() = message;
    }
  } catch (...) {  // no memory for the message
  }
  return found;
}

inline Path path_of(const char *text) { return std::filesystem::u8path(text); }

inline Tensors tensors_of(const onnx_ops_tensor *given, std::size_t count) {
  Tensors found;
  for (const onnx_ops_tensor *one = given; one != given + count; ++one) {
    Shape shape(one->shape, one->shape + one->rank);
    if (std::any_of(shape.begin(), shape.end(), [](auto size) { return size < 0; })) {
      throw StepError("'" + std::string(one->name) + "' has a negative size");
    }
    row_of(static_cast<ElementType>(one->type));
    found.set(one->name, Tensor::view(static_cast<ElementType>(one->type), std::move(shape), one->data));
  }
  return found;
}

inline void add(onnx_ops_tensors &found, const std::string &name, ElementType type, Shape shape) {
  found.shapes.push_back(std::move(shape));
  found.entries.emplace_back(name, onnx_ops_tensor{nullptr, static_cast<std::int32_t>(type), static_cast<std::int32_t>(found.shapes.back().size()), nullptr, nullptr});
}

inline onnx_ops_tensors *returned(const Tensors &tensors) {
  auto found = std::make_unique<onnx_ops_tensors>();
  for (const auto &[name, tensor] : tensors) {
    add(*found, name, tensor.type(), tensor.shape());
    found->memory.push_back(tensor);
    found->entries.back().second.data = tensor.memory();
  }
  return found.release();
}

}  // namespace onnx_ops::detail

const char *onnx_ops_error_message(void) { return onnx_ops::detail::last_error().c_str(); }

onnx_ops_status onnx_ops_trainer_create(const char *path, const onnx_ops_trainer_options *options, onnx_ops_trainer **trainer) {
  const char *unnamed = "";
  return onnx_ops_trainer_create_steps(&unnamed, &path, 1, options, trainer);
}

onnx_ops_status onnx_ops_trainer_create_steps(const char *const *names, const char *const *paths, size_t count,
                                              const onnx_ops_trainer_options *options, onnx_ops_trainer **trainer) {
  return onnx_ops::detail::status_of([&] {
    onnx_ops::TrainerOptions own;
    if (options) {
      own.check_finite = options->check_finite != 0, own.threads = options->threads, own.log_severity = options->log_severity;
      if (options->kernels) own.kernels = onnx_ops::detail::path_of(options->kernels);
      own.keep_previous = options->keep_previous != 0;
      if (options->batch_dimension) own.batch_dimension = options->batch_dimension;
    }
    onnx_ops::Named<onnx_ops::detail::Path> steps;
    for (size_t i = 0; i < count; ++i) steps.set(names[i], onnx_ops::detail::path_of(paths[i]));
    *trainer = new onnx_ops_trainer{std::make_shared<onnx_ops::Trainer>(steps, own), "", {}};
  });
}

onnx_ops_status onnx_ops_trainer_get_step(const onnx_ops_trainer *trainer, const char *name, onnx_ops_trainer **step) {
  return onnx_ops::detail::status_of([&] {
    (*trainer->trainer)[name];
    *step = new onnx_ops_trainer{trainer->trainer, name, {}};
  });
}

void onnx_ops_trainer_release(onnx_ops_trainer *trainer) { delete trainer; }

onnx_ops_status onnx_ops_trainer_batch_inputs(const onnx_ops_trainer *trainer, onnx_ops_tensors **inputs) {
  return onnx_ops::detail::status_of([&] {
    auto found = std::make_unique<onnx_ops_tensors>();
    for (const auto &[name, type] : trainer->step().batch_inputs()) {
      onnx_ops::Shape shape;
      if (type.shape) for (const auto &dimension : *type.shape) shape.push_back(dimension.size);
      onnx_ops::detail::add(*found, name, type.type, shape);
    }
    *inputs = found.release();
  });
}

int32_t onnx_ops_trainer_has_inference_graph(const onnx_ops_trainer *trainer) {
  int32_t found = 0;  // also for a trainer with several steps
  onnx_ops::detail::status_of([&] { found = trainer->step().has_inference_graph(); });
  return found;
}

int32_t onnx_ops_trainer_has_evaluation_graph(const onnx_ops_trainer *trainer) {
  int32_t found = 0;
  onnx_ops::detail::status_of([&] { found = trainer->step().has_evaluation_graph(); });
  return found;
}

onnx_ops_status onnx_ops_trainer_step(onnx_ops_trainer *trainer, const onnx_ops_tensor *batch, size_t count, onnx_ops_tensors **reported) {
  using namespace onnx_ops::detail;
  return status_of([&] { *reported = returned(trainer->step().step(tensors_of(batch, count))); });
}

onnx_ops_status onnx_ops_trainer_accumulate(onnx_ops_trainer *trainer, const onnx_ops_tensor *batch, size_t count, onnx_ops_tensors **reported) {
  using namespace onnx_ops::detail;
  return status_of([&] { *reported = returned(trainer->step().accumulate(tensors_of(batch, count))); });
}

onnx_ops_status onnx_ops_trainer_evaluate(onnx_ops_trainer *trainer, const char *mode, const onnx_ops_tensor *batch, size_t count,
                                          onnx_ops_tensors **reported) {
  using namespace onnx_ops::detail;
  return status_of([&] { *reported = returned(trainer->step().evaluate(tensors_of(batch, count), mode)); });
}

onnx_ops_status onnx_ops_trainer_infer(onnx_ops_trainer *trainer, const onnx_ops_tensor *inputs, size_t count, onnx_ops_tensors **outputs) {
  using namespace onnx_ops::detail;
  return status_of([&] { *outputs = returned(trainer->step().infer(tensors_of(inputs, count))); });
}

int32_t onnx_ops_trainer_keeps_previous(const onnx_ops_trainer *trainer) { return trainer->trainer->keeps_previous(); }

onnx_ops_status onnx_ops_trainer_state(const onnx_ops_trainer *trainer, onnx_ops_tensors **state) {
  return onnx_ops::detail::status_of([&] { *state = onnx_ops::detail::returned(trainer->trainer->state()); });
}

onnx_ops_status onnx_ops_trainer_load_state(onnx_ops_trainer *trainer, const onnx_ops_tensor *state, size_t count, int32_t strict) {
  return onnx_ops::detail::status_of([&] { trainer->trainer->load_state(onnx_ops::detail::tensors_of(state, count), strict != 0); });
}

onnx_ops_status onnx_ops_trainer_save(const onnx_ops_trainer *trainer, const char *path, const char *const *metadata, size_t pairs, int32_t frozen) {
  return onnx_ops::detail::status_of([&] {
    onnx_ops::Metadata own;
    for (size_t i = 0; i < pairs; ++i) own[metadata[2 * i]] = metadata[2 * i + 1];
    trainer->trainer->save(onnx_ops::detail::path_of(path), own, frozen != 0);
  });
}

onnx_ops_status onnx_ops_trainer_load(onnx_ops_trainer *trainer, const char *path, int32_t strict) {
  return onnx_ops::detail::status_of([&] { trainer->metadata = trainer->trainer->load(onnx_ops::detail::path_of(path), strict != 0); });
}

const char *onnx_ops_trainer_metadata(const onnx_ops_trainer *trainer, const char *key) {
  const auto found = trainer->metadata.find(key);
  return found == trainer->metadata.end() ? nullptr : found->second.c_str();
}

onnx_ops_status onnx_ops_trainer_export(const onnx_ops_trainer *trainer, const char *path, int32_t averaged) {
  return onnx_ops::detail::status_of([&] { trainer->step().export_model(onnx_ops::detail::path_of(path), averaged != 0); });
}

onnx_ops_status onnx_ops_trainer_learning_rates(const onnx_ops_trainer *trainer, double *rates, size_t capacity, size_t *count) {
  return onnx_ops::detail::status_of([&] {
    const std::vector<double> found = trainer->step().learning_rates();
    *count = found.size();
    std::copy_n(found.begin(), std::min(capacity, found.size()), rates);
  });
}

onnx_ops_status onnx_ops_trainer_set_learning_rates(onnx_ops_trainer *trainer, const double *rates, size_t count) {
  return onnx_ops::detail::status_of([&] {
    if (count == 1) trainer->step().set_learning_rate(*rates);
    else trainer->step().set_learning_rates(std::vector<double>(rates, rates + count));
  });
}

onnx_ops_status onnx_ops_trainer_seed(const onnx_ops_trainer *trainer, int64_t *seed) {
  return onnx_ops::detail::status_of([&] { *seed = trainer->step().seed(); });
}

onnx_ops_status onnx_ops_trainer_set_seed(onnx_ops_trainer *trainer, int64_t seed) {
  return onnx_ops::detail::status_of([&] { trainer->step().set_seed(seed); });
}

size_t onnx_ops_tensors_count(const onnx_ops_tensors *tensors) { return tensors->entries.size(); }

onnx_ops_tensor onnx_ops_tensors_at(const onnx_ops_tensors *tensors, size_t index) {
  onnx_ops_tensor found = tensors->entries[index].second;
  found.name = tensors->entries[index].first.c_str();
  found.shape = tensors->shapes[index].data();
  return found;
}

void onnx_ops_tensors_release(onnx_ops_tensors *tensors) { delete tensors; }
#endif /* ONNX_OPS_TRAINER_IMPLEMENTATION */

#endif /* ONNX_OPS_TRAINER_H */
