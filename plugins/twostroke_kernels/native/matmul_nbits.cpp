// `twostroke::MatMulNBits`: the meaning and the inputs of `com.microsoft::MatMulNBits`.
#include "matmul_nbits.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "instruction_sets.h"
#include "node.h"

namespace twostroke {
namespace {

enum Input : size_t { kA, kB, kScales, kZeroPoints, kGroupIndex, kBias, kNumInputs };

// The attribute `packed`: 0 where the inputs are MatMulNBits' own.
constexpr int64_t kPackedWithZeroPoints = 2;

// Work is handed out in pieces about this large, so that many threads get some of each product,
// and few of them don't pay for handing it out.
constexpr size_t kPieceBytes = 48 * 1024;  // of weights, where rows are few
constexpr size_t kPieceRows = 48;          // of activations, where they are many

struct Scratch {  // of the calling thread, for the rows of one product
  std::vector<int8_t> values;
  std::vector<float> scales;
  std::vector<int32_t> sums;

  QuantisedRows rows(size_t num, const PackedMatrix& shape) {
    const size_t blocks = num * shape.num_blocks;
    if (values.size() < blocks * shape.block) values.resize(blocks * shape.block);
    if (scales.size() < blocks) scales.resize(blocks);
    if (sums.size() < blocks) sums.resize(blocks);
    return {values.data(), scales.data(), sums.data()};
  }
};

void expect(bool is_so, const Node& node, const std::string& what) {
  if (!is_so)
    throw Fault(ort::Code::kInvalidArgument, "The node " + node.name() + ": " + what);
}

NBitsWeights read_weights(const Node& node) {
  NBitsWeights weights{};
  weights.num_columns = static_cast<size_t>(node.integer("N"));
  weights.depth = static_cast<size_t>(node.integer("K"));
  weights.bits = static_cast<int>(node.integer("bits", 4));
  weights.block = static_cast<size_t>(node.integer("block_size"));
  expect(weights.bits == 4 || weights.bits == 8, node, "bits must be 4 or 8.");
  expect(weights.block >= 16 && weights.block <= 256 && (weights.block & (weights.block - 1)) == 0,
         node, "block_size must be a power of two from 16 to 256.");
  const Tensor values = node.constant(kB, "B"), scales = node.constant(kScales, "scales");
  const Tensor zeros = node.constant(kZeroPoints, "zero_points");
  const size_t blocks = weights.num_columns * weights.num_blocks();
  expect(values && values.element == ort::Element::kUint8 &&
             values.size() == blocks * weights.block * static_cast<size_t>(weights.bits) / 8,
         node, "B must be uint8 [N, blocks, block_size * bits / 8].");
  expect(scales && scales.element == ort::Element::kFloat && scales.size() == blocks, node,
         "scales must be float32 [N, blocks].");
  const size_t zero_bytes = (weights.num_blocks() * static_cast<size_t>(weights.bits) + 7) / 8;
  expect(!zeros || (zeros.element == ort::Element::kUint8 &&
                    zeros.size() == weights.num_columns * zero_bytes),
         node, "zero_points must be uint8 [N, ceil(blocks * bits / 8)].");
  expect(!node.constant(kGroupIndex, "g_idx"), node, "g_idx is not supported.");
  weights.values = static_cast<const uint8_t*>(values.data);
  weights.scales = static_cast<const float*>(scales.data);
  weights.zero_points = static_cast<const uint8_t*>(zeros.data);
  return weights;
}

// Weights that were packed before the graph was written: B is the packed matrix itself.
std::shared_ptr<const PackedMatrix> read_packed(const Node& node) {
  auto packed = std::make_shared<PackedMatrix>(
      static_cast<size_t>(node.integer("N")), static_cast<size_t>(node.integer("K")),
      static_cast<int>(node.integer("bits", 4)), static_cast<size_t>(node.integer("block_size")),
      node.integer("packed") == kPackedWithZeroPoints);
  const Tensor data = node.constant(kB, "B");
  expect(data && data.element == ort::Element::kUint8 && data.size() == packed->size_bytes(), node,
         "packed weights must have " + std::to_string(packed->size_bytes()) + " bytes.");
  packed->data = static_cast<const uint8_t*>(data.data);
  if (reinterpret_cast<uintptr_t>(packed->data) % 64 == 0) return packed;
  // Where the runtime does not map the file it may put the bytes anywhere.
  auto* memory = static_cast<uint8_t*>(::operator new(packed->size_bytes(), std::align_val_t{64}));
  std::memcpy(memory, packed->data, packed->size_bytes());
  packed->owner = {memory, [](void* at) { ::operator delete(at, std::align_val_t{64}); }};
  packed->data = memory;
  return packed;
}

class Kernel {
 public:
  Kernel(const ort::Api* api, const Node& node)
      : api_(api),
        set_(chosen()),
        weights_(node.integer("packed", 0) ? read_packed(node) : shared_packed(read_weights(node))) {
    const Tensor bias = node.constant(kBias, "bias");
    expect(!bias || (bias.element == ort::Element::kFloat && bias.size() == weights_->num_columns),
           node, "bias must be float32 [N].");
    if (bias) {
      const auto* from = static_cast<const float*>(bias.data);
      bias_.assign(from, from + weights_->num_columns);
    }
  }

