#include "node.h"

namespace twostroke {

void check(const ort::Api* api, ort::Status* status) {
  if (!status) return;
  const std::string message = ort::ErrorMessage::call(api, status);
  ort::ReleaseStatus::call(api, status);
  throw Fault(ort::Code::kFail, message);
}

size_t Tensor::size() const {
  size_t total = 1;
  for (const int64_t dimension : shape) total *= static_cast<size_t>(dimension);
  return total;
}

Tensor tensor_of(const ort::Api* api, const ort::Value* value) {
  Tensor tensor;
  if (!value) return tensor;
  ort::ShapeInfo* info = nullptr;
  check(api, ort::TensorShape::call(api, value, &info));
  size_t num = 0;
  ort::Status* status = ort::ElementType::call(api, info, &tensor.element);
  if (!status) status = ort::NumDimensions::call(api, info, &num);
  if (!status) {
    tensor.shape.resize(num);
    status = ort::Dimensions::call(api, info, tensor.shape.data(), num);
  }
  ort::ReleaseShape::call(api, info);
  check(api, status);
  check(api, ort::TensorData::call(api, const_cast<ort::Value*>(value), &tensor.data));
  return tensor;
}

namespace {

// A name that `get(buffer, &size)` writes, with its closing zero.
template <typename Get>
std::string text_of(const ort::Api* api, Get get) {
  size_t size = 0;
  if (auto* status = get(nullptr, &size))
    ort::ReleaseStatus::call(api, status);  // only says that the buffer is too small
  std::string text(size, '\0');
  check(api, get(text.data(), &size));
  text.resize(size ? size - 1 : 0);
  return text;
}

}  // namespace

std::string Node::name() const {
  return text_of(api_, [&](char* to, size_t* size) {
    return ort::NodeName::call(api_, info_, to, size);
  });
}

int64_t Node::integer(const char* attribute) const {
  int64_t value = 0;
  check(api_, ort::IntAttribute::call(api_, info_, attribute, &value));
  return value;
}

int64_t Node::integer(const char* attribute, int64_t other) const {
  int64_t value = other;
  if (auto* status = ort::IntAttribute::call(api_, info_, attribute, &value)) {
    ort::ReleaseStatus::call(api_, status);
    return other;
  }
  return value;
}

Tensor Node::constant(size_t input, const char* what) const {
  size_t num = 0;
  check(api_, ort::NumNodeInputs::call(api_, info_, &num));
  if (input >= num) return {};
  const std::string given = text_of(api_, [&](char* to, size_t* size) {
    return ort::InputName::call(api_, info_, input, to, size);
  });
  if (given.empty()) return {};  // left out, with others behind it
  int is_constant = 0;
  const ort::Value* value = nullptr;
  check(api_, ort::ConstantInput::call(api_, info_, input, &is_constant, &value));
  if (!is_constant)
    throw Fault(ort::Code::kInvalidArgument,
                "The node " + name() + ": its input " + what +
                    " must be a constant of the graph, because it is packed when the session opens.");
  return tensor_of(api_, value);
}

Tensor Run::input(size_t index) const {
  const ort::Value* value = nullptr;
  check(api_, ort::Input::call(api_, context_, index, &value));
  return tensor_of(api_, value);
}

float* Run::output(size_t index, const std::vector<int64_t>& shape) {
  ort::Value* value = nullptr;
  check(api_, ort::Output::call(api_, context_, index, shape.data(), shape.size(), &value));
  void* data = nullptr;
  check(api_, ort::TensorData::call(api_, value, &data));
  return static_cast<float*>(data);
}

}  // namespace twostroke
