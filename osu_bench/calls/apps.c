/* apps.c - small programs with the communication of the collective clock paper's applications (its Table 1): apps KIND
 * [SCALE]
 *
 * They are stand-ins, written for this benchmark. They compute real results, but none of them is the application
 * itself.
 *
 *   bcast      only MPI_Bcast of 4 bytes
 *              stands for: the OSU micro-benchmark
 *   transpose  spectral solver: 2-D Fourier transforms with a transpose by Alltoall, a norm by Allreduce, parameters by
 *              Bcast, a ring of Sendrecv
 *              stands for: VASP 6 (FFTs, very many collectives)
 *   cg         conjugate gradients for Poisson's equation; halo and dot products by Ialltoallv and Iallreduce, both
 *              overlapped with computation
 *              stands for: Poisson solver (only nonblocking collectives)
 *   particles  particles with a soft repulsion; six exchanges with the neighbours per step, an energy by Allreduce
 *              every 40 steps
 *              stands for: CoMD, LAMMPS (many messages, few collectives)
 *   stencil    wave equation, fourth order; halo by Isend and Irecv, the largest amplitude by Allreduce every 400 steps
 *              stands for: SW4 (messages, hardly a collective)
 *
 * SCALE multiplies the number of steps. Rank 0 prints one JSON object: seconds of the steps, calls per second and rank,
 * and a checksum of the result. With the same number of ranks the checksum is the same, bit for bit, on every machine.
 */
#include "bench.h"

#include <math.h>
#include <stdint.h>

static long collectives, messages; /* counted on every rank */
static uint64_t checksum;

#define COLLECTIVE(CALL) (collectives++, CALL)
#define MESSAGE(CALL) (messages++, CALL)

static int left(void) { return (bench_rank + bench_size - 1) % bench_size; }
static int right(void) { return (bench_rank + 1) % bench_size; }

