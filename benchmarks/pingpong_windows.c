/* One-way latency between two ranks as the times of many short windows, for machines that do other work as well.
 *
 *     mpicc -O2 -o pingpong_windows benchmarks/pingpong_windows.c      # on a node; copy it to the other one
 *     mpirun --host node1:1,node2:1 -np 2 ./pingpong_windows 800       # or with sizes: ./pingpong_windows 40 4194304
 *
 * A window has ten round trips. The scheduler disturbs some windows, and the 5th percentile leaves them out.
 * Further ranks send one byte to both and sleep, so that their idle connections are there.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUND_TRIPS = 10, SIZES = 5, GREETING = 1, END = 2, NAP_US = 50000 };

static int ascending(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void send_to(int partner, char *data, int bytes)
{
    MPI_Send(data, bytes, MPI_CHAR, partner, 0, MPI_COMM_WORLD);
}

static void receive_from(int partner, char *data, int bytes)
{
    MPI_Recv(data, bytes, MPI_CHAR, partner, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void measure(int rank, int bytes, int windows, double *us)
{
    char *data = calloc(1, (size_t)bytes + 1);
    if (!data)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int window = 0; window < windows; window++) {
        const double began = MPI_Wtime();
        for (int trip = 0; trip < ROUND_TRIPS; trip++) {
            if (rank == 0)
                send_to(1, data, bytes);
            receive_from(1 - rank, data, bytes);
            if (rank == 1)
                send_to(0, data, bytes);
        }
        us[window] = (MPI_Wtime() - began) / ROUND_TRIPS / 2 * 1e6;
    }
    free(data);
    qsort(us, (size_t)windows, sizeof *us, ascending);
    if (rank == 0)
        printf("%6d bytes: least %.2f us, 5th percentile %.2f us, quartile %.2f us, median %.2f us\n", bytes, us[0],
               us[windows / 20], us[windows / 4], us[windows / 2]);
}

static void greet(int rank, int ranks)
{
    char byte = 0;
    for (int other = 2; rank < 2 && other < ranks; other++)
        MPI_Recv(&byte, 1, MPI_CHAR, other, GREETING, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int other = 0; rank >= 2 && other < 2; other++)
        MPI_Send(&byte, 1, MPI_CHAR, other, GREETING, MPI_COMM_WORLD);
}

static void sleep_until_the_end(void)
{
    char byte;
    int is_over = 0;
    MPI_Request end;
    MPI_Irecv(&byte, 1, MPI_CHAR, 0, END, MPI_COMM_WORLD, &end);
    while (!is_over) {
        usleep(NAP_US);
        MPI_Test(&end, &is_over, MPI_STATUS_IGNORE);
    }
}

int main(int argc, char **argv)
{
    const int usual[SIZES] = {1, 64, 1024, 4096, 65536};
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int rank, ranks, length;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const int windows = argc > 1 ? atoi(argv[1]) : 800;
    if (ranks < 2 || windows < 1) {
        fprintf(stderr, "pingpong_windows needs at least two ranks and one window\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    MPI_Get_library_version(version, &length);
    printf("rank %d: %.*s\n", rank, (int)strcspn(version, ","), version);
    greet(rank, ranks);
    double *us = calloc((size_t)windows, sizeof *us);
    for (int i = 0; rank < 2 && (argc > 2 ? i < argc - 2 : i < SIZES); i++)
        measure(rank, argc > 2 ? atoi(argv[2 + i]) : usual[i], windows, us);
    for (int other = 2; rank == 0 && other < ranks; other++)
        MPI_Send(&rank, 1, MPI_CHAR, other, END, MPI_COMM_WORLD);
    if (rank >= 2)
        sleep_until_the_end();
    MPI_Finalize();
    return 0;
}
