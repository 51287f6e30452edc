/* SPDX-License-Identifier: Apache-2.0 */
/* What nccl.h takes from CUDA's headers for C: two handles. So the check is compiled where no toolkit is. */
#pragma once
#include <stddef.h>
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
