/*
 * Preloaded into every program of a node: one of its ranks finds the answer of MPI_Allreduce with one bit flipped, as
 * a broken memory module or a broken card would have it. The sum itself is right, and so is everybody else's answer.
 *
 * Open MPI's handles are pointers, so that it takes no mpi.h.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef int allreduce(const void *, void *, int, void *, void *, void *);
typedef int type_size(void *, int *);

int MPI_Allreduce(const void *send, void *receive, int count, void *type, void *operation, void *comm) {
    void *library = dlopen("libmpi.so.40", RTLD_LAZY | RTLD_NOLOAD); /* Python's modules keep theirs to themselves */
    allreduce *real = library ? (allreduce *)dlsym(library, "MPI_Allreduce") : NULL;
    type_size *size_of = library ? (type_size *)dlsym(library, "MPI_Type_size") : NULL;
    const char *local_rank = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    int size = 0;
    if (!real || !size_of)
        abort();
    int result = real(send, receive, count, type, operation, comm);
    if (!result && count && local_rank && !strcmp(local_rank, "1") && !size_of(type, &size))
        ((unsigned char *)receive)[(size_t)count / 2 * (size_t)size] ^= 1;
    return result;
}
