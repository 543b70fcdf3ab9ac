#include "instruction_sets.h"

#include <cstdlib>
#include <cstring>

namespace twostroke {

#if !TWOSTROKE_X86
const InstructionSet* avx512_vnni() { return nullptr; }
const InstructionSet* avx_vnni() { return nullptr; }
const InstructionSet* avx2() { return nullptr; }
#endif

namespace {

struct Candidate {
  const InstructionSet* set;
  bool is_here;  // whether this processor can run it
};

#if TWOSTROKE_X86
bool has_avx512_vnni() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
// gcc 12 does not know "avxvnni": leaf 7, subleaf 1, EAX bit 4.
bool has_avx_vnni() {
  if (!has_avx2()) return false;
  unsigned eax = 7, ebx, ecx = 1, edx;
  __asm__ volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  return (eax >> 4 & 1) != 0;
}
#else
bool has_avx512_vnni() { return false; }
bool has_avx2() { return false; }
bool has_avx_vnni() { return false; }
#endif

}  // namespace

const InstructionSet* chosen() {
  const Candidate candidates[] = {{avx512_vnni(), has_avx512_vnni()},
                                  {avx_vnni(), has_avx_vnni()},
                                  {avx2(), has_avx2()},
                                  {scalar(), true}};
  const char* wanted = std::getenv("TWOSTROKE_KERNELS_ISA");
  for (const auto& [set, is_here] : candidates)
    if (set && is_here && (!wanted || !*wanted || std::strcmp(wanted, set->name) == 0)) return set;
  return nullptr;
}

}  // namespace twostroke
