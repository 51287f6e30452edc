// The heat equation on a rod, one piece a rank; its total is preserved, and its shape is known.
#include <mpi.h>

#include <cmath>
#include <iostream>
#include <numeric>
#include <vector>

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank = 0, size = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);

    const int cells = 64, steps = 100;
    const double pi = std::acos(-1.0), wave = 2 * pi / (cells * size), part = 0.25;
    std::vector<double> now(cells + 2), next(cells + 2);
    for (int i = 1; i <= cells; ++i)
        now[i] = 1 + std::cos(wave * (rank * cells + i));
    const int left = (rank + size - 1) % size, right = (rank + 1) % size;
    for (int step = 0; step < steps; ++step) {
        MPI_Sendrecv(&now[1], 1, MPI_DOUBLE, left, 0, &now[cells + 1], 1, MPI_DOUBLE, right, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        MPI_Sendrecv(&now[cells], 1, MPI_DOUBLE, right, 1, &now[0], 1, MPI_DOUBLE, left, 1, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        for (int i = 1; i <= cells; ++i)
            next[i] = now[i] + part * (now[i - 1] - 2 * now[i] + now[i + 1]);
        now.swap(next);
    }
    // One wave stays a wave: each step damps it by the same factor.
    const double damped = std::pow(1 - 2 * part * (1 - std::cos(wave)), steps);
    double error = 0, total = std::accumulate(now.begin() + 1, now.end() - 1, 0.0), worst = 0, sum = 0;
    for (int i = 1; i <= cells; ++i)
        error = std::max(error, std::abs(now[i] - 1 - damped * std::cos(wave * (rank * cells + i))));
    MPI_Reduce(&error, &worst, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&total, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        std::cout << "heat " << std::lround(sum) << (worst < 1e-12 ? " right" : " wrong") << std::endl;
    MPI_Finalize();
}