  void run(ort::KernelContext* context) const {
    Run run(api_, context);
    const Tensor input = run.input(kA);
    if (input.shape.empty() || input.shape.back() != static_cast<int64_t>(weights_->depth))
      throw Fault(ort::Code::kInvalidArgument, "A must end in K = " +
                                                   std::to_string(weights_->depth) + " columns.");
    auto shape = input.shape;
    shape.back() = static_cast<int64_t>(weights_->num_columns);
    float* output = run.output(0, shape);
    const size_t num_rows = input.size() / weights_->depth;
    if (num_rows == 0) return;
    thread_local Scratch scratch;
    const QuantisedRows rows = scratch.rows(num_rows, *weights_);
    quantise(run, static_cast<const float*>(input.data), num_rows, rows);
    multiply(run, rows, num_rows, output);
  }

 private:
  void quantise(Run& run, const float* input, size_t num, const QuantisedRows& rows) const {
    const size_t pieces = (num + kPieceRows - 1) / kPieceRows;
    run.parallel(pieces, [&](size_t piece) {
      const size_t first = piece * kPieceRows;
      set_->quantise(input, *weights_, first, std::min(kPieceRows, num - first), rows);
    });
  }

  void multiply(Run& run, const QuantisedRows& rows, size_t num_rows, float* output) const {
    const size_t pieces_of_rows = (num_rows + kPieceRows - 1) / kPieceRows;
    const size_t panels = std::max<size_t>(2, kPieceBytes / weights_->panel_bytes / 2 * 2);
    const size_t pieces = (weights_->num_panels + panels - 1) / panels;
    const float* bias = bias_.empty() ? nullptr : bias_.data();
    run.parallel(pieces * pieces_of_rows, [&](size_t piece) {
      const size_t first_row = piece % pieces_of_rows * kPieceRows;
      const size_t first_panel = piece / pieces_of_rows * panels;
      const Tile tile{first_row, std::min(kPieceRows, num_rows - first_row), first_panel,
                      std::min(panels, weights_->num_panels - first_panel)};
      set_->multiply(*weights_, rows, tile, bias, output);
    });
  }

  const ort::Api* api_;
  const InstructionSet* set_;
  std::shared_ptr<const PackedMatrix> weights_;
  std::vector<float> bias_;
};

ort::Element input_type(const ort::CustomOp*, size_t index) {
  switch (index) {
    case kB:
    case kZeroPoints:
      return ort::Element::kUint8;
    case kGroupIndex:
      return ort::Element::kInt32;
    default:
      return ort::Element::kFloat;
  }
}

struct Made {  // what the runtime holds of a kernel
  const ort::Api* api;
  Kernel kernel;
};

ort::Status* create(const ort::CustomOp*, const ort::Api* api, const ort::KernelInfo* info,
                    void** made) {
  return guarded(api, [&] { *made = new Made{api, Kernel(api, Node(api, info))}; });
}

ort::Status* run(void* made, ort::KernelContext* context) {
  const auto* held = static_cast<const Made*>(made);
  return guarded(held->api, [&] { held->kernel.run(context); });
}

}  // namespace

const ort::CustomOp& matmul_nbits() {
  static const ort::CustomOp op = [] {
    ort::CustomOp made{};
    made.version = ort::kApiVersion;
    made.name = [](const ort::CustomOp*) { return "MatMulNBits"; };
    made.execution_provider = [](const ort::CustomOp*) { return "CPUExecutionProvider"; };
    made.input_type = input_type;
    made.num_inputs = [](const ort::CustomOp*) -> size_t { return kNumInputs; };
    made.output_type = [](const ort::CustomOp*, size_t) { return ort::Element::kFloat; };
    made.num_outputs = [](const ort::CustomOp*) -> size_t { return 1; };
    made.destroy = [](void* kernel) { delete static_cast<Made*>(kernel); };
    made.input_presence = [](const ort::CustomOp*, size_t index) {
      return index >= kScales ? ort::Presence::kOptional : ort::Presence::kRequired;
    };
    made.output_presence = [](const ort::CustomOp*, size_t) { return ort::Presence::kRequired; };
    made.input_memory = [](const ort::CustomOp*, size_t) { return 0; };
    made.min_variadic_inputs = [](const ort::CustomOp*) { return 1; };
    made.are_variadic_inputs_alike = [](const ort::CustomOp*) { return 1; };
    made.min_variadic_outputs = [](const ort::CustomOp*) { return 1; };
    made.are_variadic_outputs_alike = [](const ort::CustomOp*) { return 1; };
    made.create = create;
    made.run = run;
    made.first_version = [](const ort::CustomOp*) { return 1; };
    made.last_version = [](const ort::CustomOp*) { return 1; };
    return made;
  }();
  return op;
}

}  // namespace twostroke
