/* heat2d.c - heat2d.py in C, for tests in which the program does not matter: it starts fast, and its images are small.
 * It has the same options, and the final field is the same bit for bit. */
#include <getopt.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../hold.h"

static int n = 512, steps = 2000, every = 50, rank, size, rows, columns;
static double rest;
static const char *out = "";

static void options(int argc, char **argv) {
    static const struct option known[] = {{"n", 1, NULL, 'n'},     {"steps", 1, NULL, 's'}, {"every", 1, NULL, 'e'},
                                          {"pause", 1, NULL, 'p'}, {"out", 1, NULL, 'o'},   {NULL, 0, NULL, 0}};
    for (int which; (which = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (which == 'n') n = atoi(optarg);
        else if (which == 's') steps = atoi(optarg);
        else if (which == 'e') every = atoi(optarg);
        else if (which == 'p') rest = atof(optarg);
        else if (which == 'o') out = optarg;
        else MPI_Abort(MPI_COMM_WORLD, 2);
    }
}

static double *zeros(int count) {
    double *made = calloc((size_t)count, sizeof *made);
    if (!made) MPI_Abort(MPI_COMM_WORLD, 1);
    return made;
}

/* First cell of one part. */
static int first(int parts, int index) { return index * n / parts; }

static int neighbour(int row, int column) {
    return row < 0 || row >= rows || column < 0 || column >= columns ? MPI_PROC_NULL : row * columns + column;
}

/* As numpy.save does, format 1.0: the header is filled up to 128 bytes. */
static void save(const double *field) {
    char header[129];
    FILE *file = fopen(out, "w");
    int used = snprintf(header, sizeof header, "{'descr': '<f8', 'fortran_order': False, 'shape': (%d, %d), }", n, n);
    memset(header + used, ' ', 117 - (size_t)used);
    if (!file || fwrite("\x93NUMPY\1\0v\0", 1, 10, file) != 10 || fprintf(file, "%.117s\n", header) != 118 ||
        fwrite(field, sizeof *field * (size_t)n, (size_t)n, file) != (size_t)n || fclose(file))
        MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The whole field on rank 0, saved. `u` has a halo. */
static void finish(const double *u, int height, int width) {
    double *part = zeros(n * n), *field = rank ? NULL : zeros(n * n), mean = 0;
    for (int i = 0; i < height; i++)
        memcpy(&part[i * width], &u[(i + 1) * (width + 2) + 1], sizeof *u * (size_t)width);
    if (rank) MPI_Send(part, height * width, MPI_DOUBLE, 0, 7, MPI_COMM_WORLD);
    for (int r = 0; r < size && rank == 0; r++) {
        int y = first(rows, r / columns), h = first(rows, r / columns + 1) - y;
        int x = first(columns, r % columns), w = first(columns, r % columns + 1) - x;
        if (r) MPI_Recv(part, h * w, MPI_DOUBLE, r, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < h; i++) memcpy(&field[(y + i) * n + x], &part[i * w], sizeof *u * (size_t)w);
    }
    for (int i = 0; i < n * n && rank == 0; i++) mean += field[i] / n / n;
    if (rank == 0 && *out) save(field);
    if (rank == 0) printf("heat2d: done, mean %.17e\n", mean);
    free(part);
    free(field);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    setvbuf(stdout, NULL, _IOLBF, 0);
    options(argc, argv);
    for (rows = (int)sqrt(size); size % rows;) rows--;
    columns = size / rows;
    const int row = rank / columns, column = rank % columns, y = first(rows, row), x = first(columns, column);
    const int height = first(rows, row + 1) - y, width = first(columns, column + 1) - x, line = width + 2;
    const int up = neighbour(row - 1, column), down = neighbour(row + 1, column);
    const int left = neighbour(row, column - 1), right = neighbour(row, column + 1);

    /* One cell of halo on every side. The ranks at the rim keep the plate's edges in their halo. */
    double *u = zeros((height + 2) * line), *new = zeros((height + 2) * line);
    for (int j = 0; j < line && up == MPI_PROC_NULL; j++) u[j] = 100.0;
    for (int i = 0; i < height + 2 && left == MPI_PROC_NULL; i++)
        u[i * line] = 50.0 * sin(M_PI * (y - 1 + i + 0.5) / n);
    memcpy(new, u, sizeof *u * (size_t)(height + 2) * (size_t)line);
    MPI_Datatype cells;
    MPI_Type_vector(height, 1, line, MPI_DOUBLE, &cells);
    MPI_Type_commit(&cells);
    if (rank == 0) printf("heat2d: %d x %d, %d x %d ranks, %d steps\n", n, n, rows, columns, steps);
    for (int step = 1; step <= steps; step++) {
        MPI_Comm world = MPI_COMM_WORLD;
        double *last = &u[height * line], change = 0, total;
        MPI_Sendrecv(&u[line + 1], width, MPI_DOUBLE, up, 1, &last[line + 1], width, MPI_DOUBLE, down, 1, world,
                     MPI_STATUS_IGNORE);
        MPI_Sendrecv(&last[1], width, MPI_DOUBLE, down, 2, &u[1], width, MPI_DOUBLE, up, 2, world, MPI_STATUS_IGNORE);
        MPI_Sendrecv(&u[line + 1], 1, cells, left, 3, &u[line + width + 1], 1, cells, right, 3, world,
                     MPI_STATUS_IGNORE);
        MPI_Sendrecv(&u[line + width], 1, cells, right, 4, &u[line], 1, cells, left, 4, world, MPI_STATUS_IGNORE);
        for (int i = 1; i <= height; i++)
            for (int j = i * line + 1; j <= i * line + width; j++) {
                new[j] = u[j] + 0.24 * (u[j - line] + u[j + line] + u[j - 1] + u[j + 1] - 4 * u[j]);
                change += (new[j] - u[j]) * (new[j] - u[j]);
            }
        if (step % every == 0 || step == steps) {
            MPI_Allreduce(&change, &total, 1, MPI_DOUBLE, MPI_SUM, world);
            if (rank == 0) printf("step %d residual %.17e\n", step, sqrt(total));
            usleep((useconds_t)(rest * 1e6));
            hold(step);
        }
        double *swapped = u;
        u = new;
        new = swapped;
    }
    MPI_Type_free(&cells);
    finish(u, height, width);
    free(u);
    free(new);
    MPI_Finalize();
    return 0;
}
