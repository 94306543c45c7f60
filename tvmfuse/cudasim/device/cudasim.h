// Everything a kernel that TVM printed may use. compiler.py includes it before the kernel's text.
#pragma once
#include <cstdint>
#include <cstring>

#include "vector_types.h"
#include "half.h"
#include "bfloat16.h"
#include "half_math.h"
#include "scalar_math.h"
#include "execution.h"
#include "warp_functions.h"
#include "atomics.h"
#include "async_copy.h"
#include "fp8.h"
#include "wmma.h"
#include "ptx_matrix.h"
#include "kernel_table.h"
#include "keywords.h"
