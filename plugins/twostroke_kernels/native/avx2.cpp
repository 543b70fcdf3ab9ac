#include "multiply.h"
#include "quantise.h"
#include "vec256.h"

namespace twostroke {
namespace {

struct Vec : kernels::Vec256Base {
  // maddubs saturates sums of two products at 16 bits, and 2 * 255 * 127 is too large. So weights
  // are halved into two parts of at most 127 and 128: 2 * 128 * 127 fits.
  static Ints dot(Ints acc, Bytes weights, Bytes four) {
    const Bytes low = _mm256_and_si256(weights, _mm256_set1_epi8(127));
    const Bytes top = _mm256_andnot_si256(_mm256_set1_epi8(127), weights);  // 0 or 128
    const Ints ones = _mm256_set1_epi16(1);
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(low, four), ones));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(top, four), ones));
  }
};

}  // namespace

const InstructionSet* avx2() {
  static constexpr InstructionSet set{"avx2", kernels::quantise_rows<8>, kernels::multiply<Vec>};
  return &set;
}

}  // namespace twostroke
