#pragma once
#include "onnxruntime_abi.h"

namespace twostroke {

// The operator's description; lives as long as the process.
const ort::CustomOp& matmul_nbits();

}  // namespace twostroke
