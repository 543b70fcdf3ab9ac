#include "multiply.h"
#include "quantise.h"
#include "vec512.h"

namespace twostroke {

const InstructionSet* avx512_vnni() {
  static constexpr InstructionSet set{"avx512_vnni", kernels::quantise_rows<16>,
                                      kernels::multiply<kernels::Vec512>};
  return &set;
}

}  // namespace twostroke