static double *numbers(size_t n) {
    double *x = calloc(n, sizeof *x);
    if (x == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    return x;
}

static void add_to_checksum(const double *x, size_t n) { /* FNV-1a over the bytes */
    const unsigned char *p = (const unsigned char *)x;
    for (size_t i = 0; i < n * sizeof *x; i++) checksum = (checksum ^ p[i]) * 1099511628211ul;
}

static double all_sum(double mine) {
    double sum;
    COLLECTIVE(MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
    return sum;
}

/* ---- bcast ---- */

static void bcast(long steps) {
    int value = 1;
    for (long i = 0; i < steps; i++) COLLECTIVE(MPI_Bcast(&value, 1, MPI_INT, 0, MPI_COMM_WORLD));
    double result = value;
    add_to_checksum(&result, 1);
}

/* ---- transpose ---- */

#define N 64 /* points in each direction; a rank has N / size rows of complex numbers, stored as pairs */

static void fourier(double *row, int sign) { /* in place, radix 2 */
    for (int i = 1, j = 0; i < N; i++) {
        int bit = N >> 1;
        for (; j & bit; bit >>= 1) j ^= bit;
        j ^= bit;
        if (i < j) {
            double re = row[2 * i], im = row[2 * i + 1];
            row[2 * i] = row[2 * j], row[2 * i + 1] = row[2 * j + 1];
            row[2 * j] = re, row[2 * j + 1] = im;
        }
    }
    for (int length = 2; length <= N; length <<= 1) {
        double angle = sign * 2 * M_PI / length, wr = cos(angle), wi = sin(angle);
        for (int i = 0; i < N; i += length) {
            double cr = 1, ci = 0;
            for (int k = 0; k < length / 2; k++) {
                double *a = row + 2 * (i + k), *b = row + 2 * (i + k + length / 2);
                double re = b[0] * cr - b[1] * ci, im = b[0] * ci + b[1] * cr, next = cr * wr - ci * wi;
                b[0] = a[0] - re, b[1] = a[1] - im;
                a[0] += re, a[1] += im;
                ci = cr * wi + ci * wr, cr = next;
            }
        }
    }
}

static void transpose(double *grid, double *out, double *in, int rows) { /* of N x N, distributed by rows */
    for (int p = 0; p < bench_size; p++)
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < rows; j++)
                memcpy(out + 2 * ((p * rows + j) * rows + i), grid + 2 * (i * N + p * rows + j), 2 * sizeof *out);
    COLLECTIVE(MPI_Alltoall(out, 2 * rows * rows, MPI_DOUBLE, in, 2 * rows * rows, MPI_DOUBLE, MPI_COMM_WORLD));
    for (int p = 0; p < bench_size; p++)
        for (int j = 0; j < rows; j++)
            memcpy(grid + 2 * (j * N + p * rows), in + 2 * (p * rows + j) * rows, 2 * (size_t)rows * sizeof *in);
}

static void spectral(long steps) {
    int rows = N / bench_size;
    size_t size = 2 * (size_t)rows * N;
    double *grid = numbers(size), *out = numbers(size), *in = numbers(size), damping = 0, edge[2], other[2];
    for (size_t i = 0; i < size; i++) grid[i] = sin(0.1 * (double)(i + size * (size_t)bench_rank));
    for (long s = 0; s < steps; s++) {
        damping = 1.0 / (1 + (double)(s % 7)); /* rank 0 decides */
        COLLECTIVE(MPI_Bcast(&damping, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD));
        for (int direction = 0; direction < 2; direction++) { /* there and back */
            for (int i = 0; i < rows; i++) fourier(grid + 2 * i * N, direction ? 1 : -1);
            transpose(grid, out, in, rows);
            for (int i = 0; i < rows; i++) fourier(grid + 2 * i * N, direction ? 1 : -1);
            double mine = 0;
            for (size_t i = 0; i < size; i++) mine += grid[i] * grid[i];
            double norm = sqrt(all_sum(mine)) * (1 + 1e-3 * damping);
            for (size_t i = 0; i < size; i++) grid[i] *= N / norm;
        }
        memcpy(edge, grid, sizeof edge);
        MESSAGE(MPI_Sendrecv(edge, 2, MPI_DOUBLE, left(), 0, other, 2, MPI_DOUBLE, right(), 0, MPI_COMM_WORLD,
                             MPI_STATUS_IGNORE));
        grid[2] += 1e-6 * other[0];
    }
    add_to_checksum(grid, size);
    free(grid), free(out), free(in);
}

/* ---- cg ---- */

#define WIDTH 512
#define ROWS 128 /* per rank */

/* y = A p for the five-point operator; p has a halo row above and below, fetched while the inner rows are computed */
static void apply(double *p, double *y, int *counts, int *to, int *from) {
    MPI_Request request;
    COLLECTIVE(
        MPI_Ialltoallv(p + WIDTH, counts, to, MPI_DOUBLE, p, counts, from, MPI_DOUBLE, MPI_COMM_WORLD, &request));
    for (int pass = 0; pass < 2; pass++) { /* the inner rows, then the first and the last */
        if (pass == 1) MPI_Wait(&request, MPI_STATUS_IGNORE);
        for (int i = pass ? 1 : 2; i <= (pass ? ROWS : ROWS - 1); i += pass ? ROWS - 1 : 1)
            for (int j = 0; j < WIDTH; j++) {
                const double *c = p + i * WIDTH + j;
                y[i * WIDTH + j] = 4 * c[0] - c[-WIDTH] - c[WIDTH] - (j ? c[-1] : 0) - (j < WIDTH - 1 ? c[1] : 0);
            }
    }
}

static double dot(const double *a, const double *b) { /* own rows, without the halo */
    double sum = 0;
    for (int i = WIDTH; i < (ROWS + 1) * WIDTH; i++) sum += a[i] * b[i];
    return sum;
}

static void cg(long steps) {
    size_t size = (ROWS + 2) * (size_t)WIDTH;
    double *x = numbers(size), *r = numbers(size), *p = numbers(size), *y = numbers(size);
    int *counts = calloc((size_t)bench_size, sizeof *counts), *to = calloc((size_t)bench_size, sizeof *to),
        *from = calloc((size_t)bench_size, sizeof *from);
    if (bench_rank > 0) counts[bench_rank - 1] = WIDTH, to[bench_rank - 1] = 0, from[bench_rank - 1] = 0;
    if (bench_rank < bench_size - 1)
        counts[bench_rank + 1] = WIDTH, to[bench_rank + 1] = (ROWS - 1) * WIDTH,
                            from[bench_rank + 1] = (ROWS + 1) * WIDTH;
    for (int i = WIDTH; i < (ROWS + 1) * WIDTH; i++) r[i] = p[i] = (i + bench_rank) % 17 - 8;
    double mine = dot(r, r), rr, next, py;
    MPI_Request request;
    COLLECTIVE(MPI_Iallreduce(&mine, &rr, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &request));
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (long s = 0; s < steps; s++) {
        apply(p, y, counts, to, from);
        mine = dot(p, y);
        COLLECTIVE(MPI_Iallreduce(&mine, &py, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &request));
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        double alpha = rr / py;
        for (int i = WIDTH; i < (ROWS + 1) * WIDTH; i++) r[i] -= alpha * y[i];
        mine = dot(r, r);
        COLLECTIVE(MPI_Iallreduce(&mine, &next, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &request));
        for (int i = WIDTH; i < (ROWS + 1) * WIDTH; i++) x[i] += alpha * p[i]; /* behind the reduction */
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        for (int i = WIDTH; i < (ROWS + 1) * WIDTH; i++) p[i] = r[i] + next / rr * p[i];
        rr = next;
    }
    add_to_checksum(x, size);
    free(x), free(r), free(p), free(y), free(counts), free(to), free(from);
}

/* ---- particles ---- */

#define PARTICLES 400 /* per rank; they act on each other and on those of both neighbours */
/* sent to each side in three messages, as a domain decomposition in three directions does */
#define PART (PARTICLES / 3)

static double repulsion(const double *a, const double *b, size_t n, double *force) { /* of b on a; returns the energy */
    double energy = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double d = a[i] - b[j], q = 1 / (1 + d * d);
            energy += q;
            force[i] += 2 * d * q * q;
        }
    return energy;
}

