// The library's doors: ONNX Runtime's, and those by which Python asks what is in it.
#include "instruction_sets.h"
#include "matmul_nbits.h"
#include "node.h"
#include "onnxruntime_abi.h"
#include "packed_matrix.h"

#if defined(_WIN32)
#define TWOSTROKE_EXPORT extern "C" __declspec(dllexport)
#else
#define TWOSTROKE_EXPORT extern "C" __attribute__((visibility("default")))
#endif

using namespace twostroke;

namespace {

// One domain for all sessions; never released, since sessions may outlive static objects.
ort::OpDomain* domain_of(const ort::Api* api) {
  static ort::OpDomain* const domain = [&] {
    ort::OpDomain* made = nullptr;
    check(api, ort::CreateDomain::call(api, "twostroke", &made));
    check(api, ort::AddOp::call(api, made, &matmul_nbits()));
    return made;
  }();
  return domain;
}

}  // namespace

// Called by `register_custom_ops_library` for each session's options.
TWOSTROKE_EXPORT ort::Status* RegisterCustomOps(ort::SessionOptions* options,
                                                const ort::ApiBase* base) {
  const ort::Api* api = base->get_api(ort::kApiVersion);
  if (!api) return nullptr;  // an older runtime: it then says which operator it does not know
  return guarded(api, [&] {
    if (!chosen())
      throw Fault(ort::Code::kInvalidArgument,
                  "TWOSTROKE_KERNELS_ISA names an instruction set that is unknown or not here.");
    check(api, ort::AddDomain::call(api, options, domain_of(api)));
  });
}

// The instruction set that is used, e.g. "avx512_vnni"; null where the one asked for is not here.
TWOSTROKE_EXPORT const char* twostroke_kernels_isa() {
  const InstructionSet* set = chosen();
  return set ? set->name : nullptr;
}

// Bytes of all packed weights in the process.
TWOSTROKE_EXPORT uint64_t twostroke_kernels_packed_bytes() { return packed_bytes(); }

// Bytes that pack() writes for a matrix of this shape.
TWOSTROKE_EXPORT uint64_t twostroke_kernels_packed_size(uint64_t num_columns, uint64_t depth,
                                                        int32_t bits, uint64_t block,
                                                        int32_t has_zero_points) {
  return PackedMatrix(num_columns, depth, bits, block, has_zero_points != 0).size_bytes();
}

// Packs MatMulNBits' B, scales and zero points (null where there are none) into `to`.
TWOSTROKE_EXPORT void twostroke_kernels_pack(uint64_t num_columns, uint64_t depth, int32_t bits,
                                             uint64_t block, const uint8_t* values,
                                             const float* scales, const uint8_t* zero_points,
                                             uint8_t* to) {
  pack({num_columns, depth, bits, block, values, scales, zero_points}, to);
}
