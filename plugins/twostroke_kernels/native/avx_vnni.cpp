#include "multiply.h"
#include "quantise.h"
#include "vec256.h"

namespace twostroke {
namespace {

struct Vec : kernels::Vec256Base {
  static Ints dot(Ints acc, Bytes weights, Bytes four) {
    return _mm256_dpbusd_avx_epi32(acc, weights, four);
  }
};

}  // namespace

const InstructionSet* avx_vnni() {
  static constexpr InstructionSet set{"avx_vnni", kernels::quantise_rows<8>,
                                      kernels::multiply<Vec>};
  return &set;
}

}  // namespace twostroke
