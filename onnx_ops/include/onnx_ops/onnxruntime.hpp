// The part of onnxruntime's C API that the trainer uses, declared from its documentation, so that onnxruntime's library
// suffices. Its own headers may be included in the same program, before or after this one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "trainer/errors.hpp"

#ifdef _WIN32
#define ONNX_OPS_ORT_CALL __stdcall
#else
#define ONNX_OPS_ORT_CALL
#endif

struct OrtApiBase;
extern "C" const OrtApiBase *ONNX_OPS_ORT_CALL OrtGetApiBase(void) noexcept;

namespace onnx_ops::ort {

// Opaque types.
struct Status;
struct Env;
struct Options;
struct Session;
struct Value;
struct MemoryInfo;
struct TensorInfo;

#ifdef _WIN32
using PathCharacter = wchar_t;
#else
using PathCharacter = char;
#endif

constexpr std::uint32_t API_VERSION = 14;  // the first with RegisterCustomOpsLibrary_V2; later ones only append
constexpr int LEVEL_WARNING = 2, DEVICE_ALLOCATOR = 0, DEFAULT_MEMORY = 0;  // OrtLoggingLevel, OrtAllocatorType, OrtMemType

/// The functions of OrtApi up to API_VERSION; those that are not used are named by their places.
struct Api {
  void *CreateStatus;
  int(ONNX_OPS_ORT_CALL *GetErrorCode)(const Status *) noexcept;
  const char *(ONNX_OPS_ORT_CALL *GetErrorMessage)(const Status *) noexcept;
  Status *(ONNX_OPS_ORT_CALL *CreateEnv)(int level, const char *name, Env **) noexcept;
  void *from_4[4];
  Status *(ONNX_OPS_ORT_CALL *CreateSessionFromArray)(const Env *, const void *model, std::size_t length, const Options *,
                                                      Session **) noexcept;
  Status *(ONNX_OPS_ORT_CALL *Run)(Session *, const void *run_options, const char *const *input_names,
                                   const Value *const *inputs, std::size_t input_count, const char *const *output_names,
                                   std::size_t output_count, Value **outputs) noexcept;
  Status *(ONNX_OPS_ORT_CALL *CreateSessionOptions)(Options **) noexcept;
  void *from_11[6];
  Status *(ONNX_OPS_ORT_CALL *DisableMemPattern)(Options *) noexcept;
  void *from_18[4];
  Status *(ONNX_OPS_ORT_CALL *SetSessionLogSeverityLevel)(Options *, int level) noexcept;
  void *SetSessionGraphOptimizationLevel;
  Status *(ONNX_OPS_ORT_CALL *SetIntraOpNumThreads)(Options *, int threads) noexcept;
  void *from_25[24];
  Status *(ONNX_OPS_ORT_CALL *CreateTensorWithDataAsOrtValue)(const MemoryInfo *, void *data, std::size_t bytes,
                                                              const std::int64_t *shape, std::size_t rank, int element,
                                                              Value **) noexcept;
  void *IsTensor;
  Status *(ONNX_OPS_ORT_CALL *GetTensorMutableData)(Value *, void **) noexcept;
  void *from_52[8];
  Status *(ONNX_OPS_ORT_CALL *GetTensorElementType)(const TensorInfo *, int *) noexcept;
  Status *(ONNX_OPS_ORT_CALL *GetDimensionsCount)(const TensorInfo *, std::size_t *) noexcept;
  Status *(ONNX_OPS_ORT_CALL *GetDimensions)(const TensorInfo *, std::int64_t *, std::size_t) noexcept;
  void *from_63[2];
  Status *(ONNX_OPS_ORT_CALL *GetTensorTypeAndShape)(const Value *, TensorInfo **) noexcept;
  void *from_66[3];
  Status *(ONNX_OPS_ORT_CALL *CreateCpuMemoryInfo)(int allocator, int memory, MemoryInfo **) noexcept;
  void *from_70[22];
  void(ONNX_OPS_ORT_CALL *ReleaseEnv)(Env *) noexcept;
  void(ONNX_OPS_ORT_CALL *ReleaseStatus)(Status *) noexcept;
  void(ONNX_OPS_ORT_CALL *ReleaseMemoryInfo)(MemoryInfo *) noexcept;
  void(ONNX_OPS_ORT_CALL *ReleaseSession)(Session *) noexcept;
  void(ONNX_OPS_ORT_CALL *ReleaseValue)(Value *) noexcept;
  void *from_97[2];
  void(ONNX_OPS_ORT_CALL *ReleaseTensorTypeAndShapeInfo)(TensorInfo *) noexcept;
  void(ONNX_OPS_ORT_CALL *ReleaseSessionOptions)(Options *) noexcept;
  void *from_101[29];
  Status *(ONNX_OPS_ORT_CALL *AddSessionConfigEntry)(Options *, const char *key, const char *value) noexcept;
  void *from_131[97];
  Status *(ONNX_OPS_ORT_CALL *RegisterCustomOpsLibrary_V2)(Options *, const PathCharacter *library) noexcept;
};
static_assert(offsetof(Api, CreateSessionFromArray) == 8 * sizeof(void *));
static_assert(offsetof(Api, SetIntraOpNumThreads) == 24 * sizeof(void *));
static_assert(offsetof(Api, CreateTensorWithDataAsOrtValue) == 49 * sizeof(void *));
static_assert(offsetof(Api, CreateCpuMemoryInfo) == 69 * sizeof(void *));
static_assert(offsetof(Api, ReleaseSessionOptions) == 100 * sizeof(void *));
static_assert(offsetof(Api, AddSessionConfigEntry) == 130 * sizeof(void *));
static_assert(offsetof(Api, RegisterCustomOpsLibrary_V2) == 228 * sizeof(void *));

/// The fields of OrtApiBase.
struct ApiBase {
  const Api *(ONNX_OPS_ORT_CALL *GetApi)(std::uint32_t version) noexcept;
  const char *(ONNX_OPS_ORT_CALL *GetVersionString)(void) noexcept;
};

inline const ApiBase &base() { return *reinterpret_cast<const ApiBase *>(OrtGetApiBase()); }

inline const Api &api() {
  static const Api *found = base().GetApi(API_VERSION);
  if (found == nullptr) {
    throw OnnxruntimeError(std::string("onnxruntime ") + base().GetVersionString() + " is too old, expected 1.14 or newer");
  }
  return *found;
}

/// Throws an OnnxruntimeError unless a status is that of success.
inline void check(Status *status) {
  if (status == nullptr) return;
  static constexpr const char *NAMES[] = {
      "SUCCESS", "FAIL", "INVALID_ARGUMENT", "NO_SUCHFILE", "NO_MODEL", "ENGINE_ERROR", "RUNTIME_EXCEPTION",
      "INVALID_PROTOBUF", "MODEL_LOADED", "NOT_IMPLEMENTED", "INVALID_GRAPH", "EP_FAIL"};
  const int code = api().GetErrorCode(status);
  const bool known = code >= 0 && code < static_cast<int>(sizeof NAMES / sizeof *NAMES);
  const std::string text = "[ONNXRuntimeError] : " + std::to_string(code) + " : " +
                           (known ? NAMES[code] : "GENERAL ERROR") + " : " + api().GetErrorMessage(status);
  api().ReleaseStatus(status);
  throw OnnxruntimeError(text);
}

struct Release {
  void operator()(Env *p) const { api().ReleaseEnv(p); }
  void operator()(Options *p) const { api().ReleaseSessionOptions(p); }
  void operator()(Session *p) const { api().ReleaseSession(p); }
  void operator()(Value *p) const { api().ReleaseValue(p); }
  void operator()(MemoryInfo *p) const { api().ReleaseMemoryInfo(p); }
  void operator()(TensorInfo *p) const { api().ReleaseTensorTypeAndShapeInfo(p); }
};

template <class T>
using Owned = std::unique_ptr<T, Release>;

/// The object that a function of the API creates: `made<Options>(api().CreateSessionOptions)`.
template <class T, class Create, class... Arguments>
Owned<T> made(Create create, Arguments... arguments) {
  T *found = nullptr;
  check(create(arguments..., &found));
  return Owned<T>(found);
}

/// The environment of the process, which sessions need.
inline const Env *environment() {
  static const Owned<Env> found = made<Env>(api().CreateEnv, LEVEL_WARNING, "onnx_ops");
  return found.get();
}

}  // namespace onnx_ops::ort