static void particles(long steps) {
    double *x = numbers(PARTICLES), *v = numbers(PARTICLES), *f = numbers(PARTICLES), *other = numbers(PARTICLES),
           energy = 0;
    for (int i = 0; i < PARTICLES; i++) x[i] = bench_rank + (double)i / PARTICLES + 0.01 * sin(i);
    for (long s = 0; s < steps; s++) {
        memset(f, 0, PARTICLES * sizeof *f);
        double mine = repulsion(x, x, PARTICLES, f);
        for (int side = 0; side < 2; side++) {
            for (int part = 0; part < 3; part++)
                MESSAGE(MPI_Sendrecv(x + part * PART, PART, MPI_DOUBLE, side ? left() : right(), part,
                                     other + part * PART, PART, MPI_DOUBLE, side ? right() : left(), part,
                                     MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            mine += repulsion(x, other, 3 * PART, f);
        }
        for (int i = 0; i < PARTICLES; i++) v[i] = 0.999 * v[i] + 1e-5 * f[i], x[i] += 1e-3 * v[i];
        if (s % 40 == 39) energy = all_sum(mine);
    }
    add_to_checksum(x, PARTICLES), add_to_checksum(&energy, 1);
    free(x), free(v), free(f), free(other);
}

/* ---- stencil ---- */

#define HALO 2

static void stencil(long steps) {
    size_t size = (ROWS + 2 * HALO) * (size_t)WIDTH;
    double *u = numbers(size), *old = numbers(size), *new = numbers(size), largest = 0;
    for (int i = HALO; i < ROWS + HALO; i++)
        for (int j = 0; j < WIDTH; j++)
            u[i * WIDTH + j] = old[i * WIDTH + j] =
                exp(-0.01 * ((i - 40) * (i - 40) + (j - 200) * (j - 200))) * (bench_rank == 0);
    for (long s = 0; s < steps; s++) {
        MPI_Request r[4];
        MESSAGE(MPI_Irecv(u, HALO * WIDTH, MPI_DOUBLE, left(), 0, MPI_COMM_WORLD, &r[0]));
        MESSAGE(MPI_Irecv(u + (ROWS + HALO) * WIDTH, HALO * WIDTH, MPI_DOUBLE, right(), 1, MPI_COMM_WORLD, &r[1]));
        MESSAGE(MPI_Isend(u + ROWS * WIDTH, HALO * WIDTH, MPI_DOUBLE, right(), 0, MPI_COMM_WORLD, &r[2]));
        MESSAGE(MPI_Isend(u + HALO * WIDTH, HALO * WIDTH, MPI_DOUBLE, left(), 1, MPI_COMM_WORLD, &r[3]));
        MPI_Waitall(4, r, MPI_STATUSES_IGNORE);
        for (int i = HALO; i < ROWS + HALO; i++)
            for (int j = HALO; j < WIDTH - HALO; j++) {
                const double *c = u + i * WIDTH + j;
                double xx = (-c[-2] + 16 * c[-1] - 30 * c[0] + 16 * c[1] - c[2]) / 12;
                double yy = (-c[-2 * WIDTH] + 16 * c[-WIDTH] - 30 * c[0] + 16 * c[WIDTH] - c[2 * WIDTH]) / 12;
                new[i * WIDTH + j] = 2 * c[0] - old[i * WIDTH + j] + 0.1 * (xx + yy);
            }
        double *spare = old;
        old = u, u = new, new = spare;
        if (s % 400 == 399) {
            double mine = 0;
            for (size_t i = HALO * WIDTH; i < (ROWS + HALO) * (size_t)WIDTH; i++) mine = fmax(mine, fabs(u[i]));
            COLLECTIVE(MPI_Allreduce(&mine, &largest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD));
        }
    }
    add_to_checksum(u + HALO * WIDTH, ROWS * (size_t)WIDTH), add_to_checksum(&largest, 1);
    free(u), free(old), free(new);
}

/* ---- */

static const struct {
    const char *name;
    void (*run)(long steps);
    long steps; /* takes at most a second on an idle processor of 2020 */
} apps[] = {{"bcast", bcast, 1000000},
            {"transpose", spectral, 1000},
            {"cg", cg, 500},
            {"particles", particles, 200},
            {"stencil", stencil, 1600}};

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &bench_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &bench_size);
    const char *kind = argc > 1 ? argv[1] : "";
    double scale = argc > 2 ? atof(argv[2]) : 1;
    size_t chosen = 0, napps = sizeof apps / sizeof *apps;
    while (chosen < napps && strcmp(apps[chosen].name, kind)) chosen++;
    if (chosen == napps || N % bench_size) {
        fprintf(stderr,
                "usage: apps bcast|transpose|cg|particles|stencil [SCALE], with a number of ranks that divides %d\n",
                N);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    long steps = (long)((double)apps[chosen].steps * scale);
    checksum = 14695981039346656037ul + (uint64_t)bench_rank;
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = bench_now_ns();
    apps[chosen].run(steps);
    MPI_Barrier(MPI_COMM_WORLD);
    double seconds = (bench_now_ns() - begin) / 1e9;
    uint64_t all;
    MPI_Reduce(&checksum, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (bench_rank == 0)
        printf("{\"name\": \"%s\", \"seconds\": %.6f, \"collectives\": %.1f, \"messages\": %.1f, \"checksum\": "
               "\"%016lx\"}\n",
               kind, seconds, (double)collectives / seconds, (double)messages / seconds, (unsigned long)all);
    MPI_Finalize();
    return 0;
}
