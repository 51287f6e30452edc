/* A libmpi that says whether it takes buffers of GPUs: FAKE_MPI_CUDA is 1 where it does. */
#include <stdlib.h>

int MPIX_Query_cuda_support(void) { return getenv("FAKE_MPI_CUDA") ? atoi(getenv("FAKE_MPI_CUDA")) : 0; }
