// The few entries of ONNX Runtime's C interface that the operators use.
//
// The interface is a table of function pointers whose order never changes: an entry keeps its slot
// in every later version. So this header names slots instead of declaring the whole table. Each
// entry says its slot and the first interface version that has it; none is younger than
// kApiVersion, which is what the library asks for.
#pragma once
#include <cstddef>
#include <cstdint>

namespace twostroke::ort {

inline constexpr uint32_t kApiVersion = 17;  // the first with KernelContext_ParallelFor

struct Status;
struct Value;
struct ShapeInfo;
struct SessionOptions;
struct OpDomain;
struct KernelInfo;
struct KernelContext;

enum class Code : int { kFail = 1, kInvalidArgument = 2, kNotImplemented = 9 };
enum class Element : int { kUndefined = 0, kFloat = 1, kUint8 = 2, kInt8 = 3, kInt32 = 6,
                           kInt64 = 7, kFloat16 = 10 };
enum class Presence : int { kRequired = 0, kOptional = 1 };

struct Api {  // opaque: a table of pointers, read through `entry`
  void* slots[1];
};

struct ApiBase {
  const Api* (*get_api)(uint32_t version);
  const char* (*version_string)();
};

// One entry of the table: its slot, the version it came with, and its signature.
template <size_t kSlot, uint32_t kSince, typename Signature>
struct Entry;

template <size_t kSlot, uint32_t kSince, typename Result, typename... Args>
struct Entry<kSlot, kSince, Result(Args...)> {
  static_assert(kSince <= kApiVersion, "the entry is younger than the version asked for");
  static Result call(const Api* api, Args... args) {
    return reinterpret_cast<Result (*)(Args...)>(api->slots[kSlot])(args...);
  }
};

using CreateStatus = Entry<0, 1, Status*(Code, const char*)>;
using ErrorMessage = Entry<2, 1, const char*(const Status*)>;
using CreateDomain = Entry<26, 1, Status*(const char*, OpDomain**)>;
using AddOp = Entry<27, 1, Status*(OpDomain*, const struct CustomOp*)>;
using AddDomain = Entry<28, 1, Status*(SessionOptions*, OpDomain*)>;
using TensorData = Entry<51, 1, Status*(Value*, void**)>;
using ElementType = Entry<60, 1, Status*(const ShapeInfo*, Element*)>;
using NumDimensions = Entry<61, 1, Status*(const ShapeInfo*, size_t*)>;
using Dimensions = Entry<62, 1, Status*(const ShapeInfo*, int64_t*, size_t)>;
using TensorShape = Entry<65, 1, Status*(const Value*, ShapeInfo**)>;
using FloatAttribute = Entry<85, 1, Status*(const KernelInfo*, const char*, float*)>;
using IntAttribute = Entry<86, 1, Status*(const KernelInfo*, const char*, int64_t*)>;
using NumInputs = Entry<88, 1, Status*(const KernelContext*, size_t*)>;
using Input = Entry<90, 1, Status*(const KernelContext*, size_t, const Value**)>;
using Output = Entry<91, 1, Status*(KernelContext*, size_t, const int64_t*, size_t, Value**)>;
using ReleaseStatus = Entry<93, 1, void(Status*)>;
using ReleaseShape = Entry<99, 1, void(ShapeInfo*)>;
using NumNodeInputs = Entry<230, 14, Status*(const KernelInfo*, size_t*)>;
using InputName = Entry<232, 14, Status*(const KernelInfo*, size_t, char*, size_t*)>;
using NodeName = Entry<244, 15, Status*(const KernelInfo*, char*, size_t*)>;
using ConstantInput = Entry<249, 15, Status*(const KernelInfo*, size_t, int*, const Value**)>;
using ParallelFor =
    Entry<274, 17, Status*(const KernelContext*, void (*)(void*, size_t), size_t, size_t, void*)>;

// What describes an operator to the runtime, as interface version 17 lays it out.
struct CustomOp {
  uint32_t version;
  void* (*create_kernel)(const CustomOp*, const Api*, const KernelInfo*);  // before version 16
  const char* (*name)(const CustomOp*);
  const char* (*execution_provider)(const CustomOp*);
  Element (*input_type)(const CustomOp*, size_t);
  size_t (*num_inputs)(const CustomOp*);
  Element (*output_type)(const CustomOp*, size_t);
  size_t (*num_outputs)(const CustomOp*);
  void (*compute)(void*, KernelContext*);  // before version 16
  void (*destroy)(void*);
  Presence (*input_presence)(const CustomOp*, size_t);
  Presence (*output_presence)(const CustomOp*, size_t);
  int (*input_memory)(const CustomOp*, size_t);
  int (*min_variadic_inputs)(const CustomOp*);
  int (*are_variadic_inputs_alike)(const CustomOp*);
  int (*min_variadic_outputs)(const CustomOp*);
  int (*are_variadic_outputs_alike)(const CustomOp*);
  Status* (*create)(const CustomOp*, const Api*, const KernelInfo*, void**);
  Status* (*run)(void*, KernelContext*);
  Status* (*infer_shapes)(const CustomOp*, void*);  // null: the runtime learns shapes as it runs
  int (*first_version)(const CustomOp*);
  int (*last_version)(const CustomOp*);
};

}  // namespace twostroke::ort
