// What an operator's node and its tensors say, with faults as exceptions.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "onnxruntime_abi.h"

namespace twostroke {

// A fault whose message the runtime shows; thrown inside operators only and never across the C
// interface (`guarded`).
struct Fault : std::runtime_error {
  Fault(ort::Code code_, const std::string& message) : std::runtime_error(message), code(code_) {}
  ort::Code code;
};

// Throws what a status says; nothing where it is null. Releases it.
void check(const ort::Api* api, ort::Status* status);

// Runs `action` and makes a status of what it throws.
template <typename Action>
ort::Status* guarded(const ort::Api* api, Action action) noexcept {
  try {
    action();
    return nullptr;
  } catch (const Fault& fault) {
    return ort::CreateStatus::call(api, fault.code, fault.what());
  } catch (const std::exception& error) {
    return ort::CreateStatus::call(api, ort::Code::kFail, error.what());
  }
}

struct Tensor {
  void* data = nullptr;
  ort::Element element = ort::Element::kUndefined;
  std::vector<int64_t> shape;
  explicit operator bool() const { return data != nullptr; }
  size_t size() const;  // elements
};

// The data of a value and what it is; an absent value gives an empty tensor.
Tensor tensor_of(const ort::Api* api, const ort::Value* value);

class Node {  // while its kernel is being made
 public:
  Node(const ort::Api* api, const ort::KernelInfo* info) : api_(api), info_(info) {}
  std::string name() const;
  int64_t integer(const char* attribute) const;               // throws where it is missing
  int64_t integer(const char* attribute, int64_t other) const;  // `other` where it is missing
  // An input that is a constant, empty where there is none; throws where it is not constant.
  Tensor constant(size_t input, const char* what) const;

 private:
  const ort::Api* api_;
  const ort::KernelInfo* info_;
};

class Run {  // one call of a kernel
 public:
  Run(const ort::Api* api, ort::KernelContext* context) : api_(api), context_(context) {}
  Tensor input(size_t index) const;
  float* output(size_t index, const std::vector<int64_t>& shape);
  // Calls action(i) for each i below `num`, in the session's threads; returns when all are done.
  template <typename Action>
  void parallel(size_t num, Action action) {
    if (num == 1) return action(0);
    const auto call = [](void* user, size_t i) { (*static_cast<Action*>(user))(i); };
    check(api_, ort::ParallelFor::call(api_, context_, call, num, 0, &action));
  }

 private:
  const ort::Api* api_;
  ort::KernelContext* context_;
};

}  // namespace twostroke
